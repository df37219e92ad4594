"""``eventbus dlq redrive``: letters go back, once, and as many as were meant."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.dlq.cli.conftest import RETRY_TOPIC, TOPIC, Cli, Dlq, Spawn, letter, write

pytestmark = pytest.mark.system


def values(cli: Cli, topic: str) -> list[str]:
    return sorted(cli("consume", topic, "--from-beginning", "--timeout-ms", "50").lines)


def test_a_dry_run_sends_nothing(shop: Dlq, cli: Cli) -> None:
    result = shop("redrive", "--handler", "bill", "--dry-run")
    told = f"4 letters would be redriven to group billing through {RETRY_TOPIC}\n"
    assert (result.code, result.out) == (0, told), result.err
    assert "group billing does not run now. Letters wait in the retry topic until then" in result.err
    assert values(cli, RETRY_TOPIC) == []
    plan = shop("redrive", "--all", "--dry-run", "--json").json
    assert (plan["redriven"], plan["topics"], plan["groups"]) == (5, {RETRY_TOPIC: 5}, {"billing": 5})
    plan = shop("redrive", "--all", "--dry-run", "--json", "--whole-topic").json
    assert (plan["redriven"], plan["topics"], plan["dry_run"]) == (5, {"orders": 4, "payments": 1}, True)


def test_the_other_groups_of_a_topic_are_named_before_they_get_anything(shop: Dlq, cli: Cli) -> None:
    write(letter(30, ValueError("x"), topic="orders"))
    reads = ("groups", "reset-offsets", "--group", "shipping", "--topic", "orders", "--to-earliest", "--execute")
    assert cli(*reads).code == 0
    for command in (("redrive", "--handler", "bill"), ("edit", f"{TOPIC}/0/0", "--value", "{}")):
        refused = shop(*command, "--whole-topic", stdin=b"n\n")
        assert refused.code == 1 and ", also to group shipping? (y/n)" in refused.err
        assert "orders is also read by group shipping. All of its readers get the letters" in refused.err
        assert "shipping" not in shop(*command, stdin=b"n\n").err
    assert "shipping" in shop("redrive", "--handler", "bill", "--whole-topic", "--dry-run").err


def test_it_asks_and_does_nothing_without_an_answer(shop: Dlq, cli: Cli) -> None:
    for stdin, told in ((b"", "--yes skips the question"), (b"n\n", "Nothing was changed")):
        result = shop("redrive", "--handler", "bill", stdin=stdin)
        assert result.code == 1 and "Redrive 4 letters? (y/n)" in result.err and told in result.err
    assert values(cli, RETRY_TOPIC) == []
    assert shop("redrive", "--handler", "bill", stdin=b"y\n").code == 0
    assert len(values(cli, RETRY_TOPIC)) == 4


def test_all_of_them_to_where_they_came_from(shop: Dlq, cli: Cli) -> None:
    result = shop("redrive", "--all", "--whole-topic", "--yes", "--note", "prices are mended")
    assert result.code == 0, result.err
    assert result.lines[0].split() == ["TO", "LETTERS"] and result.lines[-1].startswith("5 letters redriven in ")
    assert values(cli, "orders") == ["plain text", *['{"cents":-5}'] * 3]
    assert values(cli, "payments") == ['{"cents":-5}']
    properties = ("--property", "print.headers=true", "--property", "print.value=false")
    [headers] = cli("consume", "payments", "--from-beginning", "--timeout-ms", "50", *properties).lines
    assert headers.startswith("tenant:acme,eb-redrive-of:") and "eb-redrive-by:ann@" in headers
    assert any(line.endswith(": prices are mended") for line in shop("show", f"{TOPIC}/0/0").lines)


def test_a_second_redrive_says_that_there_is_nothing_left(shop: Dlq, cli: Cli) -> None:
    assert shop("redrive", TOPIC, "--yes").code == 0
    again = shop("redrive", TOPIC)
    assert (again.code, again.out) == (0, "0 letters would be redriven\n")
    assert "of those chosen: 5 redriven; --status says which are meant" in again.err
    assert len(values(cli, RETRY_TOPIC)) == 5
    assert "no dead letter is chosen" in shop("redrive", "--handler", "nobody").err
    gone = shop("redrive", f"{TOPIC}/0/77")
    assert gone.code == 1 and f"there is no dead letter {TOPIC}/0/77" in gone.err


def test_a_single_letter_also_a_parked_one_to_another_topic(shop: Dlq, cli: Cli) -> None:
    cli("topics", "create", "mended")
    assert shop("park", f"{TOPIC}/1/0").code == 0
    result = shop("redrive", f"{TOPIC}/1/0", "--to", "mended", "--yes")
    assert result.code == 0 and result.out.startswith("1 letter redriven to mended in ")
    assert values(cli, "mended") == ['{"cents":-5}'] and values(cli, "orders") == []


def test_what_is_left_out_is_named_with_the_reason(shop: Dlq) -> None:
    headers = (("eb-redrive-hops", b"3"),)
    write(letter(20, ValueError("again"), headers=headers), letter(21, ValueError("lost"), source="nowhere"))
    result = shop("redrive", "--contains", "again", "--dry-run")
    assert "left out, 1 letter: they were redriven as often as --max-hops allows" in result.err
    assert f"({TOPIC}/0/" in result.err
    assert shop("redrive", "--contains", "again", "--dry-run", "--max-hops", "4").out.startswith("1 letter would")
    result = shop("redrive", "--contains", "lost", "--whole-topic", "--yes")
    assert (result.code, result.out) == (0, "0 letters redriven\n")
    assert "the topic they came from is not there: create it, or name another one with --to" in result.err
    wrong = shop("redrive", "--all", "--to", "nowhere", "--yes")
    assert wrong.code == 1 and "there is no topic 'nowhere'" in wrong.err
    allowed = shop("redrive", "--all", "--whole-topic", "--allow", "payments", "--dry-run", "--json").json
    assert (allowed["topics"], allowed["left_out"]["not-allowed"]) == ({"payments": 1}, 4)


def test_as_json(shop: Dlq) -> None:
    done = shop("redrive", "--all", "--yes", "--json").json
    assert (done["redriven"], done["seen"], done["cancelled"]) == (5, 5, False) and done["run_id"]


@pytest.mark.system
def test_ctrl_c_is_an_answer(shop: Dlq, cli: Cli, spawn: Spawn) -> None:
    process = spawn("dlq", "redrive", "--all")
    assert process.stderr is not None
    asked = b""
    while b"(y/n)" not in asked:
        asked += process.stderr.read(1)
        assert process.poll() is None, asked
    process.send_signal(signal.SIGINT)
    code = process.wait(60)  # `communicate` would close stdin, and the end of stdin is an answer, too
    assert code == 130 and b"interrupted" in process.stderr.read()
    assert values(cli, RETRY_TOPIC) == []


@pytest.mark.system
def test_ctrl_c_ends_it_says_what_was_done_and_the_same_command_goes_on(
    shop: Dlq, cli: Cli, spawn: Spawn, tmp_path: Path
) -> None:
    write(*(letter(100 + number, ValueError("x"), handler="many", value=b"%d" % number) for number in range(300)))
    process = spawn("dlq", "redrive", "--handler", "many", "--rate", "40", "--yes")
    until = time.monotonic() + 60
    while not any(log.stat().st_size for log in (tmp_path / "data").glob(f"{RETRY_TOPIC}-*/*.log")):
        assert time.monotonic() < until and process.poll() is None, process.communicate()
        time.sleep(0.01)  # it is another process
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    sent = int(out.split()[0])
    assert 0 < sent < 300 and b"repeat the command to continue" in err
    assert len(values(cli, RETRY_TOPIC)) == sent
    rest = shop("redrive", "--handler", "many", "--yes", "--json").json
    assert rest["redriven"] == 300 - sent
    assert sorted(map(int, values(cli, RETRY_TOPIC))) == list(range(300))
