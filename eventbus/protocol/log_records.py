"""Messages as the records of Kafka's internal topics.

Coordinators (``__consumer_offsets``, ``__transaction_state``) write the record's type as an int16 and the key's fields,
then an int16 version and the value's fields. Metadata records (KRaft's ``__cluster_metadata``) have no key: frame
version, type and version precede the fields as unsigned varints. Source: ``CoordinatorRecordSerde`` and
``AbstractApiMessageSerde`` of Apache Kafka.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from eventbus.protocol.reading import decode
from eventbus.protocol.schema import blocks, message
from eventbus.protocol.source import Buffer, MalformedMessage, read_unsigned_varint, unsigned_varint
from eventbus.protocol.structs import struct_class
from eventbus.protocol.writing import encode, writer

_Message = TypeVar("_Message", bound=msgspec.Struct)
_FRAME_VERSION: Final = 1


def record_type(key: Buffer) -> int:
    """Return the type of a coordinator's key. Raises MalformedMessage if it is too short."""
    if len(key) < 2:
        raise MalformedMessage(f"the bytes end early: {len(key)} of them have no type or version")
    return int.from_bytes(key[:2], "big", signed=True)


def encode_key(key: msgspec.Struct) -> bytes:
    """Encode a coordinator's key after its type. Raises ValueError for text that does not fit."""
    name = type(key).__name__
    return b"".join(writer(name, 0)(key, message(name).key.to_bytes(2, "big")))


def decode_key(cls: type[_Message], key: Buffer) -> _Message:
    """Decode a coordinator's key of the type of ``cls``. Raises MalformedMessage."""
    expected = message(cls.__name__).key
    if (found := record_type(key)) != expected:
        raise MalformedMessage(f"{cls.__name__}: a key of type {found}, not {expected}")
    return decode(cls, 0, memoryview(key)[2:])


def encode_value(value: msgspec.Struct, version: int) -> bytes:
    """Encode a coordinator's value after its version. Raises ValueError for what does not fit."""
    return b"".join(writer(type(value).__name__, version)(value, version.to_bytes(2, "big")))


def decode_value(cls: type[_Message], value: Buffer) -> tuple[_Message, int]:
    """Decode a coordinator's value; return it with its version. Raises MalformedMessage."""
    version = record_type(value)
    _check_version(cls.__name__, version)
    return decode(cls, version, memoryview(value)[2:]), version


def encode_metadata_record(record: msgspec.Struct, version: int) -> bytes:
    """Encode the value of a metadata record."""
    head = (_FRAME_VERSION, message(type(record).__name__).key, version)
    return b"".join(map(unsigned_varint, head)) + encode(record, version)


def decode_metadata_record(value: Buffer) -> Any:
    """Decode the value of a metadata record. Raises MalformedMessage for a type or version that is not in the
    tables."""
    try:
        frame_version, position = read_unsigned_varint(value, 0)
        kind, position = read_unsigned_varint(value, position)
        version, position = read_unsigned_varint(value, position)
    except IndexError:
        raise MalformedMessage(f"a metadata record of {len(value)} bytes ends in its header") from None
    if frame_version != _FRAME_VERSION:
        raise MalformedMessage(f"a metadata record of frame version {frame_version}; {_FRAME_VERSION} is known here")
    name = _metadata_records().get(kind)
    if name is None:
        raise MalformedMessage(f"a metadata record of type {kind}, which is not known here")
    _check_version(name, version)
    return decode(struct_class(name), version, memoryview(value)[position:])


def _check_version(name: str, version: int) -> None:
    low, high = message(name).versions
    if not low <= version <= high:
        raise MalformedMessage(f"{name} of version {version}; {low} to {high} are known here: a newer version wrote it")


@cache
def _metadata_records() -> dict[int, str]:
    return {message(name).key: name for name in blocks() if name.endswith("Record")}
