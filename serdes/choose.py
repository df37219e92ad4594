"""Which serde a Python type means."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from typing import Any

from serdes.base import Encode, Serde, bind_encoder
from serdes.json import Json, encode_json
from serdes.primitives import Bytes, Long, Str

BY_TYPE: dict[type, Serde] = {bytes: Bytes, str: Str, int: Long}
"""Types with a byte format of their own; every other type is JSON."""


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

    Raises TypeError when the annotation is no type that JSON can be checked against.
    """
    if custom is not None and annotation in custom:
        return custom[annotation]
    if isinstance(annotation, type) and annotation in BY_TYPE:
        return BY_TYPE[annotation]
    return Json(annotation)


def encoder_for(value_type: type, topic: str, custom: Mapping[type, Serde] | None = None) -> Encode:
    """How values of this runtime type are written to ``topic``."""
    if custom is not None:
        for cls in value_type.__mro__:
            if cls in custom:
                return bind_encoder(custom[cls], topic)
    if value_type in (bytearray, memoryview):
        return bind_encoder(Bytes, topic)
    if value_type in BY_TYPE:
        return bind_encoder(BY_TYPE[value_type], topic)
    return encode_json
