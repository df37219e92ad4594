"""Functions around a handler's call: one shape for all that sees records before the handler does."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any, cast

from eventbus.client.handling.functions import is_async, name_of, takes
from eventbus.errors import ConfigError

CallNext = Callable[[Any], Awaitable[Any]]
"""Awaits what is further in, with the record (or the list of records) it is given; returns the handler's result."""

Middleware = Callable[[Any, CallNext], Awaitable[Any]]
"""``async def middleware(record, call_next)``: what it returns is the handler's result to what is further out.

It gets the `ConsumerRecord` as it was read (a batch handler's gets the list); the payload is made from
``record.value`` innermost. An exception it lets through is the handler's; one it swallows is not. Without calling
``call_next`` the record counts as handled.
"""

EXAMPLE = "async def middleware(record, call_next): return await call_next(record)"


def composed(middleware: Iterable[Middleware], innermost: CallNext) -> CallNext:
    """Return a function that runs the middleware around ``innermost``, the first element outermost."""
    call = innermost
    for one in reversed(list(middleware)):
        call = _around(one, call)
    return call


def _around(one: Middleware, call_next: CallNext) -> CallNext:
    def call(record: Any) -> Awaitable[Any]:
        return one(record, call_next)

    return call


def watched(middleware: Iterable[Middleware], innermost: CallNext, on_dropped: Callable[[], None]) -> CallNext:
    """Compose middleware around a handler whose result is published; call ``on_dropped`` if it loses the result.

    Middleware that does not return the result of ``call_next`` returns None, and the outputs would be lost silently.
    """
    has_result: ContextVar[bool] = ContextVar("has_result", default=False)

    async def noted(record: Any) -> Any:
        result = await innermost(record)
        has_result.set(result is not None)
        return result

    chain = composed(middleware, noted)

    async def outermost(record: Any) -> Any:
        has_result.set(False)
        result = await chain(record)
        if result is None and has_result.get():
            on_dropped()
        return result

    return outermost


def check_middleware(given: Any, where: str) -> tuple[Middleware, ...]:
    """Raise ConfigError unless ``given`` is a sequence of async callables; ``where`` begins its text."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ConfigError(f"{where}: middleware={_named(given)}: a list, outermost first: middleware=[timing]")
    checked = tuple(cast("Sequence[Any]", given))
    for one in checked:
        if hasattr(one, "middleware"):
            raise ConfigError(
                f"{where}: middleware {one!r} goes around more than handlers: bus.include(...) it instead"
            )
        if not callable(one):
            raise ConfigError(f"{where}: middleware {one!r} is not a function: {EXAMPLE}")
        if inspect.isclass(one):
            raise ConfigError(
                f"{where}: middleware {one.__name__} is a class: pass an object of it, middleware=[{one.__name__}()]"
            )
        if not is_async(one):
            raise ConfigError(f"{where}: middleware {name_of(one)!r} is a plain function: {EXAMPLE}")
        if not takes(one, 2):
            raise ConfigError(f"{where}: middleware {name_of(one)!r} takes other arguments: {EXAMPLE}")
    return checked


def _named(given: Any) -> str:
    return name_of(given) if callable(given) else repr(given)
