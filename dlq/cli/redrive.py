"""``eventbus dlq redrive``: dead letters back to the groups that failed, or to whole topics."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING

from dlq.cli.choosing import (
    OPEN,
    add_letters,
    add_who,
    chooses,
    open_letters,
    say_what_is_there,
    selection_of,
    topics_of,
    who,
)
from dlq.cli.reach import add_targets, also_to, as_options, reach_notes, where_to
from dlq.targets import REASONS
from eventbus.cli.app import EXIT_INTERRUPTED
from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output, one_line
from eventbus.cli.parser import Subcommands, UsageError, positive
from eventbus.cli.progress import progress_bars
from eventbus.cli.shell import until_signal
from eventbus.errors import ConfigError
from eventbus.format import format_count

if TYPE_CHECKING:
    from dlq.dead_letters import DeadLetters
    from dlq.redrive import Redriven
    from eventbus import EventBus

_MAX_HOPS = 3
_EPILOG = """\
  eventbus dlq redrive 3f2a9c1d07 --dry-run           what would become of a case, as list shows it
  eventbus dlq redrive --handler bill --rate 500
  eventbus dlq redrive dlq.billing/0/17 --to orders-fixed

A letter goes to the group that failed alone, through the retry topic of this group. With --whole-topic or --to, all
groups that read the topic get it; --dry-run and the question name them.

Each letter is sent once: begin the same redrive again after Ctrl-C, or while another one runs, and it goes on with the
rest. Headers say where a record comes from; one that failed again and comes back is left out after --max-hops.
"""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser("redrive", help="send letters back to the groups that failed", epilog=_EPILOG)
    add_letters(parser, OPEN)
    parser.add_argument("--all", action="store_true", help="all there are, where nothing else is chosen")
    add_targets(parser)
    parser.add_argument("--allow", action="append", metavar="TOPIC", help="send to these alone; repeatable")
    parser.add_argument(
        "--rate", type=_rate, metavar="N", help="records a second at most (default: as fast as it goes)"
    )
    parser.add_argument(
        "--max-hops", type=positive, default=_MAX_HOPS, metavar="N",
        help=f"leave out what was redriven so often already (default: {_MAX_HOPS})",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_who(parser)
    parser.set_defaults(run=redrive)


def _rate(text: str) -> float:
    try:
        rate = float(text.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate: records a second, above 0 and below 1,000,000,000")
    return rate


async def redrive(args: argparse.Namespace) -> int:
    selection, out = selection_of(args), Output.of(args)
    if not chooses(selection) and not args.all:
        raise UsageError(
            f"{args.program}: which letters? Name some, a case, a topic, or a filter; --all for all there are"
        )
    if out.json and not (args.yes or args.dry_run):
        raise UsageError(f"{args.program}: --json asks for no confirmation: add --yes, or --dry-run")

    async def send(letters: DeadLetters, bus: EventBus) -> int:
        if args.to is not None:
            await bus.admin.describe_topics([args.to])  # a wrong name fails here, with the nearest one
        start = partial(
            letters.start_redrive, selection, to=args.to, whole_topic=args.whole_topic, max_hops=args.max_hops,
            allow=args.allow, by=who(args), note=args.note,
        )  # fmt: skip
        if args.dry_run or not args.yes:
            plan = await start(dry_run=True).run()
            if args.dry_run and out.json:
                out.data(plan)
            else:
                _show(plan, out)
            if not plan.seen:
                await say_what_is_there(letters, selection, out)
            if args.dry_run or not plan.redriven:
                return 0
            if not args.yes and not confirmed(out, f"Redrive {format_count(plan.redriven, 'letter')}{also_to(plan)}?"):
                return 1
        with progress_bars(out) as bars:
            bar = bars.bar("redriving")
            async with start(rate=args.rate, on_progress=lambda done: bar.update(done.seen, done.total)) as run:
                async with until_signal():
                    await run.wait()
                run.cancel()  # after Ctrl-C; it changes nothing where the end was waited for
        if args.yes and not (run.done.seen or run.done.cancelled):
            await say_what_is_there(letters, selection, out)
        return _finish(run.done, out)

    async with open_letters(args, topics=topics_of(selection)) as (letters, bus):
        try:
            return await send(letters, bus)
        except ConfigError as error:
            raise ConfigError(as_options(str(error))) from None


def _finish(done: Redriven, out: Output) -> int:
    if out.json:
        out.data(done)
    else:
        _show(done, out)
    if done.cancelled:
        out.note(f"interrupted: {max(done.total - done.seen, 0):,} were not processed; repeat the command to continue")
        return EXIT_INTERRUPTED
    return 1 if "refused" in done.left_out else 0


def _show(done: Redriven, out: Output) -> None:
    """Print the result of a redrive, or of a dry run."""
    if len(done.topics) > 1:
        out.table(("to", "letters"), sorted(done.topics.items()))
    how_fast = "" if done.dry_run else f" in {done.seconds:.1f} s, {done.per_second:,.0f} a second"
    what = "would be redriven" if done.dry_run else "redriven"
    out.line(f"{format_count(done.redriven, 'letter')} {what}{where_to(done)}{how_fast if done.redriven else ''}")
    for note in reach_notes(done):
        out.note(note)
    for reason, count in sorted(done.left_out.items()):
        samples = ", ".join(done.samples.get(reason, ()))
        out.note(f"left out, {format_count(count, 'letter')}: {as_options(REASONS.get(reason, reason))} ({samples})")
    for letter, error in done.errors.items():
        out.note(f"  {letter}: {one_line(error)}")
