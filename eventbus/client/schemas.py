"""Fetch schemas from a registry in worker threads, so that the event loop does not wait for it."""

from __future__ import annotations

from collections.abc import Callable

import anyio.to_thread

from eventbus.backends.clock import RealTimers
from eventbus.errors import SchemaNotReady, SchemaUnavailable, SerializationError
from serdes import SchemaRegistryError
from serdes.base import SchemaNeeded

_LONGEST_SECONDS = 5.0
"""How long a record may wait for a registry that does not answer."""


async def fetched(needed: SchemaNeeded | SchemaNotReady) -> None:
    """Fetch a schema. Raises SchemaUnavailable within five seconds, SerializationError if the registry refuses it."""
    problem = await _asked(needed)
    if isinstance(problem, SchemaRegistryError) and problem.is_retriable:
        raise SchemaUnavailable(f"{needed}: {problem}") from problem
    if problem is not None:
        raise SerializationError(f"{needed}: {problem}") from problem


async def _asked(needed: SchemaNeeded | SchemaNotReady) -> Exception | None:
    """Fetch the schema in a thread. Return the error, or None. Raises SchemaUnavailable without an answer."""
    problem: Exception | None = None
    # real time, because threads do not follow a test's clock
    with RealTimers().move_on_after(_LONGEST_SECONDS) as scope:
        problem = await anyio.to_thread.run_sync(_problem_of, needed.fetch, abandon_on_cancel=True)
    if scope.cancelled_caught:
        raise SchemaUnavailable(f"{needed}: the registry did not answer within {_LONGEST_SECONDS:g} s")
    return problem


def _problem_of(fetch: Callable[[], None]) -> Exception | None:
    try:
        fetch()
    except Exception as error:  # a client of the user's may raise anything
        return error
    return None


async def all_fetched(needed: Callable[[], SchemaNeeded | None]) -> None:
    """Fetch schemas until ``needed`` returns None. Decoding reports those that the registry does not have.

    All other errors raise SchemaUnavailable, because a record with its own error would be skipped.
    """
    missing: set[str] = set()
    while (one := needed()) is not None and str(one) not in missing:
        problem = await _asked(one)
        if isinstance(problem, SchemaRegistryError) and problem.is_final:
            missing.add(str(one))
        elif problem is not None:
            raise SchemaUnavailable(f"{one}: {problem}") from problem
