"""A log that fails where tests say, and helpers that read its retries and dead letters."""

from __future__ import annotations

from typing import Any

from dlq import Retry
from dlq.letters import DeadLetter, dead_letter
from eventbus import ConsumerRecord, EventBus
from eventbus.backends.urls import open_backend
from eventbus.errors import KafkaError
from eventbus.testing import FakeClock
from eventbus.testing.faulty import Call, FaultyBackend, Hook
from tests.dlq.runtime.logs import Log

DELAYS = (10, 60)
"""Delays in seconds of the fake clock."""


def retry(**options: Any) -> Retry:
    return Retry(**{"immediate": 0, "delays": DELAYS, "jitter": False, **options})


async def settle(log: Log, bus: EventBus) -> None:
    """Let time pass until each sent record has been handled or is dead."""
    await log.drain(bus)
    for delay in DELAYS:
        await log.passes(delay + 1)
    await log.drain(bus)


async def letters(log: Log, bus: EventBus, topic: str = "") -> list[DeadLetter]:
    return [dead_letter(record) for record in await log.read(bus, topic or log.dead_letter_topic)]


async def entries(log: Log, bus: EventBus) -> list[ConsumerRecord]:
    """Return all records of the retry topic except marks."""
    return [record for record in await log.read(bus, log.retry_topic) if "eb-retry-root" in dict(record.headers)]


class Breaking(Log):
    """A log that calls ``hooks``, which may raise."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        super().__init__(url, clock=clock, keep=True)
        self.clock = clock
        self.hooks: list[Hook] = []

    def bus(self, *, partitions: int = 1, **options: Any) -> EventBus:
        backend = FaultyBackend(open_backend(self._url, {}, self.clock))
        backend.hooks = self.hooks
        return super().bus(partitions=partitions, backend=backend, **options)

    def refuse(self, topic: str, error: KafkaError) -> None:
        """Let sends to ``topic`` fail with this error until ``hooks`` are cleared."""

        def hook(call: Call) -> None:
            if call.step == "send" and call.when == "before" and call.topic == topic:
                raise error

        self.hooks.append(hook)
