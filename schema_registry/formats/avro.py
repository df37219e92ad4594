"""Avro schemas, through the model of `serdes.avro`."""

from __future__ import annotations

from typing import Literal, cast

from schema_registry.compatibility import avro_explained as explained
from schema_registry.compatibility.avro import Unanswerable, incompatibilities
from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.warehouse import TARGETS, TableFinding, table_findings
from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.references import Resolve, closure, in_order
from serdes.avro.normal import normalized
from serdes.avro.parse import Parser
from serdes.avro.schema import AvroSchemaError, Named, Schema
from serdes.avro.text import to_text
from serdes.registry import Reference, SchemaText


def parse_avro(text: SchemaText, resolve: Resolve, *, is_new: bool = True) -> AvroSchema:
    # New names and defaults are held to the specification; what registries took in former years stays readable.
    parser = Parser(validate_defaults=is_new, names="ascii" if is_new else "any")
    referred: list[Schema] = []
    for reference, found in closure(text, resolve):
        referred.append(_parse_one(parser, found.schema, f"reference {reference.name!r}: "))
    elsewhere = set(parser.named)
    schema = _parse_one(parser, text.schema, "")
    own = tuple(name for name in parser.named if name not in elsewhere)
    return AvroSchema(schema, text, tuple(referred), own)


def _parse_one(parser: Parser, text: str, where: str) -> Schema:
    try:
        return parser.parse(text)
    except AvroSchemaError as error:
        raise InvalidSchema(error.reason, where + error.path) from None


class AvroSchema:
    """A parsed Avro schema; ``schema`` is its model."""

    __slots__ = ("_referred", "canonical", "names", "schema", "text")

    schema_type: Literal["AVRO"] = "AVRO"

    def __init__(self, schema: Schema, text: SchemaText, referred: tuple[Schema, ...], own: tuple[str, ...]) -> None:
        self.schema = schema
        self.text = text
        self._referred = referred
        self.canonical = to_text(schema, referred)
        first = schema.fullname if isinstance(schema, Named) else None
        self.names = (first, *(name for name in own if name != first)) if first is not None else own

    @property
    def references(self) -> tuple[Reference, ...]:
        return self.text.references

    def formatted(self, format: str) -> str:
        return to_text(self.schema) if format == "resolved" else self.canonical

    def normalized(self) -> SchemaText:
        try:
            return in_order(self.text, normalized(self.schema, self._referred))
        except AvroSchemaError as error:
            # Java's text of a type without a namespace can mean another type, inside one: normalizing reads it again.
            raise InvalidSchema(f"it cannot be normalized: {error.reason}", error.path) from None

    def unreadable(self, writer: object, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        written = cast(AvroSchema, writer)
        try:
            return [explained.finding(found, reader) for found in incompatibilities(self.schema, written.schema)]
        except Unanswerable as error:
            return [explained.exception(str(error), reader)]

    def breaks_tables(self, old: object, targets: tuple[str, ...] = TARGETS) -> list[TableFinding]:
        return table_findings(self.schema, cast(AvroSchema, old).schema, targets)
