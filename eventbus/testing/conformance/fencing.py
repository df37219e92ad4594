"""Transactions ended by others: a successor, a timeout, an admin, a restart; and their descriptions for an admin."""

from __future__ import annotations

from contextlib import suppress

import anyio

from eventbus.client.producer import Producer
from eventbus.errors import (
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    ProducerFenced,
    TransactionAborted,
    TransactionalIdNotFound,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.transactions import sent
from eventbus.testing.conformance.world import UNCOMMITTED, World
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping, TransactionAborted)
"""The errors of a producer whose transaction was ended by another client."""


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
        world.target.advance(11_000)  # Kafka checks for transactions that timed out every 10 s

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
