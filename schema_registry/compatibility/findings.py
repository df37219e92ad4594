"""What a compatibility check answers: structured findings, and Confluent's text of them."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """One reason why a reader cannot read what a writer wrote."""

    rule: str
    """The rule's name as Confluent reports it: ``READER_FIELD_MISSING_DEFAULT_VALUE``."""
    path: str
    """Where, as a JSON pointer into the reader's schema: ``/fields/2/type``."""
    reader: str
    """Which side reads: ``"new"`` (a backward check) or ``"old"`` (a forward check)."""
    old: str
    """The part of the old schema in question, as text; empty where there is none."""
    new: str
    """The same part of the new schema."""
    detail: str
    """What Confluent puts into ``additionalInfo``."""
    description: str
    """Confluent's sentence, with "new" and "old" filled in."""
    explanation: str
    """What happens, in plain words, with the names of fields and types."""
    fix: str
    """What to change in the new schema."""
    version: int | None = None
    """The version that was compared with."""

    @property
    def message(self) -> str:
        return f"{{errorType:'{self.rule}', description:'{self.description}', additionalInfo:'{self.detail}'}}"


class Verdict(msgspec.Struct, frozen=True):
    """Whether a schema may join the others, and if not why."""

    is_compatible: bool
    messages: tuple[str, ...] = ()
    """Confluent's verbose lines, word for word."""
    findings: tuple[Finding, ...] = ()
    """The same reasons with explanations, for people and tools."""

    def __bool__(self) -> bool:
        return self.is_compatible


COMPATIBLE = Verdict(True)
