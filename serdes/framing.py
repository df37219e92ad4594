"""Confluent's wire formats, which name the schema of a message.

V0 is a byte 0 and the schema id (four bytes, big-endian). V1 is a byte 1 and the schema's GUID. Either precedes the
payload or is in a header. Reading moves it from a header to the payload, and writing moves it back, so that all other
code handles one form.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from uuid import UUID

KEY_HEADER = "__key_schema_id"
VALUE_HEADER = "__value_schema_id"
ID_SIZE = 5
GUID_SIZE = 17

Headers = Iterable[tuple[str, bytes | None]]


def header_name(is_key: bool) -> str:
    """Return the header that a key's, or a value's, schema is named in."""
    return KEY_HEADER if is_key else VALUE_HEADER


def id_prefix(schema_id: int) -> bytes:
    return struct.pack(">bI", 0, schema_id)


def guid_prefix(guid: str) -> bytes:
    return b"\1" + UUID(guid).bytes


def with_prefix(data: bytes, headers: Headers, name: str) -> bytes:
    """``data`` with what the header ``name`` says before it; the last one counts, as in Kafka."""
    found = None
    for key, value in headers:
        if key == name and value:
            found = value
    return data if found is None else found + data


def schema_named(data: bytes) -> int | str:
    """Return the id, or the GUID, that a message begins with. Raises ValueError."""
    if not data:
        raise ValueError("the message is empty: it has no schema id")
    if data[0] == 0:
        if len(data) < ID_SIZE:
            raise ValueError(f"the message has {len(data)} bytes: too short for a schema id")
        return int.from_bytes(data[1:ID_SIZE], "big")
    if data[0] == 1:
        if len(data) < GUID_SIZE:
            raise ValueError(f"the message has {len(data)} bytes: too short for a schema GUID")
        return str(UUID(bytes=bytes(data[1:GUID_SIZE])))
    raise ValueError(
        f"the message begins with the byte {data[0]:#04x}, not with a schema id (0x00) or GUID (0x01): "
        "was it written without a schema registry?"
    )


def prefix_size(data: bytes) -> int:
    """Return the position of the payload."""
    return GUID_SIZE if data[:1] == b"\1" else ID_SIZE
