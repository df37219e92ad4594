"""Runs the steps of the demo and compares the results."""

from __future__ import annotations

import argparse
import logging
import shutil
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from eventbus.cli.demo.bank import remove_log, run_bank
from eventbus.cli.demo.display import Display, open_display
from eventbus.cli.demo.flights import FLIGHTS, QUICK_FLIGHTS, Table, csv_path, differences, table_from_csv
from eventbus.cli.demo.report import Places, Run, Step, print_report
from eventbus.cli.demo.service import Outcome, Story
from eventbus.cli.demo.warehouse import Landed, land_flights
from eventbus.cli.output import Output
from eventbus.cli.shell import run_async

_BANK_STOPPED = "the log of flights is complete; the transfers begin anew"
_LANDING_STOPPED = "the log is complete; landing goes on after the last whole batch"


def demo(args: argparse.Namespace) -> int:
    """The exit code: 0 when every table equals plain Python's, 1 when not, 130 after Ctrl-C."""
    out, places, csv = Output.of(args), Places(Path(args.dir)), csv_path()
    if args.fresh:
        remove_earlier_run(places)
    with open_display(out) as display:
        display.say(f"flights of 2013 through {places.url}")
        story = Story(places.url, csv, QUICK_FLIGHTS if args.quick else FLIGHTS, display)
        run_async(story.run)
        outcome = story.outcome
        if outcome.interrupted:
            published = f"{outcome.held:,} of {story.limit:,} flights are published"
            return _interrupted(out, f"{published}, what was handled is committed")
        try:
            bank = run_bank(places.bank, places.bank_url, display)
        except KeyboardInterrupt:
            return _interrupted(out, _BANK_STOPPED)
        started = time.monotonic()
        expected = table_from_csv(csv, story.limit)
        steps = [
            Step("publish flights", outcome.published, outcome.publish_seconds),
            Step("validate, publish delays", outcome.delays_made, outcome.handle_seconds),
            Step("count per carrier and month", outcome.counted, outcome.count_seconds),
            Step("transfers, killed and restarted", bank.transfers, bank.seconds),
            Step("the same by a loop over the CSV", story.limit, time.monotonic() - started),
        ]
        landed = None
        if not args.quick:
            landed = _land(places, outcome.held, display)
            if landed is None:
                return _interrupted(out, _LANDING_STOPPED)
            steps.append(Step("Spark: start, land as Parquet", landed.rows, landed.land_seconds))
            steps.append(Step("Spark: query", outcome.held, landed.query_seconds))
    problems = check(expected, outcome, landed) + bank.problems
    run = Run(places, expected, outcome, bank, landed, steps, problems)
    print_report(out, run)
    return 1 if run.problems else 0


def _land(places: Places, held: int, display: Display) -> Landed | None:
    """What landing brought; None after Ctrl-C."""
    try:
        with _without_interrupts_in_the_log():
            return land_flights(places.url, places.table, held, display)
    except KeyboardInterrupt:
        return None
    except Exception as error:
        cause: BaseException | None = error  # Ctrl-C inside a call to the JVM may come out as py4j's own error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                return None
            cause = cause.__cause__ or cause.__context__
        raise


@contextmanager
def _without_interrupts_in_the_log() -> Generator[None]:
    """py4j reports a Ctrl-C to the root logger, traceback and all, before it passes it on."""
    root = logging.getLogger()

    def keep(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    root.addFilter(keep)
    try:
        yield
    finally:
        root.removeFilter(keep)


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
    """Delete the logs and the table, and nothing else.

    Raises:
        LogLocked: another process works there.
        ConfigError: one of the directories is none of ours.
    """
    for directory in (places.log, places.bank):
        remove_log(directory)
    if places.table.exists():
        shutil.rmtree(places.table)
