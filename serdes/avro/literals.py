"""Python's values in the form that a default has in a schema's text."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import uuid
from collections.abc import Iterable, Mapping
from typing import Any, cast

from serdes.avro.codec.shapes import Object
from serdes.avro.python_types import enum_symbols
from serdes.avro.schema import PRIMITIVES

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_UNITS = {"millis": 1_000, "micros": 1, "nanos": None}


class NoDefault(Exception):
    """The value has no form in the type."""


def to_json(value: Any, kind: Any, definitions: Mapping[str, dict[str, Any]], objects: Mapping[str, Object]) -> Any:
    """``kind`` is a schema as JSON; ``definitions`` are those of the named types, ``objects`` the records' classes."""
    return _Writer(definitions, objects).write(value, kind)


class _Writer:
    def __init__(self, definitions: Mapping[str, dict[str, Any]], objects: Mapping[str, Object]) -> None:
        self._definitions = definitions
        self._objects = objects

    def write(self, value: Any, kind: Any) -> Any:
        if isinstance(kind, list):
            for branch in cast("list[Any]", kind):
                try:
                    return self.write(value, branch)
                except NoDefault:
                    continue
            raise NoDefault
        members = cast("dict[str, Any]", kind) if isinstance(kind, dict) else {"type": kind}
        name = cast("str", members["type"])
        if name in self._definitions:
            members = self._definitions[name]
            name = members["type"]
        if name in PRIMITIVES or name == "fixed":
            return _scalar(value, name, members)
        match name:
            case "array" if isinstance(value, (list, tuple, set, frozenset)):
                items = cast("Iterable[Any]", value)
                steady = items if isinstance(value, (list, tuple)) else sorted(items, key=repr)
                return [self.write(item, members["items"]) for item in steady]
            case "map" if isinstance(value, Mapping):
                entries = cast("Mapping[str, Any]", value)
                return {key: self.write(item, members["values"]) for key, item in entries.items()}
            case "enum":
                return _symbol(value, members["symbols"])
            case "record" | "error":
                return self._record(value, members)
            case _:
                raise NoDefault

    def _record(self, value: Any, members: dict[str, Any]) -> Any:
        full = f"{members['namespace']}.{members['name']}" if members["namespace"] else members["name"]
        shape = self._objects[full]
        if "fields" not in members or not isinstance(value, dict if shape.how == "dict" else shape.kind):
            raise NoDefault
        inside = cast("dict[str, Any]", value) if shape.how == "dict" else None
        kinds = {field["name"]: field["type"] for field in members["fields"]}
        return {
            one.data_name: self.write(
                getattr(value, one.name) if inside is None else inside.get(one.name), kinds[one.data_name]
            )
            for one in shape.attributes
        }


def _symbol(value: Any, symbols: list[str]) -> str:
    if isinstance(value, enum.Enum):
        value = next((symbol for symbol, member in enum_symbols(type(value)).items() if member is value), None)
    if value not in symbols:
        raise NoDefault
    return value


def _scalar(value: Any, name: str, members: dict[str, Any]) -> Any:
    logical = members.get("logicalType")
    match value:
        case None if name == "null":
            return None
        case bool() if name == "boolean":
            return value
        case bool() | None:
            raise NoDefault
        case int() if name in ("int", "long"):
            bits = 31 if name == "int" else 63
            if -(1 << bits) <= value < 1 << bits:
                return int(value)
        case int() | float() if name in ("float", "double"):
            if isinstance(value, float) and not math.isfinite(value):
                return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
            return value
        case str() if name == "string":
            return str(value)
        case bytes() if name in ("bytes", "fixed"):
            if name == "bytes" or len(value) == members["size"]:
                return value.decode("latin-1")
        case uuid.UUID() if logical == "uuid":
            return str(value) if name == "string" else value.bytes.decode("latin-1")
        case decimal.Decimal() if logical == "decimal":
            return _decimal(value, name, members)
        case datetime.date() | datetime.time() if isinstance(logical, str):
            return _time(value, logical)
        case _:
            pass
    raise NoDefault


def _time(value: datetime.date | datetime.time, logical: str) -> int:
    unit = _UNITS.get(logical.rpartition("-")[2], 1)
    if isinstance(value, datetime.time):
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    elif isinstance(value, datetime.datetime):
        if (value.tzinfo is None) != logical.startswith("local-"):
            raise NoDefault
        since = value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value
        micros = (since - _EPOCH) // datetime.timedelta(microseconds=1)
    else:
        return (value - _EPOCH.date()).days
    return micros * 1_000 if unit is None else micros // unit


def _decimal(value: decimal.Decimal, name: str, members: dict[str, Any]) -> str:
    scaled = value.scaleb(members.get("scale", 0))
    if not scaled.is_finite() or scaled != scaled.to_integral_value():
        raise NoDefault
    unscaled = int(scaled)
    size = (
        members["size"]
        if name == "fixed"
        else (unscaled.bit_length() if unscaled >= 0 else (~unscaled).bit_length()) // 8 + 1
    )
    try:
        return unscaled.to_bytes(size, "big", signed=True).decode("latin-1")
    except OverflowError:
        raise NoDefault from None
