"""How a figure is measured: every case in a fresh process, rounds interleaved in random order, median (min..max).

A *case* is a function that does one piece of work and returns named numbers. A *figure* sets one number of one case
beside a number of a peer, measured in the same run, and says how the ratio stands to its floor and its target. The
words are for a person: nothing here passes or fails.

Wall time decides where waiting is part of the work (flushes, latency); CPU time where it is not, because CPU time
hardly moves when the machine is busy with something else.
"""

from __future__ import annotations

import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

Numbers = dict[str, float]


class Skip(Exception):
    """The case cannot run here; the text says what is missing."""


class Case(NamedTuple):
    """One piece of work. ``n`` is its size, ``quick`` the size under ``--quick``; ``rounds`` bounds the rounds."""

    name: str
    run: Callable[[int], Numbers]
    n: int
    quick: int
    rounds: int


CASES: dict[str, Case] = {}


def case(name: str, *, n: int, quick: int, rounds: int = 99) -> Callable[[Callable[[int], Numbers]], Any]:
    """Register a function of ``n`` as a case."""

    def register(function: Callable[[int], Numbers]) -> Callable[[int], Numbers]:
        CASES[name] = Case(name, function, n, quick, rounds)
        return function

    return register


class Figure(NamedTuple):
    """One row of the table. ``ours`` and ``beside`` are "case:number"; without ``beside`` ``ours`` itself is judged."""

    id: str
    what: str
    ours: str
    beside: str | None
    floor: float | None
    target: float
    less_is_better: bool = False
    unit: str = "/s"


class Meter:
    """CPU and wall seconds of a ``with`` block, threads included."""

    wall_s = 0.0
    cpu_s = 0.0

    def __enter__(self) -> Meter:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall_s = time.perf_counter() - self._wall
        self.cpu_s = time.process_time() - self._cpu

    def rates(self, name: str, count: int) -> Numbers:
        """``name``: items a second; ``name cpu``: items a CPU second."""
        return {name: count / self.wall_s, f"{name} cpu": count / max(self.cpu_s, 1e-9)}


def percentile(values: Iterable[float], fraction: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(fraction * len(ordered)))]


def resident_bytes() -> int:
    """The resident memory of this process now (its peak, where the system does not tell)."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text("ascii").split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder of its own for one case, on the disk that ``--dir`` named."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR") or None) as folder:
        yield Path(folder)


# -- running -----------------------------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    rounds: list[Numbers]
    skipped: str | None


def run_here(name: str, n: int) -> None:
    """What the fresh process does: one case, its numbers as the last line."""
    try:
        answer: dict[str, Any] = {"numbers": CASES[name].run(n)}
    except Skip as reason:
        answer = {"skip": str(reason)}
    print(json.dumps(answer))


def run_apart(script: str, name: str, n: int) -> dict[str, Any]:
    command = [sys.executable, "-W", "ignore", script, "--child", name, "--n", str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return {"skip": f"failed: {last[0]}", "trace": done.stderr or last[0]}
    return json.loads(done.stdout.splitlines()[-1])


def run_cases(
    script: str, names: list[str], rounds: int, quick: bool, say: Callable[[str], None]
) -> dict[str, Outcome]:
    """All rounds of all cases; within a round in random order, so that a busy minute hits none of them alone."""
    outcomes = {name: Outcome([], None) for name in names}
    for number in range(rounds):
        order = [name for name in names if number < CASES[name].rounds and outcomes[name].skipped is None]
        random.shuffle(order)
        for position, name in enumerate(order):
            say(f"round {number + 1}/{rounds}, {position + 1}/{len(order)}: {name}")
            found = CASES[name]
            answer = run_apart(script, name, found.quick if quick else found.n)
            if "skip" in answer:
                outcomes[name] = Outcome(outcomes[name].rounds, answer["skip"])
                if "trace" in answer:
                    print(f"\n{name}:\n" + "\n".join(answer["trace"].splitlines()[-7:]), file=sys.stderr)
            else:
                outcomes[name].rounds.append(answer["numbers"])
    return outcomes


# -- judging and printing ----------------------------------------------------------------------------------------------


class Spread(NamedTuple):
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


class Row(NamedTuple):
    figure: Figure
    ours: Spread | None
    beside: Spread | None
    ratio: float | None
    cpu_ratio: float | None
    """The same ratio by CPU time, where both cases count it: what another program on the machine hardly moves."""
    verdict: str


def spread(outcomes: dict[str, Outcome], place: str) -> Spread | str:
    """The spread of a "case:number" over the rounds, or why there is none."""
    name, _, number = place.rpartition(":")
    outcome = outcomes[name]
    values = [numbers[number] for numbers in outcome.rounds if number in numbers]
    return Spread.of(values) if values else outcome.skipped or f"{name} gave no {number}"


def judge(figure: Figure, outcomes: dict[str, Outcome]) -> Row:
    ours = spread(outcomes, figure.ours)
    beside = spread(outcomes, figure.beside) if figure.beside else None
    if isinstance(ours, str) or isinstance(beside, str):
        missing = ours if isinstance(ours, str) else beside
        return Row(figure, None if isinstance(ours, str) else ours, None, None, None, f"not measured: {missing}")
    ratio = ours.median / beside.median if beside else ours.median
    return Row(figure, ours, beside, ratio, cpu_ratio(figure, outcomes), verdict(figure, ratio))


def cpu_ratio(figure: Figure, outcomes: dict[str, Outcome]) -> float | None:
    if figure.beside is None:
        return None
    ours, beside = (spread(outcomes, f"{place} cpu") for place in (figure.ours, figure.beside))
    return None if isinstance(ours, str) or isinstance(beside, str) else ours.median / beside.median


def verdict(figure: Figure, ratio: float) -> str:
    def holds(bound: float) -> bool:
        return ratio <= bound if figure.less_is_better else ratio >= bound

    if holds(figure.target):
        return "meets the target"
    if figure.floor is None:
        return "misses the target"
    return "between floor and target" if holds(figure.floor) else "BELOW THE FLOOR"


def scale(value: float, unit: str) -> tuple[float, str]:
    """The divisor and the unit a person reads: 1,670,000 /s is 1.67 M/s."""
    if unit in ("/s", "B/s", "B"):
        for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if value >= limit:
                return limit, f" {letter}{unit}"
    return 1.0, f" {unit}"


def digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def amount(value: float, unit: str) -> str:
    divisor, suffix = scale(value, unit)
    return digits(value / divisor) + suffix


def spread_text(values: Spread | None, unit: str) -> str:
    if values is None:
        return "-"
    divisor, suffix = scale(values.median, unit)
    median, low, high = (digits(value / divisor) for value in values)
    return f"{median} ({low}..{high}){suffix}"


def cells(row: Row) -> list[str]:
    figure = row.figure
    unit = "x" if figure.beside else figure.unit
    sign = "<=" if figure.less_is_better else ">="
    return [
        figure.id,
        figure.what,
        spread_text(row.ours, figure.unit),
        f"{figure.beside.rpartition(':')[0]}: {spread_text(row.beside, figure.unit)}" if figure.beside else "-",
        "-" if row.ratio is None else amount(row.ratio, unit),
        "-" if row.cpu_ratio is None else amount(row.cpu_ratio, unit),
        "-" if figure.floor is None else f"{sign} {amount(figure.floor, unit)}",
        f"{sign} {amount(figure.target, unit)}",
        row.verdict,
    ]


HEADINGS = [
    "id",
    "figure",
    "measured: median (min..max)",
    "compared with",
    "ratio",
    "by CPU",
    "floor",
    "target",
    "verdict",
]


def plain_table(rows: list[Row]) -> str:
    grid = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in grid) for column in range(len(HEADINGS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in grid
    )


def markdown_table(rows: list[Row]) -> str:
    lines = [HEADINGS, ["---"] * len(HEADINGS), *map(cells, rows)]
    return "\n".join("| " + " | ".join(text.replace("|", "/") for text in line) + " |" for line in lines)
