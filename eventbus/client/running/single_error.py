"""One error out of a task group: what was raised in the first place."""

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
    """A task group raises its tasks' errors as a group; callers expect what was raised in the first place."""

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
            if error.__context__ is None:  # raising makes the group its context, in place of what went wrong before it
                error.__context__ = nested[0].__context__
            raise nested[0]


def passing_on(leave: Exit) -> Exit:
    """The same, but an error that it was given and raises again goes on by itself, as `contextlib` has it.

    An AsyncExitStack takes what an exit raises for another error, and makes the one before it its context: the same
    error would become its own, and whoever walks its contexts (anyio does, for a cancelled task) never comes to an end.
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
