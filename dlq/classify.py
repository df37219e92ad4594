"""Classify errors: which are retried, which are outages, and which make a record a dead letter at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, cast

import msgspec

from dlq.signals import FailureSignal
from eventbus.errors import (
    ConfigError,
    EventBusError,
    ProcessCrashed,
    SerializationError,
)
from eventbus.outages import is_outage
from serdes import SchemaRegistryError

Kind = Literal["retry", "outage", "unreadable", "never", "crashed", "fatal"]
"""How a record is treated after its handler raised an error.

"retry": it is retried until its tries are used up. "outage": the cause lies outside the record, which is retried for as
long as the outage lasts. "unreadable" and "never": a retry would fail in the same way, so the record becomes a dead
letter at once. "crashed": the process died while it handled the record. "fatal": the process itself is broken, so no
record is blamed and none is moved.
"""

DEFAULTS: Mapping[type[BaseException], Kind] = {
    SerializationError: "unreadable",
    msgspec.ValidationError: "never",
    TypeError: "never",
    AttributeError: "never",
    ConfigError: "never",
    ProcessCrashed: "crashed",
    MemoryError: "fatal",
}
"""Kinds of the errors that are not outages (see `eventbus.outages`). The nearest class in an error's MRO decides. Other
errors are retried: a KeyError or a ValueError may disappear when missing data arrives, and a TimeoutError may be the
record's own fault.
"""

_BY_NAME: Mapping[tuple[str, str], Kind] = {
    ("pydantic_core", "ValidationError"): "never",
}
"""Kinds of errors from libraries that need not be installed, by package name and class name."""

_WORST: tuple[Kind, ...] = ("fatal", "crashed", "never", "unreadable", "retry", "outage")

Classify = Callable[[BaseException], Kind]


def classifier(
    on: Iterable[type[BaseException]] | None = None,
    never: Iterable[type[BaseException]] = (),
    outages: Iterable[type[BaseException]] = (),
) -> Classify:
    """Return a function that classifies errors. The given classes and their subclasses override `DEFAULTS`.

    With ``on``, only these errors and outages are retried. An ExceptionGroup is classified by its members: it is an
    outage if all of them are, and is not retried if one of them is never retried.
    """
    given: dict[type[BaseException], Kind] = {
        **dict.fromkeys(on or (), "retry"),
        **dict.fromkeys(never, "never"),
        **dict.fromkeys(outages, "outage"),
    }
    otherwise: Kind = "retry" if on is None else "never"

    def kind_of(error: BaseException) -> Kind:
        for cls in type(error).__mro__ if given else ():
            if cls in given:
                return given[cls]
        if inside := _inside(error):
            kinds = {kind_of(member) for member in inside}
            return next(kind for kind in _WORST if kind in kinds)
        return _known(error) or otherwise

    return kind_of


def signal_of(error: BaseException) -> FailureSignal | None:
    """Return the `FailureSignal` that the handler raised, unwrapped from task groups, or None."""
    while len(inside := _inside(error)) == 1:
        error = inside[0]
    return error if isinstance(error, FailureSignal) else None


def _inside(error: BaseException) -> tuple[BaseException, ...]:
    return cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()


def _known(error: BaseException) -> Kind | None:
    if is_outage(error):
        return "outage"
    for cls in type(error).__mro__:
        if cls in DEFAULTS:
            return DEFAULTS[cls]
        if (by_name := _BY_NAME.get((cls.__module__.partition(".")[0], cls.__name__))) is not None:
            return by_name
    if isinstance(error, EventBusError):
        return "fatal" if error.fatal else None
    return "unreadable" if isinstance(error, SchemaRegistryError) else None
