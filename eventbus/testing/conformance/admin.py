"""Topics: created, described, changed, deleted; each request completely or not at all."""

from __future__ import annotations

from eventbus.broker import TopicSpec
from eventbus.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidTopic,
    KafkaError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.testing.conformance.errors import refused
from eventbus.testing.conformance.target import promise
from eventbus.testing.conformance.world import World
from eventbus.types import TopicPartition


@promise()
async def a_topic_is_created_once(world: World) -> None:
    name = world.name("topic")
    created = await world.admin.create_topic(name, 3, configs={"retention.ms": 1_234_567})
    assert (created.name, len(created.partitions)) == (name, 3)
    await refused(TopicAlreadyExists, world.admin.create_topic(name))
    (described,) = await world.admin.describe_topics([name])
    assert described.topic_id == created.topic_id
    assert described.configs["retention.ms"].value == "1234567"
    assert name in await world.admin.list_topics()


@promise()
async def what_cannot_be_created_is_refused_by_name(world: World) -> None:
    name = world.name("topic")
    for illegal in ("", ".", "..", "a/b", "a b", "x" * 250):
        await refused(InvalidTopic, world.admin.create_topic(illegal))
    await refused(InvalidPartitions, world.admin.create_topic(name, 0))
    for key, value in (("no.such.key", "1"), ("retention.ms", "soon"), ("cleanup.policy", "shred")):
        await refused(InvalidConfig, world.admin.create_topic(name, configs={key: value}))
    assert name not in await world.admin.list_topics()


@promise()
async def creating_several_tells_each_outcome(world: World) -> None:
    old, new, wrong = await world.topic(), world.name("topic"), world.name("topic")
    specs = [TopicSpec(old, 1), TopicSpec(new, 2), TopicSpec(wrong, 0)]
    results = await world.admin.create_topics(specs)
    assert isinstance(results[old], TopicAlreadyExists)
    assert isinstance(results[wrong], InvalidPartitions)
    assert not isinstance(results[new], KafkaError)
    topics = await world.admin.list_topics()
    assert new in topics
    assert wrong not in topics


@promise()
async def what_does_not_exist_is_refused_by_name(world: World) -> None:
    topic, nowhere = await world.topic(), world.name("nowhere")
    for missing in (TopicPartition(nowhere, 0), TopicPartition(topic, 7)):
        for at in ({missing: -1}, {missing: -2, TopicPartition(topic, 0): -2}):
            await refused(UnknownTopicOrPartition, world.admin.list_offsets(at))
        await refused(UnknownTopicOrPartition, world.admin.delete_records({missing: 0}))
    await refused(UnknownTopicOrPartition, world.admin.describe_topics([nowhere]))
    await refused(UnknownTopicOrPartition, world.admin.delete_topics([nowhere]))
    await refused(UnknownTopicOrPartition, world.admin.add_partitions(nowhere, 3))
    await refused(UnknownTopicOrPartition, world.admin.alter_configs(nowhere, {"retention.ms": 1_000}))


@promise()
async def trying_out_creates_nothing(world: World) -> None:
    name = world.name("topic")
    await world.admin.create_topic(name, 2, validate_only=True)
    assert name not in await world.admin.list_topics()
    await refused(InvalidConfig, world.admin.create_topic(name, configs={"no.such.key": 1}, validate_only=True))


@promise()
async def configs_are_set_and_unset(world: World) -> None:
    topic = await world.topic()
    await world.admin.alter_configs(topic, {"max.message.bytes": 5_000, "retention.ms": 77_000})
    (described,) = await world.admin.describe_topics([topic])
    assert described.configs["max.message.bytes"].value == "5000"
    assert described.configs["retention.ms"].value == "77000"
    await refused(InvalidConfig, world.admin.alter_configs(topic, {"retention.ms": 1, "no.such.key": 1}))
    await world.admin.alter_configs(topic, delete=["max.message.bytes"])
    (described,) = await world.admin.describe_topics([topic])
    assert described.configs["max.message.bytes"].value != "5000"
    assert described.configs["retention.ms"].value == "77000"


@promise()
async def a_topic_grows_and_never_shrinks(world: World) -> None:
    topic = await world.topic(2)
    await world.send(topic, b"kept", partition=1)
    await world.admin.add_partitions(topic, 5)
    assert len((await world.admin.describe_topics([topic]))[0].partitions) == 5
    for fewer in (5, 4, 0):
        await refused(InvalidPartitions, world.admin.add_partitions(topic, fewer))
    await world.send(topic, b"new", partition=4)
    assert await world.values(topic, 1) == [b"kept"]
    assert await world.values(topic, 4) == [b"new"]
    await refused(UnknownTopicOrPartition, world.admin.add_partitions(world.name("topic"), 2))


@promise()
async def a_deleted_topic_is_gone_with_its_records(world: World) -> None:
    topic = await world.topic()
    (before,) = await world.admin.describe_topics([topic])
    await world.send(topic, b"gone")
    await world.admin.delete_topics(topic)
    assert topic not in await world.admin.list_topics()
    await refused(UnknownTopicOrPartition, world.admin.describe_topics([topic]))
    await refused(UnknownTopicOrPartition, world.admin.delete_topics(topic))
    await world.admin.create_topic(topic)
    assert await world.values(topic) == []
    assert (await world.admin.describe_topics([topic]))[0].topic_id != before.topic_id
    assert (await world.bus.send(topic, b"new")).offset == 0


@promise("restart")
async def topics_survive_a_restart(world: World) -> None:
    kept, deleted = await world.topic(3, retention_ms=123_456), await world.topic()
    await world.admin.delete_topics(deleted)
    await world.admin.add_partitions(kept, 4)
    (before,) = await world.admin.describe_topics([kept])
    await world.restart()

    async def is_as_before() -> bool:  # a server may listen before all its partitions have leaders
        return await world.admin.describe_topics([kept]) == [before]

    await world.eventually(is_as_before, "the topic is described as before")
    assert deleted not in await world.admin.list_topics()


@promise()
async def bookkeeping_is_not_listed_among_the_topics(world: World) -> None:
    topic = await world.topic()
    async with world.bus.transaction(world.name("id")) as tx:
        await tx.send(topic, b"x")
    listed = await world.admin.list_topics()
    assert topic in listed
    assert not [name for name in listed if name.startswith("__")]
