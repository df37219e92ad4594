"""Protobuf schemas: .proto files, or a base64-encoded ``FileDescriptorProto``, checked by `protoc`.

What is imported must be a reference whose name is the path of the import, or one of the files that come with every
registry (``google/protobuf/``, ``google/type/``, ``confluent/``).
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, Literal, cast

from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto

from schema_registry.compatibility import protobuf as compatibility
from schema_registry.compatibility.findings import Finding
from schema_registry.compatibility.proto_shapes import Shapes
from schema_registry.compatibility.warehouse import TARGETS, TableFinding
from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.proto_text import proto_text, with_custom_options
from schema_registry.formats.protoc import FileDescriptorProto, FileDescriptorSet, compiled, descriptor
from schema_registry.formats.references import Resolve, closure, in_order
from serdes.registry import Reference, SchemaText

MAX_TYPES: Final = 1_000
BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")


def parse_protobuf(text: SchemaText, resolve: Resolve, *, is_new: bool) -> ProtobufSchema:
    texts = {reference.name: found.schema for reference, found in closure(text, resolve)}
    given = _descriptor(text.schema)
    files = compiled(text.schema if given is None else given, texts)
    if sum(map(_types, (*files.file[-1].message_type, *files.file[-1].enum_type))) > MAX_TYPES:
        raise InvalidSchema(f"it has more than {MAX_TYPES:,} messages and enums", "", "PROTOBUF")
    parsed = ProtobufSchema(files, text)
    if is_new and parsed.canonical != text.schema and not _is_same(files, compiled(parsed.canonical, texts)):
        raise InvalidSchema(
            "it has content that a .proto file cannot express: options without a definition, or an order of fields and "
            "messages that no text has. Register the .proto file", "", "PROTOBUF",
        )  # fmt: skip
    return parsed


def _is_same(files: FileDescriptorSet, others: FileDescriptorSet) -> bool:
    # The assignments (meta).tags = "A" and (meta).tags = "B" are two unknown fields, but one field of a known type.
    if files.file[-1] == others.file[-1]:
        return True
    one, other = (with_custom_options(each).SerializeToString(deterministic=True) for each in (files, others))
    return one == other


def _types(one: DescriptorProto | EnumDescriptorProto) -> int:
    """Count a message or enum with what is nested in it."""
    return 1 if isinstance(one, EnumDescriptorProto) else 1 + sum(map(_types, (*one.nested_type, *one.enum_type)))


def _descriptor(text: str) -> FileDescriptorProto | None:
    if len(text) < 4 or BASE64.fullmatch(text) is None:
        return None
    try:
        return descriptor(base64.b64decode(text))
    except binascii.Error:
        return descriptor(b"\xff")


class ProtobufSchema:
    """A compiled .proto file."""

    __slots__ = ("_files", "canonical", "shapes", "text")

    schema_type: Literal["PROTOBUF"] = "PROTOBUF"

    def __init__(self, files: FileDescriptorSet, text: SchemaText) -> None:
        self._files = files
        self.text = text
        self.canonical = proto_text(files)
        self.shapes = Shapes(files)

    @property
    def references(self) -> tuple[Reference, ...]:
        return self.text.references

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of its messages, the first one first; then its enums."""
        return self.shapes.names

    def formatted(self, format: str) -> str:
        match format:
            case "serialized":
                file = FileDescriptorProto()
                file.CopyFrom(self._files.file[-1])
                file.name = "default"  # as Confluent's registry calls it: a schema has no path
                return base64.b64encode(file.SerializeToString()).decode()
            case "ignore_extensions":
                return proto_text(self._files, extensions=False)
            case _:
                return self.canonical

    def normalized(self) -> SchemaText:
        return in_order(self.text, proto_text(self._files, in_order=True))

    def unreadable(self, writer: object, *, reader: str = "new", policy: str = "STRICT") -> list[Finding]:
        found = compatibility.differences(self.shapes, cast(ProtobufSchema, writer).shapes)
        return [compatibility.finding(one, reader) for one in found if one.rule in compatibility.BREAKING]

    def breaks_tables(self, old: object, targets: tuple[str, ...] = TARGETS) -> list[TableFinding]:
        return []
