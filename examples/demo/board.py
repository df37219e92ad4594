"""A handler that fails: it posts late arrivals on a board, and has a bug at midnight and towers that do not answer.

It tries again, and what it cannot do becomes dead letters. Then its second release has the bug fixed, and they are
redriven.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import time as clock_time
from itertools import islice
from pathlib import Path

import anyio
import msgspec

from demo.flights import QUICK_FLIGHTS, read_lines
from demo.places import Places, delete_topics
from dlq import Case, DeadLetters, Retry, Selection
from eventbus import EventBus
from eventbus.cli.progress import Bars

LATE = 2200
"""Flights that landed then or later are on the board: at 22:00."""
MIDNIGHT = 2400
"""The file's midnight. The first release cannot read it."""
SLOW = {"SJU": 1, "AUS": 2, "HOU": 3}
"""Towers, and how many calls about each flight they leave without an answer."""
DELAYS_MS = (50, 100)
TRIES = 2 + len(DELAYS_MS)
"""Calls before a record becomes a dead letter: two at once, and one after each delay."""
_PARTITIONS = 3


class Arrival(msgspec.Struct, frozen=True):
    """A flight that has landed."""

    number: int
    """The row of the file."""
    tailnum: str
    dest: str
    arr_time: int
    """Hours and minutes, as the file has them: 2359, and 2400 for midnight."""


class Posted(msgspec.Struct, frozen=True):
    """A line of the board."""

    number: int
    tailnum: str
    landed: str


class Board(msgspec.Struct, kw_only=True):
    """How the flights came onto the board."""

    flights: int
    calls: dict[int, int]
    """How many flights took how many calls of the first release."""
    cases: list[Case]
    """The dead letters before the bug was fixed, in groups."""
    redriven: int
    again: int
    """How many letters a second redrive has sent."""
    open: int
    """Dead letters that are open at the end."""
    problems: list[str]
    seconds: float


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


def first_release(hhmm: int) -> clock_time:
    return clock_time(hhmm // 100, hhmm % 100)


def second_release(hhmm: int) -> clock_time:
    return clock_time(hhmm // 100 % 24, hhmm % 100)


def build_board(
    places: Places, retry: Retry, calls: Counter[int], slow: dict[str, int], landed_at: Callable[[int], clock_time]
) -> EventBus:
    """The service. ``calls`` counts the calls of the handler for each flight."""
    bus = EventBus(places.url, service="demo")
    for topic in ("arrivals", "board"):
        bus.topic(f"{places.prefix}{topic}", partitions=_PARTITIONS)

    @bus.consumer(f"{places.prefix}arrivals", group=f"{places.prefix}board-maker", retry=retry)
    @bus.producer(f"{places.prefix}board", key=lambda posted: posted.tailnum)
    def post(arrival: Arrival) -> Posted:
        calls[arrival.number] += 1
        landed = landed_at(arrival.arr_time)
        if calls[arrival.number] <= slow.get(arrival.dest, 0):
            raise TimeoutError(f"the tower of {arrival.dest} did not answer")
        return Posted(arrival.number, arrival.tailnum, landed.isoformat("minutes"))

    del post  # the bus has it
    return bus


async def run_board(places: Places, csv: Path, bars: Bars) -> Board:
    """Run a release that fails, group its dead letters, and redrive them with the next release."""
    logging.getLogger("dlq").addHandler(logging.NullHandler())  # the demo shows its failures itself
    started, arrivals, calls = time.monotonic(), read_arrivals(csv), Counter[int]()
    # The counts are to be exact: no delay is lengthened at random, and no try is saved because so many fail.
    delays = [f"{delay_ms}ms" for delay_ms in DELAYS_MS]
    retry = Retry(immediate=1, delays=delays, jitter=False)
    prefix, bar = places.prefix, bars.bar("arrivals -> board", len(arrivals))
    dead = f"dlq.{prefix}board-maker"
    async with EventBus(places.url) as bus:
        topics = (f"{prefix}arrivals", f"{prefix}board", f"retry.{prefix}board-maker", dead)
        await delete_topics(bus, *topics)
        await bus.admin.create_topic(f"{prefix}arrivals", _PARTITIONS)
        await bus.send_many(f"{prefix}arrivals", arrivals, key=lambda arrival: arrival.tailnum)
        async with build_board(places, retry, calls, SLOW, first_release) as service:
            await _settle(service, retry)
        before = await _posted(bus, places)
        bar.update(len(before))
        letters = DeadLetters(bus, dead)
        cases = await letters.groups()
        async with build_board(places, retry, Counter(), {}, second_release) as service:
            note = "midnight is 00:00"
            redriven = (await letters.redrive(Selection(topic=dead), by="demo", note=note)).redriven
            again = (await letters.redrive(Selection(topic=dead), by="demo", note=note)).redriven
            await _settle(service, retry)
        after = await _posted(bus, places)
        bar.update(len(after))
        [described] = await letters.topics()
    board = Board(
        flights=len(arrivals),
        calls=dict(sorted(Counter(calls.values()).items())),
        cases=cases,
        redriven=redriven,
        again=again,
        open=described.statuses.get("open", 0),
        problems=differences(arrivals, before, after) + wrong_calls(arrivals, calls),
        seconds=time.monotonic() - started,
    )
    bad = sum(one.arr_time == MIDNIGHT for one in arrivals)
    found = (described.count, board.redriven, board.again, board.open)
    if found != (bad, bad, 0, 0):
        text = "{} dead letters, {} redriven, then {}, {} open".format(*found)
        board.problems.append(f"board: {text}; expected {bad}, {bad}, then 0, 0")
    return board


async def _posted(bus: EventBus, places: Places) -> list[Posted]:
    async with bus.new_consumer(f"{places.prefix}board", value=Posted) as reader:
        return [record.value async for record in reader.until_end() if record.value is not None]


async def _settle(service: EventBus, retry: Retry) -> None:
    """Return when no record waits for its next try: a drain alone does not wait for what is not due yet."""
    await service.drain()
    while any(signals.waiting for signals in retry.signals()):
        await anyio.sleep(0.02)
        await service.drain()


def differences(arrivals: Sequence[Arrival], before: Sequence[Posted], after: Sequence[Posted]) -> list[str]:
    """Return what is wrong: every flight must be there once, at its time, and a plane's flights in their order.

    ``before``, ``after``: the board of the first release, and in the end.
    """
    problems: list[str] = []
    expected = [(one.number, one.tailnum, f"{one.arr_time // 100 % 24:02}:{one.arr_time % 100:02}") for one in arrivals]
    bad = {one.number for one in arrivals if one.arr_time == MIDNIGHT}
    first = [one for one in expected if one[0] not in bad]
    for release, wanted, found in (("first", first, before), ("second", expected, after)):
        lines = sorted((one.number, one.tailnum, one.landed) for one in found)
        if lines != wanted:
            missing, more = len({*wanted} - {*lines}), len(lines) - len({*lines})
            problems.append(f"board, {release} release: {missing:,} of the flights missing, {more:,} there twice")
    planes: dict[str, list[int]] = {}
    for one in before:
        planes.setdefault(one.tailnum, []).append(one.number)
    return problems + [
        f"board: flights of {plane} out of order" for plane, seen in planes.items() if seen != sorted(seen)
    ]


def wrong_calls(arrivals: Sequence[Arrival], calls: Counter[int]) -> list[str]:
    """Return the flights for which the first release was not called as often as it should."""
    expected = {one.number: TRIES if one.arr_time == MIDNIGHT else 1 + SLOW.get(one.dest, 0) for one in arrivals}
    return [
        f"board: {calls[number]} calls for flight {number}, expected {count}"
        for number, count in expected.items()
        if calls[number] != count
    ]
