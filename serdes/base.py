"""The serde protocols, and how a serde is bound to a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterable
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


@runtime_checkable
class ClassSerde(Protocol):
    """A serde that writes values of each class in its own way, so that nothing is decided per record."""

    def encoder_of(self, kind: type) -> Encode: ...


@runtime_checkable
class TypedSerde(Protocol):
    """A serde of many types. `of` returns the serde of one annotation, `for_keys` the serde that writes keys."""

    def of(self, annotation: Any) -> Serde: ...

    def for_keys(self) -> Serde: ...


@runtime_checkable
class SchemaSerde(Protocol):
    """A serde that takes schemas from elsewhere. What may wait for them is never called on an event loop."""

    def prepare(self, topic: str | None, *, writes: bool) -> None:
        """Get, and check, what reading or writing ``topic`` needs; None: no topic in particular. Waits."""
        ...

    def needed(self, topic: str, values: Iterable[bytes | None]) -> SchemaNeeded | None:
        """Return a request for what must be fetched before these messages can be decoded, or None. Does not wait."""
        ...

    @property
    def header(self) -> str | None:
        """The header that may name a message's schema instead of the message, see `serdes.framing`."""
        ...

    @property
    def writes_header(self) -> bool:
        """True if encoders put the schema id before the payload, and the producer must move it into a header."""
        ...

    @property
    def source(self) -> Any:
        """The source of schemas. If it has ``start(bus)`` and ``aclose()``, the bus starts and closes it."""
        ...


class SchemaNeeded(Exception):
    """A schema is not here yet. Call `fetch` where waiting does no harm, in a worker thread, then do it again."""

    def __init__(self, message: str, fetch: Callable[[], None]) -> None:
        super().__init__(message)
        self.fetch = fetch


def bind_encoder(serde: Serde, topic: str, kind: type | None = None) -> Encode:
    """Return the function that encodes for ``topic``: all values, or those of the runtime type ``kind``."""
    if kind is not None and isinstance(serde, ClassSerde):
        return serde.encoder_of(kind)
    if isinstance(serde, BoundSerde):
        return serde.encoder(topic)
    return lambda value: serde.serialize(topic, value)


def bind_decoder(serde: Serde, topic: str) -> Decode:
    """Return the function that decodes for ``topic``."""
    if isinstance(serde, BoundSerde):
        return serde.decoder(topic)
    return lambda data: serde.deserialize(topic, data)


def for_keys(serde: Serde) -> Serde:
    """Return the same for keys: a serde that makes a difference says so."""
    return serde.for_keys() if isinstance(serde, TypedSerde) else serde
