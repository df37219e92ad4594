"""Infer the type of the keys that a function makes of values, as far as possible without a value."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from serdes.choose import split_optional


def type_of_key(function: Callable[[Any], Any], value: Any) -> Any:
    """Return the annotated return type of ``function``. Without an annotation, call it with a stand-in for ``value``.

    So ``lambda order: order.id`` shows that the key has the type of ``Order.id``. None if it cannot be inferred.
    """
    annotated = _hints(function).get("return")
    if annotated is not None:
        return None if annotated is Any else split_optional(annotated)[0]
    try:
        made = function(_StandIn(value))
    except Exception:  # user code, which needed more of the stand-in than its fields
        return None
    if isinstance(made, _StandIn):
        return object.__getattribute__(made, "_annotation")
    return type(made) if isinstance(made, (str, bytes, int)) and not isinstance(made, bool) else None


class _StandIn:
    """An object with the fields of a type, each with only its annotation. Other operations raise TypeError."""

    def __init__(self, annotation: Any) -> None:
        object.__setattr__(self, "_annotation", split_optional(annotation)[0])

    def __getattribute__(self, name: str) -> _StandIn:
        if name.startswith("__"):
            return object.__getattribute__(self, name)
        return _StandIn(_field(object.__getattribute__(self, "_annotation"), name))

    def __getitem__(self, name: object) -> _StandIn:
        annotation = object.__getattribute__(self, "_annotation")
        if not isinstance(name, str) or not typing.is_typeddict(annotation):
            raise TypeError
        return _StandIn(_field(annotation, name))

    def __bool__(self) -> bool:
        raise TypeError  # the result of the condition is unknown

    def __eq__(self, other: object) -> bool:
        raise TypeError

    def __hash__(self) -> int:
        raise TypeError

    def __format__(self, spec: str) -> str:
        return ""

    def __str__(self) -> str:
        return ""

    __iter__ = None


def _field(annotation: Any, name: str) -> Any:
    kind = typing.get_origin(annotation) or annotation
    if not inspect.isclass(kind):
        raise TypeError
    found = _hints(kind).get(name)
    if found is None:
        attribute = inspect.getattr_static(kind, name, None)
        found = _hints(attribute.fget).get("return") if isinstance(attribute, property) else None
    if found is None or isinstance(found, typing.TypeVar):
        raise TypeError
    return found


def _hints(of: Any) -> dict[str, Any]:
    """Return annotations, or none if they cannot be read: of a built-in function, or with an undefined name."""
    try:
        return typing.get_type_hints(of, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
