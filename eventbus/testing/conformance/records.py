"""Records: order, bytes, offsets, seeking, time, waiting."""

from __future__ import annotations

from typing import Literal

import anyio

from eventbus.client.consumer import Consumer
from eventbus.errors import (
    InvalidRecord,
    InvalidTimestamp,
    NoCommittedOffset,
    OffsetOutOfRange,
    RecordTooLarge,
    SerializationError,
    UnknownTopicOrPartition,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World, partitions_of
from eventbus.types import TopicPartition


@promise()
async def a_partition_keeps_the_order_of_sends(world: World) -> None:
    topic = await world.topic()
    deliveries = [world.bus.send_nowait(topic, b"%d" % number) for number in range(2_000)]
    offsets = [(await delivery).offset for delivery in deliveries]
    assert offsets == sorted(offsets)
    assert await world.values(topic) == [b"%d" % number for number in range(2_000)]


@promise()
async def offsets_begin_at_zero_and_count_records(world: World) -> None:
    topic = await world.topic()
    assert await world.first_offset(topic) == await world.end_offset(topic) == 0
    found = [(await world.bus.send(topic, b"x")).offset for _ in range(3)]
    assert found == [0, 1, 2]
    assert await world.end_offset(topic) == 3


@promise()
async def a_key_always_goes_to_the_same_partition(world: World) -> None:
    topic = await world.topic(5)
    keys = [b"key-%d" % number for number in range(50)]
    first = {key: (await world.bus.send(topic, b"1", key=key)).partition for key in keys}
    second = {key: (await world.bus.send(topic, b"2", key=key)).partition for key in keys}
    assert first == second
    assert len(set(first.values())) == 5


@promise()
async def keys_go_where_kafkas_own_client_puts_them(world: World) -> None:
    topic = await world.topic(10)
    # Java: Utils.toPositive(Utils.murmur2(key)) % 10
    expected = {b"21": 0, b"foobar": 6, b"a-little-bit-long-string": 2, b"a-little-bit-longer-string": 9}
    for key, partition in expected.items():
        assert (await world.bus.send(topic, b"", key=key)).partition == partition, key


@promise()
async def null_is_not_empty(world: World) -> None:
    topic = await world.topic()
    sent = [(None, b""), (b"", None), (b"", b""), (None, None)]
    for key, value in sent:
        await world.bus.send(topic, value, key=key, partition=0)
    assert [(record.key, record.value) for record in await world.records(topic)] == sent


@promise()
async def headers_come_back_in_order_and_more_than_once(world: World) -> None:
    topic = await world.topic()
    headers = [("trace", b"1"), ("empty", b""), ("null", None), ("trace", b"2"), ("ünïcode", b"\xff")]
    await world.bus.send(topic, b"x", headers=headers)
    (record,) = await world.records(topic)
    assert list(record.headers) == headers


@promise()
async def timestamps_come_back(world: World) -> None:
    topic = await world.topic()
    times = [1_000, 1_700_000_000_000, 0, 1_699_999_999_999]
    for timestamp_ms in times:
        await world.bus.send(topic, b"x", timestamp_ms=timestamp_ms)
    assert [record.timestamp_ms for record in await world.records(topic)] == times


@promise(each=("none", "gzip", "snappy", "lz4", "zstd"))
async def compressed_records_come_back(world: World, codec: Literal["none", "gzip", "snappy", "lz4", "zstd"]) -> None:
    topic = await world.topic()
    async with world.producer(compression_type=codec) as producer:
        for number in range(300):
            producer.send_nowait(topic, b"%d " % number * 20, key=b"key")
        await producer.flush()
    assert await world.values(topic) == [b"%d " % number * 20 for number in range(300)]


@promise()
async def a_record_too_large_is_refused_and_others_are_not(world: World) -> None:
    topic = await world.topic()
    async with world.producer(max_request_size=1_000) as producer:
        await refused(RecordTooLarge, producer.send(topic, b"x" * 2_000))
        await producer.send(topic, b"small")
    assert await world.values(topic) == [b"small"]


_FAULTS = {"too_large": RecordTooLarge, "too_old": InvalidTimestamp, "without_key": InvalidRecord}


@promise(each=tuple(_FAULTS))
async def a_refused_record_takes_no_neighbour_along(world: World, fault: str) -> None:
    topic = await world.topic(
        max_message_bytes=2_000,
        message_timestamp_before_max_ms=3_600_000,
        cleanup_policy="compact" if fault == "without_key" else "delete",
    )
    values = [b"%d" % number for number in range(40)]
    deliveries = [
        world.bus.send_nowait(
            topic,
            value.ljust(5_000 if fault == "too_large" and value == b"20" else 300),
            key=None if fault == "without_key" and value == b"20" else value,
            timestamp_ms=1_000 if fault == "too_old" and value == b"20" else None,
        )
        for value in values
    ]
    await world.bus.flush()
    errors = {number: delivery.exception() for number, delivery in enumerate(deliveries)}
    failed = [(number, type(error)) for number, error in errors.items() if error is not None]
    assert len(failed) == 1 and failed[0][0] == 20 and issubclass(failed[0][1], _FAULTS[fault]), failed
    offsets = [deliveries[number].result().offset for number in range(40) if number != 20]
    assert offsets == list(range(39)), offsets
    assert [value and value.strip() for value in await world.values(topic)] == values[:20] + values[21:]


@promise()
async def what_cannot_be_written_is_named(world: World) -> None:
    topic = await world.topic()
    try:
        await world.bus.send(topic, object())
    except SerializationError as error:
        assert topic in str(error)
    else:
        raise AssertionError("an object() was written")


@promise()
async def an_unknown_topic_or_partition_is_refused(world: World) -> None:
    topic = await world.topic(2)

    async def send(to: str, partition: int | None = None) -> None:
        await world.bus.send(to, b"x", partition=partition)

    await refused(UnknownTopicOrPartition, send(topic, 2))
    await refused(UnknownTopicOrPartition, send(world.name("nowhere")))
    assert await world.values(topic) == []


@promise()
async def a_reader_seeks_anywhere(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    await world.send(topic, *(b"%d" % number for number in range(10)))
    async with world.bus.new_consumer() as consumer:
        await consumer.assign([where])
        for offset in (7, 0, 9, 3):
            consumer.seek(where, offset)
            assert [record.offset for record in await world.take(consumer, 1)] == [offset]
            assert await consumer.position(where) == offset + 1
        await consumer.seek_to_end(where)
        assert await consumer.poll(timeout_ms=0) == []
        await world.send(topic, b"new")
        assert [record.value for record in await world.take(consumer, 1)] == [b"new"]
        await consumer.seek_to_beginning()
        assert len(await world.take(consumer, 11)) == 11


@promise(each=("earliest", "latest", "none"))
async def a_group_without_offsets_begins_where_start_says(
    world: World, start: Literal["earliest", "latest", "none"]
) -> None:
    topic = await world.topic()
    await world.send(topic, b"old")
    async with world.bus.new_consumer(group=world.name("group"), start=start) as consumer:
        if start == "none":
            await refused(NoCommittedOffset, _subscribe_and_poll(consumer, topic))
            return
        await consumer.subscribe(topic)
        await world.settled([consumer], partitions_of(topic, 1))
        await consumer.seek_to_beginning() if start == "earliest" else None
        await world.send(topic, b"new")
        got = [record.value for record in await world.take(consumer, 2 if start == "earliest" else 1)]
        assert got == ([b"old", b"new"] if start == "earliest" else [b"new"])


async def _subscribe_and_poll(consumer: Consumer, topic: str) -> None:
    await consumer.subscribe(topic)
    while True:
        await consumer.poll(timeout_ms=10)


@promise()
async def an_offset_out_of_range_is_an_error_or_a_reset_as_start_says(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    await world.send(topic, b"0", b"1")
    resets: tuple[tuple[Literal["earliest", "latest", "none"], int | None], ...] = (
        ("none", None), ("earliest", 0), ("latest", 2)
    )  # fmt: skip
    for start, expected in resets:
        async with world.bus.new_consumer(start=start) as consumer:
            await consumer.assign([where]) if start != "none" else await _assign_at(consumer, where)
            consumer.seek(where, 50)
            if expected is None:
                await refused(OffsetOutOfRange, consumer.poll(timeout_ms=100))
            else:
                await consumer.poll(timeout_ms=10)
                assert await consumer.position(where) in (expected, 2)


async def _assign_at(consumer: Consumer, where: TopicPartition) -> None:
    """Assign a partition with start="none" and without a group; the seek that follows sets the position."""
    try:
        await consumer.assign([where])
    except NoCommittedOffset:
        return


@promise()
async def the_first_record_at_or_after_a_time_is_found(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    for timestamp_ms in (1_000, 2_000, 2_000, 1_500, 3_000):
        await world.bus.send(topic, b"x", timestamp_ms=timestamp_ms)
    expected = {0: 0, 1_000: 0, 1_001: 1, 2_000: 1, 2_001: 4, 3_000: 4}
    for at, offset in expected.items():
        found = (await world.admin.list_offsets({where: at}))[where]
        assert found.offset == offset, f"at {at}: {found}"
    assert (await world.admin.list_offsets({where: 3_001}))[where].offset == -1
    assert tuple((await world.admin.list_offsets({where: -3}))[where]) == (4, 3_000)
    async with world.bus.new_consumer() as consumer:
        await consumer.assign([where])
        found_times = await consumer.offsets_for_times({where: 1_001})
        assert found_times[where] is not None
        assert tuple(found_times[where] or ()) == (1, 2_000)
        assert (await consumer.offsets_for_times({where: 9_999}))[where] is None


@promise()
async def a_poll_waits_for_a_record_and_no_longer(world: World) -> None:
    topic = await world.topic()
    async with world.bus.new_consumer(topic) as consumer:
        assert await consumer.poll(timeout_ms=5) == []
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.lowlevel.checkpoint()
                await world.send(topic, b"at last")

            tasks.start_soon(later)
            # The time limit of the promise is shorter than this poll: the poll has to be woken.
            assert [record.value for record in await consumer.poll(timeout_ms=600_000)] == [b"at last"]


@promise()
async def a_poll_waits_for_as_many_bytes_as_were_asked_for(world: World) -> None:
    topic = await world.topic()
    async with world.bus.new_consumer(topic, fetch_min_bytes=10_000) as consumer:
        await world.send(topic, b"small")
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.lowlevel.checkpoint()
                await world.send(topic, b"x" * 20_000)

            tasks.start_soon(later)
            assert len(await consumer.poll(timeout_ms=600_000)) == 2


@promise()
async def a_cancelled_poll_loses_nothing(world: World) -> None:
    topic = await world.topic()
    async with world.bus.new_consumer(topic) as consumer:
        for number in range(20):
            with anyio.move_on_after(0.0005):
                await consumer.poll(timeout_ms=600_000)
                raise AssertionError("there was nothing to return")
            await world.send(topic, b"%d" % number)
            assert [record.offset for record in await world.take(consumer, 1)] == [number]


@promise()
async def paused_partitions_wait(world: World) -> None:
    topic = await world.topic(2)
    first, second = partitions_of(topic, 2)
    await world.send(topic, b"first", partition=0)
    await world.send(topic, b"second", partition=1)
    async with world.bus.new_consumer(topic) as consumer:
        consumer.pause(first)
        assert [record.value for record in await world.take(consumer, 1)] == [b"second"]
        assert await consumer.poll(timeout_ms=5) == []
        consumer.resume(first)
        assert [record.value for record in await world.take(consumer, 1)] == [b"first"]
        assert await consumer.position(second) == 1


@promise()
async def one_busy_partition_starves_no_other(world: World) -> None:
    topic = await world.topic(3)
    await world.bus.send_many(topic, [b"x" * 1_000] * 3_000, key=lambda _: b"one")
    for partition in range(3):
        await world.send(topic, b"last", partition=partition)
    async with world.bus.new_consumer(topic, max_partition_fetch_bytes=10_000) as consumer:
        seen: set[int] = set()
        for _ in range(40):
            seen |= {record.partition for record in await consumer.poll(timeout_ms=10, max_records=20)}
        assert seen == {0, 1, 2}


@promise("restart")
async def records_survive_a_restart(world: World) -> None:
    topic = await world.topic(2)
    for partition in range(2):
        await world.send(topic, *(b"%d" % number for number in range(20)), partition=partition, key=b"k")
    for _ in range(2):
        await world.restart()
        for partition in range(2):
            assert await world.values(topic, partition) == [b"%d" % number for number in range(20)]
    assert (await world.bus.send(topic, b"next", partition=1)).offset == 20


@promise("kill")
async def acknowledged_records_survive_a_kill(world: World) -> None:
    topic = await world.topic(2)
    await world.send(topic, *(b"%d" % number for number in range(20)))
    world.bus.send_nowait(topic, b"perhaps", partition=1)
    await world.kill()
    assert await world.values(topic) == [b"%d" % number for number in range(20)]
    assert await world.values(topic, 1) in ([], [b"perhaps"])
    assert (await world.bus.send(topic, b"next", partition=0)).offset == 20
