"""``eventbus outbox list``, ``retry`` and ``drop``."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Cli
from tests.outbox.cli.conftest import OnOutbox, Shop, fill

pytestmark = pytest.mark.system

on_sqlite = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


def test_what_was_refused_and_why(shop: Shop, on_outbox: OnOutbox) -> None:
    fill(shop)
    shown = on_outbox("list")
    assert shown.code == 0, shown.err
    head, row = shown.lines
    assert head.split() == ["EVENT", "TOPIC", "KEY", "REFUSED", "BEHIND", "BYTES", "REASON"]
    assert row.split()[:3] == ["2", "orders", "b"] and row.endswith("2      2  RecordTooLarge: 2,000,000 bytes"), row
    behind = on_outbox("list", "--behind").lines
    assert [line.split()[0] for line in behind[1:]] == ["2", "5", "8"] and behind[2].endswith(
        "-      2  waits behind 2"
    )


@on_sqlite
def test_one_of_them_in_full(shop: Shop, on_outbox: OnOutbox) -> None:
    shop.publish("a", headers={"tenant": b"acme", "bits": b"\xff"}, partition=2)
    shop.put_aside(1, reason="InvalidRecord: no\nsuch thing")
    shown = on_outbox("list", "1")
    assert shown.code == 0 and "tenant    acme" in shown.out and "bits      0xff" in shown.out, shown.out
    assert "topic     orders, partition 2" in shown.out and "value     {}" in shown.out
    found = on_outbox("list", "1", "--json").json
    assert (found["id"], found["key"], found["value"], found["behind"]) == (1, "a", "{}", 0)
    assert found["headers"] == [{"name": "tenant", "value": "acme"}, {"name": "bits", "value_base64": "/w=="}]
    assert on_outbox("list", found["event_id"].upper(), "--json").json == found
    missing = on_outbox("list", "7")
    assert (missing.code, missing.out) == (1, "") and "there is none like that" in missing.err


@on_sqlite
def test_an_event_cannot_command_a_terminal(shop: Shop, on_outbox: OnOutbox) -> None:
    shop.publish("\x1b[31mred\nline")
    shop.put_aside(1, reason="\x1b]0;title\x07bad")
    for args in (("list",), ("list", "1"), ("list", "--json")):
        shown = on_outbox(*args)
        assert shown.code == 0 and "\x1b" not in shown.out and "\x07" not in shown.out
    assert len(on_outbox("list").lines) == 2


@on_sqlite
def test_no_more_than_asked_for(shop: Shop, on_outbox: OnOutbox) -> None:
    assert "the log refused nothing" in on_outbox("list").err
    shop.publish(*"abc")
    shop.put_aside(1, 2, 3)
    shown = on_outbox("list", "--limit", "2")
    assert len(shown.lines) == 3 and "and more: --limit 8" in shown.err
    assert [one["id"] for one in on_outbox("list", "--json", "--topic", "orders").json] == [1, 2, 3]
    assert on_outbox("list", "--json", "--topic", "payments").json == []
    assert "none like that" in on_outbox("list", "--reason", "InvalidTopic").err


def test_again(shop: Shop, on_outbox: OnOutbox) -> None:
    fill(shop)
    done = on_outbox("retry", "2")
    assert (done.code, done.out) == (0, "1 event put back, 2 events behind it go on\n"), done.err
    assert shop.waiting() == list(range(1, 9)) and not shop.refused()
    again = on_outbox("retry", "2")
    assert again.code == 1 and "error: event 2 is not among the refused ones" in again.err


def test_never(shop: Shop, on_outbox: OnOutbox) -> None:
    fill(shop)
    asked = on_outbox("drop", "2", stdin=b"n\n")
    assert asked.code == 1 and "Drop 1 event? (y/n)" in asked.err and shop.refused()
    assert "No answer. Nothing was changed" in on_outbox("drop", "2").err and shop.refused()
    done = on_outbox("drop", "2", stdin=b"y\n")
    assert (done.code, done.out) == (0, "1 event dropped, 2 events behind it go on\n")
    assert shop.waiting() == [1, 3, 4, 5, 6, 7, 8] and not shop.refused()


@on_sqlite
def test_several(shop: Shop, on_outbox: OnOutbox) -> None:
    shop.publish(*"abc")
    shop.put_aside(1, 2, 3)
    assert "Retry 3 events?" in on_outbox("retry", "--all").err and shop.waiting() == []
    done = on_outbox("retry", "--topic", "orders", "--yes", "--json")
    assert done.json == {"refused": 3, "behind": 0} and shop.waiting() == [1, 2, 3]
    assert on_outbox("drop", "--all", "--yes").out == "0 events dropped\n"


@on_sqlite
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("retry",), 2, "which events?"),
        (("drop", "orders"), 2, "'orders' is neither the number of an event nor its id; topics go by --topic"),
        (("retry", "5"), 1, "event 5 was not refused, it waits behind 2: retry or drop that one"),
        (("drop", "1", "--yes"), 1, "event 1 is not among the refused ones"),
        (("retry", "2", "99"), 1, "event 99 is not among the refused ones"),
        (("list", "--limit", "0"), 2, "0 is less than 1"),
    ],
)
def test_what_cannot_be(shop: Shop, on_outbox: OnOutbox, args: tuple[str, ...], code: int, said: str) -> None:
    fill(shop)
    found = on_outbox(*args)
    assert (found.code, found.out) == (code, "") and said in found.err, found
    assert shop.refused() == {2: 0, 5: 1, 8: 1}


def test_help_names_all_of_it(cli: Cli) -> None:
    shown = cli("outbox", "--help")
    assert shown.code == 0 and shown.err == ""
    for command in ("status", "list", "retry", "drop", "relay", "check", "ddl", "adopt"):
        assert f"\n    {command}" in shown.out
        assert cli("outbox", command, "--help").out.startswith(f"usage: eventbus outbox {command}")
