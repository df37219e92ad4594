"""Headers of requests and responses. Schemas: RequestHeader.json and ResponseHeader.json of Kafka.

Flexible versions of an API (KIP-482) have header 2 for requests and 1 for responses, both with tagged fields; the
client id keeps its old form there. The response to ApiVersions always has header 0 (KIP-511): a client that does not
know yet which versions the broker has must be able to read it.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from eventbus.protocol.schema import API_KEYS, LATEST
from eventbus.protocol.source import Buffer, MalformedMessage, read_unsigned_varint

_HEADER_1: Final = struct.Struct(">hhih")
_API_VERSIONS: Final = 18


class RequestHeader(NamedTuple):
    """The header of a request. The body begins at ``body_offset`` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_offset: int


def read_request_header(frame: Buffer) -> RequestHeader:
    """Decode the header of a request, without the size field. Raises MalformedMessage.

    An unknown key or version is left to the caller to refuse: the newest known form of the header is used.
    """
    try:
        key, version, correlation_id, length = _HEADER_1.unpack_from(frame)
        end = _HEADER_1.size
        client_id = None
        if length >= 0:
            client_id = str(frame[end : end + length], "utf-8", "replace")
            end += length
        if is_flexible(key, version):
            end = _skip_tagged_fields(frame, end)
    except (struct.error, IndexError):
        raise MalformedMessage(f"a request of {len(frame)} bytes ends in its header") from None
    if end > len(frame):
        raise MalformedMessage(f"a request of {len(frame)} bytes ends in its header")
    return RequestHeader(key, version, correlation_id, client_id, end)


def is_flexible(key: int, version: int) -> bool:
    """True if requests of that version have header 2."""
    api = API_KEYS.get(key)
    return version >= (api.first_flexible_version if api else LATEST)


def response_header(key: int, version: int, correlation_id: int) -> bytes:
    """Return the bytes between a response's size and its body."""
    header = correlation_id.to_bytes(4, "big", signed=True)
    return header + b"\0" if key != _API_VERSIONS and is_flexible(key, version) else header


def request_header(key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    """Return the bytes between a request's size and its body, as a client sends them."""
    name = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(name)
    return _HEADER_1.pack(key, version, correlation_id, length) + name + b"\0" * is_flexible(key, version)


def _skip_tagged_fields(frame: Buffer, position: int) -> int:
    count, position = read_unsigned_varint(frame, position)
    for _ in range(count):
        _, position = read_unsigned_varint(frame, position)
        size, position = read_unsigned_varint(frame, position)
        position += size
    return position
