"""One error out of a task group: what was raised in the first place."""

from __future__ import annotations

import logging
from types import TracebackType

from eventbus.errors import HandlerError

logger = logging.getLogger("eventbus")


class SingleError:
    """A task group raises its tasks' errors as a group; callers expect what was raised in the first place."""

    async def __aenter__(self) -> None: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        nested: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        leaves = [leaf for one in nested for leaf in _leaves(one)]
        handlers = [leaf for leaf in leaves if isinstance(leaf, HandlerError)]
        if handlers and len(handlers) == len(leaves):
            for other in handlers[1:]:
                logger.error("%s", other)
            raise handlers[0]
        if len(nested) == 1:
            raise nested[0]


def _leaves(error: BaseException) -> list[BaseException]:
    """What is inside groups of groups."""
    nested: tuple[BaseException, ...] = getattr(error, "exceptions", ())
    return [leaf for one in nested for leaf in _leaves(one)] if nested else [error]
