"""Commits that wait, that do not wait, and automatic ones."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition
from eventbus.client.consuming import commits as commits_module
from eventbus.client.consuming.commits import BackgroundCommits
from eventbus.errors import ConfigError, EventBusError, OffsetMetadataTooLarge, StorageFull, UnknownTopicOrPartition
from tests.support import others_wait

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def filled(make_bus: Any, **config: Any) -> AsyncIterator[EventBus]:
    async with make_bus(**config) as bus:
        await bus.admin.create_topic("t", partitions=2)
        for partition in (0, 1):
            for n in range(10):
                bus.send_nowait("t", b"%d" % n, partition=partition)
        await bus.flush()
        yield bus


# not waiting ---------------------------------------------------------------------------------------------------------


async def test_a_commit_nobody_waits_for_tells_its_outcome(make_bus: Any) -> None:
    told: list[tuple[Mapping[TopicPartition, OffsetAndMetadata], EventBusError | None]] = []
    async with filled(make_bus) as bus:
        async with bus.new_consumer("t", group="g") as consumer:
            await consumer.poll()
            consumer.commit_nowait(callback=lambda offsets, error: told.append((offsets, error)))
            assert told == []
            consumer.commit_nowait({T0: 99, TopicPartition("t", 7): 1}, lambda o, error: told.append((o, error)))
        (first, _), (second, error) = told  # closing waited for both
        assert first == {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(10)}
        assert set(second) == {T0, TopicPartition("t", 7)} and isinstance(error, UnknownTopicOrPartition)


async def test_the_pattern_of_the_books_commits_in_the_loop_and_waits_at_the_end(make_bus: Any) -> None:
    async with filled(make_bus) as bus:
        async with bus.new_consumer("t", group="g") as consumer:
            count = 0
            while count < 20:
                count += len(await consumer.poll(max_records=3))
                consumer.commit_nowait()
            await consumer.commit()
            assert await consumer.committed() == {T0: OffsetAndMetadata(10), T1: OffsetAndMetadata(10)}
        assert await bus.admin.group_offsets("g") == {T0: (10, ""), T1: (10, "")}


async def test_an_error_without_a_callback_is_logged(make_bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with filled(make_bus) as bus, bus.new_consumer("t", group="g") as consumer:
        consumer.commit_nowait({T0: OffsetAndMetadata(1, "x" * 5000)})
        await consumer._background.finish()
    assert "offsets were not committed" in caplog.text


class Stored:
    """A log of commits that refuses the first few."""

    def __init__(self, *errors: EventBusError) -> None:
        self.errors = list(errors)
        self.commits: list[dict[TopicPartition, OffsetAndMetadata]] = []
        self.gate: anyio.Event | None = None

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if self.gate is not None:
            await self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.commits.append(dict(offsets))


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits_module, "_RETRY_SECONDS", 0)


def at(offset: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(offset)


async def test_what_may_pass_is_tried_again_and_a_callback_hears_of_it_once() -> None:
    stored, told = Stored(StorageFull("full"), StorageFull("full")), []
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(5)}, lambda offsets, error: told.append(error))
        await commits.finish()
    assert stored.commits == [{T0: at(5)}] and told == [None]


async def test_what_does_not_pass_is_given_up() -> None:
    stored, told = Stored(*[StorageFull("full")] * 99), []
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(5)}, lambda offsets, error: told.append(error))
        await commits.finish()
    assert len(stored.errors) == 89 and isinstance(told[0], StorageFull)


async def test_a_lasting_error_is_not_tried_again() -> None:
    stored, told = Stored(OffsetMetadataTooLarge("long")), []
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(5)}, lambda offsets, error: told.append(error))
        await commits.finish()
    assert stored.commits == [] and isinstance(told[0], OffsetMetadataTooLarge)


async def test_a_stale_retry_is_dropped_when_a_newer_commit_exists() -> None:
    """Row by row what a group would see: never 5 after 9."""
    stored, told = Stored(StorageFull("full")), []
    stored.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(5), T1: at(1)}, lambda offsets, error: told.append((offsets, error)))
        await others_wait()
        commits.number({T0: at(9)})  # a commit() that waits, begun while the first attempt is under way
        stored.gate.set()
        await commits.finish()
    assert stored.commits == [{T1: at(1)}]  # the retry left out what is newer now
    assert told == [({T0: at(5), T1: at(1)}, None)]


async def test_a_commit_does_not_overtake_the_one_under_way() -> None:
    """Else the older one would arrive last, and move the group back."""
    stored = Stored()
    older = stored.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(5)}, None)
        await others_wait()
        stored.gate = None
        tasks.start_soon(commits.now, {T0: at(9)})
        await others_wait()
        older.set()
    assert stored.commits == [{T0: at(5)}, {T0: at(9)}]


async def test_commits_that_come_while_one_is_under_way_go_as_one_with_the_newest_of_each() -> None:
    stored, told = Stored(), []
    stored.gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        for offset in range(1, 6):
            commits.add({T0: at(offset)}, lambda offsets, error: told.append(offsets[T0].offset))
            await others_wait()
        commits.add({T1: at(3)}, None)
        stored.gate.set()
        await commits.finish()
    assert stored.commits == [{T0: at(5), T1: at(3)}] or stored.commits == [{T0: at(1)}, {T0: at(5), T1: at(3)}]
    assert told == [1, 2, 3, 4, 5]


async def test_a_callback_that_raises_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    stored, told = Stored(), []

    def broken(offsets: Any, error: Any) -> None:
        raise ValueError("mine")

    async def never_runs(offsets: Any, error: Any) -> None: ...

    async with anyio.create_task_group() as tasks:
        commits = BackgroundCommits(stored.commit, tasks.start_soon)
        commits.add({T0: at(1)}, broken)
        commits.add({T0: at(2)}, never_runs)
        commits.add({T0: at(3)}, lambda offsets, error: told.append(error))
        await commits.finish()
    assert told == [None] and "a commit callback raised" in caplog.text
    assert "never_runs" in caplog.text and "returned a coroutine" in caplog.text


# automatic -----------------------------------------------------------------------------------------------------------


async def test_automatic_commits_are_off(make_bus: Any) -> None:
    async with filled(make_bus) as bus:
        async with bus.new_consumer("t", group="g", auto_commit_interval_ms=0) as consumer:
            await consumer.poll()
            await consumer.poll(0)
        assert await bus.admin.group_offsets("g") == {}


async def test_automatic_commits_store_what_earlier_polls_returned(make_bus: Any) -> None:
    config = {"group": "g", "enable_auto_commit": True}
    async with filled(make_bus) as bus:
        async with bus.new_consumer("t", auto_commit_interval_ms=0, **config) as consumer:
            first = await consumer.poll(max_records=3)
            assert await bus.admin.group_offsets("g") == {}
            await consumer.poll(max_records=3)
            assert await bus.admin.group_offsets("g") == {first[0].topic_partition: (3, "")}
        assert sum(offset for offset, _ in (await bus.admin.group_offsets("g")).values()) == 6  # at close: the rest
        async with bus.new_consumer("t", **config) as consumer:  # five seconds have not passed
            await consumer.poll(max_records=3)
            await consumer.poll(max_records=3)
            assert sum(offset for offset, _ in (await bus.admin.group_offsets("g")).values()) == 6


async def test_automatic_commits_come_before_partitions_go(make_bus: Any) -> None:
    config = {"group": "g", "enable_auto_commit": True}
    async with filled(make_bus) as bus, bus.new_consumer("t", **config) as one:
        assert len(await one.poll()) == 20
        async with bus.new_consumer("t", **config) as two:
            for _ in range(3):
                assert await one.poll(0) == await two.poll(0) == []
            assert len(two.assignment()) == 1


async def test_automatic_commits_lose_what_is_still_at_work(make_bus: Any) -> None:
    """They are off because the next poll commits records in flight (KAFKA-2942), which are lost if the process dies."""
    handled: list[bytes] = []
    async with filled(make_bus) as bus:
        async with bus.new_consumer("t", group="g", enable_auto_commit=True, auto_commit_interval_ms=0) as consumer:
            at_work = [record.value for record in await consumer.poll(max_records=5)]
            handled += at_work[:1]  # the others wait in a task that never gets to them
            await consumer.poll(max_records=1)
            committed = dict(await bus.admin.group_offsets("g"))
        await bus.admin.alter_group_offsets("g", committed)  # as a crash would have left it
        async with bus.new_consumer("t", group="g") as consumer:
            again = [record async for record in _take(consumer, 15)]
        first = next(iter(committed))
        assert [r.offset for r in again if r.topic_partition == first] == [5, 6, 7, 8, 9]
        assert handled == [b"0"]  # 1 to 4 are committed, and nobody ever handled them


async def _take(consumer: Any, count: int) -> AsyncIterator[Any]:
    for _ in range(count):
        yield await anext(consumer)


async def test_a_failed_automatic_commit_is_logged_and_polling_goes_on(
    make_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"group": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 0}
    async with filled(make_bus) as bus, bus.new_consumer("t", **config) as consumer:
        await consumer.poll(max_records=3)

        async def refuse(offsets: Any) -> None:
            raise StorageFull("no room")

        consumer._consumer.commit = refuse
        with caplog.at_level(logging.WARNING):
            assert len(await consumer.poll(max_records=3)) == 3
        assert "the automatic commit failed, the next one tries again: no room" in caplog.text


async def test_automatic_commits_need_a_group(make_bus: Any) -> None:
    async with filled(make_bus) as bus:
        with pytest.raises(ConfigError, match="enable_auto_commit=True commits for a group"):
            bus.new_consumer("t", enable_auto_commit=True)


# what is committed, what is not --------------------------------------------------------------------------------------


async def test_position_committed_end_gap_and_lag(make_bus: Any) -> None:
    async with filled(make_bus) as bus, bus.new_consumer(group="g") as consumer:
        await consumer.assign([T0])
        assert (await consumer.uncommitted(T0), await consumer.lag(T0)) == (0, 10)
        await consumer.poll(max_records=4)
        assert (await consumer.uncommitted(T0), await consumer.lag(T0)) == (4, 6)
        await consumer.commit()
        await consumer.poll(max_records=3)
        assert await consumer.committed() == {T0: OffsetAndMetadata(4)}
        assert await consumer.position(T0) == 7
        assert await consumer.end_offsets() == {T0: 10}
        assert (await consumer.uncommitted(T0), await consumer.lag(T0)) == (3, 3)


async def test_a_commit_every_so_many_records_with_a_note(make_bus: Any) -> None:
    async with filled(make_bus) as bus, bus.new_consumer("t", group="g") as consumer:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for count in range(1, 21):
            record = await anext(consumer)
            offsets[record.topic_partition] = OffsetAndMetadata(record.next_offset, f"after {count}")
            if count % 8 == 0:
                await consumer.commit(offsets)
        committed = await consumer.committed()
        assert sum(one.offset for one in committed.values()) == 16
        assert {one.metadata for one in committed.values()} <= {"after 8", "after 10", "after 16"}
