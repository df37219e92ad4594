"""Map Arrow types to the kinds of values that columns hold, and convert nested values to JSON and back."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from eventbus.errors import ConfigError
from spark_sinks.names import doc_of

if TYPE_CHECKING:
    import pyarrow as pa

Kind = Literal[
    "boolean", "int16", "int32", "int64", "uint64", "float32", "float64", "decimal", "text", "bytes", "date", "time",
    "timestamp", "instant", "json",
]  # fmt: skip
"""``instant``: a timestamp with a zone, ``timestamp``: one without. ``json``: whatever is nested."""


class Column(NamedTuple):
    """A column of a database table. ``is_key``: rows are identified or deleted by it. ``comment``: see `doc_of`."""

    name: str
    type: pa.DataType
    kind: Kind
    is_key: bool
    comment: str = ""


def columns_of(schema: pa.Schema, keys: tuple[str, ...]) -> list[Column]:
    """Return the columns of a table. Raises `ConfigError` for keys that are none."""
    columns = [
        Column(field.name, plain_type(field.type), kind_of(field.type), field.name in keys, doc_of(field))
        for field in schema
    ]
    for name in keys:
        kind = next((column.kind for column in columns if column.name == name), None)
        if kind in (None, "json"):
            what = "there is no such column" if kind is None else "its values are nested"
            raise ConfigError(f"upsert={name!r}: {what}; there are {', '.join(schema.names)}")
    return columns


def held(schema: pa.Schema) -> pa.Schema:
    """Return the columns as databases hold them: times to the microsecond."""
    import pyarrow as pa
    import pyarrow.types as pt

    fields: list[pa.Field] = []
    for field in schema:
        if pt.is_timestamp(field.type) and field.type.unit == "ns":
            field = field.with_type(pa.timestamp("us", field.type.tz))
        elif pt.is_time64(field.type):
            field = field.with_type(pa.time64("us"))
        fields.append(field)
    return pa.schema(fields)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values of a dictionary-encoded type, or any other type unchanged."""
    import pyarrow.types as pt

    return kind.value_type if pt.is_dictionary(kind) else kind


def kind_of(kind: pa.DataType) -> Kind:
    """Raises `ConfigError` for a type that no column of a database holds."""
    import pyarrow.types as pt

    kind = plain_type(kind)
    if pt.is_timestamp(kind):
        return "timestamp" if kind.tz is None else "instant"
    checks: tuple[tuple[Callable[[Any], bool], Kind], ...] = (
        (pt.is_boolean, "boolean"),
        (lambda each: each in _SMALL, "int16"),
        (lambda each: each in _MIDDLE, "int32"),
        (pt.is_uint64, "uint64"),
        (pt.is_integer, "int64"),
        (pt.is_duration, "int64"),
        (pt.is_float64, "float64"),
        (pt.is_floating, "float32"),
        (pt.is_decimal, "decimal"),
        (lambda each: pt.is_string(each) or pt.is_large_string(each) or pt.is_string_view(each), "text"),
        (pt.is_null, "text"),
        (lambda each: pt.is_binary(each) or pt.is_large_binary(each) or pt.is_binary_view(each), "bytes"),
        (pt.is_fixed_size_binary, "bytes"),
        (pt.is_date, "date"),
        (pt.is_time, "time"),
        (pt.is_nested, "json"),
    )
    for fits, found in checks:
        if fits(kind):
            return found
    raise ConfigError(f"no column of a database holds values of the type {kind}: change it with transform=")


_SMALL = ("int8", "uint8", "int16")
_MIDDLE = ("int32", "uint16")


# nested values -------------------------------------------------------------------------------------------------------

Convert = Callable[[Any], Any]


def json_texts(array: pa.Array) -> list[str | None]:
    """Nested values as JSON: bytes in base64, times as in ISO 8601, decimals as text, a map with text keys an object.

    What is not a number (NaN) is null, as JSON has it. A value with a time outside of the years 1 to 9999 gets no text.
    """
    plain = _plain(array.type)
    encode = msgspec.json.Encoder().encode

    def text(value: Any) -> str | None:
        return None if value is None else encode(plain(value)).decode()

    def text_or_none(scalar: pa.Scalar) -> str | None:
        try:
            return text(scalar.as_py())
        except (OverflowError, ValueError):
            return None

    try:
        return [text(value) for value in array.to_pylist()]
    except (OverflowError, ValueError):  # Python has no such time
        return [text_or_none(each) for each in array]


def from_json(texts: list[str | None], kind: pa.DataType) -> list[Any]:
    """Parse JSON texts into Python values that pyarrow accepts for this type."""
    revive = _revived(kind)
    decode = msgspec.json.Decoder(float_hook=decimal.Decimal).decode
    return [None if text is None else revive(decode(text)) for text in texts]


def _plain(kind: pa.DataType) -> Convert:
    """Convert the values of pyarrow to values that msgspec encodes."""
    import pyarrow.types as pt

    if pt.is_struct(kind):
        parts = {field.name: _optional(_plain(field.type)) for field in kind}
        return lambda row: {name: convert(row[name]) for name, convert in parts.items()}
    if pt.is_map(kind):
        key, item = _plain(kind.key_type), _optional(_plain(kind.item_type))
        if kind_of(kind.key_type) == "text":
            return lambda pairs: {name: item(value) for name, value in pairs}
        return lambda pairs: [[key(name), item(value)] for name, value in pairs]
    if pt.is_nested(kind):
        element = _optional(_plain(kind.value_type))
        return lambda values: [element(value) for value in values]
    if pt.is_timestamp(kind) and kind.tz is not None:
        return lambda value: value.astimezone(datetime.UTC)
    return _same


def _revived(kind: pa.DataType) -> Convert:
    import pyarrow.types as pt

    if pt.is_struct(kind):
        parts = {field.name: _optional(_revived(field.type)) for field in kind}
        return lambda row: {name: convert(row.get(name)) for name, convert in parts.items()}
    if pt.is_map(kind):
        key, item = _revived(kind.key_type), _optional(_revived(kind.item_type))
        if kind_of(kind.key_type) == "text":
            return lambda pairs: [(name, item(value)) for name, value in pairs.items()]
        return lambda pairs: [(key(name), item(value)) for name, value in pairs]
    if pt.is_nested(kind):
        element = _optional(_revived(kind.value_type))
        return lambda values: [element(value) for value in values]
    if pt.is_duration(kind):
        return lambda value: msgspec.convert(value, datetime.timedelta)
    of_kinds: dict[Kind, Convert] = {
        "bytes": base64.b64decode,
        "float32": float,
        "float64": float,
        "decimal": decimal.Decimal,
        "date": datetime.date.fromisoformat,
        "time": datetime.time.fromisoformat,
        "timestamp": datetime.datetime.fromisoformat,
        "instant": datetime.datetime.fromisoformat,
    }
    return of_kinds.get(kind_of(kind), _same)


def _optional(convert: Convert) -> Convert:
    return convert if convert is _same else lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value
