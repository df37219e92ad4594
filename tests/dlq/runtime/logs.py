"""Four logs on which the promises are checked: in memory, in files, served, and Apache Kafka."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio

from eventbus import ConsumerRecord, EventBus
from eventbus.backends.clock import system_clock
from eventbus.testing import FakeClock

_runs = itertools.count()
_LONGEST_SECONDS = 30


class Log:
    """A log and its clock. The names made here are unique."""

    def __init__(self, url: str, *, clock: FakeClock | None, keep: bool = False) -> None:
        self._url = url
        self._clock = clock
        self._keep = keep
        """Keep a bus open, because the log vanishes with its last bus."""
        self.has_threads = url.startswith("file:")
        """Part of the work is done in threads, which the fake clock does not wait for."""
        self._run = f"{os.getpid()}-{next(_runs)}"
        self.topic = self.name("orders")
        self.group = self.name("billing")
        self.retry_topic = f"retry.{self.group}"
        self.dead_letter_topic = f"dlq.{self.group}"

    def name(self, of: str) -> str:
        return f"{of}-{self._run}"

    def bus(self, *, partitions: int = 1, **options: Any) -> EventBus:
        if self._clock is not None:
            options["clock"] = self._clock
        bus = EventBus(self._url, **options)
        bus.topic(self.topic, partitions=partitions)
        return bus

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        if not self._keep:
            yield
            return
        async with EventBus(self._url, clock=self._clock or system_clock):
            yield

    # time ------------------------------------------------------------------------------------------------------------

    @property
    def stands_still(self) -> bool:
        """True if time passes only while nothing else is to do."""
        return self._clock is not None

    def delay_ms(self, number: int) -> int:
        """Return a delay in milliseconds, longer with a fake clock."""
        return number * (2_000 if self._clock is not None else 100)

    def delay(self, number: int) -> float:
        """Return a delay in seconds."""
        return self.delay_ms(number) / 1000

    def now_ms(self) -> int:
        return (system_clock if self._clock is None else self._clock)()

    async def sleep_ms(self, ms: int) -> None:
        """Sleep, for use in a handler."""
        await (anyio.sleep(ms / 1000) if self._clock is None else self._clock.sleep(ms / 1000))

    async def until(self, condition: Callable[[], object]) -> None:
        """Let time pass until the condition holds."""
        await self._passes(condition, _LONGEST_SECONDS)

    async def passes(self, seconds: float) -> None:
        end_ms = self.now_ms() + seconds * 1000
        await self._passes(lambda: self.now_ms() >= end_ms, _LONGEST_SECONDS + seconds)

    async def _passes(self, condition: Callable[[], object], longest_seconds: float) -> None:
        if self._clock is None:
            with anyio.fail_after(longest_seconds):
                while not condition():  # noqa: ASYNC110 - conditions of all kinds, and brokers know real time alone
                    await anyio.sleep(0.01)
            return
        with anyio.fail_after(longest_seconds):
            await self._clock.settle()
            while not condition():
                if self.has_threads:
                    await anyio.sleep(0.001)  # gives the threads time
                await self._clock.advance(ms=100)

    async def drain(self, bus: EventBus) -> None:
        """`EventBus.drain`, while time passes."""
        done = False

        async def drain() -> None:
            nonlocal done
            await bus.drain()
            done = True

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(drain)
            await self.until(lambda: done)

    # what is in it ---------------------------------------------------------------------------------------------------

    async def read(self, bus: EventBus, topic: str) -> list[ConsumerRecord]:
        """Return the committed records, by partition and offset."""
        async with bus.new_consumer(topic) as reader:
            found = [record async for record in reader.until_end()]
        return sorted(found, key=lambda record: (record.partition, record.offset))

    async def values(self, bus: EventBus, topic: str) -> list[bytes | None]:
        return [record.value for record in await self.read(bus, topic)]

    async def send(
        self,
        bus: EventBus,
        values: str | Sequence[str],
        *,
        key: bytes | Literal[True] | None = True,
        partition: int | None = None,
    ) -> None:
        """Send values, each with its first letter as the key unless a key is given."""
        for value in values.split() if isinstance(values, str) else values:
            found = value[0].encode() if key is True else key
            await bus.send(self.topic, value.encode(), key=found, partition=partition)
