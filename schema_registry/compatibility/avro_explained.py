"""Avro findings for people: where, what happens, and what to change in the new schema."""

from __future__ import annotations

from typing import Final

from schema_registry.compatibility.avro import Incompatibility
from schema_registry.compatibility.findings import Finding
from serdes.avro.schema import PROMOTIONS, Array, Enum, Fixed, Map, Named, Record, Schema, Union

DESCRIPTIONS: Final = {
    "FIXED_SIZE_MISMATCH": "The size of FIXED type field at path '{path}' in the {reader} schema does not match with "
    "the {writer} schema",
    "TYPE_MISMATCH": "The type (path '{path}') of a field in the {reader} schema does not match with the {writer} "
    "schema",
    "NAME_MISMATCH": "The name of the schema has changed (path '{path}')",
    "MISSING_ENUM_SYMBOLS": "The {reader} schema is missing enum symbols '{detail}' at path '{path}' in the {writer} "
    "schema",
    "MISSING_UNION_BRANCH": "The {reader} schema is missing a type inside a union field at path '{path}' in the "
    "{writer} schema",
    "READER_FIELD_MISSING_DEFAULT_VALUE": "The field '{detail}' at path '{path}' in the {reader} schema has no default "
    "value and is missing in the {writer} schema",
}
"""The sentences that registries answer with; clients and tools search for them."""


def finding(found: Incompatibility, reader: str) -> Finding:
    """Explain findings in plain words. ``reader``: the schema that reads, "new" or "old"."""
    writer = "old" if reader == "new" else "new"
    description = DESCRIPTIONS[found.rule].format(path=found.path, reader=reader, writer=writer, detail=found.detail)
    explanation, fix = _said(found, reader, writer)
    ours, theirs = _fragments(found)
    old, new = (theirs, ours) if reader == "new" else (ours, theirs)
    return Finding(
        rule=found.rule,
        path=found.path,
        where=_where(found),
        reader=reader,
        old=old,
        new=new,
        detail=found.detail,
        description=description,
        explanation=explanation,
        fix=fix,
        message=f"{{errorType:'{found.rule}', description:'{description}', additionalInfo:'{found.detail}'}}",
    )


def exception(text: str, reader: str) -> Finding:
    """Return the finding for a comparison that cannot be made."""
    line = f"Unexpected exception during compatibility check: {text}"
    return Finding(
        rule="UNEXPECTED_EXCEPTION",
        path="/",
        where="",
        reader=reader,
        old="",
        new="",
        detail=text,
        description=line,
        explanation=f"the schemas cannot be compared: {text}",
        fix="leave a single alias for each field of the other schema, or make the schema smaller",
        message=line,
    )


def brief(schema: Schema) -> str:
    """Return a type in a few words."""
    match schema:
        case Union():
            return f"[{', '.join(brief(branch) for branch in schema.branches[:8])}]"
        case Array():
            return f"array of {brief(schema.items)}"
        case Map():
            return f"map of {brief(schema.values)}"
        case Fixed():
            return f"fixed {schema.fullname}({schema.size})"
        case Named():
            return f"{schema.type} {schema.fullname}"
        case _:
            return schema.type


def _where(found: Incompatibility) -> str:
    missing = f".{found.detail}" if found.rule == "READER_FIELD_MISSING_DEFAULT_VALUE" else ""
    return found.where + missing


def _fragments(found: Incompatibility) -> tuple[str, str]:
    """Return the reader's part and the writer's."""
    match found.rule, found.reader, found.writer:
        case "READER_FIELD_MISSING_DEFAULT_VALUE", Record() as record, _:
            field = record.field(found.detail)
            return (f"{found.detail}: {brief(field.schema)}" if field else "", "")
        case "MISSING_ENUM_SYMBOLS", Enum() as mine, Enum() as theirs:
            return ", ".join(mine.symbols), ", ".join(theirs.symbols)
        case _:
            return brief(found.reader), brief(found.writer)


def _said(found: Incompatibility, reader: str, writer: str) -> tuple[str, str]:
    """Return the explanation and the cure."""
    where = _where(found)
    backward = reader == "new"
    mine, theirs = _fragments(found)
    match found.rule:
        case "READER_FIELD_MISSING_DEFAULT_VALUE":
            return (
                f"{where}: records written with the {writer} schema have no field {found.detail!r}, and the {reader} "
                f"schema ({mine}) gives it no default",
                f'give {found.detail!r} a default: "default": ..., or the type ["null", ...] with "default": null'
                if backward
                else f"keep the field {found.detail!r}: readers with the old schema need it",
            )
        case "MISSING_ENUM_SYMBOLS":
            return (
                f"{where}: the {writer} schema writes the symbols {found.detail} that the {reader} enum does not have, "
                "and it has no default symbol",
                f'keep the symbols {found.detail}, or give the enum a "default" that is one of its symbols'
                if backward
                else f"do not add {found.detail} yet: first release a version of the enum with a default symbol",
            )
        case "NAME_MISMATCH":
            old_name = found.writer.fullname if backward else found.reader.fullname
            return (
                f"{where}: the {writer} schema calls the type {found.writer.fullname}, the {reader} one "
                f"{found.reader.fullname}",
                f'name it {old_name} again, or add "aliases": ["{old_name}"]'
                if backward
                else f"keep the name {old_name}",
            )
        case "FIXED_SIZE_MISMATCH":
            return f"{where}: {theirs} is written, {mine} is expected", "keep the size, or add a field of another type"
        case "MISSING_UNION_BRANCH":
            return _union_said(found, where, reader, writer)
        case _:
            return f"{where}: {theirs} is written, and a reader of {mine} cannot take it", _type_fix(found, backward)


def _union_said(found: Incompatibility, where: str, reader: str, writer: str) -> tuple[str, str]:
    branch = found.writer
    if isinstance(branch, Union) and found.location is not None:
        branch = branch.branches[int(found.location[1])]
    explanation = (
        f"{where}: the {writer} schema may write {brief(branch)}, which fits no branch of {brief(found.reader)}"
    )
    inner = [_said(reason, reader, writer) for reason in found.because]
    if inner:
        return f"{explanation}: {'; '.join(said for said, _ in inner)}", "; ".join(
            dict.fromkeys(fix for _, fix in inner)
        )
    if reader == "new":
        return explanation, f"keep {brief(branch)} in the union"
    return explanation, f"do not add {brief(branch)}: readers with the old schema do not know it"


def _type_fix(found: Incompatibility, backward: bool) -> str:
    old = found.writer if backward else found.reader
    if isinstance(found.writer, Record) and isinstance(found.reader, Enum):
        return "give the field itself a default; the enum's own default does not stand in for a field that is missing"
    if backward:
        wider = PROMOTIONS.get(old.type, ())
        kinds = f" (or widen it to {', '.join(wider)})" if wider else ""
    else:
        narrower = sorted(writer for writer, readers in PROMOTIONS.items() if old.type in readers)
        kinds = f" (or narrow it to {', '.join(narrower)})" if narrower else ""
    return f"keep {brief(old)}{kinds}, or add a field with a new name and a default"
