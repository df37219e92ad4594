"""The explicit consumer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecords, GroupMetadata, OffsetAndMetadata, TopicPartition
from eventbus.errors import (
    ConfigError,
    NoCommittedOffset,
    OffsetOutOfRange,
    SerializationError,
    UnknownMemberId,
    UnknownTopicOrPartition,
)
from tests.support import others_wait

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def filled(make_bus: Any) -> Any:
    """A bus with topic t, 2 partitions, ten records each: value = offset, timestamps 1000, 1010, ..."""

    @asynccontextmanager
    async def filled() -> AsyncIterator[Any]:
        async with make_bus() as bus:
            await bus.admin.create_topic("t", partitions=2)
            for n in range(10):
                for partition in (0, 1):
                    bus.send_nowait("t", b"%d" % n, partition=partition, timestamp_ms=1000 + 10 * n)
            await bus.flush()
            yield bus

    return filled


async def test_poll_returns_each_record_once_in_order_per_partition(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", group="g") as consumer:
        seen: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, seen.values())) < 20:
            records = await consumer.poll(max_records=3)
            assert 0 < len(records) <= 3
            for record in records:
                seen[record.partition].append(record.offset)
        assert seen == {0: list(range(10)), 1: list(range(10))}
        assert await consumer.poll(timeout_ms=0) == []
        assert await consumer.lag(T0) == 0


async def test_commit_covers_what_poll_returned_and_no_more(filled: Any) -> None:
    async with filled() as bus:
        async with bus.new_consumer(group="g") as consumer:
            await consumer.assign([T0])
            assert [r.offset for r in await consumer.poll(max_records=4)] == [0, 1, 2, 3]
            assert await consumer.position(T0) == 4
            await consumer.commit()
            assert await consumer.committed(T0) == {T0: OffsetAndMetadata(4)}
        async with bus.new_consumer("t", group="g") as consumer:
            offsets = [r.offset for r in await consumer.poll(max_records=100) if r.partition == 0]
            assert offsets == [4, 5, 6, 7, 8, 9]
            await consumer.commit({T1: OffsetAndMetadata(7, "half way")})
        assert (await bus.admin.group_offsets("g"))[T1] == (7, "half way")


async def test_async_iteration(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", value=str) as consumer:
        values = []
        async for record in consumer:
            values.append(record.value)
            if len(values) == 20:
                break
    assert sorted(values) == sorted([str(n) for n in range(10)] * 2)


async def test_iteration_commits_only_what_was_handed_out(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        await consumer.assign([T0])
        async for record in consumer:
            if record.offset == 2:
                await consumer.commit()
                break
        assert (await consumer.committed(T0))[T0].offset == 3


async def test_iteration_and_poll_share_what_was_fetched_and_one_position(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        await consumer.assign([T0])
        assert (await anext(consumer)).offset == 0
        assert [r.offset for r in await consumer.poll(max_records=2)] == [1, 2]
        assert (await anext(consumer)).offset == 3
        assert await consumer.position(T0) == 4
        await consumer.commit()
        assert (await consumer.committed(T0))[T0].offset == 4


async def test_iteration_fetches_once_for_many_records(filled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with filled() as bus, bus.new_consumer("t") as consumer:
        fetch, waits = consumer._consumer.fetch, []

        async def counted(max_wait_ms: int | None = None) -> Any:
            waits.append(max_wait_ms)
            return await fetch(max_wait_ms)

        monkeypatch.setattr(consumer._consumer, "fetch", counted)
        for _ in range(20):
            await anext(consumer)
        assert len(waits) <= 2  # once, or once per partition


async def test_seeking(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer() as consumer:
        await consumer.assign([T0])
        consumer.seek(T0, 7)
        assert [r.offset for r in await consumer.poll()] == [7, 8, 9]
        await consumer.seek_to_beginning()
        assert [r.offset for r in await consumer.poll(max_records=2)] == [0, 1]
        await consumer.seek_to_end(T0)
        assert await consumer.poll(timeout_ms=0) == []
        found = await consumer.offsets_for_times({T0: 1045, T1: 9_000_000_000_000})
        assert found[T0] == (5, 1050) and found[T1] is None
        with pytest.raises(ConfigError, match="not assigned"):
            consumer.seek(T1, 0)
        with pytest.raises(ConfigError, match="0 or more"):
            consumer.seek(T0, -5)


async def test_a_paused_partition_is_not_read(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t") as consumer:
        first = await consumer.poll(max_records=2)
        paused = first[0].topic_partition
        consumer.pause(paused)
        rest = await consumer.poll(max_records=100)
        assert {r.partition for r in rest} == {1 - paused.partition}
        assert await consumer.position(paused) == 2
        consumer.resume(paused)
        assert [r.offset for r in await consumer.poll(max_records=100)] == list(range(2, 10))


async def test_a_waiting_poll_returns_as_soon_as_a_record_comes(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", start="latest") as consumer:

        async def send() -> None:
            await anyio.lowlevel.checkpoint()
            await bus.send("t", b"now", partition=1)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            with anyio.fail_after(5):
                (record,) = await consumer.poll(timeout_ms=60_000)
        assert (record.partition, record.value) == (1, b"now")


async def test_two_tasks_cannot_poll_one_consumer(filled: Any) -> None:
    async with (
        filled() as bus,
        bus.new_consumer("t", start="latest") as consumer,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(consumer.poll, 60_000)
        await others_wait()
        with pytest.raises(ConfigError, match="one consumer, one task"):
            await consumer.poll()
        tasks.cancel_scope.cancel()


async def test_start_none_without_a_commit_is_an_error(filled: Any) -> None:
    async with filled() as bus:
        with pytest.raises(NoCommittedOffset, match="group 'fresh' has no committed offset for t-0"):
            async with bus.new_consumer("t", group="fresh", start="none"):
                pass
        async with bus.new_consumer(group="g", start="none") as consumer:
            await bus.admin.alter_group_offsets("g", {T0: 3})
            await consumer.assign([T0])
            consumer.seek(T0, 99)
            with pytest.raises(OffsetOutOfRange):
                await consumer.poll()


async def test_an_offset_out_of_range_resets_loudly(filled: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with filled() as bus, bus.new_consumer() as consumer:
        await consumer.assign([T0])
        consumer.seek(T0, 99)
        assert [r.offset for r in await consumer.poll()] == list(range(10))
    assert "t-0: offset 99 is out of range" in caplog.text


async def _mixed(bus: Any, *values: bytes) -> None:
    """Topic m of one partition: "1" to "9" can be read as int, "x" cannot."""
    await bus.admin.create_topic("m")
    for value in values:
        await bus.send("m", value)


M0 = TopicPartition("m", 0)


class Digits:
    """A serde that refuses what is not a number."""

    def serialize(self, topic: str, value: Any) -> bytes:
        return str(value).encode()

    def deserialize(self, topic: str, data: bytes) -> Any:
        return int(data)


async def test_records_before_an_unreadable_one_are_returned_before_its_error(make_bus: Any) -> None:
    async with make_bus(serdes={int: Digits()}) as bus:
        await _mixed(bus, b"1", b"2", b"x", b"4")
        async with bus.new_consumer("m", group="g", value=int) as consumer:
            assert [r.value for r in await consumer.poll()] == [1, 2]
            assert await consumer.position(M0) == 2
            await consumer.commit()
            assert (await consumer.committed(M0))[M0].offset == 2
            with pytest.raises(SerializationError, match="m-0 offset 2"):
                await consumer.poll()
            assert await consumer.position(M0) == 3
            assert [r.value for r in await consumer.poll()] == [4]
            await consumer.commit()
            assert (await consumer.committed(M0))[M0].offset == 4


async def test_an_unreadable_last_record_leaves_the_position_behind_it(make_bus: Any) -> None:
    async with make_bus(serdes={int: Digits()}) as bus:
        await _mixed(bus, b"x")
        async with bus.new_consumer("m", group="g", value=int) as consumer:
            with pytest.raises(SerializationError):
                await consumer.poll()
            assert await consumer.position(M0) == 1
            consumer.pause(M0)
            consumer.resume(M0)
            await bus.send("m", b"5")
            assert [r.value for r in await consumer.poll()] == [5]


async def test_iteration_goes_on_after_an_unreadable_record(make_bus: Any) -> None:
    async with make_bus(serdes={int: Digits()}) as bus:
        await _mixed(bus, b"1", b"x", b"3")
        async with bus.new_consumer("m", value=int) as consumer:
            assert (await anext(consumer)).value == 1
            with pytest.raises(SerializationError):
                await anext(consumer)
            assert (await anext(consumer)).value == 3


async def test_kept_partitions_lose_nothing_when_others_are_assigned(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer(group="g") as consumer:
        await consumer.assign([T0])
        assert [r.offset for r in await consumer.poll(max_records=1)] == [0]
        await consumer.assign([T0, T1])
        assert await consumer.position(T0) == 1
        await consumer.commit()
        assert await consumer.committed(T0) == {T0: OffsetAndMetadata(1)}
        rest = await consumer.poll(max_records=100)
        assert [r.offset for r in rest if r.partition == 0] == list(range(1, 10))
        await consumer.assign([T1])
        await consumer.commit()
        assert await consumer.committed(T0) == {T0: OffsetAndMetadata(1)}  # given up: no longer ours to commit


@pytest.mark.parametrize("start", ["earliest", "latest"])
async def test_kept_partitions_go_on_where_they_are_when_more_is_subscribed(make_bus: Any, start: str) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("m")
        await bus.admin.create_topic("other")
        async with bus.new_consumer("m", start=start) as consumer:
            await bus.send_many("m", [b"1", b"2", b"3"])
            assert [r.value for r in await consumer.poll(max_records=1)] == [b"1"]
            await consumer.subscribe("m", "other")
            assert [r.value for r in await consumer.poll()] == [b"2", b"3"]


async def test_pause_does_not_take_returned_records_out_of_the_commit(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", group="g") as consumer:
        paused = (await consumer.poll(max_records=2))[0].topic_partition
        consumer.pause(paused)
        await consumer.commit()
        assert await consumer.committed() == {paused: OffsetAndMetadata(2)}


@pytest.mark.parametrize("polled", [2, 5])
async def test_a_topic_created_anew_is_read_from_its_beginning(make_bus: Any, polled: int) -> None:
    async with make_bus() as bus:
        await _mixed(bus, *[b"old"] * 5)
        async with bus.new_consumer("m", group="g") as consumer:
            assert len(await consumer.poll(max_records=polled)) == polled
            await bus.admin.delete_topics("m")
            await bus.admin.create_topic("m")
            await bus.send_many("m", [b"new0", b"new1", b"new2"])
            await consumer.commit()
            assert await consumer.committed() == {}  # what was read is gone, and so is its offset
            assert [r.value for r in await consumer.poll(max_records=1)] == [b"new0"]
            await consumer.commit()
            assert await consumer.committed() == {M0: OffsetAndMetadata(1)}
            assert [r.value for r in await consumer.poll()] == [b"new1", b"new2"]


async def test_records_after_a_reset_are_not_taken_for_seen_ones(filled: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with filled() as bus, bus.new_consumer("t", group="g") as consumer:
        assert len(await consumer.poll()) == 20
        for partition in (T0, T1):
            consumer._consumer.seek(partition, 99)  # retention or a shorter log: the backend resets by itself
        (first,) = await consumer.poll(max_records=1)
        assert first.offset == 0
        await consumer.commit()  # the other partition was reset too and nothing of it returned since
        assert await consumer.committed() == {first.topic_partition: OffsetAndMetadata(1)}
        assert len(await consumer.poll()) == 19
    assert "out of range" in caplog.text


async def test_a_consumer_opened_again_remembers_nothing(filled: Any) -> None:
    async with filled() as bus:
        consumer = bus.new_consumer("t", group="g")
        for _ in range(2):
            async with consumer:
                assert [r.offset for r in await consumer.poll(max_records=1)] == [0]


async def test_an_unreadable_value_names_its_place_and_is_passed(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer(value=int) as consumer:
        await consumer.assign([T0])
        with pytest.raises(SerializationError, match=r"the value of t-0 offset 0 cannot be read: expected 8 bytes"):
            await consumer.poll()
        assert await consumer.position(T0) == 1


async def test_misuse(filled: Any) -> None:
    async with filled() as bus:
        consumer = bus.new_consumer("t")
        with pytest.raises(ConfigError, match="not open"):
            await consumer.poll()
        async with consumer:
            with pytest.raises(ConfigError, match="either subscribe"):
                await consumer.assign([T0])
            with pytest.raises(ConfigError, match="needs a group"):
                await consumer.commit({T0: 1})
        async with bus.new_consumer() as other:
            with pytest.raises(UnknownTopicOrPartition, match="no partition 9"):
                await other.assign([TopicPartition("t", 9)])
        with pytest.raises(ConfigError, match="unknown consumer setting 'strat'"):
            bus.new_consumer("t", strat="latest")


async def test_groups_are_listed_altered_and_deleted(filled: Any) -> None:
    async with filled() as bus:
        await bus.admin.alter_group_offsets("g", {T0: 5})
        assert [one.group for one in await bus.admin.list_groups()] == ["g"]
        async with bus.new_consumer("t", group="g") as consumer:
            assert await consumer.position(T0) == 5
            with pytest.raises(UnknownMemberId, match="stop them first"):
                await bus.admin.alter_group_offsets("g", {T0: 0})
        await bus.admin.delete_group("g")
        assert await bus.admin.list_groups() == []


async def test_offsets_of_a_topic_that_is_not_there_are_refused(filled: Any) -> None:
    async with filled() as bus:
        with pytest.raises(UnknownTopicOrPartition):
            await bus.admin.alter_group_offsets("g", {TopicPartition("nope", 0): 5})


@pytest.mark.parametrize("start", ["by_duration:PT0.06S", timedelta(milliseconds=60)])
async def test_start_by_duration(make_bus: Any, start: Any) -> None:
    async with make_bus(clock=lambda: 1100) as bus:
        await bus.admin.create_topic("t")
        for n in range(10):
            await bus.send("t", b"%d" % n, timestamp_ms=1000 + 10 * n)
        async with bus.new_consumer("t", group="g", start=start) as consumer:
            assert [r.timestamp_ms for r in await consumer.poll()] == [1040, 1050, 1060, 1070, 1080, 1090]
        async with bus.new_consumer("t", start=timedelta(milliseconds=5)) as consumer:
            assert await consumer.poll(timeout_ms=0) == []  # nothing is that new: from the end
            await bus.send("t", b"now")
            assert [r.value for r in await consumer.poll()] == [b"now"]


async def test_seek_by_time(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", group="g") as consumer:
        await consumer.seek_to_time(1055)
        assert await consumer.position(T0) == await consumer.position(T1) == 6
        await consumer.seek_to_time(9_000_000_000_000, T0)
        assert (await consumer.position(T0), await consumer.position(T1)) == (10, 6)


@pytest.mark.system
async def test_reading_begins_where_an_open_transaction_will_have_committed(filled: Any) -> None:
    """KIP-447: the offset before it would be read twice, once it commits."""
    async with filled() as bus:
        await bus.admin.alter_group_offsets("g", {T0: 2, T1: 3})
        async with anyio.create_task_group() as tasks:
            async with bus.transaction("id") as tx:
                await tx.send_offsets({T0: 8}, GroupMetadata("g"))
                consumer = bus.new_consumer("t", group="g")
                await consumer.__aenter__()
                assert {r.partition for r in await consumer.poll(timeout_ms=0)} == {1}
                assert await consumer.poll(timeout_ms=0) == []
                found: list[Any] = []

                async def wait() -> None:
                    found.extend(await consumer.poll(timeout_ms=60_000))

                tasks.start_soon(wait)
                await others_wait()
                assert found == []
            with anyio.fail_after(5):
                while not found:
                    await anyio.lowlevel.checkpoint()
        assert [r.offset for r in found] == [8, 9] and found[0].partition == 0
        assert await consumer.position(T0) == 10
        await consumer.aclose()
        async with bus.transaction("id") as tx:
            await tx.send_offsets({T0: 9}, GroupMetadata("g"))
            async with bus.new_consumer("t", group="g", isolation_level="read_uncommitted") as uncommitted:
                assert await uncommitted.position(T0) == 8  # it does not wait


async def test_a_position_that_an_open_transaction_holds_is_waited_for(filled: Any) -> None:
    async with filled() as bus:
        positions: list[int] = []
        async with anyio.create_task_group() as tasks, bus.transaction("id") as tx:
            await tx.send_offsets({T0: 8}, GroupMetadata("g"))
            async with bus.new_consumer(group="g") as consumer:
                await consumer.assign([T0])

                async def wait() -> None:
                    positions.append(await consumer.position(T0))

                tasks.start_soon(wait)
                await others_wait()
                assert positions == []
                consumer.seek(T0, 4)  # the user knows better
                await others_wait()
                assert positions == [4]
                assert [r.offset for r in await consumer.poll(max_records=2)] == [4, 5]


async def test_bytes_of_open_transactions_do_not_end_a_long_poll(filled: Any) -> None:
    async with filled() as bus:
        config = {"start": "latest", "fetch_min_bytes": 1_000}
        async with bus.new_consumer("t", **config) as reader, anyio.create_task_group() as tasks:
            found: list[Any] = []

            async def wait() -> None:
                found.extend(await reader.poll(timeout_ms=60_000))

            tasks.start_soon(wait)
            async with bus.transaction("id") as tx:
                await tx.send("t", b"x" * 2_000, partition=0)
                await bus.flush()
                await others_wait()
                assert found == []
            with anyio.fail_after(5):
                while not found:
                    await anyio.lowlevel.checkpoint()
            assert [len(r.value) for r in found] == [2_000]


async def test_fetch_min_bytes_gathers_and_max_wait_ends_it(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", start="latest", fetch_min_bytes=500) as reader:
        found: list[list[Any]] = []
        async with anyio.create_task_group() as tasks:

            async def wait() -> None:
                found.append(await reader.poll(timeout_ms=60_000))

            tasks.start_soon(wait)
            for partition in (0, 1, 0):
                await others_wait()
                assert found == []
                await bus.send("t", b"x" * 100, partition=partition)  # a batch of about 170 bytes
        assert len(found[0]) == 3  # of both partitions, together
        await bus.send("t", b"x" * 100, partition=1)
        assert len(await reader.poll(timeout_ms=1)) == 1  # too little, but the wait is over


async def test_a_closed_consumer_does_not_join_again(filled: Any) -> None:
    async with filled() as bus:
        consumer = bus.new_consumer("t", group="g", start="latest")
        async with anyio.create_task_group() as tasks:
            await consumer.__aenter__()
            tasks.start_soon(consumer.poll, 50)
            await others_wait()
            await consumer.aclose()
        assert (await bus.admin.describe_group("g")).members == ()


async def test_a_consumer_without_a_group_hears_of_no_rebalance(filled: Any) -> None:
    async with filled() as bus:

        def refuse(partitions: Any) -> None:
            raise AssertionError(partitions)

        async with bus.new_consumer("t", on_assigned=refuse, on_revoked=refuse, on_lost=refuse) as consumer:
            await consumer.subscribe("t")
            await bus.admin.delete_topics("t")
            assert await consumer.poll(timeout_ms=0) == []
            with pytest.raises(ConfigError, match="no group"):
                consumer.group_metadata()
        async with bus.new_consumer(group="g") as consumer:
            assert consumer.group_metadata() == GroupMetadata("g")


async def test_a_consumer_may_be_closed_after_its_bus(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        consumer = bus.new_consumer("t", group="g", enable_auto_commit=True)
        await consumer.__aenter__()
        await bus.send("t", b"x")
        await consumer.poll()
    await consumer.aclose()
    with pytest.raises(ConfigError, match="not open"):
        await consumer.poll()


# what users of Kafka's clients look for -------------------------------------------------------------------------------


async def test_a_poll_tells_its_partitions(filled: Any) -> None:
    async with filled() as bus:
        async with bus.new_consumer("t", group="g") as consumer:
            records = ConsumerRecords()
            while len(records) < 13:
                records += await consumer.poll(max_records=13 - len(records))
            assert records.partitions() == [T0, T1]
            assert {partition: len(some) for partition, some in records.by_partition().items()} == {T0: 10, T1: 3}
            assert [record.offset for record in records.by_partition()[T1]] == [0, 1, 2]
            assert records.next_offsets() == {T0: (10, ""), T1: (3, "")}
            await consumer.commit(records.next_offsets())
            assert await consumer.committed() == {T0: (10, ""), T1: (3, "")}
        empty = ConsumerRecords()
        assert empty == [] and not empty and empty.partitions() == [] and empty.by_partition() == {}


async def test_chosen_partitions_are_read_and_new_ones_are_not(filled: Any) -> None:
    async with filled() as bus:
        async with bus.new_consumer(partitions=[("t", 1)]) as consumer:
            assert consumer.assignment() == [T1] and consumer.subscription() == []
            await bus.admin.add_partitions("t", 3)
            await bus.send("t", b"new", partition=2)
            assert {record.partition for record in await consumer.poll(0, 100)} == {1}
            assert await consumer.poll(0) == []
        with pytest.raises(ConfigError, match="either subscribe"):
            async with bus.new_consumer("t", partitions=[T0]):
                pass


async def test_several_topics_at_once_may_be_a_list(make_bus: Any) -> None:
    async with make_bus() as bus:
        for topic in ("a", "b", "c"):
            await bus.admin.create_topic(topic)
        async with bus.new_consumer(group="g") as consumer:
            await consumer.subscribe(["a", "b"])
            assert consumer.subscription() == ["a", "b"]
            await consumer.subscribe("c", ("a",))
            assert consumer.subscription() == ["a", "c"]
            with pytest.raises(ConfigError, match=r"separate arguments, pause\(\*partitions\)"):
                consumer.pause([TopicPartition("a", 0)])  # pyright: ignore[reportArgumentType]


async def test_subscription_and_unsubscribe(filled: Any) -> None:
    told: list[tuple[str, list[TopicPartition]]] = []
    async with filled() as bus:
        await bus.admin.create_topic("trains")
        async with bus.new_consumer(
            pattern="t.*",
            group="g",
            on_assigned=lambda partitions: told.append(("+", partitions)),
            on_revoked=lambda partitions: told.append(("-", partitions)),
        ) as consumer:
            assert consumer.subscription() == ["t", "trains"]
            assert len(await consumer.poll(max_records=5)) == 5
            await consumer.unsubscribe()
            assert told == [("+", [T0, T1, ("trains", 0)]), ("-", [T0, T1, ("trains", 0)])]
            assert consumer.subscription() == consumer.assignment() == []
            assert (await bus.admin.describe_group("g")).members == ()
            with pytest.raises(ConfigError, match="nothing to read"):
                await consumer.poll()
            await consumer.assign([T1])  # from subscribing to assigning: only this way, as in Kafka
            assert {record.partition for record in await consumer.poll(0, 100)} == {1}
            await consumer.unsubscribe()
            await consumer.subscribe("t")
            assert {record.partition for record in await consumer.poll(0, 100)} == {0, 1}


async def test_paused_partitions_are_told_and_stay_so(filled: Any) -> None:
    async with filled() as bus:
        await bus.admin.create_topic("other")
        async with bus.new_consumer("t") as consumer:
            assert consumer.paused() == []
            consumer.pause(T1)
            assert consumer.paused() == [T1]
            await consumer.subscribe("t", "other")  # what stays is as it was
            assert consumer.paused() == [T1]
            assert {record.partition for record in await consumer.poll(0, 100)} == {0}
            consumer.resume(T1)
            assert consumer.paused() == []
            assert {record.partition for record in await consumer.poll(0, 100)} == {1}
            consumer.pause(T0)
            await bus.admin.delete_topics("t")
            assert consumer.paused() == []


async def test_where_partitions_begin_and_end(filled: Any) -> None:
    async with filled() as bus:
        await bus.admin.delete_records({T0: 4})
        async with bus.new_consumer("t") as consumer:
            assert await consumer.beginning_offsets() == {T0: 4, T1: 0}
            assert await consumer.end_offsets() == {T0: 10, T1: 10}
            consumer.seek(T0, OffsetAndMetadata(7, "from a commit"))
            assert await consumer.position(T0) == 7
            await consumer.seek_to_time(1055, T0, T1)
            assert (await consumer.position(T0), await consumer.position(T1)) == (6, 6)
            await consumer.seek_to_time(9_999_999)
            assert (await consumer.position(T0), await consumer.position(T1)) == (10, 10)
        async with bus.new_consumer() as reader:  # of partitions that it does not read, too
            assert await reader.beginning_offsets(T0) == {T0: 4} and await reader.end_offsets(T0) == {T0: 10}


async def test_the_end_is_what_the_isolation_says(filled: Any) -> None:
    async with filled() as bus, bus.transaction("one") as tx:
        await tx.send("t", b"open", partition=0, timestamp_ms=5_000)
        for isolation, end in (("read_committed", 10), ("read_uncommitted", 11)):
            async with bus.new_consumer(partitions=[T0], isolation_level=isolation) as consumer:
                await consumer.seek_to_end()
                assert await consumer.position(T0) == end
                found = await consumer.offsets_for_times({T0: 5_000})
                assert (found[T0] is None) == (isolation == "read_committed")


async def test_a_seek_in_on_assigned_decides_where_reading_begins(filled: Any) -> None:
    async with filled() as bus:
        await bus.admin.alter_group_offsets("g", {T0: 2, T1: 2})

        async def assigned(partitions: list[TopicPartition]) -> None:
            consumer.seek(T0, 8)
            await consumer.seek_to_beginning(T1)

        consumer = bus.new_consumer("t", group="g", on_assigned=assigned)
        async with consumer:
            by_partition = (await consumer.poll(0, 100)).by_partition()
            assert {p: some[0].offset for p, some in by_partition.items()} == {T0: 8, T1: 0}


async def test_commit_async_is_commit_nowait(filled: Any) -> None:
    told: list[Any] = []
    async with filled() as bus, bus.new_consumer("t", group="g") as consumer:
        await consumer.poll(max_records=1)
        consumer.commit_async(lambda offsets, error: told.append((dict(offsets), error)))
        consumer.commit_nowait({T1: 5}, lambda offsets, error: told.append((dict(offsets), error)))
    (first, error), (second, _) = told
    assert [offset for offset, _ in first.values()] == [1] and error is None and second == {T1: (5, "")}


async def test_wrong_arguments_are_told_what_is_right(filled: Any) -> None:
    async with filled() as bus:
        async with bus.new_consumer("t", group="g") as consumer:
            records = await consumer.poll()
            for wrong in (records, records[0], 5):
                with pytest.raises(ConfigError, match=r"records\.next_offsets\(\)"):
                    await consumer.commit(wrong)
            for use in (lambda: consumer.commit({"t": 1}), lambda: consumer.position("t"), lambda: consumer.lag("t")):
                with pytest.raises(ConfigError, match=r"not a partition: write TopicPartition\('t', 0\)"):
                    await use()
            with pytest.raises(ConfigError, match="max_records=0"):
                await consumer.poll(max_records=0)
            await consumer.subscribe()  # to nothing: as in Kafka, that is to unsubscribe
            assert (await bus.admin.describe_group("g")).members == ()
        async with bus.new_consumer() as consumer:
            with pytest.raises(ConfigError, match="not a partition"):
                await consumer.assign(T0)


async def test_until_end_is_what_is_there_now(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t") as consumer:
        assert sorted([record.value async for record in consumer.until_end()]) == sorted(
            [b"%d" % n for n in range(10)] * 2
        )
        assert [record async for record in consumer.until_end()] == []
        await bus.send("t", b"more", partition=1)
        assert [record.value async for record in consumer.until_end()] == [b"more"]


async def test_until_end_in_a_group_waits_for_the_assignment(filled: Any) -> None:
    async with filled() as bus, bus.new_consumer("t", group="g", start="earliest") as consumer:
        assert len([record async for record in consumer.until_end()]) == 20


async def test_until_end_passes_aborted_records_and_markers(filled: Any) -> None:
    async with filled() as bus:
        with pytest.raises(ZeroDivisionError):
            async with bus.transaction("writer") as tx:
                await tx.send("t", b"aborted", partition=0)
                raise ZeroDivisionError
        async with bus.new_consumer("t") as consumer:
            assert b"aborted" not in [record.value async for record in consumer.until_end()]
            assert await consumer.position(T0) == 12, "behind the aborted record and its marker"
