"""Groups shared by several consumers, of one bus and of several."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition
from eventbus.client.consumer import Consumer
from eventbus.coordinator.assignors import Assignment, RangeAssignor
from eventbus.errors import (
    ConfigError,
    FencedInstanceId,
    GroupIdNotFound,
    GroupSubscribedToTopic,
    IllegalGeneration,
    InconsistentGroupProtocol,
    InvalidSessionTimeout,
    NonEmptyGroup,
    RebalanceInProgress,
    UnknownMemberId,
)
from tests.support import others_wait

T = [TopicPartition("t", n) for n in range(8)]
COOPERATIVE = {"partition_assignment_strategy": "cooperative-sticky"}


class Clock:
    """Milliseconds, moved by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_800_000_000_000

    def __call__(self) -> int:
        return self.now_ms


class Log:
    """One log that several buses open."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()

    def bus(self, **config: Any) -> EventBus:
        return EventBus(self.url, clock=self.clock, **config)

    def pass_time(self, bus: EventBus, milliseconds: int) -> None:
        self.clock.now_ms += milliseconds
        engine(bus).tick()


def engine(bus: EventBus) -> Any:
    return bus.context.backend.engine


@pytest.fixture(params=["memory", "file"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Log:
    return Log(f"memory://{tmp_path.name}" if request.param == "memory" else f"file://{tmp_path / 'log'}")


@asynccontextmanager
async def opened(log: Log, partitions: int = 8, **config: Any) -> AsyncIterator[EventBus]:
    async with log.bus(**config) as bus:
        await bus.admin.create_topic("t", partitions=partitions)
        yield bus


async def settle(*consumers: Consumer) -> None:
    """Every member polls in turn until the group has nothing to settle any more."""
    for _ in range(5):
        for consumer in consumers:
            assert await consumer.poll(0) == []


async def settle_reading(*consumers: Consumer) -> None:
    for _ in range(5):
        for consumer in consumers:
            await consumer.poll(0)


def numbers(consumer: Consumer) -> list[int]:
    return [partition.partition for partition in consumer.assignment()]


class Heard:
    """Records the calls of a listener in order."""

    def __init__(self) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.listener = {name: self._hear(name) for name in ("on_assigned", "on_revoked", "on_lost")}

    def _hear(self, name: str) -> Callable[[list[TopicPartition]], None]:
        def listener(partitions: list[TopicPartition]) -> None:
            self.events.append((name.removeprefix("on_"), [partition.partition for partition in partitions]))

        return listener

    def take(self) -> list[tuple[str, list[int]]]:
        events, self.events = self.events, []
        return events


# sharing -------------------------------------------------------------------------------------------------------------


async def test_a_sole_member_has_its_partitions_when_subscribe_returns(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one:
        assert numbers(one) == list(range(8))
        assert one.group_metadata().generation_id == 1


@pytest.mark.parametrize(("assignor", "stays_paused"), [("range", False), ("cooperative-sticky", True)])
async def test_a_rebalance_ends_a_pause_where_it_takes_the_partition_away(
    log: Log, assignor: str, stays_paused: bool
) -> None:
    config = {"partition_assignment_strategy": assignor}
    async with opened(log, partitions=2) as bus, bus.new_consumer("t", group="g", **config) as one:
        one.pause(*T[:2])
        async with bus.new_consumer("t", group="g", **config) as two:
            await settle(one, two)
            assert len(numbers(one)) == len(numbers(two)) == 1
            assert one.paused() == (one.assignment() if stays_paused else [])


async def test_consumers_of_one_bus_share_a_group(log: Log) -> None:
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", client_id="a") as one,
        bus.new_consumer("t", group="g", client_id="b") as two,
    ):
        assert numbers(two) == []  # one has to release partitions first
        await settle(one, two)
        assert numbers(one) == [0, 1, 2, 3] and numbers(two) == [4, 5, 6, 7]
        for n in range(8):
            await bus.send("t", b"%d" % n, partition=n)
        assert sorted(r.partition for r in await one.poll()) == [0, 1, 2, 3]
        assert sorted(r.partition for r in await two.poll()) == [4, 5, 6, 7]
        async with bus.new_consumer("t", group="another") as other:
            assert len(await other.poll()) == 8


async def test_consumers_of_two_buses_share_a_group(log: Log) -> None:
    async with opened(log) as bus, log.bus() as second, bus.new_consumer("t", group="g") as one:
        async with second.new_consumer("t", group="g") as two:
            await settle(one, two)
            assert sorted(numbers(one) + numbers(two)) == list(range(8))
        await settle(one)  # it left: the other takes over, without waiting for a session to end
        assert numbers(one) == list(range(8))


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
async def test_every_assignor_shares_all_partitions_while_members_come_and_go(log: Log, assignor: str) -> None:
    async with opened(log) as bus, AsyncExitStack() as stack:
        members: list[Consumer] = []
        for _ in range(3):
            consumer = bus.new_consumer("t", group="g", partition_assignment_strategy=assignor)
            members.append(await stack.enter_async_context(consumer))
            await settle(*members)
            assert sorted(n for member in members for n in numbers(member)) == list(range(8))
        await members.pop(0).aclose()
        await settle(*members)
        assert sorted(n for member in members for n in numbers(member)) == list(range(8))
        assert {len(numbers(member)) for member in members} == {4}


async def test_more_members_than_partitions_leave_some_idle_and_say_so(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        opened(log, partitions=1) as bus,
        bus.new_consumer("t", group="g") as one,
        bus.new_consumer("t", group="g") as two,
    ):
        await settle(one, two)
        assert numbers(one) + numbers(two) == [0]
        described = await bus.admin.describe_group("g")
        assert sorted(len(member.partitions) for member in described.members) == [0, 1]
        assert "group 'g' has 2 members for 1 partition(s): 1 of them are idle" in caplog.text


async def test_members_without_an_assignor_in_common_are_refused_by_name(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g", partition_assignment_strategy="range"):
        with pytest.raises(InconsistentGroupProtocol, match="one assignor in common"):
            async with bus.new_consumer("t", group="g", partition_assignment_strategy="sticky"):
                pass
        assert len((await bus.admin.describe_group("g")).members) == 1


async def test_an_assignor_of_ones_own(log: Log) -> None:
    class LastTakesAll(RangeAssignor):
        name = "last-takes-all"

        def assign(self, partition_counts: Any, subscriptions: Any) -> Assignment:
            last = max(subscriptions)
            return {last: [TopicPartition("t", n) for n in range(partition_counts["t"])]}

    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", partition_assignment_strategy=LastTakesAll) as one,
        bus.new_consumer("t", group="g", partition_assignment_strategy=[LastTakesAll()]) as two,
    ):
        await settle(one, two)
        assert sorted([len(numbers(one)), len(numbers(two))]) == [0, 8]


async def test_an_assignor_that_gives_a_partition_twice_is_refused(log: Log) -> None:
    class Twice(RangeAssignor):
        name = "twice"

        def assign(self, partition_counts: Any, subscriptions: Any) -> Assignment:
            return {member: [T[0]] for member in subscriptions}

    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", partition_assignment_strategy=Twice) as one,
        bus.new_consumer("t", group="g", partition_assignment_strategy=Twice) as two,
    ):
        with pytest.raises(ConfigError, match="assignor 'twice' gave t-0 to both"):
            await settle(one, two)


# what a rebalance stops ----------------------------------------------------------------------------------------------


async def test_an_eager_rebalance_stops_everything(log: Log) -> None:
    heard, heard_too = Heard(), Heard()
    async with opened(log) as bus, bus.new_consumer("t", group="g", client_id="a", **heard.listener) as one:
        assert heard.take() == [("assigned", list(range(8)))]
        async with bus.new_consumer("t", group="g", client_id="b", **heard_too.listener) as two:
            await settle(one, two)
            assert heard.take() == [("revoked", list(range(8))), ("assigned", [0, 1, 2, 3])]
            assert heard_too.take() == [("assigned", [4, 5, 6, 7])]
        assert heard_too.take() == [("revoked", [4, 5, 6, 7])]  # closing calls the listener, too
        await settle(one)
        assert heard.take() == [("revoked", [0, 1, 2, 3]), ("assigned", list(range(8)))]


async def test_a_cooperative_rebalance_stops_only_what_moves(log: Log) -> None:
    heard, heard_too = Heard(), Heard()
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", client_id="a", **COOPERATIVE, **heard.listener) as one,
    ):
        heard.take()
        for n in range(8):
            await bus.send("t", b"before", partition=n)
        assert len(await one.poll()) == 8
        two = bus.new_consumer("t", group="g", client_id="b", **COOPERATIVE, **heard_too.listener)
        async with two:
            # The join is parked until the first member comes by; that one reads on meanwhile.
            await bus.send("t", b"meanwhile", partition=0)
            assert [r.value for r in await one.poll()] == [b"meanwhile"]
            await settle_reading(two, one)
            assert heard.take() == [("revoked", [4, 5, 6, 7])]
            assert heard_too.take() == [("assigned", [4, 5, 6, 7])]
            assert await one.position(T[0]) == 2  # it kept its place: nothing was committed, nothing is read again
        await settle_reading(one)
        assert heard.take() == [("assigned", [4, 5, 6, 7])]


async def test_a_listener_may_commit_before_it_gives_up_and_nothing_is_read_twice(log: Log) -> None:
    async with opened(log) as bus:
        seen: list[tuple[int, bytes]] = []

        async def commit(partitions: list[TopicPartition]) -> None:
            await one.commit()

        async with bus.new_consumer("t", group="g", on_revoked=commit) as one:
            for n in range(8):
                await bus.send("t", b"a", partition=n)
            seen += [(r.partition, r.value) for r in await one.poll()]
            async with bus.new_consumer("t", group="g") as two:
                await settle(one, two)
                for n in range(8):
                    await bus.send("t", b"b", partition=n)
                seen += [(r.partition, r.value) for c in (one, two) for r in await c.poll()]
        assert sorted(seen) == sorted((n, value) for n in range(8) for value in (b"a", b"b"))


async def test_what_was_fetched_under_an_old_generation_never_reaches_the_user(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one:
        for n in range(80):
            await bus.send("t", b"%d" % n, partition=n % 8)
        assert len(await one.poll(max_records=3)) == 3  # 77 more are fetched and wait
        await one.commit()
        async with bus.new_consumer("t", group="g") as two:
            mine, theirs = [], []
            for _ in range(10):
                mine += [r.topic_partition for r in await one.poll(0, max_records=1)]
                theirs += [(r.topic_partition, r.offset) for r in await two.poll(0)]
                if theirs:
                    break
            assert set(mine[1:]) <= set(one.assignment())  # the first came before the rebalance
            committed = await bus.admin.group_offsets("g")
            assert sorted(theirs) == [
                (partition, offset)
                for partition in two.assignment()
                for offset in range(committed.get(partition, (0, ""))[0], 10)
            ]
            assert {partition for partition, _ in theirs} == set(two.assignment())


async def test_a_listener_that_raises_is_heard_and_the_rebalance_goes_on(log: Log) -> None:
    def broken(partitions: list[TopicPartition]) -> None:
        raise ValueError("the listener")

    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", on_revoked=broken) as one,
        bus.new_consumer("t", group="g") as two,
    ):
        with pytest.raises(ValueError, match="the listener"):
            await one.poll(0)
        await settle(one, two)
        assert sorted(numbers(one) + numbers(two)) == list(range(8))
        await one.subscribe("t", on_assigned=lambda partitions: None)  # or closing would raise it again


async def test_offsets_kept_in_a_database_are_found_again_by_a_seek(log: Log) -> None:
    """A row and its offset in one transaction of the database: exactly once, whatever happens in between."""
    import sqlite3

    database = sqlite3.connect(":memory:")
    database.execute("create table rows (value text)")
    database.execute("create table offsets (topic text, partition int, next int, primary key (topic, partition))")

    async def read(count: int) -> None:
        def go_on(partitions: list[TopicPartition]) -> None:
            for partition in partitions:
                row = database.execute("select next from offsets where topic = ? and partition = ?", partition)
                for (next_offset,) in row:
                    consumer.seek(partition, next_offset)

        consumer = bus.new_consumer("t", group="g", on_assigned=go_on)
        async with consumer:
            for record in await consumer.poll(max_records=count):
                with database:
                    database.execute("insert into rows values (?)", (record.value,))
                    database.execute(
                        "insert or replace into offsets values (?, ?, ?)",
                        (record.topic, record.partition, record.next_offset),
                    )

    async with opened(log, partitions=1) as bus:
        await bus.send_many("t", [b"1", b"2", b"3", b"4"])
        await read(2)
        await read(9)
    assert [value for (value,) in database.execute("select value from rows")] == [b"1", b"2", b"3", b"4"]
    database.close()


# waiting -------------------------------------------------------------------------------------------------------------


async def test_a_poll_returns_at_its_timeout_while_its_join_is_parked(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one, bus.new_consumer("t", group="g") as two:
        for _ in range(3):
            assert await two.poll(1) == []
        assert (await bus.admin.describe_group("g")).state == "PreparingRebalance"
        await settle(one, two)
        assert len(numbers(two)) == 4


async def test_a_poll_that_is_cancelled_while_its_join_is_parked_goes_on_with_the_next_one(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one, bus.new_consumer("t", group="g") as two:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(two.poll, 60_000)
            await others_wait()
            tasks.cancel_scope.cancel()
        await settle(one, two)
        assert sorted(numbers(one) + numbers(two)) == list(range(8))
        assert len((await bus.admin.describe_group("g")).members) == 2


async def test_a_listener_that_is_cancelled_is_asked_again(log: Log) -> None:
    asked: list[int] = []
    gate = anyio.Event()

    async def slow(partitions: list[TopicPartition]) -> None:
        asked.append(len(partitions))
        await gate.wait()

    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", on_revoked=slow) as one,
        bus.new_consumer("t", group="g") as two,
    ):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one.poll, 60_000)
            await others_wait()
            tasks.cancel_scope.cancel()
        assert len(numbers(one)) == 8
        gate.set()
        await settle(one, two)
        assert asked == [8, 8] and len(numbers(two)) == 4


async def test_a_listener_of_new_partitions_that_is_cancelled_is_called_again(log: Log) -> None:
    gate, called = anyio.Event(), []

    async def slow(partitions: list[TopicPartition]) -> None:
        called.append(len(partitions))
        await gate.wait()

    async with opened(log) as bus:
        async with bus.new_consumer(group="g", on_assigned=slow) as one:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(one.subscribe, "t")
                await others_wait()
                tasks.cancel_scope.cancel()
            gate.set()
            await bus.send("t", b"x", partition=3)
            assert [r.value for r in await one.poll()] == [b"x"]
            assert called == [8, 8] and len(numbers(one)) == 8
        assert engine(bus)._listeners == {}  # no listener remains, although they were taken twice


async def test_a_seek_of_the_listener_goes_before_the_place_a_consumer_was_at(log: Log) -> None:
    async with opened(log, partitions=1) as bus:
        await bus.admin.create_topic("u")
        await bus.send_many("t", [b"0", b"1", b"2", b"3"])
        async with bus.new_consumer("t", group="g") as one:
            assert len(await one.poll(max_records=3)) == 3
            await one.subscribe("t", "u", on_assigned=lambda partitions: one.seek(T[0], 1))
            assert await one.position(T[0]) == 1


async def test_a_member_that_leaves_while_its_join_is_parked_is_not_waited_for(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one:
        async with bus.new_consumer("t", group="g"):
            pass
        await settle(one)
        assert numbers(one) == list(range(8))
        assert len((await bus.admin.describe_group("g")).members) == 1


async def test_a_waiting_poll_wakes_for_a_rebalance(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.poll, 60_000)
        await others_wait()
        async with bus.new_consumer("t", group="g") as two:
            with anyio.fail_after(5):
                assert len(await two.assigned()) == 4
        tasks.cancel_scope.cancel()


async def test_assigned_waits_and_keeps_what_it_fetched(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer(group="g") as one:
        for n in range(8):
            await bus.send("t", b"%d" % n, partition=n)
        await one.subscribe("t")
        async with bus.new_consumer("t", group="g") as two, anyio.create_task_group() as tasks:
            tasks.start_soon(two.assigned)
            await others_wait()
            await one.poll(0)
            await others_wait()
            await one.poll(0)
            tasks.cancel_scope.cancel()
        assert await one.assigned()


async def test_one_consumer_one_task(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one, anyio.create_task_group() as tasks:
        tasks.start_soon(one.poll, 60_000)
        await others_wait()
        for use in (one.poll, one.__anext__, lambda: one.subscribe("t")):
            with pytest.raises(ConfigError, match="one consumer, one task"):
                await use()
        tasks.cancel_scope.cancel()


@pytest.mark.system
async def test_a_hundred_members_over_two_hundred_partitions(log: Log) -> None:
    async with opened(log, partitions=200) as bus, AsyncExitStack() as stack:
        members = [await stack.enter_async_context(bus.new_consumer("t", group="g", **COOPERATIVE)) for _ in range(100)]
        async with anyio.create_task_group() as tasks:
            for member in members:
                tasks.start_soon(member.poll, 60_000)
            while {len(numbers(member)) for member in members} != {2}:
                await others_wait()
            tasks.cancel_scope.cancel()
        assert sorted(n for member in members for n in numbers(member)) == list(range(200))


# members that fail ---------------------------------------------------------------------------------------------------


async def test_a_cancelled_task_leaves_at_once(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g") as one:

        async def run() -> None:
            async with bus.new_consumer("t", group="g") as two:
                async for _ in two:
                    pass

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await others_wait()
            await one.poll(0)
            await others_wait()
            await one.poll(0)
            assert len(numbers(one)) == 4
            tasks.cancel_scope.cancel()
        await settle(one)
        assert len(numbers(one)) == 8


async def test_who_does_not_poll_for_max_poll_interval_loses_its_partitions_and_may_come_back(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard()
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", max_poll_interval_ms=10_000, **heard.listener) as slow,
        bus.new_consumer("t", group="g") as other,
    ):
        await settle(slow, other)
        for n in range(8):
            await bus.send("t", b"x", partition=n)
        held = numbers(slow)
        (record,) = await slow.poll(max_records=1)
        heard.take()
        log.pass_time(bus, 10_000)  # not longer than allowed
        await other.poll(0)
        assert numbers(slow) == held
        log.pass_time(bus, 10_001)
        assert numbers(slow) == []  # at once, with what it had fetched ahead
        assert "no poll for 20,001 ms, more than max_poll_interval_ms=10,000" in caplog.text
        with pytest.raises(UnknownMemberId):
            await slow.commit({record.topic_partition: record.next_offset})
        assert await bus.admin.group_offsets("g") == {}
        assert len(await other.poll()) in (4, 8)
        await other.poll(0)
        assert len(numbers(other)) == 8
        await slow.poll(0)
        assert heard.take() == [("lost", held)]
        await settle_reading(slow, other)
        assert len(numbers(slow)) == 4


async def test_partitions_lost_while_offsets_are_looked_up_are_left_out(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(log, partitions=2) as bus:
        await bus.send("t", b"x", partition=0)

        async def look_up(call: Callable[[Consumer], Any], patched: str = "_backend.list_offsets") -> Any:
            async with bus.new_consumer("t", group="g", max_poll_interval_ms=1_000) as consumer:
                owner, name = patched.split(".")
                answer = getattr(getattr(consumer, owner), name)

                async def lose_and_answer(*asked: Any) -> Any:
                    log.pass_time(bus, 2_000)
                    return await answer(*asked)

                monkeypatch.setattr(getattr(consumer, owner), name, lose_and_answer)
                try:
                    found = await call(consumer)
                finally:
                    monkeypatch.undo()
                assert consumer.assignment() == []
                return found

        async def read_to_end(consumer: Consumer) -> list[Any]:
            return [record async for record in consumer.until_end()]

        await look_up(lambda consumer: consumer.seek_to_beginning())
        await look_up(lambda consumer: consumer.seek_to_time(1))
        assert await look_up(read_to_end, "_consumer.end_offsets") == []
        assert await look_up(lambda consumer: consumer.lag(T[0]), "_consumer.end_offsets") == 1
        assert await look_up(lambda consumer: consumer.uncommitted(T[0]), "_consumer.committed") == 0


async def test_a_poll_interval_that_passes_during_a_rebalance_loses_the_partitions_all_the_same(log: Log) -> None:
    """A known trap: the rebalance under way must not hide the loss, or what it held is committed after all."""
    heard = Heard()
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", max_poll_interval_ms=10_000, **heard.listener) as slow,
        bus.new_consumer("t", group="g", max_poll_interval_ms=100_000) as other,
    ):
        heard.take()
        assert (await bus.admin.describe_group("g")).state == "PreparingRebalance"
        log.pass_time(bus, 10_001)
        assert numbers(slow) == []
        await other.poll(0)
        assert numbers(other) == list(range(8))
        with pytest.raises((UnknownMemberId, IllegalGeneration)):
            await slow.commit({T[0]: 1})
        await settle(slow, other)
        assert heard.take()[0] == ("lost", list(range(8)))
        assert len(numbers(slow)) == len(numbers(other)) == 4


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
async def test_a_partition_that_comes_back_is_read_from_what_was_committed_meanwhile(log: Log, assignor: str) -> None:
    config = {"group": "g", "partition_assignment_strategy": assignor}
    async with opened(log) as bus, bus.new_consumer("t", client_id="a", **config) as one:
        for n in range(80):
            await bus.send("t", b"%d" % n, partition=n % 8)
        assert len(await one.poll()) == 80  # and nothing of it is committed
        async with bus.new_consumer("t", client_id="b", **config) as two:
            await settle_reading(one, two)
            moved = two.assignment()
            await two.commit(dict.fromkeys(moved, 6))
        for _ in range(5):
            records = [r for r in await one.poll(0) if r.topic_partition in moved]
            if records:
                break
        assert sorted((r.topic_partition, r.offset) for r in records) == [
            (partition, offset) for partition in moved for offset in range(6, 10)
        ]


async def test_polling_what_was_fetched_ahead_counts_as_polling(log: Log) -> None:
    async with opened(log, partitions=1) as bus, bus.new_consumer("t", group="g", max_poll_interval_ms=10_000) as one:
        await bus.send_many("t", [b"x"] * 10)
        for _ in range(10):
            assert len(await one.poll(max_records=1)) == 1
            log.pass_time(bus, 9_000)
        assert numbers(one) == [0]


async def test_a_member_in_a_long_poll_is_alive(log: Log) -> None:
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", max_poll_interval_ms=10_000) as one,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(one.poll, 60_000)
        await others_wait()
        log.pass_time(bus, 3_600_000)
        assert len(numbers(one)) == 8
        tasks.cancel_scope.cancel()


async def test_members_of_a_stalled_process_are_not_given_up_by_it(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g", max_poll_interval_ms=10_000_000) as one:
        log.pass_time(bus, 5_000_000)  # far beyond the session, in one step: the loop was blocked, say
        assert (await bus.admin.describe_group("g")).state == "Stable"
        assert len(numbers(one)) == 8


async def test_a_member_whose_session_ended_hears_of_it_and_joins_again(log: Log) -> None:
    heard = Heard()
    async with opened(log) as bus, bus.new_consumer("t", group="g", **heard.listener) as one:
        heard.take()
        before = one.group_metadata()
        engine(bus).groups.leave("g", [(before.member_id, None)], log.clock.now_ms)  # as if it had expired
        log.pass_time(bus, 3_000)  # its next heartbeat
        assert numbers(one) == []
        with pytest.raises((UnknownMemberId, IllegalGeneration)):
            await one.commit({T[0]: 1})
        await one.poll(0)
        assert heard.take() == [("lost", list(range(8))), ("assigned", list(range(8)))]
        assert one.group_metadata().member_id != before.member_id


async def test_without_on_lost_the_revoked_listener_is_called(log: Log) -> None:
    heard = Heard()
    listener = {name: heard.listener[name] for name in ("on_assigned", "on_revoked")}
    async with opened(log) as bus, bus.new_consumer("t", group="g", max_poll_interval_ms=10_000, **listener) as one:
        heard.take()
        log.pass_time(bus, 10_001)
        await one.poll(0)
        assert heard.take() == [("revoked", list(range(8))), ("assigned", list(range(8)))]


async def test_commits_of_an_old_generation_are_refused(log: Log) -> None:
    async with opened(log) as bus, bus.new_consumer("t", group="g", **COOPERATIVE) as one:
        old = one.group_metadata()
        async with bus.new_consumer("t", group="g", **COOPERATIVE) as two:
            await settle(one, two)
            groups = engine(bus).groups
            with pytest.raises(IllegalGeneration):
                groups.commit_offsets(old, {T[7]: OffsetAndMetadata(1)}, log.clock.now_ms)
            with pytest.raises(UnknownMemberId):
                groups.commit_offsets("g", {T[7]: OffsetAndMetadata(1)}, log.clock.now_ms)
            await two.commit({T[7]: 5})
        assert await bus.admin.group_offsets("g") == {T[7]: OffsetAndMetadata(5)}


async def test_a_commit_while_the_new_generation_is_not_assigned_says_so(log: Log) -> None:
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="g", **COOPERATIVE) as one,
        bus.new_consumer("t", group="g", **COOPERATIVE) as two,
    ):
        await one.poll(0)  # both have joined; the leader has not assigned
        await two.poll(0)
        assert (await bus.admin.describe_group("g")).state == "CompletingRebalance"
        with pytest.raises(RebalanceInProgress):
            await two.commit({T[0]: 1})
        await settle(one, two)
        assert sorted(numbers(one) + numbers(two)) == list(range(8))


# static members ------------------------------------------------------------------------------------------------------


async def test_a_static_member_that_restarts_within_its_session_keeps_its_partitions(log: Log) -> None:
    heard = Heard()
    async with opened(log) as bus, bus.new_consumer("t", group="g", group_instance_id="b", **heard.listener) as other:
        static = {"group": "g", "group_instance_id": "a", "session_timeout_ms": 30_000}
        async with bus.new_consumer("t", **static) as one:
            await settle(one, other)
            held = numbers(one)
        heard.take()
        generation = other.group_metadata().generation_id
        log.pass_time(bus, 20_000)
        async with bus.new_consumer("t", **static) as one:
            assert numbers(one) == held
            await settle(one, other)
            assert numbers(one) == held and heard.take() == []
            assert other.group_metadata().generation_id == generation
        log.pass_time(bus, 30_001)  # gone for longer than its session
        await settle(other)
        assert numbers(other) == list(range(8))


async def test_the_older_of_two_members_with_one_static_id_is_fenced(log: Log) -> None:
    heard = Heard()
    async with opened(log) as bus, bus.new_consumer("t", group="g", group_instance_id="a", **heard.listener) as one:
        heard.take()
        async with bus.new_consumer("t", group="g", group_instance_id="a") as two:
            assert numbers(two) == list(range(8))
            assert numbers(one) == []  # at once: both live in this process
            with pytest.raises(FencedInstanceId, match="'a'"):
                await one.commit({T[0]: 1})
            for _ in range(2):
                with pytest.raises(FencedInstanceId, match="each running consumer needs one of its own"):
                    await one.poll(0)
            assert heard.take() == [("lost", list(range(8)))]
            log.pass_time(bus, 3_000)
            assert numbers(two) == list(range(8))


# topics change -------------------------------------------------------------------------------------------------------


async def test_new_partitions_are_shared_and_read_from_their_beginning(log: Log) -> None:
    async with (
        opened(log, partitions=2) as bus,
        bus.new_consumer("t", group="g", start="latest") as one,
        bus.new_consumer("t", group="g", start="latest") as two,
    ):
        await settle(one, two)
        await bus.admin.add_partitions("t", 4)
        await bus.send("t", b"first", partition=2)
        await bus.send("t", b"first", partition=3)
        found: list[int] = []
        for _ in range(5):
            for consumer in (two, one):  # the leader, whichever it is, sees the change, and the follower joins it
                found += [r.partition for r in await consumer.poll(0)]
        assert sorted(found) == [2, 3]
        assert sorted(numbers(one) + numbers(two)) == [0, 1, 2, 3] and len(numbers(one)) == 2


async def test_topics_that_match_a_pattern_are_taken_up_and_given_up(log: Log) -> None:
    async with log.bus() as bus:
        await bus.admin.create_topic("a.1", partitions=2)
        async with (
            bus.new_consumer(group="g", pattern=r"a\..*") as one,
            bus.new_consumer(group="g", pattern=r"a\..*") as two,
        ):
            await settle(one, two)
            await bus.admin.create_topic("a.2", partitions=2)
            await bus.admin.create_topic("b")
            await settle(one, two)
            assert sorted(one.assignment() + two.assignment()) == [("a.1", 0), ("a.1", 1), ("a.2", 0), ("a.2", 1)]
            await bus.admin.delete_topics("a.1")
            assert all(partition.topic == "a.2" for partition in one.assignment() + two.assignment())
            await settle(one, two)
            assert sorted(one.assignment() + two.assignment()) == [("a.2", 0), ("a.2", 1)]
            assert len(one.assignment()) == 1


async def test_a_pattern_that_matches_nothing_yet(log: Log) -> None:
    async with log.bus() as bus, bus.new_consumer(group="g", pattern="later.*") as one:
        assert await one.poll(0) == [] == one.assignment()
        assert len((await bus.admin.describe_group("g")).members) == 1
        await bus.admin.create_topic("later")
        await bus.send("later", b"x")
        assert [r.value for r in await one.poll()] == [b"x"]


async def test_a_topic_deleted_under_a_group_and_made_anew(log: Log) -> None:
    heard = Heard()
    async with (
        opened(log, partitions=2) as bus,
        bus.new_consumer("t", group="g", client_id="a", **heard.listener) as one,
        bus.new_consumer("t", group="g", client_id="b") as two,
    ):
        await settle(one, two)
        heard.take()
        for n in range(2):
            await bus.send("t", b"old", partition=n)
        assert [r.value for c in (one, two) for r in await c.poll()] == [b"old", b"old"]
        await bus.admin.delete_topics("t")
        assert one.assignment() == two.assignment() == []
        await bus.admin.create_topic("t", partitions=2)
        await bus.send("t", b"new", partition=0)
        found = [r.value for _ in range(5) for c in (one, two) for r in await c.poll(0)]
        assert found == [b"new"]
        assert heard.take() == [("lost", [0]), ("assigned", [0])]


async def test_a_changed_subscription_is_a_rebalance(log: Log) -> None:
    async with opened(log, partitions=2) as bus:
        await bus.admin.create_topic("u", partitions=2)
        async with bus.new_consumer("t", group="g") as one, bus.new_consumer("t", group="g") as two:
            await settle(one, two)
            await two.subscribe("u")
            await settle(one, two)
            assert one.assignment() == [("t", 0), ("t", 1)]
            assert two.assignment() == [("u", 0), ("u", 1)]


async def test_a_sole_member_that_subscribes_to_more_goes_on_where_it_is(log: Log) -> None:
    async with opened(log, partitions=1) as bus:
        await bus.admin.create_topic("u")
        async with bus.new_consumer("t", group="g") as one:
            await bus.send_many("t", [b"1", b"2"])
            assert [r.value for r in await one.poll(max_records=1)] == [b"1"]
            await one.subscribe("t", "u")
            assert [r.value for r in await one.poll()] == [b"2"]


# restarts and clocks -------------------------------------------------------------------------------------------------


async def test_members_of_a_process_that_died_are_gone_and_static_ones_keep_their_place(tmp_path: Path) -> None:
    log = Log(f"file://{tmp_path / 'log'}")
    after = Log(f"file://{tmp_path / 'copy'}")
    after.clock = log.clock
    async with (
        opened(log) as bus,
        bus.new_consumer("t", group="dynamic") as one,
        bus.new_consumer("t", group="dynamic") as two,
        bus.new_consumer("t", group="static", group_instance_id="a") as three,
    ):
        await settle(one, two)
        await two.commit({T[7]: 3})
        await three.commit({T[7]: 4})
        static = three.group_metadata()
        shutil.copytree(tmp_path / "log", tmp_path / "copy", ignore=shutil.ignore_patterns(".lock"))
    async with after.bus() as bus:
        assert (await bus.admin.describe_group("dynamic")).members == ()
        async with bus.new_consumer("t", group="dynamic") as one:
            assert numbers(one) == list(range(8))  # without waiting for sessions of the dead
            assert await one.position(T[7]) == 3
        assert [member.member_id for member in (await bus.admin.describe_group("static")).members] == [static.member_id]
        async with bus.new_consumer("t", group="static", group_instance_id="a") as three:
            assert numbers(three) == list(range(8))
            assert three.group_metadata().generation_id == static.generation_id
            assert await three.position(T[7]) == 4


async def test_a_wall_clock_that_jumps_by_a_day_expires_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    now = time.time_ns
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t", partitions=2)
        async with bus.new_consumer("t", group="g", session_timeout_ms=6_000, heartbeat_interval_ms=2_000) as one:
            for days in (1, -1):
                monkeypatch.setattr(time, "time_ns", lambda days=days: now() + days * 86_400_000_000_000)
                assert abs(engine(bus).clock() - now() // 1_000_000) > 80_000_000  # records carry the wall clock
                engine(bus).tick()
                await one.poll(0)
                assert numbers(one) == [0, 1]
                assert one.group_metadata().generation_id == 1


async def test_the_housekeeping_wakes_for_a_deadline_that_came_nearer(log: Log) -> None:
    async with opened(log) as bus:
        woken = engine(bus)._nearer_deadline
        engine(bus)._next_tick_ms = log.clock.now_ms + 10**9
        async with bus.new_consumer("t", group="g", session_timeout_ms=6_000, heartbeat_interval_ms=1_000):
            assert woken.is_set()  # a session of six seconds began


# administration ------------------------------------------------------------------------------------------------------


async def test_groups_are_listed_and_described(log: Log) -> None:
    async with opened(log, partitions=2) as bus, bus.new_consumer("t", group="g", client_id="app") as one:
        (listed,) = await bus.admin.list_groups()
        assert listed == ("g", "consumer", "Stable", "classic")
        described = await bus.admin.describe_group("g")
        (member,) = described.members
        assert (described.state, described.protocol_name, described.generation_id) == ("Stable", "range", 1)
        assert member.client_id == "app" and member.member_id == one.group_metadata().member_id
        assert member.topics == ("t",) and member.partitions == (T[0], T[1])
        assert [one.state for one in await bus.admin.describe_groups(["g", "nope"])] == ["Stable", "Dead"]


async def test_what_a_group_with_members_refuses(log: Log) -> None:
    async with opened(log) as bus:
        async with bus.new_consumer("t", group="g") as one:
            await one.commit({T[0]: 1, T[1]: 2})
            with pytest.raises(NonEmptyGroup):
                await bus.admin.delete_group("g")
            with pytest.raises(UnknownMemberId):
                await bus.admin.alter_group_offsets("g", {T[0]: 0})
            with pytest.raises(GroupSubscribedToTopic):
                await bus.admin.delete_group_offsets("g", [T[0]])
        await bus.admin.delete_group_offsets("g", [T[0]])
        await bus.admin.alter_group_offsets("g", {T[2]: OffsetAndMetadata(7, "reset")})
        assert await bus.admin.group_offsets("g") == {T[1]: (2, ""), T[2]: (7, "reset")}
        await bus.admin.delete_group("g")
        with pytest.raises(GroupIdNotFound):
            await bus.admin.delete_group("g")


async def test_members_are_removed_by_an_administrator(log: Log) -> None:
    heard = Heard()
    async with opened(log) as bus:
        async with (
            bus.new_consumer("t", group="g", **heard.listener) as one,
            bus.new_consumer("t", group="g", group_instance_id="static") as two,
        ):
            await settle(one, two)
            heard.take()
            with pytest.raises(UnknownMemberId, match="did you mean 'static'"):
                await bus.admin.remove_group_members("g", ["statik"])
            await bus.admin.remove_group_members("g", one.group_metadata().member_id)
            assert numbers(one) == []
            await settle(one, two)  # it runs, so it comes back
            assert len(numbers(one)) == len(numbers(two)) == 4
        await bus.admin.remove_group_members("g")  # the static member's place, which no member will claim
        assert (await bus.admin.describe_group("g")).members == ()


async def test_settings_out_of_bounds_are_named(log: Log) -> None:
    async with opened(log) as bus:
        with pytest.raises(InvalidSessionTimeout, match="session_timeout_ms=100 is outside the log's bounds"):
            async with bus.new_consumer("t", group="g", session_timeout_ms=100, heartbeat_interval_ms=10):
                pass
        with pytest.raises(ConfigError, match="heartbeat_interval_ms=3000 must be below session_timeout_ms=3000"):
            bus.new_consumer("t", group="g", session_timeout_ms=3_000)
