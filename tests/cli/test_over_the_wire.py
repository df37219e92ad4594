"""The same command lines against a server: what they do to a log in this process, they do over the wire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing.server import KafkaServer
from tests.cli.test_serve import serving

pytestmark = pytest.mark.system

Cli = Callable[..., Any]


@pytest.fixture
def server() -> Iterator[KafkaServer]:
    with KafkaServer(auto_create_topics=False) as server:
        yield server


@pytest.fixture
def kafka(cli: Cli, server: KafkaServer) -> Cli:
    """Kafka's scripts, against a server: ``kafka("kafka-topics.sh", "--list")``."""

    def run(*args: str, stdin: bytes = b"") -> Any:
        return cli(*args, "--bootstrap-server", server.bootstrap, stdin=stdin)

    return run


@pytest.fixture
def orders(kafka: Cli) -> Cli:
    assert kafka("kafka-topics.sh", "--create", "--topic", "orders", "--partitions", "3").code == 0
    properties = ("--property", "parse.key=true", "--property", "key.separator=:")
    lines = b"".join(b"key-%d:value %d\n" % (number % 3, number) for number in range(6))
    assert kafka("kafka-console-producer.sh", "--topic", "orders", *properties, stdin=lines).code == 0
    return kafka


def test_topics(kafka: Cli) -> None:
    create = ("kafka-topics.sh", "--create", "--topic", "a")
    assert kafka(*create, "--replica-assignment", "1,1", "--config", "retention.ms=5").out == "Created topic a.\n"
    again = kafka(*create)
    assert again.code == 1 and "already exists" in again.err
    assert kafka(*create, "--if-not-exists").code == 0
    assert kafka("kafka-topics.sh", "--alter", "--topic", "a", "--partitions", "3").code == 0
    [first, *lines] = kafka("kafka-topics.sh", "--describe", "--topic", "a").lines
    assert "PartitionCount: 3" in first and first.endswith("Configs: retention.ms=5") and len(lines) == 3
    assert kafka("kafka-topics.sh", "--list").lines == ["a"]
    assert kafka("kafka-topics.sh", "--delete", "--topic", "a").code == 0
    assert kafka("kafka-topics.sh", "--list").lines == []


def test_records_offsets_and_groups(orders: Cli) -> None:
    script = ("kafka-console-consumer.sh", "--topic", "orders", "--from-beginning", "--max-messages", "6")
    read = orders(*script, "--group", "g", "--property", "print.key=true")
    assert sorted(read.lines) == sorted(f"key-{number % 3}\tvalue {number}" for number in range(6))
    rows = [line.split(":") for line in orders("kafka-get-offsets.sh", "--topic", "orders").lines]
    assert sum(int(offset) for _, _, offset in rows) == 6
    groups = ("kafka-consumer-groups.sh", "--group", "g")
    [described] = orders(*groups, "--describe", "--json").json
    assert (described["state"], sum(one["lag"] for one in described["offsets"])) == ("Empty", 0)
    reset = orders(*groups, "--reset-offsets", "--to-earliest", "--all-topics", "--execute", "--json").json
    assert {row["new_offset"] for row in reset} == {0}
    assert orders("kafka-consumer-groups.sh", "--list").lines == ["g"]
    assert orders(*groups, "--delete-offsets", "--topic", "orders").code == 0
    assert orders(*groups, "--delete").code == 0


def test_configs_of_topics_brokers_and_users(orders: Cli) -> None:
    script = ("kafka-configs.sh", "--entity-type", "topics", "--entity-name", "orders")
    assert orders(*script, "--alter", "--add-config", "retention.ms=5").code == 0
    assert orders(*script, "--describe").lines[1].startswith("  retention.ms=5 sensitive=false")
    broker = orders("kafka-configs.sh", "--describe", "--entity-type", "brokers", "--entity-name", "1", "--all")
    assert any(line.startswith("  advertised.listeners=PLAINTEXT://127.0.0.1:") for line in broker.lines)
    user = ("kafka-configs.sh", "--entity-type", "users", "--entity-name", "alice")
    assert orders(*user, "--alter", "--add-config", "SCRAM-SHA-256=[password=x],producer_byte_rate=9").code == 0
    assert [line.rpartition(" are ")[2] for line in orders(*user, "--describe").lines] == [
        "producer_byte_rate=9.0",
        "SCRAM-SHA-256=iterations=4096",
    ]
    wrong = orders(*script, "--alter", "--add-config", "retention.msec=5")
    assert wrong.code == 1 and "retention.ms" in wrong.err


def test_records_deleted(orders: Cli, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "orders", "partition": 0, "offset": -1}], "version": 1}')
    assert orders("kafka-delete-records.sh", "--offset-json-file", str(file)).code == 0


def test_perf_and_transactions(orders: Cli) -> None:
    produced = orders(
        "kafka-producer-perf-test.sh", "--topic", "orders", "--num-records", "100", "--record-size", "10",
        "--throughput", "-1", "--producer-props", "acks=1",
    )  # fmt: skip
    assert produced.code == 0 and produced.out.startswith("100 records sent, ")
    consumed = orders("kafka-consumer-perf-test.sh", "--topic", "orders", "--messages", "106", "--hide-header")
    assert consumed.lines[0].split(", ")[4] == "106"
    assert orders("kafka-transactions.sh", "list").lines == ["TRANSACTIONAL-ID  PRODUCER-ID  STATE"]


def test_transactions_that_are_open(orders: Cli, server: KafkaServer) -> None:
    """Listed, described, aborted in their partition; one that its coordinator knows of does not hang."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": server.bootstrap, "transactional.id": "shop", "log_level": 0}
    )
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce("orders", b"x", partition=1)
    assert producer.flush(20) == 0
    script = ("kafka-transactions.sh",)
    assert [one["state"] for one in orders(*script, "list", "--json").json] == ["Ongoing"]
    assert orders(*script, "list", "--duration-filter", "3600000", "--json").json == []
    assert orders(*script, "list", "--transactional-id-pattern", "sh.*", "--json").json != []
    assert orders(*script, "list", "--transactional-id-pattern", "ho", "--json").json == []
    assert orders(*script, "list", "--transactional-id-pattern", "(").code == 2

    where = ("--topic", "orders", "--partition", "1")
    open_ones = [one for one in orders(*script, "describe-producers", *where, "--json").json if one["start_offset"]]
    [one] = [one for one in open_ones if one["start_offset"] is not None]
    assert orders(*script, "find-hanging", *where, "--max-transaction-timeout", "0", "--json").json == []

    assert orders(*script, "abort", *where).code == 2
    assert orders(*script, "abort", *where, "--start-offset", "9999").code == 1
    aborted = orders(*script, "abort", *where, "--start-offset", str(one["start_offset"]))
    assert aborted.code == 0 and f"producer {one['producer_id']}" in aborted.out
    left = orders(*script, "describe-producers", *where, "--json").json
    assert [each["start_offset"] for each in left if each["producer_id"] == one["producer_id"]] == [None]
    assert orders(*script, "forceTerminateTransaction", "--transactionalId", "shop").code == 0
    assert [one["state"] for one in orders(*script, "list", "--json").json] == ["Empty"]
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(20)


def test_a_connection_that_says_who_it_is(cli: Cli, tmp_path: Path) -> None:
    """User and password from the properties file of Kafka's Java clients."""
    listener = Listener(name="SASL", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"admin": "se;cret", "guest": "word"}, acls=True, super_users=("User:admin",))
    files: dict[str, str] = {}
    for user, password in (("admin", "se;cret"), ("guest", "word")):
        file = tmp_path / f"{user}.properties"
        module = "org.apache.kafka.common.security.scram.ScramLoginModule"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            f'sasl.jaas.config={module} required \\\n  username="{user}" password="{password}";\n'
        )
        files[user] = str(file)
    with KafkaServer(config=ServerConfig(listeners=(listener,), security=security)) as server:
        where = ("--bootstrap-server", server.bootstrap, "--command-config")
        created = cli("kafka-topics.sh", "--create", "--topic", "orders", *where, files["admin"])
        assert created == (0, "Created topic orders.\n", "")
        acl = ("--add", "--allow-principal", "User:guest", "--operation", "Describe", "--topic", "orders")
        assert cli("kafka-acls.sh", *acl, *where, files["admin"]).code == 0
        assert cli("kafka-topics.sh", "--list", *where, files["guest"]).lines == ["orders"]
        refused = cli("kafka-topics.sh", "--delete", "--topic", "orders", *where, files["guest"])
        assert refused.code == 1 and "orders" in refused.err
        described = cli("kafka-configs.sh", "--describe", "--topic", "orders", *where, files["guest"])
        assert described.code == 1 and "DESCRIBE_CONFIGS" in described.err


@pytest.mark.parametrize(("flags", "code"), [((), 1), (("--accept-replication-factor",), 0)])
def test_a_replication_factor_above_one(tmp_path: Path, cli: Cli, flags: tuple[str, ...], code: int) -> None:
    with serving("--ephemeral", *flags, cwd=tmp_path) as (_, told):
        create = ("topics", "create", "orders", "--replication-factor", "3", "--bootstrap-server", told["bootstrap"])
        result = cli(*create)
    assert result.code == code, result.err
    assert ("replication factor" in result.err) == bool(code)
