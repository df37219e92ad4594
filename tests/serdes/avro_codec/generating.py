"""Schemas and values of them, by hypothesis: plain data, as fastavro takes and gives it."""

from __future__ import annotations

import itertools
import struct
from typing import Any

from hypothesis import strategies as st

Json = Any

_PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "string", "bytes")


@st.composite
def schemas(draw: st.DrawFn, depth: int = 3) -> Json:
    """A schema as JSON data. Names are unique; unions have one branch of a kind, as Avro demands."""
    return _schema(draw, depth, itertools.count())


def _schema(draw: st.DrawFn, depth: int, numbers: itertools.count[int], in_union: bool = False) -> Json:
    kinds = [*_PRIMITIVES, "enum", "fixed"]
    if depth > 0:
        kinds += ["record", "record", "array", "map"] + ([] if in_union else ["union"])
    return _of_kind(draw, draw(st.sampled_from(kinds)), depth, numbers)


def _of_kind(draw: st.DrawFn, kind: str, depth: int, numbers: itertools.count[int]) -> Json:
    if kind == "enum":
        return {"type": "enum", "name": f"E{next(numbers)}", "symbols": ["A", "B", "C"][: draw(st.integers(1, 3))]}
    if kind == "fixed":
        return {"type": "fixed", "name": f"F{next(numbers)}", "size": draw(st.integers(1, 4))}
    if kind == "record":
        name = f"R{next(numbers)}"
        fields = [
            {"name": f"f{at}", "type": _schema(draw, depth - 1, numbers)} for at in range(draw(st.integers(0, 4)))
        ]
        return {"type": "record", "name": name, "fields": fields}
    if kind == "array":
        return {"type": "array", "items": _schema(draw, depth - 1, numbers)}
    if kind == "map":
        return {"type": "map", "values": _schema(draw, depth - 1, numbers)}
    if kind == "union":
        branches = draw(st.lists(st.sampled_from(_UNION_KINDS), min_size=1, max_size=3, unique=True))
        return [_of_kind(draw, one, depth - 1, numbers) for one in branches]
    return kind


_UNION_KINDS = ("null", "boolean", "long", "double", "string", "bytes", "record", "array", "map")


def values(schema: Json) -> st.SearchStrategy[Any]:
    """Values of a schema. Those of a union's record or map come as fastavro's ``(name, value)`` where need be."""
    if isinstance(schema, list):
        return st.one_of([values(branch) for branch in schema])
    if isinstance(schema, str):
        return _OF_PRIMITIVES[schema]
    kind = schema["type"]
    if kind == "enum":
        return st.sampled_from(schema["symbols"])
    if kind == "fixed":
        return st.binary(min_size=schema["size"], max_size=schema["size"])
    if kind == "array":
        return st.lists(values(schema["items"]), max_size=4)
    if kind == "map":
        return st.dictionaries(st.text(max_size=4), values(schema["values"]), max_size=4)
    return st.fixed_dictionaries({field["name"]: values(field["type"]) for field in schema["fields"]})


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


_OF_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False).map(_float32),
    "double": st.floats(allow_nan=False),
    "string": st.text(max_size=6),
    "bytes": st.binary(max_size=6),
}
