"""Flights for a board of late arrivals: which of them must fail, and whether the results are correct.

Some cannot be handled by the first release of the service: flights that landed at midnight, which the file writes as
2400, and a few whose bytes are not JSON. Some cannot be handled yet: some towers that it calls do not answer at once,
and one is down.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from eventbus.demo.flights import QUICK_FLIGHTS, read_lines

LATE = 2200
"""Flights that landed at or after this time are on the board: 22:00."""
SLOW = {"SJU": 1, "AUS": 2, "HOU": 3}
"""Towers, and how many calls about each flight they leave without an answer."""
DOWN = "BTV"
"""The tower that does not answer until every flight that waits for it has been tried `TRIES` times without success."""
ZIPPED = "SAN"
"""Flights to this airport were exported in a compressed format."""

_MIDNIGHT = 2400
DELAYS_MS = (50, 100)
TRIES = 2 + len(DELAYS_MS)
"""The calls of a record whose error is not an outage: one, another at once, and one after each delay."""


class Arrival(msgspec.Struct, frozen=True):
    """A flight that has landed."""

    number: int
    """Its row number."""
    tailnum: str
    dest: str
    arr_time: int
    """Hours and minutes, as in the file: 2359, and 2400 for midnight."""


class Posted(msgspec.Struct, frozen=True):
    """A line of the board."""

    number: int
    tailnum: str
    landed: str


def read_arrivals(path: Path) -> list[Arrival]:
    """Return the flights of the file's first days that landed late."""
    lines = read_lines(path)
    header = next(lines)
    tail, dest, landed = (header.index(name) for name in ("tailnum", "dest", "arr_time"))
    return [
        Arrival(number, cells[tail], cells[dest], int(cells[landed]))
        for number, cells in enumerate(islice(lines, QUICK_FLIGHTS))
        if cells[landed].isdigit() and int(cells[landed]) >= LATE
    ]


class Waits(NamedTuple):
    """The flights that wait for the tower that is down."""

    first: set[int]
    """The first flight of each plane for which its tower must be called: tried without success."""
    behind: set[int]
    """Later flights of these planes, wherever they landed: they wait for it, untried."""


def waits_for_the_tower(arrivals: Iterable[Arrival]) -> Waits:
    first, behind, planes = set[int](), set[int](), set[str]()
    for arrival in arrivals:
        if arrival.tailnum in planes:
            behind.add(arrival.number)
        elif arrival.dest == DOWN:
            planes.add(arrival.tailnum)
            first.add(arrival.number)
    return Waits(first, behind)


def ladder(
    arrivals: Sequence[Arrival], calls: Mapping[int, int], waits: Waits, before: Collection[Posted]
) -> list[tuple[str, int]]:
    """Return the number of flights by their tries, from the handler's calls and the results of the first release."""
    posted = {one.number for one in before}
    free = posted - waits.first - waits.behind
    took = Counter(calls[number] for number in free)
    rungs = ["posted at the first call", "called again at once"]
    texts = [f"{delay_ms} ms" for delay_ms in DELAYS_MS]
    rungs += [f"tried again after {' and '.join(texts[: count + 1])}" for count in range(len(texts))]
    return [
        *((rung, took[count]) for count, rung in enumerate(rungs, start=1)),
        (f"tried until the tower of {DOWN} answered", len(posted & waits.first)),
        ("waited behind one of those, untried: the same plane", len(posted & waits.behind)),
        ("dead letters", len(arrivals) - len(posted)),
    ]


def differences(arrivals: Sequence[Arrival], before: Sequence[Posted], after: Sequence[Posted]) -> list[str]:
    """Return the errors in the results: every flight must be there once, with its time, and in the order of its plane.

    ``before``, ``after``: the board of the first release, and at the end. The bad flights come last.
    """
    problems: list[str] = []
    bad = {one.number for one in arrivals if is_bad(one)}
    expected = [(one.number, one.tailnum, f"{one.arr_time // 100 % 24:02}:{one.arr_time % 100:02}") for one in arrivals]
    first = [one for one in expected if one[0] not in bad]
    for release, wanted, found in (("first", first, before), ("second", expected, after)):
        lines = sorted((one.number, one.tailnum, one.landed) for one in found)
        if lines != wanted:
            missing, more = len({*wanted} - {*lines}), len(lines) - len({*lines})
            problems.append(f"board, {release} release: {missing:,} of the flights missing, {more:,} there twice")
    planes: dict[str, list[int]] = {}
    for one in before:
        planes.setdefault(one.tailnum, []).append(one.number)
    problems += [f"board: flights of {plane} out of order" for plane, seen in planes.items() if seen != sorted(seen)]
    return problems


def is_bad(arrival: Arrival) -> bool:
    """True if the first release cannot handle the flight."""
    return arrival.dest == ZIPPED or arrival.arr_time == _MIDNIGHT


def wrong_counts(arrivals: Sequence[Arrival], calls: Mapping[int, int], waits: Waits) -> list[str]:
    """Return the flights for which the first release was not called as often as it should."""
    problems: list[str] = []
    for one in arrivals:
        count = calls[one.number]
        if one.dest == ZIPPED:
            is_right = count == 0
        elif one.arr_time == _MIDNIGHT:
            is_right = count == TRIES
        elif one.number in waits.first:
            is_right = count > TRIES
        else:
            is_right = count == 1 + SLOW.get(one.dest, 0)
        if not is_right:
            problems.append(f"board: {count} calls for flight {one.number} to {one.dest}, landed at {one.arr_time}")
    return problems
