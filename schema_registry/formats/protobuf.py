"""Protobuf schemas: .proto files of proto2 and proto3, or a base64-encoded ``FileDescriptorProto``.

What is imported must be a reference whose name is the path of the import, or one of the files that come with every
compiler (``google/protobuf/``, ...). Not judged: the meaning of options, extensions and services.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from schema_registry.compatibility import protobuf as compatibility
from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.warehouse import TARGETS, TableFinding
from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.proto_descriptor import is_descriptor, parse_descriptor
from schema_registry.formats.proto_model import File
from schema_registry.formats.proto_names import check_names
from schema_registry.formats.proto_parse import parse_proto
from schema_registry.formats.proto_text import proto_text
from schema_registry.formats.references import Resolve, closure, in_order
from serdes.registry import Reference, SchemaText


def parse_protobuf(text: SchemaText, resolve: Resolve) -> ProtobufSchema:
    imported: dict[str, File] = {}
    for reference, found in closure(text, resolve):
        try:
            file = imported[reference.name] = _parsed(found.schema)
            check_names(file, imported)
        except InvalidSchema as error:
            raise InvalidSchema(error.reason, f"reference {reference.name!r}: {error.path}", "PROTOBUF") from None
    file = _parsed(text.schema)
    check_names(file, imported)
    return ProtobufSchema(file, text, imported)


def _parsed(text: str) -> File:
    # A descriptor goes through the language: what is stored is text, and must be read again.
    return parse_proto(proto_text(parse_descriptor(text)) if is_descriptor(text) else text)


class ProtobufSchema:
    """A parsed .proto file; ``file`` is its model."""

    __slots__ = ("canonical", "file", "imported", "text")

    schema_type: Literal["PROTOBUF"] = "PROTOBUF"

    def __init__(self, file: File, text: SchemaText, imported: Mapping[str, File]) -> None:
        self.file = file
        self.text = text
        self.imported = imported
        self.canonical = proto_text(file)

    @property
    def references(self) -> tuple[Reference, ...]:
        return self.text.references

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of its messages, the first one first; then its enums."""
        return (
            *(message.fullname for message in self.file.every_message()),
            *(enum.fullname for enum in self.file.every_enum()),
        )

    def resolved(self) -> str:
        return self.canonical

    def normalized(self) -> SchemaText:
        return in_order(self.text, proto_text(self.file, in_order=True))

    def unreadable(self, writer: object, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        written = cast(ProtobufSchema, writer)
        new = compatibility.Side(self.file, self.imported)
        old = compatibility.Side(written.file, written.imported)
        found = compatibility.differences(new, old)
        return [compatibility.finding(one, reader) for one in found if one.rule in compatibility.BREAKING]

    def breaks_tables(self, old: object, targets: tuple[str, ...] = TARGETS) -> list[TableFinding]:
        return []
