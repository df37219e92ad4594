"""The three formats of schemas behind one door: parse a text, check it against its older versions.

Pure: no network, no files; references are resolved only through the function given to ``parse``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from schema_registry.compatibility.findings import Finding, Verdict
from schema_registry.formats.errors import InvalidSchema, UnknownSchemaType

if TYPE_CHECKING:
    from serdes.registry import Reference, SchemaText

    Resolve = Callable[[Reference], SchemaText]

__all__ = ["SCHEMA_TYPES", "Finding", "InvalidSchema", "ParsedSchema", "UnknownSchemaType", "Verdict", "check", "parse"]

SCHEMA_TYPES = ("JSON", "PROTOBUF", "AVRO")
"""As GET /schemas/types lists them."""


class ParsedSchema(Protocol):
    """A valid schema with its references resolved. Immutable; may be kept and compared any number of times."""

    @property
    def schema_type(self) -> str: ...
    @property
    def canonical(self) -> str:
        """The text that is stored, hashed and given out; for Avro Java's ``Schema.toString()``."""
        ...

    @property
    def references(self) -> tuple[Reference, ...]: ...
    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the types it defines itself, the schema's own name first; what record name strategies use."""
        ...

    def normalized(self) -> str:
        """The text that is stored with ``normalize=true``."""
        ...

    def unreadable(self, writer: ParsedSchema, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        """Why data of ``writer`` (a schema of the same type) cannot be read with this schema; empty: it always can."""
        ...


def parse(text: SchemaText, resolve: Resolve) -> ParsedSchema:
    """The schema of ``text``; ``resolve`` gives the text of a reference.

    Raises ``InvalidSchema`` with path and reason, ``UnknownSchemaType``; what ``resolve`` raises passes through.
    """
    raise NotImplementedError


def check(
    level: str,
    new: ParsedSchema,
    existing: Sequence[tuple[int, ParsedSchema]],
    *,
    policy: str = "STRICT",
    validate_fields: bool = False,
) -> Verdict:
    """Whether ``new`` may follow ``existing`` (version, schema; oldest first) at a compatibility level.

    ``existing`` holds undeleted versions only. ``policy`` is Confluent's ``compatibilityPolicy`` (STRICT, LENIENT,
    LOGICAL), ``validate_fields`` is only reported in the messages.
    """
    raise NotImplementedError
