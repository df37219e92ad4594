"""``server.properties``, with Kafka's keys."""

from __future__ import annotations

import msgspec
import pytest

from eventbus.broker import BrokerConfig
from eventbus.errors import ConfigError
from eventbus.properties import parse_properties
from eventbus.server import Listener
from eventbus.server.config import Tls
from eventbus.server.properties import settings_of

# What Kafka 3.9 and 4.1 ship as config/server.properties, without its comments.
SHIPPED = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


def test_the_file_that_kafka_ships() -> None:
    settings = settings_of(parse_properties(SHIPPED))
    assert settings.directory == "/tmp/kraft-combined-logs"
    assert settings.server["listeners"] == (Listener(host="", advertised_host="localhost", advertised_port=9092),), (
        "the controller's listener is no clients' listener"
    )
    assert settings.server["socket_request_max_bytes"] == 104_857_600
    assert settings.log["num_partitions"] == 1
    assert settings.log["log_defaults"] == {"retention.ms": "604800000", "segment.bytes": "1073741824"}
    assert "node.id" in settings.ignored and "process.roles" in settings.ignored


def test_values_reach_the_log_in_its_units() -> None:
    settings = settings_of(
        {
            "offsets.retention.minutes": "2",
            "auto.create.topics.enable": "true",
            "log.retention.minutes": "3",
            "log.retention.hours": "9",
            "log.roll.hours": "1",
            "message.max.bytes": "2000000",
            "group.initial.rebalance.delay.ms": "5",
            "log.flush.interval.messages": "1",
        }
    )
    log = msgspec.convert(settings.log, BrokerConfig, strict=False)
    assert log.offsets_retention_ms == 120_000
    assert log.auto_create_topics is True
    assert log.group_initial_rebalance_delay_ms == 5
    assert log.fsync == "commit"
    assert log.log_defaults == {"retention.ms": "180000", "segment.ms": "3600000", "max.message.bytes": "2000000"}


def test_every_key_of_transactions_that_kafka_has_is_accepted() -> None:
    """Kafka 4.3's list. A file that sets one of them, even to its default, must not keep the server from starting."""
    acts = {
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
        "transaction.max.timeout.ms": "900000",
        "transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
        "transaction.state.log.num.partitions": "50",
        "transaction.state.log.segment.bytes": "104857600",
        "transactional.id.expiration.ms": "604800000",
        "producer.id.expiration.ms": "86400000",
    }
    has_no_effect = {
        "add.partitions.to.txn.retry.backoff.max.ms": "100",
        "add.partitions.to.txn.retry.backoff.ms": "20",
        "transaction.partition.verification.enable": "true",
        "transaction.state.log.load.buffer.size": "5242880",
        "transaction.state.log.min.isr": "2",
        "transaction.state.log.replication.factor": "3",
        "transaction.two.phase.commit.enable": "false",
    }
    settings = settings_of(acts | has_no_effect)
    assert settings.ignored == sorted(has_no_effect)
    assert msgspec.convert(settings.log, BrokerConfig, strict=False) == BrokerConfig(), "Kafka's defaults are ours"


def test_milliseconds_go_before_minutes_before_hours() -> None:
    keys = {"log.retention.ms": "1", "log.retention.minutes": "2", "log.retention.hours": "3"}
    assert settings_of(keys).log["log_defaults"]["retention.ms"] == "1"
    assert settings_of({"log.retention.hours": "-1"}).log["log_defaults"]["retention.ms"] == "-1"


def test_listeners() -> None:
    settings = settings_of(
        {
            "listeners": "INSIDE://127.0.0.1:1, OUTSIDE://[::]:2",
            "advertised.listeners": "OUTSIDE://bus.example.org:3",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL",
            "ssl.keystore.location": "server.pem",
            "ssl.truststore.location": "ca.pem",
            "ssl.client.auth": "requested",
        }
    )
    assert settings.server["listeners"] == (
        Listener(name="INSIDE", host="127.0.0.1", port=1),
        Listener(
            name="OUTSIDE", security_protocol="SASL_SSL", host="::", port=2,
            advertised_host="bus.example.org", advertised_port=3,
        ),
    )  # fmt: skip
    assert settings.server["tls"] == Tls(certificate_file="server.pem", ca_file="ca.pem", client_auth="requested")


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({"num.partition": "1"}, r"unknown key 'num.partition'.*num\.partitions"),
        ({"listeners": "FOO://127.0.0.1:1"}, r"'FOO' is no security protocol: PLAINTEXT, SSL"),
        ({"advertised.listeners": "SSL://h:1"}, r"names SSL, which is no listener"),
        ({"log.dirs": "a,b"}, r"one directory is all"),
        ({"socket.request.max.bytes": "many"}, r"socket\.request\.max\.bytes='many': a whole number"),
        ({"log.cleanup.policy": "shred"}, r"cleanup\.policy='shred': allowed is"),
        ({"ssl.keystore.location": "server.jks"}, r"Java's key stores cannot be read here.*PEM"),
        ({"ssl.truststore.location": "ca.pem"}, r"ssl\.keystore\.location is missing"),
        ({"ssl.keystore.location": "s.pem", "ssl.client.auth": "yes"}, r"none, requested or required"),
        ({"ssl.keystore.location": "s.pem", "ssl.client.auht": "required"}, r"did you mean 'ssl\.client\.auth'"),
        (
            {"ssl.enabled.protocols": "TLSv1.3"},
            r"unknown key 'ssl\.enabled\.protocols'",
        ),
        ({"num.partitions": "many"}, r"num\.partitions='many': a whole number from 1 to 10000"),
    ],
)
def test_what_is_wrong_is_told(properties: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings_of(properties)
