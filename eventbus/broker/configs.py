"""Every per-topic config of Kafka: name, type, default, allowed values, and what it does here.

Names, types, defaults and ranges are those of Kafka 4.1's ``LogConfig`` (a test compares them with a table printed by
that class). A key without effect in the embedded log is still checked, stored and shown, so that the same scripts run
here and on a cluster, and ``describe`` says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from eventbus.errors import InvalidConfig
from eventbus.log.config import LogConfig
from eventbus.suggest import nearest
from eventbus.types import TimestampType

ConfigType = Literal["boolean", "int", "long", "double", "string", "list"]
ConfigSource = Literal["default", "broker", "topic"]
"""Where a value comes from: Kafka's default, the broker's ``log_defaults``, or the topic's own config."""
ConfigValue = bool | int | float | str | tuple[str, ...]

_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
_LIMITS = {"int": (-(1 << 31), _INT_MAX), "long": (-(1 << 63), _LONG_MAX), "double": (float("-inf"), float("inf"))}

_ONE_COPY = "stored only: there is one copy here, kafka:// replicates"
_NO_TIERS = "stored only: there is no tiered storage here"
_PRODUCER_CODEC = "stored only: batches keep the codec of their producer"
_FSYNC = "stored only: flushes follow the log's fsync setting"
_REPLICAS = re.compile(r"\*|[0-9]+:[0-9]+")
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")


class ConfigKey(NamedTuple):
    """One row of the table."""

    name: str
    type: ConfigType
    default: str
    """As text, Kafka's way."""
    low: float | None = None
    """Smallest value, inclusive; None: the type's."""
    high: float | None = None
    also: int | None = None
    """A value beside the range."""
    allowed: tuple[str, ...] = ()
    """The only values of a string, or of each element of a list."""
    effect: str = ""
    """Says what the embedded log does with the key; ``stored only: ...`` and why, if nothing."""
    server_key: str = ""
    """Kafka's broker-wide key for the same thing."""
    hint: str = ""
    """Added to the error of a bad value."""

    @property
    def no_effect(self) -> str:
        """Why the log does not act on the key; empty if it does."""
        return self.effect if self.effect.startswith("stored only") else ""

    @property
    def range(self) -> str:
        """What is allowed, in words."""
        if self.allowed:
            one = ", ".join(self.allowed)
            return f"a list of {one}" if self.type == "list" else f"one of {one}"
        if self.type == "boolean":
            return "true or false"
        if self.type == "list":
            return "a list of PARTITION:BROKER, or *"
        if self.type == "string":
            return "any text"
        low, high = self.limits
        return f"{low} to {high}" + (f", or {self.also}" if self.also is not None else "")

    @property
    def limits(self) -> tuple[float, float]:
        """Smallest and largest value of a number."""
        least, most = _LIMITS[self.type]
        return (least if self.low is None else self.low, most if self.high is None else self.high)


_ROWS = (
    ConfigKey(
        "cleanup.policy", "list", "delete", allowed=("compact", "delete"),
        effect="old segments are deleted, or the latest record of each key is kept",
        server_key="log.cleanup.policy",
    ),
    ConfigKey(
        "compression.gzip.level", "int", "-1", 1, 9, also=-1,
        effect=_PRODUCER_CODEC, server_key="compression.gzip.level",
    ),
    ConfigKey(
        "compression.lz4.level", "int", "9", 1, 17,
        effect=_PRODUCER_CODEC, server_key="compression.lz4.level",
    ),
    ConfigKey(
        "compression.type", "string", "producer",
        allowed=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        effect=_PRODUCER_CODEC, server_key="compression.type",
    ),
    ConfigKey(
        "compression.zstd.level", "int", "3", -131072, 22,
        effect=_PRODUCER_CODEC, server_key="compression.zstd.level",
    ),
    ConfigKey(
        "delete.retention.ms", "long", "86400000", 0,
        effect="a tombstone stays so long after it was first compacted",
        server_key="log.cleaner.delete.retention.ms",
    ),
    ConfigKey(
        "errors.deadletterqueue.group.enable", "boolean", "false",
        effect="marks a topic of dead letters, for the tools and for share groups on Kafka",
    ),
    ConfigKey(
        "file.delete.delay.ms", "long", "60000", 0,
        effect="stored only: files are deleted at once", server_key="log.segment.delete.delay.ms",
    ),
    ConfigKey("flush.messages", "long", str(_LONG_MAX), 1, effect=_FSYNC, server_key="log.flush.interval.messages"),
    ConfigKey("flush.ms", "long", str(_LONG_MAX), 0, effect=_FSYNC, server_key="log.flush.interval.ms"),
    ConfigKey("follower.replication.throttled.replicas", "list", "", effect=_ONE_COPY),
    ConfigKey(
        "index.interval.bytes", "int", "4096", 0,
        effect="one index entry for so many bytes of log",
        server_key="log.index.interval.bytes",
    ),
    ConfigKey("leader.replication.throttled.replicas", "list", "", effect=_ONE_COPY),
    ConfigKey("local.retention.bytes", "long", "-2", -2, effect=_NO_TIERS, server_key="log.local.retention.bytes"),
    ConfigKey("local.retention.ms", "long", "-2", -2, effect=_NO_TIERS, server_key="log.local.retention.ms"),
    ConfigKey(
        "max.compaction.lag.ms", "long", str(_LONG_MAX), 1,
        effect="a log with an older uncompacted record is compacted, however little of it is dirty",
        server_key="log.cleaner.max.compaction.lag.ms",
    ),
    ConfigKey(
        "max.message.bytes", "int", "1048588", 0,
        effect="a larger batch is refused: MESSAGE_TOO_LARGE",
        server_key="message.max.bytes",
    ),
    ConfigKey(
        "message.timestamp.after.max.ms", "long", "3600000", 0,
        effect="a record further in the future is refused: INVALID_TIMESTAMP",
        server_key="log.message.timestamp.after.max.ms",
    ),
    ConfigKey(
        "message.timestamp.before.max.ms", "long", str(_LONG_MAX), 0,
        effect="a record further in the past is refused: INVALID_TIMESTAMP",
        server_key="log.message.timestamp.before.max.ms",
    ),
    ConfigKey(
        "message.timestamp.type", "string", "CreateTime", allowed=("CreateTime", "LogAppendTime"),
        effect="the timestamp of the producer is kept, or replaced by the log",
        server_key="log.message.timestamp.type",
    ),
    ConfigKey(
        "min.cleanable.dirty.ratio", "double", "0.5", 0, 1,
        effect="a log is compacted when more than this part of it is new",
        server_key="log.cleaner.min.cleanable.ratio",
    ),
    ConfigKey(
        "min.compaction.lag.ms", "long", "0", 0,
        effect="a segment with a younger record is not compacted",
        server_key="log.cleaner.min.compaction.lag.ms",
    ),
    ConfigKey("min.insync.replicas", "int", "1", 1, effect=_ONE_COPY, server_key="min.insync.replicas"),
    ConfigKey(
        "preallocate", "boolean", "false",
        effect="stored only: files grow as they are written", server_key="log.preallocate",
    ),
    ConfigKey("remote.log.copy.disable", "boolean", "false", effect=_NO_TIERS),
    ConfigKey("remote.log.delete.on.disable", "boolean", "false", effect=_NO_TIERS),
    ConfigKey("remote.storage.enable", "boolean", "false", effect=_NO_TIERS),
    ConfigKey(
        "retention.bytes", "long", "-1",
        effect="the oldest segments are deleted while the rest is larger",
        server_key="log.retention.bytes",
    ),
    ConfigKey(
        "retention.ms", "long", "604800000", -1,
        effect="a segment is deleted when its newest record is older",
        server_key="log.retention.ms",
    ),
    ConfigKey(
        "segment.bytes", "int", "1073741824", 1 << 20,
        effect="a segment is sealed before it grows larger",
        server_key="log.segment.bytes", hint="; for smaller ones in tests Kafka has internal.segment.bytes",
    ),
    ConfigKey(
        "segment.index.bytes", "int", "10485760", 4,
        effect="a segment is sealed when an index is as large",
        server_key="log.index.size.max.bytes",
    ),
    ConfigKey(
        "segment.jitter.ms", "long", "0", 0,
        effect="stored only: one process has no herd of segments to spread", server_key="log.roll.jitter.ms",
    ),
    ConfigKey(
        "segment.ms", "long", "604800000", 1,
        effect="a segment is sealed when a record is so much later than its first",
        server_key="log.roll.ms",
    ),
    ConfigKey(
        "unclean.leader.election.enable", "boolean", "false",
        effect=_ONE_COPY, server_key="unclean.leader.election.enable",
    ),
)  # fmt: skip

INTERNAL_SEGMENT_BYTES = ConfigKey(
    "internal.segment.bytes",
    "int",
    "",
    1,
    effect="as segment.bytes",
    hint="; it overrides segment.bytes without its lower limit, for tests",
)
"""Kafka's hidden key for tests: shown by describe only where it is set."""

CONFIG_KEYS: dict[str, ConfigKey] = {row.name: row for row in _ROWS}
"""The table, by name."""

_SETTABLE = {**CONFIG_KEYS, INTERNAL_SEGMENT_BYTES.name: INTERNAL_SEGMENT_BYTES}


class ConfigEntry(NamedTuple):
    """One config of a topic, as ``describe`` shows it."""

    value: str
    default: str
    source: ConfigSource
    type: ConfigType = "string"
    no_effect: str = ""
    """Empty when the log acts on it, else why it does not, or not fully."""


def normalise(configs: Mapping[str, object]) -> dict[str, str]:
    """Kafka's text of each value. Raises InvalidConfig for an unknown key or a bad value.

    Takes Python's own values too: ``{"retention.ms": 1000, "preallocate": True, "cleanup.policy": ["compact"]}``.
    """
    checked: dict[str, str] = {}
    for name, given in configs.items():
        text = _text(given).strip()
        value = parse(config_key(name), text)
        checked[name] = text if isinstance(value, float) else _text(value)
    return checked


def config_key(name: str) -> ConfigKey:
    """Raises InvalidConfig, naming the nearest key."""
    key = _SETTABLE.get(name)
    if key is not None:
        return key
    for row in _ROWS:
        if row.server_key == name:
            raise InvalidConfig(f"{name!r} is Kafka's key for a whole broker; for a topic write {row.name!r}")
    raise InvalidConfig(
        f"there is no topic config {name!r}{nearest(name, CONFIG_KEYS)}; `eventbus topics describe` lists them"
    )


def parse(key: ConfigKey, text: str) -> ConfigValue:
    """The value of ``text``. Raises InvalidConfig, naming key, value and what is allowed."""
    try:
        return _parse(key, text)
    except ValueError:
        raise InvalidConfig(f"{key.name}={text!r}: allowed is {key.range}{key.hint}") from None


def _parse(key: ConfigKey, text: str) -> ConfigValue:
    match key.type:
        case "boolean":
            return _one_of(("true", "false"), text.lower()) == "true"
        case "string":
            return _one_of(key.allowed, text) if key.allowed else text
        case "list":
            items = tuple(item.strip() for item in text.split(",")) if text else ()
            if len(set(items)) < len(items):
                raise ValueError
            for item in items:
                if not (item in key.allowed if key.allowed else _REPLICAS.fullmatch(item)):
                    raise ValueError
            return items
        case "double":
            number = float(text)
        case _:
            if not _INTEGER.fullmatch(text):
                raise ValueError
            number = int(text)
    if number == key.also:
        return number
    low, high = key.limits
    if not low <= number <= high:  # false for a NaN, too
        raise ValueError
    return number


def _one_of(allowed: tuple[str, ...], text: str) -> str:
    if text not in allowed:
        raise ValueError
    return text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return str(value)


def check_together(configs: Mapping[str, str]) -> None:
    """Rules between keys, on a topic's effective configs. Raises InvalidConfig."""
    shortest, longest = int(configs["min.compaction.lag.ms"]), int(configs["max.compaction.lag.ms"])
    if shortest > longest:
        raise InvalidConfig(
            f"min.compaction.lag.ms={shortest} is above max.compaction.lag.ms={longest}: lower the one, raise the other"
        )


def effective(topic: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, str]:
    """All configs of a topic: Kafka's defaults, then the broker's, then its own."""
    return {**{name: key.default for name, key in CONFIG_KEYS.items()}, **broker, **topic}


def describe(topic: Mapping[str, str], broker: Mapping[str, str]) -> dict[str, ConfigEntry]:
    """All configs of a topic, with their defaults, where each comes from and whether it has an effect."""
    entries: dict[str, ConfigEntry] = {}
    for name, value in effective(topic, broker).items():
        key = _SETTABLE[name]
        source: ConfigSource = "topic" if name in topic else "broker" if name in broker else "default"
        entries[name] = ConfigEntry(value, broker.get(name, key.default), source, key.type, no_effect(name, value))
    return entries


def no_effect(name: str, value: str) -> str:
    """Empty when the log acts on this value, else why it does not."""
    return _SETTABLE[name].no_effect


def log_config(topic: Mapping[str, str], broker: Mapping[str, str]) -> LogConfig:
    """What the partition logs of a topic go by. Values were checked when they were set."""
    configs = effective(topic, broker)
    policy = parse(CONFIG_KEYS["cleanup.policy"], configs["cleanup.policy"])
    assert isinstance(policy, tuple)
    append_time = configs["message.timestamp.type"] == "LogAppendTime"
    segment_ms, max_lag_ms = int(configs["segment.ms"]), int(configs["max.compaction.lag.ms"])
    if "compact" in policy:
        segment_ms = min(segment_ms, max_lag_ms)  # the active segment is never cleaned, so it must end in time: KIP-354
    return LogConfig(
        segment_bytes=int(configs.get("internal.segment.bytes", configs["segment.bytes"])),
        segment_ms=segment_ms,
        segment_index_bytes=int(configs["segment.index.bytes"]),
        index_interval_bytes=int(configs["index.interval.bytes"]),
        retention_ms=int(configs["retention.ms"]),
        retention_bytes=int(configs["retention.bytes"]),
        max_message_bytes=int(configs["max.message.bytes"]),
        timestamp_before_max_ms=int(configs["message.timestamp.before.max.ms"]),
        timestamp_after_max_ms=int(configs["message.timestamp.after.max.ms"]),
        timestamp_type=TimestampType.LOG_APPEND_TIME if append_time else TimestampType.CREATE_TIME,
        cleanup_policy=policy,
        delete_retention_ms=int(configs["delete.retention.ms"]),
        min_compaction_lag_ms=int(configs["min.compaction.lag.ms"]),
        max_compaction_lag_ms=max_lag_ms,
        min_cleanable_dirty_ratio=float(configs["min.cleanable.dirty.ratio"]),
    )
