"""Keyword arguments to settings: Kafka's keys with underscores (dots are accepted), unknown ones refused by name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any, cast

import msgspec

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.names import CALLBACK, OF_A_CONSUMER, OF_A_PRODUCER, OF_ALL, as_keyword, as_text
from eventbus.backends.masking import shown_value
from eventbus.broker import BrokerConfig
from eventbus.client.partitioner import PartitionFunction, make_partitioner
from eventbus.coordinator.strategies import make_assignors
from eventbus.durations import read_duration, setting_ms
from eventbus.errors import ConfigError, InvalidRequiredAcks
from eventbus.suggest import nearest_setting, wrong_value
from eventbus.types import Compression, IsolationLevel
from serdes import Others
from serdes.choose import Serdes

logger = logging.getLogger("eventbus")

NOTHING: Mapping[str, str] = MappingProxyType({})
LOG_KEYS = frozenset(BrokerConfig.__struct_fields__)
PRODUCER_KEYS = frozenset({*ProducerConfig.__struct_fields__, "compression_type", "partitioner"}) - {
    "compression",
    "given",
    "kafka",
}
CONSUMER_KEYS = frozenset(
    {
        *ConsumerConfig.__struct_fields__,
        "isolation_level",
        "partition_assignment_strategy",
    }
) - {"assignors", "isolation", "start_duration_ms", "given", "kafka"}
CONSUMER_DEFAULTS = CONSUMER_KEYS - {
    "auto_commit_interval_ms", "client_id", "enable_auto_commit", "group", "group_instance_id", "isolation_level",
    "start",
}  # fmt: skip
"""What a bus may say for all its consumers; the others are each consumer's own."""

_SUCCESSORS = {
    "auto_commit_offset": "the key is enable_auto_commit",
    "auto_commit_enable": "the key is enable_auto_commit",
    "auto_commit": "the key is enable_auto_commit",
    "auto_commit_interval": "the key is auto_commit_interval_ms",
    **dict.fromkeys(
        (
            "max_in_flight",
            "max_in_flight_request",
            "max_in_flight_requests",
            "max_in_flight_request_per_connection",
            "max_in_flight_requests_per_session",
        ),
        "the key is max_in_flight_requests_per_connection; batches are stored in order in any case",
    ),
    "zookeeper_connect": 'no client talks to ZooKeeper any more; the brokers stand in the URL: "kafka://host:9092"',
    "broker_list": 'it belongs into the URL: EventBus("kafka://host:9092")',
    "metadata_broker_list": 'it belongs into the URL: EventBus("kafka://host:9092")',
    "request_required_acks": "the key is acks",
    "producer_type": "every send is asynchronous; `await` waits for the ack",
    "consumer_timeout_ms": "say it per call: poll(timeout_ms=...)",
    "fetch_wait_max_ms": "the key is fetch_max_wait_ms",
    "fetch_message_max_bytes": "the key is max_partition_fetch_bytes",
    "max_poll_records": "say it per call: poll(max_records=...)",
    "interceptor_classes": "give objects: bus.new_producer(interceptors=[...]), bus.new_consumer(interceptors=[...])",
    "partitioner_class": "the key is partitioner",
    "key_serializer": "keys are written by their type: see EventBus(serdes=...)",
    "value_serializer": "values are written by their type: see EventBus(serdes=...)",
    "key_deserializer": "say the type of the keys: bus.new_consumer(key=str)",
    "value_deserializer": "say the type of the values: bus.new_consumer(value=Order)",
    "bootstrap_servers": 'it belongs into the URL: EventBus("kafka://host:9092")',
    "group_id": "the group is each consumer's own: @bus.consumer(group=...), bus.new_consumer(group=...)",
    "group": "the group is each consumer's own: @bus.consumer(group=...), bus.new_consumer(group=...)",
    "group_instance_id": "it is each consumer's own: @bus.consumer(group_instance_id=...)",
    "start": "say where to start per consumer: @bus.consumer(start=...), bus.new_consumer(start=...)",
    "auto_offset_reset": "say where to start per consumer: @bus.consumer(start=...), bus.new_consumer(start=...)",
    "enable_auto_commit": "offsets are committed as records finish; bus.new_consumer(enable_auto_commit=True)",
    **dict.fromkeys(
        ("isolation", "isolation_level"),
        "it is each consumer's own: @bus.consumer(isolation_level=...), bus.new_consumer(isolation_level=...)",
    ),
    **dict.fromkeys(("assignor", "assignors"), "the key is partition_assignment_strategy"),
    "sasl_jaas_config": "librdkafka knows no JAAS: sasl_username and sasl_password",
    "rebalance_timeout_ms": "the key is max_poll_interval_ms: a rebalance waits for a member as long as that",
}
"""Keys Kafka renamed, or that people misremember, and what holds their meaning now: refused."""
KAFKA_NAMES = {"group.id": "group", "auto.offset.reset": "start"}
"""Kafka's names, with dots, of settings that are not the same with underscores."""
_OF_A_CONSUMER = {
    "auto_offset_reset": "the key is start",
    "group_id": "the key is group",
    "isolation": "the key is isolation_level",
}
"""The same, for one consumer: other spellings of what it has."""
_REMOVED = {
    "block_on_buffer_full": "max_block_ms",
    "metadata_fetch_timeout_ms": "max_block_ms",
    "timeout_ms": "request_timeout_ms",
}
"""Producer keys that Kafka removed and that have one successor: taken as that, with a warning, as Kafka 0.9 did."""
_FOREVER_MS = 2**63 - 1

_TRANSACTIONAL_ID = (
    "transactional_id belongs to one producer, not to all of a bus: bus.new_producer(transactional_id=...), or "
    "`async with bus.transaction(id)`"
)


class ProducerSettings(msgspec.Struct, frozen=True):
    """What a producer is made of: the backend's part, and the partitioner, which is ours on every backend."""

    config: ProducerConfig
    partitioner: str | PartitionFunction


def normalise(
    config: Mapping[str, Any], known: frozenset[str], what: str, passing: Mapping[str, str] = NOTHING
) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys with underscores; and those of ``passing``, for librdkafka alone, under its names and as text.

    Raises ConfigError for a key that is in neither, naming the right one.
    """
    result: dict[str, Any] = {}
    passed: dict[str, str] = {}
    if _REMOVED.keys() & {as_keyword(key) for key in config} and "linger_ms" in known:
        config = _without_removed(config)
    for key, value in config.items():
        name = KAFKA_NAMES.get(key) or as_keyword(key)
        value = setting_ms(value) if name.endswith("_ms") else value
        if name in known:
            _check_twice(name, result.setdefault(name, value), key, value, what)
        elif name in passing:
            if value is not None:  # not said, as where a program reads it from its environment
                _check_twice(name, passed.setdefault(passing[name], as_text(value)), key, as_text(value), what)
        else:
            successor = _OF_A_CONSUMER.get(name) if what == "consumer" else None
            successor = successor or _SUCCESSORS.get(name)
            hint = f": {successor}" if successor else nearest_setting(key, {*known, *passing})
            also = ", and librdkafka's for kafka://" if passing else ""
            raise ConfigError(f"unknown {what} setting {key!r}{hint}; known are {', '.join(sorted(known))}{also}")
    return result, passed


def _check_twice(name: str, before: Any, key: str, value: Any, what: str) -> None:
    """Raises ConfigError where a dotted and an underscored name of one setting say different things."""
    if before is not value and before != value:
        raise ConfigError(
            f"{what} setting {name} is said twice, as {shown_value(name, before)!r} and as {key!r}: "
            f"{shown_value(name, value)!r}: leave one of the two out"
        )


def _without_removed(config: Mapping[str, Any]) -> dict[str, Any]:
    """Removed keys as their successors, which win over them where both are there."""
    rest = {key: value for key, value in config.items() if as_keyword(key) not in _REMOVED}
    said = {as_keyword(key): value for key, value in config.items() if as_keyword(key) in _REMOVED}
    for key, successor in _REMOVED.items():
        value = setting_ms(said.get(key))
        if key not in said:
            continue
        logger.warning(
            "producer setting %s is gone since Kafka 0.9; say %s instead, which it is taken as", key, successor
        )
        if key == "block_on_buffer_full":
            if str(value).lower() not in ("true", "1"):
                continue
            value = _FOREVER_MS
        if successor not in {as_keyword(one) for one in rest}:
            rest[successor] = value
    return rest


def hint_of(key: str) -> str:
    """What holds the meaning of a key that is no setting of a bus; empty: nothing is known of it."""
    name = as_keyword(key)
    if name in _REMOVED:
        return f"gone since Kafka 0.9, the key is {_REMOVED[name]}"
    if name == "transactional_id":
        return _TRANSACTIONAL_ID
    return _SUCCESSORS.get(name, "")


def check_value(key: str, value: Any) -> None:
    """Of the settings whose values are words. Raises ConfigError."""
    match key:
        case "acks":
            _acks(value)
        case "compression_type":
            _compression(value)
        case "partitioner":
            make_partitioner(value, "", 1)
        case "partition_assignment_strategy":
            _assignors(value)
        case _:
            raise AssertionError(key)


class BusSettings(msgspec.Struct, frozen=True):
    """The keywords of a bus, by whom they are for. Shown without its secrets."""

    log: dict[str, Any]
    """The log's own, and what librdkafka is told of all clients."""
    producers: dict[str, Any]
    consumers: dict[str, Any]

    def __repr__(self) -> str:
        shown = {key: shown_value(key, value) for key, value in self.log.items()}
        return f"BusSettings(log={shown!r}, producers={self.producers!r}, consumers={self.consumers!r})"


def bus_settings(config: Mapping[str, Any], client_id: str) -> BusSettings:
    """Raises ConfigError for a wrong key, and for a wrong value of a client's."""
    oauth = {key: value for key, value in config.items() if as_keyword(key) == CALLBACK}
    rest = {key: value for key, value in config.items() if key not in oauth}
    values, passed = normalise(rest, LOG_KEYS | PRODUCER_KEYS | CONSUMER_DEFAULTS, "bus", OF_ALL)
    if "transactional_id" in values:
        raise ConfigError(_TRANSACTIONAL_ID)
    chosen = BusSettings(
        log={**{key: value for key, value in values.items() if key in LOG_KEYS}, **passed, **oauth},
        producers={"client_id": client_id, **{key: value for key, value in values.items() if key in PRODUCER_KEYS}},
        consumers={key: value for key, value in values.items() if key in CONSUMER_DEFAULTS},
    )
    producer_settings(chosen.producers)
    consumer_settings(chosen.consumers)
    return chosen


def producer_settings(config: Mapping[str, Any]) -> ProducerSettings:
    """Raises ConfigError for a wrong key or value, InvalidRequiredAcks for ``acks``."""
    values, passed = normalise(config, PRODUCER_KEYS, "producer", OF_A_PRODUCER)
    partitioner = values.pop("partitioner", "murmur2")
    make_partitioner(partitioner, "", 1)
    if "compression_type" in values:
        values["compression"] = _compression(values.pop("compression_type"))
    if "acks" in values:
        values["acks"] = _acks(values["acks"])
    _choose_idempotence(values)
    values |= {"given": frozenset(values), "kafka": passed}
    return ProducerSettings(_convert(values, ProducerConfig, "producer"), partitioner)


def serdes_given(serde: Any, serdes: Any) -> Serdes:
    """Those of a bus, by type. Raises ConfigError for what is no serde."""
    if serdes is not None and not isinstance(serdes, Mapping):
        raise ConfigError(f"serdes={serdes!r:.80}: a dict of types and their serdes: serdes={{Stage: StageSerde()}}")
    given: dict[Any, Any] = {**({} if serde is None else {Others: serde}), **(serdes or {})}
    for kind, one in given.items():
        where = "serde" if kind is Others else f"serdes: {getattr(kind, '__name__', kind)}"
        if isinstance(one, type):
            raise ConfigError(f"{where}={one.__name__}: the class; an object of it, {one.__name__}()")
        if not all(callable(getattr(one, name, None)) for name in ("serialize", "deserialize")):
            raise ConfigError(f"{where}={one!r:.80}: a serde has serialize(topic, value) and deserialize(topic, data)")
    return Serdes(given)


def consumer_settings(config: Mapping[str, Any]) -> ConsumerConfig:
    """Raises ConfigError for a wrong key or value."""
    values, passed = normalise(config, CONSUMER_KEYS, "consumer", OF_A_CONSUMER)
    for kafka_name, ours in (
        ("isolation_level", "isolation"),
        ("partition_assignment_strategy", "assignors"),
    ):
        if kafka_name in values:
            values[ours] = values.pop(kafka_name)
    if isinstance(values.get("isolation"), str):
        name = values["isolation"]
        if name.upper() not in IsolationLevel.__members__:
            raise ConfigError(f"isolation_level={name!r}: read_committed or read_uncommitted")
        values["isolation"] = IsolationLevel[name.upper()]
    if "start" in values:
        values |= read_start(values["start"])
    if "assignors" in values:
        values["assignors"] = _assignors(values["assignors"])
    settings = _convert({**values, "given": frozenset(values), "kafka": passed}, ConsumerConfig, "consumer")
    if settings.enable_auto_commit and settings.group is None:
        raise ConfigError("enable_auto_commit=True commits for a group: open the consumer with group=...")
    if settings.heartbeat_interval_ms >= settings.session_timeout_ms:
        raise ConfigError(
            f"heartbeat_interval_ms={settings.heartbeat_interval_ms} must be below "
            f"session_timeout_ms={settings.session_timeout_ms} (a third of it is usual): a member would be given up "
            "between two heartbeats"
        )
    return settings


def is_client_setting(key: str) -> bool:
    """Whether a handler may say it of its consumer: what a bus may say of all of them, and what librdkafka knows."""
    return as_keyword(key) in CONSUMER_DEFAULTS or as_keyword(key) in OF_A_CONSUMER


def read_start(start: Any) -> dict[str, Any]:
    """Where a group without an offset begins: a word, ``by_duration:PT1H``, or a timedelta. Raises ConfigError."""
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


def _assignors(chosen: Any) -> tuple[Any, ...]:
    """One or several, as names (Kafka takes them with commas), classes or objects."""
    if isinstance(chosen, str):
        names = tuple(name.strip() for name in chosen.split(","))
    else:
        names = tuple(cast("Iterable[Any]", chosen)) if isinstance(chosen, (tuple, list)) else (chosen,)
    make_assignors(names)  # a wrong one is refused where it was written, not at the first poll
    return names


def _convert(values: dict[str, Any], into: type[Any], what: str) -> Any:
    numbers = {key: value for key, value in values.items() if isinstance(value, int) and not isinstance(value, bool)}
    for key, value in numbers.items():
        if value < 0 and key not in ("acks",):
            raise ConfigError(f"{what} setting {key}={value}: must not be negative")
    try:
        return msgspec.convert(values, into, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} setting {wrong_value(error, values)}") from None


def _choose_idempotence(values: dict[str, Any]) -> None:
    """As Kafka's client: on, unless ``acks`` is not all; asked for in so many words, it insists (KIP-679)."""
    explicit = values.get("enable_idempotence")
    if isinstance(explicit, str):
        explicit = explicit.lower() in ("true", "1")
    acks = values.get("acks", -1)
    transactional_id = values.get("transactional_id")
    if transactional_id is not None and (not isinstance(transactional_id, str) or not transactional_id):
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
