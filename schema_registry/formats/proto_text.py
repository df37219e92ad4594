"""Write a .proto file from its descriptor: in one spelling, without comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from itertools import groupby
from typing import Any, Final, cast

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    Edition,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    OneofDescriptorProto,
    ServiceDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.text_encoding import CEscape

MAX_NUMBER: Final = (1 << 29) - 1
MAX_NUMBERS: Final = frozenset({MAX_NUMBER, (1 << 31) - 2})
"""The last number of ``to max`` in a message, and in a message of the wire format of message sets."""
MAX_VALUE: Final = (1 << 31) - 1
VISIBILITIES: Final = ("", "local ", "export ")
_FILE: Final = "google.protobuf.FileDescriptorProto"

_Block = list[FieldDescriptorProto]
"""A field, or all fields of a oneof."""


def proto_text(files: FileDescriptorSet, *, in_order: bool = False, extensions: bool = True) -> str:
    """Write the last of ``files``; the others are what it imports.

    ``in_order``: imports, fields, ranges and values are sorted, for ``normalize=true``. ``extensions=False`` leaves out
    extensions, their ranges and custom options, for ``format=ignore_extensions``.
    """
    blocks = _Printer(files, in_order, extensions).file()
    return "\n".join("".join(f"{line}\n" for line in block) for block in blocks)


def with_custom_options(files: FileDescriptorSet) -> FileDescriptorProto:
    """Read the last file again with the types that it imports, because custom options are unknown fields without."""
    file = files.file[-1]
    if all(one.name != "google/protobuf/descriptor.proto" for one in files.file):
        return file
    pool = DescriptorPool()
    for one in files.file:
        pool.Add(one)
    known = GetMessageClass(pool.FindMessageTypeByName(_FILE)).FromString(file.SerializeToString())
    return cast(FileDescriptorProto, known)


class _Printer:
    def __init__(self, files: FileDescriptorSet, in_order: bool, extensions: bool) -> None:
        self.content = with_custom_options(files)
        self.in_order = in_order
        self.extensions = extensions
        self.known = frozenset(name for file in files.file for name in _symbols(file))

    def file(self) -> Iterator[list[str]]:
        file = self.content
        if file.syntax == "editions":
            head = [f'edition = "{Edition.Name(file.edition).removeprefix("EDITION_")}";']
        else:
            head = [f'syntax = "{file.syntax or "proto2"}";']
        yield [*head, f"package {file.package};"] if file.package else head
        if imports := list(self.imports(file)):
            yield sorted(imports) if self.in_order else imports
        if options := list(self.statements(file.options, file.package)):
            yield options
        body = self.scope(file.package, [], (), file.message_type, file.enum_type, file.extension, [])
        block: list[str] = []
        for line in body:
            if line:
                block.append(line)
            elif block:
                yield block
                block = []
        if block:
            yield block
        for service in file.service:
            yield list(self.service(service))

    def imports(self, file: FileDescriptorProto) -> Iterator[str]:
        for index, path in enumerate(file.dependency):
            public, weak = index in file.public_dependency, index in file.weak_dependency
            yield f"import {'public ' if public else 'weak ' if weak else ''}{_quoted(path)};"
        for path in file.option_dependency:
            yield f"import option {_quoted(path)};"

    def scope(
        self,
        name: str,
        fields: Sequence[FieldDescriptorProto],
        oneofs: Sequence[OneofDescriptorProto],
        nested: Sequence[DescriptorProto],
        enums: Sequence[EnumDescriptorProto],
        extensions: Sequence[FieldDescriptorProto],
        ranges: list[str],
    ) -> Iterator[str]:
        """Write what a message or a file contains.

        Maps and groups define a message where they stand. Clients refer to a message by its position, so a nested
        message that precedes such a field in the descriptor is written before the field.
        """
        places = {f"{_prefix(name)}.{one.name}": place for place, one in enumerate(nested)}
        written = 0

        def nested_until(end: int) -> Iterator[str]:
            nonlocal written
            for one in nested[written:end]:
                if not one.options.map_entry:
                    yield ""
                    yield from self.message(one, name)
            written = max(written, end)

        def defined_by(fields: Iterable[FieldDescriptorProto]) -> list[int]:
            return [
                places[one.type_name] for one in fields if one.type_name in places and _defines(one, nested, places)
            ]

        for block in self.blocks(fields, defined_by):
            defined = defined_by(block)
            if defined:
                yield from nested_until(defined[0])
                written = defined[-1] + 1
            if block[0].HasField("oneof_index") and not block[0].proto3_optional:
                oneof = oneofs[block[0].oneof_index]
                yield f"oneof {oneof.name} {{"
                yield from _inside(self.statements(oneof.options, name))
                for one in block:
                    yield from _inside(self.field(one, name, nested, places, ""))
                yield "}"
            else:
                yield from self.field(block[0], name, nested, places, self.label(block[0]))
        yield from ranges
        extends = _grouped(extensions) if self.extensions else []
        groups = [place for one in extends for place in defined_by(one)]
        yield from nested_until(groups[0] if groups else len(nested))
        for enum in enums:
            yield ""
            yield from self.enum(enum, name)
        for block in extends:
            defined = defined_by(block)
            if defined:
                yield from nested_until(defined[0])
                written = defined[-1] + 1
            yield ""
            yield f"extend {self.reference(block[0].extendee, name)} {{"
            for one in block:
                yield from _inside(self.field(one, name, nested, places, self.label(one)))
            yield "}"
        yield from nested_until(len(nested))

    def blocks(self, fields: Sequence[FieldDescriptorProto], defined_by: Any) -> list[_Block]:
        """Return fields in the order in which they are written, those of a oneof together."""
        blocks: list[_Block] = []
        oneofs: dict[int, _Block] = {}
        for one in fields:
            if not one.HasField("oneof_index") or one.proto3_optional:
                blocks.append([one])
            elif one.oneof_index in oneofs:
                oneofs[one.oneof_index].append(one)
            else:
                blocks.append(oneofs.setdefault(one.oneof_index, [one]))
        if self.in_order:
            ordered = [sorted(block, key=lambda one: one.number) for block in blocks]
            ordered.sort(key=lambda block: block[0].number)
            defined = [place for block in ordered for place in defined_by(block)]
            # Sorted maps and groups would move the nested messages, which clients refer to by their positions.
            return ordered if defined == sorted(defined) else blocks
        return blocks

    def message(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        yield f"{VISIBILITIES[message.visibility]}message {message.name} {{"
        yield from _inside(self.body(message, scope))
        yield "}"

    def body(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        name = f"{scope}.{message.name}" if scope else message.name
        yield from self.statements(message.options, name)
        reserved = [(one.start, one.end - 1) for one in message.reserved_range]
        yield from self.reserved(reserved, message.reserved_name, MAX_NUMBERS)
        ranges = list(self.extension_ranges(message, name)) if self.extensions else []
        yield from self.scope(
            name,
            message.field,
            message.oneof_decl,
            message.nested_type,
            message.enum_type,
            message.extension,
            ranges,
        )

    def extension_ranges(self, message: DescriptorProto, scope: str) -> Iterator[str]:
        every = sorted(message.extension_range, key=lambda one: one.start) if self.in_order else message.extension_range
        for options, same in groupby(every, lambda one: ", ".join(self.options(one.options, scope))):
            ranges = _ranges(((one.start, one.end - 1) for one in same), MAX_NUMBERS)
            yield f"extensions {ranges}{f' [{options}]' if options else ''};"

    def label(self, field: FieldDescriptorProto) -> str:
        if field.label == FieldDescriptorProto.LABEL_REPEATED:
            return "repeated "
        if self.content.syntax == "editions":
            return ""
        if field.label == FieldDescriptorProto.LABEL_REQUIRED:
            return "required "
        return "optional " if field.proto3_optional or self.content.syntax != "proto3" else ""

    def field(
        self,
        field: FieldDescriptorProto,
        scope: str,
        nested: Sequence[DescriptorProto],
        places: dict[str, int],
        label: str,
    ) -> Iterator[str]:
        options = ", ".join(self.field_options(field, scope))
        tail = f" = {field.number}{f' [{options}]' if options else ''}"
        own = nested[places[field.type_name]] if _defines(field, nested, places) else None
        if own is None:
            yield f"{label}{self.type(field, scope)} {field.name}{tail};"
        elif own.options.map_entry:
            key, value = (self.type(one, scope) for one in own.field)
            yield f"map<{key}, {value}> {field.name}{tail};"
        else:
            yield f"{label}group {own.name}{tail} {{"
            yield from _inside(self.body(own, scope))
            yield "}"

    def type(self, field: FieldDescriptorProto, scope: str) -> str:
        if field.type_name:
            return self.reference(field.type_name, scope)
        return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()

    def field_options(self, field: FieldDescriptorProto, scope: str) -> Iterator[str]:
        if field.HasField("default_value"):
            value = field.default_value
            if field.type == FieldDescriptorProto.TYPE_STRING:
                value = _quoted(value)
            elif field.type == FieldDescriptorProto.TYPE_BYTES:
                value = f'"{value}"'  # it is escaped already
            yield f"default = {value}"
        if field.HasField("json_name") and not field.extendee and field.json_name != _json_name(field.name):
            yield f"json_name = {_quoted(field.json_name)}"
        yield from self.options(field.options, scope)

    def enum(self, enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
        yield f"{VISIBILITIES[enum.visibility]}enum {enum.name} {{"
        yield from _inside(self.statements(enum.options, scope))
        reserved = [(one.start, one.end) for one in enum.reserved_range]
        yield from _inside(self.reserved(reserved, enum.reserved_name, {MAX_VALUE}))
        values = list(enum.value)
        if self.in_order:  # the first value is the default
            values[1:] = sorted(values[1:], key=lambda one: (one.number, one.name))
        for one in values:
            options = ", ".join(self.options(one.options, scope))
            yield f"  {one.name} = {one.number}{f' [{options}]' if options else ''};"
        yield "}"

    def service(self, service: ServiceDescriptorProto) -> Iterator[str]:
        scope = _prefix(self.content.package)[1:]
        yield f"service {service.name} {{"
        yield from _inside(self.statements(service.options, scope))
        for method in service.method:
            yield from _inside(self.method(method, scope))
        yield "}"

    def method(self, method: MethodDescriptorProto, scope: str) -> Iterator[str]:
        request = ("stream " if method.client_streaming else "") + self.reference(method.input_type, scope)
        response = ("stream " if method.server_streaming else "") + self.reference(method.output_type, scope)
        line = f"rpc {method.name} ({request}) returns ({response})"
        options = list(self.statements(method.options, scope))
        if not options:
            yield f"{line};"
            return
        yield f"{line} {{"
        yield from _inside(options)
        yield "}"

    def reserved(self, ranges: list[tuple[int, int]], names: Iterable[str], most: Iterable[int]) -> Iterator[str]:
        if ranges:
            yield f"reserved {_ranges(sorted(ranges) if self.in_order else ranges, most)};"
        quote = "" if self.content.syntax == "editions" else '"'
        if written := [f"{quote}{name}{quote}" for name in (sorted(names) if self.in_order else names)]:
            yield f"reserved {', '.join(written)};"

    def statements(self, options: Message, scope: str) -> Iterator[str]:
        return (f"option {one};" for one in self.options(options, scope))

    def options(self, options: Message, scope: str) -> Iterator[str]:
        """Write ``name = value`` for each option, custom ones last."""
        for field, value in cast("list[tuple[Any, Any]]", options.ListFields()):
            if (field.is_extension and not self.extensions) or field.name == "map_entry":
                continue
            name = f"({self.reference(f'.{field.full_name}', scope)})" if field.is_extension else field.name
            for one in value if field.is_repeated else (value,):
                yield f"{name} = {_value(field, one)}"

    def reference(self, full_name: str, scope: str) -> str:
        """Return the shortest name that means ``full_name`` (which begins with a dot) in this scope."""
        parts = full_name[1:].split(".")
        for length in range(1, len(parts) + 1):
            short, first = parts[-length:], parts[-length]
            where = scope
            while where and f"{where}.{first}" not in self.known:
                where = where.rpartition(".")[0]
            if f"{_prefix(where)}.{'.'.join(short)}" == full_name:
                return ".".join(short)
        return full_name


def _value(field: Any, value: Any) -> str:
    out = StringIO()
    text_format.PrintFieldValue(field, value, out, as_one_line=True)
    return out.getvalue().strip()


def _defines(field: FieldDescriptorProto, nested: Sequence[DescriptorProto], places: dict[str, int]) -> bool:
    """True for a group or a map, which define the message of their values."""
    if field.type_name not in places:
        return False
    return field.type == FieldDescriptorProto.TYPE_GROUP or nested[places[field.type_name]].options.map_entry


def _symbols(file: FileDescriptorProto) -> Iterator[str]:
    """Return all names that a file defines: anything with the first part of a name can hide what the name means."""
    package = file.package
    while package:
        yield package
        package = package.rpartition(".")[0]
    prefix = f"{file.package}." if file.package else ""
    yield from (f"{prefix}{one.name}" for one in (*file.service, *file.extension))
    yield from _enum_symbols(file.enum_type, prefix)
    waiting = [(prefix, one) for one in file.message_type]
    while waiting:
        prefix, message = waiting.pop()
        name = f"{prefix}{message.name}"
        yield name
        yield from (f"{name}.{one.name}" for one in (*message.field, *message.extension, *message.oneof_decl))
        yield from _enum_symbols(message.enum_type, f"{name}.")
        waiting += [(f"{name}.", one) for one in message.nested_type]


def _enum_symbols(enums: Iterable[EnumDescriptorProto], prefix: str) -> Iterator[str]:
    for enum in enums:
        yield f"{prefix}{enum.name}"
        yield from (f"{prefix}{value.name}" for value in enum.value)


def _grouped(extensions: Iterable[FieldDescriptorProto]) -> list[_Block]:
    """Return consecutive extensions of one message together."""
    groups: list[_Block] = []
    for one in extensions:
        if groups and groups[-1][0].extendee == one.extendee:
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups


def _json_name(name: str) -> str:
    """Return a field's name in JSON: each letter after an underscore is a capital, and underscores go."""
    first, *more = name.split("_")
    return first + "".join(one[:1].upper() + one[1:] for one in more)


def _prefix(name: str) -> str:
    return f".{name}" if name else ""


def _quoted(text: str | bytes) -> str:
    """``text`` is bytes if a descriptor of proto2 has bytes in it that are not UTF-8."""
    is_text = isinstance(text, str)
    return f'"{CEscape(text.encode() if is_text else text, as_utf8=is_text)}"'


def _inside(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else line for line in lines)


def _ranges(ranges: Iterable[tuple[int, int]], most: Iterable[int]) -> str:
    return ", ".join(
        str(first) if first == last else f"{first} to {'max' if last in most else last}" for first, last in ranges
    )
