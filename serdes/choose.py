"""Which serde a Python type means. Writing goes by the value's type, reading by the annotation, by the same rules."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec

from serdes.base import Encode, Serde, TypedSerde, bind_encoder
from serdes.json import Json
from serdes.primitives import Bytes, Long, Str, into

BY_TYPE: dict[type, Serde] = {
    bytes: Bytes,
    bytearray: into(bytearray, Bytes),
    memoryview: into(memoryview, Bytes),
    str: Str,
    int: Long,
}
"""Types with a byte format of their own, their subclasses too (a StrEnum); every other type is JSON, bool as well."""
_JSON = Json()


class Others:
    """The key of what every type without a byte format of its own is written in; without it that is JSON."""


def split_optional(annotation: Any) -> tuple[Any, bool]:
    """``(X, True)`` for ``X | None``, else ``(annotation, False)``: may a null be passed on?"""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        rest = [argument for argument in typing.get_args(annotation) if argument is not type(None)]
        if len(rest) < len(typing.get_args(annotation)):
            joined = rest[0]
            for other in rest[1:]:
                joined = joined | other
            return joined, True
    return annotation, annotation in (Any, object)


def serde_for(annotation: Any, custom: Mapping[type, Serde] | None = None) -> Serde:
    """The serde of an annotation: one that it names itself (``Annotated[Flight, avro]``), the user's own by type, then
    Kafka's byte formats, then what all others are written in, JSON by default.

    ``X | None`` and a NewType of X are read as X: that is how they are written. Raises TypeError when the annotation
    is no type that its serde can be checked against.
    """
    annotation, _ = split_optional(annotation)
    while (meant := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)) is not None:
        annotation = meant  # a NewType, a ``type`` statement
    named = serde_named(annotation)
    if named is not None:
        return typed(named, typing.get_args(annotation)[0])
    if custom:
        found = _of_users(annotation, custom)
        if found is not None:
            return typed(found, annotation)
    kind = _values_of(annotation)
    base = None if kind is None else _base(kind)
    if kind is None or base is None:
        return typed(custom[Others], annotation) if custom and Others in custom else Json(annotation)
    if annotation is kind:
        return BY_TYPE[kind] if kind is base else into(kind, BY_TYPE[base])
    return into(partial(msgspec.convert, type=annotation), BY_TYPE[base])


def format_of(annotation: Any, custom: Mapping[type, Serde] | None = None) -> type | None:
    """The type of `BY_TYPE` in whose byte format an annotation's values are; None: they are JSON, or a serde's own."""
    if serde_named(annotation) is not None or (custom and _of_users(annotation, custom) is not None):
        return None
    kind = _values_of(annotation)
    return None if kind is None else _base(kind)


def serde_named(annotation: Any) -> Serde | None:
    """The serde in ``Annotated[X, serde]``."""
    if typing.get_origin(annotation) is not typing.Annotated:
        return None
    return next((one for one in annotation.__metadata__ if isinstance(one, Serde)), None)


def typed(serde: Serde, annotation: Any) -> Serde:
    """A serde of many types, as that of one."""
    return serde.of(annotation) if isinstance(serde, TypedSerde) else serde


def _of_users(annotation: Any, custom: Mapping[type, Serde]) -> Serde | None:
    """The user's own; that of a union is the one that all its types have."""
    if _is_key_of(annotation, custom):
        return custom[annotation]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        found = [_of_users(one, custom) for one in typing.get_args(annotation)]
        return found[0] if all(one is found[0] for one in found) else None
    kind = _values_of(annotation)
    return None if kind is None else _nearest(kind, custom)


def _is_key_of(annotation: Any, custom: Mapping[type, Serde]) -> bool:
    try:
        return annotation in custom
    except TypeError:  # not hashable: Annotated with a list in it, say
        return False


def _values_of(annotation: Any) -> type | None:
    """The type of the values an annotation describes; None when they may be of several."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _values_of(annotation.__origin__)
    if origin is typing.Literal:
        found = {cast("type[Any]", type(value)) for value in typing.get_args(annotation)}
        return found.pop() if len(found) == 1 else None
    kind = origin or annotation
    return cast("type[Any]", kind) if isinstance(kind, type) else None


def encoder_for(value_type: type, topic: str, custom: Mapping[type, Serde] | None = None) -> Encode:
    """How values of this runtime type are written to ``topic``."""
    return bind_encoder(serde_of_values(value_type, custom), topic)


def serde_of_values(value_type: type, custom: Mapping[type, Serde] | None = None) -> Serde:
    """The serde that values of this runtime type are written with."""
    found = _nearest(value_type, custom)
    if found is not None:
        return typed(found, value_type)
    base = _base(value_type)
    if base is not None:
        return BY_TYPE[base]
    return typed(custom[Others], value_type) if custom and Others in custom else _JSON


def _nearest(kind: type, custom: Mapping[type, Serde] | None) -> Serde | None:
    """The user's serde of the type, or of its nearest base."""
    return next((custom[cls] for cls in kind.__mro__ if cls in custom), None) if custom else None


def _base(kind: type) -> type | None:
    """The type of `BY_TYPE` that this one is, or derives from."""
    if issubclass(kind, bool):
        return None
    return next((cls for cls in kind.__mro__ if cls in BY_TYPE), None)
