"""Transactions: all or nothing over partitions, topics and offsets; what readers see; takeovers, timeouts, errors."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import anyio

from eventbus.client.producer import Producer
from eventbus.errors import (
    EventBusError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
    TransactionalIdNotFound,
    UnstableOffsetCommit,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import UNCOMMITTED, World
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionAborted)
"""What a producer hears whose transaction somebody else has ended."""


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
async def a_second_producer_fences_the_first_and_aborts_what_it_left(world: World) -> None:
    topic = await world.topic(2)
    transactional_id = world.name("id")
    bus = await world.another_bus()
    async with world.producer(transactional_id, bus) as dead, world.producer(transactional_id) as successor:
        await dead.begin()
        await sent(dead, topic, b"dead", partition=0)
        await sent(dead, topic, b"dead", partition=1)
        await successor.begin()
        await sent(successor, topic, b"alive")
        await successor.commit()
        assert await world.values(topic, 0) == [b"alive"]
        assert await world.values(topic, 1) == []
        await refused(FENCED, _send_and_commit(dead, topic))
        await refused(FENCED, _begin_send_and_commit(dead, topic))
        await successor.begin()
        await sent(successor, topic, b"still alive")
        await successor.commit()
    assert await world.values(topic, 0) == [b"alive", b"still alive"]
    assert await world.values(topic, 1) == []


async def _send_and_commit(producer: Producer, topic: str) -> None:
    await producer.send(topic, b"zombie", partition=0)
    await producer.commit()


async def _begin_send_and_commit(producer: Producer, topic: str) -> None:
    with suppress(*FENCED, InvalidTxnState):
        await producer.abort()
    await producer.begin()
    await _send_and_commit(producer, topic)


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
            # It may wait for the outcome, or be told to; it may not begin at the start meanwhile.
            async with world.bus.new_consumer(topic, group=group) as consumer:
                while not read:
                    try:
                        read.extend(record.value for record in await consumer.poll(timeout_ms=10))
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
        # A generation that never was: somebody who was thrown out of the group.
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
            # Each round a new consumer: it begins where the last *committed* transaction ended.
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


@promise()
async def a_timeout_above_the_maximum_is_refused(world: World) -> None:
    async def begin() -> None:
        async with world.producer(world.name("id"), transaction_timeout_ms=2_000_000_000) as producer:
            await producer.begin()

    await refused(InvalidTransactionTimeout, begin())


@promise("clock")
async def a_transaction_open_for_too_long_is_aborted_and_its_producer_fenced(world: World) -> None:
    topic = await world.topic()
    async with world.producer(world.name("id"), transaction_timeout_ms=10_000) as slow:
        await slow.begin()
        await sent(slow, topic, b"slow")
        await world.send(topic, b"behind it")
        world.target.advance(9_000)
        await anyio.sleep(0.03)
        assert await world.values(topic) == []
        world.target.advance(2_000)

        async def is_aborted() -> bool:
            return await world.values(topic) == [b"behind it"]

        await world.eventually(is_aborted, "the abort of a transaction that is open for too long")
        await refused(FENCED, _send_and_commit(slow, topic))
    assert await world.values(topic) == [b"behind it"]


@promise("kill")
async def what_a_killed_client_left_open_is_aborted(world: World) -> None:
    topic, group = await world.topic(2), world.name("group")
    where = TopicPartition(topic, 0)
    transactional_id = world.name("id")
    producer = await world.doomed(world.bus.new_producer(transactional_id=transactional_id))
    await producer.begin()
    await sent(producer, topic, b"yes", partition=0)
    await producer.send_offsets({where: 5}, GroupMetadata(group))
    await producer.commit()
    await producer.begin()
    await sent(producer, topic, b"no", partition=0)
    await sent(producer, topic, b"no", partition=1)
    await producer.send_offsets({where: 6}, GroupMetadata(group))
    await world.kill()
    async with world.producer(transactional_id) as successor:
        await successor.begin()
        await sent(successor, topic, b"next", partition=1)
        await successor.commit()
    assert await world.values(topic, 0) == [b"yes"]
    assert await world.values(topic, 1) == [b"next"]
    assert await world.admin.group_offsets(group) == {where: OffsetAndMetadata(5)}


@promise("restart")
async def outcomes_survive_a_restart(world: World) -> None:
    topic = await world.topic()
    transactional_id = world.name("id")
    for round in range(3):
        async with world.producer(transactional_id) as producer:
            for number in range(3):
                await producer.begin()
                await sent(producer, topic, b"%d/%d" % (round, number))
                if number == 1:
                    await producer.abort()
                else:
                    await producer.commit()
        await world.restart()
        expected = [b"%d/%d" % (r, n) for r in range(round + 1) for n in (0, 2)]
        assert await world.values(topic) == expected
        assert len(await world.values(topic, isolation=UNCOMMITTED)) == 3 * (round + 1)


@promise()
async def a_topic_may_go_while_a_transaction_is_open_in_it(world: World) -> None:
    gone, kept = await world.topic(), await world.topic()
    async with world.producer(world.name("id")) as producer:
        await producer.begin()
        await sent(producer, gone, b"gone")
        await sent(producer, kept, b"kept")
        await world.admin.delete_topics(gone)
        await world.admin.create_topic(gone)
        await producer.commit()
        await producer.begin()
        await sent(producer, kept, b"and on")
        await producer.commit()
    assert await world.values(kept) == [b"kept", b"and on"]
    assert await world.values(gone, isolation=UNCOMMITTED) == []
    await world.send(gone, b"new")
    assert await world.values(gone) == [b"new"]


@promise()
async def transactions_are_listed_and_described(world: World) -> None:
    topic = await world.topic(2)
    transactional_id = world.name("id")
    async with world.producer(transactional_id, transaction_timeout_ms=12_345) as producer:
        await producer.begin()
        await sent(producer, topic, b"x", partition=1)
        (listed,) = [one for one in await world.admin.list_transactions() if one.transactional_id == transactional_id]
        assert listed.state == "Ongoing"
        (described,) = await world.admin.describe_transactions([transactional_id])
        assert described.state == "Ongoing"
        assert described.producer_id == listed.producer_id
        assert described.timeout_ms == 12_345
        assert described.partitions == (TopicPartition(topic, 1),)
        (known,) = (await world.admin.describe_producers([TopicPartition(topic, 1)]))[TopicPartition(topic, 1)]
        assert (known.producer_id, known.transaction_start_offset) == (described.producer_id, 0)
        await producer.commit()

        async def is_complete() -> bool:
            (now,) = await world.admin.describe_transactions([transactional_id])
            return now.state == "CompleteCommit" and now.partitions == () and now.start_ms == -1

        await world.eventually(is_complete, "CompleteCommit")
    await refused(TransactionalIdNotFound, world.admin.describe_transactions([world.name("id")]))


@promise()
async def an_admin_may_abort_and_fence(world: World) -> None:
    topic = await world.topic()
    aborted, fenced = world.name("id"), world.name("id")
    async with world.producer(aborted) as one, world.producer(fenced) as other:
        await one.begin()
        await sent(one, topic, b"one")
        await other.begin()
        await sent(other, topic, b"other")
        await world.admin.abort_transaction(aborted)
        await world.admin.fence_producer(fenced)
        assert await world.values(topic) == []
        assert await world.end_offset(topic) == await world.end_offset(topic, isolation=UNCOMMITTED)
        await refused(FENCED, _send_and_commit(one, topic))
        await refused(FENCED, _send_and_commit(other, topic))
    assert await world.values(topic) == []
    await refused(TransactionalIdNotFound, world.admin.abort_transaction(world.name("id")))
