"""A topic is deleted and created again under a consumer: old offsets are not taken for those of the new topic."""

from __future__ import annotations

import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition
from eventbus.testing import FakeClock, TestBus

T0 = TopicPartition("t", 0)


@pytest.mark.parametrize("way", ["commit", "commit_nowait"])
async def test_a_commit_of_the_old_topic_skips_nothing_of_the_new_one(way: str) -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        await bus.send_many("t", [b"old"] * 3)
        async with bus.new_consumer("t", group="g") as consumer:
            polled = await consumer.poll()
            [before] = (await consumer.topic_ids("t")).values()
            if way == "commit_nowait":
                consumer.commit_nowait({T0: OffsetAndMetadata(len(polled))})
            await bus.admin.delete_topics(["t"])
            await bus.admin.create_topic("t")
            if way == "commit":
                await consumer.commit({T0: OffsetAndMetadata(len(polled))})
            await bus.send_many("t", [b"%d" % n for n in range(5)])
            assert [record.value for record in await consumer.poll()] == [b"0", b"1", b"2", b"3", b"4"]
            [after] = (await consumer.topic_ids()).values()
            assert before != after
        assert await bus.admin.group_offsets("g") == {}


async def test_a_listener_loses_the_old_topic_before_it_is_assigned_the_new_one() -> None:
    calls: list[tuple[str, list[TopicPartition]]] = []
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        async with bus.new_consumer(
            "t",
            group="g",
            on_assigned=lambda partitions: calls.append(("assigned", partitions)),
            on_lost=lambda partitions: calls.append(("lost", partitions)),
        ) as consumer:
            await consumer.poll(0)
            await bus.admin.delete_topics(["t"])
            await bus.admin.create_topic("t")
            await bus.send("t", b"new")
            assert [record.value for record in await consumer.poll()] == [b"new"]
    assert calls[:3] == [("assigned", [T0]), ("lost", [T0]), ("assigned", [T0])]


async def test_scheduled_records_are_delivered_after_their_topic_was_recreated(
    eventbus_bus: TestBus, eventbus_clock: FakeClock
) -> None:
    bus = eventbus_bus
    bus.topic("t")
    async with bus:
        await bus.send("t", b"old", delay=10)
        [scheduled] = [name for name in await bus.admin.list_topics(internal=True) if name.startswith("_scheduled")]
        await bus.admin.delete_topics([scheduled])
        await bus.admin.create_topic(scheduled, configs={"cleanup.policy": "compact"})
        await bus.send("t", b"new", delay=10)
        await eventbus_clock.advance(seconds=11)
        await bus.drain()
        bus.log.assert_published("t", b"new")


async def test_a_topic_of_schedules_that_another_process_created_again_is_reported(
    eventbus_bus: TestBus, eventbus_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was logged of the records that were lost, and an id was looked for in a partition that was no more."""
    bus = eventbus_bus
    bus.topic("t")
    async with bus:
        await bus.admin.create_topic("_scheduled.eventbus", 64)
        await bus.send("t", b"old", delay=10)
        await bus.admin.delete_topics(["_scheduled.eventbus"])
        await bus.admin.create_topic("_scheduled.eventbus", 1, configs={"cleanup.policy": "compact"})
        await eventbus_clock.advance(seconds=20)
        assert caplog.text.count("topic '_scheduled.eventbus' was deleted, and is created again. Records") == 1
        ones = [await bus.send("t", b"new", delay=10) for _ in range(5)]
        assert all([await bus.cancel_scheduled(one) for one in ones])


async def test_scheduled_records_of_a_topic_that_was_recreated_are_delivered_and_reported_once(
    eventbus_bus: TestBus, eventbus_clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    bus = eventbus_bus
    bus.topic("t")
    async with bus:
        for delay in (10, 20):
            await bus.send("t", b"old", delay=delay)
        await bus.admin.delete_topics(["t"])
        await eventbus_clock.advance(seconds=6)
        await bus.admin.create_topic("t")
        await bus.send("t", b"new", delay=1)
        await eventbus_clock.advance(seconds=2)
        assert bus.log.values("t", bytes) == [b"new"] and "created again" not in caplog.text
        await eventbus_clock.advance(seconds=20)
        assert bus.log.values("t", bytes) == [b"new", b"old", b"old"]
        assert caplog.text.count("topic 't' was deleted and created again while scheduled records waited for it") == 1
