"""The broker's configs under Kafka's names, with this node's values (read-only: set at its start)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from eventbus.broker.configs import CONFIG_KEYS
from eventbus.broker.descriptions import BROKER_ID
from eventbus.server.config import Listener, format_address
from eventbus.server.node import Node
from eventbus.settings import log, server, topics
from eventbus.settings.setting import Kind, Setting, as_text

_SENSITIVE = frozenset(
    {"sasl.jaas.config", "ssl.key.password", "ssl.keystore.key", "ssl.keystore.password", "ssl.truststore.password"}
)


class BrokerEntry(NamedTuple):
    """One config of the broker."""

    name: str
    type: Kind
    value: str | None
    default: str | None
    """None for keys without a default, such as an address."""
    is_sensitive: bool = False
    """If true, the value is never shown."""
    no_effect: str = ""
    """The reason why the log ignores it; empty if it does not."""

    @property
    def is_default(self) -> bool:
        return self.value == self.default


class _Row(NamedTuple):
    """A Kafka key, its type and default there, and the source of its value here."""

    name: str
    type: Kind
    default: str | None
    value: Callable[[Node], object]
    no_effect: str = ""


def _is(value: object) -> Callable[[Node], object]:
    """Return a source for a value that is the same on every node."""
    return lambda node: value


def _log(name: str, unit: int = 1) -> Callable[[Node], object]:
    """Return a source for a topic config's default."""

    def value(node: Node) -> object:
        text = node.broker.topic_admin.defaults.get(name, CONFIG_KEYS[name].default)
        return int(text) // unit if unit > 1 and int(text) > 0 else text

    return value


def log_directory(node: Node) -> str:
    """Return the log's directory; its URL if it is in memory."""
    return node.engine.name.removeprefix("file://")


def _join(part: Callable[[Listener], str]) -> Callable[[Sequence[Listener]], object]:
    """Return a source that joins a property of all listeners."""
    return lambda listeners: ",".join(map(part, listeners))


def _rebalance_protocols(node: Node) -> str:
    return "classic,consumer" if _CONSUMER_GROUP_HEARTBEAT in node.apis else "classic"


def _mechanisms(node: Node) -> str:
    """Return the SASL mechanisms; empty if no listener authenticates."""
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
_HOUR_MS = 3_600_000

_ROWS = (
    # identity of this node
    _Row("node.id", "int", None, _is(BROKER_ID)),
    _Row("broker.id", "int", "-1", _is(BROKER_ID)),
    _Row("broker.rack", "string", None, _is(None)),
    _Row("process.roles", "list", "", _is("broker,controller")),
    _Row("log.dir", "string", "/tmp/kafka-logs", log_directory),
    _Row("log.dirs", "list", None, log_directory),
    # topics
    _Row("delete.topic.enable", "boolean", "true", _is(True)),
    _Row("default.replication.factor", "int", "1", _is(1)),
    _Row("auto.leader.rebalance.enable", "boolean", "true", _is(False)),
    _Row("remote.log.storage.system.enable", "boolean", "false", _is(False)),
    # retention and segments, for which Kafka has several units
    _Row("log.retention.hours", "int", "168", _log("retention.ms", _HOUR_MS)),
    _Row("log.retention.minutes", "int", None, _is(None)),
    _Row("log.roll.hours", "int", "168", _log("segment.ms", _HOUR_MS)),
    _Row("log.cleaner.enable", "boolean", "true", _is(True)),
    _Row("log.cleaner.threads", "int", "1", _is(1)),
    # groups
    _Row("offsets.topic.replication.factor", "int", "3", _is(1)),
    _Row("offsets.topic.compression.codec", "int", "0", _is(0)),
    _Row("offset.metadata.max.bytes", "int", "4096", _is(4096)),
    _Row("group.coordinator.rebalance.protocols", "list", "classic,consumer,streams", _rebalance_protocols),
    _Row("group.consumer.assignors", "list", "uniform,range", _is("uniform,range")),
    # transactions
    _Row("transaction.state.log.replication.factor", "int", "3", _is(1)),
    _Row("transaction.state.log.min.isr", "int", "2", _is(1)),
    _Row("transaction.partition.verification.enable", "boolean", "true", _is(True)),
    # connections
    _Row("max.request.partition.size.limit", "int", "2000", _is(2_000)),
    _Row("socket.listen.backlog.size", "int", "50", _is(1_024)),
    _Row("num.network.threads", "int", "3", _is(1)),
    _Row("num.io.threads", "int", "8", _is(1)),
    # authentication and authorization
    _Row("sasl.enabled.mechanisms", "list", "GSSAPI", _mechanisms),
    _Row("authorizer.class.name", "string", "", _authorizer),
    _Row("super.users", "string", None, _super_users),
    # when records are flushed to disk: fsync= in Kafka's terms
    _Row("log.flush.interval.messages", "long", _NEVER, _flush_messages),
    _Row("log.flush.interval.ms", "long", None, _flush_ms),
)

_LISTENER_ROWS: tuple[tuple[str, Kind, str | None, Callable[[Sequence[Listener]], object]], ...] = (
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
    _Row(row.kafka, row.kind, row.default, _log(row.name), row.no_effect)
    for row in topics.ROWS
    if row.kafka and not row.kafka.startswith("log.flush.")
)
"""Kafka's broker-wide defaults of topic configs, all of which are used here as far as the topic config is."""


def _configured(row: Setting) -> _Row:
    """Return a row for a setting of the log or the server, in Kafka's unit."""

    def value(node: Node) -> object:
        of = node.broker.config if row.scope == "log" else node.config
        found = getattr(of if hasattr(of, row.name) else node.config.security, row.name)
        return found // row.unit_ms if row.unit_ms > 1 else found

    default = as_text(row.default // row.unit_ms if row.unit_ms > 1 else row.default)
    return _Row(row.dotted, row.kind, default if row.kafka_default is None else row.kafka_default, value)


_SETTINGS = tuple(_configured(row) for row in (*log.ROWS, *server.ROWS) if row.kafka != "")


def describe_broker(node: Node, listeners: Sequence[Listener]) -> list[BrokerEntry]:
    """Return all configs by name. ``listeners`` are the bound listeners."""
    entries = [
        BrokerEntry(row.name, row.type, _text(row.value(node)), row.default, row.name in _SENSITIVE, row.no_effect)
        for row in (*_ROWS, *_SETTINGS, *_BY_TOPIC_KEY)
    ]
    entries += [BrokerEntry(name, kind, _text(of(listeners)), default) for name, kind, default, of in _LISTENER_ROWS]
    return sorted(entries)


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)
