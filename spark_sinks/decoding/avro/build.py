"""Build Arrow arrays from numpy arrays without copying."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from spark_sinks.decoding.avro.cursor import Cursor, Mask

NOT_UTF8 = "the text is not UTF-8"
_INT32_MAX = 2**31 - 1


def validity(present: Mask) -> Any:
    """Return the validity bitmap of the rows that are present."""
    return None if present is None else pa.py_buffer(np.packbits(present, bitorder="little"))


def fixed_width(kind: pa.DataType, values: Any, present: Mask) -> pa.Array:
    """Build an array from values that already have the width of ``kind``."""
    return pa.Array.from_buffers(kind, len(values), [validity(present), pa.py_buffer(np.ascontiguousarray(values))])


def booleans(values: Any, present: Mask) -> pa.Array:
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [validity(present), bits])


def picked(choices: pa.Array, index: Any, present: Mask) -> pa.Array:
    """Return the choice at the index of each row."""
    mask = None if present is None else ~present
    return choices.take(pa.array(index, mask=mask))


def binary(cursor: Cursor, size: Any, present: Mask) -> pa.Array:
    """Return the next ``size`` bytes of each record, copied in one go: every second piece of an array over the data."""
    start, count = cursor.at, len(cursor)
    data = cursor.data.bytes
    is_large = len(data) > _INT32_MAX
    offsets = np.empty(2 * count, np.int64 if is_large else np.int32)
    offsets[0::2] = start
    offsets[1::2] = start + size
    kind = pa.large_binary() if is_large else pa.binary()
    pieces = pa.Array.from_buffers(kind, max(2 * count - 1, 0), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    cursor.advance(size, present)
    mask = None if present is None else ~present
    found = pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=mask))
    return found.cast(pa.binary()) if is_large else found


def text(cursor: Cursor, found: pa.Array, present: Mask, path: str) -> pa.Array:
    """Decode bytes to text. Records with invalid UTF-8 become bad."""
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        pass
    values = found.to_pylist()
    bad = np.array([value is not None and not _is_utf8(value) for value in values], bool)
    cursor.fail(bad, present, path, NOT_UTF8)
    return pa.array([None if wrong else value for value, wrong in zip(values, bad, strict=True)], pa.binary()).cast(
        pa.string()
    )


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def structs(fields: list[pa.Field], columns: list[pa.Array], count: int, present: Mask) -> pa.Array:
    kind = pa.struct(fields)
    return pa.Array.from_buffers(kind, count, [validity(present)], children=columns)
