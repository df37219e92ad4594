"""A log that is closed and opened again under a bus: nobody who uses it loses a place or a record."""

from __future__ import annotations

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.types import TopicPartition


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_producers_consumers_and_groups_go_on(backend: str) -> None:
    async def test() -> None:
        bus = EventBus("memory://", transaction_state_log_num_partitions=1, offsets_topic_num_partitions=1)
        bus.topic("t", partitions=2)
        handled: list[str] = []

        @bus.consumer("t", group="g")
        async def handle(value: str) -> None:
            handled.append(value)

        assert isinstance(bus.context.backend, EmbeddedBackend)
        async with bus, bus.new_consumer("t", group="other", value=str) as consumer:
            await bus.send("t", "before", key="a")
            await bus.drain()
            assert [record.value for record in await consumer.poll()] == ["before"]
            await consumer.commit()
            bus.context.backend.engine.restart()
            await bus.send("t", "after", key="a")
            async with bus.transaction("x") as tx:
                await tx.send("t", "in a transaction", key="a")
            await bus.drain()
            found = [record.value for record in await consumer.poll()]
            await consumer.commit()
            assert handled == ["before", "after", "in a transaction"]
            assert found == ["after", "in a transaction"]
            (group,) = [one for one in await bus.admin.list_groups() if one.group == "other"]
            assert group.state == "Stable"
            offsets = await bus.admin.group_offsets("other")
            assert sum(offset.offset for offset in offsets.values()) >= 3
            assert set(offsets) <= {TopicPartition("t", 0), TopicPartition("t", 1)}
            bus.context.backend.engine.broker.check()

    anyio.run(test, backend=backend)
