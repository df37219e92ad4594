"""A topic is deleted and created again under a consumer: old offsets are not taken for those of the new topic."""

from __future__ import annotations

import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition

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
