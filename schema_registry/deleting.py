"""Decide deletions from a state: first soft (readers still find the id), then permanent. Pure."""

from __future__ import annotations

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from schema_registry import effective_settings, errors, names, records
from schema_registry.records import DeleteSubjectValue, Key, MaxIds
from schema_registry.registering import schema_record, tombstones
from schema_registry.state import State, Version


def delete_subject(state: State, subject: str, *, permanent: bool) -> Decision[list[int]]:
    """Raises 40401, 40404 (deleted before), 40405 (not deleted before), 42205, 42206 (others refer to it)."""
    versions = state.versions(subject)
    if not versions:
        raise errors.subject_not_found(subject)
    undeleted = [one for one in versions if not one.deleted]
    if not permanent and not undeleted:
        raise errors.subject_soft_deleted(subject)
    _check_writable(state, subject)
    gone = versions if permanent else undeleted
    for one in gone:
        _check_unreferenced(state, one, count_deleted=permanent, but_not_by=subject)
    if permanent and undeleted:
        raise errors.subject_not_soft_deleted(subject)
    numbers = [one.version for one in gone]
    if not permanent:
        value = DeleteSubjectValue(subject=subject, version=numbers[-1])
        return Decision((records.put(Key(records.DELETE_SUBJECT, subject), value),), numbers)
    return Decision((*for_good(state, gone), *_settings_of(state, subject)), numbers)


def delete_version(state: State, subject: str, version: int, *, permanent: bool) -> Decision[int]:
    """``version`` -1 is the latest. Raises 40401, 40402, 40406, 40407, 42205, 42206."""
    versions = state.versions(subject)
    if not versions:
        raise errors.subject_not_found(subject)
    one = state.latest(subject) if version == -1 else state.version((subject, version))
    if one is None:
        raise errors.version_not_found(version)
    if one.deleted and not permanent:
        raise errors.version_soft_deleted(subject, one.version)
    _check_writable(state, subject)
    _check_unreferenced(state, one, count_deleted=permanent)
    if permanent and not one.deleted:
        raise errors.version_not_soft_deleted(subject, one.version)
    if not permanent:
        return Decision((schema_record(msgspec.structs.replace(one, deleted=True)),), one.version)
    written = for_good(state, [one])
    if len(versions) == 1:
        written += _settings_of(state, subject)
    return Decision(tuple(written), one.version)


def delete_context(state: State, context: str) -> Decision[None]:
    """Raises 40401 where there is none, 42211 where subjects are in it, deleted ones too."""
    name = names.context_of(names.normalize(context if context.startswith(":") else f":{context}:"))
    if name not in state.contexts:
        raise errors.subject_not_found(context)
    if any(names.context_of(subject) == name for subject in state.subjects):
        raise errors.context_not_empty(context)
    return Decision(tuple(tombstones(state, Key(records.CONTEXT, name))), None)


def for_good(state: State, versions: list[Version]) -> list[CoordinatorRecord]:
    """The end of versions, newest first; an id that nothing shows any more is written down, never to be given again."""
    written: list[CoordinatorRecord] = []
    highest = {
        context: highest
        for context, highest in state.max_ids.items()
        if any(one.id == highest and names.context_of(one.subject) == context for one in versions)
    }
    if highest:
        written.append(records.put(records.MAX_IDS, MaxIds(dict(sorted(state.max_ids.items())))))
    for one in reversed(versions):
        written += tombstones(state, Key(records.SCHEMA, *one.place))
    return written


def _settings_of(state: State, subject: str) -> list[CoordinatorRecord]:
    """Remove the mode and config of a deleted subject."""
    written: list[CoordinatorRecord] = []
    if subject in state.modes:
        written += tombstones(state, Key(records.MODE, subject))
    if subject in state.configs:
        written += tombstones(state, Key(records.CONFIG, subject))
    return written


def _check_writable(state: State, subject: str) -> None:
    if effective_settings.is_read_only(state, subject):
        where = names.prefix_of(subject)
        raise errors.not_permitted(f"Subject {subject} in context {where} is in read-only mode")


def _check_unreferenced(state: State, one: Version, *, count_deleted: bool, but_not_by: str | None = None) -> None:
    for referrer in state.referring_to(one.place):
        if (count_deleted or not referrer.deleted) and referrer.subject != but_not_by:
            raise errors.reference_exists(*one.place)
