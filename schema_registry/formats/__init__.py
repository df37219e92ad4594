"""The common interface of the three schema formats: parse a text, check it against older versions.

Pure: no network, no files; references are resolved only through the function given to ``parse``.
"""

from __future__ import annotations

from typing import Literal, Protocol

from eventbus.errors import ConfigError
from schema_registry.compatibility.findings import Finding, Verdict
from schema_registry.compatibility.levels import LEVELS, check
from schema_registry.compatibility.warehouse import TARGETS, TableFinding
from schema_registry.formats.errors import InvalidSchema, UnknownSchemaType
from schema_registry.formats.references import Resolve
from serdes.registry import Reference, SchemaText

__all__ = [
    "FORMATS",
    "LEVELS",
    "SCHEMA_TYPES",
    "TARGETS",
    "Finding",
    "Format",
    "InvalidSchema",
    "ParsedSchema",
    "Resolve",
    "TableFinding",
    "UnknownSchemaType",
    "Verdict",
    "check",
    "parse",
]

Format = Literal["resolved", "serialized", "ignore_extensions"]
FORMATS: tuple[Format, ...] = ("resolved", "serialized", "ignore_extensions")
SCHEMA_TYPES = ("JSON", "PROTOBUF", "AVRO")
"""The formats, in the order of GET /schemas/types."""


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

    def formatted(self, format: Format) -> str:
        """Return the schema in the format of ``format=``, or the stored text if its type does not have this format.

        ``resolved`` writes out the types that an Avro schema refers to. For Protobuf, ``serialized`` is the descriptor
        in base64 and ``ignore_extensions`` the text without extensions and custom options.
        """
        ...

    def normalized(self) -> SchemaText:
        """Return what is stored with ``normalize=true``: the normalized text and the references, each once and in
        order.

        Raises `InvalidSchema` for the rare text that cannot be read again.
        """
        ...

    def unreadable(self, writer: ParsedSchema, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        """Why data of ``writer`` (a schema of the same type) cannot be read with this schema; empty: it always can.

        ``reader`` says which of the two this one is, the ``"new"`` or the ``"old"``: for the texts.
        """
        ...

    def breaks_tables(self, old: ParsedSchema, targets: tuple[str, ...] = TARGETS) -> list[TableFinding]:
        """Return what breaks tables of Spark, Delta, Iceberg or Parquet when this schema follows ``old``. Implemented
        for Avro only."""
        ...


def parse(text: SchemaText, resolve: Resolve, *, is_new: bool = True) -> ParsedSchema:
    """Return the schema of ``text``; ``resolve`` gives the text of a reference.

    ``is_new=False`` is for schemas that a registry holds already: older registries took defaults of the wrong type.
    Raises `InvalidSchema` with path and reason, `UnknownSchemaType`; what ``resolve`` raises passes through.
    """
    match text.schema_type:
        case "AVRO":
            from schema_registry.formats.avro import parse_avro

            return parse_avro(text, resolve, is_new=is_new)
        case "JSON":
            from schema_registry.formats.json_schema import parse_json_schema

            return parse_json_schema(text, resolve, is_new=is_new)
        case "PROTOBUF":
            try:
                from schema_registry.formats.protobuf import parse_protobuf

                return parse_protobuf(text, resolve, is_new=is_new)
            except ModuleNotFoundError as error:
                raise ConfigError(
                    f"Protobuf schemas need a library that is not installed ({error.name}): "
                    'pip install "eventbus-log[protobuf]"'
                ) from error
        case unknown:
            raise UnknownSchemaType(unknown)
