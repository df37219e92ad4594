"""``eventbus groups``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.cli.group_reset import parse_duration

Cli = Callable[..., Any]


@pytest.fixture
def billing(orders: Cli) -> Cli:
    """Group billing has read four of the six records of ``orders``."""
    assert orders("consume", "orders", "--from-beginning", "--group", "billing", "--max-messages", "4").code == 0
    return orders


def offsets(cli: Cli, group: str = "billing") -> dict[int, int | None]:
    [shown] = cli("groups", "describe", group, "--json").json
    return {row["partition"]: row["current_offset"] for row in shown["offsets"]}


def leave_static_members(directory: Path, *names: str) -> None:
    """Static members of group ``fixed``, closed: their places are kept until their sessions end."""

    async def main() -> None:
        async with EventBus(f"file://{directory}/data") as bus, AsyncExitStack() as stack:
            members = [
                await stack.enter_async_context(
                    bus.new_consumer("orders", group="fixed", group_instance_id=name, client_id=name)
                )
                for name in names
            ]
            while (
                len((group := await bus.admin.describe_group("fixed")).members) < len(names) or group.state != "Stable"
            ):
                async with anyio.create_task_group() as tasks:
                    for member in members:
                        tasks.start_soon(member.poll, 0)

    anyio.run(main)


@pytest.mark.system
def test_list_names_groups_line_by_line(billing: Cli) -> None:
    assert billing("groups", "list").lines == ["billing"]
    assert billing("groups", "list", "--state").lines[1].split() == ["billing", "consumer", "Empty"]
    assert billing("groups", "list", "--state", "stable,preparing-rebalance").lines == ["GROUP  PROTOCOL TYPE  STATE"]
    assert billing("groups", "list", "--json").json == [
        {"group": "billing", "protocol_type": "consumer", "state": "Empty"}
    ]


def test_describe_shows_state_offsets_and_lag(billing: Cli) -> None:
    result = billing("groups", "describe", "billing")
    assert result.code == 0
    assert result.lines[0].startswith("group billing  Empty") and "0 member(s)" in result.lines[0]
    assert result.lines[1].split() == [
        "GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID",
    ]  # fmt: skip
    rows = billing("groups", "describe", "--group", "billing", "--offsets", "--json").json[0]["offsets"]
    assert sum(row["current_offset"] for row in rows) == 4
    assert sum(row["log_end_offset"] - row["current_offset"] for row in rows) == sum(row["lag"] for row in rows)
    assert billing("groups", "describe", "billing", "--state").lines == result.lines[:1]


def test_describe_shows_members_and_who_is_idle(billing: Cli, tmp_path: Path) -> None:
    leave_static_members(tmp_path, "a", "b", "c", "d")
    [group] = billing("groups", "describe", "fixed", "--json").json
    assert [member["instance_id"] for member in sorted(group["members"], key=lambda one: one["instance_id"])] == [
        "a", "b", "c", "d",
    ]  # fmt: skip
    idle = [member for member in group["members"] if not member["partitions"]]
    shown = billing("groups", "describe", "fixed")
    assert len(idle) == 1 and "4 member(s), 1 idle" in shown.lines[0]
    assert "idle: more members than partitions" in shown.out
    owners = {row["partition"]: row["consumer_id"] for row in group["offsets"]}
    assert all(owners.values())


def test_all_groups_are_described_when_none_is_named(billing: Cli) -> None:
    billing("consume", "orders", "--from-beginning", "--group", "audit", "--max-messages", "1")
    assert [one["group"] for one in billing("groups", "describe", "--json").json] == ["audit", "billing"]
    assert billing("groups", "describe").out.count("group ") == 2


def test_a_group_that_is_not_there_suggests_the_nearest(billing: Cli) -> None:
    for action in ("describe", "delete"):
        result = billing("groups", action, "biling")
        assert result.code == 1
        assert "there is no group 'biling': did you mean 'billing'?" in result.err.replace(";", ":")


def test_a_deleted_topic_takes_its_offsets_with_it(billing: Cli) -> None:
    assert billing("topics", "delete", "orders").code == 0
    assert billing("groups", "describe", "billing", "--offsets", "--json").json == [{"group": "billing", "offsets": []}]


# reset ----------------------------------------------------------------------------------------------------------------


def test_reset_shows_first_and_changes_only_when_told(billing: Cli) -> None:
    before = offsets(billing)
    result = billing("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest")
    assert result.code == 0 and "add --execute" in result.err
    assert result.lines[0].split() == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "NEW-OFFSET"]
    assert offsets(billing) == before
    result = billing("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute")
    assert result.err == ""
    assert set(offsets(billing).values()) == {0}


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (("--to-latest",), [0, 4, 2]),
        (("--to-offset", "1"), [0, 1, 1]),
        (("--to-datetime", "2013-01-01"), [0, 0, 0]),
        (("--to-datetime", "2100-01-01"), [0, 4, 2]),
        (("--by-duration", "PT1H"), [0, 0, 0]),
        (("--by-duration", "0s"), [0, 4, 2]),
    ],
)
def test_where_to(cli: Cli, target: tuple[str, ...], expected: list[int]) -> None:
    cli("topics", "create", "orders", "--partitions", "3")
    cli("produce", "orders", "--partition", "1", stdin=b"a\nb\nc\nd\n")
    cli("produce", "orders", "--partition", "2", stdin=b"a\nb\n")
    result = cli("groups", "reset-offsets", "new", "--topic", "orders", *target, "--execute")
    assert result.code == 0
    assert list(offsets(cli, "new").values()) == expected


@pytest.mark.system
def test_shifting_stays_within_the_partition_and_says_so(billing: Cli) -> None:
    billing("groups", "reset-offsets", "billing", "--topic", "orders", "--to-earliest", "--execute")
    result = billing("groups", "reset-offsets", "billing", "--all-topics", "--shift-by", "1", "--execute")
    rows = billing("offsets", "orders", "--json").json
    assert list(offsets(billing).values()) == [min(row["latest"], 1) for row in rows]
    result = billing("groups", "reset-offsets", "billing", "--all-topics", "--shift-by", "-9", "--execute")
    assert set(offsets(billing).values()) == {0}
    assert "is outside 0 to" in result.err and "taken as 0" in result.err


def test_to_current_commits_what_is_there(billing: Cli) -> None:
    before = offsets(billing)
    result = billing("groups", "reset-offsets", "billing", "--all-topics", "--to-current", "--execute", "--json")
    assert {row["partition"]: row["new_offset"] for row in result.json} == before == offsets(billing)


def test_some_partitions_only(billing: Cli) -> None:
    before = offsets(billing)
    billing("groups", "reset-offsets", "billing", "--topic", "orders:1,2", "--to-latest", "--execute")
    after = offsets(billing)
    assert after.get(0) == before.get(0)
    ends = {row["partition"]: row["latest"] for row in billing("offsets", "orders", "--json").json}
    assert (after[1], after[2]) == (ends[1], ends[2])


def test_a_group_with_members_is_left_alone(billing: Cli, tmp_path: Path) -> None:
    leave_static_members(tmp_path, "a")
    result = billing("groups", "reset-offsets", "fixed", "--topic", "orders", "--to-latest", "--execute")
    assert result.code == 1
    assert "group 'fixed' has 1 member(s) (a): stop them first" in result.err
    assert billing("groups", "delete", "fixed").code == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("billing", "--to-latest"), "which offsets? Give --topic"),
        (("billing", "--topic", "orders", "--all-topics", "--to-latest"), "which offsets?"),
        (("billing", "--topic", "orders"), "where to? Give one of --to-earliest"),
        (("billing", "--topic", "orders:x", "--to-latest"), "partitions are numbers, as in orders:0,2"),
        (("billing", "--topic", "orders:7", "--to-latest"), "partitions 0 to 2, no 7"),
        (("billing", "--topic", "orders", "--to-latest", "--to-earliest"), "not allowed with"),
        (("billing", "--topic", "orders", "--to-datetime", "-1"), "is no time"),
        (("billing", "--topic", "orders", "--by-duration", "soon"), "is no duration: write PT1H30M"),
        (("--topic", "orders", "--to-latest"), "which group?"),
        (("nobody", "--all-topics", "--to-latest"), "has no offsets yet: name topics"),
    ],
)
def test_what_is_missing_or_wrong_is_named(billing: Cli, args: tuple[str, ...], message: str) -> None:
    result = billing("groups", "reset-offsets", *args)
    assert result.code == 2
    assert message in result.err


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1H30M", 5_400_000), ("P1DT2H", 93_600_000), ("P2W", 1_209_600_000), ("90m", 5_400_000), ("1.5h", 5_400_000),
     ("PT0.5S", 500), ("pt10s", 10_000)],
)  # fmt: skip
def test_durations(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "P", "PT", "10", "m", "P1H"])
def test_no_durations(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_duration(text)


# delete ---------------------------------------------------------------------------------------------------------------


def test_delete_forgets_a_group_or_some_of_its_offsets(billing: Cli) -> None:
    result = billing("groups", "delete", "billing", "--topic", "orders:1")
    assert result.out == "Forgot the offsets of group billing in orders-1.\n"
    assert 1 not in offsets(billing)
    assert billing("groups", "delete", "billing").out == "Deleted group billing.\n"
    assert billing("groups", "list").out == ""


def test_no_groups_at_all_is_said(orders: Cli) -> None:
    result = orders("groups", "describe")
    assert result.code == 0 and result.out == "" and result.err.startswith("there are no groups yet")
    assert orders("groups", "describe", "--json").json == []


def test_a_console_consumer_without_a_group_leaves_none_behind(orders: Cli) -> None:
    orders("consume", "orders", "--from-beginning", "--max-messages", "2")
    assert orders("groups", "list").out == ""


# as Kafka's tool has it -----------------------------------------------------------------------------------------------


def test_a_plan_is_exported_changed_and_taken_from_its_file(billing: Cli, tmp_path: Path) -> None:
    before = offsets(billing)
    reset = ("kafka-consumer-groups.sh", "--reset-offsets", "--group", "billing")
    exported = billing(*reset, "--all-topics", "--to-current", "--export")
    assert exported.lines == [f"orders,{number},{offset}" for number, offset in before.items()]
    assert "add --execute" in exported.err
    plan = tmp_path / "plan.csv"
    plan.write_text("orders,0,0\norders,1,99\n")
    assert offsets(billing) == before
    result = billing(*reset, "--from-file", str(plan), "--execute")
    assert result.code == 0 and "orders-1: 99 is outside 0 to" in result.err
    ends = {row["partition"]: row["latest"] for row in billing("offsets", "orders", "--json").json}
    assert offsets(billing) == {**before, 0: 0, 1: ends[1]}


@pytest.mark.system
def test_a_plan_of_several_groups_names_them(billing: Cli, tmp_path: Path) -> None:
    billing("groups", "reset-offsets", "audit", "--topic", "orders", "--to-earliest", "--execute")
    exported = billing("groups", "reset-offsets", "--all-groups", "--all-topics", "--to-latest", "--export").out
    assert {line.partition(",")[0] for line in exported.splitlines()} == {"audit", "billing"}
    plan = tmp_path / "plan.csv"
    plan.write_text(exported)
    assert billing("groups", "reset-offsets", "--all-groups", "--from-file", str(plan), "--execute").code == 0
    ends = {row["partition"]: row["latest"] for row in billing("offsets", "orders", "--json").json}
    assert offsets(billing, "audit") == {partition: end for partition, end in ends.items()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("orders,0\n", "line 1: 'orders,0' is not of the form"),
        ("orders,0,0\norders,x,0\n", "line 2: 'orders,x,0' is not of the form"),
        ("other,orders,0,0\n", "is for group 'other'"),
    ],
)
def test_a_plan_that_cannot_be_read_is_told_with_its_line(billing: Cli, tmp_path: Path, text: str, told: str) -> None:
    before = offsets(billing)
    plan = tmp_path / "plan.csv"
    plan.write_text(text)
    result = billing("groups", "reset-offsets", "billing", "--from-file", str(plan), "--execute")
    assert result.code == 2 and told in result.err
    assert "No such file" in billing("groups", "reset-offsets", "billing", "--from-file", "nowhere.csv").err
    assert offsets(billing) == before


@pytest.mark.system
def test_several_groups_and_all_of_them(billing: Cli) -> None:
    billing("consume", "orders", "--from-beginning", "--group", "audit", "--max-messages", "1")
    described = billing("kafka-consumer-groups.sh", "--describe", "--all-groups", "--members", "--verbose", "--json")
    assert [one["group"] for one in described.json] == ["audit", "billing"]
    named = billing("groups", "describe", "--group", "billing", "--group", "audit", "--state", "--json")
    assert [one["group"] for one in named.json] == ["billing", "audit"]
    assert billing("groups", "describe", "--all-groups", "billing").code == 2
    listed = billing("kafka-consumer-groups.sh", "--list", "--type", "classic", "--json").json
    assert [(one["group"], one["type"]) for one in listed] == [("audit", "classic"), ("billing", "classic")]
    assert billing("groups", "list", "--type", "consumer").lines == ["GROUP  PROTOCOL TYPE  STATE  TYPE"]
    assert billing("kafka-groups.sh", "--list", "--protocol", "connect").lines == []
    assert billing("kafka-consumer-groups.sh", "--delete", "--all-groups").code == 0
    assert billing("groups", "list").lines == []


def test_offsets_of_a_group_are_deleted_by_topic(billing: Cli) -> None:
    result = billing("kafka-consumer-groups.sh", "--delete-offsets", "--group", "billing", "--topic", "orders:1")
    assert result.out == "Forgot the offsets of group billing in orders-1.\n"
    assert 1 not in offsets(billing)
    assert billing("groups", "delete-offsets", "billing").code == 2


def test_patterns_are_checked(cli: Cli) -> None:
    assert cli("kafka-consumer-groups.sh", "--validate-regex", "order.*").code == 0
    assert cli("groups", "validate-regex", "(order").code == 1
