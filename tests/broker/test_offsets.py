"""Committed offsets: a real ``__consumer_offsets`` topic in Kafka's format, folded back at open."""

from __future__ import annotations

import pytest

from eventbus.broker.partitions import Writes
from eventbus.coordinator import decode_offset_key, decode_offset_value, partition_for_group
from eventbus.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidRequest,
    OffsetMetadataTooLarge,
    UnknownTopicOrPartition,
)
from eventbus.types import OffsetAndMetadata, TopicPartition

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)


@pytest.fixture
def orders(world):
    world.create("orders", 2)
    return world


def test_commit_and_fetch(orders) -> None:
    broker = orders.broker
    assert broker.groups.fetch_offsets("g") == {}
    assert broker.groups.fetch_offsets("g", [ORDERS]) == {}
    assert [listing.group for listing in orders.broker.groups.list()] == []
    stored = broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(5, "why not \u00e4")}, orders.now_ms)
    assert stored.errors == {}
    assert stored.topic_partition == ("__consumer_offsets", partition_for_group("g", 50))
    assert stored.last_offset == 0
    assert broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(5, "why not \u00e4")}
    assert broker.groups.fetch_offsets("g", [OTHER]) == {}
    assert broker.groups.fetch_offsets("other") == {}
    assert (
        broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(3), OTHER: OffsetAndMetadata(9)}, 0).last_offset
        == 2
    )
    assert broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(3), OTHER: OffsetAndMetadata(9)}
    assert [listing.group for listing in broker.groups.list()] == ["g"]


@pytest.mark.parametrize("offset", [-1, -(1 << 70), 1 << 63, 1 << 70])
def test_an_offset_that_no_log_has_is_refused(orders, offset: int) -> None:
    offsets = {ORDERS: OffsetAndMetadata(offset), OTHER: OffsetAndMetadata((1 << 63) - 1)}
    stored = orders.broker.groups.commit_offsets("g", offsets, orders.now_ms)
    assert {tp: type(error) for tp, error in stored.errors.items()} == {ORDERS: InvalidRequest}
    assert orders.broker.groups.fetch_offsets("g") == {OTHER: OffsetAndMetadata((1 << 63) - 1)}


def test_each_partition_answers_for_itself(orders) -> None:
    unknown, beyond = TopicPartition("order", 0), TopicPartition("orders", 2)
    stored = orders.broker.groups.commit_offsets(
        "g",
        {
            unknown: OffsetAndMetadata(1),
            ORDERS: OffsetAndMetadata(1),
            beyond: OffsetAndMetadata(1),
            OTHER: OffsetAndMetadata(1, "x" * 5000),
        },
        orders.now_ms,
    )
    assert {tp: type(error) for tp, error in stored.errors.items()} == {
        unknown: UnknownTopicOrPartition,
        beyond: UnknownTopicOrPartition,
        OTHER: OffsetMetadataTooLarge,
    }
    assert "'orders'?" in str(stored.errors[unknown])
    assert orders.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(1)}


def test_a_commit_of_nothing_stores_nothing(orders) -> None:
    stored = orders.broker.groups.commit_offsets("g", {TopicPartition("x", 0): OffsetAndMetadata(1)}, orders.now_ms)
    assert stored.last_offset == -1
    assert orders.broker.is_durable(stored.topic_partition, stored.last_offset)
    with pytest.raises(InvalidGroupId, match="group's name has 1 to 32,767 bytes"):
        orders.broker.groups.commit_offsets("", {ORDERS: OffsetAndMetadata(1)}, orders.now_ms)


def test_commits_are_as_durable_as_records(disk) -> None:
    broker = disk.open()
    disk.create("orders")
    disk.advanced.clear()
    stored = broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(7)}, disk.now_ms)
    assert not broker.is_durable(stored.topic_partition, stored.last_offset)
    disk.flush()
    assert broker.is_durable(stored.topic_partition, stored.last_offset)
    assert stored.topic_partition in disk.advanced


@pytest.mark.parametrize("clean", [True, False])
def test_offsets_survive_restarts(orders, clean: bool) -> None:
    for number in range(60):  # more groups than partitions: some share one
        group = f"group-{number}"
        for offset in (1, number):
            commit = {ORDERS: OffsetAndMetadata(offset, group), OTHER: OffsetAndMetadata(offset + 1)}
            orders.broker.groups.commit_offsets(group, commit, orders.now_ms)
    orders.broker.groups.delete("group-3", orders.now_ms)
    before = repr(orders.broker)
    orders.flush()
    orders.restart(clean=clean)
    assert repr(orders.broker) == before
    assert len(orders.broker.groups.list()) == 59
    assert orders.broker.groups.fetch_offsets("group-59") == {
        ORDERS: OffsetAndMetadata(59, "group-59"),
        OTHER: OffsetAndMetadata(60),
    }


def test_deleting(orders) -> None:
    broker = orders.broker
    broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(1), OTHER: OffsetAndMetadata(2)}, orders.now_ms)
    assert broker.groups.delete_offsets("g", [ORDERS, TopicPartition("never", 0)], orders.now_ms) == 1
    with pytest.raises(GroupIdNotFound, match="no group 'nobody'"):
        broker.groups.delete_offsets("nobody", [ORDERS], orders.now_ms)
    assert broker.groups.fetch_offsets("g") == {OTHER: OffsetAndMetadata(2)}
    assert broker.groups.delete("g", orders.now_ms) == 1
    for group in ("g", "nobody"):
        with pytest.raises(GroupIdNotFound, match=f"no group {group!r}"):
            broker.groups.delete(group, orders.now_ms)
    orders.restart()
    assert [listing.group for listing in orders.broker.groups.list()] == []


@pytest.mark.system
@pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")  # kafka-python, as it is imported
def test_what_is_stored_is_kafkas_format(orders) -> None:
    """Read back with kafka-python's record parser, from the bytes of the log."""
    parser = pytest.importorskip("kafka.record", reason="kafka-python is the independent reader; `make test` has it")
    orders.now_ms = 1_700_000_000_123
    stored = orders.broker.groups.commit_offsets("billing", {OTHER: OffsetAndMetadata(42, "note")}, orders.now_ms)
    orders.broker.groups.delete("billing", orders.now_ms)
    orders.flush()
    assert stored.topic_partition == ("__consumer_offsets", 9)
    data = orders.broker.fetch(stored.topic_partition, 0, 1 << 20).records
    records, reader = [], parser.MemoryRecords(data)
    while (batch := reader.next_batch()) is not None:
        assert batch.validate_crc()
        records += batch
    commit, tombstone = records
    assert (commit.offset, commit.timestamp, tombstone.offset) == (0, orders.now_ms, 1)
    # OffsetCommitKey 1 and OffsetCommitValue 3, by hand from Kafka's schemas: int16 version, strings with an int16
    # length, int32 partition; int64 offset, int32 leader epoch, string metadata, int64 commit timestamp.
    assert commit.key == b"\0\1" + b"\0\7billing" + b"\0\6orders" + b"\0\0\0\1"
    assert commit.value == (
        b"\0\3" + (42).to_bytes(8, "big") + b"\xff\xff\xff\xff" + b"\0\4note" + (1_700_000_000_123).to_bytes(8, "big")
    )
    assert (tombstone.key, tombstone.value) == (commit.key, None)
    assert decode_offset_key(commit.key) == ("billing", OTHER)
    assert decode_offset_value(commit.value) == (42, "note", 1_700_000_000_123, -1)


def test_partitions_of_the_offsets_topic_are_settled_at_its_creation(world) -> None:
    world.restart(offsets_topic_num_partitions=5, offsets_topic_segment_bytes=2000)
    world.create("orders")
    for number in range(20):
        world.broker.groups.commit_offsets(f"g{number}", {ORDERS: OffsetAndMetadata(number)}, world.now_ms)
    assert world.broker.partition_count("__consumer_offsets") == 5
    world.restart(offsets_topic_num_partitions=50)
    assert world.broker.partition_count("__consumer_offsets") == 5
    assert [world.broker.groups.fetch_offsets(f"g{n}")[ORDERS].offset for n in range(20)] == list(range(20))


def test_offsets_roll_into_further_segments(world) -> None:
    world.restart(offsets_topic_segment_bytes=500)
    world.create("orders")
    for offset in range(30):
        stored = world.broker.groups.commit_offsets("g", {ORDERS: OffsetAndMetadata(offset)}, world.now_ms)
    segments = [name for name in world.files(str(stored.topic_partition)) if name.endswith(".log")]
    assert len(segments) > 3
    world.restart(clean=False)
    assert world.broker.groups.fetch_offsets("g") == {ORDERS: OffsetAndMetadata(29)}


@pytest.mark.system
def test_ten_thousand_commits_are_replayed(world) -> None:
    world.create("orders", 100)
    for number in range(10_000):
        tp = TopicPartition("orders", number % 100)
        world.broker.groups.commit_offsets(f"group-{number // 100}", {tp: OffsetAndMetadata(number)}, world.now_ms)
    world.broker.close(world.now_ms)
    world.open()
    assert len(world.broker.groups.list()) == 100
    assert len(world.broker.groups.fetch_offsets("group-99")) == 100


def test_records_of_newer_group_protocols_are_passed_over(orders) -> None:
    from eventbus.records import BatchBuilder

    stored = orders.broker.groups.commit_offsets("billing", {ORDERS: OffsetAndMetadata(1)}, orders.now_ms)
    builder = BatchBuilder()
    builder.append(bytes.fromhex("0011000762696c6c696e67"), b"\0\3whatever", (), orders.now_ms)
    log = orders.broker._partitions[stored.topic_partition].log
    Writes(orders.broker._logs).append(log, builder.build(), orders.now_ms)
    orders.restart()
    assert orders.broker.groups.fetch_offsets("billing") == {ORDERS: OffsetAndMetadata(1)}
