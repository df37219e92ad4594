"""A log in memory that outlives the buses that open it: one that is stopped and started again finds its records."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from eventbus.backends.base import ProducerConfig
from eventbus.backends.clock import timers_of
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.embedded_producer import EmbeddedProducer
from eventbus.backends.engine import Engine
from eventbus.backends.urls import broker_config, new_id
from eventbus.broker import Broker
from eventbus.log.memory import MemoryStorage
from eventbus.testing.clock import FakeClock
from eventbus.testing.faulty import FaultyBackend

_URL = "memory://"
_SETTINGS = {
    "auto_create_topics": True,
    # Nobody in another process reads along: without this the clock would stop here once a second.
    "checkpoint_interval_ms": 3_600_000,
}


class MemoryLog:
    """The storage, the one engine on it, and the backend a bus under test gets. ``config``: the log's own settings."""

    def __init__(self, clock: FakeClock, config: Mapping[str, Any]) -> None:
        self.clock = clock
        self.backend = FaultyBackend(_Unhurried(_URL, self._open, timers_of(clock)))
        self._settings = broker_config({**_SETTINGS, **config})
        self._storage = MemoryStorage()
        self._engine: Engine | None = None

    def _open(self) -> Engine:
        engine = self._engine = Engine(_URL, self._storage, self._settings, self.clock, new_id)
        return engine

    @contextmanager
    def broker(self) -> Generator[Broker]:
        """What the log holds, to look into; also while no bus has it open."""
        if self._engine is not None and self._engine.is_open:
            yield self._engine.broker
            return
        now_ms = self.clock()
        broker = Broker.open(self._storage, self._settings, now_ms=now_ms, new_id=new_id)
        try:
            yield broker
        finally:
            broker.close(now_ms)


class _Unhurried(EmbeddedBackend):
    """Batches leave at once: ``linger_ms`` would have every awaited send wait for a clock that stands still."""

    def producer(self, config: ProducerConfig) -> EmbeddedProducer:
        return super().producer(msgspec.structs.replace(config, linger_ms=0))
