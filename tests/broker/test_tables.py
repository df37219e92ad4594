"""The transition tables on state-machines.md are those of the code."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import pytest

from eventbus.coordinator.group_rules import TRANSITIONS, Event, State
from tests import tables


def test_the_table_of_groups(rewrite: bool) -> None:
    tables.check("group", TRANSITIONS, rewrite)


def test_a_dead_group_stays_dead_and_every_state_and_event_is_used() -> None:
    assert not any(state is State.DEAD for state, _ in TRANSITIONS)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {*TRANSITIONS.values()} == set(State)


class Light(Enum):
    RED = 1
    DARK_GREEN = 2


class Push(Enum):
    BUTTON_DOWN = "somebody wants to cross"
    TIME = "a minute is over"


def test_drawing() -> None:
    table = {(Light.RED, Push.TIME): Light.DARK_GREEN, (Light.DARK_GREEN, Push.BUTTON_DOWN): Light.RED}
    assert tables.render(table).split("\n") == [
        "|  | Time | ButtonDown |",
        "| --- | --- | --- |",
        "| **Red** | DarkGreen |  |",
        "| **DarkGreen** |  | Red |",
        "",
        "- *Time*: a minute is over",
        "- *ButtonDown*: somebody wants to cross",
    ]


def test_a_table_that_differs_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: light -->\nold\n<!-- end -->\nafter\n")
    monkeypatch.setattr(tables, "PAGE", page)
    table = {(Light.RED, Push.TIME): Light.DARK_GREEN}
    with pytest.raises(AssertionError, match="--rewrite"):
        tables.check("light", table, rewrite=False)
    tables.check("light", table, rewrite=True)
    tables.check("light", table, rewrite=False)
    assert page.read_text().startswith("before\n<!-- table: light -->\n|  | Time |\n")
    with pytest.raises(AssertionError, match="no place for the table of other"):
        tables.check("other", table, rewrite=False)
