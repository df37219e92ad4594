"""Logical types: what a date, a Decimal or a UUID is in Avro's bytes, and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal, DefaultContext
from typing import Any, cast
from uuid import UUID

import msgspec

from serdes.avro.codec.varint import int_bytes, long_bytes, read_int, read_length
from serdes.avro.schema import Fixed, Schema

Convert = Callable[[Any], Any]


class Duration(msgspec.Struct, frozen=True):
    """Avro's ``duration``: three amounts that do not add up to one, because months differ."""

    months: int = 0
    days: int = 0
    milliseconds: int = 0


class Conversion(msgspec.Struct, frozen=True):
    """How a logical type is read and written: as which Python type, from and to the value below it."""

    kind: type
    read: Convert
    write: Convert
    is_lossy: bool = False
    """True if Python's type is less precise: the number is kept unless the annotation asks for that type."""

    def checked(self, value: Any) -> Any:
        """Return a value that is in its form below the logical type. Raise if it cannot be read as one of it."""
        self.read(value)
        return value


_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH = datetime(1970, 1, 1)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_MILLISECOND, _MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)
_MOST_DIGITS = 4_000
"""The maximum number of digits of a decimal, whatever its schema allows: a million digits take Python minutes."""


def conversion_of(schema: Schema) -> Conversion | None:
    """How values of this schema are converted; None: they are not."""
    name = schema.logical_type
    if name == "decimal":
        return Conversion(Decimal, *_decimal(schema))
    if name == "uuid":
        return _UUID_BYTES if isinstance(schema, Fixed) else _UUID_TEXT
    return None if name is None else _BY_NAME.get(name)


def _need(value: Any, kind: type, name: str) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"{value!r:.80} is {type(value).__name__}, not {name}")


# days and times -----------------------------------------------------------------------------------------------------


def _read_date(days: int) -> date:
    return date.fromordinal(days + _EPOCH_DAY)


def _write_date(value: Any) -> int:
    _need(value, date, "date")
    return value.toordinal() - _EPOCH_DAY


def _time_of_day(per_second: int) -> tuple[Convert, Convert]:
    micros = 1_000_000 // per_second

    def read(ticks: int) -> time:
        if not 0 <= ticks < 86_400 * per_second:
            raise ValueError(f"{ticks} is not a time of day")
        seconds, rest = divmod(ticks * micros, 1_000_000)
        return time(seconds // 3600, seconds // 60 % 60, seconds % 60, rest)

    def write(value: Any) -> int:
        _need(value, time, "time")
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return (seconds * 1_000_000 + value.microsecond) // micros

    return read, write


def _instant(unit: timedelta, ticks_per_unit: int = 1) -> tuple[Convert, Convert]:
    """``ticks_per_unit``: nanoseconds are finer than Python's own, and cut."""
    micros = unit // _MICROSECOND
    first, last = (
        (one.replace(tzinfo=UTC) - _EPOCH_UTC) // unit * ticks_per_unit for one in (datetime.min, datetime.max)
    )

    def read(ticks: int) -> datetime:
        return _EPOCH_UTC + timedelta(microseconds=ticks // ticks_per_unit * micros)

    def write(value: Any) -> int:
        _need(value, datetime, "datetime")
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; a timestamp is an instant: datetime(..., tzinfo=UTC)")
        ticks = (value - _EPOCH_UTC) // unit * ticks_per_unit
        if not first <= ticks <= last:  # only its own time zone has it in these years
            raise ValueError(f"{value!r} is not in the years 1 to 9999 of UTC")
        return ticks

    return read, write


def _local(unit: timedelta, ticks_per_unit: int = 1) -> tuple[Convert, Convert]:
    micros = unit // _MICROSECOND

    def read(ticks: int) -> datetime:
        return _EPOCH + timedelta(microseconds=ticks // ticks_per_unit * micros)

    def write(value: Any) -> int:
        _need(value, datetime, "datetime")
        return (value.replace(tzinfo=None) - _EPOCH) // unit * ticks_per_unit

    return read, write


def _read_duration(data: bytes) -> Duration:
    return Duration(*(int.from_bytes(data[at : at + 4], "little") for at in (0, 4, 8)))


def _write_duration(value: Any) -> bytes:
    _need(value, Duration, "serdes.avro.Duration")
    return b"".join(one.to_bytes(4, "little") for one in (value.months, value.days, value.milliseconds))


# ids and decimals ---------------------------------------------------------------------------------------------------


def _write_uuid_text(value: Any) -> str:
    _need(value, UUID, "UUID")
    return str(value)


def _write_uuid_bytes(value: Any) -> bytes:
    _need(value, UUID, "UUID")
    return value.bytes


def _unscaled(value: Any, scale: int) -> int:
    """Return the number that a decimal of this scale is stored as."""
    _need(value, Decimal, "Decimal")
    sign, digits, exponent = cast("Decimal", value).as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is no number")
    shift = exponent + scale
    if len(digits) + max(shift, 0) > _MOST_DIGITS and any(digits):
        raise ValueError(f"{value!s:.40} has more than {_MOST_DIGITS} digits")
    unscaled = int("".join(map(str, digits)))
    if unscaled == 0 or shift == 0:
        return -unscaled if sign else unscaled
    if shift > 0:
        unscaled *= 10**shift
    else:
        unscaled, lost = divmod(unscaled, 10 ** min(-shift, len(digits) + 1))
        if lost:
            raise ValueError(f"{value} has more digits after the decimal point than scale={scale}")
    return -unscaled if sign else unscaled


def _integer_bytes(number: int) -> bytes:
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def _decimal(schema: Schema) -> tuple[Convert, Convert]:
    scale, precision = int(schema.props.get("scale", 0)), int(schema.props["precision"])
    size = schema.size if isinstance(schema, Fixed) else None
    digits = min(precision, _MOST_DIGITS)
    most, exact = 10**digits, Context(prec=digits)
    longest = size or most.bit_length() // 8 + 64

    def read(data: bytes) -> Decimal:
        unscaled = int.from_bytes(data, "big", signed=True) if len(data) <= longest else most
        if not -most < unscaled < most:
            raise ValueError(f"a decimal with more than {digits} digits, which is its precision")
        return Decimal(unscaled).scaleb(-scale, exact)

    def write(value: Any) -> bytes:
        unscaled = _unscaled(value, scale)
        if not -most < unscaled < most:
            raise ValueError(f"{value} has more digits than precision={precision} with scale={scale}")
        return _integer_bytes(unscaled) if size is None else unscaled.to_bytes(size, "big", signed=True)

    return read, write


def _read_big_decimal(data: bytes) -> Decimal:
    """Bytes that hold bytes and a scale of their own."""
    length, at = read_length(data, 0)
    if length > 2 * _MOST_DIGITS:
        raise ValueError(f"a decimal with more than {_MOST_DIGITS} digits")
    scale, end = read_int(data, at + length)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes are left after a decimal")
    number = Decimal(int.from_bytes(data[at : at + length], "big", signed=True))
    return number.scaleb(-scale, Context(prec=2 * _MOST_DIGITS + 1000))


def _write_big_decimal(value: Any) -> bytes:
    _need(value, Decimal, "Decimal")
    exponent = cast("Decimal", value).as_tuple().exponent
    if not isinstance(exponent, int):
        raise ValueError(f"{value} is no number")
    number = _integer_bytes(_unscaled(value, -exponent))
    data = long_bytes(len(number)) + number + int_bytes(-exponent)
    try:
        is_kept = _read_big_decimal(data) == value
    except ArithmeticError:
        is_kept = False
    if not is_kept:
        raise ValueError(f"{value!s:.40} has an exponent that no reader takes: at most {DefaultContext.Emax}")
    return data


_UUID_TEXT = Conversion(UUID, UUID, _write_uuid_text)
_UUID_BYTES = Conversion(UUID, lambda data: UUID(bytes=data), _write_uuid_bytes)
_BY_NAME = {
    "date": Conversion(date, _read_date, _write_date),
    "time-millis": Conversion(time, *_time_of_day(1_000)),
    "time-micros": Conversion(time, *_time_of_day(1_000_000)),
    "timestamp-millis": Conversion(datetime, *_instant(_MILLISECOND)),
    "timestamp-micros": Conversion(datetime, *_instant(_MICROSECOND)),
    "timestamp-nanos": Conversion(datetime, *_instant(_MICROSECOND, 1_000), is_lossy=True),
    "local-timestamp-millis": Conversion(datetime, *_local(_MILLISECOND)),
    "local-timestamp-micros": Conversion(datetime, *_local(_MICROSECOND)),
    "local-timestamp-nanos": Conversion(datetime, *_local(_MICROSECOND, 1_000), is_lossy=True),
    "duration": Conversion(Duration, _read_duration, _write_duration),
    "big-decimal": Conversion(Decimal, _read_big_decimal, _write_big_decimal),
}
