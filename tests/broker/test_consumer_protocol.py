"""The bytes consumers exchange, against the schemas written out by hand and against other clients."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus import TopicPartition
from eventbus.coordinator.assignors import Subscription
from eventbus.coordinator.consumer_protocol import (
    decode_assignment,
    decode_sticky_user_data,
    decode_subscription,
    encode_assignment,
    encode_sticky_user_data,
    encode_subscription,
)

A0, A1, B2 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 2)

TOPICS = b"\0\0\0\2" + b"\0\1a" + b"\0\1b"
NO_BYTES = b"\xff\xff\xff\xff"
OWNED = b"\0\0\0\2" + b"\0\1a" + b"\0\0\0\2\0\0\0\0\0\0\0\1" + b"\0\1b" + b"\0\0\0\1\0\0\0\2"

names = st.text(min_size=1, max_size=8)
partitions = st.lists(st.builds(TopicPartition, names, st.integers(0, 2**31 - 1)), max_size=8, unique=True)


def test_a_subscription_is_written_as_the_java_client_writes_it() -> None:
    written = encode_subscription(
        Subscription(topics=("b", "a"), owned_partitions=(B2, A1, A0), generation_id=7, rack_id="r1")
    )
    assert written == b"\0\3" + TOPICS + NO_BYTES + OWNED + b"\0\0\0\7" + b"\0\2r1"
    bare = encode_subscription(Subscription(topics=("a",), user_data=b""))
    assert bare == b"\0\3" + b"\0\0\0\1\0\1a" + b"\0\0\0\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + b"\xff\xff"


@pytest.mark.parametrize(
    ("data", "owned", "generation", "rack"),
    [
        (b"\0\0" + TOPICS + b"\0\0\0\1u", (), -1, None),
        (b"\0\1" + TOPICS + b"\0\0\0\1u" + OWNED, (A0, A1, B2), -1, None),
        (b"\0\2" + TOPICS + b"\0\0\0\1u" + OWNED + b"\0\0\0\5", (A0, A1, B2), 5, None),
        (b"\0\3" + TOPICS + b"\0\0\0\1u" + OWNED + b"\0\0\0\5\0\1x", (A0, A1, B2), 5, "x"),
        (b"\0\x09" + TOPICS + b"\0\0\0\1u" + OWNED + b"\0\0\0\5\0\1x" + b"fields of the future", (A0, A1, B2), 5, "x"),
    ],
)
def test_every_version_of_a_subscription_is_read(
    data: bytes, owned: tuple[TopicPartition, ...], generation: int, rack: str | None
) -> None:
    assert decode_subscription(data) == Subscription(
        topics=("a", "b"), user_data=b"u", owned_partitions=owned, generation_id=generation, rack_id=rack
    )


def test_an_assignment_is_written_as_the_java_client_writes_it() -> None:
    assert encode_assignment([B2, A1, A0]) == b"\0\3" + OWNED + NO_BYTES
    assert encode_assignment([]) == b"\0\3\0\0\0\0" + NO_BYTES


@pytest.mark.parametrize("version", [0, 1, 2, 3, 12])
def test_every_version_of_an_assignment_is_read(version: int) -> None:
    data = version.to_bytes(2, "big") + OWNED + b"\0\0\0\1u"
    assert decode_assignment(data) == decode_assignment(data + b"later fields") == [A0, A1, B2]


def test_no_bytes_are_no_partitions() -> None:
    assert decode_assignment(b"") == []


def test_sticky_user_data_of_both_versions() -> None:
    assert encode_sticky_user_data([B2, A0, A1], 9) == OWNED + b"\0\0\0\x09"
    assert decode_sticky_user_data(OWNED + b"\0\0\0\x09") == ([A0, A1, B2], 9)
    assert decode_sticky_user_data(OWNED) == ([A0, A1, B2], -1)


@pytest.mark.system
@given(st.lists(names, unique=True, max_size=5), st.none() | st.binary(), partitions, st.integers(-1, 2**31 - 1))
def test_what_is_written_is_read(
    topics: list[str], user_data: bytes | None, owned: list[TopicPartition], generation: int
) -> None:
    written = Subscription(
        topics=tuple(sorted(topics)), user_data=user_data, owned_partitions=tuple(owned), generation_id=generation
    )
    read = decode_subscription(encode_subscription(written))
    assert set(read.owned_partitions) == set(owned)
    assert read.topics == written.topics and read.user_data == user_data and read.generation_id == generation
    assert set(decode_assignment(encode_assignment(owned, user_data))) == set(owned)


@given(st.binary(max_size=60))
def test_damaged_bytes_are_a_value_error_and_no_memory_is_taken_for_them(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment, decode_sticky_user_data):
        with contextlib.suppress(ValueError):
            decode(data)
    huge = b"\0\3" + b"\x7f\xff\xff\xff" + data
    with pytest.raises(ValueError, match="do not fit"):
        decode_subscription(huge)


def test_every_cut_of_a_subscription_is_refused() -> None:
    whole = encode_subscription(
        Subscription(topics=("a", "b"), owned_partitions=(A0, B2), generation_id=1, rack_id="r")
    )
    for length in range(len(whole)):
        with pytest.raises(ValueError):
            decode_subscription(whole[:length])


@pytest.mark.system
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_same_bytes_as_kafka_python() -> None:
    from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

    theirs = ConsumerProtocolSubscription(
        version=3,
        topics=["a", "b"],
        user_data=b"u",
        owned_partitions=[
            ConsumerProtocolSubscription.TopicPartition(topic="a", partitions=[0, 1]),
            ConsumerProtocolSubscription.TopicPartition(topic="b", partitions=[2]),
        ],
        generation_id=4,
        rack_id=None,
    )
    ours = Subscription(topics=("a", "b"), user_data=b"u", owned_partitions=(A0, A1, B2), generation_id=4)
    assert bytes(theirs.encode()) == encode_subscription(ours)
    assert decode_subscription(bytes(theirs.encode())) == ours
    assignment = ConsumerProtocolAssignment(version=3, assigned_partitions=[("a", [0, 1]), ("b", [2])], user_data=None)
    assert bytes(assignment.encode()) == encode_assignment([A0, A1, B2])
    assert {*ConsumerProtocolAssignment.decode(encode_assignment([A0, B2])).partitions()} == {A0, B2}


@pytest.mark.system
def test_aiokafka_and_this_read_each_other() -> None:
    from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

    theirs = ConsumerProtocolMemberMetadata(0, ["a", "b"], b"u").encode()
    assert decode_subscription(theirs) == Subscription(topics=("a", "b"), user_data=b"u")
    read = ConsumerProtocolMemberMetadata.decode(encode_subscription(Subscription(topics=("a", "b"), generation_id=3)))
    assert read.subscription == ["a", "b"]
    assert decode_assignment(ConsumerProtocolMemberAssignment(0, [("a", [1])], b"").encode()) == [A1]
    assert ConsumerProtocolMemberAssignment.decode(encode_assignment([A0, B2])).partitions() == [A0, B2]
