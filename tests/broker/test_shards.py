"""The state machines alone: what they decide, what they refuse, and that replay is the only writer."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.coordinator import Decision, GroupsShard, Shard, TopicsShard
from eventbus.coordinator.group_rules import GroupConfig
from eventbus.errors import (
    GroupIdNotFound,
    InvalidGroupId,
    InvalidPartitions,
    InvalidRequest,
    KafkaError,
    OffsetMetadataTooLarge,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition

T0, T1 = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Harness:
    """Stores decisions in a list and folds them in, as the broker does with a log."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.records: list[tuple[bytes, bytes | None]] = []

    def run(self, decision: Decision) -> object:
        self.records += decision.records
        for key, value in decision.records:
            self.shard.replay(key, value)
        return decision.reply


def replayed(shard: Shard, harness: Harness) -> str:
    for key, value in harness.records:
        shard.replay(key, value)
    return repr(shard)


# offsets -------------------------------------------------------------------------------------------------------------


def groups_shard() -> GroupsShard:
    return GroupsShard(GroupConfig(), lambda: "id")


G = GroupMetadata("g")


def test_commit_decides_and_only_replay_writes() -> None:
    shard = groups_shard()
    decision = shard.commit(G, {T0: OffsetAndMetadata(5, "note")}, now_ms=1)
    assert repr(shard) == "GroupsShard()"
    assert decision.reply == {}
    Harness(shard).run(decision)
    assert repr(shard) == "GroupsShard(g[orders-0=5'note'@1])"
    assert shard.fetch("g", [T0, T1]) == {T0: OffsetAndMetadata(5, "note")}
    assert shard.fetch("nobody", None) == {}


def test_refused_offsets_do_not_hold_up_the_others() -> None:
    harness = Harness(shard := groups_shard())
    offsets = {
        T0: OffsetAndMetadata(1, "x" * 4096),
        T1: OffsetAndMetadata(1, "x" * 4097),
        TopicPartition("t", 0): OffsetAndMetadata(-1),
        TopicPartition("t", 1): OffsetAndMetadata(1, "\ud800"),
    }
    errors = harness.run(shard.commit(G, offsets, 0))
    assert isinstance(errors, dict)
    assert [type(errors[tp]) for tp in list(offsets)[1:]] == [OffsetMetadataTooLarge, InvalidRequest, InvalidRequest]
    assert "metadata of 4,097 characters, 4,096 at most" in str(errors[T1])
    assert list(shard.fetch("g", None)) == [T0]


@pytest.mark.parametrize("group", ["", "x" * 32768, "\ud800"])
def test_groups_that_cannot_be_stored(group: str) -> None:
    with pytest.raises(InvalidGroupId, match="choose another name"):
        groups_shard().commit(GroupMetadata(group), {T0: OffsetAndMetadata(1)}, 0)


def test_forgetting_is_tombstones() -> None:
    harness = Harness(shard := groups_shard())
    other = TopicPartition("other", 0)
    for group in ("a", "b"):
        harness.run(shard.commit(GroupMetadata(group), {tp: OffsetAndMetadata(1) for tp in (T0, T1, other)}, 0))
    decision = shard.delete_offsets("a", [T0, TopicPartition("never", 0)])
    assert [record.value for record in decision.records] == [None]
    assert harness.run(decision) == 1
    assert harness.run(shard.delete_topics({"orders"})) == 3
    assert repr(shard) == "GroupsShard(a[other-0=1@0] b[other-0=1@0])"
    assert harness.run(shard.delete_group("a")) == 1
    assert repr(shard) == "GroupsShard(b[other-0=1@0])"
    with pytest.raises(GroupIdNotFound, match="no group 'a'"):
        shard.delete_group("a")
    assert replayed(groups_shard(), harness) == repr(shard)


def test_records_of_newer_group_protocols_are_passed_over() -> None:
    shard = groups_shard()
    shard.replay(bytes.fromhex("000b000762696c6c696e67"), b"whatever")  # ShareGroupMetadataKey, KIP-932
    assert repr(shard) == "GroupsShard()"
    with pytest.raises(ValueError, match="ConsumerGroupMetadataValue"):
        shard.replay(bytes.fromhex("0003000762696c6c696e67"), b"whatever")  # ConsumerGroupMetadataKey, KIP-848


# topics --------------------------------------------------------------------------------------------------------------


def test_a_topics_life() -> None:
    harness = Harness(shard := TopicsShard())
    harness.run(shard.create("orders", 2, {"retention.ms": "5"}, "id-1", 77))
    assert repr(shard) == "TopicsShard(orders(id-1 partitions=2 retention.ms=5))"
    harness.run(shard.add_partitions("orders", 3))
    harness.run(shard.alter_configs("orders", {"segment.ms": "9"}, ["retention.ms"]))
    assert repr(shard) == "TopicsShard(orders(id-1 partitions=3 segment.ms=9))"
    harness.run(shard.delete("orders"))
    assert repr(shard) == "TopicsShard(-orders)"
    harness.run(shard.create("orders", 1, {}, "id-2", 78))
    assert repr(shard) == "TopicsShard(orders(id-2 partitions=1))"
    assert replayed(TopicsShard(), harness) == repr(shard)


def test_the_record_format_is_the_documented_one() -> None:
    ((key, value),) = TopicsShard().create("flights", 3, {"retention.ms": "1000"}, "id", 1700000000000).records
    assert key == b'{"type":"topic","name":"flights"}'
    assert value is not None
    assert msgspec.json.decode(value) == {
        "version": 0, "topic_id": "id", "partitions": 3, "configs": {"retention.ms": "1000"},
        "created_ms": 1700000000000,
    }  # fmt: skip


def test_refusals() -> None:
    harness = Harness(shard := TopicsShard())
    harness.run(shard.create("orders", 2, {}, "id", 0))
    with pytest.raises(TopicAlreadyExists, match=r"'orders' exists, with 2 partition.*topics delete orders"):
        shard.create("orders", 2, {}, "id", 0)
    for count in (0, -5, 10_001):
        with pytest.raises(InvalidPartitions, match="choose 1 to 10,000"):
            shard.create("other", count, {}, "id", 0)
    for count in (2, 1, 0):
        with pytest.raises(InvalidPartitions, match="only grows"):
            shard.add_partitions("orders", count)
    with pytest.raises(
        UnknownTopicOrPartition,
        match=r"no topic 'order' \(create it: `eventbus topics create order`\); did you mean 'orders'\?",
    ):
        shard.delete("order")
    assert shard.alter_configs("orders", {}, ["retention.ms"]).records == ()


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (b"\x00\x01", None, "cannot be read"),
        (b'{"type":"user","name":"x"}', None, "unknown type 'user'"),
        (b'{"type":"topic"}', None, "cannot be read"),
        (b'{"type":"topic","name":"x"}', b"{}", "cannot be read"),
        (b'{"type":"topic","name":"x"}', b'{"version":1,"more":2}', "version 1.*a newer version wrote it"),
        (b'{"type":"topic","name":"x"}', b'{"version":0,"topic_id":"i","partitions":"many"}', "cannot be read"),
    ],
)
def test_metadata_that_is_not_ours_is_refused(key: bytes, value: bytes | None, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        TopicsShard().replay(key, value)


# the property that makes recovery the live path run again ------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
partitions = st.builds(TopicPartition, names, st.integers(0, 2))
offset_requests = st.one_of(
    st.tuples(st.just("commit"), names, st.dictionaries(partitions, st.integers(-1, 9), max_size=3)),
    st.tuples(st.just("delete_group"), names),
    st.tuples(st.just("delete_offsets"), names, st.lists(partitions, max_size=2)),
    st.tuples(st.just("delete_topics"), st.frozensets(names, max_size=2)),
)
configs = st.dictionaries(st.sampled_from(["retention.ms", "segment.ms"]), st.sampled_from(["1", "2"]), max_size=2)
topic_requests = st.one_of(
    st.tuples(st.just("create"), names, st.integers(0, 3), configs),
    st.tuples(st.just("delete"), names),
    st.tuples(st.just("add_partitions"), names, st.integers(1, 4)),
    st.tuples(st.just("alter_configs"), names, configs, st.lists(st.sampled_from(["retention.ms"]), max_size=1)),
)


@pytest.mark.system
@given(st.lists(offset_requests, max_size=12))
def test_offsets_live_equals_replayed(requests: list[tuple]) -> None:
    harness = Harness(shard := groups_shard())
    for now_ms, (name, *arguments) in enumerate(requests):
        if name == "commit":
            group, offsets = arguments
            given_offsets = {tp: OffsetAndMetadata(offset, "m") for tp, offset in offsets.items()}
            harness.run(shard.commit(GroupMetadata(group), given_offsets, now_ms))
            continue
        try:
            harness.run(getattr(shard, name)(*arguments))
        except GroupIdNotFound:
            assert arguments[0] not in shard.names
    fresh = groups_shard()
    assert replayed(fresh, harness) == repr(shard)
    assert fresh.offsets.groups == shard.offsets.groups


@pytest.mark.system
@given(st.lists(topic_requests, max_size=12))
def test_topics_live_equals_replayed(requests: list[tuple]) -> None:
    harness = Harness(shard := TopicsShard())
    for now_ms, (name, *arguments) in enumerate(requests):
        before = repr(shard)
        try:
            if name == "create":
                harness.run(shard.create(*arguments, topic_id=f"id-{now_ms}", now_ms=now_ms))
            else:
                harness.run(getattr(shard, name)(*arguments))
        except KafkaError:
            assert repr(shard) == before
    fresh = TopicsShard()
    assert replayed(fresh, harness) == repr(shard)
    assert fresh.topics == shard.topics
