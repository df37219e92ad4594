"""The effective settings of a subject: its own, its context's, the global one, the default."""

from __future__ import annotations

from typing import Any

import msgspec

from schema_registry import names
from schema_registry.entities import Config
from schema_registry.records import ConfigValue
from schema_registry.state import State

_READ_ONLY = ("READONLY", "READONLY_OVERRIDE")


def mode_of(state: State, subject: str | None) -> str | None:
    """Return the mode set for exactly this subject or context. The global mode is always set."""
    found = state.modes.get(subject)
    return "READWRITE" if found is None and _is_top(subject) else found


def mode_for(state: State, subject: str | None) -> str:
    """Return the mode of a subject: its own, or the mode of its context, or the global mode."""
    for who in _levels(subject):
        found = state.modes.get(who)
        if found is not None:
            return found
    return "READWRITE"


def is_read_only(state: State, subject: str | None) -> bool:
    return mode_for(state, subject) in _READ_ONLY


def is_import(mode: str) -> bool:
    """Ids come from elsewhere: they are kept, and nothing is checked against older versions."""
    return mode in ("IMPORT", "FORWARD")


def config_of(state: State, subject: str | None, default_level: str) -> Config | None:
    """Return the config set for exactly this subject or context. The global level is always set."""
    found = state.configs.get(subject)
    if found is None:
        return Config(compatibility_level=default_level) if _is_top(subject) else None
    return _entity(found, default_level)


def config_for(state: State, subject: str | None, default_level: str) -> Config:
    """Return the effective config of a subject. A subject with a config inherits only some members of the global
    config."""
    own = None if subject is None else state.configs.get(subject)
    if own is None:
        found = next((config for who in _levels(subject) if (config := state.configs.get(who)) is not None), None)
        return Config(compatibility_level=default_level) if found is None else _entity(found, default_level)
    top = state.configs.get(None)
    if top is not None:
        inherited = ("normalize", "validate_fields", "validate_new_schemas", "validate_rules")
        inherited += ("compatibility_policy", "compatibility_group")
        missing = {name: getattr(top, name) for name in inherited if getattr(own, name) is None}
        own = msgspec.structs.replace(own, **missing)
    return _entity(own, default_level)


def alias_of(state: State, subject: str) -> str:
    """Resolve an alias: return the subject that this subject's config names, or this subject."""
    config = state.configs.get(subject)
    return subject if config is None or not config.alias else names.within(subject, config.alias)


def _levels(subject: str | None) -> list[str | None]:
    """Return the owners of a subject's settings, the most specific first."""
    context = names.prefix_of(subject)
    return [subject, context or None, names.GLOBAL_CONTEXT]


def _is_top(subject: str | None) -> bool:
    return subject is None or names.prefix_of(subject) == names.GLOBAL_CONTEXT


def _entity(value: ConfigValue, default_level: str) -> Config:
    members: dict[str, Any] = {name: getattr(value, name) for name in Config.__struct_fields__}
    members["compatibility_level"] = value.compatibility_level or default_level
    return Config(**members)
