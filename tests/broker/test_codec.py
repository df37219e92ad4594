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
    with pytest.raises(ValueError, match=r"end early|does not fit"):
        decode_offset_key(KEY[:length])


@pytest.mark.parametrize("version", VALUES)
def test_short_values(version: int) -> None:
    data = bytes.fromhex(VALUES[version])
    needed = len(data) - (version == 4)  # the tagged fields at the end are not read
    for length in range(needed):
        with pytest.raises(ValueError, match=r"end early|does not fit|no varint"):
            decode_offset_value(data[:length])


def test_bytes_too_many_and_versions_too_new() -> None:
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_offset_key(KEY + b"\0")
    with pytest.raises(ValueError, match="1 bytes after the last field"):
        decode_offset_value(VALUE_3_NO_EPOCH + b"\0")
    with pytest.raises(ValueError, match="version 5"):
        decode_offset_value(b"\0\5" + bytes(40))
    with pytest.raises(ValueError, match="a string of -1 bytes"):
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
