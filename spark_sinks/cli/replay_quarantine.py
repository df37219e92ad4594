"""``eventbus spark replay-quarantine``: records that were refused, decoded once more."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands
from eventbus.cli.progress import progress_steps
from eventbus.format import format_count
from spark_sinks.cli.choosing import add_place, add_values, in_our_words, place_of, values_of

if TYPE_CHECKING:
    from spark_sinks.upkeep.replay import ReplayReport

_EPILOG = """\
  eventbus spark replay-quarantine ./warehouse/orders --dry-run
  eventbus spark replay-quarantine ./data orders ./warehouse/orders --registry http://localhost:8081

Fix the schema first, then give the options of the landing. What is good now moves into the table and the rest stays,
in one commit. It takes the table over: stop a landing that follows before it, and begin it again afterwards.
Exit code 1 when something had to stay.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("replay-quarantine", help="decode once more what was refused", epilog=_EPILOG)
    add_place(parser, topic_required=False)
    parser.add_argument("--dry-run", action="store_true", help="only say what would become of them")
    add_values(parser)
    parser.add_argument("--event-time", metavar="COLUMN", help="the time that dt is the day of, as for the landing")
    parser.set_defaults(run=replay)


def replay(args: argparse.Namespace) -> int:
    place, out = place_of(args), Output.of(args)
    arguments = values_of(args)
    with in_our_words(), progress_steps(out, "looking") as report_progress:
        from spark_sinks.upkeep.replay import replay_quarantine

        report = replay_quarantine(
            *place, **arguments._asdict(), event_time=args.event_time, dry_run=args.dry_run,
            progress=lambda done: report_progress("replaying", done, done, ""),
        )  # fmt: skip
    show(report, out, dry_run=args.dry_run)
    return 1 if report.left else 0


def show(report: ReplayReport, out: Output, *, dry_run: bool) -> None:
    if out.json:
        reasons = [{"reason": why, "records": many, "first": where} for why, (many, where) in report.reasons.items()]
        out.data({**report._asdict(), "reasons": reasons})
        return
    if not report.waiting:
        out.line(f"nothing is in the quarantine of {report.table}")
        return
    would = "would be landed" if dry_run else "landed"
    out.line(
        f"{report.landed:,} of {format_count(report.waiting, 'record')} {would}, {report.left:,} stay in the quarantine"
    )
    if report.reasons:
        rows = [(many, where, one_line(why)) for why, (many, where) in report.reasons.items()]
        out.table(("records", "the first", "why"), sorted(rows, reverse=True)[:20])
