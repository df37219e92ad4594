"""Find the serdes for a producer function's results, from its return annotation."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from eventbus.client.handling.functions import own_function
from serdes import Serde, serde_for
from serdes.base import SchemaSerde
from serdes.choose import serde_named, split_optional, typed

_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.AsyncIterable,
    collections.abc.Iterator,
    collections.abc.Generator,
    collections.abc.Iterable,
    collections.abc.Awaitable,
    collections.abc.Coroutine,
)


def published_type(function: Callable[..., Any], frame: FrameType | None) -> Any:
    """Return the annotation of one output; None: it is not known."""
    own = own_function(function)
    local = {**frame.f_globals, **frame.f_locals} if frame is not None else None
    try:
        annotation = typing.get_type_hints(own, localns=local, include_extras=True).get("return")
    except (NameError, TypeError):
        return None
    while typing.get_origin(annotation) in _STREAMS:
        arguments = typing.get_args(annotation)
        annotation = arguments[-1 if typing.get_origin(annotation) is collections.abc.Coroutine else 0]
    annotation = split_optional(annotation)[0]
    return None if annotation in (type(None), Any, object) else annotation


def serdes_named(annotation: Any) -> dict[type, Serde]:
    """Return the serdes that a return annotation itself names, by the types of its values."""
    serde = serde_named(annotation)
    if serde is None:
        return {}
    inner = typing.get_args(annotation)[0]
    kinds = arms_of(inner)
    return {kind: serde if len(kinds) > 1 else typed(serde, inner) for kind in kinds}


def serdes_meant(annotation: Any, serdes: Mapping[type, Serde]) -> dict[type, Serde]:
    """Return the serdes that an annotation names, or else the bus's for types that a value's class does not show.

    A schema needs the annotation of a dict's TypedDict or of a list's items, which the value does not have.
    """
    named = serdes_named(annotation)
    kinds = [] if named else arms_of(annotation)
    if len(kinds) != 1 or kinds[0] is annotation or not any(isinstance(one, SchemaSerde) for one in serdes.values()):
        return named
    serde = serde_for(annotation, serdes)
    return {kinds[0]: serde} if isinstance(serde, SchemaSerde) else named


def arms_of(annotation: Any) -> list[type]:
    """Return the classes that values of an annotation have."""
    annotation = split_optional(annotation)[0]
    if typing.get_origin(annotation) is typing.Annotated:
        return arms_of(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for one in typing.get_args(annotation) for kind in arms_of(one)]
    kind = typing.get_origin(annotation) or annotation
    return [dict] if typing.is_typeddict(kind) else [kind] if isinstance(kind, type) and kind is not type(None) else []
