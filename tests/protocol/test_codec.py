"""What the generated readers and writers promise beyond the bytes that `test_oracle` checks."""

from __future__ import annotations

import random

import pytest

from eventbus.protocol import MalformedMessage, decode, encode, reader, uuid_bytes, uuid_text, writer
from eventbus.protocol import messages as m
from eventbus.protocol.log_records import (
    decode_key,
    decode_metadata_record,
    decode_value,
    encode_key,
    encode_metadata_record,
    encode_value,
    record_type,
)
from eventbus.protocol.schema import blocks, message
from eventbus.protocol.structs import struct_class
from tests.protocol.instances import instance

LOG = [name for name in blocks() if not name.endswith(("Request", "Response"))]
VERSIONS = [
    (name, version) for name in blocks() for version in range(message(name).versions[0], message(name).versions[1] + 1)
]


def produce(records: object) -> m.ProduceRequest:
    part = m.ProduceRequest.PartitionProduceData(index=1, records=records)  # bytes when written
    return m.ProduceRequest(topic_data=[m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])])


@pytest.mark.parametrize("name", LOG)
def test_records_of_internal_topics_come_back(name: str) -> None:
    low, high = message(name).versions
    for version in range(low, high + 1):
        chance = random.Random(name)
        for _ in range(10):
            value = instance(name, version, chance)
            assert decode(type(value), version, encode(value, version)) == value


@pytest.mark.system
def test_every_cut_of_every_message_is_refused() -> None:
    chance = random.Random(5)
    for name, version in VERSIONS:
        value = instance(name, version, chance)
        data = encode(value, version)
        for end in range(len(data)):
            with pytest.raises(MalformedMessage):
                decode(type(value), version, data[:end])
        with pytest.raises(MalformedMessage, match="1 bytes after the last field"):
            decode(type(value), version, data + b"\0")


@pytest.mark.system
def test_random_changes_are_refused_or_read() -> None:
    chance = random.Random(6)
    for name, version in VERSIONS:
        read = reader(name, version)
        data = encode(instance(name, version, chance), version)
        for _ in range(40):
            changed = bytearray(data)
            for _ in range(chance.choice((1, 1, 2, 5))):
                if changed:
                    changed[chance.randrange(len(changed))] = chance.choice(
                        (0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256))
                    )
            try:
                _, end = read(memoryview(changed), 0)
            except MalformedMessage:
                continue
            assert end <= len(changed)


def test_records_are_views_when_read_and_passed_on_when_written() -> None:
    records = memoryview(bytes(range(256)) * 32)
    buffers = writer("ProduceRequest", 9)(produce(records))
    assert buffers[1] is records
    frame = memoryview(bytearray(b"".join(buffers)))
    request, end = reader("ProduceRequest", 9)(frame, 0)
    assert end == len(frame)
    read = request.topic_data[0].partition_data[0].records
    assert read == records
    assert read.obj is frame.obj


def test_records_in_pieces_are_one_field() -> None:
    whole = bytes(range(250)) * 40
    pieces = [whole[:5000], whole[5000:]]
    assert encode(produce(pieces), 3) == encode(produce(whole), 3)
    assert encode(produce([whole[:10], whole[10:20]]), 9) == encode(produce(whole[:20]), 9)


def test_the_first_buffer_begins_with_the_head() -> None:
    buffers = writer("HeartbeatResponse", 4)(m.HeartbeatResponse(error_code=25), b"head")
    assert [bytes(buffer) for buffer in buffers] == [b"head\0\0\0\0\0\x19\0"]


def test_a_count_beyond_the_bytes_is_refused_before_anything_is_made() -> None:
    for data, what in (
        (b"\x7f\xff\xff\xff" + bytes(20), "2147483647 elements"),
        (b"\0\0\0\x14" + bytes(20), "20 elements"),  # 20 topics need two bytes each at least
    ):
        with pytest.raises(MalformedMessage, match=f"MetadataRequest version 0, topics, at byte 4: {what}"):
            decode(m.MetadataRequest, 0, data)


def test_a_malformed_message_names_the_field_and_the_place() -> None:
    data = encode(produce(b"x" * 30), 9)
    with pytest.raises(
        MalformedMessage, match=r"^ProduceRequest version 9, topic_data\.partition_data\.records, at byte"
    ):
        decode(m.ProduceRequest, 9, data[:20])
    with pytest.raises(MalformedMessage, match="member_id, at byte 9: no UTF-8"):
        decode(m.HeartbeatRequest, 0, b"\0\1g\0\0\0\1\0\1\xff")
    with pytest.raises(MalformedMessage, match="group_id, at byte 2: null, which it cannot be"):
        decode(m.HeartbeatRequest, 0, b"\xff\xff" + bytes(10))
    with pytest.raises(MalformedMessage, match="a varint of more than 5 bytes"):
        decode(m.HeartbeatRequest, 4, b"\xff" * 10)
    with pytest.raises(MalformedMessage, match="a string of 40000 bytes"):
        decode(m.HeartbeatRequest, 4, encode(m.HeartbeatRequest(group_id="x" * 40_000), 4))


def test_a_value_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="HeartbeatResponse version 0, error_code"):
        encode(m.HeartbeatResponse(error_code=70_000), 0)
    with pytest.raises(ValueError, match="FindCoordinatorRequest version 0, key"):
        encode(m.FindCoordinatorRequest(key="x" * 40_000), 0)


def test_an_unknown_version_or_name_is_said() -> None:
    with pytest.raises(ValueError, match="FetchRequest has versions 4 to 18; version 3 was asked for"):
        reader("FetchRequest", 3)
    with pytest.raises(AttributeError, match="no message 'NoSuchRequest'"):
        m.NoSuchRequest  # noqa: B018  # the point of the test


def test_null_is_empty_where_a_version_has_no_null() -> None:
    response = m.JoinGroupResponse(protocol_name=None)
    assert decode(m.JoinGroupResponse, 6, encode(response, 6)).protocol_name == ""
    assert decode(m.JoinGroupResponse, 7, encode(response, 7)).protocol_name is None
    topics = m.MetadataRequest(topics=None)
    assert decode(m.MetadataRequest, 0, encode(topics, 0)).topics == []


def test_tagged_fields_of_later_versions_are_passed_over() -> None:
    data = encode(m.HeartbeatRequest(group_id="g"), 4)
    assert data.endswith(b"\0")
    later = data[:-1] + b"\2\5\3abc\x90\x03\0"
    assert decode(m.HeartbeatRequest, 4, later) == m.HeartbeatRequest(group_id="g")
    with pytest.raises(MalformedMessage, match="a tagged field does not fit"):
        decode(m.HeartbeatRequest, 4, data[:-1] + b"\1\5\x04abc")


def test_a_tagged_field_of_a_false_length_is_refused() -> None:
    data = encode(m.FetchRequest(cluster_id="abc"), 12)
    at = data.index(b"\x01\x00\x04\x04abc")  # one field, tag 0, four bytes: a string of three
    for length in (3, 5):
        with pytest.raises(MalformedMessage):
            decode(m.FetchRequest, 12, data[: at + 2] + bytes((length,)) + data[at + 3 :] + b"\0")


def test_defaults_are_not_shared() -> None:
    one, two = m.FetchResponse.PartitionData(), m.FetchResponse.PartitionData()
    one.current_leader.leader_id = 7
    assert two.current_leader.leader_id == -1
    with pytest.raises(AttributeError):
        one.no_such_field = 1  # a typing mistake in a handler is an error


def test_uuids_are_kafkas_text() -> None:
    text = "AAECAwQFBgcICQoLDA0ODw"
    assert uuid_bytes(text) == bytes(range(16))
    assert uuid_text(bytes(range(16))) == text
    for wrong in ("", "AAECAwQFBgcICQoLDA0OD", "AAECAwQFBgcICQoLDA0OD!", text + "A"):
        with pytest.raises(ValueError, match="is no UUID"):
            uuid_bytes(wrong)


def test_a_members_record_is_what_kafkas_own_class_writes() -> None:
    value = m.ConsumerGroupMemberMetadataValue(
        instance_id="i", client_id="c", client_host="h", subscribed_topic_names=["t"], rebalance_timeout_ms=5
    )
    assert encode(value, 0).hex() == "026901026302680202740100000005010100" + "0100"  # null, in so many bytes
    assert decode(m.ConsumerGroupMemberMetadataValue, 0, encode(value, 0)) == value
    classic = m.ConsumerGroupMemberMetadataValue.ClassicProtocol(name="range", metadata=b"\1\2")
    value.classic_member_metadata = m.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
        session_timeout_ms=7, supported_protocols=[classic]
    )
    assert encode(value, 0).hex() == "026901026302680202740100000005010100110100000007020672616e67650301020000"


def test_a_coordinators_key_and_value() -> None:
    key = m.GroupMetadataKey(group="g")
    assert encode_key(key) == b"\0\2\0\1g"
    assert decode_key(m.GroupMetadataKey, b"\0\2\0\1g") == key
    assert record_type(b"\0\2\0\1g") == 2
    with pytest.raises(MalformedMessage, match="a key of type 1, not 2"):
        decode_key(m.GroupMetadataKey, b"\0\1\0\1g")
    with pytest.raises(MalformedMessage, match="have no type"):
        record_type(b"\0")
    value = m.OffsetCommitValue(offset=5, metadata="m", commit_timestamp=7)
    assert decode_value(m.OffsetCommitValue, encode_value(value, 3)) == (value, 3)
    with pytest.raises(MalformedMessage, match="OffsetCommitValue of version 9; 0 to 4 are known here"):
        decode_value(m.OffsetCommitValue, b"\0\x09" + bytes(20))


def test_a_metadata_record() -> None:
    record = m.ClientQuotaRecord(entity=[m.ClientQuotaRecord.EntityData(entity_type="user")], key="k", value=1.5)
    data = encode_metadata_record(record, 0)
    assert data[:3] == b"\1\x0e\0"
    assert decode_metadata_record(data) == record
    for wrong in (b"", b"\1\x0e", b"\2" + data[1:], b"\1\x7f\0", b"\1\x0e\1" + data[3:], data[:-1]):
        with pytest.raises(MalformedMessage):
            decode_metadata_record(wrong)


def test_every_class_has_the_structures_of_its_message() -> None:
    for name in blocks():
        for structure in message(name).structures:
            assert getattr(struct_class(name), structure).__qualname__ == f"{name}.{structure}"
