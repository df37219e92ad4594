"""Kafka's byte formats: what its own serializers document, with confluent_kafka's as the oracle where it has them."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serdes import Bytes, Int, Long, Str
from serdes.base import bind_decoder, bind_encoder


@pytest.mark.system
@given(st.integers(-(2**31), 2**31 - 1))
def test_int_is_kafkas_integer(value: int) -> None:
    oracle = pytest.importorskip("confluent_kafka.serialization")
    data = Int.serialize("t", value)
    assert data == struct.pack(">i", value) == oracle.IntegerSerializer()(value)
    assert Int.deserialize("t", data) == oracle.IntegerDeserializer()(data) == value


@given(st.integers(-(2**63), 2**63 - 1))
def test_long_is_eight_bytes_big_endian(value: int) -> None:
    data = Long.serialize("t", value)
    assert data == struct.pack(">q", value)
    assert Long.deserialize("t", data) == value


@pytest.mark.system
@given(st.text())
def test_str_is_kafkas_string(value: str) -> None:
    oracle = pytest.importorskip("confluent_kafka.serialization")
    data = Str.serialize("t", value)
    assert data == oracle.StringSerializer("utf_8")(value)
    assert Str.deserialize("t", data) == oracle.StringDeserializer("utf_8")(data) == value


@given(st.binary())
def test_bytes_are_as_they_are(value: bytes) -> None:
    for form in (value, bytearray(value), memoryview(value)):
        assert Bytes.serialize("t", form) == value
    assert Bytes.deserialize("t", value) == value


def test_known_bytes() -> None:
    assert Int.serialize("t", 1) == b"\x00\x00\x00\x01"
    assert Int.serialize("t", -2) == b"\xff\xff\xff\xfe"
    assert Long.serialize("t", 258) == b"\x00\x00\x00\x00\x00\x00\x01\x02"
    assert Str.serialize("t", "Gr\u00fc\u00dfe") == b"Gr\xc3\xbc\xc3\x9fe"


@pytest.mark.parametrize(
    ("serde", "value", "error", "message"),
    [
        (Int, 2**31, ValueError, r"2147483648 does not fit Kafka's Integer \(4 bytes\)"),
        (Int, -(2**31) - 1, ValueError, "does not fit"),
        (Long, 2**63, ValueError, r"does not fit Kafka's Long \(8 bytes\)"),
        (Long, True, TypeError, "expected int, got bool"),
        (Long, "1", TypeError, "expected int, got str"),
        (Str, b"x", TypeError, "expected str, got bytes"),
        (Bytes, "x", TypeError, "expected bytes, got str"),
        (Str, "\ud800", UnicodeEncodeError, "surrogates"),
    ],
)
def test_values_that_do_not_fit(serde: Any, value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        serde.serialize("t", value)


@pytest.mark.parametrize(
    ("serde", "data", "error", "message"),
    [
        (Int, b"\x00", ValueError, "expected 4 bytes of Kafka's Integer, got 1"),
        (Long, b"", ValueError, "expected 8 bytes of Kafka's Long, got 0"),
        (Long, b"\x00" * 9, ValueError, "got 9"),
        (Str, b"\xff", UnicodeDecodeError, "invalid start byte"),
    ],
)
def test_bytes_that_do_not_fit(serde: Any, data: bytes, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        serde.deserialize("t", data)


@pytest.mark.parametrize(("serde", "value"), [(Bytes, b"x"), (Str, "x"), (Int, 1), (Long, 1)])
def test_bound_functions_do_the_same(serde: Any, value: Any) -> None:
    data = bind_encoder(serde, "t")(value)
    assert data == serde.serialize("t", value)
    assert bind_decoder(serde, "t")(data) == value
