"""Kafka's primitive byte formats: what its Bytes, String, Integer and Long serializers write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from serdes.base import Decode, Encode, Serde


class _Functions:
    """A serde made of two functions that do not depend on the topic."""

    def __init__(self, name: str, encode: Encode, decode: Decode) -> None:
        self._name = name
        self._encode = encode
        self._decode = decode

    def serialize(self, topic: str, value: Any) -> bytes | None:
        return self._encode(value)

    def deserialize(self, topic: str, data: bytes) -> Any:
        return self._decode(data)

    def encoder(self, topic: str) -> Encode:
        return self._encode

    def decoder(self, topic: str) -> Decode:
        return self._decode

    def __repr__(self) -> str:
        return f"serdes.{self._name}"


def into(kind: Callable[[Any], Any], serde: Serde) -> Serde:
    """``serde`` with what it reads made a ``kind``: a StrEnum's member, say. A value that ``kind`` refuses raises."""

    def decode(data: bytes) -> Any:
        return kind(serde.deserialize("", data))

    def encode(value: Any) -> bytes | None:
        return serde.serialize("", value)

    return _Functions(getattr(kind, "__name__", "") or repr(serde).removeprefix("serdes."), encode, decode)


def _bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, memoryview):
        return cast("memoryview[int]", value).tobytes()
    raise TypeError(f"expected bytes, got {type(value).__name__}")


def _utf8(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"expected str, got {type(value).__name__}")


def _decode_utf8(data: bytes) -> str:
    return data.decode()


def _integer(size_bytes: int, kafka_name: str) -> tuple[Encode, Decode]:
    limit = 1 << (8 * size_bytes - 1)

    def encode(value: Any) -> bytes:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"expected int, got {type(value).__name__}")
        if not -limit <= value < limit:
            raise ValueError(f"{value} does not fit Kafka's {kafka_name} ({size_bytes} bytes)")
        return value.to_bytes(size_bytes, "big", signed=True)

    def decode(data: bytes) -> int:
        if len(data) != size_bytes:
            raise ValueError(f"expected {size_bytes} bytes of Kafka's {kafka_name}, got {len(data)}")
        return int.from_bytes(data, "big", signed=True)

    return encode, decode


Bytes = _Functions("Bytes", _bytes, bytes)
"""Bytes as they are."""
Str = _Functions("Str", _utf8, _decode_utf8)
"""The serde of text, which is UTF-8."""
Int = _Functions("Int", *_integer(4, "Integer"))
"""A signed 32-bit integer, big-endian: Kafka's IntegerSerializer."""
Long = _Functions("Long", *_integer(8, "Long"))
"""A signed 64-bit integer, big-endian: Kafka's LongSerializer."""
