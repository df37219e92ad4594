"""Wait for a condition or for other tasks, read a topic, and choose how long to search for a counterexample."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import settings

from eventbus import ConsumerRecord, EventBus
from eventbus.testing.clock import FakeClock

PATIENCE_SECONDS = 60
"""How long a test waits for something that must happen: far longer than it takes on a loaded machine."""


async def until(
    condition: Callable[[], object | Awaitable[object]],
    what: str = "",
    *,
    poll_seconds: float = 0,
    patience_seconds: float = PATIENCE_SECONDS,
) -> None:
    """Return when ``condition`` is true.

    Without ``poll_seconds`` the condition is checked at every turn of the event loop: for conditions that tasks of
    this loop bring about. Give ``poll_seconds`` for those that depend on a thread, a process or a server.

    Raises:
        TimeoutError: the condition stayed false for ``patience_seconds`` of real time; ``what`` is in the message.
    """
    try:
        with anyio.fail_after(patience_seconds):
            while not await _value(condition):
                if poll_seconds:
                    await anyio.sleep(poll_seconds)
                else:
                    await anyio.lowlevel.checkpoint()
    except TimeoutError:
        waited_for = what or inspect.getsource(condition).strip()
        raise TimeoutError(f"Not true within {patience_seconds} s: {waited_for}") from None


async def others_wait() -> None:
    """Return when every other task of this event loop waits for something.

    As `anyio.wait_all_tasks_blocked`, which sleeps for 0.1 s on asyncio when it has to look twice.
    """
    await FakeClock().settle()


async def records_of(bus: EventBus, *topics: str, **options: Any) -> list[ConsumerRecord]:
    """Return the records that a new reader of topics, or of ``partitions=``, sees up to their ends."""
    async with bus.new_consumer(*topics, start="earliest", **options) as consumer:
        return [record async for record in consumer.until_end()]


async def values_of(bus: EventBus, *topics: str, **options: Any) -> list[Any]:
    return [record.value for record in await records_of(bus, *topics, **options)]


@contextmanager
def naming(what: object) -> Iterator[None]:
    """Name ``what`` in an error: a row of a table that one test loops over, a seed."""
    try:
        yield
    except Exception as error:
        error.add_note(f"at {what}")
        raise


def examples(few: int, many: int) -> int:
    """Return how many examples a property is tried with: ``many`` in `make test-full`, whose profile is random."""
    return few if settings().derandomize else many


async def _value(condition: Callable[[], object | Awaitable[object]]) -> object:
    value = condition()
    return await value if inspect.isawaitable(value) else value
