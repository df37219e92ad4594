"""Runs the steps of the demo and compares the results with plain Python's."""

from __future__ import annotations

import argparse
import logging
import os
import shlex
import shutil
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from demo.bank import COUNT, KILLED_AT, Bank, run_bank
from demo.board import Board, run_board
from demo.flights import (
    EVOLVED_AT,
    FLIGHTS,
    QUICK_FLIGHTS,
    Table,
    by_carrier,
    csv_path,
    differences,
    read_airlines,
    table_from_csv,
)
from demo.places import Places, delete_topics, places_of
from demo.service import Outcome, run_service
from demo.warehouse import Landed, fill_warehouse
from dlq.cli.list_letters import show_cases
from eventbus import EventBus
from eventbus.backends.masking import shown_url
from eventbus.cli.app import EXIT_INTERRUPTED, guarded
from eventbus.cli.output import Output
from eventbus.cli.parser import Parser, default_url
from eventbus.cli.progress import Bars, progress_bars
from eventbus.cli.shell import run_async, until_signal

EPILOG = """\
Publishing goes on where the log ends, the handler at its committed offsets, landing at the warehouse's ledger, and the
running table is counted again from the topic delays: stop it at any point, run it again, nothing doubles.
After Ctrl-C every step is exact. After kill -9 the topic delays may hold some records twice (at-least-once: published,
not yet committed); flights, the table and the warehouse are exact even then.
The transfers show the other way: a service with exactly_once=True is killed in the middle of one, and nothing doubles.
The arrivals show failures: what is tried again, what becomes a dead letter, and that a redrive empties them.
With --url kafka://host:9092 (or any other) all of it happens there, in topics demo-...; the tables come out the same.
"""
_SHOWN_PROBLEMS = 5


class Results(msgspec.Struct):
    """Everything that one run has found."""

    outcome: Outcome
    bank: Bank
    board: Board
    expected: Table
    landed: Landed | None = None
    """None for ``--quick``, and for a log in memory."""
    problems: list[str] = []


def main(argv: list[str]) -> int:
    """Return 0 when every table equals plain Python's, 1 when not, 130 after Ctrl-C."""
    parser = Parser(
        prog='make demo ARGS="..."',
        description="Every flight out of New York in 2013: published, validated, counted, landed as Parquet, checked.\n"
        "A bank that is killed in the middle of a transfer, restarted, audited. A handler that fails, and is fixed.",
        epilog=EPILOG,
    )
    parser.add_argument("--dir", default="demo-data", metavar="DIR", help="where log and warehouse go (demo-data)")
    parser.add_argument("--quick", action="store_true", help="the first 20,000 flights, without Spark: seconds")
    parser.add_argument("--fresh", action="store_true", help="delete the topics and the tables of an earlier run")
    parser.set_defaults(json=False, debug=False)
    return guarded(lambda: _demo(parser.parse_args(argv)), debug="--debug" in argv)


def _demo(args: argparse.Namespace) -> int:
    named = getattr(args, "url", None) or ("EVENTBUS_URL" in os.environ and default_url()) or None
    out, places, csv = Output.of(args), places_of(args.dir, named), csv_path()
    with progress_bars(out, keep=True) as bars:
        bars.say(f"flights of 2013 through {shown_url(places.url)}")
        limit = QUICK_FLIGHTS if args.quick else FLIGHTS
        results: list[Results] = []
        run_async(partial(_on_the_bus, places, csv, limit, args.fresh, bars, results))
        if not results:
            out.note("interrupted; run the same command again: it goes on there, nothing doubles")
            return EXIT_INTERRUPTED
        [found] = results
        if not args.quick and not places.is_in_memory:  # Spark is another process, and cannot read a log in memory
            logging.getLogger().addFilter(lambda record: record.exc_info is None)  # py4j logs a Ctrl-C, and raises it
            found.landed = fill_warehouse(places, found.outcome.held, bars)
    found.problems += check(found, csv)
    if out.json:
        out.data(_as_json(found))
    else:
        _print(found, places, out)
    return 1 if found.problems else 0


async def _on_the_bus(places: Places, csv: Path, limit: int, fresh: bool, bars: Bars, results: list[Results]) -> None:
    """Run everything except Spark's part. Ctrl-C leaves ``results`` empty; what was handled is committed."""
    if fresh:
        await _remove_earlier_run(places)
    # A log in memory lives as long as a bus uses it.
    async with EventBus(places.url) if places.is_in_memory else nullcontext():
        outcome = await run_service(places, csv, limit, bars)
        if outcome is None:
            return
        async with until_signal():
            bank = await run_bank(places, bars)
            board = await run_board(places, csv, bars)
            results.append(Results(outcome, bank, board, table_from_csv(csv, outcome.limit)))


async def _remove_earlier_run(places: Places) -> None:
    """Delete the demo's topics and tables, and nothing else."""
    async with EventBus(places.url) as bus:
        await delete_topics(bus, f"{places.prefix}flights", f"{places.prefix}delays")
    for directory in (places.table, places.root / "copy"):
        shutil.rmtree(directory, ignore_errors=True)


def check(found: Results, csv: Path) -> list[str]:
    """Return what does not equal plain Python over the CSV, a line each."""
    outcome, landed, expected = found.outcome, found.landed, found.expected
    problems = [f"running table: {line}" for line in differences(expected, outcome.table)]
    if not outcome.refusal:
        problems.append("schemas: a release that demands a gate of every flight was accepted")
    if landed is not None:
        problems += [f"warehouse: {line}" for line in differences(expected, landed.table)] + landed.problems
        problems += [
            f"warehouse: mean delay of {group.carrier} {group.month}: expected {entry.mean_delay}, "
            f"found {landed.means.get(group)}"
            for group, entry in sorted(expected.items())
            if landed.means.get(group) != entry.mean_delay
        ]
        named = max(0, outcome.limit - EVOLVED_AT) if read_airlines(csv) else 0
        if landed.named != named:
            problems.append(f"warehouse: {landed.named:,} flights name their airline, expected {named:,}")
    return problems + found.bank.problems + found.board.problems


# the report -----------------------------------------------------------------------------------------------------------


def _print(found: Results, places: Places, out: Output) -> None:
    outcome, bank, board, landed = found.outcome, found.bank, found.board, found.landed
    names = read_airlines(csv_path())
    out.table(
        ["carrier", "airline", "flights", "cancelled", "mean delay"],
        [
            (carrier, names.get(carrier, ""), entry.flights, entry.cancelled, entry.mean_delay)
            for carrier, entry in by_carrier(outcome.table if landed is None else landed.table).items()
        ],
        title="departures from New York City in 2013, mean delay in minutes",
    )
    out.line()
    rows = [(f"{count} call{'s' if count > 1 else ''}", flights) for count, flights in board.calls.items()]
    out.table(["handled with", "flights"], rows, title=f"{board.flights:,} late arrivals through a handler that fails")
    out.line()
    out.line("its dead letters, as eventbus dlq list groups them:")
    show_cases(board.cases, out)
    out.line()
    steps = [("publish, handle, count", outcome.held, outcome.seconds), ("transfers", COUNT, bank.seconds),
             ("arrivals", board.flights, board.seconds)]  # fmt: skip
    steps += [] if landed is None else [("Spark: land, query, verify", outcome.held, landed.seconds)]
    out.table(["step", "records", "seconds", "records/s"], [(*step, round(step[1] / step[2])) for step in steps])
    out.line()
    if found.problems:
        for line in found.problems[:_SHOWN_PROBLEMS]:
            out.note(f"NOT EQUAL  {line}")
        out.note(f"error: {len(found.problems)} differences from plain Python: start over with --fresh")
        return
    first = min(EVOLVED_AT, outcome.held)
    sides = "running table" if landed is None else "running table = Spark's query"
    for line in (
        f"EVOLVED    {first:,} flights were written with version 1 of their Avro schema, {outcome.held - first:,} with "
        "version 2,\n           which adds the airline. The handler read all of them with version 1",
        f"REFUSED    version 3, at its start. {outcome.refusal}",
        f"CONSERVED  {COUNT:,} transfers between two topics; the service was {bank.how} in the middle of number "
        f"{KILLED_AT:,}.\n           After its restart: {bank.debits:,} debits, {bank.credits:,} credits, together 0. "
        f"The {bank.cut_off:,} record(s) of the transactions\n           that were cut off are in the log, and no "
        "reader sees them",
        f"REDRIVEN   {board.redriven:,} dead letters, midnight written as 2400, by the next release. "
        f"{board.open:,} are open,\n           a second redrive sent {board.again:,}. All {board.flights:,} late "
        "arrivals are on the board, each once, a plane's in their order",
        f"EQUAL      {sides} = plain Python over the CSV, all {len(found.expected)} groups of carrier and month",
    ):
        out.line(line)
    if landed is not None:
        out.line(f"PROVED     every one of {landed.proved:,} flights is in the warehouse once, as it was written")
    if outcome.doubled:
        out.line(f"           {outcome.doubled:,} records of delays are there twice, and were counted once")
    out.line("\ntry next:")
    for line in next_commands(places, landed=landed is not None):
        out.line(f"  {line}")


def next_commands(places: Places, *, landed: bool) -> list[str]:
    """Commands that work on the demo's log, typed where the demo was."""
    prefix, url = places.prefix, shlex.quote(shown_url(places.url))
    if places.is_in_memory:
        return []  # it is gone with the demo
    commands = [
        f"eventbus topics describe {prefix}flights --url {url}",
        f"eventbus consume {prefix}delays --from-beginning --max-messages 5 --property print.key=true --url {url}",
        f"eventbus schema diff {prefix}flights-value --url {url}",
        f"eventbus offsets {prefix}flights --time 2013-01-02 --url {url}",
        f"eventbus groups describe {prefix}bank --url {url}",
        f"eventbus dlq list dlq.{prefix}board-maker --status all --url {url}",
    ]
    if landed:
        table = shlex.quote(str(places.table))
        commands.append(f"eventbus spark verify --values {table} --url {shlex.quote(places.readable_url)}")
    return commands


def _as_json(found: Results) -> dict[str, Any]:
    outcome, bank, board = found.outcome, found.bank, found.board
    return {
        "flights": outcome.held, "published": outcome.published, "delays_doubled": outcome.doubled,
        "refused": outcome.refusal, "landed": None if found.landed is None else found.landed.rows,
        "bank": msgspec.to_builtins(bank), "dead_letters": {"redriven": board.redriven, "open": board.open},
        "table": [[*group, entry.flights] for group, entry in sorted(outcome.table.items())],
        "equal": not found.problems, "problems": found.problems[:_SHOWN_PROBLEMS],
    }  # fmt: skip
