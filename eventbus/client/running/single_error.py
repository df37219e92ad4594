"""Raise a single error instead of a task group's ExceptionGroup."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from types import TracebackType

from eventbus.backends.process_exit import ProcessExit, ends_process
from eventbus.errors import HandlerError

Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Awaitable[bool | None]]
"""The ``__aexit__`` of a context manager."""

logger = logging.getLogger("eventbus")


class SingleError:
    """Unwraps the ExceptionGroup of a task group, because callers expect the original error."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        nested: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        leaves = [leaf for one in nested for leaf in _leaves(one)]
        exits = [leaf for leaf in leaves or [error] if leaf is not None and ends_process(leaf)]
        for leaf in exits:
            if isinstance(leaf, ProcessExit):
                leaf.cause.add_note(str(leaf))
                raise leaf.cause
        if exits and exits[0] is not error:
            raise exits[0]
        handlers = [leaf for leaf in leaves if isinstance(leaf, HandlerError)]
        if handlers and len(handlers) == len(leaves):
            for other in handlers[1:]:
                logger.error("%s", other)
            raise handlers[0]
        if error is not None and len(nested) == 1:
            if error.__context__ is None:  # raising makes the group its context, replacing the error that came before
                error.__context__ = nested[0].__context__
            raise nested[0]


def passing_on(leave: Exit) -> Exit:
    """Wrap an ``__aexit__``: if it raises the error it was given, return False instead, as `contextlib` does.

    An AsyncExitStack treats what an exit raises as a new error, and makes the previous one its context. The error would
    become its own context, and code that walks the contexts (as anyio does for a cancelled task) would never end.
    """

    async def leave_once(
        kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        try:
            return await leave(kind, error, traceback)
        except BaseException as raised:
            if raised is not error:
                raise
            return False

    return leave_once


def _leaves(error: BaseException) -> list[BaseException]:
    """Return the errors inside nested exception groups."""
    nested: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return [leaf for one in nested for leaf in _leaves(one)] if nested else [error]
