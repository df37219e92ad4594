"""``eventbus dlq park | resolve | reopen``, and ``export``."""

from __future__ import annotations

import csv
import io
import json

import pytest

from tests.dlq.cli.conftest import TOPIC, Dlq, letter, write


def statuses(dlq: Dlq) -> list[str]:
    return sorted(one["status"] for one in dlq("list", "--letters", "--status", "all", "--json").json)


@pytest.mark.system
def test_parked_resolved_and_opened_again(shop: Dlq) -> None:
    assert shop("park", "--handler", "ship", "--note", "later").out == "1 letter parked\n"
    assert statuses(shop) == ["open"] * 4 + ["parked"]
    assert shop("resolve", "--all", "--yes", "--json").json == {"resolve": 5}, "the parked one too"
    assert statuses(shop) == ["resolved"] * 5
    assert shop("reopen", "--handler", "bill", "--yes").out == "4 letters reopened\n"
    assert statuses(shop) == ["open"] * 4 + ["resolved"]


@pytest.mark.system
def test_several_letters_are_asked_for(shop: Dlq) -> None:
    for stdin, told in ((b"", "--yes skips the question"), (b"n\n", "Nothing was changed")):
        result = shop("park", TOPIC, stdin=stdin)
        assert result.code == 1 and "Park 5 letters? (y/n)" in result.err and told in result.err
    assert statuses(shop) == ["open"] * 5
    assert shop("park", TOPIC, stdin=b"y\n").out == "5 letters parked\n"
    again = shop("park", TOPIC)
    assert (again.code, again.out) == (0, "0 letters parked\n") and "of those chosen: 5 parked" in again.err


def test_a_letter_that_is_not_there(shop: Dlq) -> None:
    for action in ("park", "resolve", "reopen"):
        result = shop(action, f"{TOPIC}/0/77")
        assert result.code == 1 and f"there is no dead letter {TOPIC}/0/77" in result.err


def test_a_note_that_is_too_long_is_refused_before_anything_is_done(shop: Dlq) -> None:
    result = shop("park", "--all", "--yes", "--note", "x" * 5_000)
    assert result.code == 1 and "note" in result.err and statuses(shop) == ["open"] * 5


# export ---------------------------------------------------------------------------------------------------------------


@pytest.mark.system
def test_lines_of_json(shop: Dlq) -> None:
    assert shop("resolve", "--handler", "ship").code == 0
    exported = shop("export")
    found = [json.loads(line) for line in exported.lines]
    assert [one["id"] for one in found] == [f"{TOPIC}/0/{n}" for n in range(2)] + [f"{TOPIC}/1/{n}" for n in range(2)]
    assert exported.err == "4 letters exported\n"
    assert {one["status"] for one in found} == {"open"} and found[0]["value"] == '{"cents":-5}'
    assert found[0]["source"] == {"topic": "orders", "partition": 0, "offset": 10} and "Traceback" in found[0]["stack"]
    assert len(shop("export", "--status", "all", "--limit", "5").lines) == 5
    assert len(shop("export", "--status", "resolved").lines) == 1


def test_csv(shop: Dlq) -> None:
    write(letter(50, ValueError('a "quoted", text\nof two lines'), handler="=cmd()", value=b"\xff"))
    rows = list(csv.DictReader(io.StringIO(shop("export", "--format", "csv").out)))
    assert len(rows) == 6
    odd = next(row for row in rows if "quoted" in row["message"])
    assert (
        odd["message"] == 'a "quoted", text\\nof two lines' and odd["handler"] == "'=cmd()" and odd["value"] == "/w=="
    )
    assert odd["source"] == "orders/0/50" and odd["attempts"] == "5" and odd["stack"].startswith("Traceback")


@pytest.mark.parametrize("count", [0, 501])
def test_none_and_many(dlq: Dlq, count: int) -> None:
    write(
        letter(-2, ValueError("x"), handler="one"), *(letter(n, ValueError("x"), handler="many") for n in range(count))
    )
    exported = dlq("export", "--handler", "many")
    assert exported.code == 0 and len(exported.lines) == len({*exported.lines}) == count
