"""Topics: create, delete, grow, configure, describe; and that all of it is still there after a restart."""

from __future__ import annotations

import pytest

from eventbus.broker import CONFIG_KEYS, PartitionDescription, TopicDescription, TopicSpec
from eventbus.errors import (
    ConfigError,
    InvalidConfig,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    KafkaError,
    LogPoisoned,
    StorageError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.testing.storage import CrashStorage, FaultyStorage, disk_full, io_error
from eventbus.types import OffsetAndMetadata, TopicPartition

from .conftest import World

ORDERS = TopicPartition("orders", 0)


def describe(world, name: str) -> TopicDescription:
    (description,) = world.broker.describe_topics([name])
    return description


def stands(partition: PartitionDescription) -> tuple[int, ...]:
    return (
        partition.log_start_offset,
        partition.high_watermark,
        partition.last_stable_offset,
        partition.log_end_offset,
        partition.size_bytes,
    )


def test_create_and_describe(world) -> None:
    results = world.broker.create_topics([TopicSpec("orders", 3, configs={"retention.ms": 1000})], world.now_ms)
    created = results["orders"]
    assert isinstance(created, TopicDescription)
    assert created == describe(world, "orders")
    assert len(created.topic_id) == 22
    assert created.replication_factor == 1
    assert not created.is_internal
    assert [(p.partition, p.leader, p.replicas, p.isr) for p in created.partitions] == [
        (0, 1, (1,), (1,)), (1, 1, (1,), (1,)), (2, 1, (1,), (1,)),
    ]  # fmt: skip
    assert list(created.configs) == list(CONFIG_KEYS)
    assert created.configs["retention.ms"][:3] == ("1000", "604800000", "topic")
    assert world.broker.partition_count("orders") == 3
    assert world.broker.max_message_bytes("orders") == 1_048_588
    assert world.broker.list_topics() == ["orders"]
    assert world.broker.has_topic("orders")
    assert not world.broker.has_topic("order")


def test_describe_tells_where_each_partition_stands(world) -> None:
    world.create("orders", 2)
    world.produce(TopicPartition("orders", 1), b"a", b"b")
    empty, filled = describe(world, "orders").partitions
    size = len(world.batch(b"a", b"b"))
    assert stands(empty) == (0, 0, 0, 0, 0)
    assert stands(filled) == (0, 2, 2, 2, size)
    world.restart()
    assert [stands(partition) for partition in describe(world, "orders").partitions] == [stands(empty), stands(filled)]


def test_each_topic_is_created_or_told_why_not(world) -> None:
    world.create("old")
    specs = [
        TopicSpec("good"),
        TopicSpec("old", 7),
        TopicSpec("a b"),
        TopicSpec("none", 0),
        TopicSpec("copies", 1, 3),
        TopicSpec("wrong", configs={"retention.mss": 1}),
        TopicSpec("bad", configs={"segment.bytes": 1}),
        TopicSpec("contrary", configs={"min.compaction.lag.ms": 2, "max.compaction.lag.ms": 1}),
        TopicSpec("__consumer_offsets"),
        TopicSpec("last", -1, -1),
    ]
    results = world.broker.create_topics(specs, world.now_ms)
    assert list(results) == [spec.name for spec in specs]
    assert {name: type(result) for name, result in results.items()} == {
        "good": TopicDescription,
        "old": TopicAlreadyExists,
        "a b": InvalidTopic,
        "none": InvalidPartitions,
        "copies": InvalidReplicationFactor,
        "wrong": InvalidConfig,
        "bad": InvalidConfig,
        "contrary": InvalidConfig,
        "__consumer_offsets": InvalidTopic,
        "last": TopicDescription,
    }
    assert "kafka://" in str(results["copies"])
    assert world.broker.list_topics() == ["good", "last", "old"]


def test_validate_only_changes_nothing(world) -> None:
    version, files = world.broker.topics_version, world.files()
    results = world.broker.create_topics([TopicSpec("orders", 2), TopicSpec(".")], world.now_ms, validate_only=True)
    assert isinstance(results["orders"], TopicDescription)
    assert len(results["orders"].partitions) == 2
    assert isinstance(results["."], InvalidTopic)
    assert world.broker.list_topics() == []
    assert world.broker.topics_version == version
    assert world.files() == files


def test_warnings_are_told_at_creation(world) -> None:
    world.create("a.b")
    results = world.broker.create_topics([TopicSpec("a_b", configs={"min.insync.replicas": 2})], world.now_ms)
    collision, idle = results["a_b"].warnings
    assert "'a_b' and 'a.b'" in collision
    assert idle == "min.insync.replicas=2: stored only: there is one copy here, kafka:// replicates"
    assert describe(world, "a_b").warnings == ()
    assert world.broker.create_topics([TopicSpec("t", configs={"cleanup.policy": "compact"})], 0)["t"].warnings == ()


def test_unknown_topics_suggest_the_nearest(world) -> None:
    world.create("orders")
    tp = TopicPartition("order", 0)
    calls = [
        lambda: world.broker.partition_count("order"),
        lambda: world.broker.describe_topics(["order"]),
        lambda: world.broker.produce(tp, world.batch(b"x"), 0),
        lambda: world.broker.fetch(tp, 0, 100),
        lambda: world.broker.list_offsets(tp, -1),
        lambda: world.broker.add_partitions("order", 5, 0),
        lambda: world.broker.alter_configs("order", {}, [], 0),
        lambda: world.broker.is_durable(tp, 0),
        lambda: world.broker.max_message_bytes("order"),
    ]
    for call in calls:
        with pytest.raises(UnknownTopicOrPartition, match=r"create it: `eventbus topics create order`.*'orders'\?"):
            call()
    error = world.broker.delete_topics(["order"], 0)["order"]
    assert isinstance(error, UnknownTopicOrPartition)


def test_unknown_partitions_tell_the_range(world) -> None:
    world.create("orders", 2)
    for number in (2, -1):
        with pytest.raises(UnknownTopicOrPartition, match=rf"2 partition\(s\), 0 to 1; there is no partition {number}"):
            world.broker.fetch(TopicPartition("orders", number), 0, 100)


def test_topics_are_not_created_unasked(world) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        world.broker.partition_count("fresh")
    world.restart(auto_create_topics=True, num_partitions=4)
    assert world.broker.partition_count("fresh") == 4
    assert world.broker.list_topics() == ["fresh"]
    with pytest.raises(InvalidTopic):
        world.broker.partition_count("not legal")
    with pytest.raises(UnknownTopicOrPartition):
        world.broker.fetch(TopicPartition("other", 0), 0, 100)  # as in Kafka, only metadata requests create
    assert len(world.broker.create_topics([TopicSpec("t")], 0)["t"].partitions) == 4


def test_growing(world) -> None:
    world.create("orders", 2)
    world.produce(ORDERS, b"kept")
    version = world.broker.topics_version
    world.broker.add_partitions("orders", 4, world.now_ms)
    assert world.broker.topics_version > version
    world.produce(TopicPartition("orders", 3), b"new")
    with pytest.raises(InvalidPartitions, match="only grows"):
        world.broker.add_partitions("orders", 4, world.now_ms)
    with pytest.raises(InvalidTopic):
        world.broker.add_partitions("__consumer_offsets", 51, world.now_ms)
    world.restart()
    assert world.broker.partition_count("orders") == 4
    assert world.read(ORDERS) == [(0, b"kept")]
    assert world.read(TopicPartition("orders", 3)) == [(0, b"new")]


def test_configs_act_at_once(world) -> None:
    world.create("orders")
    world.produce(ORDERS, b"x" * 300)
    described = world.broker.alter_configs("orders", {"max.message.bytes": 200, "preallocate": True}, [], world.now_ms)
    assert described.configs["max.message.bytes"].value == "200"
    assert ["preallocate=true: stored only" in warning for warning in described.warnings] == [True]
    assert world.broker.max_message_bytes("orders") == 200
    with pytest.raises(KafkaError, match=r"max\.message\.bytes=200"):
        world.produce(ORDERS, b"x" * 300)
    world.restart()
    with pytest.raises(KafkaError, match=r"max\.message\.bytes=200"):
        world.produce(ORDERS, b"x" * 300)
    world.broker.alter_configs("orders", {}, ["max.message.bytes"], world.now_ms)
    world.produce(ORDERS, b"x" * 300)
    assert describe(world, "orders").configs["max.message.bytes"].source == "default"


def test_bad_configs_change_nothing(world) -> None:
    world.create("orders", segment_ms=5)
    for set_, delete in [
        ({"segment.ms": 6, "retention.ms": "x"}, []),
        ({}, ["segment.mss"]),
        ({"segment.ms": 6, "min.compaction.lag.ms": 5, "max.compaction.lag.ms": 4}, []),
    ]:
        with pytest.raises(InvalidConfig):
            world.broker.alter_configs("orders", set_, delete, world.now_ms)
    with pytest.raises(InvalidTopic):
        world.broker.alter_configs("__cluster_metadata", {}, [], world.now_ms)
    assert describe(world, "orders").configs["segment.ms"].value == "5"


def test_defaults_of_the_broker(world) -> None:
    world.restart(log_defaults={"retention.ms": 77, "max.message.bytes": 100})
    world.create("orders", max_message_bytes=500)
    entries = describe(world, "orders").configs
    assert entries["retention.ms"][:3] == ("77", "77", "broker")
    assert entries["max.message.bytes"][:3] == ("500", "100", "topic")
    assert world.broker.max_message_bytes("orders") == 500
    world.broker.close(world.now_ms)
    with pytest.raises(InvalidConfig, match=r"retention\.ms='soon'"):
        world.open(log_defaults={"retention.ms": "soon"})
    world.open(fsync="os")  # a failed open lets go of the directory
    assert describe(world, "orders").configs["retention.ms"].source == "default"


def test_topics_survive_restarts(world) -> None:
    world.create("orders", 2, retention_ms=5)
    before = describe(world, "orders")
    for clean in (True, False):
        world.restart(clean=clean)
        assert describe(world, "orders") == before


def test_delete_takes_records_and_offsets_and_frees_the_name(world) -> None:
    world.create("orders", 2)
    world.create("other")
    other = TopicPartition("other", 0)
    world.produce(ORDERS, b"old", b"old")
    commits = {ORDERS: OffsetAndMetadata(2), other: OffsetAndMetadata(1)}
    world.broker.groups.commit_offsets("g", commits, world.now_ms)
    world.broker.groups.commit_offsets("only-orders", {ORDERS: OffsetAndMetadata(2)}, world.now_ms)
    old_id = describe(world, "orders").topic_id
    world.flush()
    world.advanced.clear()

    assert world.broker.delete_topics(["orders", "nope"], world.now_ms)["orders"] is None
    assert ORDERS in world.advanced  # who waits there must learn of it
    assert world.broker.list_topics() == ["__consumer_offsets", "other"]
    assert not [name for name in world.files() if name.startswith("orders")]
    assert world.broker.groups.fetch_offsets("g") == {other: OffsetAndMetadata(1)}
    assert [listing.group for listing in world.broker.groups.list()] == ["g"]
    with pytest.raises(UnknownTopicOrPartition):
        world.broker.fetch(ORDERS, 0, 100)

    world.create("orders", 1)
    assert describe(world, "orders").topic_id != old_id
    assert world.read(ORDERS) == []
    assert world.produce(ORDERS, b"new") == 0
    for clean in (True, False):
        world.restart(clean=clean)
        assert world.read(ORDERS) == [(0, b"new")]
        assert world.broker.groups.fetch_offsets("g", [ORDERS]) == {}


def test_a_new_topic_is_not_measured_by_the_old_ones_watermark(world) -> None:
    world.create("orders")
    world.produce(ORDERS, b"a", b"b", b"c")
    world.broker.publish_checkpoints(world.now_ms)
    world.broker.delete_topics(["orders"], world.now_ms)
    world.create("orders")
    world.restart(clean=False)
    assert world.read(ORDERS) == []
    assert world.produce(ORDERS, b"new") == 0
    world.restart(clean=False)
    assert world.read(ORDERS) == [(0, b"new")]


def test_internal_topics_are_kept_and_shown(world) -> None:
    world.create("orders")
    world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(0)}, world.now_ms)
    for name in ("__consumer_offsets", "__cluster_metadata"):
        assert isinstance(world.broker.delete_topics([name], world.now_ms)[name], InvalidTopic)
        with pytest.raises(InvalidTopic, match="internal"):
            world.broker.produce(TopicPartition(name, 0), world.batch(b"x"), world.now_ms)
    offsets = describe(world, "__consumer_offsets")
    assert offsets.is_internal
    assert len(offsets.partitions) == 50
    told = {key: entry.value for key, entry in offsets.configs.items() if entry.source == "topic"}
    assert told == {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": "104857600"}
    assert [topic.name for topic in world.broker.describe_topics()] == ["__consumer_offsets", "orders"]


def test_a_thousand_partitions_cost_nothing_before_they_are_used(world) -> None:
    before = world.files()
    world.create("wide", 1000)
    assert len(describe(world, "wide").partitions) == 1000
    for number in range(1000):
        tp = TopicPartition("wide", number)
        assert world.broker.list_offsets(tp, -1).offset == 0
        assert world.broker.fetch(tp, 0, 100).records == b""
    assert sorted(set(world.files()) - set(before)) == ["__cluster_metadata-0"]
    world.produce(TopicPartition("wide", 77), b"x")
    assert sorted(set(world.files()) - set(before)) == ["__cluster_metadata-0", "wide-77"]
    world.restart()
    assert world.read(TopicPartition("wide", 77)) == [(0, b"x")]


def test_cluster_id(world) -> None:
    cluster_id = world.broker.cluster_id
    assert len(cluster_id) == 22
    world.restart()
    assert world.broker.cluster_id == cluster_id
    world.restart(cluster_id=cluster_id)
    world.broker.close(world.now_ms)
    with pytest.raises(ConfigError, match=f"belongs to cluster {cluster_id}, asked for cluster_id=another"):
        world.open(cluster_id="another")
    world.open(fsync="commit")


@pytest.mark.parametrize(
    "settings",
    [
        {"fsync": "sometimes"},
        {"fsync_interval_ms": 0},
        {"num_partitions": 0},
        {"offsets_topic_num_partitions": 0},
        {"checkpoint_interval_ms": -1},
    ],
)
def test_settings_that_cannot_be(world, settings) -> None:
    world.broker.close(world.now_ms)
    with pytest.raises(ConfigError, match=f"log setting {next(iter(settings))}"):
        world.open(**settings)
    world.open(fsync="commit")


def test_a_closed_broker_refuses(world) -> None:
    world.create("orders")
    world.broker.close(world.now_ms)
    world.broker.close(world.now_ms)
    for call in (
        lambda: world.broker.produce(ORDERS, world.batch(b"x"), 0),
        lambda: world.broker.fetch(ORDERS, 0, 10),
        lambda: world.broker.create_topics([TopicSpec("t")], 0),
        lambda: world.broker.groups.commit_offsets("g", {}, 0),
    ):
        with pytest.raises(StorageError, match="was closed"):
            call()
    world.open()


def failing_world(error, *only: str) -> World:
    world = World(None)
    world.storage = FaultyStorage(CrashStorage(), error=error, only=only)
    world.open(offsets_topic_num_partitions=1)
    world.create("orders")
    world.produce(ORDERS, b"before")
    world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(1)}, world.now_ms)
    world.flush()
    return world


@pytest.mark.parametrize(("error", "only"), [(disk_full, "append"), (io_error, "sync"), (io_error, "sync_dir")])
def test_nothing_is_stored_in_a_topic_that_may_be_gone(error, only: str) -> None:
    """Or it would be acknowledged now, and gone at the next start. Whatever call of a deletion failed."""
    outcomes: set[bool] = set()
    for fail_at in range(1, 13):
        world = failing_world(error, only)
        world.storage.fail_at = world.storage.calls_count + fail_at
        failed = world.broker.delete_topics(["orders"], world.now_ms)["orders"]
        world.storage.heal()
        world.flush()
        is_gone = not world.broker.has_topic("orders")
        outcomes.add(failed is not None and is_gone)
        try:
            world.produce(ORDERS, b"after")
        except (UnknownTopicOrPartition, LogPoisoned):
            assert is_gone
            stored = []
        else:
            stored = [(0, b"before"), (1, b"after")]
        world.storage = world.storage.inner.kill()
        world.open()
        if world.broker.has_topic("orders"):
            assert stored in ([], world.read(ORDERS))
        else:
            assert not stored
            assert world.broker.groups.fetch_offsets("g") == {}
        world.broker.check()
    assert outcomes == {False, True}


@pytest.mark.parametrize("only", ["sync", "sync_dir"])
def test_nothing_is_stored_in_a_topic_that_may_not_be_there_yet(only: str) -> None:
    world = failing_world(io_error, only)
    world.storage.fail_at = world.storage.calls_count + 1
    with pytest.raises(StorageError):
        world.broker.create_topics([TopicSpec("fresh")], world.now_ms)
    world.storage.heal()
    with pytest.raises(LogPoisoned, match="Close the log and open it again"):
        world.produce(TopicPartition("fresh", 0), b"lost")
    assert world.produce(ORDERS, b"after") == 1
