"""``eventbus dlq stats``: how many dead letters there are, how old, and how fast they come."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import msgspec

from dlq.cli.choosing import open_letters
from dlq.cli.list_letters import TOPIC_COLUMNS, no_topics, note_waiting, topic_rows
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, add_topic, positive, topic_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dlq.dead_letters import DeadLetterTopic

_HOUR_MS = 3_600_000
_HOURS = 24
_BARS = ".▁▂▃▄▅▆▇█"
_ASCII_BARS = ".-~=+ox#@"
"""The bars for terminals without block characters."""


def add(actions: Subcommands) -> None:
    parser = actions.add_parser(
        "stats",
        help="counts, ages, and how many an hour",
        description="How many letters each topic holds, how old they are, and how many came in each of the\n"
        "last hours; the highest bar of a topic is its worst hour.",
    )
    add_topic(parser, required=False, help="default: all that look like dead letters")
    parser.add_argument("--hours", type=positive, default=_HOURS, metavar="N", help=f"how far back (default: {_HOURS})")
    parser.set_defaults(run=stats)


async def stats(args: argparse.Namespace) -> None:
    topic, out = topic_of(args), Output.of(args)
    async with open_letters(args, topics={topic} if topic else set()) as (letters, bus):
        now_ms = round(time.time() * 1000)
        since_ms = (now_ms // _HOUR_MS - args.hours + 1) * _HOUR_MS
        rates = await letters.rates(since_ms, _HOUR_MS, args.hours)
        topics = [one for one in await letters.topics() if one.name in rates]
        if out.json:
            hours = {"hours_since_ms": since_ms}
            out.data([{**msgspec.to_builtins(one), "per_hour": rates[one.name], **hours} for one in topics])
        elif not topics:
            no_topics(bus.url, out)
        else:
            out.table(TOPIC_COLUMNS, topic_rows(topics, now_ms))
            _show_rates(topics, rates, args.hours, out)
        await note_waiting(letters, topic, None, out)


def _show_rates(topics: Sequence[DeadLetterTopic], rates: Mapping[str, list[int]], hours: int, out: Output) -> None:
    """The hour that runs is the last one."""
    rows = [
        (one.name, sum(counts), max(counts), counts[-1], plot(counts, getattr(out.stdout, "encoding", None)))
        for one in topics
        if sum(counts := rates[one.name])
    ]
    if rows:
        out.line()
        out.table(("topic", "letters", "most", "this hour", f"each of the last {hours} hours"), rows)


def plot(counts: Sequence[int], encoding: str | None) -> str:
    """Draw a character for each count. The highest count fills its character; only a count of 0 is empty."""
    bars = _BARS
    try:
        bars.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        bars = _ASCII_BARS
    most = max(counts, default=0) or 1
    return "".join(bars[-(-count * (len(bars) - 1) // most)] for count in counts)
