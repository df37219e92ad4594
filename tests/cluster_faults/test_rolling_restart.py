"""All brokers are restarted, one after the other, as an operator does it for an update."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.errors import EventBusError
from eventbus.testing import RealKafka
from tests.cluster_faults.load import PARTITIONS, PATIENCE_SECONDS, Load, load, until

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(900)]
REPLICAS, ROUNDS = 3, 2
FAILS_EVERY = 100


class Retrying:
    """Handlers of the records of `Load`: one fails with each hundredth at first, one only counts what it gets."""

    def __init__(self, bus: EventBus, source: str) -> None:
        self.bus = bus
        self.source = source
        self.target = f"{source}-retried"
        self.calls: Counter[bytes] = Counter()
        self.handled: Counter[bytes] = Counter()

        @bus.consumer(
            source, group=f"{source}-retrying", start="earliest", exactly_once=True, transaction_timeout_ms=10_000,
            retry=Retry(immediate=0, delays=["100ms"], jitter=False),
        )  # fmt: skip
        @bus.producer(self.target)
        async def retry(value: bytes) -> bytes:
            self.calls[value] += 1
            if self.calls[value] == 1 and int(value.partition(b"/")[2]) % FAILS_EVERY == 0:
                raise ValueError("not at the first time")
            return value

        @bus.consumer(source, group=f"{source}-counting", start="earliest")
        async def count(value: bytes) -> None:
            self.handled[value] += 1

    async def check(self) -> None:
        """Raises AssertionError for records that are lost, or whose results are not there exactly once."""
        with anyio.fail_after(PATIENCE_SECONDS):
            await self.bus.drain()
        sent, results = [Counter(await self._read(topic)) for topic in (self.source, self.target)]
        assert results == sent, f"lost {sent - results}, doubled {results - sent}"
        assert self.handled.keys() == sent.keys()
        retried = [value for value, calls in self.calls.items() if calls > 1]
        assert len(retried) >= len(sent) // FAILS_EVERY > 0

    async def _read(self, topic: str) -> list[bytes]:
        async with self.bus.new_consumer(topic) as consumer:
            return [record.value async for record in consumer.until_end()]


@asynccontextmanager
async def retrying(url: str, work: Load) -> AsyncGenerator[None]:
    bus = EventBus(url)
    retrying = Retrying(bus, work.source)
    async with EventBus(url) as admin:
        await admin.admin.create_topic(retrying.target, PARTITIONS)
    async with bus:
        yield
        await work.stop()
        await retrying.check()


async def are_in_sync(bus: EventBus) -> bool:
    """True if each partition has all its replicas: the next broker may be restarted."""
    try:
        described = await bus.admin.describe_topics()
    except EventBusError:
        return False
    return all(len(partition.isr) == REPLICAS for topic in described for partition in topic.partitions)


async def test_a_rolling_restart_loses_and_doubles_nothing(patient_cluster: RealKafka) -> None:
    """Plain producers and exactly-once, retrying and counting handlers work meanwhile, and none of them ends."""
    url = patient_cluster.url
    async with EventBus(url) as operator, load(url, "rolling") as work, retrying(url, work):
        for _ in range(ROUNDS):
            for node in patient_cluster.nodes:
                await until(lambda: are_in_sync(operator))
                await anyio.to_thread.run_sync(node.stop)
                await work.goes_on()
                await anyio.to_thread.run_sync(node.start)
        await until(lambda: are_in_sync(operator))
        await work.goes_on()
