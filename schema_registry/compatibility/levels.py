"""Compatibility levels: which older versions are compared with, and in which direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from schema_registry.compatibility.findings import COMPATIBLE, Finding, Verdict

if TYPE_CHECKING:
    from schema_registry.compatibility.warehouse import TableFinding
    from schema_registry.formats import ParsedSchema

LEVELS: Final = (
    "BACKWARD",
    "BACKWARD_TRANSITIVE",
    "FORWARD",
    "FORWARD_TRANSITIVE",
    "FULL",
    "FULL_TRANSITIVE",
    "NONE",
)
DIFFERENT_TYPE: Final = "Incompatible because of different schema type"
LONGEST_QUOTE: Final = 10 * 1024
"""Characters of an old schema that a message repeats."""


def check(
    level: str,
    new: ParsedSchema,
    existing: Sequence[tuple[int, ParsedSchema]],
    *,
    policy: str = "STRICT",
    validate_fields: bool = False,
) -> Verdict:
    """See `schema_registry.formats.check`. The newest version is compared first, and the first that refuses ends it."""
    if level not in LEVELS:
        raise ValueError(f"unknown compatibility level {level!r}: use one of {', '.join(LEVELS)}")
    if level == "NONE":
        return COMPATIBLE
    direction = level.removesuffix("_TRANSITIVE")
    for version, old in reversed(existing if level != direction else existing[-1:]):
        messages, findings = _against(direction, new, version, old, policy)
        if messages:
            last = f"{{validateFields: '{str(validate_fields).lower()}', compatibility: '{level}'}}"
            return Verdict(False, (*messages, last), tuple(findings))
    return COMPATIBLE


def _against(
    direction: str, new: ParsedSchema, version: int, old: ParsedSchema, policy: str
) -> tuple[list[str], list[Finding]]:
    if new.schema_type != old.schema_type:
        return [DIFFERENT_TYPE], [_different_type(new, version, old)]
    backward = new.unreadable(old, reader="new", policy=policy) if direction != "FORWARD" else []
    forward = old.unreadable(new, reader="old", policy=policy) if direction != "BACKWARD" else []
    findings = [msgspec.structs.replace(finding, version=version) for finding in (*forward, *backward)]
    messages = [finding.message for finding in findings]
    # FULL names the old schema only where the new schema cannot read it, as Confluent's registry does.
    if backward or (forward and direction == "FORWARD"):
        messages += [f"{{oldSchemaVersion: {version}}}", _quoted(old.canonical)]
    if policy == "LOGICAL":
        tables = [_of_table(found, version) for found in new.breaks_tables(old, ("iceberg",))]
        findings += tables
        messages += [finding.message for finding in tables]
    return messages, findings


def _of_table(found: TableFinding, version: int) -> Finding:
    return Finding(
        rule=found.rule,
        path="",
        where=found.where,
        reader="new",
        old=found.old,
        new=found.new,
        detail=f"breaks {', '.join(found.breaks)}",
        description=found.explanation,
        explanation=found.explanation,
        fix=found.fix,
        message=found.message,
        version=version,
    )


def _quoted(text: str) -> str:
    if len(text) <= LONGEST_QUOTE:
        return f"{{oldSchema: '{text}'}}"
    return f"{{oldSchema: <truncated> '{text[:LONGEST_QUOTE]}...'}}"


def _different_type(new: ParsedSchema, version: int, old: ParsedSchema) -> Finding:
    return Finding(
        rule="SCHEMA_TYPE_CHANGED",
        path="/",
        where="",
        reader="new",
        old=old.schema_type,
        new=new.schema_type,
        detail="",
        description=DIFFERENT_TYPE,
        explanation=f"version {version} is {old.schema_type}, this schema is {new.schema_type}",
        fix=f"register a schema of type {old.schema_type}, or use another subject",
        version=version,
        message=DIFFERENT_TYPE,
    )
