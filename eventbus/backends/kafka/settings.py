"""What librdkafka is told: the URL's settings, the producer's and the consumer's, and the safe values of the rest."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NoReturn
from uuid import uuid4

import msgspec
from confluent_kafka import KafkaError as ClientError
from confluent_kafka import KafkaException

from eventbus.backends.base import ConsumerConfig, ProducerConfig
from eventbus.backends.kafka.failures import client_error
from eventbus.broker import BrokerConfig
from eventbus.errors import ConfigError
from eventbus.suggest import nearest
from eventbus.types import Compression, IsolationLevel

logger = logging.getLogger("eventbus.kafka")

_PORT = 9092


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOR_ALL = _names("""
    client.id client.rack client.dns.lookup debug log.connection.close message.max.bytes receive.message.max.bytes
    max.in.flight.requests.per.connection metadata.max.age.ms topic.metadata.refresh.interval.ms
    topic.metadata.refresh.fast.interval.ms topic.metadata.refresh.sparse topic.metadata.propagation.max.ms
    topic.blacklist socket.timeout.ms socket.send.buffer.bytes socket.receive.buffer.bytes socket.keepalive.enable
    socket.nagle.disable socket.max.fails socket.connection.setup.timeout.ms broker.address.ttl broker.address.family
    connections.max.idle.ms reconnect.backoff.ms reconnect.backoff.max.ms retry.backoff.ms retry.backoff.max.ms
    statistics.interval.ms api.version.request.timeout.ms enable.metrics.push metadata.recovery.strategy
    metadata.recovery.rebootstrap.trigger.ms
    security.protocol ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.key.location ssl.key.password ssl.key.pem
    ssl.certificate.location ssl.certificate.pem ssl.ca.location ssl.ca.pem ssl.ca.certificate.stores ssl.crl.location
    ssl.keystore.location ssl.keystore.password ssl.providers ssl.engine.location ssl.engine.id https.ca.location
    https.ca.pem enable.ssl.certificate.verification ssl.endpoint.identification.algorithm
    sasl.mechanisms sasl.mechanism sasl.kerberos.service.name sasl.kerberos.principal sasl.kerberos.kinit.cmd
    sasl.kerberos.keytab sasl.kerberos.min.time.before.relogin sasl.username sasl.password
    sasl.oauthbearer.config enable.sasl.oauthbearer.unsecure.jwt sasl.oauthbearer.method sasl.oauthbearer.client.id
    sasl.oauthbearer.client.secret sasl.oauthbearer.scope sasl.oauthbearer.extensions
    sasl.oauthbearer.token.endpoint.url
""")
"""Settings of every client; those that hold a secret are never shown."""
FOR_CONSUMERS = _names("""
    group.protocol group.remote.assignor session.timeout.ms heartbeat.interval.ms max.poll.interval.ms
    coordinator.query.interval.ms queued.min.messages queued.max.messages.kbytes fetch.wait.max.ms
    fetch.queue.backoff.ms fetch.max.bytes fetch.error.backoff.ms
""")
FOR_PRODUCERS = _names("""
    queue.buffering.max.messages message.send.max.retries retries delivery.timeout.ms message.timeout.ms
    request.timeout.ms batch.num.messages enable.gapless.guarantee compression.level message.copy.max.bytes
""")
_OURS = {
    "bootstrap.servers": "the brokers stand in the URL: kafka://host:9092,host2:9092",
    "metadata.broker.list": "the brokers stand in the URL: kafka://host:9092,host2:9092",
    "group.id": "the group is each consumer's own: bus.new_consumer(group=...), @bus.consumer(group=...)",
    "group.instance.id": "it is each consumer's own: bus.new_consumer(group_instance_id=...)",
    "transactional.id": "it is each producer's own: bus.new_producer(transactional_id=...)",
    "enable.auto.commit": "commits are the bus's: see Consumer.commit, or enable_auto_commit of a consumer",
    "enable.auto.offset.store": "commits are the bus's: see Consumer.commit",
    "auto.offset.reset": "say where to start per consumer: start=...",
    "enable.partition.eof": "the bus needs it",
    "isolation.level": "it is each consumer's own: isolation=...",
    "partitioner": "partitions are chosen by the bus: partitioner=... of a producer",
    "auto.create.topics.enable": "it is the broker's; auto_create_topics=True lets a first use create a topic",
}
_SECRET = ("password", "secret", "pem", "sasl.oauthbearer.config")


class ClientSettings(msgspec.Struct, frozen=True):
    """What a URL says. Shown without its secrets."""

    bootstrap: str
    given: dict[str, str]
    """librdkafka's names, with dots."""
    auto_create_topics: bool = False

    def __repr__(self) -> str:
        shown = {name: "***" if name.endswith(_SECRET) else value for name, value in self.given.items()}
        return f"ClientSettings({self.bootstrap!r}, {shown!r})"

    def common(self, *kinds: frozenset[str]) -> dict[str, Any]:
        """Settings of one client: those for all, and those of its kind."""
        others = (FOR_CONSUMERS | FOR_PRODUCERS).difference(*kinds)
        chosen: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            # Idle connections that a broker closes are no news; and a cluster that asks for metrics is told none.
            "log.connection.close": "false",
            "enable.metrics.push": "false",
            "topic.metadata.refresh.interval.ms": "30000",
            "logger": _LIBRDKAFKA,
            "error_cb": _note,
        }
        chosen |= {name: value for name, value in self.given.items() if name not in others}
        return chosen

    def admin(self) -> dict[str, Any]:
        return self.common()

    def producer(self, config: ProducerConfig) -> dict[str, Any]:
        chosen = self.common(FOR_PRODUCERS)
        chosen |= {
            "acks": config.acks,
            "enable.idempotence": config.enable_idempotence,
            "batch.size": max(config.batch_size, 1),
            "linger.ms": config.linger_ms,
            "compression.type": Compression(config.compression).name.lower(),
            # Sizes are checked before a record gets there, to name the setting; this is for the batch it travels in.
            "message.max.bytes": max(config.max_request_size, 1_000),
            "queue.buffering.max.kbytes": max(config.buffer_memory // 1024, 1),
            "queue.buffering.max.messages": self.given.get("queue.buffering.max.messages", 10_000_000),
        }
        if not config.enable_idempotence:
            chosen["max.in.flight.requests.per.connection"] = 1  # else a retry overtakes
        if config.transactional_id is not None:
            chosen["transactional.id"] = config.transactional_id
            chosen["transaction.timeout.ms"] = config.transaction_timeout_ms
        return chosen

    def consumer(self, config: ConsumerConfig, assignors: str) -> dict[str, Any]:
        chosen = self.common(FOR_CONSUMERS)
        prefetch_kbytes = max(16 * config.max_partition_fetch_bytes // 1024, 1)
        chosen |= {
            # librdkafka wants a name even where no group is meant; nothing is asked of it and nothing committed.
            "group.id": config.group or f"eventbus-no-group-{uuid4()}",
            "client.id": config.client_id,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",  # said where to go on by us, who know `start` in all its forms
            "enable.partition.eof": True,
            "check.crcs": config.check_crcs,
            "isolation.level": IsolationLevel(config.isolation).name.lower(),
            "fetch.min.bytes": max(config.fetch_min_bytes, 1),
            "fetch.message.max.bytes": max(config.max_partition_fetch_bytes, 1),
            "queued.max.messages.kbytes": self.given.get("queued.max.messages.kbytes", min(prefetch_kbytes, 65_536)),
            "fetch.wait.max.ms": self._unless_said("fetch.wait.max.ms", config.fetch_max_wait_ms, 500),
            "allow.auto.create.topics": self.auto_create_topics,
        }
        # As librdkafka has it, a whole fetch is never smaller than what one partition of it may be.
        chosen["fetch.max.bytes"] = self.given.get("fetch.max.bytes", max(52_428_800, config.max_partition_fetch_bytes))
        if self.is_new_protocol:
            for name in ("session.timeout.ms", "heartbeat.interval.ms"):
                chosen.pop(name, None)  # with KIP-848 they are the group's, on the broker
        if config.group is None:
            return chosen
        max_poll_ms = int(self._unless_said("max.poll.interval.ms", config.max_poll_interval_ms, 300_000))
        chosen["max.poll.interval.ms"] = max_poll_ms
        if config.group_instance_id is not None:
            chosen["group.instance.id"] = config.group_instance_id
        if self.is_new_protocol:
            return chosen
        session_ms = int(self._unless_said("session.timeout.ms", config.session_timeout_ms, 45_000))
        heartbeat_ms = self._unless_said("heartbeat.interval.ms", config.heartbeat_interval_ms, 3_000)
        chosen |= {
            "session.timeout.ms": session_ms,
            "heartbeat.interval.ms": heartbeat_ms,
            "max.poll.interval.ms": max(max_poll_ms, session_ms),  # librdkafka insists
            "partition.assignment.strategy": assignors,
        }
        return chosen

    @property
    def is_new_protocol(self) -> bool:
        """Groups are of the new protocol (KIP-848)."""
        return self.given.get("group.protocol", "classic").lower() == "consumer"

    def _unless_said(self, name: str, value: int, default: int) -> int | str:
        """The URL's settings are the defaults of its consumers: one that says otherwise has its own."""
        return self.given.get(name, value) if value == default else value


def read_settings(rest: str, config: Mapping[str, Any]) -> ClientSettings:
    """Settings from a URL and keywords, whose dots may be underscores. Raises ConfigError."""
    brokers = [broker.strip() for broker in rest.strip("/").split(",") if broker.strip()]
    if not brokers:
        raise ConfigError("kafka:// needs a broker: kafka://host:9092, or several: kafka://one:9092,two:9092")
    known = {name.replace(".", "_"): name for name in FOR_ALL | FOR_CONSUMERS | FOR_PRODUCERS | frozenset(_OURS)}
    given: dict[str, str] = {}
    auto_create = False
    for key, value in config.items():
        plain = key.replace(".", "_").replace("-", "_")
        if plain == "auto_create_topics":
            auto_create = _flag(value)
            continue
        name = known.get(plain)
        if name is None:
            _refuse(plain, key, known)
        if name in _OURS:
            raise ConfigError(f"setting {key!r} of kafka://: {_OURS[name]}")
        given[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return ClientSettings(",".join(map(_with_port, brokers)), given, auto_create)


def _refuse(plain: str, key: str, known: Mapping[str, str]) -> NoReturn:
    if plain in BrokerConfig.__struct_fields__:
        raise ConfigError(
            f"setting {key!r} is one of the embedded log (memory://, file://): a Kafka broker has its own, in its "
            "server.properties or set by kafka-configs"
        )
    raise ConfigError(f"unknown setting {key!r} of kafka://{nearest(plain, known)}; known are librdkafka's")


def _with_port(broker: str) -> str:
    host, separator, port = broker.rpartition(":")
    if separator and port.isdecimal() and not host.endswith(":"):
        return broker
    return f"{broker}:{_PORT}"


def _flag(value: object) -> bool:
    text = str(value).lower()
    if text not in ("true", "false", "1", "0"):
        raise ConfigError(f"auto_create_topics={value!r}: true or false")
    return text in ("true", "1")


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """librdkafka's own lines. It calls a broker that is away an error ten times a second; whoever needs one is told."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        super().log(min(level, logging.INFO), msg, *args, **kwargs)


_LIBRDKAFKA = _Quiet(logging.getLogger("eventbus.kafka.librdkafka"))


def _note(error: ClientError) -> None:
    """What librdkafka deals with by itself, or says again where it matters."""
    logger.debug("librdkafka: %s", error.str())


def config_refused(failure: KafkaException) -> ConfigError:
    """librdkafka would not take a setting."""
    return ConfigError(f"a setting of kafka:// was refused: {client_error(failure).str()}")
