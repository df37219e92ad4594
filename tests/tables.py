"""Transition tables as Markdown, between markers in state-machines.md: generated from the code, never by hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum

from tests.named import find_page

PAGE = find_page("state-machines.md")


def render(transitions: Mapping[tuple[Enum, Enum], Enum]) -> str:
    """A row per state, a column per event; below it what each event is (its value)."""
    states = dict.fromkeys(state for state, _ in transitions)
    states |= dict.fromkeys(transitions.values())
    events = dict.fromkeys(event for _, event in transitions)
    rows = [["", *map(_name, events)], ["---"] * (len(events) + 1)]
    for state in states:
        following = [transitions.get((state, event)) for event in events]
        rows.append([f"**{_name(state)}**", *("" if next is None else _name(next) for next in following)])
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    rules = "\n".join(f"- *{_name(event)}*: {event.value}" for event in events)
    return f"{table}\n\n{rules}"


def _name(member: Enum) -> str:
    """PREPARING_REBALANCE is PreparingRebalance, as Kafka writes it."""
    return member.name.title().replace("_", "")


def check(name: str, transitions: Mapping[tuple[Enum, Enum], Enum], rewrite: bool) -> None:
    """AssertionError unless the page has the table between ``<!-- table: name -->`` and ``<!-- end -->``."""
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    assert len(pattern.findall(text)) == 1, f"state-machines.md has no place for the table of {name}"
    drawn = pattern.sub(lambda match: f"{match[1]}{render(transitions)}\n{match[2]}", text)
    if rewrite:
        PAGE.write_text(drawn, encoding="utf-8")
    assert drawn == PAGE.read_text(encoding="utf-8"), (
        f"state-machines.md does not have the {name} table of the code; `pytest --rewrite` draws it"
    )
