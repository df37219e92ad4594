"""A .proto file as objects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

SCALARS = frozenset(
    [
        *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64"),
        *("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes"),
    ]
)


@dataclass(frozen=True)
class Option:
    name: str
    value: str
    """The value as text, in canonical form."""


@dataclass
class Field:
    name: str
    number: int
    type: str
    """A scalar type, or the name of a message or enum as it is written."""
    label: str = ""
    """optional, required, repeated, or nothing."""
    key: str = ""
    """The type of a map's keys; ``type`` is that of its values."""
    oneof: str = ""
    options: list[Option] = field(default_factory=list[Option])
    is_group: bool = False
    target: str = ""
    """The full name of the message or enum; empty for a scalar. Set when the names are resolved."""
    is_enum: bool = False


@dataclass
class Reserved:
    """Numbers and names that fields, or values of an enum, must not have."""

    ranges: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    names: list[str] = field(default_factory=list[str])


@dataclass
class Enum:
    name: str
    fullname: str
    values: list[tuple[str, int, list[Option]]] = field(default_factory=list[tuple[str, int, list[Option]]])
    options: list[Option] = field(default_factory=list[Option])
    reserved: Reserved = field(default_factory=Reserved)


@dataclass
class Extension:
    """``extend NAME { fields }``."""

    name: str
    fields: list[Field] = field(default_factory=list[Field])


@dataclass
class Message:
    name: str
    fullname: str
    fields: list[Field] = field(default_factory=list[Field])
    """The fields in order, including those of oneofs."""
    oneofs: dict[str, list[Option]] = field(default_factory=dict[str, list[Option]])
    messages: list[Message] = field(default_factory=list["Message"])
    enums: list[Enum] = field(default_factory=list[Enum])
    extensions: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    extends: list[Extension] = field(default_factory=list[Extension])
    options: list[Option] = field(default_factory=list[Option])
    reserved: Reserved = field(default_factory=Reserved)


@dataclass
class Rpc:
    name: str
    request: str
    response: str
    options: list[Option] = field(default_factory=list[Option])


@dataclass
class Service:
    name: str
    rpcs: list[Rpc] = field(default_factory=list[Rpc])
    options: list[Option] = field(default_factory=list[Option])


@dataclass
class File:
    syntax: str = "proto2"
    package: str = ""
    imports: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """(kind, path): the kind is public, weak or nothing."""
    options: list[Option] = field(default_factory=list[Option])
    messages: list[Message] = field(default_factory=list[Message])
    enums: list[Enum] = field(default_factory=list[Enum])
    services: list[Service] = field(default_factory=list[Service])
    extends: list[Extension] = field(default_factory=list[Extension])

    def every_message(self) -> Iterator[Message]:
        waiting = list(reversed(self.messages))
        while waiting:
            message = waiting.pop()
            yield message
            waiting += reversed(message.messages)

    def every_enum(self) -> Iterator[Enum]:
        yield from self.enums
        for message in self.every_message():
            yield from message.enums

    def local(self, fullname: str) -> str:
        """A full name without the package."""
        return fullname.removeprefix(f"{self.package}.") if self.package else fullname
