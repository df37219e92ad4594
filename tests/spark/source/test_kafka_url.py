"""The URL of a cluster, in the words of Spark's Java client."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eventbus.errors import ConfigError, CoordinatorNotAvailable
from spark_sinks.source.kafka import Cluster
from spark_sinks.source.kafka_url import parse_cluster_url


def java(url: str, **options: str) -> dict[str, str]:
    given = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    return {name.removeprefix("kafka."): value for name, value in parse_cluster_url(url).for_spark(given).items()}


def test_brokers_have_a_port() -> None:
    assert java("kafka://one,two:9093")["bootstrap.servers"] == "one:9092,two:9093"
    assert parse_cluster_url("kafka://one?sasl_password=secret").shown() == "kafka://one:9092"
    for none in ("kafka://", "kafka:// , ", "kafka://?client.id=x"):
        with pytest.raises(ConfigError, match="kafka:// needs a broker"):
            parse_cluster_url(none)


def test_settings_of_the_bus_are_passed_over() -> None:
    url = "kafka://one?linger.ms=5&auto_create_topics=true&queued.min.messages=9&client_id=me&debug=all"
    assert java(url) == {"bootstrap.servers": "one:9092", "client.id": "me"}
    assert parse_cluster_url(url).settings == {"client.id": "me"}


@pytest.mark.parametrize(
    ("mechanism", "module"),
    [
        ("PLAIN", "plain.PlainLoginModule"),
        ("SCRAM-SHA-256", "scram.ScramLoginModule"),
        ("scram-sha-512", "scram.ScramLoginModule"),
    ],
)
def test_a_password_becomes_javas_login(mechanism: str, module: str) -> None:
    url = (
        f"kafka://one?security.protocol=SASL_SSL&sasl.mechanisms={mechanism}&sasl.username=ada&sasl.password=a%22b%5Cc"
    )
    assert java(url)["sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{module} required username="ada" password="a\\"b\\\\c";'
    )
    assert java(url)["sasl.mechanism"] == mechanism


def test_certificates_travel_as_text(tmp_path: Path) -> None:
    for name in ("ca", "chain", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----")
    url = (
        f"kafka://one?security.protocol=SSL&ssl.ca.location={tmp_path}/ca&ssl.certificate.location={tmp_path}/chain"
        f"&ssl.key.location={tmp_path}/key&ssl.key.password=pw"
    )
    found = java(url)
    assert found["ssl.truststore.type"] == found["ssl.keystore.type"] == "PEM"
    assert found["ssl.truststore.certificates"] == "-----BEGIN ca-----"
    assert found["ssl.keystore.certificate.chain"] == "-----BEGIN chain-----"
    assert (found["ssl.keystore.key"], found["ssl.key.password"]) == ("-----BEGIN key-----", "pw")
    with pytest.raises(ConfigError, match=r"ssl\.ca\.location='/nowhere/ca' of kafka://one:9092 is no PEM file"):
        java("kafka://one?ssl.ca.location=/nowhere/ca")


def test_a_keystore_is_named(tmp_path: Path) -> None:
    found = java("kafka://one?ssl.keystore.location=/k.p12&ssl.keystore.password=pw")
    assert (found["ssl.keystore.type"], found["ssl.keystore.location"]) == ("PKCS12", "/k.p12")


def test_javas_own_words_win() -> None:
    url = "kafka://one?security.protocol=SASL_SSL&sasl.mechanism=OAUTHBEARER&sasl.oauthbearer.method=oidc"
    with pytest.raises(ConfigError, match=r"sasl\.mechanism=OAUTHBEARER .*kafka\.sasl\.jaas\.config"):
        java(url)
    assert java(url, sasl_jaas_config="mine")["sasl.jaas.config"] == "mine"
    assert java("kafka://one?client.id=a", client_id="b")["client.id"] == "b"


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("securty.protocol=SSL", "unknown setting 'securty.protocol' of kafka://; did you mean 'security.protocol'"),
        ("ssl.engine.id=x", "'ssl.engine.id' of kafka:// is not known to Spark sinks"),
        ("enable.ssl.certificate.verification=false", "Java's client always verifies"),
    ],
)
def test_settings_that_would_be_lost_are_refused(query: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_cluster_url(f"kafka://one?{query}")


@pytest.mark.system  # needs confluent_kafka
@pytest.mark.parametrize("leader", [-1, 3])
def test_librdkafka_is_not_asked_for_the_offsets_of_a_partition_without_a_leader(leader: int) -> None:
    """It may crash the process while it waits for one."""
    topic = SimpleNamespace(partitions={0: SimpleNamespace(leader=2), 1: SimpleNamespace(leader=leader)})
    cluster: Any = Cluster("kafka://one")
    cluster._opened = SimpleNamespace(
        list_topics=lambda timeout: SimpleNamespace(brokers={2: None}, topics={"orders": topic})
    )
    with pytest.raises(CoordinatorNotAvailable, match=r"orders-1 of kafka://one.* no leader"):
        cluster.bounds("orders")
