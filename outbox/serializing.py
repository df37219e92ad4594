"""Serialize values, keys and headers when an event is published, so that errors are raised in the caller."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from eventbus.broker.names import check_not_internal, check_topic_name
from eventbus.client.producing.serialization import pack_headers, packer_of, unnamed
from eventbus.client.sending import HeadersLike
from eventbus.errors import RecordTooLarge, SchemaNotReady, SerializationError
from eventbus.types import Headers
from outbox.headers import EVENT_ID
from outbox.tracing import current_trace
from serdes import SchemaRegistryError, Serde
from serdes.base import Encode, SchemaNeeded

_RECORD_BYTES = 61 + 36
"""Upper bound of the size that a record and its batch add to key, value and headers."""
_HEADER_BYTES = 10
"""Upper bound of the two lengths that precede a header's name and value."""
_EVENT_ID_BYTES = len(EVENT_ID) + 36 + _HEADER_BYTES
_KEY_BYTES = 16_000
"""Maximum size of a key. Every database can store this much in the key's column."""


class Packed(NamedTuple):
    """An event's key, value and headers as they are published."""

    key: bytes | None
    value: bytes | None
    headers: Headers


class Packer:
    """Serializes events as the bus's producers do."""

    def __init__(self, serdes: Mapping[type, Serde], max_message_bytes: int) -> None:
        self._serdes = serdes
        self._max_message_bytes = max_message_bytes
        self._topics: dict[str, _Topic] = {}

    def topic(self, name: str) -> _Topic:
        """Return the serializer of a topic. Raises InvalidTopic for an invalid name, here rather than in the relay."""
        known = self._topics.get(name)
        if known is None:
            check_topic_name(name)
            check_not_internal(name, "written to")
            known = self._topics[name] = _Topic(name, self._serdes, self._max_message_bytes)
        return known


class _Topic:
    __slots__ = ("_encoders", "_has_named", "_key_encoders", "_max_message_bytes", "_serdes", "name")

    def __init__(self, name: str, serdes: Mapping[type, Serde], max_message_bytes: int) -> None:
        self.name = name
        self._serdes = serdes
        self._max_message_bytes = max_message_bytes
        self._encoders: dict[type, Encode] = {}
        self._key_encoders: dict[type, Encode] = {}
        self._has_named = False

    def pack(self, key: Any, value: Any, headers: Headers) -> Packed:
        """Serialize an event. Raises SerializationError, SchemaNotReady (its subclass) with the schema to fetch, or
        RecordTooLarge.
        """
        # As in a producer, bytes are used unchanged, even if there is a serde for bytes.
        if type(key) is not bytes:
            key = self._bytes_of(key, "key")
        packed = Packed(key, value if type(value) is bytes else self._bytes_of(value, "value"), headers)
        if self._has_named:
            packed = Packed(*unnamed(*packed))
        self._check_size(packed)
        return packed

    def _bytes_of(self, value: Any, what: str) -> bytes | None:
        if value is None:
            return None
        kind = cast("type[Any]", type(value))
        encoders = self._encoders if what == "value" else self._key_encoders
        encode = encoders.get(kind)
        try:
            if encode is None:
                encode, is_named = packer_of(kind, self.name, self._serdes, is_key=what != "value")
                encoders[kind] = encode
                self._has_named = self._has_named or is_named
            return encode(value)
        except SchemaNeeded as needed:
            raise SchemaNotReady(
                f"the {what} of an event for topic {self.name!r} cannot be written yet: {needed}. Call "
                f"`await outbox.prepare({self.name!r}, {kind.__name__})` first, when the service starts",
                needed.fetch,
            ) from None
        except Exception as error:  # of the serde, which may be the user's own
            raise SerializationError(
                f"the {what} of an event for topic {self.name!r} cannot be written: {error} "
                f"({what} is {kind.__name__}: {value!r:.120})"
            ) from error

    def _check_size(self, packed: Packed) -> None:
        key, value, headers = packed
        size = _RECORD_BYTES + _EVENT_ID_BYTES
        if key is not None:
            size += len(key)
            if len(key) > _KEY_BYTES:
                raise RecordTooLarge(
                    f"the key of an event for topic {self.name!r} has {len(key):,} bytes, and the outbox takes "
                    f"{_KEY_BYTES:,}: put it into the value, or take its hash"
                )
        if value is not None:
            size += len(value)
        for name, data in headers:
            size += len(name.encode()) + (0 if data is None else len(data)) + _HEADER_BYTES
        if size > self._max_message_bytes:
            raise RecordTooLarge(
                f"an event for topic {self.name!r} takes {size:,} bytes as a record, and the outbox was made for "
                f"{self._max_message_bytes:,}: send less, or raise max.message.bytes of the topic and then "
                "Outbox(max_message_bytes=...)"
            )


def packed_headers(headers: HeadersLike | None) -> Headers:
    """Return headers to store, with the caller's trace context if they contain none.

    An ``event-id`` copied from another event is removed, because this event has its own. Raises ConfigError for invalid
    headers.
    """
    if not headers:
        return current_trace()
    packed = pack_headers(headers)
    names = {name for name, _ in packed}
    if EVENT_ID in names:
        packed = tuple(header for header in packed if header[0] != EVENT_ID)
    return packed if "traceparent" in names else (*packed, *current_trace())


def fetch_here(needed: SchemaNotReady) -> None:
    """Fetch a schema in this thread, which must not run an event loop.

    Raises SerializationError if the registry refuses it, or SchemaUnavailable if the registry does not answer.
    """
    from eventbus.errors import SchemaUnavailable

    try:
        needed.fetch()
    except SchemaRegistryError as error:
        kind = SchemaUnavailable if error.is_retriable else SerializationError
        raise kind(f"{needed}: {error}") from error
    except Exception as error:  # a client of the user's may raise anything
        raise SerializationError(f"{needed}: {error}") from error
