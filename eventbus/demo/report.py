"""Print the report of the demo."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from dlq.cli.list_letters import show_cases
from eventbus.backends.masking import shown_url
from eventbus.cli.output import Output
from eventbus.demo.bank import Bank
from eventbus.demo.board import Board
from eventbus.demo.flights import EVOLVED_AT, Hours, Table, by_carrier, csv_path, read_airlines
from eventbus.demo.names import Places
from eventbus.demo.picture import by_hour_of_day
from eventbus.demo.service import Outcome
from eventbus.demo.warehouse import Landed, Proof

_SHOWN_PROBLEMS = 5


class Step(msgspec.Struct, frozen=True):
    """A line of the summary."""

    step: str
    records: int
    seconds: float

    @property
    def rate(self) -> int | None:
        """Records per second; None if there was nothing to do."""
        return round(self.records / self.seconds) if self.records and self.seconds else None


class Run(msgspec.Struct, frozen=True):
    """The results of one run."""

    places: Places
    expected: Table
    outcome: Outcome
    bank: Bank
    board: Board
    landed: Landed | None
    """None for ``--quick``, and for a log in memory."""
    steps: list[Step]
    problems: list[str]

    @property
    def table(self) -> Table:
        """The table to show: that of the last step that ran."""
        return self.outcome.table if self.landed is None else self.landed.table


def print_report(out: Output, run: Run) -> None:
    if out.json:
        out.data(_as_json(run))
        return
    _print_tables(out, run)
    _print_board(out, run.board)
    out.line()
    out.table(
        ["step", "records", "seconds", "records/s"],
        [(step.step, step.records, step.seconds, step.rate) for step in run.steps],
        title="what took how long (the first three run at the same time)",
    )
    out.line()
    _print_places(out, run)
    if run.problems:
        for line in run.problems[:_SHOWN_PROBLEMS]:
            out.note(f"NOT EQUAL  {line}")
        out.note(f"error: {len(run.problems)} differences to what plain Python finds: start over with --fresh")
        return
    for line in _lines_of_releases(run):
        out.line(line)
    sides = "running table" if run.landed is None else "running table = Spark's query"
    out.line(f"CONSERVED  {run.bank}")
    out.line(f"REDRIVEN   {run.board}")
    if run.landed is not None:
        for line in _lines_of_hours(run.landed):
            out.line(line)
    out.line(f"EQUAL      {sides} = plain Python over the CSV, all {len(run.expected)} groups of carrier and month")
    if run.landed is not None:
        out.line(f"PROVED     {run.landed.proofs[0]};")
        for proof in run.landed.proofs[1:]:
            out.line(f"           {proof}")
    # `make demo` runs the command of a virtual environment that is not activated.
    home = Path(sys.argv[0]).parent
    on_path = shutil.which("eventbus") is not None or not (home / "eventbus").exists()
    commands = next_commands(run.places, landed=run.landed is not None)
    if not commands:
        return
    out.line()
    out.line("try next:" if on_path else f"try next (first: export PATH={shlex.quote(str(home.absolute()))}:$PATH):")
    for line in commands:
        out.line(f"  {line}")


def _lines_of_releases(run: Run) -> list[str]:
    """Return the lines about schemas; a --quick demo of a few flights ends before the second release."""
    first = min(EVOLVED_AT, run.outcome.held)
    second = run.outcome.held - first
    landed = "" if run.landed is None else f", Spark with version 2: {run.landed.named:,} name their airline"
    return [
        f"EVOLVED    {first:,} flights were written with version 1 of their Avro schema, {second:,} with version 2,",
        f"           which adds the airline. The handler read all of them with version 1{landed}",
        f"REFUSED    version 3, at its start. {run.outcome.releases.refusal}",
    ]


def _lines_of_hours(landed: Landed) -> list[str]:
    """Return the lines about the stream."""
    return [
        f"STREAMED   {len(landed.told):,} hours of three airports, counted by Spark as a stream and written back to",
        f"           the bus in a transaction per batch; {landed.told_again:,} of them again when late flights came.",
        "           The last word on each = a batch job over the warehouse = plain Python over the CSV",
    ]


def _print_tables(out: Output, run: Run) -> None:
    names = read_airlines(csv_path())
    out.table(
        ["carrier", "airline", "flights", "cancelled", "mean delay"],
        [
            (carrier, names.get(carrier, ""), entry.flights, entry.cancelled, entry.mean_delay)
            for carrier, entry in by_carrier(run.table).items()
        ],
        title="departures from New York City in 2013, mean delay in minutes",
    )
    if run.landed is None:
        return
    months = sorted({group.month for group in run.table})
    columns = ["carrier", *map(str, months)]
    cells = {(group.carrier, group.month): entry for group, entry in run.table.items()}
    flights: list[tuple[Any, ...]] = []
    means: list[tuple[Any, ...]] = []
    for carrier in sorted({group.carrier for group in run.table}):
        entries = [cells.get((carrier, month)) for month in months]
        flights.append((carrier, *(entry and entry.flights for entry in entries)))
        means.append((carrier, *(entry and entry.mean_delay for entry in entries)))
    out.line()
    out.table(columns, flights, title="flights per carrier and month (Spark, from the Parquet files)", dense=True)
    out.line()
    title = "mean departure delay per carrier and month (Spark, from the Parquet files)"
    out.table(columns, means, title=title, dense=True)
    _print_hours(out, run.landed.told)


def _print_hours(out: Output, told: Hours) -> None:
    """Print the results of the stream, as in the picture."""
    by_airport = by_hour_of_day(told)
    columns = sorted({hour for entries in by_airport.values() for hour, entry in entries.items() if entry.departed})
    rows = [
        (airport, *((entry := entries.get(hour)) and entry.mean_delay for hour in columns))
        for airport, entries in by_airport.items()
    ]
    out.line()
    title = "mean departure delay per airport and scheduled hour, New York time (Spark, as a stream)"
    out.table(["airport", *map(str, columns)], rows, title=title, dense=True)


def _print_board(out: Output, board: Board) -> None:
    """Print the failures, and the dead letters before they were redriven, as ``eventbus dlq list`` shows them."""
    out.line()
    title = f"{board.flights:,} late arrivals through a handler that fails"
    out.table(["what became of them", "flights"], board.ladder, title=title)
    out.line()
    out.line("its dead letters, as eventbus dlq list groups them:")
    show_cases(board.cases, out)


def _print_places(out: Output, run: Run) -> None:
    if run.places.given is None:
        files, size_bytes = _measure(run.places.log)
        size = f", {files} files, {size_bytes / 1e6:.1f} MB"
        out.line(f"log        {run.places.log}: {run.outcome.held:,} flights{size}")
    else:
        out.line(f"log        {shown_url(run.places.given)}: {run.outcome.held:,} flights")
    if run.landed is not None:
        files, size_bytes = run.landed.files, run.landed.size_bytes
        out.line(f"warehouse  {run.places.table.parent}: {files} Parquet files, {size_bytes / 1e6:.1f} MB")
        no_picture = 'none without matplotlib: pip install "eventbus-log[demo]"'
        out.line(f"picture    {run.landed.picture or no_picture}")
    if run.outcome.doubled:
        out.line(
            f"delays     {run.outcome.doubled:,} of its records are there twice: a run was killed after it had "
            "published them and before it committed (at-least-once); the table counts them once"
        )


def next_commands(places: Places, *, landed: bool) -> list[str]:
    """Return commands that work on the demo's log, from the directory where the demo ran."""
    names, log = places.names, places.log
    url, bank_url = shlex.quote(shown_url(places.url)), shlex.quote(shown_url(places.bank_url))
    commands = [
        f"eventbus topics describe {names.flights} --url {url}",
        f"eventbus consume {names.delays} --from-beginning --max-messages 5 --property print.key=true --url {url}",
        f"eventbus schema diff {names.schemas} --url {url}",
        f"eventbus schema show {names.schemas} --url {url}",
        f"eventbus offsets {names.flights} --group {names.delay_maker} --url {url}",
        f"eventbus offsets {names.flights} --time 2013-01-02 --url {url}",
        f"eventbus groups describe {names.bank} --url {bank_url}",
        f"eventbus dlq list {names.dead} --status all --url {url}",
    ]
    if places.is_in_memory:
        commands.clear()  # it ended with the demo
    if places.given is None:
        segment = shlex.quote(str(log / f"{names.flights}-0" / "00000000000000000000.log"))
        commands.append(f"eventbus log verify {shlex.quote(str(log))}")
        commands.append(f"eventbus log dump {segment} | head")
    if landed:
        table = str(places.table)
        commands.append(f"eventbus consume {names.hours} --from-beginning --max-messages 5 --url {url}")
        commands.append(f"eventbus groups describe {names.hour_counter} --url {url}")
        if places.is_a_file:
            commands.append(f"eventbus spark status {shlex.quote(str(places.hours_table))} --url {url}")
            commands.append(f"eventbus spark verify --values {shlex.quote(table)} --url {url}")
        program = f"import pandas; print(pandas.read_parquet({table!r}).groupby('carrier').dep_delay.mean())"
        quoted = f'"{program}"' if shlex.quote(table) == table else shlex.quote(program)
        commands.append(f"python -c {quoted}")
    return commands


def _measure(directory: Path) -> tuple[int, int]:
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def _proof_as_json(proof: Proof) -> dict[str, Any]:
    told = {"topic": proof.topic, "offsets": proof.offsets, "records": proof.records, "markers": proof.markers}
    return {**told, "proved": not proof.problems}


def _as_json(run: Run) -> dict[str, Any]:
    outcome, landed = run.outcome, run.landed
    return {
        "url": shown_url(run.places.url),
        "flights": outcome.held,
        "published": outcome.published,
        "delays_made": outcome.delays_made,
        "delays_doubled": outcome.doubled,
        "warehouse": None if landed is None else str(run.places.table),
        "landed": None if landed is None else landed.rows,
        "parquet_files": None if landed is None else landed.files,
        "hours": None if landed is None else len(landed.told),
        "hours_told_again": None if landed is None else landed.told_again,
        "proofs": [] if landed is None else [_proof_as_json(proof) for proof in landed.proofs],
        "picture": None if landed is None or landed.picture is None else str(landed.picture),
        "exactly_once": {
            "transfers": run.bank.transfers,
            "killed_at": run.bank.killed_at,
            "done_before": run.bank.done_before,
            "debits": run.bank.debits,
            "credits": run.bank.credits,
            "balance": run.bank.balance,
            "cut_off": run.bank.cut_off,
            "conserved": not run.bank.problems,
        },
        "failures": {
            "flights": run.board.flights,
            "ladder": dict(run.board.ladder),
            "dead_letters": run.board.dead,
            "redriven": run.board.redriven,
            "open": run.board.open,
            "posted": run.board.posted,
            "conserved": not run.board.problems,
        },
        "schemas": {
            "versions": len(outcome.releases.texts),
            "refused": outcome.releases.refusal,
            "named_airlines": None if landed is None else landed.named,
        },
        "equal": not run.problems,
        "groups": len(run.expected),
        "differences": run.problems[:_SHOWN_PROBLEMS],
        "steps": [
            {"step": step.step, "records": step.records, "seconds": step.seconds, "records_per_second": step.rate}
            for step in run.steps
        ],
        "table": [
            {
                "carrier": group.carrier,
                "month": group.month,
                "flights": entry.flights,
                "cancelled": entry.cancelled,
                "mean_dep_delay": entry.mean_delay,
            }
            for group, entry in sorted(run.table.items())
        ],
    }
