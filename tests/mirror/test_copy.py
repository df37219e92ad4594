"""What a mirror copies, from any log to any other: records as they are, topics as they are, and goes on later."""

from __future__ import annotations

from random import Random
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend, ProducerConfig
from eventbus.backends.urls import open_backend
from eventbus.errors import ConfigError, ProducerFenced, UnknownTopicOrPartition
from eventbus.mirror import Mirror
from eventbus.types import TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.dying import Life, dying
from tests.mirror.logs import assert_copied, content, create, fill, opened, until, visible, write

KINDS = ("memory", "file", "served")
ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("of", KINDS)
async def test_all_that_is_committed_is_copied_and_later_what_is_new(of: str, to: str, new_log: NewLog) -> None:
    here, there = new_log(of), new_log(to)
    random = Random(f"{of} to {to}")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders", 3)
        async with EventBus(here) as bus:
            await fill(bus, "orders", 3, random, 40)
            await bus.admin.alter_group_offsets("billing", {ORDERS: 3})
            async with Mirror(here, there, name="m") as mirror:
                first = await mirror.copy()
                await assert_copied(source, destination, "orders", "m")
            await fill(bus, "orders", 3, random, 20)
            async with Mirror(here, there, name="m") as mirror:
                second = await mirror.copy()
                checks = await mirror.verify()
        await assert_copied(source, destination, "orders", "m")
        total = sum([len(await visible(source, TopicPartition("orders", number))) for number in range(3)])
        assert (first.copied + second.copied, second.lag) == (total, 0)
        assert [check.differences for check in checks] == [[], [], []]
        assert sum(check.records for check in checks) == total
        assert "billing" in first.groups


async def test_topics_come_with_partitions_and_what_was_set_for_them(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "table", 4, cleanup_policy="compact", retention_ms="1234567", min_insync_replicas="1")
        await create(source, "stamped", 1, message_timestamp_type="LogAppendTime")
        async with Mirror(here, there) as mirror:
            progress = await mirror.copy()
        table, stamped = await destination.describe_topics(["table", "stamped"])
        assert len(table.partitions) == 4
        own = {name: entry.value for name, entry in table.configs.items() if entry.source == "topic"}
        assert own == {"cleanup.policy": "compact", "retention.ms": "1234567"}
        assert stamped.configs["message.timestamp.type"].value == "CreateTime"
        assert progress.kept_back == {"table": ("min.insync.replicas",), "stamped": ("message.timestamp.type",)}


async def test_a_time_that_the_log_set_is_kept(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders", message_timestamp_type="LogAppendTime")
        await write(source, ORDERS, b"a", b"b")
        async with Mirror(here, there) as mirror:
            await mirror.copy()
            [check] = await mirror.verify()
        times = [record.timestamp_ms for record in await visible(source, ORDERS)]
        assert min(times) > 1_700_000_000_000
        assert [record.timestamp_ms for record in await visible(destination, ORDERS)] == times
        assert (check.ok, check.records) == (True, 2)


async def test_the_schemas_topic_is_copied_and_internal_ones_are_not(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "_schemas", cleanup_policy="compact")
        await write(source, TopicPartition("_schemas", 0), b"schema", key=b"id")
        await create(source, "__hidden")
        async with Mirror(here, there) as mirror:
            await mirror.copy()
        assert [record.value for record in await visible(destination, TopicPartition("_schemas", 0))] == [b"schema"]
        names = {topic.name for topic in await destination.describe_topics()}
        assert "__hidden" not in names


async def test_topics_are_chosen_by_name_or_pattern(new_log: NewLog) -> None:
    here = new_log("memory")
    async with opened(here) as source:
        for topic in ("orders", "orders-eu", "invoices"):
            await create(source, topic)

        async def planned(**options: object) -> list[str]:
            async with Mirror(here, new_log("memory"), **options) as mirror:  # pyright: ignore[reportArgumentType]
                return [plan.topic for plan in await mirror.plan()]

        assert await planned() == ["invoices", "orders", "orders-eu"]
        assert await planned(topics=["orders"]) == ["orders"]
        assert await planned(pattern="orders.*") == ["orders", "orders-eu"]
        assert await planned(exclude="orders.*") == ["invoices"]
        with pytest.raises(UnknownTopicOrPartition, match=r"no topic .order. at the source.*orders"):
            await planned(topics=["order"])
        with pytest.raises(ConfigError, match="one of the two"):
            await planned(topics=["orders"], pattern="o.*")
        with pytest.raises(ConfigError, match="no regular expression"):
            await planned(pattern="*")


async def test_compaction_at_the_source_leaves_gaps_that_are_mapped(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    quick = {"log_cleaner_backoff_ms": 1, "log_retention_check_interval_ms": 1}
    async with EventBus(here, **quick) as bus, opened(here, **quick) as source, opened(there) as destination:
        await create(
            source, "orders", cleanup_policy="compact", min_cleanable_dirty_ratio="0", internal_segment_bytes="500"
        )
        for number in range(60):
            await bus.send("orders", b"%d" % number, key=b"%d" % (number % 7 if number % 2 else number))
        while len(found := await visible(source, ORDERS)) > 45:
            await source.timers.sleep(0.01)
        async with Mirror(here, there, name="m", source_config=quick) as mirror:
            progress = await mirror.copy()
        assert progress.copied >= len(found) - 10
        await assert_copied(source, destination, "orders", "m")


async def test_a_second_mirror_of_the_name_stops_the_first(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        async with Mirror(here, there, name="m", refresh_seconds=0.01) as old, anyio.create_task_group() as tasks:
            stopped = anyio.Event()

            async def follow() -> None:
                with pytest.raises(ProducerFenced, match="another mirror of the name 'm' has begun"):
                    await old.follow()
                stopped.set()

            tasks.start_soon(follow)
            await until(lambda: old.progress.copied == 1)
            async with Mirror(here, there, name="m") as new:
                await new.copy()
                await write(source, ORDERS, b"2")
                await stopped.wait()
                await new.copy()
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1", b"2"]


class Disturbance(Life):
    """Somebody else writes to the destination after some of the mirror's records."""

    def __init__(self, destination: Backend) -> None:
        super().__init__()
        self._producer: Any = destination.producer(ProducerConfig())

    def step(self) -> None:
        super().step()
        if self.steps % 97 == 0:
            self._producer.appender(*ORDERS)(None, b"of somebody else", (), 1)
            self._producer.close_open()


async def test_others_may_write_between_its_records(new_log: NewLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the first and the last offset of a run do not tell those between: each record's own handle has to."""
    monkeypatch.setattr("eventbus.mirror.writer._BATCH_BYTES", 1_000)
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        async with Mirror(here, there, name="m") as mirror:  # takes the topic up: later it may be written to
            await mirror.copy()
        await write(source, ORDERS, *[b"%d" % number for number in range(1_000)])
        disturbed = dying(open_backend(there, {}), Disturbance(destination))
        async with Mirror(here, disturbed, name="m") as mirror:
            await mirror.copy()
            [check] = await mirror.verify()
        copies = [one for one in await visible(destination, ORDERS) if one.value != b"of somebody else"]
        assert [content(one) for one in copies] == [content(one) for one in await visible(source, ORDERS)]
        assert not check.ok
        assert "somebody else wrote it" in check.differences[0]
        assert check.records == 1_000
