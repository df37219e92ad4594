"""``eventbus configs``: on a log in this process, and through a server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.cli.configs import parse_configs
from eventbus.cli.parser import UsageError
from eventbus.cli.user_configs import upsertion
from eventbus.coordinator.credentials import ScramMechanism, salt_password

Cli = Callable[..., Any]


def configs(cli: Cli, *args: str) -> dict[str, str]:
    [shown] = cli("configs", "describe", *args, "--json").json
    return {one["name"]: one["value"] for one in shown["configs"]}


# topics and brokers ---------------------------------------------------------------------------------------------------


def test_a_topics_configs_in_the_lines_of_kafkas_tool(orders: Cli) -> None:
    script = ("kafka-configs.sh", "--entity-type", "topics", "--entity-name", "orders")
    altered = orders(*script, "--alter", "--add-config", "retention.ms=5,cleanup.policy=[compact,delete]")
    assert altered == (0, "Completed updating config for topic orders.\n", "")
    assert orders(*script, "--describe").lines == [
        "Dynamic configs for topic orders are:",
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, "
        "DEFAULT_CONFIG:log.retention.ms=604800000}",
    ]
    assert orders(*script, "--alter", "--delete-config", "retention.ms,cleanup.policy").code == 0
    assert orders(*script, "--describe").lines == ["Dynamic configs for topic orders are:"]
    every = orders(*script, "--describe", "--all").lines
    assert every[0] == "All configs for topic orders are:" and len(every) > 30


def test_configs_from_a_file_and_of_every_topic(orders: Cli, tmp_path: Path) -> None:
    orders("topics", "create", "other")
    file = tmp_path / "topic.properties"
    file.write_text("segment.ms=7\nretention.ms=1\n")
    alter = ("configs", "--alter", "--topic", "other", "--add-config-file", str(file))
    assert orders(*alter, "--add-config", "retention.ms=2").code == 0
    assert configs(orders, "--topic", "other") == {"retention.ms": "2", "segment.ms": "7"}
    shown = orders("configs", "describe", "--entity-type", "topics", "--json").json
    assert {one["entity_name"]: len(one["configs"]) for one in shown} == {"orders": 0, "other": 2}


def test_the_broker_and_its_loggers(orders: Cli) -> None:
    broker = configs(orders, "--broker", "1", "--all")
    assert broker["num.partitions"] == "1" and broker["log.dirs"].endswith("/data")
    assert configs(orders, "--broker", "1") == {}
    assert orders("configs", "describe", "--broker-defaults").code == 0
    refused = orders("kafka-configs.sh", "--alter", "--broker", "1", "--add-config", "log.retention.ms=1")
    assert refused.code == 1 and "set at its start" in refused.err
    loggers = orders("configs", "describe", "--entity-type", "broker-loggers", "--entity-name", "1").out
    assert "  root=" in loggers


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("describe",), 2, "whose? As in"),
        (("describe", "--topic", "ordres"), 1, "there is no topic 'ordres'"),
        (("describe", "--entity-type", "shops"), 2, "invalid choice: 'shops'"),
        (("describe", "--topic", "orders", "--broker", "1"), 2, "and no two others"),
        (("describe", "--entity-name", "orders"), 2, "a type for each name"),
        (("alter", "--topic", "orders"), 2, "nothing to change"),
        (("alter", "--entity-type", "topics", "--add-config", "a=b"), 2, "which of the topics?"),
        (("alter", "--topic", "orders", "--add-config", "retention.ms"), 2, "not of the form key=value"),
        (("alter", "--topic", "orders", "--add-config", "retention.msec=1"), 1, "did you mean 'retention.ms'"),
        (("alter", "--topic", "orders", "--add-config-file", "nowhere"), 2, "No such file"),
        (("alter", "--client", "c", "--add-config", "speed=1"), 1, "Invalid configuration key speed"),
        (("alter", "--client", "c", "--add-config", "producer_byte_rate=fast"), 1, "is no number"),
        (("alter", "--client", "c", "--add-config", "SCRAM-SHA-256=[password=x]"), 2, "a credential of one user"),
        (("alter", "--user", "u", "--add-config", "SCRAM-SHA-256=[iterations=4096]"), 2, "password=SECRET"),
        (("alter", "--user", "u", "--add-config", "SCRAM-SHA-256=[password=x,iterations=9]"), 1, "iterations"),
        (("alter", "--user", "nobody", "--delete-config", "SCRAM-SHA-256"), 1, "does not exist"),
    ],
)
def test_what_is_wrong_is_told_and_changes_nothing(orders: Cli, args: tuple[str, ...], code: int, told: str) -> None:
    result = orders("configs", *args)
    assert (result.code, result.out) == (code, "")
    assert told in result.err
    assert configs(orders, "--topic", "orders") == {}


def test_values_with_commas_stand_in_brackets() -> None:
    assert parse_configs("a=1, b=[x,y=[z,w]] ,c=,d=[]") == {"a": "1", "b": "x,y=[z,w]", "c": "", "d": ""}
    with pytest.raises(UsageError):
        parse_configs("a=1,=2")


# users and clients ----------------------------------------------------------------------------------------------------


def test_quotas_and_passwords_of_users(orders: Cli) -> None:
    script = ("kafka-configs.sh", "--entity-type", "users", "--entity-name", "alice")
    secret = "SCRAM-SHA-256=[iterations=8192,password=se=cret],SCRAM-SHA-512=[password=x]"
    altered = orders(*script, "--alter", "--add-config", f"{secret},producer_byte_rate=1000")
    assert altered == (0, "Completed updating config for user alice.\n", "")
    assert orders(*script, "--describe").lines == [
        "Quota configs for user-principal 'alice' are producer_byte_rate=1000.0",
        "SCRAM credential configs for user-principal 'alice' are "
        "SCRAM-SHA-256=iterations=8192, SCRAM-SHA-512=iterations=4096",
    ]
    assert "cret" not in orders("configs", "alter", "--user", "bob", "--add-config", secret, "--json").out
    everybody = orders("configs", "describe", "--entity-type", "users", "--json").json
    assert everybody["scram"].keys() == {"alice", "bob"}
    assert orders(*script, "--alter", "--delete-config", "SCRAM-SHA-256,SCRAM-SHA-512,producer_byte_rate").code == 0
    assert orders(*script, "--describe").lines == []


@pytest.mark.system
def test_quotas_of_clients_of_users_of_addresses_and_of_all_others(orders: Cli) -> None:
    pair = ("--entity-type", "users", "--entity-name", "alice", "--entity-type", "clients", "--entity-default")
    for entity, key in (
        (pair, "consumer_byte_rate"),
        (("--client", "shop"), "producer_byte_rate"),
        (("--client-defaults",), "request_percentage"),
        (("--ip", "10.0.0.1"), "connection_creation_rate"),
    ):
        assert orders("configs", "alter", *entity, "--add-config", f"{key}=5").code == 0
        [found] = orders("configs", "describe", *entity, "--json").json["quotas"]
        assert found["quotas"] == {key: 5.0}
    assert orders("configs", "describe", *pair).lines == [
        "Quota configs for the default client-id, user-principal 'alice' are consumer_byte_rate=5.0"
    ]
    clients = orders("configs", "describe", "--entity-type", "clients", "--json").json["quotas"]
    assert [one["entity"] for one in clients] == [{"client-id": None}, {"client-id": "shop"}]


@pytest.mark.parametrize(
    ("text", "password", "iterations"),
    [
        ("iterations=8192,password=a,b=c", "a,b=c", 8_192),
        ("password=a,iterations=5000", "a", 5_000),
        ("password=[x]", "[x]", 4_096),
    ],
)
def test_a_password_is_salted_before_it_leaves(text: str, password: str, iterations: int) -> None:
    change = upsertion("alice", ScramMechanism.SCRAM_SHA_256, text)
    assert change.iterations == iterations
    assert change.salted_password == salt_password(ScramMechanism.SCRAM_SHA_256, password, change.salt, iterations)
    again = upsertion("alice", ScramMechanism.SCRAM_SHA_256, text)
    assert len(change.salt) >= 16 and again.salt != change.salt


@pytest.mark.parametrize("text", ["", "password=", "secret", "iterations=x,password=secret", "iterations=1;secret"])
def test_a_password_that_cannot_be_read_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as refused:
        upsertion("alice", ScramMechanism.SCRAM_SHA_256, text)
    assert "secret" not in str(refused.value)
