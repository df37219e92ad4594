"""A registry as lines of JSON, and back: the records of its topic that still count, ids, GUIDs and deleted flags kept.

A line is ``{"key": ..., "value": ...}``, as the topic has them: a dump of another registry's topic reads as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from schema_registry import errors, names, records
from schema_registry.digest import digest
from schema_registry.records import (
    Key,
    MaxIds,
    SchemaValue,
    UnreadableRecord,
    Value,
)
from schema_registry.registering import schema_record
from schema_registry.state import Place, State, Version, referred
from serdes.nesting import shallow


class Line(msgspec.Struct):
    key: msgspec.Raw
    value: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Line).decode
Read = tuple[Key, Value]


def lines(state: State, *, subject_prefix: str, deleted: bool) -> Iterator[bytes]:
    """Return the lines of an export, each after the records that it refers to."""
    everything = subject_prefix == names.EVERYWHERE

    def wanted(subject: str) -> bool:
        return everything or subject.startswith(subject_prefix)

    for context in sorted(state.contexts):
        if everything or names.join(context, "").startswith(subject_prefix):
            yield _line(records.put(Key(records.CONTEXT, context), records.ContextValue(records.TENANT, context)))
    chosen = [one for one in state.all_versions() if wanted(one.subject) and (deleted or not one.deleted)]
    for one in _in_order(chosen, state):
        yield _line(schema_record(one))
    for subject, config in sorted(state.configs.items(), key=lambda item: item[0] or ""):
        if everything or (subject is not None and wanted(subject)):
            yield _line(records.put(Key(records.CONFIG, subject), config))
    for subject, mode in sorted(state.modes.items(), key=lambda item: item[0] or ""):
        if everything or (subject is not None and wanted(subject)):
            yield _line(records.put(Key(records.MODE, subject), records.ModeValue(subject=subject, mode=mode)))
    for key, association in sorted(state.associations.items()):
        if association.subject is not None and wanted(association.subject):
            yield _line(records.put(Key(records.ASSOCIATION, key), association))
    if everything and state.max_ids:
        yield _line(records.put(records.MAX_IDS, MaxIds(dict(sorted(state.max_ids.items())))))


def _line(record: CoordinatorRecord) -> bytes:
    return b'{"key":%b,"value":%b}' % (record.key, record.value or b"null")


def _in_order(versions: Iterable[Version], state: State) -> list[Version]:
    order: dict[Place, Version] = {}
    for one in sorted(versions, key=lambda one: (names.context_of(one.subject), one.id, one.place)):
        waiting = [one]
        while waiting:
            last = waiting[-1]
            targets = [state.version(place) for place in referred(last.subject, last.content.references)]
            missing = [one for one in targets if one is not None and one.place not in order and one not in waiting]
            if missing:
                waiting.append(missing[0])
            else:
                waiting.pop()
                order.setdefault(last.place, last)
    return list(order.values())


def read_lines(given: Iterable[bytes | str]) -> list[Read]:
    """Return the last line of each key in an export, without keys whose last line is a tombstone.

    Raises 42201 for a line that is not a record, 42205 if the lines give an id two meanings.
    """
    found: dict[Key, Value] = {}
    for number, line in enumerate(given, 1):
        if not line.strip():
            continue
        try:
            one = _decode(shallow(line))
            key = records.read_key(bytes(one.key))
            if key == Key(records.NOOP):
                continue
            found.pop(key, None)  # in the order of the lines that count
            if bytes(one.value) != b"null":
                found[key] = records.read_value(key, bytes(one.value))
        except (msgspec.MsgspecError, UnicodeDecodeError, UnreadableRecord) as error:
            raise errors.invalid_schema(
                f'line {number} of the export cannot be read: {error}. A line is {{"key": ..., "value": ...}}'
            ) from error
    _check_ids(found)
    return list(found.items())


def _check_ids(found: Mapping[Key, Value]) -> None:
    meanings: dict[tuple[str, int], tuple[bytes, Key]] = {}
    for key, value in found.items():
        if isinstance(value, SchemaValue):
            guid = digest(value.schema, value.references or (), value.metadata, value.rule_set)
            known, other = meanings.setdefault((names.context_of(key.subject), value.id), (guid, key))
            if known != guid:
                raise errors.not_permitted(
                    f"the export gives id {value.id} two meanings: {other.subject!r} version {other.version}, and "
                    f"{key.subject!r} version {key.version}. Leave one of them out, and register it again"
                )


def restore(state: State, given: Iterable[Read]) -> Decision[int]:
    """Take an export in: how many versions are new. What is there already stays. Raises 42205 where ids clash."""
    written: list[CoordinatorRecord] = []
    new = 0
    for key, value in given:
        if isinstance(value, SchemaValue):
            if _is_new(state, key, value):
                written.append(records.put(key, value))
                new += 1
        elif isinstance(value, MaxIds):
            highest = {context: max(state.max_ids.get(context, 0), id) for context, id in value.max_ids.items()}
            written.append(records.put(key, MaxIds(state.max_ids | highest)))
        else:
            written.append(records.put(key, value))
    return Decision(tuple(written), new)


def _is_new(state: State, key: Key, value: SchemaValue) -> bool:
    subject, version = key.subject or "", key.version
    guid = digest(value.schema, value.references or (), value.metadata, value.rule_set)
    there = state.version((subject, version))
    if there is not None and (there.id, there.content.guid) == (value.id, guid):
        return there.deleted and value.deleted is not True
    if there is not None:
        raise errors.not_permitted(
            f"subject {subject!r} version {version} has id {there.id} here, and another schema or id ({value.id}) in "
            "the export: import into a registry without it, or into a separate context"
        )
    for one in state.with_id(names.context_of(subject), value.id):
        if one.content.guid != guid:
            raise errors.not_permitted(
                f"id {value.id} is {one.subject!r} version {one.version} here, and {subject!r} version {version} in "
                "the export: ids cannot be given twice. Import into an empty registry, or into a separate context"
            )
    return True
