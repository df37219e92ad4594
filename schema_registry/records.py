"""The records of the topic of schemas, byte for byte as Confluent's registry writes them (JSON by Jackson).

What is read may have been written by any version: keys with another magic or another order of members name the same
thing. What is written has one form, that of Confluent 5.5 to 7.9, which 8 reads as its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord
from schema_registry.entities import COMPATIBILITY_LEVELS, MODES, Metadata, RuleSet
from serdes.nesting import shallow
from serdes.registry import Reference

SCHEMA, CONFIG, MODE, NOOP = "SCHEMA", "CONFIG", "MODE", "NOOP"
DELETE_SUBJECT, CLEAR_SUBJECT, CONTEXT, ASSOCIATION = "DELETE_SUBJECT", "CLEAR_SUBJECT", "CONTEXT", "ASSOC"
_MAGIC = {SCHEMA: 1}
TENANT = "default"
LAST_ID = 2**31 - 1
"""The maximum of ids and versions: Java's int."""


class Key(NamedTuple):
    """The identity of a record's key, independent of its bytes."""

    keytype: str
    subject: str | None = None
    """Also the context of a CONTEXT key, and the whole key of an ASSOC one, as text."""
    version: int = 0


class _KeyJson(msgspec.Struct):
    keytype: str
    subject: str | None = None
    version: int | None = None
    magic: int = 0
    context: str | None = None
    for_: str | None = msgspec.field(default=None, name="for")


class _Value(msgspec.Struct, rename="camel", omit_defaults=True):
    subject: str | None = None


class SchemaValue(_Value, kw_only=True):
    """Confluent leaves ``schemaType`` out of an Avro schema, and everything that is empty."""

    version: int
    id: int
    md5: str | None = None
    """Only where Confluent encrypted sensitive metadata: of the schema as it was before."""
    schema_type: str | None = None
    references: list[Reference] | None = None
    metadata: Metadata | None = None
    rule_set: RuleSet | None = None
    schema: str
    deleted: bool | msgspec.UnsetType = msgspec.UNSET
    """Written always, false too; the oldest records have none."""


class ConfigValue(_Value, kw_only=True):
    alias: str | None = None
    alias_for_deks: str | None = None
    normalize: bool | None = None
    validate_fields: bool | None = None
    validate_new_schemas: bool | None = None
    validate_rules: bool | None = None
    compatibility_level: str | None = None
    compatibility_policy: str | None = None
    compatibility_group: str | None = None
    default_metadata: Metadata | None = None
    override_metadata: Metadata | None = None
    default_rule_set: RuleSet | None = None
    override_rule_set: RuleSet | None = None


class ModeValue(_Value, kw_only=True):
    mode: str


class DeleteSubjectValue(_Value, kw_only=True):
    version: int


class ClearSubjectValue(_Value):
    pass


class ContextValue(msgspec.Struct, omit_defaults=True):
    tenant: str | None = None
    context: str | None = None


class AssociationValue(msgspec.Struct, rename="camel", omit_defaults=True):
    guid: str | None = None
    tenant: str | None = None
    resource_name: str | None = None
    resource_namespace: str | None = None
    resource_id: str | None = None
    resource_type: str | None = None
    association_type: str | None = None
    subject: str | None = None
    lifecycle: str | None = None
    frozen: bool = False


class MaxIds(msgspec.Struct):
    """The highest id ever assigned, by context. Confluent's registry reads this record as a NOOP and ignores it.

    Without it, the id of a schema that was deleted permanently and compacted away would be assigned again.
    """

    max_ids: dict[str, int] = msgspec.field(name="maxIds")


Value = (
    SchemaValue
    | ConfigValue
    | ModeValue
    | DeleteSubjectValue
    | ClearSubjectValue
    | ContextValue
    | AssociationValue
    | MaxIds
)
MAX_IDS = Key(NOOP, "ids")
_NOTHING = Key(NOOP)

_TYPES: dict[str, type[Any]] = {
    SCHEMA: SchemaValue,
    CONFIG: ConfigValue,
    MODE: ModeValue,
    DELETE_SUBJECT: DeleteSubjectValue,
    CLEAR_SUBJECT: ClearSubjectValue,
    CONTEXT: ContextValue,
    ASSOCIATION: AssociationValue,
}
_decode_key = msgspec.json.Decoder(_KeyJson).decode
_decoders: dict[str, Callable[[bytes], Any]] = {
    kind: msgspec.json.Decoder(type).decode for kind, type in _TYPES.items()
}
_decode_ids = msgspec.json.Decoder(MaxIds).decode
_encode = msgspec.json.encode


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError)


class UnreadableRecord(ValueError):
    """A record that Confluent's registry logs and passes over, and so does this one."""


def read_key(data: bytes) -> Key:
    """Return the identity of a key. Raises UnreadableRecord."""
    try:
        key = _decode_key(shallow(data))
    except _UNREADABLE as error:
        raise UnreadableRecord(f"its key is not one of a schema registry ({error})") from None
    kind = key.keytype
    if kind == SCHEMA:
        if not key.subject or key.version is None or key.magic not in (0, 1):
            raise UnreadableRecord("its key names no subject and version, or has an unknown magic byte")
        if not 1 <= key.version <= LAST_ID:
            raise UnreadableRecord(f"its key has version {key.version}, which is outside 1 to 2^31-1")
        return Key(SCHEMA, key.subject, key.version)
    if kind == NOOP:
        return MAX_IDS if key.for_ == "ids" else _NOTHING
    if kind == CONTEXT:
        return Key(CONTEXT, key.context)
    if kind == ASSOCIATION:
        return Key(ASSOCIATION, data.decode())
    if kind not in _TYPES:
        raise UnreadableRecord(f"its key type {kind!r} is unknown")
    return Key(kind, key.subject or None)


def read_value(key: Key, data: bytes) -> Value:
    """Return the content of a record. Raises UnreadableRecord."""
    try:
        value: Value = (_decode_ids if key == MAX_IDS else _decoders[key.keytype])(shallow(data))
    except _UNREADABLE as error:
        raise UnreadableRecord(f"its value is no {key.keytype} ({error})") from None
    _check_ranges(value)
    return value


def _check_ranges(value: Value) -> None:
    """Raises UnreadableRecord for what no registry writes, and what Java's types could not hold."""
    match value:
        case SchemaValue():
            if not 0 <= value.id <= LAST_ID:
                raise UnreadableRecord(f"its id {value.id} is outside 0 to 2^31-1")
            if any(not -LAST_ID <= one.version <= LAST_ID for one in value.references or ()):
                raise UnreadableRecord("it refers to a version outside 1 to 2^31-1")
        case MaxIds() if any(id > LAST_ID for id in value.max_ids.values()):
            raise UnreadableRecord("it names an id above 2^31-1")
        case ConfigValue(compatibility_level=str(level)) if level.upper() not in COMPATIBILITY_LEVELS:
            raise UnreadableRecord(f"{level!r} is not a compatibility level")
        case ModeValue() if value.mode not in MODES:
            raise UnreadableRecord(f"{value.mode!r} is not a mode")
        case _:
            pass


# writing -------------------------------------------------------------------------------------------------------------


def key_bytes(key: Key) -> bytes:
    """Return the one form that is written today."""
    kind, subject, version = key
    if kind == ASSOCIATION:
        return (subject or "").encode()
    members: dict[str, Any] = {"keytype": kind}
    if kind == CONTEXT:
        members |= {"tenant": TENANT, "context": subject}
    elif subject and kind != NOOP:
        members["subject"] = subject
    if kind == SCHEMA:
        members["version"] = version
    members["magic"] = _MAGIC.get(kind, 0)
    if key == MAX_IDS:
        members["for"] = "ids"
    return _encode(members)


_LOWER_ESCAPE = re.compile(rb"(?<!\\)((?:\\\\)*)\\u00([01][a-f])")


def value_bytes(value: Value) -> bytes:
    data = _encode(value)
    if b"\\u00" in data:  # Jackson writes the letters of an escape in upper case
        data = _LOWER_ESCAPE.sub(lambda found: found[1] + rb"\u00" + found[2].upper(), data)
    return data


def put(key: Key, value: Value) -> CoordinatorRecord:
    return CoordinatorRecord(key_bytes(key), value_bytes(value))


def tombstone(data: bytes) -> CoordinatorRecord:
    return CoordinatorRecord(data, None)
