"""``eventbus spark verify``: proof that a table holds each record once."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands
from eventbus.cli.progress import progress_steps
from eventbus.format import format_count, format_duration
from spark_sinks.cli.choosing import add_place, add_values, in_our_words, places_of, values_of

if TYPE_CHECKING:
    from spark_sinks.upkeep.report import VerifyReport

_EPILOG = """\
  eventbus spark verify ./warehouse/orders                              of the log in ./data
  eventbus spark verify ./data orders delta:./lake/orders --values      the values too, decoded once more
  eventbus spark verify ./warehouse/orders --json | jq .problems

Each committed offset must be in the table or in its quarantine, once; for each gap it says why. The table may be landed
meanwhile. Exit code 1 when something is missing, doubled or foreign. Spark is started for kafka:// alone.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "verify", help="that each record is in the table once, and why there are gaps", epilog=_EPILOG
    )
    add_place(parser, topic_required=False)
    parser.add_argument("--values", action="store_true", help="decode all of it, and compare the values too")
    add_values(parser)
    parser.set_defaults(run=verify)


def verify(args: argparse.Namespace) -> int:
    places, out = places_of(args), Output.of(args)
    arguments = values_of(args)
    from spark_sinks.upkeep.verify import verify as check

    is_good = True
    for place in places:
        with in_our_words(), progress_steps(out, "looking") as report_progress:
            report = check(
                *place, values=args.values, **arguments._asdict(),
                progress=lambda now: report_progress(now.doing, now.done, now.total, ""),
            )  # fmt: skip
        show(report, out)
        is_good &= report.ok
    return 0 if is_good else 1


def show(report: VerifyReport, out: Output) -> None:
    if out.json:
        import msgspec

        out.data({"ok": report.ok, **msgspec.to_builtins(report)})
        return
    from spark_sinks.upkeep.report import EXPLAINED

    columns = ("partition", "from", "to", "records", "in the table", "in quarantine", "missing", "doubled", "foreign")
    rows = [
        (
            each.partition, each.start, each.end, each.records, each.rows, each.rejected, each.missing.count,
            each.doubled.count, each.foreign.count,
        )
        for each in report.partitions
    ]  # fmt: skip
    out.line(f"{report.topic} of {report.log} in {report.table}")
    out.table(columns, rows)
    for word, count in report.explained.items():
        out.line(f"  {count:,} {EXPLAINED[word]}")
    for remark in report.remarks:
        out.line(f"  not checked: {remark}")
    for problem in report.problems:
        out.line(f"! {problem}")
    if report.ok:
        offsets = sum(each.end - each.start for each in report.partitions)
        out.line(
            f"good: {'; '.join(report.checked)} ({offsets:,} offsets in {format_duration(report.seconds * 1_000)})"
        )
    else:
        out.line(f"{format_count(len(report.problems), 'problem')}")
