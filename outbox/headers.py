"""The column of headers: MessagePack of ``[[name, bytes or nil], ...]``, or NULL for no headers."""

from __future__ import annotations

import msgspec

from eventbus.types import Headers

EVENT_ID = "event-id"
"""The last header of every published record: the event's id as text."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...]).decode


def pack(headers: Headers) -> bytes | None:
    """Encode headers for the column."""
    return _encode(headers) if headers else None


def unpack(data: bytes | None) -> Headers:
    """Decode headers. Raises msgspec.DecodeError for data that `pack` did not write."""
    return () if data is None else _decode(data)


def published(data: bytes | None, event_id: str) -> Headers:
    """Return the headers of the record to publish: those of the row, plus the event's id."""
    return (*unpack(data), (EVENT_ID, event_id.encode()))
