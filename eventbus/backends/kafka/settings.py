"""Settings for librdkafka: those of the URL, the producer and the consumer, and safe values for the rest."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.failures import client_error
from eventbus.backends.kafka.tokens import Tokens, callback_of, without_unsecured
from eventbus.errors import ConfigError
from eventbus.settings.setting import Scope, as_keyword, is_secret
from eventbus.settings.table import CALLBACK, DEFAULTS, find, known, read, refused, rows
from eventbus.types import Compression, IsolationLevel

logger = logging.getLogger("eventbus.kafka")
C = TypeVar("C", ConsumerConfig, ProducerConfig)

_PORT = 9092
_BROKER = re.compile(r"([A-Za-z_]+://)?(\[[\w:.%]+\]|[^\s:/;\[\]]+)(:\d{1,5})?")
_STATISTICS_MS = "10000"
_IN_THE_PROGRAM = ("acks", "enable_idempotence", "partitioner")
"""Guarantees that the program requests, which a URL must not change."""


@cache
def _names(scope: Scope) -> frozenset[str]:
    """Return the names of librdkafka's settings for a scope."""
    return frozenset(row.passed_as for row in rows(scope).values())


class Listener(msgspec.Struct, frozen=True):
    """Callbacks for events that the clients of a backend report; called in threads of librdkafka."""

    error: Callable[[ClientError], object]
    statistics: Callable[[str], object]


class ClientSettings(msgspec.Struct, frozen=True):
    """The settings of a URL. The repr hides secrets."""

    bootstrap: str
    given: dict[str, str]
    """Settings under librdkafka's names, with dots."""
    auto_create_topics: bool = False
    producers: dict[str, Any] = {}
    """Values for fields of `ProducerConfig` that a producer does not set."""
    consumers: dict[str, Any] = {}
    """Values for fields of `ConsumerConfig` that a consumer does not set."""
    oauth_cb: Callable[[str], Any] | None = None
    listener: Listener | None = None
    kept_tokens: Tokens | None = None
    """The tokens of a backend, which its connections share."""

    def __repr__(self) -> str:
        shown = {name: "***" if is_secret(name) else value for name, value in self.given.items()}
        return f"ClientSettings({self.bootstrap!r}, {shown!r})"

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The addresses of the brokers in the URL."""
        named = (broker.rpartition(":") for broker in self.bootstrap.split(","))
        return [(host.strip("[]"), int(port)) for host, _, port in named]

    @property
    def security_protocol(self) -> str:
        return self.given.get("security.protocol", "PLAINTEXT").upper()

    @property
    def mechanism(self) -> str:
        """The SASL mechanism; empty if none is set."""
        return (self.given.get("sasl.mechanisms") or self.given.get("sasl.mechanism") or "").upper()

    @property
    def tokens(self) -> Tokens:
        """OAUTHBEARER tokens for our own connections."""
        return self.kept_tokens or Tokens(self.given, callback_of(self.given, self.oauth_cb))

    @property
    def statistics_seconds(self) -> float:
        """The interval at which clients report statistics."""
        return int(self.given.get("statistics.interval.ms", _STATISTICS_MS)) / 1000

    def common(self, kind: Scope | None = None, own: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return the settings of a client: those for all clients, those of its ``kind``, and its ``own``."""
        chosen: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            # The closing of idle connections by a broker is not worth logging; and clusters that request metrics get
            # none.
            "log.connection.close": "false",
            "enable.metrics.push": "false",
            "topic.metadata.refresh.interval.ms": "30000",
            "logger": _LIBRDKAFKA,
            "error_cb": _note if self.listener is None else self.listener.error,
        }
        given = {**self.given, **(own or {})}
        names = {*_names("librdkafka"), "client.id", *(_names(kind) if kind else ())}
        callback = callback_of(given, self.oauth_cb)
        if callback is not None:
            # confluent-kafka's constructors then wait for a token: at least 1 s, and 10 s if there is none.
            chosen["oauth_cb"] = callback
            given = without_unsecured(given)
        chosen |= {name: value for name, value in given.items() if name in names}
        return chosen

    def _add_statistics(self, chosen: dict[str, Any]) -> None:
        """Enable statistics, which only a client that is polled may collect: otherwise they would pile up."""
        chosen.setdefault("statistics.interval.ms", _STATISTICS_MS)
        if self.listener is not None:
            chosen["stats_cb"] = self.listener.statistics

    def admin(self) -> dict[str, Any]:
        return self.common() | {"statistics.interval.ms": 0}

    def producer(self, config: ProducerConfig) -> dict[str, Any]:
        config = self.of_producer(config)
        chosen = self.common("librdkafka producer", config.kafka)
        self._add_statistics(chosen)
        chosen |= {
            "client.id": config.client_id,
            "acks": config.acks,
            "enable.idempotence": config.enable_idempotence,
            "batch.size": max(config.batch_size, 1),
            "linger.ms": config.linger_ms,
            "compression.type": Compression(config.compression).name.lower(),
            # Sizes are checked before a record gets there, to name the setting; this limit is for its batch.
            "message.max.bytes": max(config.max_request_size, 1_000),
            "queue.buffering.max.kbytes": max(config.buffer_memory // 1024, 1),
        }
        chosen.setdefault("queue.buffering.max.messages", 10_000_000)
        if not config.enable_idempotence:
            chosen["max.in.flight.requests.per.connection"] = 1  # otherwise a retry may overtake
        if config.transactional_id is not None:
            chosen["transactional.id"] = config.transactional_id
            chosen["transaction.timeout.ms"] = config.transaction_timeout_ms
            # An end of a transaction that takes this long may have been sent twice (see transactions): with the default
            # of 100 ms too many ends would be suspected.
            chosen.setdefault("retry.backoff.ms", 500)
            for name in ("delivery.timeout.ms", "message.timeout.ms"):  # required by librdkafka
                if name in chosen:
                    chosen[name] = _least(chosen[name], config.transaction_timeout_ms)
        return chosen

    def consumer(self, config: ConsumerConfig, assignors: str) -> dict[str, Any]:
        config = self.of_consumer(config)
        chosen = self.common("librdkafka consumer", config.kafka)
        self._add_statistics(chosen)
        chosen |= {
            # librdkafka requires a name even without a group; nothing is requested from it and nothing committed.
            "group.id": config.group or f"eventbus-no-group-{uuid4()}",
            "client.id": config.client_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # We determine the position, because `start` has forms that librdkafka does not support.
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": config.check_crcs,
            "isolation.level": IsolationLevel(config.isolation).name.lower(),
            "fetch.min.bytes": max(config.fetch_min_bytes, 1),
            "fetch.message.max.bytes": max(config.max_partition_fetch_bytes, 1),
            "fetch.wait.max.ms": config.fetch_max_wait_ms,
            "allow.auto.create.topics": self.auto_create_topics,
        }
        # Bounded; and librdkafka requires that a whole fetch is not smaller than the part of a partition.
        chosen.setdefault("queued.max.messages.kbytes", min(_kbytes(16 * config.max_partition_fetch_bytes), 65_536))
        # Otherwise librdkafka checks only once a second whether a full queue has space, which limits the throughput.
        chosen.setdefault("fetch.queue.backoff.ms", 20)
        chosen.setdefault("fetch.max.bytes", max(52_428_800, config.max_partition_fetch_bytes))
        if config.group is not None:
            chosen |= self._member(config, assignors)
        return chosen

    def _member(self, config: ConsumerConfig, assignors: str) -> dict[str, Any]:
        """Return the settings of a group member. With KIP-848, sessions and assignors belong to the group, on the
        broker."""
        chosen: dict[str, Any] = {"max.poll.interval.ms": config.max_poll_interval_ms}
        if config.group_instance_id is not None:
            chosen["group.instance.id"] = config.group_instance_id
        if self.has_new_protocol(config):
            return chosen
        return chosen | {
            "session.timeout.ms": config.session_timeout_ms,
            "heartbeat.interval.ms": config.heartbeat_interval_ms,
            # Required by librdkafka.
            "max.poll.interval.ms": max(config.max_poll_interval_ms, config.session_timeout_ms),
            "partition.assignment.strategy": assignors,
        }

    def has_new_protocol(self, config: ConsumerConfig) -> bool:
        """True if a consumer's group uses the new protocol (KIP-848)."""
        return {**self.given, **config.kafka}.get("group.protocol", "classic").lower() == "consumer"

    def of_producer(self, config: ProducerConfig) -> ProducerConfig:
        """Return the config with the URL's values for the fields that were not set."""
        return _with_defaults(config, {**self._client_id, **self.producers})

    def of_consumer(self, config: ConsumerConfig) -> ConsumerConfig:
        """Return the config with the URL's values for the fields that were not set."""
        return _with_defaults(config, {**self._client_id, **self.consumers})

    @property
    def _client_id(self) -> dict[str, str]:
        return {"client_id": self.given["client.id"]} if "client.id" in self.given else {}


def _with_defaults(config: C, said: Mapping[str, Any]) -> C:
    given = config.given
    if given is None:
        usual = type(config)()
        given = {field for field in said if getattr(config, field) != getattr(usual, field)}
    chosen = {field: value for field, value in said.items() if field not in given}
    return msgspec.structs.replace(config, **chosen) if chosen else config


def read_settings(rest: str, config: Mapping[str, Any]) -> ClientSettings:
    """Return the settings of a URL and of keywords, which may have underscores for dots. Raises ConfigError."""
    brokers = [broker.strip() for broker in rest.strip("/").split(",") if broker.strip()]
    if not brokers:
        raise ConfigError("kafka:// needs a broker: kafka://host:9092, or several: kafka://one:9092,two:9092")
    for broker in brokers:
        if not _BROKER.fullmatch(broker):
            raise ConfigError(f"kafka://{rest}: {broker!r} is no broker: kafka://host:9092, kafka://one:9092,two:9092")
    others: dict[str, Any] = {}
    ours: dict[str, Any] = {}
    for key, value in config.items():
        name = as_keyword(key)
        if name == CALLBACK:
            others["oauth_cb"] = _function(value)
        elif name == "client_id":
            others["client_id"] = str(value)
        else:
            _check_name(key)
            ours[key] = value
    values, given = read(ours, known(*DEFAULTS, librdkafka_too=True), "kafka://", "")
    producers = {name: values[name] for name in rows("producer") if name in values}
    consumers = {name: values[name] for name in rows("consumer") if name in values}
    if "compression_type" in producers:
        text = str(producers.pop("compression_type")).upper()
        if text not in Compression.__members__:
            raise ConfigError(f"setting compression_type={text.lower()!r} of kafka://: none, gzip, snappy, lz4 or zstd")
        producers["compression"] = Compression[text]
    if "partition_assignment_strategy" in consumers:
        text = str(consumers.pop("partition_assignment_strategy"))
        consumers["assignors"] = tuple(part.strip() for part in text.split(","))
    if "client_id" in others:
        given["client.id"] = others.pop("client_id")
    others["auto_create_topics"] = values.get("auto_create_topics", False)
    return ClientSettings(",".join(map(_with_port, brokers)), given, producers=producers, consumers=consumers, **others)


def _check_name(key: str) -> None:
    """Raise ConfigError for a setting that a ``kafka://`` URL cannot have."""
    row = find(key, known(*DEFAULTS, librdkafka_too=True))
    if row is None:
        among = {name: one for name, one in known(*DEFAULTS).items() if one.scope != "log"}
        raise refused(key, among, "kafka://")
    if row.name in _IN_THE_PROGRAM:
        raise ConfigError(f"setting {key!r} of kafka://: give it in the program: EventBus(url, {row.name}=...)")
    if row.scope == "log" and row.name != "auto_create_topics":
        raise ConfigError(
            f"setting {key!r} is one of the embedded log (memory://, file://): a Kafka broker has its own, in its "
            "server.properties or set by kafka-configs"
        )


def _function(value: Any) -> Callable[[str], Any]:
    if not callable(value):
        raise ConfigError(f"oauth_cb={value!r}: a function that returns (token, its end in seconds since the epoch)")
    return value


def _with_port(broker: str) -> str:
    host, separator, port = broker.rpartition(":")
    if separator and port.isdecimal() and not host.endswith(":"):
        return broker
    return f"{broker}:{_PORT}"


def _least(given: Any, most: int) -> Any:
    return min(int(given), most) if str(given).isdecimal() else given


def _kbytes(size_bytes: int) -> int:
    return max(size_bytes // 1024, 1)


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """Filters librdkafka's log lines. It reports an unreachable broker ten times a second, which calls report
    anyway."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(min(level, logging.DEBUG), msg, *args, **kwargs)


_LIBRDKAFKA = _Quiet(logging.getLogger("eventbus.kafka.librdkafka"))


def _note(error: ClientError) -> None:
    """Log errors that librdkafka handles, or reports again where they matter."""
    logger.debug("librdkafka: %s", error.str())


def config_refused(failure: KafkaException) -> ConfigError:
    """Return the error for a setting that librdkafka refused."""
    return ConfigError(f"a setting of kafka:// was refused: {client_error(failure).str()}")
