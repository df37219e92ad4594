"""``eventbus groups list | describe | events | reset-offsets | delete | ...``: flags and columns as Kafka's tool."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.group_reset import add_group, add_reset, add_topics, groups_of, partitions_of, refuse_members
from eventbus.cli.offsets import LATEST
from eventbus.cli.output import Output
from eventbus.cli.parser import Subcommands, UsageError, natural
from eventbus.cli.shell import open_bus
from eventbus.errors import GroupIdNotFound
from eventbus.suggest import nearest
from eventbus.types import IsolationLevel, TopicPartition

if TYPE_CHECKING:
    from eventbus import EventBus
    from eventbus.coordinator.requests import GroupDescription, MemberDescription


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
    listing.add_argument(
        "--type", nargs="?", const="", metavar="TYPES", help="show the types, or only groups of these: classic,consumer"
    )
    listing.add_argument("--group-type", dest="type", help=argparse.SUPPRESS)
    listing.add_argument("--protocol", metavar="TYPE", help="only groups of this protocol, as consumer")
    listing.add_argument("--consumer", action="store_const", dest="protocol", const="consumer", help=argparse.SUPPRESS)
    for kind in ("share", "streams"):
        listing.add_argument(f"--{kind}", action="store_const", dest="type", const=kind, help=argparse.SUPPRESS)
    _add_timeout(listing)
    listing.set_defaults(run=list_groups)

    describe = actions.add_parser("describe", help="state, members, offsets and lag")
    add_group(describe, "default: all groups", required=False)
    describe.add_argument("--offsets", action="store_true", help="the offsets alone")
    describe.add_argument("--members", action="store_true", help="the members alone")
    describe.add_argument("--state", action="store_true", help="the state alone")
    describe.add_argument("--verbose", action="store_true", help=argparse.SUPPRESS)  # it always tells all it has
    _add_timeout(describe)
    describe.set_defaults(run=describe_groups)

    events = actions.add_parser(
        "events",
        help="a group's rebalances: when, why, how much moved",
        description="The generations of a group that its log still holds: when each was assigned, what had\n"
        "changed, and how many partitions got another owner. AFTER is how long the one before had lasted.\n"
        "Not stored, so not shown: how long a rebalance took, and whether a member left or its session ended.",
    )
    add_group(events, "the group's name")
    events.set_defaults(run=show_group_events)

    add_reset(actions)

    delete = actions.add_parser("delete", help="forget groups and their offsets, or some of their offsets")
    add_group(delete, "the group's name")
    add_topics(delete, help="forget the offsets of this topic alone, as orders or orders:0,2; repeatable")
    _add_timeout(delete)
    delete.set_defaults(run=delete_groups)

    offsets = actions.add_parser("delete-offsets", help="forget a group's offsets in some topics")
    add_group(offsets, "the group's name")
    add_topics(offsets)
    _add_timeout(offsets)
    offsets.set_defaults(run=delete_offsets)

    check = actions.add_parser("validate-regex", help="whether a pattern of topics can be subscribed to")
    check.add_argument("expression", metavar="PATTERN", help="a regular expression")
    check.set_defaults(run=validate_regex)


def _add_timeout(parser: argparse.ArgumentParser) -> None:
    """Kafka's tool waits for so long; this log answers."""
    parser.add_argument("--timeout", type=natural, metavar="MS", help=argparse.SUPPRESS)


# list -----------------------------------------------------------------------------------------------------------------


async def list_groups(args: argparse.Namespace) -> None:
    out = Output.of(args)
    wanted = {_plain(state) for state in (args.state or "").split(",") if state}
    types = {_plain(one) for one in (args.type or "").split(",") if one}

    async with open_bus(args) as bus:
        listed = sorted(await bus.admin.list_groups())
    shown = [
        group
        for group in listed
        if (not wanted or _plain(group.state) in wanted)
        and (not types or group.group_type in types)
        and args.protocol in (None, group.protocol_type)
    ]
    if args.state is None and args.type is None and not out.json and not out.rich:  # as Kafka's tool: one name per line
        for group in shown:
            out.line(group.group)
    else:
        columns = ["group", "protocol type", "state", *(["type"] if args.type is not None else [])]
        out.table(columns, [group[: len(columns)] for group in shown])


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


async def describe_groups(args: argparse.Namespace) -> None:
    groups, out = groups_of(args), Output.of(args)
    parts = [name for name in ("state", "members", "offsets") if getattr(args, name)] or ["state", "members", "offsets"]

    async with open_bus(args) as bus:
        names = [listing.group for listing in sorted(await bus.admin.list_groups())]
        if groups:
            names = [_known(group, names) for group in groups]
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
        generation = f"  generation {group.generation_id}" if group.generation_id >= 0 else ""  # not told by a broker
        out.line(
            f"group {group.group}  {group.state}{protocol}{generation}  "
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
            _COLUMNS,
            [
                (group.group, *one.topic_partition, one.current, one.end, one.lag, *_owner(one.member))
                for one in positions
            ],
        )


_COLUMNS = ["group", "topic", "partition", "current-offset", "log-end-offset", "lag", "consumer-id", "host",
            "client-id"]  # fmt: skip
"""Those of Kafka's tool."""


def _owner(member: MemberDescription | None) -> tuple[str | None, str | None, str | None]:
    return (None, None, None) if member is None else (member.member_id, member.client_host, member.client_id)


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


async def show_group_events(args: argparse.Namespace) -> None:
    from eventbus.cli.group_events import events_of, show_events

    [group], out = groups_of(args, several=False), Output.of(args)

    async with open_bus(args) as bus:
        _known(group, [listing.group for listing in await bus.admin.list_groups()])
        events = await events_of(bus, group)
    if not events and not out.json:
        out.note(f"group {group!r} never had members: its offsets were set by an administrator, or by hand")
    show_events(out, events)


# delete ---------------------------------------------------------------------------------------------------------------


async def delete_groups(args: argparse.Namespace) -> None:
    if args.topic:
        return await delete_offsets(args)
    groups, out = groups_of(args), Output.of(args)

    async with open_bus(args) as bus:
        names = [listing.group for listing in await bus.admin.list_groups()]
        for group in [_known(group, names) for group in groups] or sorted(names):
            await refuse_members(bus, group)
            await bus.admin.delete_group(group)
            out.answer({"group": group, "deleted": True}, f"Deleted group {group}.")


async def delete_offsets(args: argparse.Namespace) -> None:
    groups, out = groups_of(args), Output.of(args)
    if not args.topic:
        raise UsageError(f"{args.program}: which offsets? Give --topic, as orders or orders:0,2; repeatable")

    async with open_bus(args) as bus:
        names = [listing.group for listing in await bus.admin.list_groups()]
        for group in [_known(group, names) for group in groups] or sorted(names):
            partitions = await partitions_of(bus, args.topic)
            await bus.admin.delete_group_offsets(group, partitions)
            shown = ", ".join(map(str, partitions))
            out.answer(
                {"group": group, "deleted_offsets": [{"topic": t, "partition": p} for t, p in partitions]},
                f"Forgot the offsets of group {group} in {shown}.",
            )


def validate_regex(args: argparse.Namespace) -> int:
    """Patterns of topics are those of Python here, and of RE2 for groups whose members send them (KIP-848)."""
    try:
        re.compile(args.expression)
    except re.error as error:
        Output.of(args).note(f"error: {args.expression!r} is no pattern: {error}")
        return 1
    Output.of(args).answer({"pattern": args.expression, "valid": True}, f"{args.expression!r} is a pattern.")
    return 0
