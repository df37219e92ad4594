"""Runs the steps of the demo, compares the results, and prints what happened."""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from eventbus.cli.demo.display import open_display
from eventbus.cli.demo.flights import (
    FLIGHTS,
    QUICK_FLIGHTS,
    Table,
    by_carrier,
    csv_path,
    differences,
    read_airlines,
    table_from_csv,
)
from eventbus.cli.demo.publish import TOPIC
from eventbus.cli.demo.service import DELAYS, GROUP, Outcome, Story
from eventbus.cli.demo.warehouse import Landed, land_flights
from eventbus.cli.output import Output
from eventbus.cli.shell import run_async
from eventbus.errors import ConfigError

_SHOWN_DIFFERENCES = 5


class Places(msgspec.Struct, frozen=True):
    """Where a demo directory keeps its things."""

    root: Path

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def warehouse(self) -> Path:
        return self.root / "warehouse"

    @property
    def table(self) -> Path:
        return self.warehouse / TOPIC

    @property
    def url(self) -> str:
        return f"file://{self.log}" if self.log.is_absolute() else f"file://./{self.log}"


class Step(msgspec.Struct, frozen=True):
    """A line of the summary."""

    step: str
    records: int
    seconds: float


def demo(args: argparse.Namespace) -> int:
    out, places, csv = Output.of(args), Places(Path(args.dir)), csv_path()
    if args.fresh:
        remove_earlier_run(places)
    limit = QUICK_FLIGHTS if args.quick else FLIGHTS
    steps: list[Step] = []
    with open_display(out) as display:
        display.say(f"{limit:,} flights of 2013 through {places.url}")
        story = Story(places.url, csv, limit, display)
        outcome = _run_story(story)
        limit = story.limit
        if outcome.interrupted:
            return _interrupted(
                out, f"{outcome.held:,} of {limit:,} flights are published, what was handled is committed"
            )
        steps.append(Step("publish flights, make delays, count", outcome.published, outcome.seconds))
        started = time.monotonic()
        expected = table_from_csv(csv, limit)
        steps.append(Step("the same table by a loop over the CSV", limit, time.monotonic() - started))
        landed = None
        if not args.quick:
            try:
                landed = land_flights(places.url, places.table, outcome.held, display)
            except KeyboardInterrupt:
                return _interrupted(out, "the log is complete; landing goes on at the last whole batch")
            steps.append(Step("Spark: start, land as Parquet", landed.rows, landed.land_seconds))
            steps.append(Step("Spark: query", outcome.held, landed.query_seconds))
    problems = check(expected, outcome, landed)
    _report(out, places, expected, outcome, landed, steps, problems)
    return 1 if problems else 0


def _run_story(story: Story) -> Outcome:
    async def main() -> None:
        await story.run()

    run_async(main)
    return story.outcome


def _interrupted(out: Output, what: str) -> int:
    out.note(f"interrupted: {what}\n  run the same command again: it goes on there, nothing doubles")
    return 130


def check(expected: Table, outcome: Outcome, landed: Landed | None) -> list[str]:
    """What is not equal to plain Python over the CSV, a line each; nothing when all is well."""
    problems = [f"running table: {line}" for line in differences(expected, outcome.table)]
    if landed is not None:
        problems += [f"warehouse: {line}" for line in differences(expected, landed.table)]
        problems += [
            f"warehouse: mean delay of {group.carrier} {group.month}: expected {entry.mean_delay}, "
            f"found {landed.means.get(group)}"
            for group, entry in sorted(expected.items())
            if landed.means.get(group) != entry.mean_delay
        ]
    return problems


def remove_earlier_run(places: Places) -> None:
    """Delete the log and the warehouse, and nothing else.

    Raises:
        LogLocked: another process works there.
        ConfigError: the directory ``log`` is none of ours.
    """
    from eventbus.log.storage import FileStorage

    if places.log.exists():
        if not (places.log / "meta.properties").is_file() and any(places.log.iterdir()):
            raise ConfigError(f"{places.log} does not look like a log (no meta.properties): --fresh leaves it alone")
        storage = FileStorage(str(places.log))
        storage.lock()
        storage.unlock()
        shutil.rmtree(places.log)
    if places.table.exists():
        shutil.rmtree(places.table)


# printing -------------------------------------------------------------------------------------------------------------


def _report(
    out: Output,
    places: Places,
    expected: Table,
    outcome: Outcome,
    landed: Landed | None,
    steps: list[Step],
    problems: list[str],
) -> None:
    if out.json:
        out.data(_as_json(places, expected, outcome, landed, steps, problems))
        return
    _print_tables(out, outcome.table if landed is None else landed.table, landed is not None)
    _print_steps(out, steps)
    log_files, log_bytes = _measure(places.log)
    out.line(f"log        {places.log}: {log_files} files, {log_bytes / 1e6:.1f} MB")
    if landed is not None:
        out.line(f"warehouse  {places.table}: {landed.files} Parquet files, {landed.size_bytes / 1e6:.1f} MB")
    out.line(f"delays     {_delays_line(outcome)}")
    if problems:
        for line in problems[:_SHOWN_DIFFERENCES]:
            out.note(f"NOT EQUAL  {line}")
        out.note(f"error: {len(problems)} differences to plain Python over the CSV: start over with --fresh")
        return
    sides = "the running table" if landed is None else "the running table and the Spark query"
    out.line(f"EQUAL      {sides} = plain Python over the CSV, all {len(expected)} groups of carrier and month")
    out.line()
    out.line("try next")
    for line in next_commands(places, landed is not None):
        out.line(f"  {line}")


def _delays_line(outcome: Outcome) -> str:
    text = f"{outcome.delays_made:,} made in this run"
    if outcome.doubled:
        text += (
            f"; {outcome.doubled:,} are there twice since a run was killed (at-least-once), the table counts them once"
        )
    return text


def _print_tables(out: Output, table: Table, months: bool) -> None:
    names = read_airlines(csv_path())
    out.table(
        ["carrier", "airline", "flights", "cancelled", "mean delay (min)"],
        [
            (carrier, names.get(carrier, ""), entry.flights, entry.cancelled, entry.mean_delay)
            for carrier, entry in by_carrier(table).items()
        ],
        title="departures from New York City in 2013",
    )
    if not months:
        return
    carriers = sorted({group.carrier for group in table})
    numbers = sorted({group.month for group in table})
    columns = ["carrier", *map(str, numbers)]
    cells = {(group.carrier, group.month): entry for group, entry in table.items()}
    flights: list[tuple[Any, ...]] = []
    means: list[tuple[Any, ...]] = []
    for carrier in carriers:
        entries = [cells.get((carrier, month)) for month in numbers]
        flights.append((carrier, *(entry.flights if entry else None for entry in entries)))
        means.append(
            (
                carrier,
                *(round(entry.mean_delay, 1) if entry and entry.mean_delay is not None else None for entry in entries),
            )
        )
    out.table(columns, flights, title="flights per carrier and month (from the Parquet files)")
    out.table(columns, means, title="mean departure delay in minutes per carrier and month (from the Parquet files)")


def _print_steps(out: Output, steps: Iterable[Step]) -> None:
    out.table(
        ["step", "records", "seconds", "records/s"],
        [(step.step, step.records, step.seconds, round(step.records / step.seconds)) for step in steps],
    )


def next_commands(places: Places, landed: bool) -> list[str]:
    """Commands that work on the demo's directory as they stand here."""
    url = f"--url {places.url}"
    commands = [
        f"eventbus topics describe {TOPIC} {url}",
        f"eventbus consume {DELAYS} --from-beginning --max-messages 5 --property print.key=true {url}",
        f"eventbus consume {TOPIC} --partition 0 --offset 1000 --max-messages 1 --json {url}",
        f"eventbus offsets {TOPIC} --group {GROUP} {url}",
        f"eventbus offsets {TOPIC} --time 2013-07-04 {url}",
        f"eventbus log verify {places.log}",
        f"eventbus log dump {places.log / f'{TOPIC}-0' / '00000000000000000000.log'} | head",
    ]
    if landed:
        table = places.table
        commands.append(
            f"python -c \"import pandas; print(pandas.read_parquet('{table}').groupby('carrier').dep_delay.mean())\""
        )
    return commands


def _measure(directory: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _as_json(
    places: Places,
    expected: Table,
    outcome: Outcome,
    landed: Landed | None,
    steps: list[Step],
    problems: list[str],
) -> dict[str, Any]:
    table = outcome.table if landed is None else landed.table
    return {
        "url": places.url,
        "warehouse": None if landed is None else str(places.table),
        "flights": outcome.held,
        "published": outcome.published,
        "delays_made": outcome.delays_made,
        "delays_doubled": outcome.doubled,
        "landed": None if landed is None else landed.rows,
        "parquet_files": None if landed is None else landed.files,
        "equal": not problems,
        "groups": len(expected),
        "differences": problems[:_SHOWN_DIFFERENCES],
        "steps": steps,
        "table": [
            {
                "carrier": group.carrier,
                "month": group.month,
                "flights": entry.flights,
                "cancelled": entry.cancelled,
                "mean_dep_delay": entry.mean_delay,
            }
            for group, entry in sorted(table.items())
        ],
    }
