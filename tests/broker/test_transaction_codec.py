"""Records of ``__transaction_state``: Kafka's bytes, spelled out by the field, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.coordinator.transaction_codec import (
    TransactionMetadata,
    TransactionState,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from eventbus.coordinator.transaction_states import STORED_STATES
from eventbus.types import TopicPartition

EMPTY = TransactionMetadata(1000, 2, 60_000, TransactionState.EMPTY, frozenset(), 5, -1)
ONGOING = TransactionMetadata(
    1000,
    2,
    60_000,
    TransactionState.ONGOING,
    frozenset({TopicPartition("b", 7), TopicPartition("a", 1), TopicPartition("a", 0)}),
    0x0102,
    0x0101,
)

KEY = "0000 0002 7478"
EMPTY_0 = """
    0000 00000000000003e8 0002 0000ea60 00
    ffffffff
    0000000000000005 ffffffffffffffff"""
ONGOING_0 = """
    0000 00000000000003e8 0002 0000ea60 01
    00000002
        0001 61 00000002 00000000 00000001
        0001 62 00000001 00000007
    0000000000000102 0000000000000101"""
PREPARED_1 = """
    0001 00000000000003e8 7fff 0000ea60 02
    03
        02 61 03 00000000 00000001 00
        02 62 02 00000007 00
    0000000000000102 0000000000000101
    01
        01 08 00000000000007d0"""
COMPLETE_1 = """
    0001 00000000000007d0 0000 0000ea60 04
    01
    0000000000000102 0000000000000101
    01
        00 08 00000000000003e8"""

BUMPED_1 = """
    0001 00000000000003e8 0003 0000ea60 05
    01
    0000000000000102 0000000000000101
    01
        02 02 0002"""


def test_keys() -> None:
    assert encode_transaction_key("tx") == bytes.fromhex(KEY)
    assert decode_transaction_key(bytes.fromhex(KEY)) == "tx"


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (EMPTY, EMPTY_0),
        (ONGOING, ONGOING_0),
        (
            TransactionMetadata(
                1000, 32_767, 60_000, TransactionState.PREPARE_COMMIT, ONGOING.partitions, 0x0102, 0x0101, -1, 2000
            ),
            PREPARED_1,
        ),
        (
            TransactionMetadata(
                1000, 3, 60_000, TransactionState.COMPLETE_ABORT, frozenset(), 0x0102, 0x0101, is_bumped=True
            ),
            BUMPED_1,
        ),
        (
            TransactionMetadata(
                2000, 0, 60_000, TransactionState.COMPLETE_COMMIT, frozenset(), 0x0102, 0x0101, 1000, -1
            ),
            COMPLETE_1,
        ),
    ],
)
def test_values(value: TransactionMetadata, data: str) -> None:
    assert encode_transaction_value(value) == bytes.fromhex(data)
    assert decode_transaction_value(bytes.fromhex(data)) == value


def test_a_complete_transaction_without_a_list_of_partitions_is_read() -> None:
    """As version 0.1 wrote it."""
    data = bytes.fromhex(COMPLETE_1)
    assert decode_transaction_value(data[:17] + b"\0" + data[18:]) == decode_transaction_value(data)


def test_version_1_as_kafka_writes_it() -> None:
    """Kafka writes the version of a new client into every record; tags of later versions are passed over."""
    data = """
        0001 00000000000003e8 0002 0000ea60 01
        02  02 61 02 00000000 00
        0000000000000102 0000000000000101
        02  02 02 0002  09 01 ff"""
    value = decode_transaction_value(bytes.fromhex(data))
    assert value.partitions == {TopicPartition("a", 0)}
    assert (value.previous_producer_id, value.next_producer_id, value.is_bumped) == (-1, -1, True)


@pytest.mark.system
@given(
    st.builds(
        TransactionMetadata,
        st.integers(0, 2**63 - 1),
        st.integers(0, 32_767),
        st.integers(1, 2**31 - 1),
        st.sampled_from(STORED_STATES),
        st.frozensets(st.builds(TopicPartition, st.text(max_size=9), st.integers(0, 2**31 - 1))),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.integers(-1, 2**63 - 1),
        st.booleans(),
    )
)
def test_round_trip_and_no_prefix_of_it_is_read(value: TransactionMetadata) -> None:
    data = encode_transaction_value(value)
    assert decode_transaction_value(data) == value
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            decode_transaction_value(data[:length])
    with pytest.raises(ValueError, match="after the last field"):
        decode_transaction_value(data + b"\0")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("0001 0002 7478", "key of type 1, not 0"),
        ("0000 0002 7478 00", "1 bytes after the last field"),
        ("0000 0003 7478", "do not fit"),
        ("0000 ffff", "null, which it cannot be"),
        ("00", "end early"),
    ],
)
def test_keys_that_are_refused(data: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_transaction_key(bytes.fromhex(data))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (EMPTY_0.replace("0000 ", "0002 ", 1), "TransactionLogValue of version 2"),
        (EMPTY_0.replace("ea60 00", "ea60 06"), "status 6"),
        (EMPTY_0.replace("ea60 00", "ea60 ff"), "status -1"),
        (COMPLETE_1.replace("00 08 00000000000003e8", "00 02 03e8"), "tagged field of another length|end early"),
    ],
)
def test_values_that_are_refused(data: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        decode_transaction_value(bytes.fromhex(data))


def test_an_id_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="transactional_id"):
        encode_transaction_key("x" * 32_768)
