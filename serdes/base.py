"""What a serde is, and how one is bound to a topic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

Encode = Callable[[Any], bytes | None]
"""Value to bytes. Never called with None: a null stays a null."""
Decode = Callable[[bytes], Any]
"""Bytes to value. Never called with None."""


@runtime_checkable
class Serde(Protocol):
    """Turns values into bytes and back. Two methods; write your own for a format of yours.

    A null key or value never reaches a serde: it is stored and read as null. Raise any exception for a value or bytes
    that do not fit; the caller adds topic, partition and offset.
    """

    def serialize(self, topic: str, value: Any) -> bytes | None: ...

    def deserialize(self, topic: str, data: bytes) -> Any: ...


@runtime_checkable
class BoundSerde(Protocol):
    """A serde that offers plain functions for one topic, so that nothing is looked up per record."""

    def encoder(self, topic: str) -> Encode: ...

    def decoder(self, topic: str) -> Decode: ...


def bind_encoder(serde: Serde, topic: str) -> Encode:
    """The function that encodes for ``topic``."""
    if isinstance(serde, BoundSerde):
        return serde.encoder(topic)
    return lambda value: serde.serialize(topic, value)


def bind_decoder(serde: Serde, topic: str) -> Decode:
    """The function that decodes for ``topic``."""
    if isinstance(serde, BoundSerde):
        return serde.decoder(topic)
    return lambda data: serde.deserialize(topic, data)
