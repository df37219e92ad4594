"""Records of groups of the consumer protocol, as Apache Kafka wrote them: read, understood, and written alike."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from eventbus.coordinator import GroupsShard
from eventbus.coordinator import consumer_group_records as records
from eventbus.coordinator.consumer_group import ConsumerGroup
from eventbus.coordinator.consumer_group_member import ConsumerMember, MemberState
from eventbus.coordinator.consumer_group_requests import TopicIdPartition
from eventbus.coordinator.consumer_group_topics import TopicsView
from eventbus.coordinator.group_rules import GroupConfig
from eventbus.coordinator.topics import TopicState
from eventbus.errors import FencedMemberEpoch
from eventbus.protocol import messages as m
from eventbus.protocol.log_records import decode_value, encode_value

KAFKAS = json.loads((Path(__file__).parents[1] / "vectors" / "kafka_consumer_group_records.json").read_text("utf-8"))
STORED = [
    (bytes.fromhex(key), None if value is None else bytes.fromhex(value)) for key, value in KAFKAS["records"]
]  # fmt: skip


def view() -> TopicsView:
    counts = {"orders": 4, "flights": 1}
    states = {name: TopicState(name, text, counts[name], {}, 0) for name, text in KAFKAS["topics"].items()}
    return TopicsView(states, lambda: 1)


def of_the_group() -> list[tuple[bytes, bytes | None]]:
    return [(key, value) for key, value in STORED if records.is_consumer_group_key(key)]


def test_every_kind_of_record_is_there() -> None:
    assert {records.read_key(key).type for key, _ in of_the_group()} == records.RECORD_TYPES - {
        records.PARTITION_METADATA
    }


def test_kafkas_log_is_the_group_that_kafka_described() -> None:
    shard = GroupsShard(GroupConfig(), lambda: "", view())
    for key, value in STORED:
        shard.replay(key, value)
    found = shard.describe_consumers("g")

    def shares(partitions: frozenset[TopicIdPartition]) -> list[Any]:
        return [
            [found.topic_names[topic_id], list(numbers)] for topic_id, numbers in records.by_topic(partitions).items()
        ]

    members = [
        [
            one.member_id, one.instance_id, one.rack_id, one.member_epoch, list(one.topics), one.regex,
            0 if one.uses_classic_protocol else 1, sorted(shares(one.assignment)), sorted(shares(one.target)),
        ]
        for one in found.members
    ]  # fmt: skip
    told = {
        "state": found.state, "epoch": found.group_epoch, "target": found.assignment_epoch, "assignor": found.assignor,
        "members": sorted(members),
    }  # fmt: skip
    kafkas = KAFKAS["described"]
    assert told == {**kafkas, "members": [[*one[:-2], sorted(one[-2]), sorted(one[-1])] for one in kafkas["members"]]}


def test_each_record_is_written_as_kafka_wrote_it() -> None:
    group = ConsumerGroup("g")
    for key, value in of_the_group():
        read = records.read_key(key)
        group.replay(read, value)
        name, member = read.name, group.members.get(read.name)
        if value is None:
            continue
        if read.type == records.TARGET_METADATA:
            told, _ = decode_value(m.ConsumerGroupTargetAssignmentMetadataValue, value)
            written = records.target_epoch_record("g", group.target_epoch, told.assignment_timestamp)
        else:
            written = {
                records.METADATA: lambda: records.group_record("g", group.epoch, group.metadata_hash),
                records.MEMBER: lambda name=name, member=member: records.member_record("g", name, member),
                records.TARGET_MEMBER: lambda name=name: records.target_record("g", name, group.target[name]),
                records.CURRENT: lambda name=name, member=member: records.current_record("g", name, member),
                records.REGEX: lambda name=name: records.regex_record("g", name, group.regexes[name]),
            }[read.type]()
        assert written.key == key
        assert in_order(read.type, written.value) == in_order(read.type, value)


def in_order(kind: int, value: bytes) -> bytes:
    """Kafka's sets are in any order."""
    if kind == records.REGEX:
        regex, _ = decode_value(m.ConsumerGroupRegularExpressionValue, value)
        regex.topics.sort()
        return encode_value(regex, 0)
    if kind == records.TARGET_MEMBER:
        target, _ = decode_value(m.ConsumerGroupTargetAssignmentMemberValue, value)
        target.topic_partitions.sort(key=lambda one: one.topic_id)
        return encode_value(target, 0)
    if kind == records.CURRENT:
        current, _ = decode_value(m.ConsumerGroupCurrentMemberAssignmentValue, value)
        current.assigned_partitions.sort(key=lambda one: one.topic_id)
        return encode_value(current, 0)
    return value


def test_tombstones_take_all_of_it_away() -> None:
    shard = GroupsShard(GroupConfig(), lambda: "", view())
    for key, value in of_the_group():
        shard.replay(key, value)
    keys = {key for key, _ in of_the_group()}
    tombstones = shard.consumers.groups["g"].tombstones()
    assert {key for key, _ in tombstones} == keys
    for key, value in tombstones:
        shard.replay(key, value)
    assert repr(shard) == "GroupsShard()"


def test_records_in_the_order_that_compaction_leaves_make_the_same_group() -> None:
    """Only the last record of each key is left; what a member holds may come before what it told of itself."""
    shard = GroupsShard(GroupConfig(), lambda: "", view())
    for key, value in of_the_group():
        shard.replay(key, value)
    last = dict(of_the_group())
    for order in (list(last), sorted(last), sorted(last, reverse=True)):
        compacted = GroupsShard(GroupConfig(), lambda: "", view())
        for key in order:
            compacted.replay(key, last[key])
        assert repr(compacted) == repr(shard)


def test_what_older_versions_of_kafka_wrote_is_read() -> None:
    """Before 4.1 no hash but partition metadata, before 4.3 no assignment epochs: the member's stands for them."""
    group = ConsumerGroup("g")
    topic_id = base64.urlsafe_b64decode(KAFKAS["topics"]["orders"] + "==")
    group.replay(records.RecordKey(records.PARTITION_METADATA, "g"), b"whatever")
    kind = m.ConsumerGroupCurrentMemberAssignmentValue
    held = kind.TopicPartitions(topic_id=topic_id, partitions=[0, 3])
    value = encode_value(kind(member_epoch=7, previous_member_epoch=6, state=99, assigned_partitions=[held]), 0)
    group.replay(records.RecordKey(records.CURRENT, "g", "a"), value)
    member = group.members["a"]
    assert member.assigned == {TopicIdPartition(topic_id, 0): 7, TopicIdPartition(topic_id, 3): 7}
    assert member.state is MemberState.UNKNOWN, "of a newer version"


@pytest.mark.parametrize("cut", [1, 5, -1])
def test_damaged_records_are_refused(cut: int) -> None:
    shard = GroupsShard(GroupConfig(), lambda: "", view())
    for key, value in of_the_group():
        if value is not None and len(value) > cut:
            with pytest.raises(ValueError):
                shard.replay(key, value[:cut])
    with pytest.raises(ValueError):
        shard.replay(b"\0", b"")


def test_a_member_of_an_unknown_state_has_to_give_all_up() -> None:
    member = ConsumerMember(member_id="a", epoch=3, state=MemberState.UNKNOWN)
    with pytest.raises(FencedMemberEpoch, match="newer version"):
        member.reconcile(4, frozenset(), None, lambda _: True)
    assert member.reconcile(4, frozenset(), frozenset(), lambda _: True).epoch == 4
