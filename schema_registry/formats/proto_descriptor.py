"""A ``FileDescriptorProto`` in base64, as some clients register their Protobuf schemas, to `proto_model`.

Of the options the common ones are kept (those of files, default, packed, deprecated, allow_alias), not those of
extensions.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

from schema_registry.formats.errors import InvalidSchema
from schema_registry.formats.proto_model import Enum, Field, File, Message, Option, Reserved, Rpc, Service

TYPES: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "group", "message"),
    *("bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
LABELS: Final = ("", "optional", "required", "repeated")
NAME: Final = re.compile(r"\.?[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
PATH: Final = re.compile(r"[^\"\\\x00-\x1f]+")
BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
FILE_OPTIONS: Final = {
    **{1: "java_package", 8: "java_outer_classname", 11: "go_package", 36: "objc_class_prefix"},
    **{37: "csharp_namespace", 39: "swift_prefix", 40: "php_class_prefix", 41: "php_namespace"},
    **{44: "php_metadata_namespace", 45: "ruby_package"},
}
FILE_SWITCHES: Final = {
    **{10: "java_multiple_files", 20: "java_generate_equals_and_hash", 27: "java_string_check_utf8"},
    **{16: "cc_generic_services", 17: "java_generic_services", 18: "py_generic_services"},
    **{23: "deprecated", 31: "cc_enable_arenas"},
}
OPTIMIZE: Final = ("", "SPEED", "CODE_SIZE", "LITE_RUNTIME")
MAX_DEPTH: Final = 32

Members = dict[int, list[int | bytes]]


def is_descriptor(text: str) -> bool:
    return len(text) >= 4 and BASE64.fullmatch(text) is not None


def parse_descriptor(text: str) -> File:
    try:
        members = _members(base64.b64decode(text))
        return _file(members)
    except (binascii.Error, ValueError, IndexError) as error:
        raise InvalidSchema(f"neither a .proto file nor a FileDescriptorProto: {error}", "", "PROTOBUF") from None


def _members(data: bytes) -> Members:
    """Field numbers to values: whole numbers, or bytes."""
    found: Members = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
            case 1 | 5 as kind:
                size = 8 if kind == 1 else 4
                value, at = data[at : at + size], at + size
            case 2:
                size, at = _varint(data, at)
                value, at = data[at : at + size], at + size
            case kind:
                raise ValueError(f"wire type {kind}")
        if at > len(data):
            raise ValueError("it is cut off")
        found.setdefault(tag >> 3, []).append(value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number is too long")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number where a text belongs")
    return value


def _text(members: Members, number: int) -> str:
    values = members.get(number)
    return _bytes(values[-1]).decode() if values else ""


def _name(members: Members, number: int) -> str:
    """A name, or the dotted name of a type."""
    name = _text(members, number)
    if NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no name")
    return name


def _names(members: Members, number: int) -> list[str]:
    return [_name({number: [value]}, number) for value in members.get(number, ())]


def _number(members: Members, number: int, default: int = 0) -> int:
    value = members[number][-1] if number in members else default
    if not isinstance(value, int):
        raise ValueError("a text where a number belongs")
    return value


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _all(members: Members, number: int) -> list[Members]:
    return [_members(_bytes(value)) for value in members.get(number, ())]


def _texts(members: Members, number: int) -> list[str]:
    return [_bytes(value).decode() for value in members.get(number, ())]


def _file(members: Members) -> File:
    file = File(syntax=_text(members, 12) or "proto2", package=_name(members, 2) if 2 in members else "")
    if file.syntax not in ("proto2", "proto3"):
        raise ValueError(f"the syntax {file.syntax!r}")
    public, weak = set(members.get(10, ())), set(members.get(11, ()))
    for index, path in enumerate(_texts(members, 3)):
        if PATH.fullmatch(path) is None:
            raise ValueError(f"{path!r} is no path")
        file.imports.append(("public" if index in public else "weak" if index in weak else "", path))
    for options in _all(members, 8):
        file.options += _file_options(options)
    file.messages = [_message(one, file, file.package, 1) for one in _all(members, 4)]
    file.enums = [_enum(one, file.package) for one in _all(members, 5)]
    file.services = [
        Service(_name(one, 1), [Rpc(_name(rpc, 1), _rpc_type(rpc, 2, 5), _rpc_type(rpc, 3, 6)) for rpc in _all(one, 2)])
        for one in _all(members, 6)
    ]
    if not file.messages and not file.enums:
        raise ValueError("it defines nothing")
    return file


def _file_options(options: Members) -> list[Option]:
    found = [Option(name, _quoted(_text(options, at))) for at, name in FILE_OPTIONS.items() if at in options]
    for at, name in FILE_SWITCHES.items():
        if at in options:
            found.append(Option(name, "true" if _number(options, at) else "false"))
    if 9 in options:
        found.append(Option("optimize_for", OPTIMIZE[_number(options, 9)]))
    return found


def _rpc_type(rpc: Members, number: int, streams: int) -> str:
    return ("stream " if _number(rpc, streams) else "") + _name(rpc, number)


def _message(members: Members, file: File, scope: str, depth: int) -> Message:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} levels of messages")
    name = _name(members, 1)
    message = Message(name, f"{scope}.{name}" if scope else name)
    inner = _all(members, 3)
    entries = {f".{message.fullname}.{_text(one, 1)}": one for one in inner if any(_number(o, 7) for o in _all(one, 7))}
    oneofs = [_name(one, 1) for one in _all(members, 8)]
    message.fields = [_field(one, file, oneofs, entries) for one in _all(members, 2)]
    message.oneofs = {oneof: [] for oneof in oneofs if any(field.oneof == oneof for field in message.fields)}
    message.messages = [
        _message(one, file, message.fullname, depth + 1)
        for one in inner
        if f".{message.fullname}.{_text(one, 1)}" not in entries
    ]
    if lost := {one.type for one in message.fields if one.is_group} - {one.name for one in message.messages}:
        raise ValueError(f"the group {', '.join(lost)} has no message")
    message.enums = [_enum(one, message.fullname) for one in _all(members, 4)]
    message.extensions = [(_number(one, 1), _number(one, 2) - 1) for one in _all(members, 5)]
    ranges = [(_number(one, 1), _number(one, 2) - 1) for one in _all(members, 9)]
    message.reserved = Reserved(ranges, _names(members, 10))
    return message


def _field(members: Members, file: File, oneofs: list[str], entries: dict[str, Members]) -> Field:
    kind = TYPES[_number(members, 5)]
    type = _name(members, 6) if kind in ("group", "message", "enum") else kind
    field = Field(_name(members, 1), _number(members, 3), type, is_group=kind == "group")
    label = LABELS[_number(members, 4, 1)]
    optional = bool(_number(members, 17))
    if 9 in members and not optional:
        field.oneof = oneofs[_number(members, 9)]
    elif label != "optional" or file.syntax == "proto2" or optional:
        field.label = label
    if type in entries:
        key, value = sorted(_all(entries[type], 2), key=lambda one: _number(one, 3))
        field.label, field.key = "", TYPES[_number(key, 5)]
        kind = TYPES[_number(value, 5)]
        field.type = _name(value, 6) if kind in ("message", "enum") else kind
    if field.is_group:
        field.type = field.type.rpartition(".")[2]
    if 7 in members:
        default = _text(members, 7)
        if kind == "string":
            default = _quoted(default)
        elif kind == "bytes":
            default = f'"{default}"'  # escaped already
        field.options.append(Option("default", default))
    for options in _all(members, 8):
        if 2 in options:
            field.options.append(Option("packed", "true" if _number(options, 2) else "false"))
        if _number(options, 3):
            field.options.append(Option("deprecated", "true"))
    return field


def _enum(members: Members, scope: str) -> Enum:
    name = _name(members, 1)
    enum = Enum(name, f"{scope}.{name}" if scope else name)
    enum.values = [(_name(one, 1), _signed(_number(one, 2)), []) for one in _all(members, 2)]
    if any(_number(options, 2) for options in _all(members, 3)):
        enum.options.append(Option("allow_alias", "true"))
    ranges = [(_signed(_number(one, 1)), _signed(_number(one, 2))) for one in _all(members, 4)]
    enum.reserved = Reserved(ranges, _names(members, 5))
    return enum
