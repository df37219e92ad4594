"""Differences of JSON schemas for people, and which of them do no harm."""

from __future__ import annotations

import json
from typing import Final

from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.json_schema import Difference
from schema_registry.compatibility.json_shapes import Json


def _each(names: str, *endings: str) -> set[str]:
    return {f"{name}_{ending}" for name in names.split() for ending in endings}


COMPATIBLE: Final = frozenset(
    _each("ID TITLE DESCRIPTION DEFAULT", "CHANGED")
    | _each("MAX_LENGTH MAXIMUM EXCLUSIVE_MAXIMUM MAX_PROPERTIES MAX_ITEMS MAX_CONTAINS", "INCREASED", "REMOVED")
    | _each("MIN_LENGTH MINIMUM EXCLUSIVE_MINIMUM MIN_PROPERTIES MIN_ITEMS MIN_CONTAINS", "DECREASED", "REMOVED")
    | _each("MULTIPLE_OF", "REDUCED", "REMOVED")
    | _each("SCHEMA PATTERN UNIQUE_ITEMS REQUIRED_ATTRIBUTE DEPENDENCY_SCHEMA", "REMOVED")
    | _each("DEPENDENCY_ARRAY", "REMOVED", "NARROWED")
    | _each("ADDITIONAL_PROPERTIES UNEVALUATED_PROPERTIES ADDITIONAL_ITEMS UNEVALUATED_ITEMS", "ADDED", "EXTENDED")
    | _each("TYPE ENUM_ARRAY COMBINED_TYPE SUM_TYPE", "EXTENDED")
    | _each("PRODUCT_TYPE NOT_TYPE", "NARROWED")
    | {
        "REQUIRED_ATTRIBUTE_WITH_DEFAULT_ADDED",
        "PROPERTY_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "OPTIONAL_PROPERTY_ADDED_TO_UNOPEN_CONTENT_MODEL",
        "PROPERTY_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "ITEM_ADDED_TO_CLOSED_CONTENT_MODEL",
        "ITEM_WITH_EMPTY_SCHEMA_ADDED_TO_OPEN_CONTENT_MODEL",
        "ITEM_WITH_FALSE_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    }
    | {
        f"{kind}_{change}"
        for kind in ("PROPERTY", "ITEM")
        for change in (
            "REMOVED_FROM_OPEN_CONTENT_MODEL",
            "ADDED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
            "REMOVED_IS_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
        )
    }
)
"""Differences after which every document that was valid still is (policy STRICT)."""

LENIENT: Final = COMPATIBLE | {
    "ADDITIONAL_PROPERTIES_NARROWED",
    "ADDITIONAL_PROPERTIES_REMOVED",
    "UNEVALUATED_PROPERTIES_NARROWED",
    "UNEVALUATED_PROPERTIES_REMOVED",
    "REQUIRED_PROPERTY_WITH_DEFAULT_ADDED_TO_OPEN_CONTENT_MODEL",
    "OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_FROM_CLOSED_CONTENT_MODEL",
    "PROPERTY_ADDED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
    "PROPERTY_REMOVED_NOT_COVERED_BY_PARTIALLY_OPEN_CONTENT_MODEL",
}
"""Differences that the policy LENIENT accepts: it assumes that writers add no properties beyond their schema."""

SAID: Final[tuple[tuple[str, str, str], ...]] = (
    ("TYPE_NARROWED", "numbers with a fraction were valid, now only integers are", "keep {old}"),
    ("COMBINED_TYPE_CHANGED", "the schemas are combined in a stricter way", "keep allOf, anyOf or oneOf as it was"),
    (
        "COMBINED_TYPE_SUBSCHEMAS_CHANGED",
        "one of the combined schemas has no counterpart in the new schema",
        "keep each, or widen it",
    ),
    ("SUM_TYPE_NARROWED", "one of the alternatives is gone", "keep every alternative"),
    ("PRODUCT_TYPE_EXTENDED", "one more schema must be fulfilled", "leave it out of allOf"),
    ("NOT_TYPE_EXTENDED", "more is forbidden than before", "forbid no more than before"),
    (
        "TYPE_CHANGED",
        "{old} became {new}, and not every old value is a new one",
        "keep the type, or allow both with anyOf",
    ),
    ("SCHEMA_ADDED", "anything was valid here, now only {new} is", "leave it open"),
    ("REQUIRED_ATTRIBUTE_ADDED", "documents without it were valid", "do not require it, or give it a default"),
    ("REQUIRED_PROPERTY", "documents that exist do not have it", "do not require it, or give it a default"),
    (
        "ADDED_TO_OPEN_CONTENT_MODEL",
        "documents might already hold another value under this name, because names that the schema does not mention "
        "are allowed",
        'write "additionalProperties": false in both versions, or use the policy LENIENT',
    ),
    (
        "REMOVED_FROM_CLOSED_CONTENT_MODEL",
        "documents that hold it are not valid any more, because the schema takes no names but its own",
        "keep it, or allow additional properties",
    ),
    ("NOT_COVERED_BY_PARTIALLY_OPEN", "the schema for names that are not mentioned says otherwise", "make the two fit"),
    ("ADDITIONAL", "names or items that are not mentioned were valid", "keep them allowed"),
    ("UNEVALUATED", "names or items that are not mentioned were valid", "keep them allowed"),
    ("ENUM_ARRAY", "one of the values that were valid is gone: {old} became {new}", "keep every value"),
    ("_ADDED", "there was no limit, now it is {new}", "leave it out"),
    ("_INCREASED", "the least went up from {old} to {new}", "keep {old}, or less"),
    ("_DECREASED", "the most went down from {old} to {new}", "keep {old}, or more"),
    ("_EXPANDED", "multiples of {old} need not be multiples of {new}", "keep {old}"),
    ("_EXTENDED", "more is demanded: {old} became {new}", "demand no more than before"),
    ("", "{old} became {new}", "keep {old}"),
)
"""The first whose name occurs in the rule: what happens, and what to change."""


def finding(found: Difference, reader: str) -> Finding:
    """Explain findings in plain words. ``reader``: the schema that must accept the documents, "new" or "old"."""
    path = f"#/{found.path[1:]}"
    explanation, fix = next((said, fix) for part, said, fix in SAID if part in found.rule)
    written, read = _brief(found.old), _brief(found.new)
    where = found.path.removeprefix("/").replace("properties/", "").replace("/", ".") or "the document"
    said = f"{where}: {explanation.format(old=written, new=read)}"
    if reader == "old":
        said = f"readers with the old schema refuse new documents ({said}, from the new schema to the old one)"
        fix = "change it in two steps: first what readers accept, then what is written"
    description = f"{found.rule.replace('_', ' ').lower()} at path '{path}', as the {reader} schema reads it"
    old, new = (written, read) if reader == "new" else (read, written)
    return Finding(
        rule=found.rule,
        path=path,
        where=where,
        reader=reader,
        old=old,
        new=new,
        detail="",
        description=description,
        explanation=said,
        fix=fix.format(old=written, new=read),
        message=f'{{errorType:"{found.rule}", description:"{description}"}}',
    )


def too_much(text: str, reader: str) -> Finding:
    return Finding(
        rule="UNEXPECTED_EXCEPTION",
        path="#/",
        where="the document",
        reader=reader,
        old="",
        new="",
        detail=text,
        description=text,
        explanation=text,
        fix="make the schema smaller",
        message=f"Unexpected exception during compatibility check: {text}",
    )


def _brief(value: Json) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."
