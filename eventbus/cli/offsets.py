"""``eventbus offsets TOPIC``: first and next offsets per partition, by time, and how far a group has come."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, add_topic, topic_of
from eventbus.cli.shell import open_bus
from eventbus.cli.topics import matching
from eventbus.types import OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED = -4, -5

_WORDS = {
    "latest": LATEST,
    "earliest": EARLIEST,
    "max-timestamp": MAX_TIMESTAMP,
    "earliest-local": EARLIEST_LOCAL,
    "latest-tiered": LATEST_TIERED,
}
_PATTERN = re.compile(r"(?P<topic>[^:]*)(?::(?P<partitions>\d+|\d*-\d*)?)?")


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "offsets",
        help="first and next offsets per partition, by time, or a group's",
        description="Offsets per partition. LATEST is the next offset to be written, COMMITTED the next one to be\n"
        "read: neither is the last record that was. LAG = LATEST - COMMITTED.",
    )
    add_topic(parser, required=False, help="a name, or a pattern of names; default: all topics")
    parser.add_argument(
        "--topic-partitions", metavar="TOPIC:0-2,...", help="patterns of topics, each with partitions: 0, 0-2, 1- or -2"
    )
    parser.add_argument("--exclude-internal-topics", action="store_true", help="leave out topics that begin with __")
    parser.add_argument(
        "--time",
        type=parse_time,
        metavar="WHEN",
        help="-1 latest, -2 earliest, -3 the record with the largest timestamp, or the first record at or after "
        "a time: milliseconds since 1970, or 2013-01-31T18:00 (UTC unless it says otherwise)",
    )
    parser.add_argument("--partitions", type=_partitions, metavar="0,2", help="default: all")
    parser.add_argument("--group", metavar="GROUP", help="show the group's committed offsets and lag")
    parser.set_defaults(run=show_offsets)


def parse_time(text: str) -> int:
    """``--time`` as Kafka's number: negative marks, or milliseconds since the epoch."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        value = int(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r} is no time: give -1, -2, -3, milliseconds since 1970, or a date like 2013-01-31T18:00"
            ) from None
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if value < LATEST_TIERED:
        raise argparse.ArgumentTypeError(f"{value} is no time: -1 is latest, -2 earliest, -3 the largest timestamp")
    return value


def _partitions(text: str) -> list[int]:
    try:
        return sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of partition numbers, as in 0,2") from None


async def show_offsets(args: argparse.Namespace) -> None:
    topic, out = topic_of(args), Output.of(args)
    if args.time is not None and args.group is not None:
        raise UsageError("eventbus offsets: --time and --group answer different questions: give one")
    if args.topic_partitions is not None and (topic is not None or args.partitions is not None):
        raise UsageError("eventbus offsets: --topic-partitions says which topics and partitions: give it alone")

    async with open_bus(args) as bus:
        partitions = await _chosen(bus, topic, args)
        if args.time is None:
            await _show_range(bus, partitions, args.group, out)
        else:
            await _show_at(bus, partitions, _here(args.time), out)


def _here(when: int) -> int:
    """Nothing is tiered: all there is, is local."""
    return EARLIEST if when == EARLIEST_LOCAL else when


async def _chosen(bus: EventBus, topic: str | None, args: argparse.Namespace) -> list[TopicPartition]:
    existing = {
        description.name: [part.partition for part in description.partitions]
        for description in await bus.admin.describe_topics()
        if not (args.exclude_internal_topics and description.is_internal)
    }
    if args.topic_partitions is not None:
        return sorted(
            {one for text in args.topic_partitions.split(",") for one in _matching_partitions(text, existing)}
        )
    found: list[TopicPartition] = []
    asked: list[int] | None = args.partitions
    for name in matching(topic, list(existing)):
        missing = [number for number in asked or () if number not in existing[name]]
        if missing and topic == name:
            raise UsageError(f"eventbus offsets: {name!r} has partitions 0 to {existing[name][-1]}, no {missing[0]}")
        wanted = existing[name] if asked is None else asked
        found += [TopicPartition(name, number) for number in wanted if number in existing[name]]
    return found


def _matching_partitions(text: str, existing: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    """``TOPIC``, ``TOPIC:1`` or ``TOPIC:0-2``, the last not among them; the topic is a pattern, or empty for all."""
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise UsageError(f"--topic-partitions {text!r}: write TOPIC, TOPIC:1, TOPIC:0-2, TOPIC:1- or TOPIC:-2")
    first, dash, last = (found["partitions"] or "-").partition("-")
    low = int(first or 0)
    high = (int(last) if last else sys.maxsize) if dash else low + 1
    names = matching(found["topic"] or None, list(existing), required=False)
    return [TopicPartition(name, number) for name in names for number in existing[name] if low <= number < high]


async def _show_range(bus: EventBus, partitions: list[TopicPartition], group: str | None, out: Output) -> None:
    earliest = await bus.admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    latest = await bus.admin.list_offsets(dict.fromkeys(partitions, LATEST))
    if group is None:
        rows = [
            (tp.topic, tp.partition, earliest[tp].offset, latest[tp].offset, latest[tp].offset - earliest[tp].offset)
            for tp in partitions
        ]
        out.table(["topic", "partition", "earliest", "latest", "count"], rows)
        return
    committed = await bus.admin.group_offsets(group)
    if not committed:
        out.note(f"warning: group {group!r} has committed nothing yet")
    lines: list[tuple[Any, ...]] = []
    for tp in partitions:
        position = committed[tp].offset if tp in committed else None
        lag = latest[tp].offset - (earliest[tp].offset if position is None else position)
        lines.append((group, tp.topic, tp.partition, earliest[tp].offset, position, latest[tp].offset, lag))
    out.table(["group", "topic", "partition", "earliest", "committed", "latest", "lag"], lines)


async def _show_at(bus: EventBus, partitions: list[TopicPartition], when: int, out: Output) -> None:
    if when == LATEST_TIERED:
        found = dict.fromkeys(partitions, OffsetAndTimestamp(-1, -1))
    else:
        found = await bus.admin.list_offsets(dict.fromkeys(partitions, when))
    if out.json:
        out.data(
            [
                {
                    "topic": tp.topic,
                    "partition": tp.partition,
                    "offset": found[tp].offset if found[tp].offset >= 0 else None,
                    "timestamp_ms": found[tp].timestamp_ms if found[tp].timestamp_ms >= 0 else None,
                }
                for tp in partitions
            ]
        )
        return
    for tp in partitions:  # the line of Kafka's tool; no offset when there is no such record
        offset = found[tp].offset
        out.line(f"{tp.topic}:{tp.partition}:{offset if offset >= 0 else ''}")
