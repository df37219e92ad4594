"""Kafka's bytes for committed offsets."""

from __future__ import annotations

import pytest

from eventbus.coordinator import (
    OffsetCommitKey,
    OffsetCommitValue,
    decode_offset_key,
    decode_offset_value,
    encode_offset_key,
    encode_offset_value,
    java_string_hash,
    partition_for_group,
)
from eventbus.coordinator.codec import (
    GroupMetadataValue,
    StoredMember,
    decode_group_key,
    decode_group_value,
    encode_group_key,
    encode_group_value,
)
from eventbus.types import TopicPartition

# Made by Apache Kafka 4.1.0 itself (kafka-group-coordinator-4.1.0.jar and kafka-clients-4.1.0.jar from Maven Central,
# jshell on Java 17): MessageUtil.toCoordinatorTypePrefixedByteBuffer(key), toVersionPrefixedByteBuffer(version, value).
KEY = bytes.fromhex("0001000762696c6c696e6700066f726465727300000003")
KEY_UNICODE = bytes.fromhex("0001000c6772c3b6c39f652df09f98800007612e625f632d447fffffff")
VALUE_3_NO_EPOCH = bytes.fromhex("0003000000000000002affffffff00046e6f74650000018bcfe5687b")
VALUES = {
    0: "0000000000000000002a00046e6f74650000018bcfe5687b",
    1: "0001000000000000002a00046e6f74650000018bcfe5687b0000018bcff4aa3f",
    2: "0002000000000000002a00046e6f74650000018bcfe5687b",
    3: "0003000000000000002a0000000700046e6f74650000018bcfe5687b",
    4: "0004000000000000002a00000007056e6f74650000018bcfe5687b00",
}

ORDERS = OffsetCommitKey("billing", TopicPartition("orders", 3))
UNICODE = OffsetCommitKey("gr\u00f6\u00dfe-\U0001f600", TopicPartition("a.b_c-D", 2147483647))


@pytest.mark.parametrize(("key", "data"), [(ORDERS, KEY), (UNICODE, KEY_UNICODE)])
def test_keys_are_kafkas(key: OffsetCommitKey, data: bytes) -> None:
    assert encode_offset_key(key) == data
    assert decode_offset_key(data) == key
    assert decode_offset_key(b"\0\0" + data[2:]) == key  # version 0, written before Kafka 0.9, has the same fields


def test_values_are_written_as_version_3() -> None:
    assert encode_offset_value(OffsetCommitValue(42, "note", 1700000000123)) == VALUE_3_NO_EPOCH
    assert encode_offset_value(OffsetCommitValue(42, "note", 1700000000123, 7)) == bytes.fromhex(VALUES[3])


@pytest.mark.parametrize("version", VALUES)
def test_values_of_all_versions_are_read(version: int) -> None:
    epoch = 7 if version >= 3 else -1
    assert decode_offset_value(bytes.fromhex(VALUES[version])) == OffsetCommitValue(42, "note", 1700000000123, epoch)


def test_keys_of_other_kinds_are_told_apart() -> None:
    assert decode_offset_key(bytes.fromhex("0002000762696c6c696e67")) is None  # GroupMetadataKey "billing"


@pytest.mark.parametrize("length", range(len(KEY)))
def test_short_keys(length: int) -> None:
    with pytest.raises(ValueError, match=r"end early|do not fit"):
        decode_offset_key(KEY[:length])


@pytest.mark.parametrize("version", VALUES)
def test_short_values(version: int) -> None:
    data = bytes.fromhex(VALUES[version])
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"end early|do not fit"):
            decode_offset_value(data[:length])


def test_bytes_too_many_and_versions_too_new() -> None:
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_offset_key(KEY + b"\0")
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_offset_value(VALUE_3_NO_EPOCH + b"\0")
    with pytest.raises(ValueError, match="OffsetCommitValue of version 5"):
        decode_offset_value(b"\0\5" + bytes(40))
    with pytest.raises(ValueError, match="null, which it cannot be"):
        decode_offset_key(b"\0\1\xff\xff" + bytes(40))
    with pytest.raises(ValueError, match="longer than"):
        encode_offset_key(OffsetCommitKey("g" * 32768, TopicPartition("t", 0)))


# (group, String.hashCode, Utils.abs(hash) % 50), printed by the same jar. For the negative ones `hash & 0x7fffffff`
# would answer 36, 39 and 38: a group would be looked for in another partition than the one Kafka's tools look in.
HASHES = [
    ("my-group", -1906497762, 12),
    ("billing", -109829509, 9),
    ("analytics", -1693017210, 10),
    ("", 0, 0),
    ("console-consumer-1", 35782224, 24),
    ("polygenelubricants", -2147483648, 0),
    ("gr\u00f6\u00dfe-\U0001f600", 175616671, 21),
    ("g1", 3242, 42),
    ("a-very-long-group-name-0123456789", 838980659, 9),
]


@pytest.mark.parametrize(("group", "value", "partition"), HASHES)
def test_groups_live_where_kafka_puts_them(group: str, value: int, partition: int) -> None:
    assert java_string_hash(group) == value
    assert partition_for_group(group, 50) == partition


# groups --------------------------------------------------------------------------------------------------------------

# Made in the same way by the same jars, from GroupMetadataKey and GroupMetadataValue.
GROUP_KEY = bytes.fromhex("0002000762696c6c696e67")
EMPTY_GROUP = bytes.fromhex("00030008636f6e73756d657200000008ffffffff0000018bcfe5687b00000000")
GROUPS = {
    0: (
        "00000008636f6e73756d657200000007000572616e67650003612d31000000020003612d31000161000a2f3132372e302e30"
        "2e310000afc800000003000102000000010900096772c3b6c39f652d32000000042f3a3a31000017700000000000000000"
    ),
    1: (
        "00010008636f6e73756d657200000007000572616e67650003612d31000000020003612d31000161000a2f3132372e302e30"
        "2e31000493e00000afc800000003000102000000010900096772c3b6c39f652d32000000042f3a3a310000ea600000177000"
        "00000000000000"
    ),
    2: (
        "00020008636f6e73756d657200000007000572616e67650003612d310000018bcfe5687b000000020003612d31000161000a"
        "2f3132372e302e302e31000493e00000afc800000003000102000000010900096772c3b6c39f652d32000000042f3a3a3100"
        "00ea60000017700000000000000000"
    ),
    3: (
        "00030008636f6e73756d657200000007000572616e67650003612d310000018bcfe5687b000000020003612d31ffff000161"
        "000a2f3132372e302e302e31000493e00000afc800000003000102000000010900096772c3b6c39f652d3200076772c3b6c3"
        "9f65000000042f3a3a310000ea60000017700000000000000000"
    ),
    4: (
        "000409636f6e73756d6572000000070672616e676504612d310000018bcfe5687b0304612d310002610b2f3132372e302e30"
        "2e31000493e00000afc8040001020209000a6772c3b6c39f652d32086772c3b6c39f6501052f3a3a310000ea600000177001"
        "010000"
    ),
}


def group_of_version(version: int) -> GroupMetadataValue:
    """What the bytes say; older versions leave things out."""
    first = StoredMember("a-1", None, "a", "/127.0.0.1", 300_000, 45_000, b"\0\1\2", b"\x09")
    second = StoredMember("gr\u00f6\u00dfe-2", "gr\u00f6\u00dfe", "", "/::1", 60_000, 6_000, b"", b"")
    members = [first, second]
    if version < 3:
        members = [member._replace(group_instance_id=None) for member in members]
    if version < 1:
        members = [member._replace(rebalance_timeout_ms=member.session_timeout_ms) for member in members]
    return GroupMetadataValue("consumer", 7, "range", "a-1", 1700000000123 if version >= 2 else -1, tuple(members))


def test_groups_are_written_as_kafka_does() -> None:
    assert encode_group_key("billing") == GROUP_KEY
    assert decode_group_key(GROUP_KEY) == "billing"
    assert decode_group_key(KEY) is None
    assert encode_group_value(group_of_version(3)) == bytes.fromhex(GROUPS[3])
    empty = GroupMetadataValue("consumer", 8, None, None, 1700000000123, ())
    assert encode_group_value(empty) == EMPTY_GROUP
    assert decode_group_value(EMPTY_GROUP) == empty


@pytest.mark.parametrize("version", GROUPS)
def test_groups_of_all_versions_are_read(version: int) -> None:
    assert decode_group_value(bytes.fromhex(GROUPS[version])) == group_of_version(version)


@pytest.mark.parametrize("version", GROUPS)
def test_short_groups(version: int) -> None:
    data = bytes.fromhex(GROUPS[version])
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"end early|do not fit"):
            decode_group_value(data[:length])


def test_groups_with_bytes_too_many_too_new_or_too_large() -> None:
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_group_value(EMPTY_GROUP + b"\0")
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_group_key(GROUP_KEY + b"\0")
    with pytest.raises(ValueError, match="GroupMetadataValue of version 5"):
        decode_group_value(b"\0\5" + bytes(40))
    with pytest.raises(ValueError, match="2130706432 elements do not fit"):
        decode_group_value(EMPTY_GROUP[:-4] + b"\x7f\0\0\0")
    with pytest.raises(ValueError, match="longer than"):
        encode_group_key("g" * 32768)


def test_tagged_fields_of_a_later_kafka_are_passed_over() -> None:
    data = bytes.fromhex(GROUPS[4])
    assert decode_group_value(data[:-1] + b"\x01\x05\x03abc") == group_of_version(4)
