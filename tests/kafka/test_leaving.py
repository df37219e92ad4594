"""Who goes tells its group so, however it goes."""

from __future__ import annotations

import anyio
import pytest

pytest.importorskip("confluent_kafka", reason="what kafka:// is made of")

from eventbus import EventBus
from eventbus.testing import KafkaServer

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 30


async def test_a_consumer_that_is_cancelled_leaves_its_group() -> None:
    """As Ctrl-C ends `eventbus consume`: the next member would wait for the session of the one that has gone."""
    async with KafkaServer() as server, EventBus(f"kafka://{server.bootstrap}") as bus:
        await bus.admin.create_topic("orders")
        with anyio.fail_after(PATIENCE_SECONDS), anyio.CancelScope() as scope:
            async with bus.new_consumer("orders", group="shop") as consumer:
                while not consumer.assignment():
                    await consumer.poll(timeout_ms=10)
                scope.cancel()
                await anyio.sleep_forever()
        (group,) = server.node.broker.groups.describe(["shop"])  # at once: nothing could come in the meantime
        assert group.state == "Empty"
