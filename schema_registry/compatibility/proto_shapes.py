"""The parts of .proto files that are compared, from their descriptors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FeatureSet,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

_LABELS: Final = {FieldDescriptorProto.LABEL_REPEATED: "repeated", FieldDescriptorProto.LABEL_REQUIRED: "required"}


class Field(NamedTuple):
    name: str
    number: int
    type: str
    """A scalar type, or the full name of a message or enum without its file's package."""
    label: str
    """required, repeated, or nothing."""
    key: str
    """The type of a map's keys; ``type`` is that of its values."""
    oneof: str
    target: str
    """The full name of the message or enum; empty for a scalar."""
    is_enum: bool


class Enum(NamedTuple):
    name: str
    values: list[tuple[str, int]]


class Message(NamedTuple):
    name: str
    fullname: str
    fields: list[Field]
    oneofs: list[str]
    messages: list[Message]
    enums: list[Enum]


class File(NamedTuple):
    package: str
    messages: list[Message]
    enums: list[Enum]

    def local(self, fullname: str) -> str:
        """Return a full name without the package."""
        return fullname.removeprefix(f"{self.package}.") if self.package else fullname


class Shapes:
    """A .proto file, and the messages of all files that it imports."""

    def __init__(self, files: FileDescriptorSet) -> None:
        every = [_file(file) for file in files.file]
        self.file = every[-1]
        self.messages = {message.fullname: (message, file) for file in every for message in _with_nested(file.messages)}
        """Types of fields by full name, with their file."""

    @property
    def names(self) -> tuple[str, ...]:
        """Full names of the file's messages, then of its enums."""
        messages = list(_with_nested(self.file.messages))
        prefix = f"{self.file.package}." if self.file.package else ""
        return (
            *(message.fullname for message in messages),
            *(f"{prefix}{enum.name}" for enum in self.file.enums),
            *(f"{message.fullname}.{enum.name}" for message in messages for enum in message.enums),
        )


def _with_nested(messages: Iterable[Message]) -> Iterator[Message]:
    waiting = list(messages)[::-1]
    while waiting:
        message = waiting.pop()
        yield message
        waiting += reversed(message.messages)


def _file(file: FileDescriptorProto) -> File:
    return File(file.package, [_message(one, file, file.package) for one in file.message_type], _enums(file.enum_type))


def _enums(enums: Iterable[EnumDescriptorProto]) -> list[Enum]:
    return [Enum(one.name, [(value.name, value.number) for value in one.value]) for one in enums]


def _message(message: DescriptorProto, file: FileDescriptorProto, scope: str) -> Message:
    fullname = f"{scope}.{message.name}" if scope else message.name
    entries = {f".{fullname}.{one.name}": one for one in message.nested_type if one.options.map_entry}
    names = [one.name for one in message.oneof_decl]
    fields = [_field(one, file, names, entries.get(one.type_name)) for one in message.field]
    nested = [_message(one, file, fullname) for one in message.nested_type if not one.options.map_entry]
    oneofs = list(dict.fromkeys(field.oneof for field in fields if field.oneof))
    return Message(message.name, fullname, fields, oneofs, nested, _enums(message.enum_type))


def _field(
    field: FieldDescriptorProto,
    file: FileDescriptorProto,
    oneofs: list[str],
    entry: DescriptorProto | None,
) -> Field:
    value = field if entry is None else entry.field[1]
    target = value.type_name.removeprefix(".")
    label = _LABELS.get(field.label, "")
    if field.options.features.field_presence == FeatureSet.LEGACY_REQUIRED:
        label = "required"
    return Field(
        name=field.name,
        number=field.number,
        type=target.removeprefix(f"{file.package}.") if target else _scalar(value),
        label="" if entry is not None else label,
        key="" if entry is None else _scalar(entry.field[0]),
        oneof=oneofs[field.oneof_index] if field.HasField("oneof_index") and not field.proto3_optional else "",
        target=target,
        is_enum=value.type == FieldDescriptorProto.TYPE_ENUM,
    )


def _scalar(field: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
