"""Kafka Connect's schemas of values: the type that a number or text in JSON had in the table."""

from __future__ import annotations

import base64
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import msgspec

from eventbus.errors import SerializationError

Type = Literal[
    "int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string", "bytes", "struct", "array"
]  # fmt: skip

DECIMAL = "org.apache.kafka.connect.data.Decimal"
DATE = "org.apache.kafka.connect.data.Date"
TIME = "org.apache.kafka.connect.data.Time"
TIMESTAMP = "org.apache.kafka.connect.data.Timestamp"

_DAY_0 = date(1970, 1, 1)
_TIME_0 = datetime(1970, 1, 1, tzinfo=UTC)


class Field(msgspec.Struct, frozen=True):
    """A field of a struct."""

    name: str
    schema: Schema


class Schema(msgspec.Struct, frozen=True):
    """A type of Kafka Connect."""

    type: Type
    optional: bool = False
    name: str | None = None
    """The name of a struct, or the meaning of the type, such as `DECIMAL`."""
    fields: tuple[Field, ...] = ()
    items: Schema | None = None
    scale: int = 0
    """The number of digits of a decimal after the point."""

    def described(self, field: str | None = None) -> dict[str, Any]:
        """Return the schema as Connect's JSON converter writes it into every record."""
        found: dict[str, Any] = {"type": self.type}
        if self.type == "struct":
            found["fields"] = [one.schema.described(one.name) for one in self.fields]
        elif self.items is not None:
            found["items"] = self.items.described()
        found["optional"] = self.optional
        if self.name is not None:
            found["name"] = self.name
            if self.name in (DECIMAL, DATE, TIME, TIMESTAMP):
                found["version"] = 1
            if self.name == DECIMAL:
                found["parameters"] = {"scale": str(self.scale)}
        if field is not None:
            found["field"] = field
        return found


STRING = Schema("string")
BYTES = Schema("bytes")


def schema_of(value: Any) -> Schema:
    """Return a schema for a value without one. Raises SerializationError."""
    match value:
        case bool():
            return Schema("boolean", optional=True)
        case int():
            return Schema("int64", optional=True)
        case float():
            return Schema("float64", optional=True)
        case bytes() | bytearray() | memoryview():
            return Schema("bytes", optional=True)
        case Decimal():
            exponent = value.as_tuple().exponent
            scale = -exponent if isinstance(exponent, int) and exponent < 0 else 0
            return Schema("bytes", True, DECIMAL, scale=scale)
        case datetime():
            return Schema("int64", True, TIMESTAMP)
        case date():
            return Schema("int32", True, DATE)
        case time():
            return Schema("int32", True, TIME)
        case None | str() | UUID() | timedelta():
            return Schema("string", optional=True)
        case list():
            items: list[Any] = value  # pyright: ignore[reportUnknownVariableType]
            return Schema("array", True, items=schema_of(items[0]) if items else Schema("string", True))
        case dict():
            found: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]
            return Schema("struct", True, fields=tuple(Field(str(name), schema_of(one)) for name, one in found.items()))
        case _:
            raise SerializationError(f"{type(value).__name__} has no schema: {value!r:.80}")


def plain(value: Any, schema: Schema, *, numeric_decimals: bool) -> Any:
    """Convert a value as in Connect's JSON: dates as days, times as milliseconds, decimals and bytes in base64."""
    if value is None:
        return None
    try:
        match schema.name:
            case "org.apache.kafka.connect.data.Decimal":
                return value if numeric_decimals else base64.b64encode(unscaled(value, schema.scale)).decode()
            case "org.apache.kafka.connect.data.Date":
                return (value - _DAY_0).days
            case "org.apache.kafka.connect.data.Time":
                return milliseconds_of_day(value)
            case "org.apache.kafka.connect.data.Timestamp":
                return milliseconds(value)
            case _:
                pass
    except (ArithmeticError, TypeError, AttributeError) as error:
        raise SerializationError(f"{value!r:.80} is no {schema.name}: {error}") from None
    if schema.type == "struct":
        return {
            one.name: plain(value.get(one.name), one.schema, numeric_decimals=numeric_decimals) for one in schema.fields
        }
    if schema.type == "array" and schema.items is not None:
        return [plain(one, schema.items, numeric_decimals=numeric_decimals) for one in value]
    if schema.type == "bytes":
        return base64.b64encode(value).decode()
    return str(value) if schema.type == "string" else value


def unscaled(value: Decimal, scale: int) -> bytes:
    """Return a decimal's digits as a big-endian number in two's complement. Raises SerializationError."""
    number = int(value.scaleb(scale).to_integral_exact())
    if Decimal(number).scaleb(-scale) != value:
        raise SerializationError(f"{value} has more than {scale} digit(s) behind the point")
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)


def milliseconds_of_day(value: time) -> int:
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def milliseconds(value: datetime) -> int:
    """Return milliseconds since the epoch; a time without a time zone counts as UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (aware - _TIME_0) // timedelta(milliseconds=1)
