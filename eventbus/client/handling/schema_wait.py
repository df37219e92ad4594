"""A partition waits until the schemas of its next fetch are here: decoding itself never waits for a registry."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import anyio
import anyio.to_thread

from eventbus.backends.clock import Timers
from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.invocation import Invoker
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.waits import tried
from eventbus.types import FetchedRecords
from serdes import SchemaRegistryError
from serdes.base import SchemaNeeded, SchemaSerde

logger = logging.getLogger("eventbus.runner")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0
_THREADS = 4
"""Threads of a separate limiter, so that waits for a registry that hangs do not use up the program's threads."""


class SchemaWait:
    """The waits of one handler for schemas. A registry that is unreachable or denies access is requested again."""

    def __init__(self, handler: Handler[..., object], serde: SchemaSerde, calls: Invoker, timers: Timers) -> None:
        self._handler = handler
        self._serde = serde
        self._calls = calls
        self._timers = timers
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._unreachable = False
        """It has been said."""

    async def is_over(self, driver: PartitionDriver) -> bool:
        """Return when the schemas of the next fetch are here, if they exist. False: look at the partition first."""
        chunk = driver.chunks[0]
        values: Sequence[bytes | None] = self._calls.values(chunk)
        given_up: set[str] = set()
        pause = _FIRST_PAUSE_SECONDS
        while (needed := self._serde.needed(chunk.topic, values)) is not None and str(needed) not in given_up:
            problem = await self._asked(needed, driver, chunk)
            if not _is_current(driver, chunk):
                driver.wait = None
                return False
            if problem is None:
                self._unreachable = False
                driver.wait = None
            elif isinstance(problem, SchemaRegistryError) and problem.is_final:
                given_up.add(str(needed))  # decoding raises the error for each record that needs it
            else:
                self._say(driver, needed, problem)
                reason = f"{needed}: {type(problem).__name__}: {problem}"
                driver.wait = tried(driver.wait, reason, self._timers.current_time())
                driver.wake.clear()
                with self._timers.move_on_after(pause):
                    await driver.wake.wait()
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
                if not _is_current(driver, chunk):
                    driver.wait = None
                    return False
        driver.wait = None
        return True

    async def _asked(self, needed: SchemaNeeded, driver: PartitionDriver, chunk: FetchedRecords) -> Exception | None:
        """Request a schema, and return the error, if any. A partition that is revoked does not wait for the answer."""
        problem: Exception | None = None

        async def ask() -> None:
            nonlocal problem
            try:
                await anyio.to_thread.run_sync(needed.fetch, abandon_on_cancel=True, limiter=self._threads)
            except Exception as error:  # a client of the user's may raise anything
                problem = error
            tasks.cancel_scope.cancel()

        async with ContainedTasks() as tasks:
            tasks.start_soon(ask)
            while _is_current(driver, chunk):
                driver.wake.clear()
                await driver.wake.wait()
            tasks.cancel_scope.cancel()
        return problem

    def _say(self, driver: PartitionDriver, needed: SchemaNeeded, error: Exception) -> None:
        if not self._unreachable:  # once for each outage
            logger.warning(
                "handler %r: %s waits for a schema, and the registry is asked again: %s: %s",
                self._handler.__name__, driver.topic_partition, needed, error,
            )  # fmt: skip
        self._unreachable = True


def _is_current(driver: PartitionDriver, chunk: FetchedRecords) -> bool:
    """Is there nothing else to do for the partition than to handle this fetch?"""
    return not driver.closing and driver.error is None and bool(driver.chunks) and driver.chunks[0] is chunk
