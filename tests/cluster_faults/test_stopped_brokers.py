"""Handlers that publish while one of three brokers stands still: their outputs are acknowledged out of order."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.testing.real_kafka import KafkaNode
from tests.cluster_faults.cluster import Cluster
from tests.cluster_faults.load import PATIENCE_SECONDS

BURST = 200
STOPPED_SECONDS = 1.5
PARTITIONS = 6
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(500)]


async def stand_still(node: KafkaNode) -> None:
    node.pause()
    try:
        await anyio.sleep(STOPPED_SECONDS)
    finally:
        node.resume()


def _backwards(value: bytes) -> bytes:
    return value[::-1]


@pytest.mark.parametrize("stops", [1, pytest.param(20, marks=pytest.mark.slow)])
async def test_a_chain_of_producing_handlers_goes_on_when_a_broker_stands_still(parted: Cluster, stops: int) -> None:
    """The event loop ended in a wait for an output that was acknowledged already, and never ran again."""
    topics = [f"still-{stops}-{step}" for step in ("in", "between", "out")]
    bus, sent = EventBus(parted.url), list[bytes]()
    # By turns: outputs of one partition go to several, else their acknowledgements would come in order.
    for source, target, key in zip(topics, topics[1:], (_backwards, bytes), strict=False):

        @bus.consumer(source, group=source, start="earliest")
        @bus.producer(target, key=key)
        async def copy(value: bytes) -> bytes:
            return value

        assert copy is not None

    async with EventBus(parted.url) as elsewhere:
        for topic in topics:
            # Without replicas: else every acknowledgement would wait for the broker that stands still.
            await elsewhere.admin.create_topic(topic, PARTITIONS, 1, configs={"min.insync.replicas": "1"})
    async with bus:
        await bus.drain()  # the groups have formed: bursts are handled as they come
        for stop in range(stops):
            burst = [b"%d/%d" % (stop, number) for number in range(BURST)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stand_still, parted.kafka.node(1 + stop % 3))
                with anyio.fail_after(PATIENCE_SECONDS):
                    await bus.send_many(topics[0], burst, key=lambda value: value)
            sent += burst
        with anyio.fail_after(PATIENCE_SECONDS):
            await bus.drain()
        for topic in topics:
            async with bus.new_consumer(topic) as consumer:
                found = {record.value async for record in consumer.until_end()}
            assert found == set(sent)
        for group in topics[:2]:
            partitions = [TopicPartition(group, number) for number in range(PARTITIONS)]
            ends = await bus.admin.list_offsets(dict.fromkeys(partitions, -1))
            committed = await bus.admin.group_offsets(group)
            assert {at: one.offset for at, one in committed.items()} == {at: end.offset for at, end in ends.items()}
