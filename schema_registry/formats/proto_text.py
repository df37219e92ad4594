"""A .proto file as text, in one spelling and without comments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from schema_registry.formats.proto_model import Enum, Extension, Field, File, Message, Option, Reserved, Service

MOST = (1 << 31) - 1


def proto_text(file: File, *, in_order: bool = False) -> str:
    """``in_order``: imports, options and fields sorted, as ``normalize=true`` wants it."""
    blocks: list[str] = []
    head = f'syntax = "{file.syntax}";\n'
    if file.package:
        head += f"package {file.package};\n"
    blocks.append(head)
    imports = sorted(file.imports) if in_order else file.imports
    if imports:
        blocks.append("".join(f'import {f"{kind} " if kind else ""}"{path}";\n' for kind, path in imports))
    if file.options:
        blocks.append("".join(f"option {one.name} = {one.value};\n" for one in _options(file.options, in_order)))
    writer = _Writer(in_order)
    blocks += [_joined(writer.message(message)) for message in file.messages]
    blocks += [_joined(writer.enum(enum)) for enum in file.enums]
    blocks += [_joined(writer.extend(extension)) for extension in file.extends]
    blocks += [_joined(writer.service(service)) for service in file.services]
    return "\n".join(blocks)


def _joined(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _options(options: list[Option], in_order: bool) -> list[Option]:
    return sorted(options, key=lambda one: one.name) if in_order else options


def _inside(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}" if line else line for line in lines)


class _Writer:
    def __init__(self, in_order: bool) -> None:
        self.in_order = in_order

    def message(self, message: Message) -> Iterator[str]:
        yield f"message {message.name} {{"
        yield from _inside(self.body(message))
        yield "}"

    def body(self, message: Message) -> Iterator[str]:
        yield from self.options(message.options)
        yield from _reserved(message.reserved)
        groups = {field.type for field in message.fields if field.is_group}
        fields = sorted(message.fields, key=lambda one: one.number) if self.in_order else message.fields
        written: set[str] = set()
        for field in fields:
            if not field.oneof:
                yield from self.field(field, message)
            elif field.oneof not in written:
                written.add(field.oneof)
                yield f"oneof {field.oneof} {{"
                yield from _inside(self.options(message.oneofs[field.oneof]))
                for member in fields:
                    if member.oneof == field.oneof:
                        yield from _inside(self.field(member, message))
                yield "}"
        if message.extensions:
            yield f"extensions {_ranges(message.extensions)};"
        for inner in message.messages:
            if inner.name not in groups:
                yield ""
                yield from self.message(inner)
        for enum in message.enums:
            yield ""
            yield from self.enum(enum)
        for extension in message.extends:
            yield ""
            yield from self.extend(extension)

    def field(self, field: Field, message: Message | None = None) -> Iterator[str]:
        label = f"{field.label} " if field.label else ""
        options = ", ".join(f"{one.name} = {one.value}" for one in _options(field.options, self.in_order))
        tail = f" = {field.number}{f' [{options}]' if options else ''}"
        if field.is_group and message is not None:
            group = next(inner for inner in message.messages if inner.name == field.type)
            yield f"{label}group {field.type}{tail} {{"
            yield from _inside(self.body(group))
            yield "}"
            return
        kind = f"map<{field.key}, {field.type}>" if field.key else field.type
        yield f"{label}{kind} {field.name}{tail};"

    def enum(self, enum: Enum) -> Iterator[str]:
        yield f"enum {enum.name} {{"
        yield from _inside(self.options(enum.options))
        yield from _inside(_reserved(enum.reserved))
        for name, number, options in enum.values:
            said = ", ".join(f"{one.name} = {one.value}" for one in _options(options, self.in_order))
            yield f"  {name} = {number}{f' [{said}]' if said else ''};"
        yield "}"

    def extend(self, extension: Extension) -> Iterator[str]:
        yield f"extend {extension.name} {{"
        for field in extension.fields:
            yield from _inside(self.field(field))
        yield "}"

    def service(self, service: Service) -> Iterator[str]:
        yield f"service {service.name} {{"
        yield from _inside(self.options(service.options))
        for rpc in service.rpcs:
            line = f"  rpc {rpc.name} ({rpc.request}) returns ({rpc.response})"
            if not rpc.options:
                yield f"{line};"
                continue
            yield f"{line} {{"
            yield from _inside(_inside(self.options(rpc.options)))
            yield "  }"
        yield "}"

    def options(self, options: list[Option]) -> Iterator[str]:
        return (f"option {one.name} = {one.value};" for one in _options(options, self.in_order))


def _reserved(reserved: Reserved) -> Iterator[str]:
    if reserved.ranges:
        yield f"reserved {_ranges(reserved.ranges)};"
    if reserved.names:
        yield "reserved " + ", ".join(f'"{name}"' for name in reserved.names) + ";"


def _ranges(ranges: list[tuple[int, int]]) -> str:
    return ", ".join(
        str(first) if first == last else f"{first} to {'max' if last == MOST else last}" for first, last in ranges
    )
