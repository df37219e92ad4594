"""Tables on a terminal: aligned by what the screen shows, folded where they do not fit, nothing cut off."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventbus.cli.output import Output
from eventbus.cli.tables import table_lines
from eventbus.cli.terminal import Terminal, fitting, folded, padded, width_of

PLAIN = Terminal(columns=40, obeys=False, colors=False)


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_numbers_are_set_to_the_right_and_headings_with_them() -> None:
    rows = [["orders", "3", "12,345"], ["payments", "12", "-"]]
    assert table_lines(PLAIN, ["topic", "partitions", "size"], rows, [False, True, True]) == [
        "topic     partitions    size",
        "────────────────────────────",
        "orders             3  12,345",
        "payments          12       -",
    ]


def test_what_does_not_fit_goes_on_in_the_next_line_and_no_number_is_broken() -> None:
    rows = [["orders", "1,234,567,890", "could not reach the database in the far away town"]]
    assert table_lines(PLAIN, ["topic", "records", "why"], rows, [False, True, False]) == [
        "topic         records  why",
        "────────────────────────────────────────",
        "orders  1,234,567,890  could not reach",
        "                       the database in",
        "                       the far away town",
    ]


def test_a_screen_narrower_than_the_numbers_gets_all_of_them_all_the_same() -> None:
    terminal = PLAIN._replace(columns=10)
    lines = table_lines(terminal, ["topic", "records"], [["a" * 20, "1,234,567,890"]], [False, True])
    assert "1,234,567,890" in lines[2]
    assert [line.split()[0] for line in lines[2:]] == ["a" * 12, "a" * 8]


def test_wide_characters_take_two_places_and_accents_none() -> None:
    assert [width_of(text) for text in ("abc", "日本", "e\u0301", "\u200b")] == [3, 4, 1, 0]
    lines = table_lines(PLAIN, ["name", "n"], [["日本", "1"], ["e\u0301te\u0301", "2"]], [False, True])
    assert [width_of(line) for line in lines] == [7, 7, 7, 7]
    assert (fitting("日本", 3), padded("日", 4), padded("日", 4, right=True)) == ("日", "日  ", "  日")


def test_no_rows_are_headings_alone() -> None:
    assert table_lines(PLAIN, ["name"], [], [False], dense=True) == ["name"]


@pytest.mark.system
@given(st.text(st.characters(exclude_categories=["Cs", "Cc"])), st.integers(2, 30))
def test_folding_fits_and_loses_nothing_but_blanks_between_words(text: str, width: int) -> None:
    lines = folded(text, width)
    assert all(width_of(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("environment", "bold"),
    [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False), ({"TERM": "xterm", "NO_COLOR": "1"}, True)],
)
def test_only_a_terminal_that_obeys_gets_commands(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], bold: bool
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    screen = Screen()
    Output(stdout=screen).table(["name"], [("a",)], title="title")
    assert ("\x1b[1mtitle\x1b[0m" in screen.getvalue()) is bold
    assert ("\x1b" in screen.getvalue()) is bold
    assert Terminal.of(screen).colors is (bold and "NO_COLOR" not in environment)


def test_an_encoding_without_lines_gets_dashes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "123")
    screen = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    terminal = Terminal.of(screen)
    assert (terminal.columns, terminal.lines) == (123, False)
    assert table_lines(terminal, ["a"], [], [False])[1] == terminal.dim("-")


def test_a_width_that_is_no_number_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "wide")
    assert Terminal.of(Screen()).columns == 80


def test_a_title_of_somebody_else_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    screen = Screen()
    Output(stdout=screen).table(["name"], [("a",)], title="x\x1b[31m\ny")
    assert "x\\x1b[31m\\ny\n" in screen.getvalue()
