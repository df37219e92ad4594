"""What a mirror copies, from any log to any other: records as they are, topics as they are, and goes on later."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend, ProducerConfig
from eventbus.backends.urls import open_backend
from eventbus.errors import ConfigError, ProducerFenced, UnknownTopicOrPartition
from eventbus.mirror import Mirror
from eventbus.types import TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.dying import Life, dying
from tests.mirror.logs import PATIENCE_SECONDS, assert_copied, content, create, fill, opened, until, visible, write
from tests.tiers import quick

KINDS = ("memory", "file", "served")
LONG = {pair for pair in product(KINDS, KINDS) if "served" in pair}
"""The slow tier has these pairs, because test_kafka.py copies to a Kafka and from it."""
PAIRS = [pytest.param(*pair, marks=pytest.mark.slow if pair in LONG else ()) for pair in product(KINDS, KINDS)]
ORDERS = TopicPartition("orders", 0)


@pytest.mark.system
@pytest.mark.parametrize(("of", "to"), PAIRS)
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


@pytest.mark.system
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
        assert "another client wrote it" in check.differences[0]
        assert check.records == 1_000


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_a_copy_ends_while_producers_go_on(kind: str, new_log: NewLog) -> None:
    """It ends where the log ended when it began: producers do not wait for it."""
    here, there = new_log(kind), new_log("memory")
    async with opened(here) as source, opened(there), EventBus(here) as bus:
        await create(source, "orders", 2)
        await write(source, ORDERS, b"1", b"2")
        async with Mirror(here, there, name="m") as mirror, anyio.create_task_group() as tasks:

            async def produce() -> None:
                while True:
                    for _ in range(20):
                        bus.send_nowait("orders", b"and more", partition=0)
                    await anyio.lowlevel.checkpoint()

            tasks.start_soon(produce)
            with anyio.fail_after(PATIENCE_SECONDS):
                await mirror.copy()
            tasks.cancel_scope.cancel()
        assert mirror.progress.copied >= 2


@pytest.mark.system
async def test_one_that_was_fenced_by_nobody_else_goes_on(new_log: NewLog) -> None:
    """A transaction that was open for too long is ended by the log, with a new epoch: nobody else has begun."""
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        async with Mirror(here, there, name="m", refresh_seconds=0.01) as mirror, anyio.create_task_group() as tasks:
            tasks.start_soon(mirror.follow)
            for number in range(3):
                await write(source, ORDERS, b"%d" % number)
                await until(lambda copied=number + 1: mirror.progress.copied == copied)
                await destination.fence_producer(mirror.options.transactional_id)
            await write(source, ORDERS, b"3")
            await until(lambda: mirror.progress.copied == 4)
            tasks.cancel_scope.cancel()
        assert mirror.progress.restarts == 3
        assert [record.value for record in await visible(destination, ORDERS)] == [b"0", b"1", b"2", b"3"]


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_of_two_that_follow_the_younger_goes_on_whatever_befalls_them(kind: str, new_log: NewLog) -> None:
    """The older one begins anew after some trouble: it looks who has begun since before it takes anything over."""
    here, there = new_log("memory"), new_log(kind)
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        async with (
            Mirror(here, there, name="m", refresh_seconds=0.01) as old,
            Mirror(here, there, name="m", refresh_seconds=0.01) as new,
            anyio.create_task_group() as tasks,
        ):
            stopped = anyio.Event()

            async def follow() -> None:
                with pytest.raises(ProducerFenced, match="another mirror of the name 'm' has begun"):
                    await old.follow()
                stopped.set()

            tasks.start_soon(follow)
            await until(lambda: old.progress.looks)
            tasks.start_soon(new.follow)
            await until(lambda: new.progress.looks)
            for number in range(30):
                await write(source, ORDERS, b"%d" % number)
            with anyio.fail_after(PATIENCE_SECONDS):
                await stopped.wait()
            await until(lambda: new.progress.copied + old.progress.copied == 30)
            tasks.cancel_scope.cancel()
        assert [int(record.value or b"") for record in await visible(destination, ORDERS)] == list(range(30))


async def test_a_destination_that_keeps_less_by_default_is_told(new_log: NewLog) -> None:
    """What was kept for ever would be deleted there, old as it is, without a word."""
    here, there = new_log("memory"), new_log("memory")
    keeping = {"log_defaults": {"retention.ms": "-1"}}
    async with opened(here, **keeping) as source, opened(there):
        await create(source, "orders")
        await create(source, "own", retention_ms="-1")
        async with Mirror(here, there, name="m", source_config=keeping) as mirror:
            progress = await mirror.copy()
    assert progress.kept_back == {"orders": ("retention.ms=-1 (there 604800000: older records are deleted)",)}


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_a_record_as_large_as_any_is_copied(kind: str, new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log(kind)
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await create(source, "orders", max_message_bytes="90000000")
        async with bus.new_producer(max_request_size=90_000_000, buffer_memory=200_000_000) as producer:
            await producer.send("orders", b"x" * 70_000_000)
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        [copy] = await visible(destination, ORDERS)
        assert len(copy.value or b"") == 70_000_000


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_transactions_that_take_long_to_end(kind: str, new_log: NewLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each of them a Kafka producer has its transactional id taken anew; that is no way past another mirror."""
    monkeypatch.setattr("eventbus.backends.kafka.transactions._SHORTEST_WAIT", 0.0)
    here, there = new_log(kind), new_log("served")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        async with Mirror(here, there, name="m", refresh_seconds=0.01) as old, anyio.create_task_group() as tasks:
            stopped = anyio.Event()

            async def follow() -> None:
                with pytest.raises(ProducerFenced, match="another mirror of the name 'm' has begun"):
                    await old.follow()
                stopped.set()

            tasks.start_soon(follow)
            for number in range(4):
                await write(source, ORDERS, b"%d" % number)
                await until(lambda copied=number + 1: old.progress.copied == copied)
            assert old.progress.restarts == 0
            async with Mirror(here, there, name="m") as new:
                await write(source, ORDERS, b"4")
                await new.copy()
                await write(source, ORDERS, b"5")
                with anyio.fail_after(PATIENCE_SECONDS):
                    await stopped.wait()
                await new.copy()
        assert [int(one.value or b"") for one in await visible(destination, ORDERS)] == list(range(6))
