"""Kafka's own tools for users, permissions and quotas, against a server that has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.clients.tools import Done, KafkaTools
from tests.server.again import Again

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("clients")]

SECURITY = SecurityConfig(
    users={"admin": "admin-secret", "alice": "alice-secret"}, acls=True, super_users=("User:admin",)
)
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaServer]:
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    with KafkaServer(config=ServerConfig(listeners=(listener,), security=SECURITY)) as server:
        yield server


def login(folder: Path, user: str, mechanism: str = "PLAIN", password: str = "") -> str:
    """A ``client.properties`` for the tools."""
    module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    file = folder / f"{user}-{mechanism}.properties"
    file.write_text(
        "security.protocol=SASL_PLAINTEXT\n"
        f"sasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module} required "
        f'username="{user}" password="{password or user + "-secret"}";\n'
    )
    return str(file)


@pytest.fixture
def run(secured: KafkaServer, tools: KafkaTools, tmp_path: Path) -> Run:
    def run(tool: str, *arguments: str, user: str = "admin") -> Done:
        options = ["--bootstrap-server", secured.bootstrap, "--command-config", login(tmp_path, user)]
        return tools.run(tool, *options, *arguments)

    return run


def test_kafka_acls(run: Run, name: str) -> None:
    added = run("kafka-acls", "--add", "--allow-principal", "User:alice", "--producer", "--topic", name)
    assert added.code == 0, added.text
    added = run(
        "kafka-acls", "--add", "--deny-principal", "User:bob", "--deny-host", "10.0.0.1", "--operation", "All",
        "--topic", f"{name}-", "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert added.code == 0, added.text
    listed = run("kafka-acls", "--list", "--topic", name)
    operations = set(re.findall(r"operation=(\w+), permissionType=ALLOW", listed.out))
    assert operations == {"WRITE", "CREATE", "DESCRIBE"}, listed.text
    listed = run("kafka-acls", "--list", "--topic", f"{name}-x", "--resource-pattern-type", "match")
    assert re.findall(r"principal=(\S+), host=(\S+), operation=(\w+), permissionType=(\w+)", listed.out) == [
        ("User:bob", "10.0.0.1", "ALL", "DENY")
    ], listed.text
    removed = run("kafka-acls", "--remove", "--force", "--topic", name, "--resource-pattern-type", "any")
    assert removed.code == 0, removed.text
    assert "operation=" not in run("kafka-acls", "--list", "--topic", name).out


def test_kafka_acls_of_somebody_who_may_not(run: Run, name: str) -> None:
    refused = run("kafka-acls", "--list", "--topic", name, user="alice")
    assert "ClusterAuthorizationException" in refused.text, refused.text


def test_kafka_configs_adds_a_user_who_can_log_in(
    run: Run, secured: KafkaServer, tools: KafkaTools, tmp_path: Path, name: str
) -> None:
    user = re.sub(r"\W", "", name)
    whom = ("--entity-type", "users", "--entity-name", user)
    altered = run("kafka-configs", "--alter", *whom, "--add-config", "SCRAM-SHA-256=[iterations=8192,password=pw]")
    assert "Completed updating config" in altered.text, altered.text
    described = run("kafka-configs", "--describe", *whom)
    assert "SCRAM-SHA-256=iterations=8192" in described.text, described.text
    added = run("kafka-acls", "--add", "--allow-principal", f"User:{user}", "--operation", "Describe", "--cluster")
    assert added.code == 0, added.text
    config = login(tmp_path, user, "SCRAM-SHA-256", "pw")
    listed = tools.run(
        "kafka-acls", "--bootstrap-server", secured.bootstrap, "--command-config", config, "--list", "--cluster"
    )
    assert f"User:{user}" in listed.out, listed.text
    deleted = run("kafka-configs", "--alter", *whom, "--delete-config", "SCRAM-SHA-256")
    assert "Completed updating config" in deleted.text, deleted.text
    assert "SCRAM-SHA-256" not in run("kafka-configs", "--describe", *whom).text


def test_kafka_configs_sets_quotas(run: Run, name: str) -> None:
    whom = ("--entity-type", "users", "--entity-name", name, "--entity-type", "clients", "--entity-name", "c")
    altered = run("kafka-configs", "--alter", *whom, "--add-config", "producer_byte_rate=1000,consumer_byte_rate=2000")
    assert "Completed updating config" in altered.text, altered.text
    described = run("kafka-configs", "--describe", *whom)
    assert "producer_byte_rate=1000.0" in described.text, described.text
    assert "consumer_byte_rate=2000.0" in described.text, described.text
    deleted = run("kafka-configs", "--alter", *whom, "--delete-config", "producer_byte_rate")
    assert "Completed updating config" in deleted.text, deleted.text
    assert "producer_byte_rate" not in run("kafka-configs", "--describe", *whom).text
    defaults = ("--entity-type", "users", "--entity-default")
    altered = run("kafka-configs", "--alter", *defaults, "--add-config", "producer_byte_rate=5e9")
    assert "Completed updating default config" in altered.text, altered.text
    assert "default user-principal" in run("kafka-configs", "--describe", *defaults).text


def test_the_java_client_authenticates_again_on_its_connections(tools: KafkaTools, tmp_path: Path) -> None:
    """Sessions last half a second, and the producer sends for 1.5 seconds (KIP-368)."""
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"alice": "alice-secret"}, connections_max_reauth_ms=500)
    with KafkaServer(config=ServerConfig(listeners=(listener,), security=security)) as server:
        again = Again(server, 1)
        sent = tools.run(
            "kafka-producer-perf-test",
            "--topic", "t", "--num-records", "30", "--throughput", "20", "--record-size", "10",
            "--producer.config", login(tmp_path, "alice", "SCRAM-SHA-256"),
            "--producer-props", f"bootstrap.servers={server.bootstrap}",
        )  # fmt: skip
    assert "30 records sent" in sent.text, sent.text
    assert again.enough.is_set()
