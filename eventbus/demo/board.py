"""A handler that fails: the service that posts late arrivals on a board has bugs and outages; see `arrivals`.

Failed records are retried, and then become dead letters. The second release of the service fixes the bugs, and the dead
letters are redriven.
"""

from __future__ import annotations

import gzip
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from datetime import time as clock_time
from pathlib import Path
from typing import Any

import anyio
import msgspec

from dlq import Case, DeadLetters, Retry, Selection
from eventbus import EventBus
from eventbus.cli.shell import run_async
from eventbus.demo.arrivals import (
    DELAYS_MS,
    DOWN,
    SLOW,
    TRIES,
    ZIPPED,
    Arrival,
    Posted,
    differences,
    is_bad,
    ladder,
    read_arrivals,
    waits_for_the_tower,
    wrong_counts,
)
from eventbus.demo.display import Display
from eventbus.demo.names import Names, Places
from serdes import Serde

_GZIP = b"\x1f\x8b"
_PATIENCE_SECONDS = 60
_LOOK_SECONDS = 0.02
_PARTITIONS = 3


class Board(msgspec.Struct, kw_only=True):
    """The results of the board."""

    flights: int
    ladder: list[tuple[str, int]]
    """The number of flights by their tries."""
    cases: list[Case]
    """The dead letters before the bugs were fixed, in groups."""
    dead: int
    redriven: int
    again: int
    """The number of records sent by a second redrive."""
    open: int
    """Dead letters that are still open at the end."""
    posted: int
    problems: list[str]
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.redriven:,} dead letters, midnight written as 2400 and bytes that are no JSON, by the next "
            f"release;\n           {self.open:,} are open, a second redrive sent {self.again:,}. "
            f"All {self.posted:,} late arrivals are on the board,\n           each once, a plane's in their order"
        )


class Towers:
    """The towers that the handler calls."""

    def __init__(self, patient: Collection[int] = ()) -> None:
        self.calls: Counter[int] = Counter()
        """The handler's calls for each flight."""
        self.is_down = bool(patient)
        self.were_asked = anyio.Event()
        """Set when each ``patient`` flight was tried so often that an ordinary error would have made a dead letter."""
        self._patient = set(patient)

    def ask(self, arrival: Arrival) -> None:
        calls = self.calls[arrival.number]
        if arrival.dest == DOWN and self.is_down:
            if calls >= TRIES:
                self._patient.discard(arrival.number)
            if not self._patient:
                self.were_asked.set()
            raise ConnectionError(f"the tower of {DOWN} is down")
        if calls <= SLOW.get(arrival.dest, 0):
            raise TimeoutError(f"the tower of {arrival.dest} did not answer")


class Zipped:
    """The format of some exporters, which the second release reads: JSON, compressed or not."""

    _json = msgspec.json.Decoder(Arrival)

    def serialize(self, topic: str, value: Any) -> bytes:
        data = msgspec.json.encode(value)
        return gzip.compress(data, mtime=0) if value.dest == ZIPPED else data

    def deserialize(self, topic: str, data: bytes) -> Arrival:
        return self._json.decode(gzip.decompress(data) if data.startswith(_GZIP) else data)


def policy() -> Retry:
    """Return a ``dlq.Retry``: a retry at once, then after two delays; flights of other planes continue meanwhile.

    The counts must be exact: no delay is randomised, and no try is skipped because so many fail.
    """
    delays = [f"{delay_ms}ms" for delay_ms in DELAYS_MS]
    return Retry(immediate=1, delays=delays, jitter=False, budget=None)


def build_board(
    url: str,
    names: Names,
    retry: Retry,
    towers: Towers,
    landed_at: Callable[[int], clock_time],
    serdes: Mapping[type, Serde] | None = None,
) -> EventBus:
    """Build the service that posts arrivals."""
    bus = EventBus(url, service="demo", serdes=serdes)
    bus.topic(names.arrivals, partitions=_PARTITIONS)
    bus.topic(names.board, partitions=_PARTITIONS)

    @bus.consumer(names.arrivals, group=names.board_maker, retry=retry)
    @bus.producer(names.board, key=lambda posted: posted.tailnum)
    def post(arrival: Arrival) -> Posted:
        towers.calls[arrival.number] += 1
        landed = landed_at(arrival.arr_time)
        towers.ask(arrival)
        return Posted(arrival.number, arrival.tailnum, landed.isoformat("minutes"))

    del post  # the bus has it
    return bus


def first_release(hhmm: int) -> clock_time:
    return clock_time(hhmm // 100, hhmm % 100)


def second_release(hhmm: int) -> clock_time:
    return clock_time(hhmm // 100 % 24, hhmm % 100)


def run_board(places: Places, csv: Path, display: Display) -> Board:
    """Run the demo of arrivals, in topics that are created again each time."""
    arrivals = read_arrivals(csv)
    bar = display.bar("arrivals -> board", len(arrivals))
    results: list[Board] = []

    async def story() -> None:
        results.append(await _Story(places, arrivals).run(bar.update))

    with _quietly():
        run_async(story)
    return results[0]


class _Story:
    """Runs a release that fails, inspects its dead letters, and redrives them for the next release."""

    def __init__(self, places: Places, arrivals: Sequence[Arrival]) -> None:
        self._url, self._names, self._arrivals = places.url, places.names, arrivals
        self._waits = waits_for_the_tower(arrivals)

    async def run(self, on_progress: Callable[[int], None]) -> Board:
        started = time.monotonic()
        names, retry, towers = self._names, policy(), Towers(self._waits.first)
        async with EventBus(self._url, serdes={Arrival: Zipped()}) as bus:  # a log in memory exists as long as this bus
            await self._publish(bus)
            async with build_board(self._url, names, retry, towers, first_release) as service:
                with anyio.move_on_after(_PATIENCE_SECONDS):
                    await towers.were_asked.wait()
                towers.is_down = False
                await _settle(service, retry)
            before = await self._posted(bus)
            on_progress(len(before))
            letters = DeadLetters(bus, names.dead)
            cases = await letters.groups()
            zipped = {Arrival: Zipped()}
            async with build_board(self._url, names, retry, Towers(), second_release, serdes=zipped) as service:
                redriven, again = await self._redrive(letters), await self._redrive(letters)
                await _settle(service, retry)
            posted = await self._posted(bus)
            on_progress(len(posted))
            [dead] = await letters.topics()
        problems = differences(self._arrivals, before, posted) + wrong_counts(self._arrivals, towers.calls, self._waits)
        board = Board(
            flights=len(self._arrivals),
            ladder=ladder(self._arrivals, towers.calls, self._waits, before),
            cases=cases,
            dead=dead.count,
            redriven=redriven,
            again=again,
            open=dead.statuses.get("open", 0),
            posted=len(posted),
            problems=problems,
            seconds=time.monotonic() - started,
        )
        problems += wrong_letters(board, sum(map(is_bad, self._arrivals)))
        return board

    async def _publish(self, bus: EventBus) -> None:
        names = self._names
        there = set(names.of_the_board).intersection(await bus.admin.list_topics())
        if there:  # of an earlier run
            await bus.admin.delete_topics(sorted(there))
        await bus.admin.create_topic(names.arrivals, _PARTITIONS)
        await bus.send_many(names.arrivals, self._arrivals, key=lambda arrival: arrival.tailnum)

    async def _redrive(self, letters: DeadLetters) -> int:
        """Redrive the dead letters; return how many were sent back."""
        done = await letters.redrive(
            Selection(topic=self._names.dead), by="demo", note="midnight is 00:00, and what is compressed is read"
        )
        return done.redriven

    async def _posted(self, bus: EventBus) -> list[Posted]:
        async with bus.new_consumer(self._names.board, value=Posted) as reader:
            return [record.value async for record in reader.until_end() if record.value is not None]


async def _settle(service: EventBus, retry: Retry) -> None:
    """Return when nothing waits for a retry any more: a drain alone does not wait for what is not due yet."""
    await service.drain()
    while any(signals.waiting for signals in retry.signals()):
        await anyio.sleep(_LOOK_SECONDS)
        await service.drain()


def wrong_letters(board: Board, bad: int) -> list[str]:
    """Return errors in the numbers of dead letters."""
    found = (board.dead, board.redriven, board.again, board.open)
    if found == (bad, bad, 0, 0) and sum(case.count for case in board.cases) == bad:
        return []
    counts = "{} dead letters, {} redriven, then {}, {} open".format(*found)
    return [f"board: {counts}; expected {bad}, {bad}, then 0, 0"]


@contextmanager
def _quietly() -> Generator[None]:
    """Silence the log of failures, which the demo reports itself."""
    logger, nowhere = logging.getLogger("dlq"), logging.NullHandler()
    logger.addHandler(nowhere)
    try:
        yield
    finally:
        logger.removeHandler(nowhere)
