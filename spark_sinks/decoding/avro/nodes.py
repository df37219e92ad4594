"""Readers for the values of a schema. Each can read in two ways, with equal results.

``read`` reads all records of a cursor in step; ``one`` reads a single record that cannot be read in step.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from serdes.avro.codec.varint import read_length, read_long
from spark_sinks.decoding.avro import build
from spark_sinks.decoding.avro.cursor import ENDS_EARLY, TOO_LONG_INT, Cursor, Mask


class BadValue(ValueError):
    """The problem of a record that is read separately."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"field {path}: {reason}" if path else reason)


class Reading:
    """A record that is read separately. ``plain`` produces values for JSON instead of Arrow."""

    def __init__(self, data: bytes, at: int = 0, *, plain: bool = False) -> None:
        self.data = data
        self.at = at
        self.plain = plain
        self.empty_items = 0

    def byte(self, path: str) -> int:
        return self.bytes(1, path)[0]

    def bytes(self, size: int, path: str) -> bytes:
        at, self.at = self.at, self.at + size
        if self.at > len(self.data):
            raise BadValue(path, ENDS_EARLY)
        return self.data[at : self.at]

    def number(self, path: str) -> int:
        try:
            value, self.at = read_long(self.data, self.at)
        except IndexError:
            raise BadValue(path, ENDS_EARLY) from None
        except ValueError as error:
            raise BadValue(path, str(error)) from None
        return value

    def sized(self, path: str) -> bytes:
        try:
            size, self.at = read_length(self.data, self.at)
        except IndexError:
            raise BadValue(path, ENDS_EARLY) from None
        except ValueError as error:
            raise BadValue(path, str(error)) from None
        return self.bytes(size, path)


class Node:
    """Reads the values of a schema at a path."""

    type: pa.DataType
    path: str
    is_empty = False
    """True if it carries no information and gets no column: null, or a record without fields."""
    in_step = True
    """True if `read` supports it."""
    nodes = 1
    """Number of nodes it consists of. None of them reads more than 16 bytes unchecked."""

    def __init__(self, type: pa.DataType, path: str) -> None:
        self.type = type
        self.path = path

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        """Return the column: null for a record that is not ``present``, garbage for one that became bad."""
        raise NotImplementedError

    def one(self, reading: Reading) -> Any:
        """Return the value as pyarrow accepts it. Raises BadValue."""
        raise NotImplementedError


class Nothing(Node):
    """Reads null, which takes no bytes."""

    is_empty = True

    def __init__(self, path: str) -> None:
        super().__init__(pa.string(), path)

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        return pa.nulls(len(cursor), self.type)

    def one(self, reading: Reading) -> Any:
        return None


class Boolean(Node):
    def __init__(self, path: str) -> None:
        super().__init__(pa.bool_(), path)

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        found = cursor.byte(present)
        wrong = found > 1
        if wrong.any():
            cursor.fail(wrong, present, self.path, _NO_BOOLEAN)
        return build.booleans(found, present)

    def one(self, reading: Reading) -> Any:
        found = reading.byte(self.path)
        if found > 1:
            raise BadValue(self.path, _NO_BOOLEAN)
        return found == 1


class Number(Node):
    """int and long, and logical types that are bounded numbers. ``factor`` converts to the column's unit."""

    def __init__(
        self, type: pa.DataType, path: str, bits: int, bounds: tuple[int, int] | None = None, factor: int = 1
    ) -> None:
        super().__init__(type, path)
        self._low, self._high = bounds or (-(1 << bits - 1), (1 << bits - 1) - 1)
        self._reason = f"out of the range of {type}" if bounds else TOO_LONG_INT
        self._is_bounded = bounds is not None or bits < 64
        self._factor = factor
        self._width = f"<i{type.bit_width // 8}"

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        values = cursor.number(present, self.path)
        if self._is_bounded:
            wrong = (values < self._low) | (values > self._high)
            if wrong.any():
                cursor.fail(wrong, present, self.path, self._reason)
        if self._factor != 1:
            values = values * self._factor
        return build.fixed_width(self.type, values.astype(self._width, copy=False), present)

    def one(self, reading: Reading) -> Any:
        value = reading.number(self.path)
        if not self._low <= value <= self._high:
            raise BadValue(self.path, self._reason)
        return value * self._factor


class Float(Node):
    def __init__(self, path: str, *, double: bool) -> None:
        super().__init__(pa.float64() if double else pa.float32(), path)
        self._size, self._code = (8, "<f8") if double else (4, "<f4")

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        words = cursor.word()
        cursor.advance(self._size, present)
        values = words if self._size == 8 else words.astype("<u4")
        return build.fixed_width(self.type, values.view(self._code), present)

    def one(self, reading: Reading) -> Any:
        import struct

        return struct.unpack("<d" if self._size == 8 else "<f", reading.bytes(self._size, self.path))[0]


class Binary(Node):
    """bytes and string, and fixed, which has a ``size``."""

    def __init__(self, path: str, *, is_text: bool = False, size: int | None = None) -> None:
        super().__init__(pa.string() if is_text else pa.binary(), path)
        self._is_text = is_text
        self._size = size

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        found = raw(cursor, self._size, present, self.path)
        return build.text(cursor, found, present, self.path) if self._is_text else found

    def one(self, reading: Reading) -> Any:
        found = one_raw(reading, self._size, self.path)
        if not self._is_text:
            return found
        try:
            return found.decode()
        except UnicodeDecodeError:
            raise BadValue(self.path, build.NOT_UTF8) from None


def raw(cursor: Cursor, size: int | None, present: Mask, path: str) -> pa.Array:
    """Return bytes that follow their length, or have a fixed one."""
    length = cursor.length(present, path) if size is None else cursor.span(size, present, path)
    return build.binary(cursor, length, present)


def one_raw(reading: Reading, size: int | None, path: str) -> bytes:
    return reading.sized(path) if size is None else reading.bytes(size, path)


class Symbol(Node):
    """Reads enum symbols as text."""

    def __init__(self, path: str, symbols: tuple[str, ...]) -> None:
        super().__init__(pa.string(), path)
        self._symbols = symbols
        self._choices = pa.array(symbols or ("",), pa.string())
        self._reason = f"there is no such symbol among the {len(symbols)} of the enum"

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        index = small(cursor, len(self._symbols), present, self.path)
        wrong = index >= len(self._symbols)
        if wrong.any():
            cursor.fail(wrong, present, self.path, self._reason)
            index = index * ~wrong
        return build.picked(self._choices, index, present)

    def one(self, reading: Reading) -> Any:
        index = one_small(reading, len(self._symbols), self.path)
        if index >= len(self._symbols):
            raise BadValue(self.path, self._reason)
        return self._symbols[index]


_NO_BOOLEAN = "a boolean is 0 or 1"
_ODD = 255


def small(cursor: Cursor, count: int, present: Mask, path: str) -> Any:
    """Return the index of a symbol or a branch; at least ``count`` if it is invalid."""
    if count <= 64:
        found = cursor.byte(present)
        return (found >> 1) | ((found & 1) * _ODD)
    found = cursor.number(present, path)
    return np.where(found < 0, count, found)


def one_small(reading: Reading, count: int, path: str) -> int:
    if count <= 64:
        found = reading.byte(path)
        return (found >> 1) | ((found & 1) * _ODD)
    found = reading.number(path)
    return found if found >= 0 else count
