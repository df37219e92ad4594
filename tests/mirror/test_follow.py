"""A mirror that follows: whatever appears at the source appears at the destination, and what vanishes is told."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import msgspec
import pytest

from eventbus import EventBus
from eventbus.backends.base import Backend, BackendConsumer, ConsumerConfig
from eventbus.backends.urls import open_backend
from eventbus.broker import TopicDescription
from eventbus.errors import UnknownTopicOrPartition
from eventbus.mirror import Mirror
from eventbus.mirror.session import Session
from eventbus.types import FetchedRecords, OffsetAndMetadata, TopicPartition
from tests.mirror.conftest import NewLog
from tests.mirror.logs import assert_copied, content, create, fill, opened, until, visible, write
from tests.tiers import quick

ORDERS = TopicPartition("orders", 0)


@asynccontextmanager
async def following(here: str | Backend, there: str, **options: object) -> AsyncGenerator[Mirror]:
    async with (
        Mirror(here, there, name="m", refresh_seconds=0.01, **options) as mirror,  # pyright: ignore[reportArgumentType]
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(mirror.follow)
        yield mirror
        tasks.cancel_scope.cancel()


async def two_looks(mirror: Mirror) -> None:
    """Whatever is to be seen has been seen."""
    looks = mirror.progress.looks
    await until(lambda: mirror.progress.looks >= looks + 2)


async def topic(backend: Backend, name: str) -> object:
    found = {one.name: one for one in await backend.describe_topics()}
    return found.get(name)


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_topics_partitions_configs_and_records_come_as_they_come(kind: str, new_log: NewLog) -> None:
    here, there = new_log(kind), new_log("memory")
    async with opened(here) as source, opened(there) as destination, following(here, there) as mirror:
        await until(lambda: mirror.progress.looks)
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        await until(lambda: mirror.progress.copied == 1)
        await source.add_partitions("orders", 3)
        await write(source, TopicPartition("orders", 2), b"2")
        await until(lambda: mirror.progress.copied == 2)
        await source.alter_configs("orders", {"retention.ms": "777000", "segment.ms": "88000"}, [])
        await two_looks(mirror)
        await source.alter_configs("orders", {"retention.ms": "999000"}, ["segment.ms"])
        await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(1)})
        await two_looks(mirror)
        [found] = await destination.describe_topics(["orders"])
        own = {name: entry.value for name, entry in found.configs.items() if entry.source == "topic"}
        assert own == {"retention.ms": "999000"}
        assert len(found.partitions) == 3
        assert [record.value for record in await visible(destination, TopicPartition("orders", 2))] == [b"2"]
        assert (await destination.group_offsets("billing"))[ORDERS].offset == 1


async def test_what_somebody_sets_at_the_destination_stays(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders", retention_ms="1000000")
        async with following(here, there) as mirror:
            await until(lambda: mirror.progress.looks)
            await destination.alter_configs("orders", {"retention.ms": "5000000", "segment.ms": "70000"}, [])
            await two_looks(mirror)
            await source.alter_configs("orders", {"max.message.bytes": "2000000"}, [])
            await two_looks(mirror)
        [found] = await destination.describe_topics(["orders"])
        own = {name: entry.value for name, entry in found.configs.items() if entry.source == "topic"}
        assert own == {"retention.ms": "5000000", "segment.ms": "70000", "max.message.bytes": "2000000"}


@pytest.mark.system
@pytest.mark.parametrize("kind", quick(["memory", "served"], 1))
async def test_a_topic_deleted_and_made_anew_is_not_mixed_with_the_old_one(kind: str, new_log: NewLog) -> None:
    here, there = new_log(kind), new_log("memory")
    async with opened(here) as source, opened(there) as destination, following(here, there) as mirror:
        await create(source, "orders")
        await create(source, "others")
        await write(source, ORDERS, b"old 1", b"old 2")
        await until(lambda: mirror.progress.copied == 2)
        await source.delete_topics(["orders"])
        await create(source, "orders")
        await write(source, ORDERS, b"new 1", b"new 2", b"new 3")
        await until(lambda: mirror.progress.problems)
        assert "deleted" in mirror.progress.problems["orders"]
        await write(source, TopicPartition("others", 0), b"goes on")
        await until(lambda: mirror.progress.copied == 3)
        assert [record.value for record in await visible(destination, ORDERS)] == [b"old 1", b"old 2"]


@pytest.mark.parametrize("is_there", [True, False])
async def test_a_topic_made_anew_while_it_is_described_is_told_from_one_that_lost_its_end(
    is_there: bool, new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka is asked for the topic's id first, and then for its end, by name."""
    here, there = open_backend(new_log("memory"), {}), new_log("memory")
    describe = here.describe_topics
    is_old = True

    async def in_between(names: Sequence[str] | None = None) -> list[TopicDescription]:
        nonlocal is_old
        told = await describe(names)
        if mirror.progress.copied < 2 or not is_old:
            return told
        is_old = False
        await source.delete_topics(["orders"])
        await create(source, "orders")
        [anew] = await describe(names)
        if not is_there:
            await source.delete_topics(["orders"])
        return [msgspec.structs.replace(anew, topic_id=told[0].topic_id)]

    async with opened(here.url) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"old 1", b"old 2")
        monkeypatch.setattr(here, "describe_topics", in_between)
        async with following(here, there) as mirror:
            await until(lambda: mirror.progress.problems)
            assert ("created again" if is_there else "was deleted at the source") in mirror.progress.problems["orders"]
        assert [record.value for record in await visible(destination, ORDERS)] == [b"old 1", b"old 2"]


@pytest.mark.system
async def test_a_mirror_that_began_anew_in_the_middle_stops_that_topic_alone(
    new_log: NewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a topic is deleted, a request of the mirror may fail: then it is found out at its next beginning."""
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await create(source, "others")
        await write(source, ORDERS, b"old 1", b"old 2")
        async with following(here, there, topics=["orders", "others"]) as mirror:
            await until(lambda: mirror.progress.copied == 2)
            look, failed = Session._look, anyio.Event()  # pyright: ignore[reportPrivateUsage]

            async def failing(*args: Any, **options: Any) -> None:
                if failed.is_set():
                    return await look(*args, **options)
                await source.delete_topics(["orders"])
                await create(source, "orders")
                failed.set()
                raise UnknownTopicOrPartition("as one that is being deleted is answered")

            monkeypatch.setattr(Session, "_look", failing)
            await until(lambda: mirror.progress.problems)
            assert "created again" in mirror.progress.problems["orders"]
            assert mirror.progress.restarts == 1
            await write(source, TopicPartition("others", 0), b"goes on")
            await until(lambda: mirror.progress.copied == 3)
        assert [record.value for record in await visible(destination, ORDERS)] == [b"old 1", b"old 2"]


@pytest.fixture
def retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.mirror.refusals._FIRST_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("retries_at_once")
async def test_a_refused_partition_is_copied_on_when_its_topic_allows_it(new_log: NewLog) -> None:
    """It ended the mirror, and with it the copies of all other topics."""
    here, there = new_log("memory"), new_log("memory")
    others = TopicPartition("others", 0)
    async with opened(here) as source, opened(there) as destination, following(here, there) as mirror:
        for where in (ORDERS, others):
            await create(source, where.topic)
            await write(source, where, b"1")
        await until(lambda: mirror.progress.copied == 2)
        await destination.alter_configs("orders", {"max.message.bytes": "1000"}, [])
        await write(source, ORDERS, b"2", b"x" * 5_000, b"4")
        await write(source, others, b"2")
        await until(lambda: mirror.progress.refused and mirror.progress.copied == 4)
        for value in (b"3", b"4"):
            await write(source, others, value)
            await two_looks(mirror)
        await until(lambda: mirror.progress.copied == 6)
        assert "orders-0 offset 2 of the source" in mirror.progress.refused[ORDERS]
        assert "max.message.bytes=1,000" in mirror.progress.refused[ORDERS]
        assert mirror.progress.of(ORDERS).lag == 2
        await destination.alter_configs("orders", {"max.message.bytes": "10000"}, [])
        await until(lambda: mirror.progress.copied == 8)
        assert not mirror.progress.refused
        for where in (ORDERS, others):
            copies = await visible(destination, where)
            assert [content(one) for one in copies] == [content(one) for one in await visible(source, where)]


@pytest.mark.usefixtures("retries_at_once")
async def test_a_topic_that_is_gone_at_the_destination_stops_none_of_its_neighbours(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    others = TopicPartition("others", 0)
    async with opened(here) as source, opened(there) as destination, following(here, there) as mirror:
        for where in (ORDERS, others):
            await create(source, where.topic)
            await write(source, where, b"1")
        await until(lambda: mirror.progress.copied == 2)
        await destination.delete_topics(["orders"])
        for where in (ORDERS, others):
            await write(source, where, b"2")
        await until(lambda: mirror.progress.copied == 3)
        await two_looks(mirror)
        assert "topic 'orders' was mirrored, and is gone at the destination" in mirror.progress.refused[ORDERS]
        assert [record.value for record in await visible(destination, others)] == [b"1", b"2"]


async def test_a_deleted_topic_leaves_its_copy(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination, following(here, there) as mirror:
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        await until(lambda: mirror.progress.copied == 1)
        await source.delete_topics(["orders"])
        await until(lambda: mirror.progress.problems)
        assert "was deleted at the source; its copy stays" in mirror.progress.problems["orders"]
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1"]


async def test_what_retention_takes_before_it_is_copied_is_told(new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1", b"2")
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        await write(source, ORDERS, b"3", b"4", b"5")
        await source.delete_records({ORDERS: 4})
        async with Mirror(here, there, name="m") as mirror:
            progress = await mirror.copy()
        assert progress.lost == 2
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1", b"2", b"5"]
        await assert_next(source, destination)


async def assert_next(source: Backend, destination: Backend) -> None:
    """An offset within what was lost becomes the next one's that was not."""
    await source.alter_group_offsets("billing", {ORDERS: OffsetAndMetadata(3)})
    async with Mirror(source.url, destination.url, name="m") as mirror:
        await mirror.copy()
    [copy] = [record for record in await visible(destination, ORDERS) if record.value == b"5"]
    assert (await destination.group_offsets("billing"))[ORDERS].offset == copy.offset


@pytest.mark.system
@pytest.mark.parametrize("seed", range(10))
async def test_cancelled_at_any_time_it_goes_on_where_it_was(seed: int, new_log: NewLog) -> None:
    here, there = new_log("memory"), new_log("memory")
    random = Random(seed)
    async with opened(here) as source, opened(there) as destination, EventBus(here) as bus:
        await create(source, "orders", 2)
        for _ in range(8):
            async with anyio.create_task_group() as tasks:

                async def cut_short() -> None:
                    with anyio.move_on_after(random.random() / 50):
                        async with Mirror(here, there, name="m") as mirror:
                            await mirror.follow()

                tasks.start_soon(cut_short)
                await fill(bus, "orders", 2, random, random.randint(1, 30))
        async with Mirror(here, there, name="m") as mirror:
            await mirror.copy()
        await assert_copied(source, destination, "orders", "m")


async def test_what_retention_takes_under_its_eyes_is_told(new_log: NewLog) -> None:
    """Its reader goes on at the first record there is, and says nothing."""
    here, there = new_log("memory"), new_log("memory")
    backend = open_backend(here, {})
    make = backend.consumer
    holding, released = anyio.Event(), anyio.Event()

    def consumer(config: ConsumerConfig) -> BackendConsumer:
        made = make(config)
        fetch = made.fetch

        async def fetch_held(max_wait_ms: int | None = None) -> list[FetchedRecords]:
            if mirror.progress.copied == 1 and not released.is_set():
                holding.set()
                await released.wait()
            return await fetch(1)

        made.fetch = fetch_held  # pyright: ignore[reportAttributeAccessIssue]
        return made

    backend.consumer = consumer  # pyright: ignore[reportAttributeAccessIssue]
    async with opened(here) as source, opened(there) as destination:
        await create(source, "orders")
        await write(source, ORDERS, b"1")
        async with following(backend, there) as mirror:
            await holding.wait()
            await write(source, ORDERS, b"2", b"3", b"4")
            await source.delete_records({ORDERS: 3})
            released.set()
            await until(lambda: mirror.progress.copied == 2)
            await two_looks(mirror)
            assert mirror.progress.lost == 2
        assert [record.value for record in await visible(destination, ORDERS)] == [b"1", b"4"]
