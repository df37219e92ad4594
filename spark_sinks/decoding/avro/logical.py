"""Logical types that are not a single number: decimals, UUIDs, durations."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa

from serdes.avro.codec.conversions import conversion_of
from serdes.avro.schema import Schema
from spark_sinks.decoding.avro import build
from spark_sinks.decoding.avro.cursor import Cursor, Mask
from spark_sinks.decoding.avro.nodes import BadValue, Node, Reading, one_raw

MAX_PRECISION = 38
"""Digits that every kind of table supports. A decimal with more digits becomes text."""
_WORD = 1 << 64


class Decimal(Node):
    """A decimal stored as bytes or fixed."""

    def __init__(self, path: str, precision: int, scale: int, size: int | None) -> None:
        super().__init__(pa.decimal128(precision, scale), path)
        self._size = size
        self._limit = 10**precision
        self._reason = f"a decimal with more than {precision} digits, which is its precision"
        self._scale = scale

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        length = (
            cursor.length(present, self.path) if self._size is None else cursor.span(self._size, present, self.path)
        )
        data, last = cursor.data.bytes, cursor.at + length - 1
        cursor.advance(length, present)
        top = data[np.maximum(last - length + 1, 0)]
        fill = ((top >> 7) * (length > 0) * 255).astype(np.uint8)
        number = np.empty((len(cursor), 16), np.uint8)  # little-endian
        for place in range(16):
            there = length > place
            number[:, place] = np.where(there, data[np.maximum(last - place, 0)], fill)
        wrong = self._too_great(number.view("<u8"))
        longer = np.flatnonzero(length > 16)
        if longer.size:  # more bytes than a column has: valid only if they add nothing
            wrong[longer] |= [
                not self._fits(data[at - size + 1 : at + 1].tobytes())
                for at, size in zip(last[longer].tolist(), length[longer].tolist(), strict=True)
            ]
        if wrong.any():
            cursor.fail(wrong, present, self.path, self._reason)
        return build.fixed_width(self.type, number, present)

    def _too_great(self, words: Any) -> Any:
        low, high = words[:, 0], words[:, 1].view("<i8")
        most_high, most_low = divmod(self._limit, _WORD)
        least_high, least_low = divmod(-self._limit, _WORD)
        above = (high > most_high) | ((high == most_high) & (low >= np.uint64(most_low)))
        below = (high < least_high) | ((high == least_high) & (low <= np.uint64(least_low)))
        return above | below

    def _fits(self, data: bytes) -> bool:
        return -self._limit < int.from_bytes(data, "big", signed=True) < self._limit

    def one(self, reading: Reading) -> Any:
        data = one_raw(reading, self._size, self.path)
        if not self._fits(data):
            raise BadValue(self.path, self._reason)
        unscaled = int.from_bytes(data, "big", signed=True)
        value = decimal.Decimal(unscaled).scaleb(-self._scale, decimal.Context(prec=MAX_PRECISION))
        return str(value) if reading.plain else value


class DecimalText(Node):
    """A decimal with more digits than columns support, or with a scale in each value (big-decimal), as text."""

    in_step = False

    def __init__(self, path: str, schema: Schema, size: int | None) -> None:
        super().__init__(pa.string(), path)
        conversion = conversion_of(schema)
        assert conversion is not None
        self._convert = conversion.read
        self._size = size

    def one(self, reading: Reading) -> Any:
        data = one_raw(reading, self._size, self.path)
        try:
            return format(self._convert(data), "f" if len(data) < 100 else "")
        except (ValueError, IndexError, ArithmeticError) as error:
            raise BadValue(self.path, str(error) or "no decimal") from None


class UuidBytes(Node):
    """A UUID stored as fixed, converted to text like a UUID stored as string."""

    def __init__(self, path: str) -> None:
        super().__init__(pa.string(), path)

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        cursor.span(16, present, self.path)
        low, high = cursor.word(), cursor.word(8)
        cursor.advance(16, present)
        data = np.stack((low, high), axis=1).view(np.uint8)  # sixteen bytes a row
        text = np.full((len(cursor), 36), ord("-"), np.uint8)
        text[:, _HIGH_DIGITS] = _HEX[data >> 4]
        text[:, _LOW_DIGITS] = _HEX[data & 15]
        offsets = (36 * np.arange(len(cursor) + 1)).astype(np.int32)
        buffers = [build.validity(present), pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(cursor), buffers)

    def one(self, reading: Reading) -> Any:
        return str(uuid.UUID(bytes=reading.bytes(16, self.path)))


_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)
_HIGH_DIGITS = [0, 2, 4, 6, 9, 11, 14, 16, 19, 21, 24, 26, 28, 30, 32, 34]
_LOW_DIGITS = [place + 1 for place in _HIGH_DIGITS]
_PARTS = ("months", "days", "milliseconds")


class Duration(Node):
    """A duration's three amounts, which cannot be added up because months differ."""

    def __init__(self, path: str) -> None:
        super().__init__(pa.struct([(part, pa.int64()) for part in _PARTS]), path)

    def read(self, cursor: Cursor, present: Mask) -> pa.Array:
        cursor.span(12, present, self.path)
        first, last = cursor.word(), cursor.word(8)
        cursor.advance(12, present)
        amounts = (first.astype(np.uint32), (first >> np.uint64(32)).astype(np.uint32), last.astype(np.uint32))
        columns = [build.fixed_width(pa.int64(), each.astype(np.int64), present) for each in amounts]
        return build.structs(list(self.type), columns, len(cursor), present)

    def one(self, reading: Reading) -> Any:
        data = reading.bytes(12, self.path)
        return {part: int.from_bytes(data[at : at + 4], "little") for part, at in zip(_PARTS, (0, 4, 8), strict=True)}
