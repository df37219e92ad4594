"""Headers as a column keeps them: MessagePack of ``[[name, bytes or nil], ...]``, and NULL when there are none."""

from __future__ import annotations

import msgspec

from eventbus.types import Headers

EVENT_ID = "event-id"
"""The header that every published record ends with: the event's id, as text."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[tuple[str, bytes | None], ...]).decode


def pack(headers: Headers) -> bytes | None:
    """As stored."""
    return _encode(headers) if headers else None


def unpack(data: bytes | None) -> Headers:
    """As they were given. Raises msgspec.DecodeError for what `pack` did not make."""
    return () if data is None else _decode(data)


def published(data: bytes | None, event_id: str) -> Headers:
    """The headers of the record: those of the row, and the event's id."""
    return (*unpack(data), (EVENT_ID, event_id.encode()))
