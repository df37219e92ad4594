"""A broker is cut off from the others: what was acknowledged stays, and work goes on with the other two."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.types import IsolationLevel
from tests.cluster_faults.cluster import Cluster
from tests.cluster_faults.load import load, until

RETURN_SECONDS = 60
pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(500)]


async def leader_of(bus: EventBus, topic: str, partition: int = 0) -> int:
    (found,) = await bus.admin.describe_topics([topic])
    return found.partitions[partition].leader


async def has_moved(bus: EventBus, topic: str, leader: int) -> bool:
    return await leader_of(bus, topic) not in (-1, leader)


async def is_in_sync(bus: EventBus, topic: str) -> bool:
    (found,) = await bus.admin.describe_topics([topic])
    return all(len(one.isr) == 3 for one in found.partitions)


@pytest.mark.slow  # 40 s; the next one cuts a leader off too, and keeps its clients
async def test_a_broker_that_is_cut_off_from_everybody(parted: Cluster) -> None:
    """The leader of a partition, and whatever else it was: coordinator, controller."""
    async with load(parted.url, "cut-off") as work:
        leader = await leader_of(work.bus, work.source)
        parted.network.cut_off(leader, clients_too=True)
        await work.goes_on()
        await until(lambda: has_moved(work.bus, work.source, leader))
        parted.network.heal()
        await work.goes_on()
        await until(lambda: is_in_sync(work.bus, work.source))


@pytest.mark.slow
async def test_every_broker_is_cut_off_from_everybody(parted: Cluster) -> None:
    async with load(parted.url, "each-cut-off") as work:
        for node in (1, 2, 3) * 2:
            parted.network.cut_off(node, clients_too=True)
            await work.goes_on()
            parted.network.heal()
            await work.goes_on()
            await until(lambda: is_in_sync(work.bus, work.source))


async def test_a_leader_that_only_its_clients_still_reach(parted: Cluster) -> None:
    """It takes itself for the leader and acknowledges nothing, while the others have chosen another one.

    librdkafka keeps asking the broker it last spoke with, so what this client sends waits; nothing is lost or doubled.
    """
    async with EventBus(parted.url) as bus, EventBus(parted.url) as elsewhere:
        topic = "stale-leader"
        await bus.admin.create_topic(topic)
        sent = [bus.send_nowait(topic, b"here %d" % number) for number in range(20)]
        await bus.flush()
        leader = await leader_of(bus, topic)
        parted.network.cut_off(leader, clients_too=False)
        sent += [bus.send_nowait(topic, b"here %d" % number) for number in range(20, 40)]
        await until(lambda: has_moved(elsewhere, topic, leader))
        parted.network.heal()
        with anyio.fail_after(RETURN_SECONDS):
            await bus.flush()
        offsets = [(await delivery).offset for delivery in sent]
        assert offsets == sorted(set(offsets))
        async with bus.new_consumer(topic, isolation_level=IsolationLevel.READ_UNCOMMITTED) as consumer:
            found = {record.offset: record.value async for record in consumer.until_end()}
        assert found == {offset: b"here %d" % number for number, offset in enumerate(offsets)}
        await until(lambda: is_in_sync(bus, topic))


async def test_a_leader_is_killed(parted: Cluster) -> None:
    """Senders go on with the next leader; what a service has in hand is done once.

    tests/failover kills sixty leaders, which come back.
    """
    async with load(parted.url, "killed") as work:
        await anyio.to_thread.run_sync(parted.kafka.node(await leader_of(work.bus, work.source)).kill)
        await work.goes_on()
