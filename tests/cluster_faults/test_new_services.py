"""Services that start while one of three brokers is dead, and the others still take it for alive."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.testing import RealKafka
from tests.kafka_fixtures import kafka_or_skip

KAFKAS_OWN = {
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.election.backoff.max.ms": "1000",
    "replica.lag.time.max.ms": "30000",
}
"""With the sessions of 3 s that other tests have, the time in which this shows is short."""
SERVICES, AT_ONCE = 100, 25
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]


@pytest.fixture
def patient_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKafka]:
    kafka = kafka_or_skip(tmp_path_factory, "patient", nodes=3)
    for node in kafka.nodes:
        node.properties |= KAFKAS_OWN
    with kafka:
        yield kafka


async def test_all_new_services_start_while_a_broker_is_dead(patient_cluster: RealKafka) -> None:
    """librdkafka sent its first request to the controller, which is any broker to a broker of KRaft, also a dead one.

    One start in six failed after 10 s, and a topic was described or created after 30 s or not at all.
    """
    turn = anyio.Semaphore(AT_ONCE)

    async def serve(number: int) -> None:
        async with turn:
            with anyio.fail_after(60):
                async with EventBus(patient_cluster.url) as bus:
                    await bus.admin.create_topic(f"of-{number}")
                    await bus.send(f"of-{number}", b"1")

    for dead in (1, 2):
        patient_cluster.node(dead).kill()
        async with anyio.create_task_group() as tasks:
            for number in range(SERVICES):
                tasks.start_soon(serve, dead * SERVICES + number)
        await anyio.to_thread.run_sync(patient_cluster.node(dead).start)
