"""Kafka's own command lines, as they stand in its manual, behind ``eventbus``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.cli import app
from eventbus.cli.kafka_scripts import SCRIPTS, translate
from eventbus.cli.parser import UsageError
from eventbus.cli.properties import java_settings, properties_of
from eventbus.cli.shell import connection_settings, own_settings, url_of
from tests.named import find_page

Cli = Callable[..., Any]


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ("kafka-topics.sh --create --topic t", "topics create --topic t"),
        ("kafka-topics --topic t --create", "topics create --topic t"),
        ("topics --topic t --describe", "topics describe --topic t"),
        ("topics describe t", "topics describe t"),
        ("kafka-topics.bat --list", "topics list"),
        ("--bootstrap-server h:1 kafka-topics.sh --list", "--bootstrap-server h:1 topics list"),
        ("--command-config f kafka-topics.sh --list", "--command-config f topics list"),
        ("kafka-topics.sh --bootstrap-server h:1 --list", "topics list --bootstrap-server h:1"),
        ("kafka-console-producer.sh --topic t", "produce --topic t"),
        ("kafka-console-consumer.sh --topic t", "consume --topic t"),
        ("kafka-consumer-groups.sh --all-groups --describe --offsets", "groups describe --all-groups --offsets"),
        ("kafka-consumer-groups.sh --delete-offsets --group g", "groups delete-offsets --group g"),
        ("groups --reset-offsets --group g", "groups reset-offsets --group g"),
        ("kafka-get-offsets.sh --topic t --time -2", "offsets --time latest --topic t --time -2"),
        ("kafka-producer-perf-test.sh --topic t", "perf produce --topic t"),
        ("kafka-consumer-perf-test.sh --topic t", "perf consume --topic t"),
        ("kafka-dump-log.sh --files f", "log dump --files f"),
        ("kafka-delete-records.sh --offset-json-file f", "topics delete-records --offset-json-file f"),
        ("kafka-transactions.sh --bootstrap-server h:1 list", "transactions --bootstrap-server h:1 list"),
        (
            "perf produce --command-property a=1 b=2 --topic t",
            "perf produce --command-property a=1 --command-property b=2 --topic t",
        ),
        ("produce --command-property a=1 orders", "produce --command-property a=1 orders"),
        ("", ""),
    ],
)
def test_scripts_and_actions_as_flags(given: str, ours: str) -> None:
    argv = given.split()
    assert translate(argv, app.place_of_command(argv)) == ours.split()


def test_two_actions_are_refused() -> None:
    with pytest.raises(UsageError, match="--create and --delete are two actions"):
        translate(["topics", "--create", "--delete", "t"], 0)


def test_every_script_is_a_command_with_help(cli: Cli) -> None:
    for script, words in SCRIPTS.items():
        if words[0] in app.COMMANDS:
            result = cli(f"{script}.sh", "--help")
            assert result.code == 0 and result.out.startswith(f"usage: eventbus {words[0]}")


def test_a_script_does_what_it_does(cli: Cli) -> None:
    assert cli("kafka-topics.sh", "--create", "--topic", "orders", "--partitions", "2").code == 0
    assert cli("kafka-topics.sh", "--list").lines == ["orders"]
    assert cli("kafka-console-producer.sh", "--topic", "orders", stdin=b"a\nb\n").code == 0
    assert sorted(cli("kafka-get-offsets.sh", "--topic", "orders", "--time", "-2").lines) == [
        "orders:0:0",
        "orders:1:0",
    ]
    total = sum(int(line.rpartition(":")[2]) for line in cli("kafka-get-offsets.sh", "--topic", "orders").lines)
    assert total == 2


def test_a_mistyped_script_is_told(cli: Cli) -> None:
    assert "did you mean 'kafka-topics'" in cli("kafka-topic", "--list").err


# properties -----------------------------------------------------------------------------------------------------------


def test_a_flag_wins_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=file\nlinger.ms=1\nsecurity.protocol=SSL\n")
    args = argparse.Namespace(command_config=str(file), command_property=["client.id=flag"], own=["linger.ms=2"])
    given = properties_of(args, flags=["own"])
    assert given == {"client.id": "flag", "linger.ms": "2", "security.protocol": "SSL"}
    assert connection_settings(given) == {"client.id": "flag", "security.protocol": "SSL"}
    assert own_settings(given) == {"linger.ms": "2"}


def test_a_properties_file_that_is_not_there_is_told(cli: Cli) -> None:
    result = cli("topics", "list", "--command-config", "nowhere.properties")
    assert result.code == 2 and "nowhere.properties: No such file" in result.err


def test_java_settings_become_librdkafkas() -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    assert java_settings(
        {
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{module} required username="alice" password="say \\"hi\\"";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "ca.pem",
        }
    ) == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": 'say "hi"',
        "ssl.ca.location": "ca.pem",
    }
    with pytest.raises(UsageError, match="a JKS store is Java's own format"):
        java_settings({"ssl.truststore.location": "trust.jks"})
    with pytest.raises(UsageError, match=r"no username"):
        java_settings({"sasl.jaas.config": "x required;"})


def test_bootstrap_servers_of_the_properties_name_the_log_unless_an_option_does() -> None:
    args = argparse.Namespace(url="file://./data", url_is_default=True)
    assert url_of(args, {"bootstrap.servers": "h:9092"}) == "kafka://h:9092"
    assert url_of(args, {}) == "file://./data"
    args.url_is_default = False
    assert url_of(args, {"bootstrap.servers": "h:9092"}) == "file://./data"


def test_the_page_names_every_script_and_no_other() -> None:
    page = find_page("commands.md").read_text()
    rows = re.findall(r"^\| `(kafka-[a-z-]+)` \| `eventbus ([a-z -]+)`", page, re.MULTILINE)
    own = {
        script: " ".join(word for word in words if word not in ("--time", "latest"))
        for script, words in SCRIPTS.items()
    }
    assert dict(rows) == own
