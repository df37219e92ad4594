"""``eventbus groups reset-offsets``: every way of Kafka's tool to say where to, and plans in files."""

from __future__ import annotations

import argparse
import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from eventbus.cli.offsets import EARLIEST, LATEST, parse_time
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.cli.shell import open_bus
from eventbus.durations import read_duration
from eventbus.errors import NonEmptyGroup
from eventbus.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.coordinator.requests import GroupDescription

Plan = dict[str, dict[TopicPartition, int]]
"""The new offsets of each group."""


def add_reset(actions: Subcommands) -> None:
    reset = actions.add_parser(
        "reset-offsets",
        help="move a group's committed offsets",
        description="Moves the committed offsets of a group that has no members. Without --execute nothing changes:\n"
        "what would be done is shown, with --export as lines that --from-file takes.",
    )
    add_group(reset, "the group's name; one that does not exist is created")
    add_topics(reset)
    reset.add_argument("--all-topics", action="store_true", help="every topic the group has offsets of")
    _add_targets(reset)
    mode = reset.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only show (the default)")
    mode.add_argument("--execute", action="store_true", help="do it")
    reset.add_argument("--export", action="store_true", help="show it as CSV: topic,partition,offset")
    reset.add_argument("--timeout", type=natural, metavar="MS", help=argparse.SUPPRESS)
    reset.set_defaults(run=reset_offsets)


def add_group(parser: argparse.ArgumentParser, help: str, *, required: bool = True) -> None:
    """A group as Kafka's tool takes it (``--group NAME``, repeatable) and as people type it (``NAME``)."""
    parser.add_argument("group", nargs="?", metavar="GROUP", help=help)
    parser.add_argument(
        "--group", dest="group_option", action="append", default=[], metavar="GROUP", help=argparse.SUPPRESS
    )
    parser.add_argument("--all-groups", action="store_true", help="every group there is")
    parser.set_defaults(group_required=required)


def groups_of(args: argparse.Namespace, *, several: bool = True) -> list[str]:
    """Return the groups that are named; none: all of them."""
    given: list[str] = [*([args.group] if args.group else []), *args.group_option]
    named = list(dict.fromkeys(given))
    if args.group and len(named) > 1:
        raise UsageError(f"{args.program}: two groups are given, {named[0]!r} and {named[1]!r}: give one")
    if args.all_groups and named:
        raise UsageError(f"{args.program}: --all-groups and {named[0]!r}: give one of the two")
    if not several and (args.all_groups or len(named) > 1):
        raise UsageError(f"{args.program}: this is about one group: give its name")
    if not named and args.group_required and not args.all_groups:
        raise UsageError(f"{args.program}: which group? Give its name, as in: {args.program} billing")
    return named


def add_topics(
    parser: argparse.ArgumentParser, help: str = "a topic, or some of its partitions, as orders:0,2; repeatable"
) -> None:
    parser.add_argument("--topic", action="append", default=[], metavar="TOPIC[:PARTITIONS]", help=help)


def _add_targets(parser: argparse.ArgumentParser) -> None:
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--to-earliest", action="store_true", help="the first offset held")
    target.add_argument("--to-latest", action="store_true", help="behind the last record")
    target.add_argument("--to-current", action="store_true", help="where the group is: commit it again")
    target.add_argument("--to-offset", type=int, metavar="N", help="this offset")
    target.add_argument("--shift-by", type=int, metavar="N", help="so many records on; back when negative")
    target.add_argument(
        "--to-datetime", type=moment, metavar="WHEN", help="the first record at or after, as 2013-01-31T18:00"
    )
    target.add_argument(
        "--by-duration", type=parse_duration, metavar="HOWLONG", help="the same, so long ago: PT1H30M, P7D, or 90m"
    )
    target.add_argument(
        "--from-file", metavar="FILE", help="as a CSV says: topic,partition,offset, for several groups with group first"
    )


def moment(text: str) -> int:
    """Return an argparse type: a time, in milliseconds since 1970."""
    value = parse_time(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: see --to-earliest and --to-latest")
    return value


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration (``P1DT2H``), or of a number with a unit (``90m``, ``1.5h``)."""
    found = read_duration(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write PT1H30M, P7D, 90m or 36h")
    return round(found)


async def reset_offsets(args: argparse.Namespace) -> None:
    groups, out = groups_of(args), Output.of(args)
    _check_reset(args)

    async with open_bus(args) as bus:
        names = groups or sorted(listing.group for listing in await bus.admin.list_groups())
        plan: Plan = {}
        committed: Plan = {}
        if args.from_file is not None:
            plan = read_plan(args.from_file, names)
        for group in [*plan] if args.from_file is not None else names:
            offsets = await bus.admin.group_offsets(group)
            committed[group] = {partition: offset.offset for partition, offset in offsets.items()}
            if args.from_file is not None:
                plan[group] = await _within(bus, plan[group], out)
            else:
                plan[group] = await _planned(bus, args, group, committed[group], out)
        if args.execute:
            for group in plan:
                await refuse_members(bus, group)
            for group, target in plan.items():
                await bus.admin.alter_group_offsets(group, target)
    if not args.execute:
        out.note("nothing is changed yet: add --execute to do this")
    if args.export:
        write_plan(plan)
        return
    rows = [
        (group, *partition, committed[group].get(partition), offset)
        for group, target in plan.items()
        for partition, offset in target.items()
    ]
    out.table(["group", "topic", "partition", "current-offset", "new-offset"], rows)


def _check_reset(args: argparse.Namespace) -> None:
    chosen = (args.to_offset, args.shift_by, args.to_datetime, args.by_duration, args.from_file)
    if args.from_file is not None:
        if args.topic or args.all_topics:
            raise UsageError(f"{args.program}: the file names the partitions: leave out --topic and --all-topics")
        return
    if bool(args.topic) == args.all_topics:
        raise UsageError(f"{args.program}: which offsets? Give --topic (repeatable) or --all-topics, one of the two")
    if not (args.to_earliest or args.to_latest or args.to_current or any(value is not None for value in chosen)):
        if args.export:
            args.to_current = True  # as in Kafka's tool: a plan to begin with
            return
        raise UsageError(
            f"{args.program}: where to? Give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
            "--to-datetime, --by-duration, --from-file"
        )


async def partitions_of(bus: EventBus, topics: Sequence[str]) -> list[TopicPartition]:
    """``orders`` or ``orders:0,2``, resolved. Raises UnknownTopicOrPartition, UsageError."""
    chosen: set[TopicPartition] = set()
    for text in topics:
        name, colon, numbers = text.partition(":")
        [topic] = await bus.admin.describe_topics([name])
        existing = [part.partition for part in topic.partitions]
        try:
            wanted = [int(number) for number in numbers.split(",")] if colon else existing
        except ValueError:
            raise UsageError(f"--topic {text!r}: partitions are numbers, as in {name}:0,2") from None
        for number in wanted:
            if number not in existing:
                raise UsageError(f"--topic {text!r}: {name!r} has partitions 0 to {existing[-1]}, no {number}")
        chosen |= {TopicPartition(name, number) for number in wanted}
    return sorted(chosen)


async def _planned(
    bus: EventBus, args: argparse.Namespace, group: str, current: Mapping[TopicPartition, int], out: Output
) -> dict[TopicPartition, int]:
    partitions = sorted(current) if args.all_topics else await partitions_of(bus, args.topic)
    if not partitions:
        raise UsageError(f"{args.program}: group {group!r} has no offsets yet: name topics with --topic")
    first, end = await _range(bus, partitions)
    when: int | None = args.to_datetime
    if args.by_duration is not None:
        when = round(time.time() * 1000) - args.by_duration
    if args.to_earliest:
        return first
    if args.to_latest:
        return end
    if when is not None:
        at = await bus.admin.list_offsets(dict.fromkeys(partitions, max(when, 0)))
        return {one: at[one].offset if at[one].offset >= 0 else end[one] for one in partitions}
    shift_by: int = args.shift_by or 0
    to_offset: int | None = args.to_offset
    wanted = {one: current.get(one, first[one]) + shift_by if to_offset is None else to_offset for one in partitions}
    return await _within(bus, wanted, out)


async def _range(
    bus: EventBus, partitions: Sequence[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset of each partition, and its end offset."""
    first = await bus.admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    end = await bus.admin.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_UNCOMMITTED)
    return {one: first[one].offset for one in partitions}, {one: end[one].offset for one in partitions}


async def _within(bus: EventBus, wanted: Mapping[TopicPartition, int], out: Output) -> dict[TopicPartition, int]:
    """What is wanted, each within its partition; what had to be moved is said."""
    first, end = await _range(bus, list(wanted))
    target: dict[TopicPartition, int] = {}
    for one, offset in wanted.items():
        target[one] = min(max(offset, first[one]), end[one])
        if target[one] != offset:
            out.note(f"warning: {one}: {offset} is outside {first[one]} to {end[one]}, taken as {target[one]}")
    return target


def write_plan(plan: Plan) -> None:
    """On stdout, as Kafka's tool does it: the group is told only where there are several."""
    lines = csv.writer(sys.stdout, lineterminator="\n")
    for group, target in plan.items():
        for (topic, number), offset in target.items():
            lines.writerow([*([group] if len(plan) > 1 else []), topic, number, offset])


def read_plan(path: str, groups: Sequence[str]) -> Plan:
    """What `write_plan` wrote. Raises UsageError, naming the line."""
    plan: Plan = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.reader(file) if row]
    except (OSError, ValueError) as error:
        raise UsageError(f"--from-file {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, row in enumerate(rows, 1):
        where = f"--from-file {path}, line {number}: {','.join(row)!r}"
        if len(row) not in (3, 4) or not (row[-1].strip().isdecimal() and row[-2].strip().isdecimal()):
            raise UsageError(f"{where} is not of the form topic,partition,offset or group,topic,partition,offset")
        if len(row) == 3 and len(groups) != 1:
            raise UsageError(f"{where} names no group, and there are {len(groups)}: group,topic,partition,offset")
        group = groups[0] if len(row) == 3 else row[0]
        if group not in groups:
            raise UsageError(f"{where} is for group {group!r}, which is not among those asked for")
        plan.setdefault(group, {})[TopicPartition(row[-3], int(row[-2]))] = int(row[-1])
    return plan


async def refuse_members(bus: EventBus, group: str) -> None:
    """Raises NonEmptyGroup, naming who is there."""
    description = await bus.admin.describe_group(group)
    if description.members:
        raise NonEmptyGroup(
            f"group {group!r} has {len(description.members)} member(s) ({_who(description)}): stop them first; the "
            "place of a static member is kept until its session ends"
        )


def _who(group: GroupDescription) -> str:
    return ", ".join(member.group_instance_id or member.member_id for member in sorted(group.members)[:5])
