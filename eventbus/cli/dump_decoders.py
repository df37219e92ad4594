"""What ``eventbus log dump`` makes of the records of internal topics: JSON in the words of Kafka's dump tool."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, cast

import msgspec

from eventbus.protocol import MalformedMessage, decode, uuid_text
from eventbus.protocol.log_records import decode_key, decode_metadata_record, decode_value, record_type
from eventbus.protocol.schema import Field, Structure, blocks, message
from eventbus.protocol.structs import struct_class
from eventbus.types import ConsumerRecord

Decoder = Callable[[ConsumerRecord], tuple[str, str]]
"""A record's key and value as text. Raises MalformedMessage."""

_TRANSACTION_KEY = "TransactionLogKey"
_SECRETS = frozenset({"salt", "stored_key", "server_key"})


def offsets_decoder(record: ConsumerRecord) -> tuple[str, str]:
    """Of ``__consumer_offsets``: committed offsets and groups."""
    return _coordinators(record, {kind: name for kind, name in _keys().items() if name != _TRANSACTION_KEY})


def transactions_decoder(record: ConsumerRecord) -> tuple[str, str]:
    """Of ``__transaction_state``."""
    return _coordinators(record, {message(_TRANSACTION_KEY).key: _TRANSACTION_KEY})


def metadata_decoder(record: ConsumerRecord) -> tuple[str, str]:
    """Of ``__cluster_metadata``: topics are JSON as they stand, the others have Kafka's schemas and no key."""
    if record.key:
        return _plain(record.key), _plain(record.value)
    if record.value is None:
        return "", "<DELETE>"
    decoded = decode_metadata_record(record.value)
    name = type(decoded).__name__
    kind = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
    fields = _fields(decoded, message(name).body, message(name).versions.high)
    return "", _json({"type": kind, "data": fields})


def _plain(data: bytes | None) -> str:
    return "<DELETE>" if data is None else data.decode(errors="replace")


def _keys() -> dict[int, str]:
    """The keys of coordinators' records by type. Types 0 and 1 are committed offsets, as clients of old wrote them."""
    found = {message(name).key: name for name in blocks() if name.endswith("Key") and name != _TRANSACTION_KEY}
    return {0: "OffsetCommitKey", **found}


def _coordinators(record: ConsumerRecord, keys: dict[int, str]) -> tuple[str, str]:
    if record.key is None:
        raise MalformedMessage("a record without a key")
    kind = record_type(record.key)
    name = keys.get(kind)
    if name is None:
        raise MalformedMessage(f"a key of type {kind}; there are {', '.join(map(str, sorted(keys)))}")
    if kind == 0 and name == "OffsetCommitKey":
        key = decode(struct_class(name), 0, memoryview(record.key)[2:])
    else:
        key = decode_key(struct_class(name), record.key)
    key_text = _json({"type": str(kind), "data": _fields(key, message(name).body, 0)})
    if record.value is None:
        return key_text, "<DELETE>"
    value_name = name.removesuffix("Key") + "Value"
    value, version = decode_value(struct_class(value_name), record.value)
    fields = _fields(value, message(value_name).body, version)
    if value_name == "GroupMetadataValue" and fields.get("protocolType") == "consumer":
        _open_members(fields, value)
    return key_text, _json({"version": str(version), "data": fields})


def _open_members(fields: dict[str, Any], value: Any) -> None:
    """What members said and were given, where it can be read."""
    for shown, member in zip(fields["members"], value.members, strict=True):
        for name, kind in (
            ("subscription", "ConsumerProtocolSubscription"),
            ("assignment", "ConsumerProtocolAssignment"),
        ):
            data: bytes = getattr(member, name)
            if len(data) < 2:
                continue
            version = min(record_type(data), message(kind).versions.high)
            try:
                decoded = decode(struct_class(kind), version, memoryview(data)[2:])
            except MalformedMessage:
                continue  # of a client with words of its own
            shown[name] = _fields(decoded, message(kind).body, version)


def _fields(value: Any, structure: Structure, version: int) -> dict[str, Any]:
    """Return the fields that the version has, under Kafka's names."""
    return {
        _camel(field.name): "(hidden)" if field.name in _SECRETS else _shown(getattr(value, field.name), field, version)
        for field in structure.fields
        if field.versions.low <= version <= field.versions.high
    }


def _shown(value: Any, field: Field, version: int) -> Any:
    if isinstance(value, list):
        return [_item(item, field, version) for item in cast("list[Any]", value)]
    return _item(value, field, version)


def _item(value: Any, field: Field, version: int) -> Any:
    if isinstance(value, msgspec.Struct) and field.structure is not None:
        return _fields(value, field.structure, version)
    if isinstance(value, bytes):
        return uuid_text(value) if field.type == "uuid" else base64.b64encode(value).decode()
    return value


def _camel(name: str) -> str:
    return re.sub(r"_([a-z0-9])", lambda found: found[1].upper(), name)


def _json(value: dict[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
