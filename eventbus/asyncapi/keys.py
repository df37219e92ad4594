"""Of which type the keys are that a function makes of a value, as far as it can be told without one."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from serdes.choose import split_optional


def type_of_key(function: Callable[[Any], Any], value: Any) -> Any:
    """What ``function`` is annotated to return. One without an annotation is called with a stand-in for ``value``.

    ``lambda order: order.id`` then tells that a key is what ``Order.id`` is. None: it cannot be told.
    """
    annotated = _hints(function).get("return")
    if annotated is not None:
        return None if annotated is Any else split_optional(annotated)[0]
    try:
        made = function(_StandIn(value))
    except Exception:  # anybody's code, which asked more of the stand-in than which fields it has
        return None
    if isinstance(made, _StandIn):
        return object.__getattribute__(made, "_annotation")
    return type(made) if isinstance(made, (str, bytes, int)) and not isinstance(made, bool) else None


class _StandIn:
    """Has the fields of a type, and knows of each only the annotation. What else is asked of it raises TypeError."""

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
        raise TypeError  # which way a condition goes is not known

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
    """Annotations, or none where they cannot be read: of a built-in function, of a name that is nowhere."""
    try:
        return typing.get_type_hints(of, include_extras=True)
    except (NameError, TypeError, AttributeError):
        return {}
