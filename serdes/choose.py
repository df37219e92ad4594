"""Which serde a Python type means. Writing goes by the value's type, reading by the annotation, by the same rules."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import msgspec

from serdes.base import Encode, Serde, bind_encoder
from serdes.json import Json, encode_json
from serdes.primitives import Bytes, Long, Str, into

BY_TYPE: dict[type, Serde] = {
    bytes: Bytes,
    bytearray: into(bytearray, Bytes),
    memoryview: into(memoryview, Bytes),
    str: Str,
    int: Long,
}
"""Types with a byte format of their own, their subclasses too (a StrEnum); every other type is JSON, bool as well."""


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
    """The serde of an annotation: the user's own first, then Kafka's byte formats, then JSON.

    ``X | None`` and a NewType of X are read as X: that is how they are written. Raises TypeError when the annotation
    is no type that JSON can be checked against.
    """
    annotation, _ = split_optional(annotation)
    while (meant := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None)) is not None:
        annotation = meant  # a NewType, a ``type`` statement
    if custom is not None and annotation in custom:
        return custom[annotation]
    kind = _values_of(annotation)
    if kind is None:
        return Json(annotation)
    found = _nearest(kind, custom)
    if found is not None:
        return found
    base = _base(kind)
    if base is None:
        return Json(annotation)
    if annotation is kind:
        return BY_TYPE[kind] if kind is base else into(kind, BY_TYPE[base])
    return into(partial(msgspec.convert, type=annotation), BY_TYPE[base])


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
    found = _nearest(value_type, custom)
    if found is not None:
        return bind_encoder(found, topic)
    base = _base(value_type)
    return encode_json if base is None else bind_encoder(BY_TYPE[base], topic)


def _nearest(kind: type, custom: Mapping[type, Serde] | None) -> Serde | None:
    """The user's serde of the type, or of its nearest base."""
    return next((custom[cls] for cls in kind.__mro__ if cls in custom), None) if custom else None


def _base(kind: type) -> type | None:
    """The type of `BY_TYPE` that this one is, or derives from."""
    if issubclass(kind, bool):
        return None
    return next((cls for cls in kind.__mro__ if cls in BY_TYPE), None)
