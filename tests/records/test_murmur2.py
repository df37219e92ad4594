"""Kafka's hash and sequence arithmetic, against published values and other clients."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.partitioner import murmur2 as aiokafka_murmur2
from hypothesis import given
from hypothesis import strategies as st

from eventbus.records import decrement_sequence, increment_sequence, murmur2, to_positive

pytestmark = pytest.mark.system

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas the old way
    from kafka.partitioner.default import murmur2 as kafka_python_murmur2


@pytest.mark.parametrize(
    ("key", "java_int"),
    [  # Kafka's UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_published_values(key: bytes, java_int: int) -> None:
    assert murmur2(key) == java_int & 0xFFFFFFFF


@given(st.binary(max_size=70) | st.binary(min_size=250, max_size=270) | st.integers(0, 3000).map(bytes))
def test_as_other_clients(key: bytes) -> None:
    ours = murmur2(key)
    assert 0 <= ours < 1 << 32
    assert ours == kafka_python_murmur2(key) & 0xFFFFFFFF == aiokafka_murmur2(key) & 0xFFFFFFFF


def test_to_positive() -> None:
    """The sign bit cleared, not the absolute value: -1 is 2147483647, and -2147483648 is 0."""
    assert [to_positive(number & 0xFFFFFFFF) for number in (0, 5, -1, -2147483648)] == [0, 5, 2147483647, 0]
    assert to_positive(murmur2(b"21")) % 10 == (-973932308 & 0x7FFFFFFF) % 10


@pytest.mark.parametrize(
    ("sequence", "count", "result"),
    [
        (0, 5, 5),
        (2147483646, 1, 2147483647),
        (2147483647, 1, 0),
        (2147483647, 10, 9),
        (2147483640, 2147483647, 2147483639),
    ],
)
def test_sequences_wrap(sequence: int, count: int, result: int) -> None:
    assert increment_sequence(sequence, count) == result
    assert decrement_sequence(result, count) == sequence
