"""``eventbus spark compact``: few files of many, in the days that are over."""

from __future__ import annotations

import argparse

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, positive
from eventbus.format import format_count, format_duration, format_size
from spark_sinks.cli.choosing import in_our_words

_EPILOG = """\
  eventbus spark compact ./warehouse/orders                        days before today (UTC)
  eventbus spark compact delta:./lake/orders --before 2026-01-01
  eventbus spark compact ./warehouse/orders --all --min-files 10

It takes the table over: stop a landing that follows before it, and begin it again afterwards.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("compact", help="few files of many, in the days that are over", epilog=_EPILOG)
    parser.add_argument("table", metavar="TABLE", help="as for land")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--before", metavar="VALUE", help="partitions that sort below this (default: today, in UTC)")
    group.add_argument("--all", action="store_true", help="all of them, today's too")
    parser.add_argument(
        "--min-files", type=positive, metavar="N", default=2, help="leave partitions with fewer alone (default: 2)"
    )
    parser.add_argument("--stage", metavar="DIR", help="for unfinished files")
    parser.set_defaults(run=compact)


def compact(args: argparse.Namespace) -> int:
    out = Output.of(args)
    with in_our_words():
        from spark_sinks.upkeep.compact import compact as run

        report = run(args.table, before=args.before, everything=args.all, min_files=args.min_files, stage=args.stage)
    done = report.compacted
    fields = {**report._asdict(), "compacted": done._asdict()}
    before = f" before {report.before}" if report.before else ""
    text = f"nothing to do{before}: no partition has {args.min_files} files or more"
    if done.files_before:
        text = (
            f"{format_count(done.files_before, 'file')}{before} made {done.files_after:,}, "
            f"{format_size(done.size_bytes_before)} made {format_size(done.size_bytes_after)}, "
            f"in {format_duration(report.seconds * 1_000)}"
        )
    out.answer(fields, text)
    return 0
