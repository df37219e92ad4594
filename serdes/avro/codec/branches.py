"""Which branch of a union a value is written as, where the schema alone does not tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, cast

from serdes.avro.codec.arms import BASES
from serdes.avro.codec.conversions import conversion_of
from serdes.avro.codec.errors import AvroDataError
from serdes.avro.codec.shapes import Constants, Entries, Items, Members, Nothing, Object, Scalar, shape_of
from serdes.avro.codec.values import symbol_names
from serdes.avro.schema import Array, Enum, Fixed, Map, Record, Schema, Union

Choose = Callable[[Any], tuple[int, Any]]
"""A value to the index of its branch, and the value itself (of a hint like ``("Order", {...})`` the second part)."""
Fits = Callable[[Any], int]
"""How well a value fits; 0: not at all."""


def plain_choice(schema: Union) -> Choose:
    """Choose the branch for plain data: by name in a pair of branch name and value; by the fields of a dict."""
    fits = [(index, _plain_fit(branch)) for index, branch in enumerate(schema.branches)]
    names: dict[str, int] = {}
    for index, branch in enumerate(schema.branches):
        names.setdefault(branch.fullname.rpartition(".")[2], index)
        names[branch.fullname] = index

    def choose(value: Any) -> tuple[int, Any]:
        if type(value) is tuple and len(cast("tuple[Any, ...]", value)) == 2:
            name, inner = cast("tuple[Any, Any]", value)
            if isinstance(name, str) and name in names:
                return names[name], inner
        return _best(fits, value, schema), cast("Any", value)

    return choose


def arm_choice(schema: Union, arms: Mapping[int, Any]) -> Choose:
    """Return a function that chooses the branch of a union for a value.

    ``arms`` maps the index of each branch to the Python type whose values it holds.
    """
    fits = [(index, _typed_fit(schema.branches[index], annotation)) for index, annotation in arms.items()]
    known: dict[type, int] = {}
    """Classes of our user's: their instances are always of one branch."""

    def choose(value: Any) -> tuple[int, Any]:
        kind = cast("type[Any]", type(value))
        index = known.get(kind)
        if index is None:
            index = _best(fits, value, schema)
            if any(kind is getattr(shape_of(arm), "kind", None) for arm in arms.values()) and kind is not float:
                known[kind] = index
        return index, value

    return choose


def _best(fits: list[tuple[int, Fits]], value: Any, schema: Union) -> int:
    best, found = 0, -1
    for index, fit in fits:
        rating = fit(value)
        if rating > best:
            best, found = rating, index
    if found < 0:
        names = ", ".join(branch.fullname for branch in schema.branches)
        raise AvroDataError(f"{value!r:.80} ({type(value).__name__}) fits no branch of the union ({names})")
    return found


def _plain_fit(branch: Schema) -> Fits:
    if branch.type == "null":
        return lambda value: 9 * (value is None)
    if isinstance(branch, Record):
        return _record_fit(branch)
    if isinstance(branch, Map):
        return lambda value: 2 * isinstance(value, Mapping)
    if isinstance(branch, Array):
        return lambda value: 5 * isinstance(value, (list, tuple, set, frozenset))
    if isinstance(branch, Enum):
        symbols = frozenset(branch.symbols)
        return lambda value: 7 * (isinstance(value, str) and value in symbols)
    return _scalar_fit(branch)


def _record_fit(branch: Record) -> Fits:
    required = {field.name for field in branch.fields if not field.has_default}
    names = {field.name for field in branch.fields}

    def fit(value: Any) -> int:
        if not isinstance(value, Mapping):
            return 0
        keys = cast("Mapping[Any, Any]", value).keys()
        return 10 + len(names & keys) - len(keys - names) if required <= keys else 0

    return fit


def _scalar_fit(branch: Schema) -> Fits:
    conversion, base = conversion_of(branch), BASES[branch.type]
    most = 1 << (31 if branch.type == "int" else 63)
    less = 0 if conversion is None else 2
    """A number is rather a long than a time of day, where both are branches."""

    def fit(value: Any) -> int:
        if conversion is not None and isinstance(value, conversion.kind):
            if not isinstance(value, datetime) or conversion.kind is not datetime:
                return 8 * (conversion.kind is not datetime and not isinstance(value, datetime))
            return 8 + ((value.tzinfo is None) == str(branch.logical_type).startswith("local"))
        if isinstance(value, bool):
            return 8 * (base is bool)
        if isinstance(value, int):
            return (7 - less) * (base is int and -most <= value < most) or 3 * (base is float)
        if isinstance(branch, Fixed):
            return (7 - less) * (isinstance(value, (bytes, bytearray)) and len(value) == branch.size)
        return (6 - less) * isinstance(value, (bytes, bytearray, memoryview) if base is bytes else base)

    return fit


def _typed_fit(branch: Schema, annotation: Any) -> Fits:
    shape = shape_of(annotation)
    if isinstance(shape, Nothing):
        return lambda value: 9 * (value is None)
    if isinstance(shape, Object):
        if shape.how == "dict":
            return _record_fit(cast("Record", branch))
        kind = shape.kind
        return lambda value: 20 * (type(value) is kind) or 9 * isinstance(value, kind)
    if isinstance(shape, Members):
        members = set(symbol_names(shape.kind, branch).values()) if isinstance(branch, Enum) else set(shape.kind)
        return lambda value: 9 * (isinstance(value, shape.kind) and value in members)
    if isinstance(shape, Constants):
        return lambda value: 7 * (value in shape.values)
    if isinstance(shape, (Items, Entries)):
        return _plain_fit(branch)
    if isinstance(shape, Scalar) and shape.kind is float:
        return lambda value: (
            6 * isinstance(value, float) or 3 * (isinstance(value, int) and not isinstance(value, bool))
        )
    return _plain_fit(branch)
