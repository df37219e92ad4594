"""Bars on a terminal: what is drawn, how often, and that what is said stays above them."""

from __future__ import annotations

import io
import re

from eventbus.cli.bars import Bars, line_of
from eventbus.cli.terminal import Terminal

PLAIN = Terminal(columns=60, obeys=True, colors=False)
DRAWN = re.compile(r"\x1b\[\d*m")


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def shown(screen: io.StringIO) -> list[str]:
    """What stands on the screen at the end, by the few commands that bars give."""
    lines, row = [""], 0
    for piece in re.split(r"(\x1b\[\d+A|\x1b\[J|\r|\n)", DRAWN.sub("", screen.getvalue())):
        if piece == "\n":
            row += 1
            lines[row:] = lines[row:] or [""]
        elif piece.endswith("A") and piece.startswith("\x1b"):
            row -= int(piece[2:-1])
        elif piece == "\x1b[J":
            lines[row:] = [""]
        elif piece != "\r":
            lines[row] += piece
    return lines


def test_a_bar_tells_how_much_how_fast_and_how_long() -> None:
    clock, screen = Clock(), io.StringIO()
    with Bars(screen, clock=clock, terminal=PLAIN) as bars:
        bar = bars.add("copying", 20_000)
        clock.seconds += 10
        bar.update(5_000, remark="slowly")
        line = DRAWN.sub("", line_of(PLAIN, bar))
        assert line == "copying  ━━━─────────  5,000/20,000  500/s  0:00:30  slowly"


def test_bars_go_when_the_work_is_done_and_what_was_said_stays() -> None:
    screen = io.StringIO()
    with Bars(screen, terminal=PLAIN) as bars:
        one, two = bars.add("one", 10), bars.add("two", 10)
        one.update(5)
        bars.say("a note \x1b[31m")
        two.update(10)
        assert [line.split()[0] for line in shown(screen)] == ["a", "one", "two"]
        two.remove()
        assert [line.split()[0] for line in shown(screen)] == ["a", "one"]
    assert shown(screen) == ["a note \\x1b[31m", ""]


def test_bars_that_are_kept_show_how_it_ended() -> None:
    screen = io.StringIO()
    with Bars(screen, keep=True, clock=Clock(), terminal=PLAIN) as bars:
        bar = bars.add("publish", 20_000)
        bar.update(19_999)
        bar.update(20_000)
    assert len(shown(screen)) == 2
    assert "━" in shown(screen)[0] and "─" not in shown(screen)[0] and "20,000/20,000" in shown(screen)[0]


def test_it_is_drawn_ten_times_a_second_at_most_and_once_more_at_its_end() -> None:
    clock, screen = Clock(), io.StringIO()
    with Bars(screen, clock=clock, terminal=PLAIN) as bars:
        bar = bars.add("copying", 1_000)
        before = screen.tell()
        for done in range(900):
            bar.update(done)
        assert screen.tell() == before
        clock.seconds += 0.2
        bar.update(900)
        assert "900/1,000" in shown(screen)[0]
        bar.update(1_000)
        assert "1,000/1,000" in shown(screen)[0]


def test_what_is_not_known_is_not_invented() -> None:
    screen, clock = io.StringIO(), Clock()
    with Bars(screen, clock=clock, terminal=PLAIN) as bars:
        bar = bars.add("looking")
        assert line_of(PLAIN, bar) == "looking  …"
        bar.update(0, 10)
        assert line_of(PLAIN, bar).endswith("0/10"), "how long it takes is not known before something is done"
        bar.update(0, 0)
        assert "0/0" in line_of(PLAIN, bar)
        bar.update(12, 10)
        assert "12/10" in line_of(PLAIN, bar)


def test_no_line_is_wider_than_the_terminal_however_long_the_name() -> None:
    with Bars(io.StringIO(), clock=Clock(), terminal=PLAIN) as bars:
        bar = bars.add("topic\n" + "x" * 200, 10)
        bar.update(5, remark="r" * 100)
        for columns in (10, 40, 80, 200):
            assert len(DRAWN.sub("", line_of(PLAIN._replace(columns=columns), bar))) < columns
        assert "\n" not in line_of(PLAIN, bar)


def test_how_fast_is_reckoned_over_the_last_half_minute() -> None:
    clock = Clock()
    with Bars(io.StringIO(), clock=clock, terminal=PLAIN) as bars:
        bar = bars.add("copying", 100_000)
        for second in range(100):
            clock.seconds += 1
            bar.update(10_000 if second < 60 else 10_000 + (second - 59) * 10)
        assert 9 < bar.rate < 11
        bar.show(False)
        bar.show(True)
        assert bar.rate == 0


def test_a_terminal_that_obeys_nothing_gets_what_is_said_and_how_it_ended() -> None:
    screen = io.StringIO()
    with Bars(screen, keep=True, clock=Clock(), terminal=Terminal(60, obeys=False, colors=False, lines=False)) as bars:
        bar = bars.add("copying", 10)
        bar.update(5)
        bars.say("a note")
        bar.update(10)
    assert screen.getvalue().startswith("a note\ncopying  ####") and screen.getvalue().count("\n") == 2
