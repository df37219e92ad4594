"""``eventbus groups list | describe | events | reset-offsets | delete``: flags and columns as Kafka's tool."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.group_events import events_of, show_events
from eventbus.cli.offsets import EARLIEST, LATEST, parse_time
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError
from eventbus.cli.shell import open_bus, run_async
from eventbus.errors import GroupIdNotFound, NonEmptyGroup
from eventbus.suggest import nearest
from eventbus.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.coordinator.requests import GroupDescription, MemberDescription

_DEAD = "Dead"


def register(subcommands: Subcommands) -> None:
    parser = subcommands.add_parser(
        "groups",
        help="list, describe, reset and delete consumer groups; their events",
        description="Consumer groups: who reads what, and how far they are. CURRENT-OFFSET is the next offset to be\n"
        "read, LOG-END-OFFSET the next to be written; LAG is the difference.",
    )
    actions = parser.add_subparsers(metavar="ACTION", title="actions")

    listing = actions.add_parser("list", help="the names of all groups")
    listing.add_argument(
        "--state", nargs="?", const="", metavar="STATES", help="show the states, or only groups in these: stable,empty"
    )
    listing.set_defaults(run=list_groups)

    describe = actions.add_parser("describe", help="state, members, offsets and lag")
    _add_group(describe, "default: all groups", required=False)
    describe.add_argument("--offsets", action="store_true", help="the offsets alone")
    describe.add_argument("--members", action="store_true", help="the members alone")
    describe.add_argument("--state", action="store_true", help="the state alone")
    describe.set_defaults(run=describe_groups)

    events = actions.add_parser(
        "events",
        help="a group's rebalances: when, why, how much moved",
        description="The generations of a group that its log still holds: when each was assigned, what had\n"
        "changed, and how many partitions got another owner. AFTER is how long the one before had lasted.\n"
        "Not stored, so not shown: how long a rebalance took, and whether a member left or its session ended.",
    )
    _add_group(events, "the group's name")
    events.set_defaults(run=show_group_events)

    reset = actions.add_parser(
        "reset-offsets",
        help="move a group's committed offsets",
        description="Moves the committed offsets of a group that has no members. Without --execute nothing changes:\n"
        "what would be done is shown.",
    )
    _add_group(reset, "the group's name; one that does not exist is created")
    _add_topics(reset)
    reset.add_argument("--all-topics", action="store_true", help="every topic the group has offsets of")
    _add_targets(reset)
    mode = reset.add_mutually_exclusive_group()
    mode.add_argument("--dry-run", action="store_true", help="only show (the default)")
    mode.add_argument("--execute", action="store_true", help="do it")
    reset.set_defaults(run=reset_offsets)

    delete = actions.add_parser("delete", help="forget a group and its offsets, or some of its offsets")
    _add_group(delete, "the group's name")
    _add_topics(delete, help="forget the offsets of this topic alone, as orders or orders:0,2; repeatable")
    delete.set_defaults(run=delete_group)


def _add_group(parser: argparse.ArgumentParser, help: str, *, required: bool = True) -> None:
    """A group as Kafka's tool takes it (``--group NAME``) and as people type it (``NAME``)."""
    parser.add_argument("group", nargs="?", metavar="GROUP", help=help)
    parser.add_argument("--group", dest="group_option", metavar="GROUP", help=argparse.SUPPRESS)
    parser.set_defaults(group_required=required)


def _group_of(args: argparse.Namespace) -> str | None:
    if args.group and args.group_option and args.group != args.group_option:
        raise UsageError(f"{args.program}: two groups are given, {args.group!r} and {args.group_option!r}: give one")
    group: str | None = args.group or args.group_option
    if group is None and args.group_required:
        raise UsageError(f"{args.program}: which group? Give its name, as in: {args.program} billing")
    return group


def _add_topics(
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


def moment(text: str) -> int:
    """An argparse type: a time, in milliseconds since 1970."""
    value = parse_time(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: see --to-earliest and --to-latest")
    return value


_UNITS_MS = {"W": 604_800_000, "D": 86_400_000, "H": 3_600_000, "M": 60_000, "S": 1_000}
_ISO = re.compile(r"P(?:(?P<W>\d+)W)?(?:(?P<D>\d+)D)?(?:T(?:(?P<H>\d+)H)?(?:(?P<M>\d+)M)?(?:(?P<S>[\d.]+)S)?)?")


def parse_duration(text: str) -> int:
    """Milliseconds of an ISO 8601 duration (``P1DT2H``), or of a number with a unit (``90m``, ``1.5h``)."""
    short = re.fullmatch(r"(\d+(?:\.\d+)?)([wdhms])", text)
    if short:
        return round(float(short[1]) * _UNITS_MS[short[2].upper()])
    found = _ISO.fullmatch(text.upper())
    if found is None or not any(found.groupdict().values()):
        raise argparse.ArgumentTypeError(f"{text!r} is no duration: write PT1H30M, P7D, 90m or 36h")
    return round(sum(float(value) * _UNITS_MS[unit] for unit, value in found.groupdict().items() if value))


# list -----------------------------------------------------------------------------------------------------------------


def list_groups(args: argparse.Namespace) -> int:
    out = Output.of(args)
    wanted = {_plain(state) for state in (args.state or "").split(",") if state}

    async def main() -> None:
        async with open_bus(args) as bus:
            listed = sorted(await bus.admin.list_groups())
        shown = [group for group in listed if not wanted or _plain(group.state) in wanted]
        if args.state is None and not out.json and not out.rich:  # as Kafka's tool: one name per line
            for group in shown:
                out.line(group.group)
        else:
            out.table(["group", "protocol type", "state"], shown)

    return run_async(main)


def _plain(state: str) -> str:
    """``PreparingRebalance`` as people may write it: preparing-rebalance."""
    return state.replace("-", "").replace("_", "").strip().lower()


# describe -------------------------------------------------------------------------------------------------------------


class _Position(NamedTuple):
    """One partition a group reads, or has read."""

    topic_partition: TopicPartition
    current: int | None
    end: int | None
    """None: the topic is gone."""
    member: MemberDescription | None

    @property
    def lag(self) -> int | None:
        return None if self.current is None or self.end is None else max(self.end - self.current, 0)


def describe_groups(args: argparse.Namespace) -> int:
    group, out = _group_of(args), Output.of(args)
    parts = [name for name in ("state", "members", "offsets") if getattr(args, name)] or ["state", "members", "offsets"]

    async def main() -> None:
        async with open_bus(args) as bus:
            names = [listing.group for listing in sorted(await bus.admin.list_groups())]
            if group is not None:
                names = [_known(group, names)]
            described = [(one, await _positions(bus, one)) for one in await bus.admin.describe_groups(names)]
        if out.json:
            out.data([_as_json(one, positions, parts) for one, positions in described])
            return
        if not described:
            out.note(
                "there are no groups yet: a handler's group, or one of `eventbus consume TOPIC --group NAME`, is there "
                "once it has read"
            )
        for number, (one, positions) in enumerate(described):
            if number:
                out.line()
            _show(out, one, positions, parts)

    return run_async(main)


def _known(group: str, names: Sequence[str]) -> str:
    if group in names:
        return group
    raise GroupIdNotFound(f"there is no group {group!r}{nearest(group, names)}; see: eventbus groups list")


def _owned(member: MemberDescription) -> list[TopicPartition]:
    from eventbus.coordinator.consumer_protocol import decode_assignment

    try:
        return sorted(decode_assignment(member.assignment))
    except ValueError:  # a member of another protocol: what it was given is its own affair
        return []


async def _positions(bus: EventBus, group: GroupDescription) -> list[_Position]:
    offsets = await bus.admin.group_offsets(group.group)
    owners = {partition: member for member in group.members for partition in _owned(member)}
    partitions = sorted({*offsets, *owners})
    existing = {
        TopicPartition(topic.name, part.partition)
        for topic in await bus.admin.describe_topics()
        for part in topic.partitions
    }
    asked = dict.fromkeys([partition for partition in partitions if partition in existing], LATEST)
    ends = await bus.admin.list_offsets(asked, IsolationLevel.READ_UNCOMMITTED)
    return [
        _Position(
            partition,
            offsets[partition].offset if partition in offsets else None,
            ends[partition].offset if partition in ends else None,
            owners.get(partition),
        )
        for partition in partitions
    ]


def _show(out: Output, group: GroupDescription, positions: Sequence[_Position], parts: Sequence[str]) -> None:
    idle = sum(not _owned(member) for member in group.members)
    if "state" in parts:
        protocol = f"  assignor {group.protocol_name}" if group.protocol_name else ""
        out.line(
            f"group {group.group}  {group.state}{protocol}  generation {group.generation_id}  "
            f"{len(group.members)} member(s){f', {idle} idle' if idle else ''}"
        )
    if "members" in parts and group.members:
        rows: list[tuple[Any, ...]] = []
        for member in sorted(group.members):
            owned = ", ".join(map(str, _owned(member))) or "idle: more members than partitions"
            rows.append((member.member_id, member.group_instance_id, member.client_id, member.client_host, owned))
        out.table(["consumer-id", "instance-id", "client-id", "host", "partitions"], rows)
    if "offsets" in parts:
        out.table(
            ["topic", "partition", "current-offset", "log-end-offset", "lag", "consumer-id"],
            [
                (*one.topic_partition, one.current, one.end, one.lag, one.member.member_id if one.member else None)
                for one in positions
            ],
        )


def _as_json(group: GroupDescription, positions: Sequence[_Position], parts: Sequence[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {"group": group.group}
    if "state" in parts:
        answer |= {
            "state": group.state,
            "protocol_type": group.protocol_type,
            "assignor": group.protocol_name or None,
            "generation_id": group.generation_id,
        }
    if "members" in parts:
        answer["members"] = [
            {
                "consumer_id": member.member_id,
                "instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "host": member.client_host,
                "partitions": [{"topic": topic, "partition": partition} for topic, partition in _owned(member)],
            }
            for member in sorted(group.members)
        ]
    if "offsets" in parts:
        answer["offsets"] = [
            {
                "topic": one.topic_partition.topic,
                "partition": one.topic_partition.partition,
                "current_offset": one.current,
                "log_end_offset": one.end,
                "lag": one.lag,
                "consumer_id": one.member.member_id if one.member else None,
            }
            for one in positions
        ]
    return answer


# events ---------------------------------------------------------------------------------------------------------------


def show_group_events(args: argparse.Namespace) -> int:
    group, out = _group_of(args), Output.of(args)
    assert group is not None

    async def main() -> None:
        async with open_bus(args) as bus:
            _known(group, [listing.group for listing in await bus.admin.list_groups()])
            events = await events_of(bus, group)
        if not events and not out.json:
            out.note(f"group {group!r} never had members: its offsets were set by an administrator, or by hand")
        show_events(out, events)

    return run_async(main)


# reset ----------------------------------------------------------------------------------------------------------------


def reset_offsets(args: argparse.Namespace) -> int:
    group, out = _group_of(args), Output.of(args)
    assert group is not None
    _check_reset(args)

    async def main() -> None:
        async with open_bus(args) as bus:
            current = {tp: offset.offset for tp, offset in (await bus.admin.group_offsets(group)).items()}
            partitions = sorted(current) if args.all_topics else await _partitions(bus, args.topic)
            if not partitions:
                raise UsageError(f"{args.program}: group {group!r} has no offsets yet: name topics with --topic")
            target = await _targets(bus, args, partitions, current, out)
            if args.execute:
                await _refuse_members(bus, group)
                await bus.admin.alter_group_offsets(group, target)
        if not args.execute:
            out.note("nothing is changed yet: add --execute to do this")
        out.table(
            ["group", "topic", "partition", "current-offset", "new-offset"],
            [(group, *partition, current.get(partition), target[partition]) for partition in partitions],
        )

    return run_async(main)


def _check_reset(args: argparse.Namespace) -> None:
    if bool(args.topic) == args.all_topics:
        raise UsageError(f"{args.program}: which offsets? Give --topic (repeatable) or --all-topics, one of the two")
    chosen = (args.to_offset, args.shift_by, args.to_datetime, args.by_duration)
    if not (args.to_earliest or args.to_latest or args.to_current or any(value is not None for value in chosen)):
        raise UsageError(
            f"{args.program}: where to? Give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, "
            "--to-datetime, --by-duration"
        )


async def _partitions(bus: EventBus, topics: Sequence[str]) -> list[TopicPartition]:
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


async def _targets(
    bus: EventBus,
    args: argparse.Namespace,
    partitions: Sequence[TopicPartition],
    current: Mapping[TopicPartition, int],
    out: Output,
) -> dict[TopicPartition, int]:
    """The new offsets, each within its partition."""
    found = await bus.admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    first = {partition: found[partition].offset for partition in partitions}
    found = await bus.admin.list_offsets(dict.fromkeys(partitions, LATEST), IsolationLevel.READ_UNCOMMITTED)
    end = {partition: found[partition].offset for partition in partitions}
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
    target: dict[TopicPartition, int] = {}
    for one in partitions:
        wanted = args.to_offset if args.to_offset is not None else current.get(one, first[one]) + (args.shift_by or 0)
        target[one] = min(max(wanted, first[one]), end[one])
        if target[one] != wanted:
            out.note(f"warning: {one}: {wanted} is outside {first[one]} to {end[one]}, taken as {target[one]}")
    return target


async def _refuse_members(bus: EventBus, group: str) -> None:
    description = await bus.admin.describe_group(group)
    if description.members:
        raise NonEmptyGroup(
            f"group {group!r} has {len(description.members)} member(s) ({_who(description)}): stop them first; the "
            "place of a static member is kept until its session ends"
        )


def _who(group: GroupDescription) -> str:
    return ", ".join(member.group_instance_id or member.member_id for member in sorted(group.members)[:5])


# delete ---------------------------------------------------------------------------------------------------------------


def delete_group(args: argparse.Namespace) -> int:
    group, out = _group_of(args), Output.of(args)
    assert group is not None

    async def main() -> None:
        async with open_bus(args) as bus:
            _known(group, [listing.group for listing in await bus.admin.list_groups()])
            if args.topic:
                partitions = await _partitions(bus, args.topic)
                await bus.admin.delete_group_offsets(group, partitions)
                shown = ", ".join(map(str, partitions))
                out.answer(
                    {"group": group, "deleted_offsets": [{"topic": t, "partition": p} for t, p in partitions]},
                    f"Forgot the offsets of group {group} in {shown}.",
                )
                return
            await _refuse_members(bus, group)
            await bus.admin.delete_group(group)
            out.answer({"group": group, "deleted": True}, f"Deleted group {group}.")

    return run_async(main)
