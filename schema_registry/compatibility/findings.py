"""The findings of a compatibility check, and Confluent's text of them."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One reason why a reader cannot read what a writer wrote."""

    rule: str
    """The rule's name as Confluent reports it: ``READER_FIELD_MISSING_DEFAULT_VALUE``."""
    path: str
    """The location in the reader's schema, as Confluent reports it: ``/fields/2/type``."""
    where: str
    """The same place for people, from the top: ``Flight.legs[].origin``."""
    reader: str
    """Which side reads: ``"new"`` (a backward check) or ``"old"`` (a forward check)."""
    old: str
    """The part of the old schema in question, in short; empty where there is none."""
    new: str
    """The same part of the new schema."""
    detail: str
    """The member ``additionalInfo`` of Confluent's answer."""
    description: str
    """Confluent's sentence, with "new" and "old" filled in."""
    explanation: str
    """The effect in plain words, with the names of fields and types."""
    fix: str
    """The change to make in the new schema."""
    message: str
    """The line that Confluent's registry gives for the finding with ``verbose=true``."""
    version: int | None = None
    """The version that was compared with."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a check: whether the schema is compatible, and the findings if not."""

    is_compatible: bool
    messages: tuple[str, ...] = ()
    """Confluent's verbose lines, word for word."""
    findings: tuple[Finding, ...] = ()
    """The same reasons with explanations, for people and tools."""

    def __bool__(self) -> bool:
        return self.is_compatible


COMPATIBLE = Verdict(True)
