"""A partition whose only replica is down has no leader: it waits, and nothing else does."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.broker import TopicSpec
from tests.cluster_faults.cluster import Cluster
from tests.cluster_faults.load import PATIENCE_SECONDS, until
from tests.kafka.urls import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(500)]


async def is_ok(bus: EventBus) -> bool:
    return (await bus.health()).status == "ok"


async def test_a_partition_without_a_leader_stops_nothing_else(parted: Cluster) -> None:
    """A service that started meanwhile raised HandlerError: 'No leaders found' had no translation."""
    node = parted.kafka.node(3)
    handled: list[bytes] = []
    bus = EventBus(bus_url(parted.bootstrap))

    for topic in ("single", "alone", "replicated"):

        @bus.consumer(topic, group=f"of-{topic}", start="earliest", name=topic)
        async def handle(value: bytes) -> None:
            handled.append(value)

        assert handle is not None

    async with EventBus(bus_url(parted.bootstrap)) as admin:
        unsafe = {"min.insync.replicas": "1"}
        specs = [
            TopicSpec("single", assignments=((1,), (3,)), configs=unsafe),
            TopicSpec("alone", assignments=((3,),), configs=unsafe),
            TopicSpec("replicated", 1),
        ]
        await admin.admin.create_topics(specs)
        for partition in (0, 1):
            await admin.send("single", b"single-%d" % partition, partition=partition)
        for topic in ("alone", "replicated"):
            await admin.send(topic, topic.encode())
        node.kill()
        async with bus:

            async def both_wait() -> bool:
                reasons = {one.handler: one.reason for one in (await bus.health()).handlers}
                waiting = ("single-1 waits: the offsets of", "alone-0 waits: the offsets of")
                return all(text in reasons[text.partition("-")[0]] for text in waiting)

            await until(lambda: {b"single-0", b"replicated"} <= set(handled))
            await until(both_wait)
            await admin.send("single", b"more", partition=0)
            await until(lambda: b"more" in handled)
            await anyio.to_thread.run_sync(node.start)
            await until(lambda: {b"single-1", b"alone"} <= set(handled))
            with anyio.fail_after(PATIENCE_SECONDS):
                await bus.drain()
            assert len(handled) == 5
            node.kill()

            async def loss_shows() -> bool:
                """Health was "ok": the handler had begun to read the partition before it lost its leader."""
                return any("alone-0 waits: no broker leads" in one.reason for one in (await bus.health()).handlers)

            await until(loss_shows)
            await anyio.to_thread.run_sync(node.start)
            await until(lambda: is_ok(bus))
