"""A log in memory that outlives the buses that open it: a bus that is stopped and started again finds its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.clock import timers_of
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.embedded_consumer import EmbeddedConsumer
from eventbus.backends.embedded_producer import EmbeddedProducer
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id
from eventbus.broker import Broker
from eventbus.log.memory import MemoryStorage
from eventbus.testing.clock import FakeClock
from eventbus.testing.faulty import FaultyBackend

logger = logging.getLogger("eventbus.testing")

_URL = "memory://"
_SETTINGS = {
    # The bus's own settings take precedence. With the defaults, the clock would stop once a second, for readers in
    # other processes, and every 15 seconds, for compaction.
    "checkpoint_interval_ms": 3_600_000,
    "log_cleaner_backoff_ms": 60_000,
}
_LONG_POLL_MS = 10_000
_STALL_SECONDS = 5
"""The real time without any progress after which a warning is logged."""
_LEAVE_SECONDS = 1
"""The real time that a closing bus may take before the clock is advanced for it."""


class MemoryLog:
    """The storage, its single engine, and the backend of a bus under test. ``config``: the log's own settings."""

    def __init__(self, clock: FakeClock, config: Mapping[str, Any]) -> None:
        self.clock = clock
        self._inner = _UnderTest(_URL, self._open, clock)
        self.backend = FaultyBackend(self._inner)
        self._settings = broker_config({**_SETTINGS, **config})
        self._storage = MemoryStorage()
        self._engine: Engine | None = None

    def _open(self) -> Engine:
        engine = self._engine = Engine(_URL, self._storage, self._settings, self.clock, new_id)
        return engine

    def closing(self) -> None:
        """Mark the bus as closing: the test has made its last `advance`, and waits for the clock would never end."""
        self._inner.closing.set()

    @contextmanager
    def broker(self) -> Generator[Broker]:
        """Yield the broker for inspection, also while no bus has it open."""
        if self._engine is not None and self._engine.is_open:
            yield self._engine.broker
            return
        now_ms = self.clock()
        broker = Broker.open(self._storage, self._settings, now_ms=now_ms, new_id=new_id)
        try:
            yield broker
        finally:
            broker.close(now_ms)


class _UnderTest(EmbeddedBackend):
    """The backend of a clock that does not move by itself."""

    def __init__(self, url: str, engine_of: Callable[[], Engine], clock: FakeClock) -> None:
        super().__init__(url, engine_of, timers_of(clock))
        self._clock = clock
        self.closing = anyio.Event()

    async def start(self, *, clients_may_return: bool = False) -> None:
        self.closing = anyio.Event()
        await super().start(clients_may_return=clients_may_return)

    async def run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._warn_if_stuck)
            tasks.start_soon(self._let_time_pass_at_the_end)
            await super().run()

    def producer(self, config: ProducerConfig) -> EmbeddedProducer:
        """Return a producer without ``linger_ms``, which would make awaited sends wait until the clock is advanced."""
        return super().producer(msgspec.structs.replace(config, linger_ms=0))

    def consumer(self, config: ConsumerConfig) -> EmbeddedConsumer:
        """Return a consumer whose empty polls repeat every ten seconds, so that the clock stops less often."""
        if config.fetch_min_bytes <= 1:
            config = msgspec.structs.replace(config, fetch_max_wait_ms=max(config.fetch_max_wait_ms, _LONG_POLL_MS))
        return super().consumer(config)

    async def _warn_if_stuck(self) -> None:
        """Log a warning for a test that waits for something that takes time, without letting time pass."""
        clock = self._clock
        moved = -1
        while moved != clock.moved:
            moved = clock.moved
            await anyio.sleep(_STALL_SECONDS)
        logger.warning(
            "nothing has moved for %d s: %r stands still, and what takes time (a poll of nothing, a sleep of a "
            "handler, the wait of a record that meets an outage) ends in `await clock.advance(...)` alone",
            _STALL_SECONDS, clock,
        )  # fmt: skip

    async def _let_time_pass_at_the_end(self) -> None:
        """Let time pass, so that a handler that sleeps or hangs is cancelled at ``drain_timeout_ms``, as in
        production."""
        await self.closing.wait()
        await anyio.sleep(_LEAVE_SECONDS)  # most need no time at all; plain functions need some real time
        while await self._clock.advance_to_next():
            pass
