"""A partition whose only replica is down has no leader: it waits, and nothing else does."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.broker import TopicSpec
from eventbus.testing import RealKafka
from tests.cluster_faults.load import PATIENCE_SECONDS
from tests.kafka.urls import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(500)]


async def test_a_partition_without_a_leader_stops_nothing_else(cluster: RealKafka) -> None:
    """A service that started meanwhile raised HandlerError: 'No leaders found' had no translation."""
    handled: list[bytes] = []
    bus = EventBus(bus_url(cluster.bootstrap))

    for topic in ("single", "alone", "replicated"):

        @bus.consumer(topic, group=f"of-{topic}", start="earliest", name=topic)
        async def handle(value: bytes) -> None:
            handled.append(value)

        assert handle is not None

    async def until(*values: bytes) -> None:
        while not set(values) <= set(handled):
            await anyio.sleep(0.05)

    async with EventBus(bus_url(cluster.bootstrap)) as admin:
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
        cluster.node(3).kill()
        try:
            with anyio.fail_after(PATIENCE_SECONDS):
                async with bus:
                    await until(b"single-0", b"replicated")
                    reasons: dict[str, str] = {}
                    while not all(" waits: the offsets of " in reasons.get(one, "") for one in ("single", "alone")):
                        reasons = {one.handler: one.reason for one in (await bus.health()).handlers}
                        await anyio.sleep(0.1)
                    assert "single-1" in reasons["single"] and "alone-0" in reasons["alone"]
                    await admin.send("single", b"more", partition=0)
                    await until(b"more")
                    cluster.node(3).start()
                    await until(b"single-1", b"alone")
                    await bus.drain()
                    assert len(handled) == 5
        finally:
            if not cluster.node(3).is_running:
                cluster.node(3).start()
