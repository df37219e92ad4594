"""The configs of topics: checked, described, and converted to the settings of a partition's log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from eventbus.errors import InvalidConfig
from eventbus.log.config import LogConfig
from eventbus.settings.setting import Kind, Setting, as_text
from eventbus.settings.topics import INTERNAL_SEGMENT_BYTES, ROWS
from eventbus.suggest import nearest
from eventbus.types import TimestampType

ConfigSource = Literal["default", "broker", "topic"]
"""The source of a value: Kafka's default, the broker's ``log_defaults``, or the topic's own config."""
ConfigValue = bool | int | float | str | tuple[str, ...]

CONFIG_KEYS: dict[str, Setting] = {row.name: row for row in ROWS}
"""The definitions of topic configs, by name."""

_SETTABLE = {**CONFIG_KEYS, INTERNAL_SEGMENT_BYTES.name: INTERNAL_SEGMENT_BYTES}


class ConfigEntry(NamedTuple):
    """One config of a topic, as ``describe`` shows it."""

    value: str
    default: str
    source: ConfigSource
    type: Kind = "string"
    no_effect: str = ""
    """Empty if the log uses the value, else the reason why it does not, or not fully."""


def normalise(configs: Mapping[str, object]) -> dict[str, str]:
    """Return Kafka's text for each value. Raises InvalidConfig for an unknown key or a bad value.

    Accepts Python's own types too: ``{"retention.ms": 1000, "preallocate": True, "cleanup.policy": ["compact"]}``.
    """
    checked: dict[str, str] = {}
    for name, given in configs.items():
        text = as_text(given).strip()
        value = parse(config_key(name), text)
        checked[name] = text if isinstance(value, float) else as_text(value)
    return checked


def config_key(name: str) -> Setting:
    """Return the definition of a key. Raises InvalidConfig with the nearest key."""
    key = _SETTABLE.get(name)
    if key is not None:
        return key
    for row in ROWS:
        if row.kafka and row.kafka == name:
            raise InvalidConfig(f"{name!r} is Kafka's key for a whole broker; for a topic write {row.name!r}")
    raise InvalidConfig(
        f"there is no topic config {name!r}{nearest(name, CONFIG_KEYS)}; `eventbus topics describe` lists them"
    )


def parse(key: Setting, text: str) -> ConfigValue:
    """Parse ``text``. Raises InvalidConfig with key, value and what is allowed."""
    try:
        return key.read(text)
    except ValueError as error:
        raise InvalidConfig(f"{key.name}={text!r}: allowed is {error}") from None


def check_together(configs: Mapping[str, str]) -> None:
    """Check rules between keys, on a topic's effective configs. Raises InvalidConfig."""
    shortest, longest = int(configs["min.compaction.lag.ms"]), int(configs["max.compaction.lag.ms"])
    if shortest > longest:
        raise InvalidConfig(
            f"min.compaction.lag.ms={shortest} is above max.compaction.lag.ms={longest}: change one of them"
        )


def effective(topic: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """Return all configs of a topic: Kafka's defaults, overridden by the broker's, then by the topic's."""
    return {**{name: key.default for name, key in CONFIG_KEYS.items()}, **broker, **topic}


def describe(topic: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, ConfigEntry]:
    """Describe all configs of a topic, with defaults, sources and whether they have an effect."""
    entries: dict[str, ConfigEntry] = {}
    for name, value in effective(topic, broker).items():
        key = _SETTABLE[name]
        source: ConfigSource = "topic" if name in topic else "broker" if name in broker else "default"
        entries[name] = ConfigEntry(value, broker.get(name, key.default), source, key.kind, no_effect(name, value))
    return entries


def no_effect(name: str, value: str) -> str:
    """Return why the log does not use this value; empty if it does."""
    return _SETTABLE[name].no_effect


def log_config(topic: Mapping[str, str], broker: Mapping[str, str]) -> LogConfig:
    """Return the settings of a topic's partition logs. Values were checked when they were set."""
    configs = effective(topic, broker)
    values: dict[str, Any] = {field: key.read(configs[key.name]) for field, key in _FIELDS.items()}
    append_time = values["timestamp_type"] == "LogAppendTime"
    values["timestamp_type"] = TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME
    if "compact" in values["cleanup_policy"]:
        # The active segment is never cleaned, so it must be rolled in time: KIP-354.
        values["segment_ms"] = min(values["segment_ms"], values["max_compaction_lag_ms"])
    if INTERNAL_SEGMENT_BYTES.name in configs:
        values["segment_bytes"] = int(configs[INTERNAL_SEGMENT_BYTES.name])
    return LogConfig(**values)


_FIELDS = {
    field: CONFIG_KEYS[f"{'message.' if field.startswith('timestamp') else ''}{field.replace('_', '.')}"]
    for field in LogConfig.__struct_fields__
}
