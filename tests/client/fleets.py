"""Several services of a group on one log, and buses that run in separate tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.testing import FakeClock
from tests.client.trials import LOGS


async def committed(bus: EventBus, group: str = "g") -> dict[TopicPartition, int]:
    return {partition: at.offset for partition, at in (await bus.admin.group_offsets(group)).items()}


class Life:
    """A bus in a separate task, so that a test can watch it end."""

    def __init__(self, bus: EventBus) -> None:
        self.bus = bus
        self.scope = anyio.CancelScope()
        self.running, self.stop, self.ended = anyio.Event(), anyio.Event(), anyio.Event()

    async def live(self) -> None:
        try:
            with self.scope:
                async with self.bus:
                    self.running.set()
                    await self.stop.wait()
        finally:
            self.ended.set()


@asynccontextmanager
async def life(bus: EventBus) -> AsyncIterator[Life]:
    async with anyio.create_task_group() as tasks:
        one = Life(bus)
        tasks.start_soon(one.live)
        await one.running.wait()
        yield one
        one.stop.set()


class Fleet:
    """Several services of a group on one log."""

    def __init__(self, keeper: EventBus, clock: FakeClock) -> None:
        self.keeper = keeper
        self.clock = clock
        self.handled: list[tuple[str, int, int]] = []
        """Handled records: service, partition, offset."""

    def service(self, name: str, **options: Any) -> EventBus:
        bus = EventBus(self.keeper.url, clock=self.clock, client_id=name)

        @bus.consumer("t", group="g", **options)
        async def handle(value: bytes, record: ConsumerRecord) -> None:
            await anyio.lowlevel.checkpoint()
            self.handled.append((name, record.partition, record.offset))

        return bus

    async def send(self, count: int, partition: int = 0) -> None:
        for number in range(count):
            await self.keeper.send("t", b"%d" % number, partition=partition)

    def offsets(self, partition: int = 0) -> list[int]:
        return [offset for _, where, offset in self.handled if where == partition]


@asynccontextmanager
async def fleet(partitions: int = 1) -> AsyncIterator[Fleet]:
    clock = FakeClock()
    async with EventBus(f"memory://known-{next(LOGS)}", clock=clock) as keeper:
        await keeper.admin.create_topic("t", partitions)
        yield Fleet(keeper, clock)
