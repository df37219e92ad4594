"""Producers: acknowledgements, and the guarantees of idempotence."""

from __future__ import annotations

from typing import Any, Literal

from eventbus.errors import InvalidRequiredAcks, InvalidTopic, ProducerClosed, UnknownTopicOrPartition
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World
from eventbus.types import RecordMetadata, TopicPartition


@promise(each=("0", "1", "all"))
async def acks_say_where_a_record_landed(world: World, acks: Literal["0", "1", "all"]) -> None:
    topic = await world.topic(2)
    async with world.producer(acks=acks, enable_idempotence=acks == "all") as producer:
        metadata = await producer.send(topic, b"x", partition=1)
        assert (metadata.topic, metadata.partition) == (topic, 1)
        assert metadata.offset == (-1 if acks == "0" else 0)
        await producer.flush()

    async def is_there() -> bool:
        return await world.values(topic, 1) == [b"x"]

    if acks == "all":
        assert await is_there()
    await world.eventually(is_there, "what was acknowledged early is stored later")


@promise()
async def acks_that_cannot_be_are_refused(world: World) -> None:
    wrong: tuple[Any, ...] = (2, -2, "some")
    for acks in wrong:
        try:
            async with world.producer(acks=acks):
                pass
        except InvalidRequiredAcks:
            continue
        raise AssertionError(f"acks={acks!r} was accepted")


@promise()
async def every_delivery_is_told_of_once(world: World) -> None:
    topic = await world.topic(3)
    told: list[RecordMetadata] = []

    def on_delivery(metadata: RecordMetadata | None, error: BaseException | None) -> None:
        assert error is None, error
        assert metadata is not None
        told.append(metadata)

    for number in range(300):
        world.bus.send_nowait(topic, b"%d" % number, partition=number % 3, on_delivery=on_delivery)
    await world.bus.flush()
    assert len(told) == len(set(told)) == 300
    for partition in range(3):
        assert sorted(at.offset for at in told if at.partition == partition) == list(range(100))


@promise()
async def send_many_stores_all_in_order(world: World) -> None:
    topic = await world.topic()
    await world.bus.send_many(topic, (b"%d" % number for number in range(5_000)))
    assert await world.values(topic) == [b"%d" % number for number in range(5_000)]


@promise()
async def send_many_writes_to_the_partition_that_it_names(world: World) -> None:
    topic = await world.topic(3)
    values = [b"%d" % number for number in range(1_500)]
    await world.bus.send_many(topic, values, key=lambda value: value, partition=1)
    assert await world.values(topic, 1) == values
    await refused(UnknownTopicOrPartition, world.bus.send_many(topic, values, partition=3))


@promise(each=("", "a/b", "..", "x" * 250))
async def a_name_that_no_topic_can_have_is_refused_at_once(world: World, name: str) -> None:
    kinds = (UnknownTopicOrPartition, InvalidTopic)
    await refused(kinds, world.bus.send(name, b"x"))

    async def in_a_batch() -> None:
        await world.bus.send_nowait(name, b"x")

    await refused(kinds, in_a_batch())


@promise()
async def a_closed_producer_refuses(world: World) -> None:
    topic = await world.topic()
    async with world.producer() as producer:
        await producer.send(topic, b"before")

    async def send() -> None:
        await producer.send(topic, b"after")

    await refused(ProducerClosed, send())
    assert await world.values(topic) == [b"before"]


@promise()
async def closing_a_producer_stores_what_it_was_given(world: World) -> None:
    topic = await world.topic()
    async with world.producer(linger_ms=50) as producer:
        for number in range(100):
            producer.send_nowait(topic, b"%d" % number)
    assert await world.values(topic) == [b"%d" % number for number in range(100)]


@promise()
async def an_idempotent_producer_is_known_by_its_sequence(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    async with world.producer() as one, world.producer() as other:
        for _ in range(10):
            await one.send(topic, b"one")
        await other.send(topic, b"other")
        known = (await world.admin.describe_producers([where]))[where]
    assert sorted(producer.last_sequence for producer in known) == [0, 9]
    assert len({producer.producer_id for producer in known}) == 2
    assert all(producer.transaction_start_offset == -1 for producer in known)


@promise("restart")
async def producer_ids_are_never_given_twice(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    for _ in range(3):
        for _ in range(3):
            async with world.producer() as producer:
                await producer.send(topic, b"x")
        await world.restart()
    known = (await world.admin.describe_producers([where]))[where]
    assert len({producer.producer_id for producer in known}) == 9


@promise("kill")
async def the_state_of_producers_survives_a_kill(world: World) -> None:
    topic = await world.topic()
    where = TopicPartition(topic, 0)
    producer = await world.doomed(world.bus.new_producer())
    for _ in range(5):
        await producer.send(topic, b"x")
    before = (await world.admin.describe_producers([where]))[where]
    await world.kill()
    assert (await world.admin.describe_producers([where]))[where] == before


@promise()
async def many_senders_lose_and_repeat_nothing(world: World) -> None:
    import anyio

    topic = await world.topic(4)

    async def sender(which: int) -> None:
        for number in range(50):
            await world.bus.send(topic, b"%d/%d" % (which, number), partition=which % 4)

    async with anyio.create_task_group() as tasks:
        for which in range(16):
            tasks.start_soon(sender, which)
    found = [value or b"" for partition in range(4) for value in await world.values(topic, partition)]
    for which in range(16):
        mine = [int(value.split(b"/")[1]) for value in found if value.startswith(b"%d/" % which)]
        assert mine == list(range(50))
