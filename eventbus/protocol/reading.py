"""Readers: straight-line Python for a version of a message, generated on first use.

Every length and count is checked against the remaining bytes before anything is allocated for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from eventbus.protocol.schema import FORMATS, NO_VERSIONS, Field, Structure, message
from eventbus.protocol.source import (
    MAX_STRING_BYTES,
    Buffer,
    MalformedMessage,
    Source,
    read_unsigned_varint,
    size_of_structure,
)

_Message = TypeVar("_Message", bound=msgspec.Struct)

Reader = Callable[[Buffer, int], tuple[Any, int]]
"""Decodes the bytes at a position; returns the message and its end. Raises MalformedMessage."""

_HEAD: Final = "def function(d, o):\n    d = {view}(d)\n    limit = len(d)\n    try:"
_HEAD_LINES: Final = 4


@cache
def reader(name: str, version: int) -> Reader:
    """Return the reader of a version. Raises KeyError for a name, and ValueError for a version, that is not in the
    tables.

    ``records`` are views of the input; everything else is copied.
    """
    return _ReaderSource(name, version).function()


def decode(cls: type[_Message], version: int, data: Buffer) -> _Message:
    """Decode ``data`` completely. Raises MalformedMessage."""
    value, end = reader(cls.__name__, version)(data, 0)
    if end != len(data):
        raise MalformedMessage(f"{cls.__name__} version {version}: {len(data) - end} bytes after the last field")
    return value


class _ReaderSource(Source):
    def __init__(self, name: str, version: int) -> None:
        super().__init__(message(name), version)
        fields = [field for structure in self.message.structures.values() for field in structure.fields]
        self._is_view = any(field.type == "records" for field in (*self.message.body.fields, *fields))
        self._int_arrays: dict[str, str] = {}
        self.names |= {"read_varint": read_unsigned_varint, "Malformed": MalformedMessage, "unpack": struct.unpack_from}

    def function(self) -> Reader:
        self.indent = 2
        result = self._structure(self.message.body)
        self._flush()
        self.path.clear()
        self.emit(f"return {result}, o")
        self.indent = 1
        self.emit("except (struct_error, IndexError, UnicodeDecodeError, Malformed) as error:")
        self.indent = 2
        self.emit("raise describe(error, o) from None")
        return self.compile(_HEAD.format(view="memoryview" if self._is_view else "bytes"), self._describe)

    def _describe(self, error: BaseException, position: int) -> BaseException:
        if isinstance(error, MalformedMessage):
            reason = str(error)
        else:
            reason = "no UTF-8" if isinstance(error, UnicodeDecodeError) else "the bytes end early"
        return MalformedMessage(f"{self.place(error.__traceback__, _HEAD_LINES)}, at byte {position}: {reason}")

    def _structure(self, structure: Structure) -> str:
        """Generate reads of every field; return the expression that creates the object after the pending reads."""
        values: dict[str, str] = {}
        tagged: list[Field] = []
        for field in structure.fields:
            if not self.has(field):
                values[field.name] = self._default(field)
            elif field.tag is not None:
                values[field.name] = self.variable()
                tagged.append(field)
            else:
                self.path.append(field.name)
                values[field.name] = self._field(field)
                self.path.pop()
        if self.flexible:
            self._tagged(tagged, values)
        return f"{self.class_name(structure)}({', '.join(values[field.name] for field in structure.fields)})"

    def _default(self, field: Field) -> str:
        if field.default is ...:
            assert field.structure is not None
            return f"{self.class_name(field.structure)}()"
        return repr(field.default)

    def _tagged(self, fields: list[Field], values: dict[str, str]) -> None:
        """Generate reads of tagged fields (KIP-482); unknown tags are skipped."""
        for field in fields:
            self.emit(f"{values[field.name]} = {self._default(field)}")
        count, tag, end = self.variable("n"), self.variable("t"), self.variable("e")
        self.wait("B", count)
        self._flush()
        self.emit(f"if {count}:")
        self.indent += 1
        self.emit(f"if {count} > 127: {count}, o = read_varint(d, o - 1)")
        self.emit(f"for _ in range({count}):")
        self.indent += 1
        self.emit(f"{tag}, o = read_varint(d, o)")
        self.emit(f"{end}, o = read_varint(d, o)")
        self.emit(f"{end} += o")
        self.emit(f"if {end} > limit: raise Malformed('a tagged field does not fit')")
        for field in fields:
            self.emit(f"if {tag} == {field.tag}:")
            self.indent += 1
            self.path.append(field.name)
            result = self._field(field)
            self._flush()
            self.emit(f"{values[field.name]} = {result}")
            self.emit(f"if o != {end}: raise Malformed('a tagged field of another length than its own')")
            self.path.pop()
            self.emit("continue")
            self.indent -= 1
        self.emit(f"o = {end}")
        self.indent -= 2

    def _field(self, field: Field) -> str:
        """Generate the read of a field; return the expression of its value."""
        if field.is_array:
            return self._array(field)
        match field.type:
            case "string":
                return self._sized(field, "h", self._text)
            case "bytes":
                return self._sized(field, "i", self._bytes)
            case "records":
                return self._sized(field, "i", lambda end: f"d[o:{end}]")
            case _ if field.structure is None:
                result = self.variable()
                self.wait(FORMATS[field.type], result)
                return result
            case _ if self.is_nullable(field):
                return self._nullable(field)
            case _:
                return self._structure(field.structure)

    def _text(self, end: str) -> str:
        return f"str(d[o:{end}], 'utf-8')" if self._is_view else f"d[o:{end}].decode()"

    def _bytes(self, end: str) -> str:
        return f"bytes(d[o:{end}])" if self._is_view else f"d[o:{end}]"

    def _count(self, letter: str) -> str:
        """Generate the read of a length or count, -1 for null: an int, or in flexible versions a varint that is 1
        more."""
        count = self.variable("n")
        self.wait("B" if self.flexible else letter, count)
        self._flush()
        if self.flexible:
            self.emit(f"if {count} > 127: {count}, o = read_varint(d, o - 1)")
            self.emit(f"{count} -= 1")
        return count

    def _sized(self, field: Field, letter: str, slice_of: Callable[[str], str]) -> str:
        """Generate the read of a length and that many bytes."""
        count, result = self._count(letter), self.variable()
        end = self.variable("e")
        self._refuse_null(field, count, result)
        self.emit(f"{end} = o + {count}")
        self.emit(f"if {end} > limit: raise Malformed('%d bytes do not fit' % {count})")
        if field.type == "string" and self.flexible:
            self.emit(f"if {count} > {MAX_STRING_BYTES}: raise Malformed('a string of %d bytes' % {count})")
        self.emit(f"{result} = {slice_of(end)}")
        self.emit(f"o = {end}")
        self.indent -= self.is_nullable(field)
        return result

    def _refuse_null(self, field: Field, count: str, result: str) -> None:
        """Generate the start of reading a value that is present: for nullable fields a branch, which the caller
        ends."""
        if self.is_nullable(field):
            self.emit(f"{result} = None")
            self.emit(f"if {count} >= 0:")
            self.indent += 1
        else:
            self.emit(f"if {count} < 0: raise Malformed('null, which it cannot be')")

    def _nullable(self, field: Field) -> str:
        assert field.structure is not None
        present, result = self.variable("n"), self.variable()
        self.wait("b", present)
        self._flush()
        self.emit(f"{result} = None")
        self.emit(f"if {present} {'>= 0' if field.tag is None else '> 0'}:")  # tagged: a varint, 0 for null
        self.indent += 1
        made = self._structure(field.structure)
        self._flush()
        self.emit(f"{result} = {made}")
        self.indent -= 1
        return result

    def _array(self, field: Field) -> str:
        count, result = self._count("i"), self.variable()
        self._refuse_null(field, count, result)
        letters = FORMATS.get(field.type)
        if field.structure:
            size = size_of_structure(field.structure, self.version, self.flexible)
        else:
            size = struct.calcsize(">" + letters) if letters else 1 if self.flexible else 2
        self.emit(f"if {count} * {size} > limit - o: raise Malformed('%d elements do not fit' % {count})")
        if letters and field.type != "uuid":
            self.emit(f"{result} = list(unpack('>%d{letters}' % {count}, d, o)) if {count} else []")
            self.emit(f"o += {count} * {size}")
        else:
            self.emit(f"{result} = []")
            self.emit(f"for _ in range({count}):")
            self.indent += 1
            element = self._field(field._replace(is_array=False, nullable=NO_VERSIONS))
            self._flush()
            self.emit(f"{result}.append({element})")
            self.indent -= 1
        self.indent -= self.is_nullable(field)
        return result

    def _flush(self) -> None:
        """Generate the read of the pending numbers."""
        if not self.pending:
            return
        letters, names, place = self.take_pending()
        if letters == "B":
            self.emit(f"{names[0]} = d[o]", place)
        else:
            self.emit(f"{', '.join(names)}, = {self.packer(letters, 'unpack_from')}(d, o)", place)
        self.emit(f"o += {struct.calcsize('>' + letters)}")
