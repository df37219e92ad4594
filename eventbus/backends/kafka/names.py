"""Names of settings on ``kafka://``: which are librdkafka's, which are the bus's, and which belong elsewhere.

Pure tables, so that a bus on another log knows them without librdkafka being there.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from eventbus.backends.kafka.keywords import ClientOptions, ConsumerClientOptions, ProducerClientOptions


def _names(options: type) -> frozenset[str]:
    return frozenset(keyword.replace("_", ".") for keyword in options.__annotations__)


FOR_ALL = _names(ClientOptions) | {"client.id"}
"""librdkafka's settings of every client."""
FOR_CONSUMERS = _names(ConsumerClientOptions)
FOR_PRODUCERS = _names(ProducerClientOptions)
JAVA_NAMES = MappingProxyType(
    {
        "send.buffer.bytes": "socket.send.buffer.bytes",
        "receive.buffer.bytes": "socket.receive.buffer.bytes",
        "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
        "ssl.truststore.location": "ssl.ca.location",
        "ssl.truststore.certificates": "ssl.ca.pem",
        "ssl.keystore.certificate.chain": "ssl.certificate.pem",
        "ssl.keystore.key": "ssl.key.pem",
        "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    }
)
"""What Kafka's Java client calls settings that librdkafka has under another name."""

PRODUCER_FIELDS = MappingProxyType(
    {
        "linger.ms": "linger_ms",
        "queue.buffering.max.ms": "linger_ms",
        "batch.size": "batch_size",
        "buffer.memory": "buffer_memory",
        "max.block.ms": "max_block_ms",
        "max.request.size": "max_request_size",
        "compression.type": "compression",
        "compression.codec": "compression",
        "transaction.timeout.ms": "transaction_timeout_ms",
    }
)
"""Settings of the bus's own producers (`ProducerConfig`) that a URL may give defaults for."""
CONSUMER_FIELDS = MappingProxyType(
    {
        "session.timeout.ms": "session_timeout_ms",
        "heartbeat.interval.ms": "heartbeat_interval_ms",
        "max.poll.interval.ms": "max_poll_interval_ms",
        "fetch.min.bytes": "fetch_min_bytes",
        "fetch.max.wait.ms": "fetch_max_wait_ms",
        "fetch.wait.max.ms": "fetch_max_wait_ms",
        "max.partition.fetch.bytes": "max_partition_fetch_bytes",
        "fetch.message.max.bytes": "max_partition_fetch_bytes",
        "check.crcs": "check_crcs",
        "partition.assignment.strategy": "assignors",
    }
)
"""The same of consumers (`ConsumerConfig`)."""

ELSEWHERE = MappingProxyType(
    {
        "bootstrap.servers": "the brokers stand in the URL: kafka://host:9092,host2:9092",
        "metadata.broker.list": "the brokers stand in the URL: kafka://host:9092,host2:9092",
        "group.id": "the group is each consumer's own: bus.new_consumer(group=...), @bus.consumer(group=...)",
        "group.instance.id": "it is each consumer's own: bus.new_consumer(group_instance_id=...)",
        "transactional.id": "it is each producer's own: bus.new_producer(transactional_id=...)",
        "acks": "say it in the program, where it is seen: EventBus(url, acks=...), bus.new_producer(acks=...)",
        "enable.idempotence": "say it in the program: EventBus(url, enable_idempotence=...)",
        "enable.auto.commit": "commits are the bus's: see Consumer.commit, or enable_auto_commit of a consumer",
        "enable.auto.offset.store": "commits are the bus's: see Consumer.commit",
        "auto.offset.reset": "say where to start per consumer: start=...",
        "enable.partition.eof": "the bus needs it",
        "isolation.level": "it is each consumer's own: isolation_level=...",
        "partitioner": "partitions are chosen by the bus: partitioner=... of a producer",
        "auto.create.topics.enable": "it is the broker's; auto_create_topics=True lets a first use create a topic",
        "allow.auto.create.topics": "the setting is auto_create_topics",
        "queue.buffering.max.kbytes": "the setting is buffer.memory, in bytes",
        "max.poll.records": "say it per call: poll(max_records=...)",
        "sasl.jaas.config": "librdkafka knows no JAAS: sasl.username and sasl.password",
        "sasl.login.callback.handler.class": "librdkafka knows no Java: oauth_cb=, or sasl.oauthbearer.method=oidc",
        "ssl.keystore.type": "certificates are PEM (ssl.certificate.location, ssl.key.location) or a PKCS#12 keystore",
        "ssl.truststore.type": "certificates are PEM: ssl.ca.location",
        "ssl.truststore.password": "certificates are PEM, and public: ssl.ca.location",
        "plugin.library.paths": "the bus loads no foreign libraries; interceptors=[...] see what it sends and reads",
    }
)
"""What is no setting of ``kafka://``, and where its meaning is found."""

CALLBACK = "oauth_cb"
"""A function: ``(sasl.oauthbearer.config) -> (token, its end in seconds since the epoch)``, as in confluent-kafka."""
_SECRET = ("password", "passphrase", "secret", "pem", ".key", "sasl.oauthbearer.config")


def is_secret(name: str) -> bool:
    """Its value is never shown."""
    return name.endswith(_SECRET)


def as_keyword(name: str) -> str:
    """``linger.ms`` as Python's keyword arguments have it."""
    return name.replace(".", "_").replace("-", "_")


def _by_keyword(*groups: Iterable[str]) -> MappingProxyType[str, str]:
    return MappingProxyType({as_keyword(name): name for group in groups for name in group})


OF_ALL = _by_keyword(FOR_ALL, FOR_CONSUMERS, FOR_PRODUCERS, JAVA_NAMES)
"""What librdkafka is told of a whole bus: keywords, and the names with dots."""
OF_A_PRODUCER = _by_keyword(FOR_ALL, FOR_PRODUCERS, JAVA_NAMES)
OF_A_CONSUMER = MappingProxyType(
    {**_by_keyword(FOR_ALL, FOR_CONSUMERS, JAVA_NAMES), "request_timeout_ms": "socket.timeout.ms"}
)


def as_text(value: object) -> str:
    """A value as librdkafka takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
