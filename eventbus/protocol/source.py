"""Code generation shared by readers and writers: lines of Python, and the field that each line belongs to."""

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
"""Kafka's limit for strings, in flexible versions too."""


class MalformedMessage(ValueError):
    """Raised for bytes that are not the expected message, with the field, the position and the fault."""


def unsigned_varint(number: int) -> bytes:
    """Encode ``number`` (>= 0) like Protocol Buffers' ``uint``: seven bits a byte, low bits first."""
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def read_unsigned_varint(data: Buffer, position: int) -> tuple[int, int]:
    """Return the number at ``position``, and the position after it. Raises IndexError, or MalformedMessage beyond 5
    bytes."""
    value = 0
    for shift in range(0, 7 * MAX_VARINT_BYTES, 7):
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise MalformedMessage(f"a varint of more than {MAX_VARINT_BYTES} bytes")


class Source:
    """A function that is being generated.

    Adjacent numbers of fixed size are read and written by a single call of `struct`: ``pending`` collects them (format,
    name, field) until a field of another type comes. Lengths of strings and arrays join them.
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
        """Add a number of the current field to the pending ones."""
        self.pending.append((letters, name, ".".join(self.path)))

    def variable(self, letter: str = "v") -> str:
        """Return an unused variable name."""
        self._variables += 1
        return f"{letter}{self._variables}"

    def has(self, field: Field) -> bool:
        """True if this version has the field."""
        return self.version in field.versions

    def is_nullable(self, field: Field) -> bool:
        return self.version in field.nullable

    def class_name(self, structure: Structure) -> str:
        """Return the name by which the code refers to the structure's class."""
        name = structure.name
        cls = self._outer if structure is self.message.body else getattr(self._outer, name)
        self.names[name] = cls
        return name

    def packer(self, letters: str, kind: str) -> str:
        """Return the name of `struct`'s ``pack`` or ``unpack_from`` for a format, bound once."""
        name = f"{kind}_{letters.replace('?', 'z')}"
        self.names[name] = getattr(struct.Struct(">" + letters), kind)
        return name

    def take_pending(self) -> tuple[str, list[str], str]:
        """Return and clear the pending formats and names, with the fields they belong to."""
        taken, self.pending = self.pending, []
        places = dict.fromkeys(place for _, _, place in taken if place)
        return "".join(letters for letters, _, _ in taken), [name for _, name, _ in taken], ", ".join(places)

    def compile(self, head: str, describe: Callable[[BaseException, int], BaseException]) -> Callable[..., Any]:
        """Compile the function. ``describe(error, position)`` converts errors raised inside to errors with a
        position."""
        self.names["describe"] = describe
        name = f"{self.message.name} version {self.version}"
        code = "\n".join([head, *self.lines, ""])
        exec(compile(code, f"<{name}>", "exec"), self.names)  # generated from the tables only, never from input
        return self.names["function"]

    def place(self, traceback: TracebackType | None, head_lines: int) -> str:
        """Return the message, and the field of the generated line."""
        line = traceback.tb_lineno - head_lines if traceback else 0
        field = self.places[line - 1] if 0 < line <= len(self.places) else ""
        return f"{self.message.name} version {self.version}" + (f", {field}" if field else "")


def size_of(field: Field, version: int, flexible: bool) -> int:
    """Return the least number of bytes that the field takes."""
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
    """Return the least number of bytes that the structure takes, against which an array's count is checked."""
    return max(1, sum(size_of(field, version, flexible) for field in structure.fields) + flexible)
