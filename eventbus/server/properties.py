"""``server.properties``: Kafka's keys for a broker, parsed to settings of the server and of its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from eventbus.broker import configs
from eventbus.errors import ConfigError, InvalidConfig
from eventbus.server.config import (
    SECURITY_PROTOCOLS,
    Listener,
    SecurityProtocol,
    Tls,
    split_address,
)
from eventbus.server.security.config import SecurityConfig, is_security_key
from eventbus.settings import log as log_rows
from eventbus.settings import server as server_rows
from eventbus.settings import topics
from eventbus.settings.table import read_value
from eventbus.suggest import nearest

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000

KEYS = {row.dotted: row for row in (*log_rows.ROWS, *server_rows.ROWS) if row.kind != "table"}
"""The keys of logs and servers: Kafka's, or ours with dots."""
_TOPIC_DEFAULTS = {row.kafka: row.name for row in topics.ROWS if row.kafka}
_IN_OTHER_UNITS = {
    "log.retention.hours": ("retention.ms", _HOUR_MS),
    "log.retention.minutes": ("retention.ms", _MINUTE_MS),
    "log.roll.hours": ("segment.ms", _HOUR_MS),
    "log.roll.jitter.hours": ("segment.jitter.ms", _HOUR_MS),
}
"""Used if the key in milliseconds is missing; minutes take precedence over hours."""
_LISTENER_KEYS = ("listeners", "advertised.listeners", "listener.security.protocol.map")
_TLS_PREFIX = "ssl."
_TLS_KEYS = ("ssl.keystore.location", "ssl.keystore.type", "ssl.key.password", "ssl.truststore.location",
             "ssl.truststore.type", "ssl.client.auth")  # fmt: skip
_OF_A_CLUSTER = (
    "broker.", "node.id", "process.roles", "controller", "zookeeper.", "inter.broker.", "replica.", "num.replica.",
    "default.replication.factor", "offsets.topic.replication.factor", "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr", "num.network.threads", "num.io.threads", "num.recovery.threads", "socket.send.",
    "socket.receive.", "metadata.log.", "metadata.", "log.cleaner.threads", "background.threads", "queued.max.requests",
    "delete.topic.enable", "group.coordinator.", "share.", "remote.log.", "log.message.format", "leader.", "reserved.",
    "auto.leader.rebalance", "num.network", "unstable.", "confluent.", "early.start.listeners", "initial.broker",
    "log.dir.failure", "log.cleaner.", "log.flush.", "metric", "kafka.metrics", "auto.include.jmx",
    "security.inter.broker.", "sasl.mechanism.inter.broker.", "sasl.mechanism.controller.", "password.encoder.",
    "replication.quota.", "alter.log.dirs.replication.quota.", "delegation.token.", "ssl.keymanager.",
    "ssl.trustmanager.", "ssl.secure.random.", "ssl.provider", "ssl.protocol", "ssl.endpoint.identification.",
    "ssl.keystore.password", "ssl.truststore.password", "ssl.allow.dn.changes", "ssl.allow.san.changes",
    "add.partitions.to.txn.retry.backoff.", "transaction.state.log.load.buffer.size",
    "transaction.partition.verification.enable", "transaction.two.phase.commit.enable",
)  # fmt: skip
"""Keys for clusters, thread pools and replicas, none of which exist here, and for things that cannot be changed."""


class Settings(NamedTuple):
    """The settings of a properties file."""

    directory: str | None
    server: dict[str, Any]
    """Keyword arguments for `ServerConfig`."""
    log: dict[str, Any]
    """Keyword arguments for `BrokerConfig`."""
    ignored: list[str]
    """Keys that have no meaning on a single node."""


def settings_of(properties: Mapping[str, str]) -> Settings:
    """Return the settings. Raises ConfigError for invalid values, and for an unknown key, with the nearest key."""
    rest = dict(properties)
    server: dict[str, Any] = {}
    log: dict[str, Any] = {}
    directory = rest.pop("log.dirs", None) or rest.pop("log.dir", None)
    rest.pop("log.dir", None)
    if directory is not None and "," in directory:
        raise ConfigError(f"log.dirs={directory}: one directory is all this log has: name one")
    if rest.keys() & {*_LISTENER_KEYS} or any(key.startswith(_TLS_PREFIX) for key in rest):
        server["listeners"] = listeners_of(
            rest.pop("listeners", "PLAINTEXT://127.0.0.1:9092"),
            rest.pop("advertised.listeners", ""),
            rest.pop("listener.security.protocol.map", ""),
            but=_items(rest.get("controller.listener.names", "")),
        )
        server["tls"] = _tls(rest)
    for key in [key for key in rest if is_security_key(key)]:
        server.setdefault("security", {})[key] = rest.pop(key)
    if "security" in server:
        server["security"] = SecurityConfig.from_properties(server["security"])
    if rest.pop("log.flush.interval.messages", "") == "1":
        log["fsync"] = "commit"
    for key in [key for key in rest if key in KEYS]:
        row = KEYS[key]
        value = read_value(row, key, rest.pop(key), f"{row.scope} setting")
        (log if row.scope == "log" else server)[row.name] = value * row.unit_ms if row.unit_ms > 1 else value
    log_defaults = _topic_defaults(rest)
    if log_defaults:
        log["log_defaults"] = log_defaults
    ignored = sorted(key for key in rest if key.startswith(_OF_A_CLUSTER))
    for key in rest.keys() - set(ignored):
        known = [*KEYS, *_TOPIC_DEFAULTS, *_IN_OTHER_UNITS, *_LISTENER_KEYS, *_TLS_KEYS, "log.dirs"]
        raise ConfigError(f"unknown key {key!r} of a server{nearest(key, known)}")
    return Settings(directory, server, log, ignored)


def _topic_defaults(rest: dict[str, str]) -> dict[str, str]:
    """Move the broker-wide keys of topic configs out of ``rest``."""
    defaults: dict[str, str] = {}
    for key, (name, scale) in _IN_OTHER_UNITS.items():
        if key in rest:
            value = _number(key, rest.pop(key))
            defaults[name] = str(value * scale if value >= 0 else value)
    for key, name in _TOPIC_DEFAULTS.items():
        if key in rest and not key.startswith("log.flush."):
            defaults[name] = rest.pop(key)
    try:
        return configs.normalise(defaults)
    except InvalidConfig as error:
        raise ConfigError(str(error)) from None


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{key}={text}: a whole number is needed") from None


def listeners_of(
    listeners: str, advertised: str = "", protocol_map: str = "", but: Sequence[str] = ()
) -> tuple[Listener, ...]:
    """Return Kafka's ``listeners``, ``advertised.listeners`` and ``listener.security.protocol.map``, except those in
    ``but``.

    Raises ConfigError.
    """
    protocols = _pairs(protocol_map)
    advertised_addresses: dict[str, tuple[str, int]] = {}
    for text in _items(advertised):
        name, host, port = split_address(text, default_port=0)  # without a port, the listener's is used
        if name not in but:
            advertised_addresses[name or "PLAINTEXT"] = host, port
    found: list[Listener] = []
    for text in _items(listeners):
        name, host, port = split_address(text)
        name = name or "PLAINTEXT"
        if name in but:  # a controller's, for other brokers
            continue
        advertised_host, advertised_port = advertised_addresses.pop(name, ("", 0))
        found.append(
            Listener(
                name=name,
                security_protocol=_protocol(name, protocols.get(name, name)),
                host=host,
                port=port,
                advertised_host=advertised_host,
                advertised_port=advertised_port,
            )
        )
    for name in advertised_addresses:
        names = [listener.name for listener in found]
        raise ConfigError(f"advertised.listeners names {name}, which is no listener{nearest(name, names)}")
    return tuple(found)


def _protocol(name: str, text: str) -> SecurityProtocol:
    for protocol in SECURITY_PROTOCOLS:
        if protocol == text.upper():
            return protocol
    raise ConfigError(
        f"listener {name}: {text!r} is no security protocol: {', '.join(SECURITY_PROTOCOLS)} are; say which one it has "
        f"by listener.security.protocol.map={name}:PLAINTEXT"
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _pairs(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in _items(text):
        name, colon, value = item.partition(":")
        if not colon:
            raise ConfigError(f"listener.security.protocol.map: {item!r} is not of the form NAME:PROTOCOL")
        pairs[name] = value
    return pairs


def _tls(rest: dict[str, str]) -> Tls | None:
    """Return Kafka's ``ssl.*`` keys; only PEM files are supported."""
    given = {key: rest.pop(key) for key in _TLS_KEYS if key in rest}
    if not given:
        return None

    def take(key: str) -> str:
        return given.pop(_TLS_PREFIX + key, "")

    for store in ("keystore", "truststore"):
        kind = take(f"{store}.type").upper()
        location = given.get(f"ssl.{store}.location", "")
        if (kind and kind != "PEM") or (not kind and location.endswith((".jks", ".p12", ".pfx"))):
            raise ConfigError(
                f"ssl.{store}.location={location}: Java's key stores cannot be read here. Convert it once: openssl "
                f"pkcs12 -in {store}.p12 -nodes -out {store}.pem, and set ssl.{store}.type=PEM"
            )
    client_auth = take("client.auth").lower() or "none"
    if client_auth not in ("none", "requested", "required"):
        raise ConfigError(f"ssl.client.auth={client_auth}: none, requested or required")
    tls = Tls(
        certificate_file=take("keystore.location"),
        key_password=take("key.password"),
        ca_file=take("truststore.location"),
        client_auth=client_auth,
    )
    if not tls.certificate_file:
        raise ConfigError("ssl.keystore.location is missing: the PEM file with the server's certificate and key")
    return tls
