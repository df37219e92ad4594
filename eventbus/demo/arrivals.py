"""Flights on their way onto a board of late arrivals: what may go wrong with them, and whether it went as it should.

Some cannot be taken by the service that posts them: those that landed at midnight, which the file writes as 2400, and a
few whose bytes are no JSON. Some cannot be taken yet: some towers that it asks do not answer at once, and one is down.
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
"""Flights that landed then or later are on the board: at 22:00."""
SLOW = {"SJU": 1, "AUS": 2, "HOU": 3}
"""Towers, and how many calls about each flight they leave without an answer."""
DOWN = "BTV"
"""The tower that does not answer anybody, until every flight it holds up has been tried `TRIES` times in vain."""
ZIPPED = "SAN"
"""Flights to there were exported by somebody who compresses what he writes."""

_MIDNIGHT = 2400
DELAYS_MS = (50, 100)
TRIES = 2 + len(DELAYS_MS)
"""Calls that a record gets whose error is no outage: one, one more at once, and one after each delay."""


class Arrival(msgspec.Struct, frozen=True):
    """A flight that has landed."""

    number: int
    """Its row."""
    tailnum: str
    dest: str
    arr_time: int
    """Hours and minutes, as the file has them: 2359, and 2400 for midnight."""


class Posted(msgspec.Struct, frozen=True):
    """A line of the board."""

    number: int
    tailnum: str
    landed: str


def read_arrivals(path: Path) -> list[Arrival]:
    """Those of the file's first days that landed late."""
    lines = read_lines(path)
    header = next(lines)
    tail, dest, landed = (header.index(name) for name in ("tailnum", "dest", "arr_time"))
    return [
        Arrival(number, cells[tail], cells[dest], int(cells[landed]))
        for number, cells in enumerate(islice(lines, QUICK_FLIGHTS))
        if cells[landed].isdigit() and int(cells[landed]) >= LATE
    ]


class Waits(NamedTuple):
    """What the tower that is down holds up."""

    first: set[int]
    """For each plane the first flight that its tower has to be asked about: it is tried in vain."""
    behind: set[int]
    """Later flights of these planes, wherever they landed: they wait behind it, and nobody tries them."""


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
    """How many flights took how much, from the calls of the handler and from what the first release has posted."""
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
    """What is not as it should be: every flight once, at its time, those of a plane in their order, the bad ones last.

    ``before``, ``after``: the board of the first release, and in the end.
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
    """Whether the first release cannot take it."""
    return arrival.dest == ZIPPED or arrival.arr_time == _MIDNIGHT


def wrong_counts(arrivals: Sequence[Arrival], calls: Mapping[int, int], waits: Waits) -> list[str]:
    """Flights that the first release was not called with as often as it should."""
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
