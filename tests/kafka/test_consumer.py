"""What is particular to the consumer of kafka://."""

from __future__ import annotations

import math

import anyio.lowlevel

from eventbus import EventBus
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.kafka.backend import open_kafka
from tests.kafka.targets import QUICK, Node, bus_url


async def test_an_owner_that_is_busy_is_not_given_more(served: Node) -> None:
    """Polls that only keep its place in the group must not fill its memory."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        topic = f"busy-{id(bus)}"
        await bus.admin.create_topic(topic)
        await bus.send_many(topic, [b"x"] * 5_000)
    backend = open_kafka("kafka://", served.bootstrap, QUICK, system_clock)
    await backend.start()
    consumer = backend.consumer(ConsumerConfig(group=topic))
    try:
        await consumer.subscribe([topic])
        while sum(map(len, await consumer.fetch(1_000))) < 2:
            pass  # librdkafka is about to have fetched the rest
        given: list[int] = []
        for _ in range(5):
            while not consumer.polled():  # the poll before has not ended
                await anyio.lowlevel.checkpoint()
                consumer._polled_at = -math.inf  # pyright: ignore[reportPrivateUsage]  as if it had been busy for long
            given.append(sum(map(len, await consumer.fetch(0))))
        assert sum(given[1:]) <= 10, given  # the first may still bring what was on its way
        while sum(map(len, await consumer.fetch(1_000))) < 2:
            pass
    finally:
        await consumer.aclose()
        await backend.aclose()
