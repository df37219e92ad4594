"""Columns of Arrow to values that drivers take, and back. What a database cannot hold is refused with its record."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import decimal
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import SerializationError
from spark_sinks.targets.sql.kinds import Column, Kind, from_json, json_texts

if TYPE_CHECKING:
    import pyarrow as pa

_DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896
"""The first and last day of the years 1 to 9999, counted from 1970."""


class Years(NamedTuple):
    """The days that a database holds, counted from 1970."""

    first_day: int = _FIRST_DAY
    last_day: int = _LAST_DAY
    text: str = "the years 1 to 9999"


FOUR_DIGITS = Years()


class Unfit(Exception):
    """Values of a column that a database cannot hold: which rows, and why."""

    def __init__(self, mask: Any, why: str) -> None:
        self.mask = mask
        self.why = why


def refusal(unfit: Unfit, column: Column, batch: pa.RecordBatch) -> SerializationError:
    """Return the sentence for a value that a database cannot hold, with the record that it is from."""
    import numpy as np

    row = int(np.flatnonzero(unfit.mask)[0])
    names = batch.schema.names
    where = ""
    if {"_topic", "_partition", "_offset"} <= set(names):
        topic, partition, offset = (batch.column(each)[row].as_py() for each in ("_topic", "_partition", "_offset"))
        where = f" of {topic}-{partition} at offset {offset}"
    return SerializationError(
        f"column {column.name!r}{where}: {unfit.why}; nothing of this batch was landed. Fix it with transform="
    )


def wire(array: pa.Array, kind: Kind, years: Years = FOUR_DIGITS) -> pa.Array:
    """Numbers, booleans and bytes as they are; times, nested values and decimals as text. May raise `Unfit`."""
    import pyarrow as pa
    import pyarrow.types as pt

    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    if kind in ("timestamp", "instant"):
        return _times(array, years)
    if kind == "date":
        return _dates(array, years)
    if kind == "time":
        return array.cast(pa.time64("us"), safe=False).cast(pa.string())
    if kind == "json":
        texts = pa.array(json_texts(array), pa.large_string())
        if texts.null_count > array.null_count:
            raise Unfit(_valid(array) & ~_valid(texts), f"a nested time outside of {FOUR_DIGITS.text}")
        return texts
    if kind == "decimal":
        return array.cast(pa.string())
    if kind == "float32":
        return array.cast(pa.float32())
    if pt.is_duration(array.type):
        return array.cast(pa.int64())
    if kind == "text":
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if kind == "bytes" else array


def unwire(values: list[Any], column: Column) -> pa.Array:
    """Convert values of a database to Arrow: times as microseconds and dates as days since 1970, decimals as text."""
    import pyarrow as pa
    import pyarrow.types as pt

    kind = column.kind
    if kind == "boolean":
        values = [None if value is None else bool(value) for value in values]
    elif kind == "decimal":
        values = [None if value is None else decimal.Decimal(value) for value in values]
    elif kind == "json":
        values = from_json(values, column.type)
    elif kind in ("timestamp", "instant"):
        return _cast(pa.array(values, pa.int64()).cast(pa.timestamp("us", column.type.tz)), column.type)
    elif kind == "date":
        return _cast(pa.array(values, pa.int32()).cast(pa.date32()), column.type)
    elif kind == "time":
        return _cast(pa.array(values, pa.int64()).cast(pa.time64("us")), column.type)
    elif kind == "uint64":
        values = [None if value is None else int(value) for value in values]
    elif kind == "float32":
        return pa.array(values, pa.float64()).cast(column.type, safe=False)
    elif pt.is_duration(column.type):
        return pa.array(values, pa.int64()).cast(column.type)
    return pa.array(values, column.type)


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind, safe=False)


# times as text -------------------------------------------------------------------------------------------------------


def _times(array: pa.Array, years: Years) -> pa.Array:
    """``2024-02-29 23:59:59.123456``, in UTC. pyarrow's own cast takes eight times as long, and errs in far years."""
    import numpy as np
    import pyarrow as pa

    valid = _valid(array)
    micros = array.cast(pa.timestamp("us", array.type.tz), safe=False).cast(pa.int64()).fill_null(0).to_numpy()
    days, rest = np.divmod(micros, _DAY_US)
    _check_years(days, years, "time")
    if _are_far(days, FOUR_DIGITS).any():
        return pa.array(
            [_far_time(int(each)) if is_there else None for each, is_there in zip(micros, valid, strict=True)]
        )
    text = np.empty((len(micros), 26), np.uint8)
    _write_dates(text, days)
    text[:, 10] = ord(" ")
    seconds, fraction = np.divmod(rest, 1_000_000)
    minutes, second = np.divmod(seconds, 60)
    hour, minute = np.divmod(minutes, 60)
    for at, number in ((11, hour), (14, minute), (17, second)):
        text[:, at : at + 2] = _digits(2)[number]
    text[:, 13] = text[:, 16] = ord(":")
    text[:, 19] = ord(".")
    thousands, ones = np.divmod(fraction, 1_000)
    text[:, 20:23] = _digits(3)[thousands]
    text[:, 23:26] = _digits(3)[ones]
    return _fixed_texts(text, valid)


def _dates(array: pa.Array, years: Years) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    valid = _valid(array)
    days = array.cast(pa.date32(), safe=False).cast(pa.int32()).fill_null(0).to_numpy().astype(np.int64)
    _check_years(days, years, "date")
    if _are_far(days, FOUR_DIGITS).any():
        return pa.array(
            [_far_date(int(each)) if is_there else None for each, is_there in zip(days, valid, strict=True)]
        )
    text = np.empty((len(days), 10), np.uint8)
    _write_dates(text, days)
    return _fixed_texts(text, valid)


def _are_far(days: Any, years: Years) -> Any:
    return (days < years.first_day) | (days > years.last_day)


def _check_years(days: Any, years: Years, what: str) -> None:
    far = _are_far(days, years)
    if far.any():
        raise Unfit(far, f"a {what} outside of {years.text}")


def _write_dates(text: Any, days: Any) -> None:
    """``2024-02-29`` into the first ten places of each row: few dates are different, so each is made once."""
    import numpy as np

    found, which = np.unique(days, return_inverse=True)
    names = np.datetime_as_string(found.astype("datetime64[D]")).astype("S10")
    text[:, :10] = names.view(np.uint8).reshape(-1, 10)[which]


def _digits(count: int) -> Any:
    """Return all numbers of so many digits, as text."""
    import numpy as np

    numbers = np.arange(10**count)[:, None] // 10 ** np.arange(count - 1, -1, -1) % 10
    return (numbers + ord("0")).astype(np.uint8)


def _fixed_texts(text: Any, valid: Any) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    rows, width = text.shape
    offsets = np.arange(0, (rows + 1) * width, width, dtype=np.int64)
    nulls = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    return pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text.tobytes()), nulls)


def _valid(array: pa.Array) -> Any:
    return array.is_valid().to_numpy(zero_copy_only=False)


def _far_time(micros: int) -> str:
    days, rest = divmod(micros, _DAY_US)
    date, _, era = _far_date(days).partition(" ")
    seconds, fraction = divmod(rest, 1_000_000)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
    return f"{date} {clock} {era}".rstrip()


def _far_date(days: int) -> str:
    """Format a date as PostgreSQL reads it: years of five digits, and years before the first with an era."""
    import numpy as np

    day = np.datetime64(days, "D")
    year = int(day.astype("datetime64[Y]").astype(np.int64)) + 1970
    month_day = str(day)[-5:]
    return f"{year:04}-{month_day}" if year > 0 else f"{1 - year:04}-{month_day} BC"
