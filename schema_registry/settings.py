"""Changes of configs and modes, decided on a state. Pure."""

from __future__ import annotations

from typing import get_args

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from schema_registry import deleting, effective_settings, errors, merging, names, records
from schema_registry.entities import COMPATIBILITY_LEVELS, MODES, Config, ConfigUpdate, Mode, ModeName
from schema_registry.records import ClearSubjectValue, Key, ModeValue
from schema_registry.registering import tombstones
from schema_registry.state import State

_POLICIES = ("STRICT", "LENIENT", "LOGICAL")


def update_config(state: State, subject: str | None, update: ConfigUpdate) -> Decision[ConfigUpdate]:
    """Raises 42203, 42205, 42208, 42210."""
    update = _checked(update)
    _check_subject(subject)
    _check_writable(state, subject)
    value = merging.updated_config(subject, state.configs.get(subject), update)
    key = Key(records.CONFIG, subject)
    members = {name: getattr(value, name) for name in Config.__struct_fields__}
    members["compatibility"] = members.pop("compatibility_level")
    echo = ConfigUpdate(**{name: member for name, member in members.items() if member is not None})
    return Decision((records.put(key, value),), echo)


def _checked(update: ConfigUpdate) -> ConfigUpdate:
    level, policy = update.compatibility, update.compatibility_policy
    if isinstance(level, str):
        if level.upper() not in COMPATIBILITY_LEVELS:
            raise errors.invalid_compatibility(level)
        update = msgspec.structs.replace(update, compatibility=level.upper())
    if isinstance(policy, str):
        if policy.upper() not in _POLICIES:
            raise errors.invalid_compatibility(policy)
        update = msgspec.structs.replace(update, compatibility_policy=policy.upper())
    for rules in (update.default_rule_set, update.override_rule_set):
        merging.check_rules(None if rules is msgspec.UNSET else rules)
    return update


def delete_config(state: State, subject: str | None, default_level: str) -> Decision[Config]:
    """Delete the mode and return it. Raises 40401 if no mode was set, 42205."""
    before = effective_settings.config_of(state, subject, default_level)
    if before is None:
        raise errors.subject_not_found(subject or "")
    _check_writable(state, subject)
    return Decision(tuple(tombstones(state, Key(records.CONFIG, subject))), before)


def update_mode(state: State, subject: str | None, mode: str | None, *, force: bool) -> Decision[Mode]:
    """Raises 42204, 42205 (IMPORT where subjects are), 42206, 42208."""
    wanted = None if mode is None else mode.upper()
    if wanted is not None and wanted not in get_args(ModeName):
        raise errors.invalid_mode(mode)
    if wanted == MODES[-1] and subject not in (None, names.GLOBAL_CONTEXT):
        raise errors.forward_mode_is_global()
    _check_subject(subject)
    written: list[CoordinatorRecord] = []
    if wanted == "IMPORT" and effective_settings.mode_for(state, subject) != "IMPORT" and not force:
        written += _made_empty(state, subject)
    key = Key(records.MODE, subject)
    if wanted is None:
        written += tombstones(state, key)
    else:
        written.append(records.put(key, ModeValue(subject=subject, mode=wanted)))
    return Decision(tuple(written), Mode(mode))


def _made_empty(state: State, subject: str | None) -> list[CoordinatorRecord]:
    """Check that the mode may become IMPORT, which requires a subject without versions; soft-deleted versions are
    removed permanently."""
    meant = [one for one in state.all_versions() if names.belongs(one.subject, subject)]
    if any(not one.deleted for one in meant):
        raise errors.not_permitted("Cannot import since found existing subjects")
    for one in meant:
        if state.referring_to(one.place):
            raise errors.reference_exists(*one.place)
    clear = records.put(Key(records.CLEAR_SUBJECT, subject), ClearSubjectValue(subject))
    return [*deleting.for_good(state, sorted(meant, key=lambda one: one.place)), clear]


def delete_mode(state: State, subject: str | None, *, recursive: bool) -> Decision[Mode]:
    """Delete the config and return it. Raises 40401 if no config was set. ``recursive``: also those of a context's
    subjects."""
    before = effective_settings.mode_of(state, subject)
    if before is None and not recursive:
        raise errors.subject_not_found(subject or "")
    gone = {subject}
    if recursive and (subject is None or names.split(subject)[1] == ""):
        context = names.context_of(subject)
        gone |= {who for who in state.modes if who is not None and names.context_of(who) == context}
    keys = [Key(records.MODE, who) for who in sorted(gone, key=lambda who: who or "")]
    return Decision(tuple(record for key in keys for record in tombstones(state, key)), Mode(before))


def _check_subject(subject: str | None) -> None:
    if subject is not None and not names.is_valid(subject, is_setting=True):
        raise errors.invalid_subject(subject)


def _check_writable(state: State, subject: str | None) -> None:
    if effective_settings.is_read_only(state, subject):
        where = names.prefix_of(subject)
        raise errors.not_permitted(f"Subject {subject} in context {where} is in read-only mode")
