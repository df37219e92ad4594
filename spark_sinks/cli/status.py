"""``eventbus spark status``: the landed offsets of a table and its lag."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.format import format_age, format_count, format_duration, format_size
from spark_sinks.cli.choosing import add_place, in_our_words, places_of

if TYPE_CHECKING:
    from spark_sinks.upkeep.status import TableStatus

_WATCH_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_EPILOG = """\
  eventbus spark status ./warehouse/orders                  of the log in ./data
  eventbus spark status ./data orders postgresql://me@localhost/shop
  eventbus spark status ./warehouse/orders --watch          again every 2 seconds
  eventbus spark status ./warehouse/orders --json | jq .lag_seconds

Read from the table's own account, while it is landed or not. Spark is not started.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("status", help="show the landed offsets of a table and its lag", epilog=_EPILOG)
    add_place(parser, topic_required=False)
    parser.add_argument("--columns", action="store_true", help="its columns too")
    parser.add_argument(
        "--watch", "-w", nargs="?", type=float, const=_WATCH_SECONDS, metavar="SECONDS",
        help=f"again and again, until Ctrl-C (every {_WATCH_SECONDS:g} s)",
    )  # fmt: skip
    parser.set_defaults(run=status)


def status(args: argparse.Namespace) -> int:
    places, out = places_of(args), Output.of(args)
    if args.watch is not None and args.watch <= 0:
        raise UsageError(f"{args.program}: --watch takes seconds between two looks, more than 0")
    from spark_sinks.upkeep.status import status as look

    while True:
        with in_our_words():
            tables = [look(*place) for place in places]
        if out.rich and args.watch is not None:
            out.stdout.write(_CLEAR)
        for found in tables:
            show(found, out, columns=args.columns)
        if args.watch is None:
            return 0
        out.stdout.flush()
        _sleep(args.watch)


def show(found: TableStatus, out: Output, *, columns: bool) -> None:
    if out.json:
        out.data(found)
        return
    out.line(f"{found.topic} of {found.log} in {found.table}")
    for name, value in _fields(found).items():
        out.field(name, value)
    out.line()
    rows = [(each.partition, each.started, each.landed, each.log_end, each.lag) for each in found.partitions]
    out.table(("partition", "from", "landed to", "log end", "behind"), rows)
    if columns and found.columns:
        out.line()
        out.table(("column", "type"), list(found.columns.items()))
    for each in found.partitions:
        if each.lost:
            out.note(
                f"{found.topic}-{each.partition}: retention removed {format_count(each.lost, 'offset')} before they "
                f"were landed (up to {each.log_start:,}): a landing stops there, unless it has --skip-lost"
            )
        if each.landed > each.log_end:
            out.note(
                f"{found.topic}-{each.partition}: the table is at offset {each.landed:,}, and the log ends at "
                f"{each.log_end:,}. This is another log, or the topic was deleted and created again"
            )


def _fields(found: TableStatus) -> dict[str, str]:
    ago = format_age(found.committed_at_ms, found.now_ms)
    behind = "nothing, it is caught up"
    if found.lag:
        since = (
            f", the oldest for {format_duration(found.lag_seconds * 1_000)}" if found.lag_seconds is not None else ""
        )
        behind = f"{format_count(found.lag, 'offset')}{since}"
    refused = f"{found.rejected:,} in all, {found.quarantined:,} in the quarantine" if found.rejected else ""
    files = f"{found.files:,}, {format_size(found.size_bytes or 0)}" if found.files is not None else ""
    kind = "the newest of each " + ", ".join(found.upsert) if found.upsert else ""
    return {
        "rows": f"{found.rows:,} landed{', through a transform' if found.transformed else ''}",
        "behind": behind,
        "refused": refused,
        "files": files,
        "commits": f"{found.sequence:,}, the last {ago} ago (epoch {found.epoch})" if found.sequence else "none yet",
        "keeps": kind,
        "split by": ", ".join(found.partition_by),
    }


def _sleep(seconds: float) -> None:
    """Between two looks of ``--watch``: a table of another process has nothing to be woken by."""
    import time

    time.sleep(seconds)
