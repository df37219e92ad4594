"""What the generators of readers and writers share: lines of Python, and which field each line is about."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final

from eventbus.protocol.schema import FORMATS, Field, Message, Structure
from eventbus.protocol.structs import struct_class

Buffer = bytes | bytearray | memoryview

SMALL_VARINTS: Final = tuple(bytes((number,)) for number in range(128))
MAX_VARINT_BYTES: Final = 5
MAX_STRING_BYTES: Final = 32_767
"""Kafka's limit, in flexible versions too."""


class MalformedMessage(ValueError):
    """Bytes that are not the message they should be: which field, where, and what is wrong with it."""


def unsigned_varint(number: int) -> bytes:
    """``number`` (>= 0) as Protocol Buffers' ``uint``: seven bits a byte, low bits first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """The number at ``position``, and the position after it. Raises IndexError, or MalformedMessage beyond 5 bytes."""
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage(f"a varint of more than {MAX_VARINT_BYTES} bytes")


class Source:
    """A function in the making.

    Numbers of fixed size that stand beside each other are read and written by one call of `struct`: ``pending`` holds
    them (format, name, and which field it is) until something of another kind comes. Lengths of strings and arrays join
    them.
    """

    def __init__(self, message: Message, version: int) -> None:
        message.check_version(version)
        self.message = message
        self.version = version
        self.flexible = version in message.flexible
        self.lines: list[str] = []
        self.places: list[str] = []
        self.names: dict[str, Any] = {"struct_error": struct.error, "uvarint": unsigned_varint}
        self.pending: list[tuple[str, str, str]] = []
        self.path: list[str] = []
        self.indent = 1
        self._variables = 0
        self._outer = struct_class(message.name)

    def emit(self, line: str, place: str | None = None) -> None:
        self.lines.append("    " * self.indent + line)
        self.places.append(".".join(self.path) if place is None else place)

    def wait(self, letters: str, name: str) -> None:
        """A number of the field at hand joins those that are pending."""
        self.pending.append((letters, name, ".".join(self.path)))

    def variable(self, letter: str = "v") -> str:
        """A name not used so far."""
        self._variables += 1
        return f"{letter}{self._variables}"

    def has(self, field: Field) -> bool:
        """Whether this version has the field."""
        return self.version in field.versions

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def class_name(self, structure: Structure) -> str:
        """The name under which the code sees the structure's class."""
        name = structure.name
        cls = self._outer if structure is self.message.body else getattr(self._outer, name)
        self.names[name] = cls
        return name

    def packer(self, letters: str, kind: str) -> str:
        """The name of `struct`'s ``pack`` or ``unpack_from`` for a format, bound once."""
        name = f"{kind}_{letters.replace('?', 'z')}"
        self.names[name] = getattr(struct.Struct(">" + letters), kind)
        return name

    def take_pending(self) -> tuple[str, list[str], str]:
        """The formats and names that wait, which no longer do, and the fields they are of."""
        taken, self.pending = self.pending, []
        places = dict.fromkeys(place for _, _, place in taken if place)
        return "".join(letters for letters, _, _ in taken), [name for _, name, _ in taken], ", ".join(places)

    def compile(self, head: str, describe: Callable[[BaseException, int], BaseException]) -> Callable[..., Any]:
        """The function. What it raises inside, ``describe(error, position)`` turns into an error with a place."""
        self.names["describe"] = describe
        name = f"{self.message.name} version {self.version}"
        code = "\n".join([head, *self.lines, ""])
        exec(compile(code, f"<{name}>", "exec"), self.names)  # made of the tables alone, of nothing from outside
        return self.names["function"]

    def place(self, traceback: TracebackType | None, head_lines: int) -> str:
        """The message, and the field that the generated line was about."""
        line = traceback.tb_lineno - head_lines if traceback else 0
        field = self.places[line - 1] if 0 < line <= len(self.places) else ""
        return f"{self.message.name} version {self.version}" + (f", {field}" if field else "")


def size_of(field: Field, version: int, flexible: bool) -> int:
    """The least number of bytes the field takes."""
    if version not in field.versions or field.tag is not None:
        return 0
    if field.is_array or field.type in ("bytes", "records"):
        return 1 if flexible else 4
    if field.type == "string":
        return 1 if flexible else 2
    if field.structure is None:
        return struct.calcsize(">" + FORMATS[field.type])
    return 1 if version in field.nullable else size_of_structure(field.structure, version, flexible)


def size_of_structure(structure: Structure, version: int, flexible: bool) -> int:
    """The least number of bytes the structure takes: what an array's count is checked against."""
    return max(1, sum(size_of(field, version, flexible) for field in structure.fields) + flexible)
