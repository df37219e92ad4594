"""``eventbus acls`` and Kafka's own kafka-acls command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.coordinator.acls import Operation
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.cli.conftest import Cli, Result

LOG = ("--url", "file://./data")


@pytest.fixture(autouse=True)
def log(cli: Cli) -> None:
    assert cli("topics", "create", "orders", *LOG).code == 0


def rules(cli: Cli, *options: str) -> set[tuple[str, ...]]:
    listed = cli("acls", "list", "--json", *options, *LOG)
    assert listed.code == 0, listed.err
    return {tuple(rule.values()) for rule in listed.json}


def of_alice(kind: str, name: str, *operations: str, pattern: str = "LITERAL") -> set[tuple[str, ...]]:
    return {(kind, name, pattern, "User:alice", "*", operation, "ALLOW") for operation in operations}


def test_what_a_producer_needs(cli: Cli) -> None:
    added = cli(
        "kafka-acls.sh", "--add", "--allow-principal", "User:alice", "--producer", "--idempotent", "--topic", "orders",
        "--transactional-id", "t", *LOG,
    )  # fmt: skip
    assert added.code == 0, added.err
    assert rules(cli) == (
        of_alice("TOPIC", "orders", "WRITE", "DESCRIBE", "CREATE")
        | of_alice("TRANSACTIONAL_ID", "t", "WRITE", "DESCRIBE")
        | of_alice("CLUSTER", "kafka-cluster", "IDEMPOTENT_WRITE")
    )


def test_what_a_consumer_needs(cli: Cli) -> None:
    options = ("--allow-principal", "User:alice", "--consumer", "--topic", "o", "--group", "g")
    assert cli("acls", "add", *options, "--resource-pattern-type", "prefixed", *LOG).code == 0
    assert rules(cli) == (
        of_alice("TOPIC", "o", "READ", "DESCRIBE", pattern="PREFIXED")
        | of_alice("GROUP", "g", "READ", pattern="PREFIXED")
    )


def test_both_roles_at_once(cli: Cli) -> None:
    options = ("--allow-principal", "User:alice", "--producer", "--consumer", "--topic", "o", "--group", "g")
    assert cli("acls", "add", *options, *LOG).code == 0
    assert rules(cli) == (
        of_alice("TOPIC", "o", "WRITE", "DESCRIBE", "CREATE", "READ") | of_alice("GROUP", "g", "READ")
    )


def test_principals_hosts_and_operations_are_multiplied(cli: Cli) -> None:
    added = cli(
        "acls", "add", "--topic", "a", "--topic", "b", "--allow-principal", "User:alice", "--allow-principal",
        "User:bob", "--deny-principal", "User:eve", "--deny-host", "10.0.0.1", "--operation", "Read", "--operation",
        "DescribeConfigs", *LOG,
    )  # fmt: skip
    assert added.code == 0, added.err
    assert len(rules(cli)) == 2 * 3 * 2
    assert ("TOPIC", "a", "LITERAL", "User:eve", "10.0.0.1", "DESCRIBE_CONFIGS", "DENY") in rules(cli)


def test_listing_by_resource_pattern_and_principal(cli: Cli) -> None:
    prefixed = ("--resource-pattern-type", "prefixed")
    for options in (
        ("--topic", "orders"),
        ("--topic", "ord", *prefixed),
        ("--topic", "*"),
        ("--group", "orders"),
        ("--cluster",),
    ):
        assert (
            cli("acls", "add", "--allow-principal", "User:alice", "--operation", "Describe", *options, *LOG).code == 0
        )
    assert len(rules(cli)) == 5
    assert rules(cli, "--topic", "orders") == of_alice("TOPIC", "orders", "DESCRIBE")
    assert len(rules(cli, "--topic", "orders", "--resource-pattern-type", "match")) == 3
    assert rules(cli, "--topic", "ord", *prefixed) == of_alice("TOPIC", "ord", "DESCRIBE", pattern="PREFIXED")
    assert rules(cli, "--cluster") == of_alice("CLUSTER", "kafka-cluster", "DESCRIBE")
    assert rules(cli, "--principal", "User:bob") == set()
    assert len(rules(cli, "--principal", "User:alice", "--principal", "User:bob")) == 5


def test_removing_asks_unless_forced(cli: Cli) -> None:
    def add() -> None:
        options = ("--allow-principal", "User:alice", "--operation", "Read", "--operation", "Write", "--topic", "o")
        assert cli("acls", "add", *options, *LOG).code == 0

    add()
    kept = cli("acls", "remove", "--topic", "o", *LOG)
    assert kept.code == 1
    assert "--force" in kept.err
    assert cli("acls", "remove", "--topic", "o", *LOG, stdin=b"n\n").code == 1
    assert len(rules(cli)) == 2
    assert cli("acls", "remove", "--topic", "o", *LOG, stdin=b"y\n").code == 0
    assert rules(cli) == set()
    add()
    one = ("--allow-principal", "User:alice", "--operation", "Read")
    assert cli("kafka-acls", "--remove", "--force", "--topic", "o", *one, *LOG).code == 0
    assert rules(cli) == of_alice("TOPIC", "o", "WRITE")
    nothing = cli("acls", "remove", "--force", "--topic", "other", *LOG)
    assert (nothing.code, "nothing is removed" in nothing.err) == (0, True)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("add", "--topic", "o"), "whom?"),
        (("add", "--allow-principal", "User:a"), "of what?"),
        (("add", "--allow-principal", "User:a", "--producer"), "--topic"),
        (("add", "--allow-principal", "User:a", "--consumer", "--topic", "o"), "--group"),
        (("add", "--allow-principal", "User:a", "--idempotent", "--topic", "o"), "--producer"),
        (("add", "--allow-principal", "User:a", "--producer", "--topic", "o", "--operation", "Read"), "--operation"),
        (("add", "--allow-host", "10.0.0.1", "--topic", "o"), "--allow-principal"),
        (("add", "--allow-principal", "User:a", "--operation", "Reed", "--topic", "o"), "did you mean"),
        (("add", "--allow-principal", "User:a", "--operation", "IdempotentWrite", "--topic", "o"), "knows no"),
        (("add", "--allow-principal", "User:a", "--topic", "o", "--resource-pattern-type", "match"), "prefixed"),
        (("add", "--allow-principal", "alice", "--topic", "o"), "User:alice"),
        (("remove", "--force"), "of what?"),
    ],
)
def test_flags_that_do_not_go_together(cli: Cli, options: tuple[str, ...], why: str) -> None:
    refused = cli("acls", *options, *LOG)
    assert refused.code != 0
    assert why in refused.err, refused.err
    assert rules(cli) == set()


def test_every_operation_has_its_kafka_name(cli: Cli) -> None:
    told = cli("acls", "add", "--operation", "nothing", "--topic", "o", *LOG).err
    for name in ("Create", "IdempotentWrite", "Write", "Read", "All", "Alter", "Describe", "ClusterAction", "Delete"):
        assert name in told
    assert len([operation for operation in Operation if operation >= 2]) == 14


@pytest.mark.system
def test_a_server_that_asks_who_you_are(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("confluent_kafka", reason="needs confluent_kafka, which is no base dependency")
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"admin": "pw", "alice": "pw"}, acls=True, super_users=("User:admin",))

    def login(user: str) -> str:
        file = tmp_path / f"{user}.properties"
        file.write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="pw";\n'
        )
        return str(file)

    with KafkaServer(config=ServerConfig(listeners=(listener,), security=security)) as server:

        def acls(*options: str, user: str = "admin") -> Result:
            connection = ("--bootstrap-server", server.bootstrap, "--command-config", login(user))
            return cli("kafka-acls", *connection, *options)

        added = acls("--add", "--allow-principal", "User:alice", "--operation", "Read", "--topic", "o")
        assert added.code == 0, added.err
        listed = acls("--list", "--json")
        assert {tuple(rule.values()) for rule in listed.json} == of_alice("TOPIC", "o", "READ")
        refused = acls("--list", user="alice")
        assert refused.code != 0
        assert "DESCRIBE" in refused.err
        assert acls("--remove", "--force", "--topic", "o").code == 0
        assert acls("--list", "--json").json == []
