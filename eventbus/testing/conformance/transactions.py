"""Transactions: atomicity over partitions, topics and offsets; visibility to readers; takeovers, timeouts, errors."""

from __future__ import annotations

from random import Random

import anyio

from eventbus.client.producer import Producer
from eventbus.errors import (
    EventBusError,
    InvalidTxnState,
    UnstableOffsetCommit,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import UNCOMMITTED, World
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition


async def sent(producer: Producer, topic: str, *values: bytes, partition: int = 0) -> None:
    for value in values:
        await producer.send(topic, value, partition=partition)


@promise()
async def a_commit_shows_all_partitions_and_topics(world: World) -> None:
    one, other = await world.topic(3), await world.topic()
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        for partition in range(3):
            await sent(producer, one, b"a", b"b", partition=partition)
        await sent(producer, other, b"c")
        for partition in range(3):
            assert await world.values(one, partition) == []
        assert await world.values(other) == []
        await producer.commit()
        for partition in range(3):
            assert await world.values(one, partition) == [b"a", b"b"]
        assert await world.values(other) == [b"c"]


@promise()
async def nothing_of_an_aborted_transaction_is_ever_committed(world: World) -> None:
    topic = await world.topic(2)
    async with world.producer(world.name("id")) as producer:
        for round in range(3):
            await producer.begin()
            await sent(producer, topic, b"no-%d" % round, partition=0)
            await sent(producer, topic, b"no-%d" % round, partition=1)
            await producer.abort()
            await producer.begin()
            await sent(producer, topic, b"yes-%d" % round, partition=1)
            await producer.commit()
    assert await world.values(topic, 0) == []
    assert await world.values(topic, 1) == [b"yes-0", b"yes-1", b"yes-2"]
    assert await world.values(topic, 0, UNCOMMITTED) == [b"no-0", b"no-1", b"no-2"]
    assert await world.values(topic, 1, UNCOMMITTED) == [b"no-0", b"yes-0", b"no-1", b"yes-1", b"no-2", b"yes-2"]


@promise()
async def uncommitted_readers_see_records_at_once(world: World) -> None:
    topic = await world.topic()
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await sent(producer, topic, b"open")
        assert await world.values(topic, isolation=UNCOMMITTED) == [b"open"]
        assert await world.values(topic) == []
        await producer.abort()


@promise()
async def readers_stop_at_the_oldest_open_transaction(world: World) -> None:
    topic = await world.topic()
    async with world.producer(world.name("id")) as first, world.producer(world.name("id")) as second:
        await world.send(topic, b"before")
        await first.begin()
        await second.begin()
        await sent(first, topic, b"first 1")
        await sent(second, topic, b"second 1")
        await world.send(topic, b"between")
        await sent(first, topic, b"first 2")
        await second.commit()
        assert await world.values(topic) == [b"before"]
        assert await world.end_offset(topic) == 1
        assert await world.end_offset(topic, isolation=UNCOMMITTED) > 4
        await first.commit()
        assert await world.values(topic) == [b"before", b"first 1", b"second 1", b"between", b"first 2"]


@promise()
async def interleaved_transactions_end_each_in_its_own_way(world: World) -> None:
    topic = await world.topic()
    async with (
        world.producer(world.name("id")) as first,
        world.producer(world.name("id")) as second,
        world.producer(world.name("id")) as third,
    ):
        for producer in (first, second, third):
            await producer.begin()
        for number in range(4):
            await sent(first, topic, b"first %d" % number)
            await sent(second, topic, b"second %d" % number)
            await sent(third, topic, b"third %d" % number)
        await second.abort()
        await third.commit()
        assert await world.values(topic) == []
        await first.commit()
        expected = [name + b" %d" % number for number in range(4) for name in (b"first", b"third")]
        assert await world.values(topic) == expected
        assert len(await world.values(topic, isolation=UNCOMMITTED)) == 12


@promise()
async def readers_at_any_offset_skip_what_was_aborted(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    async with world.producer(world.name("id")) as aborting, world.producer(world.name("id")) as committing:
        for number in range(6):
            await aborting.begin()
            await committing.begin()
            await sent(aborting, topic, b"no", b"no")
            await sent(committing, topic, b"%d" % number)
            await sent(aborting, topic, b"no")
            await aborting.abort()
            await committing.commit()
    everything = await world.records(topic)
    assert [record.value for record in everything] == [b"%d" % number for number in range(6)]
    for start in range(await world.end_offset(topic)):
        async with world.bus.new_consumer() as consumer:
            await consumer.assign([where])
            consumer.seek(where, start)
            expected = [record.offset for record in everything if record.offset >= start]
            assert [record.offset for record in await world.take(consumer, len(expected))] == expected


@promise()
async def a_waiting_reader_is_woken_by_the_commit(world: World) -> None:
    topic = await world.topic()
    async with world.bus.new_consumer(topic) as consumer, world.producer(world.name("id")) as producer:
        await producer.begin()
        await sent(producer, topic, b"x")
        assert await consumer.poll(timeout_ms=5) == []
        async with anyio.create_task_group() as tasks:

            async def commit() -> None:
                await anyio.lowlevel.checkpoint()
                await producer.commit()

            tasks.start_soon(commit)
            assert [record.value for record in await consumer.poll(timeout_ms=600_000)] == [b"x"]


@promise()
async def a_block_commits_and_an_exception_aborts(world: World) -> None:
    topic = await world.topic()
    transactional_id = world.name("id")
    async with world.bus.transaction(transactional_id) as tx:
        await tx.send(topic, b"yes")
    assert tx.outcome == "committed"
    try:
        async with world.bus.transaction(transactional_id) as tx:
            await tx.send(topic, b"no")
            raise LookupError("the caller's own")
    except LookupError:
        assert tx.outcome == "aborted"
    async with world.bus.transaction(transactional_id) as tx:
        await tx.send(topic, b"again")
    assert await world.values(topic) == [b"yes", b"again"]


@promise()
async def an_empty_transaction_is_committed_and_aborted(world: World) -> None:
    topic = await world.topic()
    async with world.producer(world.name("id")) as producer:
        for _ in range(2):
            await producer.begin()
            await producer.commit()
            await producer.begin()
            await producer.abort()
        await producer.begin()
        await sent(producer, topic, b"x")
        await producer.commit()
    assert await world.values(topic) == [b"x"]


@promise()
async def begin_send_commit_and_abort_have_their_order(world: World) -> None:
    topic = await world.topic()

    async def send(producer: Producer) -> None:
        await producer.send(topic, b"outside")

    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await refused(InvalidTxnState, producer.begin())
        await producer.abort()
    for call in (send, Producer.commit, Producer.abort):
        async with world.producer(world.name("id")) as producer:
            await producer.begin()
            await producer.commit()
            await refused(InvalidTxnState, call(producer))
    assert await world.values(topic, isolation=UNCOMMITTED) == []


@promise()
async def offsets_are_committed_with_the_records(world: World) -> None:
    source, target, group = await world.topic(2), await world.topic(), world.name("group")
    first, second = TopicPartition(source, 0), TopicPartition(source, 1)
    await world.send(source, b"1", b"2", b"3")
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await sent(producer, target, b"one")
        await producer.send_offsets({first: OffsetAndMetadata(2, "why"), second: 7}, GroupMetadata(group))
        assert await world.admin.group_offsets(group) == {}
        await producer.commit()
        expected = {first: OffsetAndMetadata(2, "why"), second: OffsetAndMetadata(7)}
        assert await world.admin.group_offsets(group) == expected
        await producer.begin()
        await sent(producer, target, b"two")
        await producer.send_offsets({first: 3}, GroupMetadata(group))
        await producer.abort()
        assert await world.admin.group_offsets(group) == expected
    assert await world.values(target) == [b"one"]


@promise()
async def pending_offsets_are_not_taken_for_committed_ones(world: World) -> None:
    topic, group = await world.topic(), world.name("group")
    where = TopicPartition(topic, 0)
    await world.send(topic, b"1", b"2", b"3")
    read: list[bytes] = []
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await producer.send_offsets({where: 2}, GroupMetadata(group))

        async def successor() -> None:
            # It may wait for the outcome, or get a retriable error; but it must not begin at the start meanwhile.
            async with world.bus.new_consumer(topic, group=group) as consumer:
                while not read:
                    try:
                        read.extend(record.value or b"" for record in await consumer.poll(timeout_ms=10))
                    except UnstableOffsetCommit:
                        await anyio.sleep(0.002)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(successor)
            for _ in range(20):
                await anyio.sleep(0.001)
            assert read == []
            await producer.commit()
    assert read == [b"3"]


@promise()
async def an_offset_outside_the_group_spoils_the_transaction(world: World) -> None:
    source, target, group = await world.topic(), await world.topic(), world.name("group")
    where = TopicPartition(source, 0)
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await sent(producer, target, b"no")
        # A generation that does not exist, as of a member that was removed from the group.
        stranger = GroupMetadata(group, 41, "nobody")
        await refused(EventBusError, _offsets_and_commit(producer, {where: 1}, stranger))
        await producer.abort()
        await producer.begin()
        await sent(producer, target, b"yes")
        await producer.commit()
    assert await world.values(target) == [b"yes"]
    assert await world.admin.group_offsets(group) == {}


async def _offsets_and_commit(producer: Producer, offsets: dict[TopicPartition, int], group: GroupMetadata) -> None:
    await producer.send_offsets(offsets, group)
    await producer.commit()


@promise()
async def consume_process_produce_moves_each_record_once(world: World) -> None:
    source, target, group = await world.topic(2), await world.topic(), world.name("group")
    for partition in range(2):
        await world.send(source, *(b"%d/%d" % (partition, number) for number in range(30)), partition=partition)
    random = Random(7)
    async with world.producer(world.name("id")) as producer:
        done = 0
        while done < 60:
            # Each round uses a new consumer: it begins where the last *committed* transaction ended.
            async with world.bus.new_consumer(source, group=group) as consumer:
                records = await world.take(consumer, min(random.randint(1, 9), 60 - done))
                await producer.begin()
                for record in records:
                    await producer.send(target, record.value, partition=0)
                offsets = {record.topic_partition: record.next_offset for record in records}
                await producer.send_offsets(offsets, consumer.group_metadata())
                if random.random() < 0.3:
                    await producer.abort()
                else:
                    await producer.commit()
                    done += len(records)
    found = [value or b"" for value in await world.values(target)]
    for partition in range(2):
        mine = [value for value in found if value.startswith(b"%d/" % partition)]
        assert mine == [b"%d/%d" % (partition, number) for number in range(30)]


@promise()
async def many_producers_at_once_keep_a_total(world: World) -> None:
    accounts = [await world.topic() for _ in range(3)]

    async def transfer(which: int) -> None:
        random = Random(which)
        async with world.producer(world.name("id")) as producer:
            for _ in range(8):
                giver, taker = random.sample(accounts, 2)
                amount = random.randint(1, 100)
                await producer.begin()
                await sent(producer, giver, b"-%d" % amount)
                await sent(producer, taker, b"%d" % amount)
                if random.random() < 0.3:
                    await producer.abort()
                else:
                    await producer.commit()

    async with anyio.create_task_group() as tasks:
        for which in range(6):
            tasks.start_soon(transfer, which)
    values = [int(value or b"") for account in accounts for value in await world.values(account)]
    assert values
    assert sum(values) == 0


@promise()
async def handlers_are_done_with_what_was_aborted(world: World) -> None:
    topic = await world.topic()
    handled: list[bytes] = []
    bus = world.target.open()

    @bus.consumer(topic, group=world.name("group"))
    async def handle(value: bytes) -> None:
        handled.append(value)

    async with world.producer(world.name("id")) as producer:
        for commits in (False, True, False):
            await producer.begin()
            await sent(producer, topic, b"yes" if commits else b"no")
            await (producer.commit() if commits else producer.abort())
            async with bus:
                await bus.drain()
    assert handle is not None
    assert handled == [b"yes"]
