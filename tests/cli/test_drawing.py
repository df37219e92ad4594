"""Tables and bars on a terminal: nothing is cut off and nothing obeyed; without rich a terminal is like a pipe."""

from __future__ import annotations

import io
import re

import pytest

from eventbus.cli import output
from eventbus.cli import progress as progress_module
from eventbus.cli.output import Output
from eventbus.cli.progress import progress_bars, progress_steps

STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_without_rich_a_terminal_gets_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "find_spec", lambda name: None)
    screen = Screen()
    Output(stdout=screen).table(["topic", "records"], [("orders", 12)], title="all")
    assert screen.getvalue().splitlines() == ["all:", "TOPIC   RECORDS", "orders       12"]


def test_without_a_terminal_progress_is_a_line_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: now[0])
    pipe = io.StringIO()
    with progress_steps(Output(stderr=pipe), "looking") as report:
        for done in (1, 2, 30):
            report("copying", done, 40, "slowly")
            now[0] += 3
        report("copying", 31, 40, "")
    assert pipe.getvalue().splitlines() == ["copying: 30 of 40, 5 a second, slowly"]


def test_json_has_no_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_module, "LINE_SECONDS", -1.0)
    screen = Screen()
    with progress_bars(Output(json=True, stderr=screen)) as bars:
        bars.bar("copying", 10).update(5)
    assert screen.getvalue() == ""


@pytest.mark.system
@pytest.mark.parametrize("columns", [10, 40])
def test_a_table_folds_text_and_breaks_no_number(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    screen, why = Screen(), "could not reach [bold]日本 in the far away town " + "x" * 50
    Output(stdout=screen).table(["topic", "records", "why"], [("orders", 1_234_567_890, why)])
    lines = STYLE.sub("", screen.getvalue()).splitlines()
    assert lines[0].split() == ["topic", "records", "why"]
    assert re.sub(r"\s", "", "".join(lines[2:])) == re.sub(r"\s", "", f"orders1,234,567,890{why}")
    assert columns == 10 or max(map(len, lines)) <= columns


@pytest.mark.system
@pytest.mark.parametrize(
    ("environment", "styled"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, True)],
)
def test_a_terminal_that_obeys_nothing_gets_no_commands(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], styled: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    out = Output(stdout=screen)
    out.table(["name"], [("a",)], title="x\x1b[31m\ny")
    out.field("key", "\x1b[31m")
    assert "x\\x1b[31m\\ny" in screen.getvalue() and screen.getvalue().count("\\x1b[31m") == 2
    assert ("\x1b" in screen.getvalue()) is styled


@pytest.mark.system
def test_bars_show_how_much_and_go_when_the_work_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    screen = Screen()
    with progress_bars(Output(stderr=screen)) as bars:
        bar = bars.bar("copying [x]", 20_000)
        bar.update(5_000, remark="slowly")
        bars.say("a note [y]")
    text = STYLE.sub("", screen.getvalue())
    assert "a note [y]" in text and "copying [x]" in text and "5000/20000" in text and "slowly" in text
    assert screen.getvalue().endswith("\x1b[2K"), "the last line is erased"
