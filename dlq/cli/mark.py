"""``eventbus dlq park | resolve | reopen``: what is to become of letters, without sending them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NamedTuple

from dlq.cli.choosing import (
    OPEN,
    UNDONE,
    add_letters,
    add_who,
    chooses,
    open_letters,
    say_what_is_there,
    selection_of,
    topics_of,
    who,
)
from eventbus.cli.confirm import confirmed
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.format import format_count

if TYPE_CHECKING:
    pass


class _Mark(NamedTuple):
    done: str
    statuses: frozenset[str]
    """Which letters, unless --status says it."""
    help: str


_MARKS = {
    "park": _Mark("parked", OPEN, "set letters aside until a decision"),
    "resolve": _Mark("resolved", UNDONE, "mark letters as resolved"),
    "reopen": _Mark("reopened", frozenset({"parked", "resolved"}), "open parked or resolved letters again"),
}


def add(actions: Subcommands) -> None:
    for name, mark in _MARKS.items():
        parser = actions.add_parser(
            name,
            help=mark.help,
            description="The letters stay where they are. Their status is stored separately, with the user who set it.",
            epilog=f'  eventbus dlq {name} 3f2a9c1d07 --note "the supplier is asked"',
        )
        add_letters(parser, mark.statuses)
        parser.add_argument("--all", action="store_true", help="all there are, where nothing else is chosen")
        add_who(parser)
        parser.set_defaults(run=mark_letters, action=name)


async def mark_letters(args: argparse.Namespace) -> int:
    selection, out = selection_of(args), Output.of(args)
    if not chooses(selection) and not args.all:
        raise UsageError(
            f"{args.program}: which letters? Name some, a case, a topic, or a filter; --all for all there are"
        )
    async with open_letters(args, topics=topics_of(selection)) as (letters, _):
        count = sum(case.count for case in await letters.groups(selection=selection))
        if not count:
            out.answer({args.action: 0}, f"0 letters {_MARKS[args.action].done}")
            await say_what_is_there(letters, selection, out)
            return 0
        if count > 1 and not (
            args.yes or confirmed(out, f"{args.action.capitalize()} {format_count(count, 'letter')}?")
        ):
            return 1
        marked = await getattr(letters, args.action)(selection, note=args.note, by=who(args))
        out.answer({args.action: marked}, f"{format_count(marked, 'letter')} {_MARKS[args.action].done}")
        named = len(selection.ids or ())
        if marked < named:
            others = format_count(named - marked, "other letter")
            out.note(f"{others} of those named: missing, or with another status; see `eventbus dlq show ID`")
        return 0
