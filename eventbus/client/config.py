"""Keyword arguments to the settings of clients: Kafka's keys with underscores; dots are accepted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, cast

import msgspec

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.masking import shown_value
from eventbus.client.partitioner import PartitionFunction, make_partitioner
from eventbus.coordinator.strategies import make_assignors
from eventbus.durations import read_duration
from eventbus.errors import ConfigError, InvalidRequiredAcks
from eventbus.settings.setting import Scope, as_keyword
from eventbus.settings.table import CALLBACK, DEFAULTS, OF_A_CONSUMER, OF_A_PRODUCER, known, read, rows
from eventbus.types import Compression, IsolationLevel
from serdes.choose import Others, Serdes

_CLIENTS: tuple[Scope, ...] = ("producer", "consumer")


class ProducerSettings(msgspec.Struct, frozen=True):
    """The settings of a producer: the backend's part, and the partitioner, which is ours on every backend."""

    config: ProducerConfig
    partitioner: str | PartitionFunction


def check_value(key: str, value: Any) -> None:
    """Check a setting whose row leaves its values to its reader. Raises ConfigError."""
    checks: dict[str, Callable[[Any], object]] = {
        "acks": _acks,
        "compression_type": _compression,
        "partitioner": lambda given: make_partitioner(given, "", 1),
        "partition_assignment_strategy": _assignors,
    }
    if key in checks:
        checks[key](value)


class BusSettings(msgspec.Struct, frozen=True):
    """The settings of a bus, grouped by their receiver. Secrets are not shown in its repr."""

    log: dict[str, Any]
    """Settings of the log, and of librdkafka for all clients."""
    producers: dict[str, Any]
    consumers: dict[str, Any]

    def __repr__(self) -> str:
        shown = {key: shown_value(key, value) for key, value in self.log.items()}
        return f"BusSettings(log={shown!r}, producers={self.producers!r}, consumers={self.consumers!r})"


def bus_settings(config: Mapping[str, Any], client_id: str) -> BusSettings:
    """Group the settings of a bus. Raises ConfigError for unknown keys and wrong values."""
    oauth = {key: value for key, value in config.items() if as_keyword(key) == CALLBACK}
    values, passed = read({key: config[key] for key in config if key not in oauth}, known(*DEFAULTS), "bus")
    of = {scope: {name: values[name] for name in values if name in rows(scope)} for scope in ("log", *_CLIENTS)}
    chosen = BusSettings(
        log={**of["log"], **passed, **oauth},
        producers={"client_id": client_id, **of["producer"]},
        consumers=of["consumer"],
    )
    producer_settings(chosen.producers)
    consumer_settings(chosen.consumers)
    return chosen


def producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Parse a producer's settings. Raises ConfigError for a wrong key or value, InvalidRequiredAcks for ``acks``."""
    values, passed = read(config, known(*OF_A_PRODUCER, own=True), "producer")
    partitioner = values.pop("partitioner", "murmur2")
    make_partitioner(partitioner, "", 1)
    if "compression_type" in values:
        values["compression"] = _compression(values.pop("compression_type"))
    if "acks" in values:
        values["acks"] = _acks(values["acks"])
    _choose_idempotence(values)
    return ProducerSettings(ProducerConfig(**values, given=frozenset(values), kafka=passed), partitioner)


def serdes_given(serde: Any, serdes: Any) -> Serdes:
    """Return the serdes of a bus by type. Raises ConfigError for an object that is not a serde."""
    if serdes is not None and not isinstance(serdes, Mapping):
        raise ConfigError(f"serdes={serdes!r:.80}: a dict of types and their serdes: serdes={{Stage: StageSerde()}}")
    given: dict[Any, Any] = {**({} if serde is None else {Others: serde}), **(serdes or {})}
    for kind, one in given.items():
        where = "serde" if kind is Others else f"serdes: {getattr(kind, '__name__', kind)}"
        if isinstance(one, type):
            raise ConfigError(f"{where}={one.__name__}: the class; an object of it, {one.__name__}()")
        methods = [getattr(one, name, None) for name in ("serialize", "deserialize")]
        if not all(map(callable, methods)):
            raise ConfigError(f"{where}={one!r:.80}: a serde has serialize(topic, value) and deserialize(topic, data)")
        if any(map(inspect.iscoroutinefunction, methods)):
            raise ConfigError(
                f"{where}={one!r:.80}: serialize and deserialize are plain functions, and are not awaited"
            )
    return Serdes(given)


def consumer_settings(config: Mapping[str, Any]) -> ConsumerConfig:
    """Parse the settings of a consumer. Raises ConfigError for a wrong key or value."""
    values, passed = read(config, known(*OF_A_CONSUMER, own=True), "consumer")
    if "isolation_level" in values:
        values["isolation"] = read_isolation(values.pop("isolation_level"), "")
    if "start" in values:
        values |= read_start(values["start"])
    if "partition_assignment_strategy" in values:
        values["assignors"] = _assignors(values.pop("partition_assignment_strategy"))
    settings = ConsumerConfig(**values, given=frozenset(values), kafka=passed)
    if settings.enable_auto_commit and settings.group is None:
        raise ConfigError("enable_auto_commit=True commits for a group: open the consumer with group=...")
    if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
        raise ConfigError(
            f"heartbeat_interval_ms={settings.heartbeat_interval_ms} must be below "
            f"session_timeout_ms={settings.session_timeout_ms} (a third of it is usual): a member would be given up "
            "between two heartbeats"
        )
    return settings


def read_isolation(level: Any, where: str) -> IsolationLevel:
    """Parse an isolation level. Raises ConfigError for an unknown one."""
    if isinstance(level, str) and level.upper() in IsolationLevel.__members__:
        return IsolationLevel[level.upper()]
    if not isinstance(level, IsolationLevel):
        raise ConfigError(f"{where}isolation_level={level!r}: read_committed or read_uncommitted")
    return level


def read_start(start: Any) -> dict[str, Any]:
    """Parse where a group without a committed offset begins: a word, ``by_duration:PT1H``, or a timedelta.

    Raises ConfigError.
    """
    if isinstance(start, str) and start.startswith("by_duration:"):
        back_ms = read_duration(start.removeprefix("by_duration:"))
        if back_ms is None:
            raise ConfigError(f"start={start!r}: write the duration as ISO 8601 has it, by_duration:PT1H30M")
        start = timedelta(milliseconds=back_ms)
    if not isinstance(start, timedelta):
        if start not in ("earliest", "latest", "none"):
            raise ConfigError(f'start={start!r}: "earliest", "latest", "none", or "by_duration:PT1H" (or a timedelta)')
        return {"start": start}
    if start < timedelta(0):
        raise ConfigError(f"start={start!r}: how far to go back, so it cannot be negative")
    return {"start": "by_duration", "start_duration_ms": start // timedelta(milliseconds=1)}


def assignor_names(chosen: Any) -> tuple[Any, ...]:
    """Return one assignor or several as a tuple."""
    if isinstance(chosen, str):
        return tuple(name.strip() for name in chosen.split(","))
    return tuple(cast("Iterable[Any]", chosen)) if isinstance(chosen, (tuple, list)) else (chosen,)


def _assignors(chosen: Any) -> tuple[Any, ...]:
    """Return one or several assignors: names (with commas, as in Kafka), classes or objects."""
    names = assignor_names(chosen)
    make_assignors(names)  # raises where the setting was written, not at the first poll
    return names


def _choose_idempotence(values: dict[str, Any]) -> None:
    """Enable idempotence as Kafka's client does: by default with ``acks="all"``, which an explicit setting requires
    (KIP-679).
    """
    explicit = values.get("enable_idempotence")
    acks = values.get("acks", -1)
    transactional_id = values.get("transactional_id")
    if transactional_id == "":
        raise ConfigError(f"transactional_id={transactional_id!r}: a text that is not empty")
    if transactional_id is not None or explicit:
        what = "enable_idempotence=True" if transactional_id is None else f"transactional_id={transactional_id!r}"
        if acks != -1:
            raise ConfigError(f'{what} needs acks="all", not acks={acks}: leave one of the two out')
        if explicit is not None and not explicit:
            raise ConfigError(f"{what} needs enable_idempotence: leave enable_idempotence=False out")
    elif acks != -1:
        values["enable_idempotence"] = False


def _compression(name: Any) -> Compression:
    if isinstance(name, Compression):
        return name
    if not isinstance(name, str) or name.upper() not in Compression.__members__:
        raise ConfigError(f"compression_type={name!r}: none, gzip, snappy, lz4 or zstd")
    return Compression[name.upper()]


def _acks(acks: Any) -> int:
    choices = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if str(acks) not in choices:
        raise InvalidRequiredAcks(
            f'acks={acks!r}: 0 (do not wait), 1 (written) or "all" (stored as fsync= says); there is no quorum count'
        )
    return choices[str(acks)]
