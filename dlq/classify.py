"""What an error says about trying again."""

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
"""What becomes of a record whose handler raised an error of this kind:

"retry": it is tried again until its tries are used up. "outage": the trouble is not the record's, it is tried again for
as long as that takes. "unreadable" and "never": trying the same again gives the same, it is a dead letter at once.
"crashed": the process died at it. "fatal": the process is broken, no record is to blame and none is moved.
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
"""Errors that are no outage (`eventbus.outages`). Of an error's classes the nearest one counts. Any other error is
retried: a KeyError or a ValueError may well be gone when data that is missing now has come, and a TimeoutError may be
the record's own fault."""

_BY_NAME: Mapping[tuple[str, str], Kind] = {
    ("pydantic_core", "ValidationError"): "never",
}
"""Of libraries that need not be installed: the package's name, and the class's."""

_WORST: tuple[Kind, ...] = ("fatal", "crashed", "never", "unreadable", "retry", "outage")

Classify = Callable[[BaseException], Kind]


def classifier(
    on: Iterable[type[BaseException]] | None = None,
    never: Iterable[type[BaseException]] = (),
    outages: Iterable[type[BaseException]] = (),
) -> Classify:
    """What the user says of a class, or of a class above it, goes before what is known here.

    ``on``: only these are retried, and outages. Of an ExceptionGroup the errors inside count: it is an outage when all
    of them are, and is not retried when one of them never is.
    """
    said: dict[type[BaseException], Kind] = {
        **dict.fromkeys(on or (), "retry"),
        **dict.fromkeys(never, "never"),
        **dict.fromkeys(outages, "outage"),
    }
    otherwise: Kind = "retry" if on is None else "never"

    def kind_of(error: BaseException) -> Kind:
        for cls in type(error).__mro__ if said else ():
            if cls in said:
                return said[cls]
        if inside := _inside(error):
            kinds = {kind_of(one) for one in inside}
            return next(kind for kind in _WORST if kind in kinds)
        return _known(error) or otherwise

    return kind_of


def signal_of(error: BaseException) -> FailureSignal | None:
    """What the handler said itself, also when a task group of its own has wrapped it alone."""
    while len(inside := _inside(error)) == 1:
        error = inside[0]
    return error if isinstance(error, FailureSignal) else None


def _inside(error: BaseException) -> tuple[BaseException, ...]:
    """What a group holds."""
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
