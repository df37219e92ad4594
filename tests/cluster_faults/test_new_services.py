"""Services that start while one of three brokers is dead, and the others still take it for alive."""

from __future__ import annotations

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.testing import RealKafka

SERVICES, AT_ONCE = 100, 25
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cluster"), pytest.mark.timeout(600)]


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
