"""``eventbus outbox relay``: a relay alone, until a signal; and how it says how it goes."""

from __future__ import annotations

import io
import os
import re
import signal

import pytest

from eventbus.cli.output import Output
from outbox.cli.relay import Going, Pace, bar_on, line_of
from outbox.status import Backlog
from tests.outbox.cli.conftest import Cli, OnOutbox, Shop, Spawn

pytestmark = pytest.mark.system

on_sqlite = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


@pytest.fixture
def log(cli: Cli) -> str:
    """An empty one, with a topic."""
    assert cli("topics", "create", "orders", "--partitions", "2").code == 0
    return "file://./data"


@pytest.mark.parametrize("shop", ["sqlite", "asyncpg", "mariadb"], indirect=True)
def test_until_nothing_is_left(shop: Shop, on_outbox: OnOutbox, cli: Cli, log: str) -> None:
    shop.publish("a", "b", "a", None)
    done = on_outbox("relay", "--until-empty", "--url", log)
    assert done.code == 0 and "stopped; 4 events published" in done.err, done.err
    assert "publishing outbox 'eventbus_outbox' of " in done.err and "file://./data" in done.err
    assert shop.waiting() == []
    assert len(cli("consume", "orders", "--from-beginning", "--max-messages", "4").lines) == 4
    again = on_outbox("relay", "--until-empty", "--url", log, "--json")
    assert again.code == 0 and again.err == ""


@on_sqlite
def test_until_a_signal(shop: Shop, spawn: Spawn, log: str) -> None:
    shop.publish(*"abc")
    process = spawn("outbox", "relay", "--database", shop.database.url, "--url", log, "--every", "0.01")
    assert process.stdout is not None and process.stderr is not None
    while not (line := process.stdout.readline().decode()).endswith("nothing waits, 3 published\n"):
        assert re.fullmatch(r"[\d,]+/s, .* published\n", line), line
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(30) == 0
    assert b"stopped; 3 events published" in process.stderr.read()


@on_sqlite
@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--url", "file://./nowhere"), 1, "there is no log at file://./nowhere"),
        (("--url", "nowhere://x"), 2, "--url: "),
        (("--batch-size", "0"), 2, "0 is less than 1"),
        (("--batch-size", "1000000"), 1, "1 to 10,000 rows"),
        (("--every", "0"), 2, "--every takes seconds between two lines"),
        (("--on-poison", "cry"), 2, "invalid choice: 'cry'"),
    ],
)
def test_what_cannot_be(shop: Shop, on_outbox: OnOutbox, log: str, args: tuple[str, ...], code: int, said: str) -> None:
    found = on_outbox("relay", "--until-empty", *args)
    assert (found.code, found.out) == (code, "") and said in found.err, found


def test_how_it_goes_between_two_looks() -> None:
    pace = Pace(10.0)
    assert pace.at(10.0, 0, Backlog(1_000_000, False, 9_000)) == Going(0, 1_000_000, True, 0.0, 9_000)
    assert (pace.waiting(100_000), pace.waiting(2_000_000)) == (900_000, 0)
    going = pace.at(12.0, 100_000, Backlog(920_000, False, 1_000))
    assert going == Going(100_000, 920_000, True, 50_000.0, 1_000) and going.left_seconds == 18.4
    assert pace.waiting(120_000) == 900_000
    assert pace.at(14.0, 1_020_000, Backlog(0, True, None)) == Going(1_020_000, 0, False, 460_000.0, None)
    assert pace.at(15.0, 1_020_000, Backlog(5, True, 0)).left_seconds is None


@pytest.mark.parametrize(
    ("going", "line"),
    [
        (Going(12, 0, False, 3.0, None), "3/s, nothing waits, 12 published"),
        (Going(0, 7, False, 0.0, 90_000), "0/s, 7 waiting, the oldest for 90 s, 0 published"),
        (
            Going(1_234_567, 678_900, True, 12_345.0, 12_000),
            "12,345/s, about 678,900 waiting (for 54 s), the oldest for 12 s, 1,234,567 published",
        ),
    ],
)
def test_a_line(going: Going, line: str) -> None:
    assert line_of(going) == line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_while_a_large_backlog_is_worked_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal, updates = Terminal(), list[tuple[int, int]]()
    with bar_on(Output(stdout=terminal, stderr=terminal)) as bar:
        assert bar is not None
        monkeypatch.setattr(bar._bar, "update", lambda done, total: updates.append((done, total)))
        bar.move(100, 9_000)
        assert not bar.is_shown, "it is worked off at once"
        bar.move(100, 20_000)
        assert bar.is_shown and updates[-1] == (0, 20_000)
        bar.move(10_100, 11_000)
        assert updates[-1] == (10_000, 21_000), "some came meanwhile"
        bar.line("12/s [x] \x1b[31m")
        bar.move(21_100, 0)
        assert not bar.is_shown
        bar.move(21_200, 50_000)
        assert bar.is_shown and updates[-1] == (0, 50_000)
    assert "12/s [x] \\x1b[31m\n" in terminal.getvalue()


def test_no_bar_where_there_is_no_terminal() -> None:
    pipe, terminal = io.StringIO(), Terminal()
    with bar_on(Output(stdout=terminal, stderr=pipe)) as bar:
        assert bar is None
    with bar_on(Output(json=True, stdout=terminal, stderr=terminal)) as bar:
        assert bar is None
    with bar_on(Output(stdout=pipe, stderr=terminal)) as bar:
        assert bar is not None
        bar.line("12/s")
    assert pipe.getvalue() == "12/s\n"
