"""``eventbus topics``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_create_list_describe_alter_delete(cli: Cli) -> None:
    created = cli("topics", "create", "orders", "--partitions", "2", "--config", "retention.ms=60000")
    assert created == (0, "Created topic orders.\n", "")
    assert cli("topics", "list").lines == ["orders"]

    described = cli("topics", "describe", "orders").lines
    assert re.fullmatch(
        r"Topic: orders\tTopicId: [\w-]{22}\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention\.ms=60000",
        described[0],
    )
    assert described[1:] == [
        f"\tTopic: orders\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1" for number in range(2)
    ]

    altered = cli("topics", "alter", "orders", "--partitions", "4", "--delete-config", "retention.ms")
    assert altered == (0, "Altered topic orders.\n", "")
    described = cli("topics", "describe", "orders").lines
    assert "PartitionCount: 4" in described[0] and described[0].endswith("Configs: ")
    assert len(described) == 5

    assert cli("topics", "delete", "orders") == (0, "Deleted topic orders.\n", "")
    assert cli("topics", "list").lines == []


def test_topic_may_be_given_as_kafkas_tools_want_it(cli: Cli) -> None:
    assert cli("topics", "create", "--topic", "orders").code == 0
    assert cli("topics", "create", "orders", "--topic", "orders", "--if-not-exists").code == 0
    assert cli("topics", "describe", "--topic", "orders").code == 0


def test_json(cli: Cli) -> None:
    assert cli("topics", "create", "orders", "--json").json == {"topic": "orders", "created": True}
    again = cli("topics", "create", "orders", "--if-not-exists", "--json")
    assert again.json == {"topic": "orders", "created": False}
    assert cli("topics", "list", "--json").json == [{"topic": "orders", "partitions": 1, "records": 0, "bytes": 0}]
    [topic] = cli("topics", "describe", "orders", "--json").json
    assert topic["topic"] == "orders"
    assert topic["partition_count"] == topic["replication_factor"] == 1
    [partition] = topic["partitions"]
    assert partition["leader"] == 1
    assert partition["replicas"] == partition["isr"] == [1]
    assert partition["log_end_offset"] == 0
    altered = cli("topics", "alter", "orders", "--config", "retention.ms=5", "--json").json
    assert altered == {"topic": "orders", "partitions": None, "set": {"retention.ms": "5"}, "deleted": []}
    assert cli("topics", "delete", "orders", "--json").json == {"topic": "orders", "deleted": True}
    assert cli("topics", "delete", "orders", "--if-exists", "--json").json == {"topic": "orders", "deleted": False}


def test_internal_topics_are_listed_as_kafka_does_and_can_be_left_out(orders: Cli) -> None:
    orders("consume", "orders", "--from-beginning", "--group", "audit", "--max-messages", "1")
    assert orders("topics", "list").lines == ["__consumer_offsets", "orders"]
    assert orders("topics", "list", "--exclude-internal").lines == ["orders"]
    assert not any("__" in line for line in orders("topics", "describe", "--exclude-internal").lines)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["create", "orders"], "orders"),
        (["create", "no/slash"], "no/slash"),
        (["create", "wide", "--replication-factor", "3"], "replication factor"),
        (["create", "odd", "--config", "retention.msec=1"], "did you mean 'retention.ms'"),
        (["create", "odd", "--config", "retention.ms=soon"], "soon"),
        (["describe", "ordres"], "did you mean 'orders'"),
        (["delete", "ordres"], "did you mean 'orders'"),
        (["alter", "ordres", "--partitions", "9"], "did you mean 'orders'"),
        (["alter", "orders", "--partitions", "2"], "3"),
        (["alter", "orders", "--config", "cleanup.policy=shred"], "shred"),
    ],
)
def test_what_the_log_refuses_is_exit_code_1_with_the_reason(orders: Cli, args: list[str], told: str) -> None:
    result = orders("topics", *args)
    assert result.code == 1
    assert result.out == ""
    assert result.err.startswith("error: ") and told in result.err
    assert len(result.err.splitlines()) == 1


def test_a_directory_without_a_log_is_told_and_not_made(cli: Cli) -> None:
    for args in (["topics", "list"], ["topics", "describe"], ["offsets", "orders"], ["consume", "orders"]):
        result = cli(*args)
        assert result.code == 1
        assert "there is no log at file://./data (no such directory)" in result.err
        assert not Path("data").exists()


def test_more_partitions_for_keyed_records_warns(orders: Cli) -> None:
    result = orders("topics", "alter", "orders", "--partitions", "5")
    assert result.code == 0
    assert "holds keyed records" in result.err
    orders("topics", "create", "plain")
    orders("produce", "plain", stdin=b"no key\n")
    assert orders("topics", "alter", "plain", "--partitions", "2").err == ""


@pytest.mark.parametrize(("name", "warned"), [("a.b", True), ("a_b", True), ("a-b", False)])
def test_periods_and_underscores_are_warned_of_as_kafka_does(cli: Cli, name: str, warned: bool) -> None:
    result = cli("topics", "create", name)
    assert result.code == 0
    assert ("collide" in result.err) == warned


def test_memory_is_forgotten_and_that_is_said(cli: Cli) -> None:
    assert "forgotten when this command ends" in cli("topics", "create", "orders", "--url", "memory://").err


@pytest.mark.system
def test_a_locked_directory_names_its_holder(orders: Cli, spawn: Callable[..., Any]) -> None:
    holder = spawn("consume", "orders", "--from-beginning", own_interpreter=True)
    assert holder.stdout.readline()  # it has the lock
    result = orders("topics", "list")
    assert result.code == 1
    assert str(holder.pid) in result.err
    assert len(result.err.splitlines()) <= 2
    holder.kill()
    holder.communicate(timeout=20)
    assert orders("topics", "list").code == 0


def test_delete_records(cli: Cli) -> None:
    cli("topics", "create", "orders")
    cli("produce", "orders", stdin=b"a\nb\nc\n")
    assert cli("topics", "delete-records", "orders", "--before", "2", "--json").json == [
        {"partition": 0, "begins_at": 2}
    ]
    assert cli("consume", "orders", "--from-beginning", "--max-messages", "1").lines == ["c"]
    refused = cli("topics", "delete-records", "orders", "--before", "4", "--partition", "0")
    assert refused.code == 1
    assert "the high watermark is 3" in refused.err
    assert cli("topics", "delete-records", "orders", "--before", "-1").code == 0
    [topic] = cli("topics", "describe", "orders", "--json").json
    assert topic["partitions"][0]["log_start_offset"] == 3
    assert cli("topics", "delete-records", "orders").code == 2


def test_patterns_of_names_as_in_kafkas_tool(cli: Cli) -> None:
    for name in ("orders", "orders-old", "clicks"):
        cli("topics", "create", name)
    script = "kafka-topics.sh"
    assert cli(script, "--list", "--topic", "orders.*").lines == ["orders", "orders-old"]
    assert cli(script, "--list", "--topic", "nothing.*").lines == []
    described = cli(script, "--describe", "--topic", "orders,clicks", "--json").json
    assert [topic["topic"] for topic in described] == ["clicks", "orders"]
    [only] = cli(script, "--describe", "--topic-id", described[1]["topic_id"], "--json").json
    assert only["topic"] == "orders"
    assert cli(script, "--describe", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAQ").code == 1
    assert cli(script, "--alter", "--topic", "orders.*", "--partitions", "3").code == 0
    assert cli(script, "--alter", "--topic", "nowhere", "--partitions", "3", "--if-exists").code == 0
    assert cli(script, "--describe", "--topic", "nowhere", "--if-exists").lines == []
    assert cli(script, "--delete", "--topic", "orders.*").lines == [
        "Deleted topic orders.",
        "Deleted topic orders-old.",
    ]
    assert cli(script, "--list").lines == ["clicks"]
    assert cli(script, "--list", "--topic", "(").code == 2


def test_a_name_that_is_there_is_no_pattern(cli: Cli) -> None:
    cli("topics", "create", "a.b")
    cli("topics", "create", "axb")
    assert cli("topics", "delete", "a.b").lines == ["Deleted topic a.b."]
    assert cli("topics", "list").lines == ["axb"]


def test_filters_of_describe(cli: Cli) -> None:
    cli("topics", "create", "plain")
    cli("topics", "create", "own", "--config", "retention.ms=1", "--partitions", "2")
    cli("topics", "create", "strict", "--config", "min.insync.replicas=2")
    script = ("kafka-topics.sh", "--describe")
    [line] = [line for line in cli(*script, "--topics-with-overrides").lines if "own" in line]
    assert line.startswith("Topic: own\t")
    assert cli(*script, "--under-replicated-partitions").lines == []
    assert cli(*script, "--unavailable-partitions").lines == []
    assert [line.split("\t")[1] for line in cli(*script, "--under-min-isr-partitions").lines] == ["Topic: strict"]
    at = [line.split("\t")[1] for line in cli(*script, "--at-min-isr-partitions").lines]
    assert at == ["Topic: own", "Topic: own", "Topic: plain"]
    assert cli(*script, "--at-min-isr-partitions", "--unavailable-partitions").code == 2


def test_replicas_are_assigned_to_the_one_broker(cli: Cli) -> None:
    create = ("kafka-topics.sh", "--create", "--topic", "t", "--replica-assignment")
    assert "broker(s) [2]" in cli(*create, "1,2").err
    assert cli(*create, "1,x").code == 2
    assert cli(*create, "1", "--partitions", "1").code == 2
    assert cli(*create, "1,1,1").code == 0
    assert "PartitionCount: 3" in cli("topics", "describe", "t").lines[0]


def test_records_are_deleted_as_a_file_says(orders: Cli, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    file.write_text('{"partitions": [{"topic": "orders", "partition": 1, "offset": -1}], "version": 1}')
    [row] = [row for row in orders("offsets", "orders", "--json").json if row["partition"] == 1]
    result = orders("kafka-delete-records.sh", "--offset-json-file", str(file))
    assert result.lines[1:] == [
        "Records delete operation completed:",
        f"partition: orders-1\tlow_watermark: {row['latest']}",
    ]
    assert orders("offsets", "orders", "--json").json[1]["count"] == 0
    for text in ("{", '{"partitions": [{"topic": "orders"}]}', '{"partitions": [], "version": 2}'):
        file.write_text(text)
        assert orders("kafka-delete-records.sh", "--offset-json-file", str(file)).code == 2
    assert orders("kafka-delete-records.sh", "--offset-json-file", "nowhere.json").code == 2
