"""Options that select refused events."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from eventbus.cli.parser import UsageError

if TYPE_CHECKING:
    from outbox.quarantine import Choice

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def add_choice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("chosen", nargs="*", metavar="EVENT", help="numbers or ids of events, as list shows them")
    group = parser.add_argument_group("which of them")
    group.add_argument("--topic", metavar="TOPIC", help="of this topic")
    group.add_argument("--reason", metavar="TEXT", help="with this in the reason")


def choice_of(args: argparse.Namespace) -> Choice:
    """Return the selected events. Raises UsageError for words that are neither numbers nor ids."""
    from outbox.quarantine import Choice

    ids = [int(word) for word in args.chosen if word.isdecimal()]
    event_ids = [word.lower() for word in args.chosen if _UUID.fullmatch(word.lower())]
    if len(ids) + len(event_ids) < len(args.chosen):
        wrong = next(word for word in args.chosen if not word.isdecimal() and not _UUID.fullmatch(word.lower()))
        raise UsageError(
            f"{args.program}: {wrong!r} is neither the number of an event nor its id; topics go by --topic"
        )
    named = bool(args.chosen)
    return Choice(
        ids=tuple(ids) if named else None,
        event_ids=tuple(event_ids) if named else None,
        topic=args.topic,
        reason=args.reason,
    )
