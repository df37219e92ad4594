"""Writers: straight-line Python for a version of a message, generated on first use.

A writer returns buffers to send in order: large records are passed on without copying; small ones are copied, which
costs less than a separate buffer.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Final

import msgspec

from eventbus.protocol.schema import FORMATS, NO_VERSIONS, Field, Structure, message
from eventbus.protocol.source import SMALL_VARINTS, Buffer, Source

Writer = Callable[..., list[Buffer]]
"""``writer(message, head=b"")`` returns buffers; the first is mutable and begins with ``head``."""

_HEAD: Final = "def function(x, head=b''):\n    out = bytearray(head)\n    buffers = []\n    try:"
_HEAD_LINES: Final = 4
_COPIED_BYTES: Final = 4096
"""Records up to this size are copied into the buffer of the fields around them."""


@cache
def writer(name: str, version: int) -> Writer:
    """Return the writer of a version. Raises KeyError for a name, and ValueError for a version, that is not in the
    tables.

    Fields that the version does not have are left out; None is written as empty if the version has no null; a tagged
    field with its default value is not written (None is the default of a tagged structure too). The writer raises
    ValueError for a number or text that does not fit its field.
    """
    return _WriterSource(name, version).function()


def encode(value: msgspec.Struct, version: int) -> bytes:
    """Encode ``value`` to one bytes object."""
    return b"".join(writer(type(value).__name__, version)(value))


def _gather(records: Buffer | list[Buffer]) -> tuple[list[Buffer], int]:
    """Return the pieces of a records field, and their total size."""
    pieces = records if isinstance(records, list) else [records]
    return pieces, sum(map(len, pieces))


class _WriterSource(Source):
    def __init__(self, name: str, version: int) -> None:
        super().__init__(message(name), version)
        self.names |= {"pack": struct.pack, "small": SMALL_VARINTS, "gather": _gather}

    def function(self) -> Writer:
        self.indent = 2
        self._structure(self.message.body, "x")
        self._flush()
        self.path.clear()
        self.emit("if out: buffers.append(out)")
        self.emit("return buffers")
        self.indent = 1
        self.emit("except struct_error as error:")
        self.indent = 2
        self.emit("raise describe(error, 0) from None")
        return self.compile(_HEAD, self._describe)

    def _describe(self, error: BaseException, position: int) -> BaseException:
        return ValueError(f"{self.place(error.__traceback__, _HEAD_LINES)}: {error}")

    def _structure(self, structure: Structure, value: str) -> None:
        tagged: list[Field] = []
        for field in structure.fields:
            if not self.has(field):
                continue
            if field.tag is not None:
                tagged.append(field)
                continue
            self.path.append(field.name)
            self._field(field, f"{value}.{field.name}")
            self.path.pop()
        if self.flexible:
            self._tagged(tagged, value)

    def _tagged(self, fields: list[Field], value: str) -> None:
        """Generate writes of tagged fields (KIP-482), except those with their default value."""
        if not fields:
            self.wait("B", "0")
            return
        self._flush()
        fields = sorted(fields, key=lambda field: field.tag or 0)
        self.emit(f"if {' or '.join(self._differs(field, f'{value}.{field.name}') for field in fields)}:")
        self.indent += 1
        parts, outer = self.variable("t"), self.variable("o")
        self.emit(f"{parts} = []")
        for field in fields:
            self.path.append(field.name)
            self.emit(f"if {self._differs(field, f'{value}.{field.name}')}:")
            self.indent += 1
            self.emit(f"{outer} = out; out = bytearray()")
            self._field(field, f"{value}.{field.name}")
            self._flush()
            self.emit(f"{parts}.append(uvarint({field.tag}) + uvarint(len(out)) + out); out = {outer}")
            self.indent -= 1
            self.path.pop()
        self.emit(f"out += uvarint(len({parts})) + b''.join({parts})")
        self.indent -= 1
        self.emit("else: out.append(0)")

    def _differs(self, field: Field, value: str) -> str:
        """Return an expression that is true if the value is not the default."""
        if field.structure and not field.is_array and self.is_nullable(field):
            # The only such field (ConsumerGroupMemberMetadataValue) is not null by default in Kafka, but an empty
            # structure, which is never intended: so it is always written.
            return "True"
        if field.default is ...:
            assert field.structure is not None
            default = self.variable("D")
            self.class_name(field.structure)
            self.names[default] = self.names[field.structure.name]()
            return f"({value} is not None and {value} != {default})"
        if field.default is None:
            return f"{value} is not None"
        if field.default in ([], "", b"") and self.is_nullable(field):
            return f"({value} is None or {value})"
        return value if not field.default and field.type != "uuid" else f"{value} != {field.default!r}"

    def _field(self, field: Field, value: str) -> None:
        if field.is_array:
            self._array(field, value)
            return
        match field.type:
            case "string":
                self._sized(field, value, "h", ".encode()")
            case "bytes":
                self._sized(field, value, "i", "")
            case "records":
                self._records(field, value)
            case _ if field.structure is None:
                self.wait(FORMATS[field.type], value)
            case _ if self.is_nullable(field):
                self._nullable(field, value)
            case _:
                inner = self.variable("x")
                self.emit(f"{inner} = {value}")
                self._structure(field.structure, inner)

    def _count(self, count: str, letter: str) -> None:
        """Generate the write of a length or count, -1 for null, together with the pending numbers."""
        if not self.flexible:
            self.wait(letter, count)
            self._flush()
            return
        letters, names, place = self.take_pending()
        if not names:
            self.emit(f"out += small[{count} + 1] if {count} < 127 else uvarint({count} + 1)")
            return
        both = f"{self.packer(letters + 'B', 'pack')}({', '.join(names)}, {count} + 1)"
        rest = f"{self.packer(letters, 'pack')}({', '.join(names)}) + uvarint({count} + 1)"
        self.emit(f"out += {both} if {count} < 127 else {rest}", place)

    def _sized(self, field: Field, value: str, letter: str, conversion: str) -> None:
        data, count = self.variable("b"), self.variable("n")
        null = -1 if self.is_nullable(field) else 0
        self.emit(f"{data} = {value}")
        self.emit(f"if {data} is None: {data} = b''; {count} = {null}")
        convert = f"{data} = {data}{conversion}; " if conversion else ""
        self.emit(f"else: {convert}{count} = len({data})")
        self._count(count, letter)
        self.emit(f"out += {data}")

    def _records(self, field: Field, value: str) -> None:
        pieces, count = self.variable("r"), self.variable("n")
        null = -1 if self.is_nullable(field) else 0
        self.emit(f"if {value} is None: {pieces} = (); {count} = {null}")
        self.emit(f"else: {pieces}, {count} = gather({value})")
        self._count(count, "i")
        self.emit(f"if {count} <= {_COPIED_BYTES}:")
        self.emit(f"    for piece in {pieces}: out += piece")
        self.emit(f"else: buffers.append(out); buffers += {pieces}; out = bytearray()")

    def _nullable(self, field: Field, value: str) -> None:
        assert field.structure is not None
        inner = self.variable("x")
        null = 255 if field.tag is None else 0  # a tagged field has a varint before it
        self._flush()
        self.emit(f"{inner} = {value}")
        self.emit(f"if {inner} is None: out.append({null})")
        self.emit("else:")
        self.indent += 1
        self.wait("b", "1")
        self._structure(field.structure, inner)
        self._flush()
        self.indent -= 1

    def _array(self, field: Field, value: str) -> None:
        items, count, item = self.variable("a"), self.variable("n"), self.variable("x")
        null = -1 if self.is_nullable(field) else 0
        self.emit(f"{items} = {value}")
        self.emit(f"if {items} is None: {items} = (); {count} = {null}")
        self.emit(f"else: {count} = len({items})")
        self._count(count, "i")
        letters = FORMATS.get(field.type)
        if letters and field.type != "uuid":
            self.emit(f"if {count} == 1: out += {self.packer(letters, 'pack')}({items}[0])")
            self.emit(f"elif {count} > 1: out += pack('>%d{letters}' % {count}, *{items})")
            return
        self.emit(f"for {item} in {items}:")
        self.indent += 1
        if field.structure:
            self._structure(field.structure, item)
        else:
            self._field(field._replace(is_array=False, nullable=NO_VERSIONS), item)
        self._flush()
        self.indent -= 1

    def _flush(self) -> None:
        """Generate the write of the pending numbers."""
        if not self.pending:
            return
        letters, names, place = self.take_pending()
        self.emit(f"out += {self.packer(letters, 'pack')}({', '.join(names)})", place)
