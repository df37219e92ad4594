"""``eventbus dlq list`` and ``stats``: what there is."""

from __future__ import annotations

import json

import anyio
import pytest

from dlq import Retry
from eventbus import EventBus
from tests.dlq.cli.conftest import TOPIC, Dlq, OnTerminal, letter, write


def test_the_cases_of_each_topic_the_largest_first(shop: Dlq) -> None:
    shown = shop("list")
    assert shown.code == 0, shown.err
    title, head, *rows = shown.lines
    assert title == f"{TOPIC}:" and head.split() == [
        "CASE", "HANDLER", "ERROR", "TOP", "FRAME", "COUNT", "OPEN", "PARKED", "DONE", "OLDEST", "NEWEST",
    ]  # fmt: skip
    assert sorted(row.split()[1:3] for row in rows) == [
        ["bill", "KeyError"],
        ["bill", "ValueError"],
        ["ship", "ValueError"],
    ]
    assert rows[0].split()[-8:] == ["3", "3", "0", "0", "3", "h", "60", "min"]
    assert f"eventbus dlq show {rows[0].split()[0]}" in shown.err


def test_as_json(shop: Dlq) -> None:
    found = shop("list", "--handler", "bill", "--json").json
    assert [(one["error_class"], one["count"], one["statuses"]) for one in found] == [
        ("ValueError", 3, {"open": 3}),
        ("KeyError", 1, {"open": 1}),
    ]
    assert found[0]["topic"] == TOPIC and len(found[0]["samples"]) == 3


@pytest.mark.parametrize(
    ("args", "count"),
    [
        ((), 5),
        ((TOPIC,), 5),
        (("--topic", TOPIC, "--handler", "ship"), 1),
        (("--error", "ValueError"), 4),
        (("--group", "billing", "--error", "KeyError"), 1),
        (("--contains", "price is"), 3),
        (("--since", "90m"), 2),
        (("--until", "90m"), 3),
        (("--since", "4h", "--until", "90m"), 2),
        (("--status", "parked,resolved"), 0),
        ((f"{TOPIC}/0/0", f"{TOPIC}/1/1"), 2),
        (("--limit", "2"), 2),
    ],
)
def test_filters(shop: Dlq, args: tuple[str, ...], count: int) -> None:
    assert len(shop("list", "--letters", *args, "--json").json) == count


def test_single_letters(shop: Dlq) -> None:
    shown = shop("list", "--letters", "--error", "KeyError")
    assert shown.lines[0].split() == ["LETTER", "FAILED", "STATUS", "TRIES", "KEY", "WHAT"]
    assert shown.lines[1].split(maxsplit=6) == [f"{TOPIC}/1/1", "5", "h", "open", "5", "k", "KeyError: 'customer'"]
    assert "--limit 4" in shop("list", "--letters", "--limit", "1").err


def test_a_case_is_named_by_its_id_alone(shop: Dlq) -> None:
    case = shop("list", "--json").json[0]["case"]
    for args in ((case,), ("--case", case)):
        assert {one["case"] for one in shop("list", "--letters", *args, "--json").json} == {case}


@pytest.mark.system
def test_what_is_dealt_with_is_out_of_the_way_until_it_is_asked_for(shop: Dlq) -> None:
    assert shop("resolve", "--all", "--yes").code == 0
    shown = shop("list")
    assert shown.lines[0].split()[:3] == ["TOPIC", "LETTERS", "OPEN"] and shown.lines[1].split()[:5] == [
        TOPIC, "5", "0", "0", "5",
    ]  # fmt: skip
    assert "3 cases, all dealt with: --status all" in shown.err
    assert len(shop("list", "--status", "all", "--json").json) == 3
    write(letter(99, OSError("new")))
    assert "3 more cases, all dealt with" in shop("list").err


def test_counts_ages_and_how_many_an_hour(shop: Dlq) -> None:
    write(*(letter(number, OSError("x"), topic="ship-dlq", hours_ago=2) for number in range(8)))
    write(letter(9, OSError("old"), topic="ship-dlq", hours_ago=100))
    shown = shop("stats")
    assert shown.code == 0, shown.err
    table, plots = shown.out.split("\n\n")
    assert [line.split()[:8] for line in table.splitlines()[1:]] == [
        [TOPIC, "5", "5", "0", "0", "3", "5", "h"],
        ["ship-dlq", "9", "9", "0", "0", "1", "4", "days"],
    ]
    rows = [line.split() for line in plots.splitlines()[1:]]
    assert [row[:2] for row in rows] == [[TOPIC, "5"], ["ship-dlq", "8"]] and rows[1][2] == "8"
    assert rows[1][-1].rstrip(".") in ("." * 21 + "\u2588", "." * 20 + "\u2588"), "an hour may end meanwhile"
    [billing, ship] = shop("stats", "--hours", "2", "--json").json
    assert ship["per_hour"] == [0, 0] and 1 <= sum(billing["per_hour"]) <= 2 and len(billing["per_hour"]) == 2
    assert [one["name"] for one in shop("stats", "ship-dlq", "--json").json] == ["ship-dlq"]


@pytest.mark.system
def test_topics_of_any_name_and_logs_without_any(dlq: Dlq) -> None:
    write(letter(1, ValueError("x"), topic="graveyard"))
    nothing = dlq("list")
    assert (nothing.code, nothing.out) == (0, "") and "there are no dead letters in file://./data" in nothing.err
    assert json.loads(dlq("list", "graveyard", "--json").out)[0]["count"] == 1
    wrong = dlq("list", "graveyards")
    assert wrong.code == 1 and "did you mean 'graveyard'" in wrong.err
    assert "there is no log at" in dlq("list", "--url", "file://./nowhere").err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("list", "a/b"), "names no dead letter"),
        (("list", "dlq.a", "dlq.b"), "two topics are given"),
        (("list", "--status", "opn"), "did you mean 'open'"),
        (("list", "--since", "1h", "--until", "2h"), "nothing between them"),
        (("list", "--since", "earliest"), "--since takes a time"),
        (("list", "--limit", "0"), "less than 1"),
        (("show", "dlq.a/0/1", "dlq.a/0/2"), "one letter at a time"),
        (("redrive",), "which letters?"),
        (("redrive", "--limit", "5"), "which letters?"),
        (("redrive", "--all", "--rate", "0"), "is not a rate"),
        (("redrive", "--all", "--json"), "asks for no confirmation"),
        (("park",), "which letters?"),
        (("edit", "dlq.a/0/1"), "nothing to change"),
        (("edit", "dlq.a", "--value", "x"), "names no dead letter"),
        (("edit", "dlq.a/0/1", "--value", "x", "--editor"), "not allowed with"),
        (("stats", "--hours", "0"), "less than 1"),
    ],
)
def test_what_is_wrong_with_a_command_line(dlq: Dlq, args: tuple[str, ...], message: str) -> None:
    result = dlq(*args)
    assert result.code == 2 and message in result.err, result


@pytest.mark.system  # rich draws, which is an extra
@pytest.mark.parametrize("columns", [80, 140])
def test_on_a_terminal_it_fits(on_terminal: OnTerminal, dlq: Dlq, columns: int) -> None:
    long = "payments.adapters.CardWasDeclinedByTheIssuerError"
    error = type(long, (Exception,), {})("no funds " * 40)
    write(letter(1, error, handler="charge_the_customers_card", key=b"customer-1234567890-abcdef"))
    [case] = dlq("list", "--json").json
    cases, letters = on_terminal("list", columns=columns), on_terminal("list", "--letters", columns=columns)
    for shown in (cases, letters, on_terminal("stats", columns=columns)):
        assert shown.code == 0 and max(map(len, shown.lines)) <= columns
    assert case["case"] in cases.out and "charge_the_customers_card" in cases.out
    assert ("CardWasDeclinedByTheIssuerError at conftest.py" in cases.out) == (columns == 140)
    assert f"{TOPIC}/1/0" in letters.out and "customer-1234..." in letters.out


def test_records_that_wait_for_their_next_try_are_no_letters_and_are_shown(dlq: Dlq) -> None:
    """Records of a group without members are shown, too: its handler may have been renamed."""

    async def fail() -> None:
        bus = EventBus("file://./data", auto_create_topics=True)

        @bus.consumer("orders", group="billing", retry=Retry(immediate=0, delays=["1h"], topic="later"))
        async def bill(order: str) -> None:
            raise ValueError("later")

        async with bus:
            for number in range(3):
                await bus.send("orders", f"o-{number}", key="ada")
            await bus.drain()

    anyio.run(fail)
    for command in ("list", "stats"):
        shown = dlq(command)
        assert "3 records wait for the next try of group billing in later, the first in" in shown.err
        assert "The group has no members" in shown.err
    assert "wait for the next try" not in dlq("list", "--group", "shipping").err
