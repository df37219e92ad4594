"""The broker's configs as Kafka names them, with the values this node goes by (read-only: set at its start)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from eventbus.broker.configs import CONFIG_KEYS, ConfigType
from eventbus.broker.descriptions import BROKER_ID
from eventbus.server.config import Listener, format_address
from eventbus.server.node import Node

_SENSITIVE = frozenset(
    {"sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password"}
)


class BrokerEntry(NamedTuple):
    """One config of the broker."""

    name: str
    type: ConfigType
    value: str | None
    default: str | None
    """None: there is none, as of an address."""
    is_sensitive: bool = False
    """Its value is never told."""
    no_effect: str = ""
    """Why the log does not act on it; empty if it does."""

    @property
    def is_default(self) -> bool:
        return self.value == self.default


class _Row(NamedTuple):
    """A key of Kafka's, its type and default there, and where its value here comes from."""

    name: str
    type: ConfigType
    default: str | None
    value: Callable[[Node], object]
    no_effect: str = ""


def _setting(field: str, unit: int = 1) -> Callable[[Node], object]:
    """A setting of the log; ``unit``: how many of its milliseconds make one of Kafka's."""

    def value(node: Node) -> object:
        setting = getattr(node.broker.config, field)
        return setting // unit if unit > 1 else setting

    return value


def _server(field: str) -> Callable[[Node], object]:
    return lambda node: getattr(node.config, field)


def _security(field: str) -> Callable[[Node], object]:
    return lambda node: getattr(node.config.security, field)


def _is(value: object) -> Callable[[Node], object]:
    """What holds of every node of ours."""
    return lambda node: value


def _log(name: str, unit: int = 1) -> Callable[[Node], object]:
    """The value of a topic's config for topics that do not set it."""

    def value(node: Node) -> object:
        text = node.broker.topic_admin.defaults.get(name, CONFIG_KEYS[name].default)
        return int(text) // unit if unit > 1 and int(text) > 0 else text

    return value


def log_directory(node: Node) -> str:
    """Where the log is; its URL when it is in memory."""
    return node.engine.name.removeprefix("file://")


def _join(part: Callable[[Listener], str]) -> Callable[[Sequence[Listener]], object]:
    """Something of each listener."""
    return lambda listeners: ",".join(map(part, listeners))


def _rebalance_protocols(node: Node) -> str:
    return "classic,consumer" if _CONSUMER_GROUP_HEARTBEAT in node.apis else "classic"


def _mechanisms(node: Node) -> str:
    """Empty where no listener asks who it is."""
    asked = any(listener.has_sasl for listener in node.config.listeners)
    return ",".join(node.config.security.sasl_enabled_mechanisms) if asked else ""


def _authorizer(node: Node) -> str:
    return "org.apache.kafka.metadata.authorizer.StandardAuthorizer" if node.config.security.acls else ""


def _super_users(node: Node) -> str | None:
    return ";".join(node.config.security.super_users) or None


def _flush_messages(node: Node) -> object:
    return 1 if node.broker.config.fsync == "commit" else _NEVER


def _flush_ms(node: Node) -> object:
    return node.broker.config.fsync_interval_ms if node.broker.config.fsync == "interval" else None


_CONSUMER_GROUP_HEARTBEAT = 68
_NEVER = "9223372036854775807"
_HOUR_MS, _MINUTE_MS = 3_600_000, 60_000

_ROWS = (
    # who this is
    _Row("node.id", "int", None, _is(BROKER_ID)),
    _Row("broker.id", "int", "-1", _is(BROKER_ID)),
    _Row("broker.rack", "string", None, _is(None)),
    _Row("process.roles", "list", "", _is("broker,controller")),
    _Row("log.dir", "string", "/tmp/kafka-logs", log_directory),
    _Row("log.dirs", "list", None, log_directory),
    # topics
    _Row("auto.create.topics.enable", "boolean", "true", _setting("auto_create_topics")),
    _Row("delete.topic.enable", "boolean", "true", _is(True)),
    _Row("num.partitions", "int", "1", _setting("num_partitions")),
    _Row("default.replication.factor", "int", "1", _is(1)),
    _Row("auto.leader.rebalance.enable", "boolean", "true", _is(False)),
    _Row("remote.log.storage.system.enable", "boolean", "false", _is(False)),
    # retention and segments, where Kafka has several units for one thing
    _Row("log.retention.hours", "int", "168", _log("retention.ms", _HOUR_MS)),
    _Row("log.retention.minutes", "int", None, _is(None)),
    _Row("log.roll.hours", "int", "168", _log("segment.ms", _HOUR_MS)),
    _Row("log.retention.check.interval.ms", "long", "300000", _setting("log_retention_check_interval_ms")),
    _Row("log.cleaner.enable", "boolean", "true", _is(True)),
    _Row("log.cleaner.threads", "int", "1", _is(1)),
    _Row("log.cleaner.backoff.ms", "long", "15000", _setting("log_cleaner_backoff_ms")),
    # groups
    _Row("offsets.topic.num.partitions", "int", "50", _setting("offsets_topic_num_partitions")),
    _Row("offsets.topic.replication.factor", "int", "3", _is(1)),
    _Row("offsets.topic.segment.bytes", "int", "104857600", _setting("offsets_topic_segment_bytes")),
    _Row("offsets.topic.compression.codec", "int", "0", _is(0)),
    _Row("offsets.retention.minutes", "int", "10080", _setting("offsets_retention_ms", _MINUTE_MS)),
    _Row("offsets.retention.check.interval.ms", "long", "600000", _setting("offsets_retention_check_interval_ms")),
    _Row("offset.metadata.max.bytes", "int", "4096", _is(4096)),
    _Row("group.min.session.timeout.ms", "int", "6000", _setting("group_min_session_timeout_ms")),
    _Row("group.max.session.timeout.ms", "int", "1800000", _setting("group_max_session_timeout_ms")),
    _Row("group.max.size", "int", "2147483647", _setting("group_max_size")),
    _Row("group.initial.rebalance.delay.ms", "int", "3000", _setting("group_initial_rebalance_delay_ms")),
    _Row("group.coordinator.rebalance.protocols", "list", "classic,consumer,streams", _rebalance_protocols),
    _Row("group.consumer.session.timeout.ms", "int", "45000", _setting("group_consumer_session_timeout_ms")),
    _Row("group.consumer.heartbeat.interval.ms", "int", "5000", _setting("group_consumer_heartbeat_interval_ms")),
    _Row("group.consumer.max.size", "int", "2147483647", _setting("group_consumer_max_size")),
    _Row("group.consumer.assignors", "list", "uniform,range", _is("uniform,range")),
    # transactions
    _Row("transaction.state.log.num.partitions", "int", "50", _setting("transaction_state_log_num_partitions")),
    _Row("transaction.state.log.replication.factor", "int", "3", _is(1)),
    _Row("transaction.state.log.min.isr", "int", "2", _is(1)),
    _Row("transaction.state.log.segment.bytes", "int", "104857600", _setting("transaction_state_log_segment_bytes")),
    _Row("transaction.max.timeout.ms", "int", "900000", _setting("transaction_max_timeout_ms")),
    _Row(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        "int",
        "10000",
        _setting("transaction_abort_timed_out_transaction_cleanup_interval_ms"),
    ),
    _Row(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        "int",
        "3600000",
        _setting("transaction_remove_expired_transaction_cleanup_interval_ms"),
    ),
    _Row("transaction.partition.verification.enable", "boolean", "true", _is(True)),
    _Row("transactional.id.expiration.ms", "int", "604800000", _setting("transactional_id_expiration_ms")),
    _Row("producer.id.expiration.ms", "int", "86400000", _setting("producer_id_expiration_ms")),
    # connections
    _Row("socket.request.max.bytes", "int", "104857600", _server("socket_request_max_bytes")),
    _Row("queued.max.request.bytes", "long", "-1", _server("in_flight_max_bytes")),
    _Row("max.connections", "int", "2147483647", _server("max_connections")),
    _Row("max.connections.per.ip", "int", "2147483647", _server("max_connections_per_ip")),
    _Row("connections.max.idle.ms", "long", "600000", _server("connections_max_idle_ms")),
    _Row("connections.max.reauth.ms", "long", "0", _security("connections_max_reauth_ms")),
    _Row("max.request.partition.size.limit", "int", "2000", _is(2_000)),
    _Row("socket.listen.backlog.size", "int", "50", _is(1_024)),
    _Row("num.network.threads", "int", "3", _is(1)),
    _Row("num.io.threads", "int", "8", _is(1)),
    # who may do what
    _Row("sasl.enabled.mechanisms", "list", "GSSAPI", _mechanisms),
    _Row("authorizer.class.name", "string", "", _authorizer),
    _Row("super.users", "string", None, _super_users),
    _Row("quota.window.num", "int", "11", _security("quota_window_num")),
    _Row("quota.window.size.seconds", "int", "1", _security("quota_window_size_seconds")),
    # when records are forced to disk: as fsync= says, in Kafka's words
    _Row("log.flush.interval.messages", "long", _NEVER, _flush_messages),
    _Row("log.flush.interval.ms", "long", None, _flush_ms),
)

_LISTENER_ROWS: tuple[tuple[str, ConfigType, str | None, Callable[[Sequence[Listener]], object]], ...] = (
    ("listeners", "list", "PLAINTEXT://:9092", _join(lambda one: one.url)),
    (
        "advertised.listeners",
        "list",
        None,
        _join(lambda one: f"{one.name}://{format_address(one.advertised_host, one.advertised_port)}"),
    ),
    ("listener.security.protocol.map", "string", None, _join(lambda one: f"{one.name}:{one.security_protocol}")),
    ("inter.broker.listener.name", "string", None, lambda listeners: listeners[0].name if listeners else None),
    (
        "security.inter.broker.protocol",
        "string",
        "PLAINTEXT",
        lambda listeners: listeners[0].security_protocol if listeners else None,
    ),
)

_BY_TOPIC_KEY = tuple(
    _Row(key.server_key, key.type, key.default, _log(key.name), key.no_effect)
    for key in CONFIG_KEYS.values()
    if key.server_key and not key.server_key.startswith("log.flush.")
)
"""Kafka's broker-wide keys for what topics do not say, all of which hold here as far as the topic's key does."""


def describe_broker(node: Node, listeners: Sequence[Listener]) -> list[BrokerEntry]:
    """All configs, by name; ``listeners`` as they listen."""
    entries = [
        BrokerEntry(row.name, row.type, _text(row.value(node)), row.default, row.name in _SENSITIVE, row.no_effect)
        for row in (*_ROWS, *_BY_TOPIC_KEY)
    ]
    entries += [BrokerEntry(name, kind, _text(of(listeners)), default) for name, kind, default, of in _LISTENER_ROWS]
    return sorted(entries)


def _text(value: object) -> str | None:
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
