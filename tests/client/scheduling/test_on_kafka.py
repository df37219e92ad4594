"""Scheduled records on Apache Kafka: once, by two instances, with an end and a new beginning between."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus, Firing
from eventbus.testing import RealKafka
from tests.kafka.urls import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka"), pytest.mark.timeout(180)]


async def test_records_and_functions_over_two_instances_and_a_restart(real: RealKafka) -> None:
    fired: list[int] = []
    got: list[int] = []
    came = anyio.Event()

    def service(name: str = "timely") -> EventBus:
        bus = EventBus(bus_url(real.bootstrap), service=name)
        bus.topic("timely.in", partitions=2)

        @bus.every("500ms")
        async def tick(firing: Firing) -> None:
            fired.append(firing.scheduled_ms)

        @bus.consumer("timely.in", group="timely")
        async def handle(number: int) -> None:
            nonlocal came
            got.append(number)
            came.set()
            came = anyio.Event()

        return bus

    async def until(count: int) -> None:
        with anyio.fail_after(60):
            while len(got) < count:
                await came.wait()

    async with service() as one:
        async with service() as two:
            for number in range(10):
                await (one if number % 2 else two).send("timely.in", number, delay=number / 10)
            await until(10)
            later = await one.send("timely.in", 99, delay=3600)
            assert await two.cancel_scheduled(later) is True
            async with one.transaction("timely-tx") as tx:
                await tx.send("timely.in", 10, delay=0)
            await until(11)
            with anyio.fail_after(30):
                await two.drain()  # though a function fires faster than a Kafka says that a topic has ended
        await one.send("timely.in", 11, delay=1)
    async with service():
        await until(12)
    assert sorted(got) == [*range(12)]
    assert fired and len(set(fired)) == len(fired), "each time fires once"
