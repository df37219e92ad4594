"""Run the steps of the demo and compare the results."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from eventbus import EventBus
from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.cli.shell import run_async
from eventbus.demo.bank import remove_log, run_bank
from eventbus.demo.board import run_board
from eventbus.demo.display import Display, open_display
from eventbus.demo.flights import (
    EVOLVED_AT,
    FLIGHTS,
    QUICK_FLIGHTS,
    Hours,
    Table,
    csv_path,
    differences,
    hours_from_csv,
    read_airlines,
    table_from_csv,
)
from eventbus.demo.names import Places, places_of
from eventbus.demo.report import Run, Step, print_report
from eventbus.demo.service import Outcome, Story
from eventbus.demo.warehouse import Landed, fill_warehouse

_BANK_STOPPED = "the log of flights is complete; the transfers begin anew"
_BOARD_STOPPED = "the log of flights is complete; the arrivals begin anew"
_LANDING_STOPPED = "the log is complete; landing and counting go on after the last whole batch"


def demo(args: argparse.Namespace) -> int:
    """Return the exit code: 0 if every table equals plain Python's, 1 if not, 130 after Ctrl-C."""
    named = not args.url_is_default or "EVENTBUS_URL" in os.environ
    out, places, csv = Output.of(args), places_of(args.dir, args.url if named else None), csv_path()
    if args.fresh:
        remove_earlier_run(places)
    with open_display(out) as display:
        display.say(f"flights of 2013 through {shown_url(places.url)}")
        story = Story(places, csv, QUICK_FLIGHTS if args.quick else FLIGHTS, display)
        run_async(story.run)
        outcome = story.outcome
        if outcome.interrupted:
            published = f"{outcome.held:,} of {story.limit:,} flights are published"
            return _interrupted(out, f"{published}, what was handled is committed")
        try:
            bank = run_bank(places, display)
        except KeyboardInterrupt:
            return _interrupted(out, _BANK_STOPPED)
        try:
            board = run_board(places, csv, display)
        except KeyboardInterrupt:
            return _interrupted(out, _BOARD_STOPPED)
        started = time.monotonic()
        expected = table_from_csv(csv, story.limit)
        steps = [
            Step("publish flights", outcome.published, outcome.publish_seconds),
            Step("validate, publish delays", outcome.delays_made, outcome.handle_seconds),
            Step("count per carrier and month", outcome.counted, outcome.count_seconds),
            Step(f"transfers, {bank.how} and restarted", bank.transfers, bank.seconds),
            Step("arrivals: failed, mended, redriven", board.flights, board.seconds),
            Step("the same by a loop over the CSV", story.limit, time.monotonic() - started),
        ]
        landed = None
        if not args.quick and places.is_in_memory:
            display.say("  no warehouse: Spark is another process, and sees nothing of a log in memory")
        elif not args.quick:
            landed = _land(places, outcome, display)
            if landed is None:
                return _interrupted(out, _LANDING_STOPPED)
            steps += [Step(*step) for step in landed.steps]
    problems = check(expected, outcome, landed) + releases_problems(csv, story.limit, outcome, landed)
    if landed is not None:
        problems += warehouse_problems(hours_from_csv(csv), landed)
    problems += bank.problems + board.problems
    run = Run(places, expected, outcome, bank, board, landed, steps, problems)
    print_report(out, run)
    return 1 if run.problems else 0


def _land(places: Places, outcome: Outcome, display: Display) -> Landed | None:
    """Land the flights; return None after Ctrl-C."""
    try:
        with _without_interrupts_in_the_log():
            return fill_warehouse(places, outcome.held, display)
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
    """Hide py4j's report of a Ctrl-C, which goes to the root logger with a traceback before it is raised."""
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
    """Return the differences to plain Python over the CSV, a line each; empty if all is well."""
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


def warehouse_problems(expected: Hours, landed: Landed) -> list[str]:
    """Return the differences of the stream and the batch job to plain Python, and duplicates in the tables."""
    problems = [f"stream of hours: {line}" for line in differences(expected, landed.told)]
    problems += [f"hours of the warehouse: {line}" for line in differences(expected, landed.counted)]
    return problems + [f"verify: {line}" for proof in landed.proofs for line in proof.problems]


def releases_problems(path: Path, limit: int, outcome: Outcome, landed: Landed | None) -> list[str]:
    """Return errors in the versions of flights, and in the third version that must be refused."""
    problems: list[str] = []
    if not outcome.releases.refusal:
        problems.append("schemas: a release that demands a gate of every flight was let through")
    expected = max(0, limit - EVOLVED_AT) if read_airlines(path) else 0
    if landed is not None and landed.named != expected:
        problems.append(f"warehouse: {landed.named:,} flights name their airline, expected {expected:,}")
    return problems


def remove_earlier_run(places: Places) -> None:
    """Delete the logs, the tables and what belongs to them, and nothing else; in a shared log, the demo's topics.

    Raises:
        LogLocked: another process uses it.
        ConfigError: one of the directories does not belong to the demo.
    """
    for directory in (places.log, places.bank) if places.given is None else (places.copy,):
        remove_log(directory)
    if places.given is not None:
        names = (*places.names.of_flights, *places.names.of_the_board)
        run_async(lambda: _delete_topics(places.url, names))
    for directory in (places.table, places.hours_table, places.checkpoint):
        if directory.exists():
            shutil.rmtree(directory)
    places.picture.unlink(missing_ok=True)


async def _delete_topics(url: str, names: Sequence[str]) -> None:
    """Delete those of the topics that exist, with the groups' offsets."""
    async with EventBus(url) as bus:
        there = set(names).intersection(await bus.admin.list_topics())
        if there:
            await bus.admin.delete_topics(sorted(there))
