"""Which dead letters a command is about: filters, names of letters, cases and topics."""

from __future__ import annotations

import argparse
import getpass
import re
import socket
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dlq.selection import STATUSES, LetterId, Selection
from eventbus.cli.confirm import interruptible
from eventbus.cli.output import Output, printable
from eventbus.cli.parser import UsageError, positive
from eventbus.cli.shell import open_bus
from eventbus.cli.window import point_in_time
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from dlq.dead_letters import DeadLetters
    from eventbus import EventBus

OPEN = frozenset({"open"})
UNDONE = frozenset({"open", "parked"})
"""The statuses of letters that still need a decision."""

NOTHING_CHOSEN = "no dead letter is chosen by that; eventbus dlq list --status all shows what there is"
_CASE = re.compile(r"[0-9a-f]{10}")


def add_letters(parser: argparse.ArgumentParser, statuses: Collection[str] | None) -> None:
    """The words and filters that choose letters. ``statuses``: which are meant unless --status says so; None: all."""
    parser.add_argument(
        "chosen",
        nargs="*",
        metavar="WHICH",
        help="letters (topic/partition/offset), cases, or topics, as list shows them",
    )
    group = parser.add_argument_group("which of them")
    group.add_argument("--topic", metavar="TOPIC", help="in this topic; default: all that look like dead letters")
    group.add_argument("--case", metavar="CASE", help="of this case")
    group.add_argument("--handler", metavar="NAME", help="of this handler")
    group.add_argument("--group", metavar="GROUP", help="of this consumer group")
    group.add_argument("--error", metavar="CLASS", help="of this error, as ValueError or shop.errors.Declined")
    group.add_argument("--contains", metavar="TEXT", help="with this in key, value, message or stack")
    group.add_argument(
        "--since", type=point_in_time, metavar="WHEN", help="failed then or later: 2013-01-31T18:00, 90m"
    )
    group.add_argument("--until", type=point_in_time, metavar="WHEN", help="failed before then")
    shown = "all" if statuses is None else ",".join(one for one in STATUSES if one in statuses)
    group.add_argument(
        "--status", type=_statuses, metavar="STATUSES", help=f"{', '.join(STATUSES)}, or all (default: {shown})"
    )
    group.add_argument("--limit", type=positive, metavar="N", help="so many at most")
    parser.set_defaults(statuses=statuses)


def _statuses(text: str) -> frozenset[str]:
    from eventbus.suggest import nearest

    words = frozenset(word.strip() for word in text.split(","))
    if words == frozenset({"all"}):
        return frozenset(STATUSES)
    for word in words - {*STATUSES}:
        known = ", ".join(STATUSES)
        raise argparse.ArgumentTypeError(f"there is no status {word!r}{nearest(word, STATUSES)}; there are {known}")
    return words


def selection_of(args: argparse.Namespace) -> Selection:
    """Return the selection of the words and filters of a command. Raises UsageError if they contradict each other."""
    ids: list[str] = []
    named: dict[str, str | None] = {"case": args.case, "topic": args.topic}
    for word in args.chosen:
        if "/" in word:
            ids.append(str(letter_id(word, args)))
            continue
        what = "case" if _CASE.fullmatch(word) else "topic"
        if named[what] not in (None, word):
            raise UsageError(f"{args.program}: two {what}s are given, {named[what]!r} and {word!r}: give one")
        named[what] = word
    since, until = _time(args, "since"), _time(args, "until")
    if since is not None and until is not None and since >= until:
        raise UsageError(f"{args.program}: --until is not after --since: there is nothing between them")
    statuses: Collection[str] | None = args.status or (UNDONE if ids and args.statuses == OPEN else args.statuses)
    return Selection(
        topic=named["topic"], ids=ids or None, case=named["case"], handler=args.handler, group=args.group,
        error_class=args.error, contains=args.contains, since_ms=since, until_ms=until,
        status=None if statuses is None or len(statuses) == len(STATUSES) else statuses, limit=args.limit,
    )  # fmt: skip


def letter_id(text: str, args: argparse.Namespace) -> LetterId:
    try:
        return LetterId.of(text)
    except ConfigError as error:
        raise UsageError(f"{args.program}: {error}") from None


def _time(args: argparse.Namespace, name: str) -> int | None:
    value: int | None = getattr(args, name)
    if value is not None and value < 0:
        raise UsageError(f"{args.program}: --{name} takes a time, as 2013-01-31T18:00, or how long ago, as 90m")
    return value


def chooses(selection: Selection) -> bool:
    """True if the selection has a filter besides the status and the limit."""
    empty = Selection(status=selection.status, limit=selection.limit)
    return selection != empty


@asynccontextmanager
async def open_letters(
    args: argparse.Namespace, *, topics: Collection[str]
) -> AsyncGenerator[tuple[DeadLetters, EventBus]]:
    """Open the log and its dead letters.

    ``topics``: those that are named; a topic may hold dead letters whatever its name looks like.
    """
    from dlq.dead_letters import DeadLetters

    async with open_bus(args) as bus:
        yield DeadLetters(bus, topics=sorted(topics) or None), bus


def topics_of(selection: Selection) -> set[str]:
    """Return the topics that a selection names."""
    named = {one.topic for one in selection.letter_ids() or ()}
    return named | ({selection.topic} if selection.topic is not None else set())


async def say_what_is_there(letters: DeadLetters, selection: Selection, out: Output) -> None:
    """Nothing is chosen: whether that is only because somebody has dealt with it. Raises ConfigError for a lost id."""
    if selection.ids:
        known = await letters.statuses(selection.ids)
        for id in selection.ids:
            if id not in known:
                raise ConfigError(
                    f"there is no dead letter {id}; eventbus dlq list --letters shows those that there are"
                )
    cases = await letters.groups(selection=msgspec.structs.replace(selection, status=None, limit=None))
    statuses = Counter[str]()
    for case in cases:
        statuses.update(case.statuses)
    found = ", ".join(f"{count:,} {status}" for status, count in statuses.most_common())
    out.note(f"of those chosen: {found}; --status says which are meant" if found else NOTHING_CHOSEN)


# who ------------------------------------------------------------------------------------------------------------------


def add_who(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--note", type=printable, default="", metavar="TEXT", help="why, for the record")
    parser.add_argument(
        "--by", type=printable, metavar="NAME", help="who does it, for the record (default: the user and this machine)"
    )
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def who(args: argparse.Namespace) -> str:
    if args.by:
        return args.by
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (OSError, KeyError):  # a container's user without a name
        return "eventbus-cli"


def read_file(path: str, option: str) -> bytes:
    """Return a file's bytes, or all of stdin for ``-``. Raises UsageError."""
    try:
        with interruptible():
            return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"{option} {path}: {error.strerror or error}") from None
