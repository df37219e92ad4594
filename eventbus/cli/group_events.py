"""``eventbus groups events GROUP``: the group's generations as its log tells them: when, why, who has what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.cli.output import Output
from eventbus.coordinator.codec import (
    GroupMetadataValue,
    StoredMember,
    decode_group_key,
    decode_group_value,
    partition_for_group,
)
from eventbus.coordinator.consumer_protocol import decode_assignment, decode_subscription
from eventbus.format import format_setting, format_time
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventbus import EventBus

_TOPIC = "__consumer_offsets"


class Event(NamedTuple):
    """One stored generation, beside the one before it."""

    at_ms: int
    generation_id: int
    cause: str
    members: int
    moved: int
    """Partitions that have another owner than before, or none."""
    since_ms: int | None
    """How long the generation before had lasted."""


async def events_of(bus: EventBus, group: str) -> list[Event]:
    """Every generation that is still in the log, in order: compaction keeps the newest only."""
    return list(_compare(await _stored(bus, group)))


async def _stored(bus: EventBus, group: str) -> list[GroupMetadataValue]:
    described = {topic.name: topic for topic in await bus.admin.describe_topics()}
    if _TOPIC not in described:
        return []
    number = partition_for_group(group, len(described[_TOPIC].partitions))
    partition = TopicPartition(_TOPIC, number)
    end = described[_TOPIC].partitions[number].last_stable_offset
    found: list[GroupMetadataValue] = []
    async with bus.new_consumer(start="earliest") as consumer:
        await consumer.assign([partition])
        while await consumer.position(partition) < end:
            for record in await consumer.poll(timeout_ms=100, max_records=1_000):
                if record.key is None or decode_group_key(record.key) != group:
                    continue
                if record.value is None:
                    found.clear()  # the group was deleted: what follows is another one
                else:
                    found.append(decode_group_value(record.value))
    return found


def _compare(generations: Iterable[GroupMetadataValue]) -> Iterable[Event]:
    before: GroupMetadataValue | None = None
    for value in generations:
        since = None if before is None else value.state_timestamp_ms - before.state_timestamp_ms
        owners, owned = _owners(value), {} if before is None else _owners(before)
        moved = sum(owners.get(partition) != owned.get(partition) for partition in owners.keys() | owned.keys())
        yield Event(
            value.state_timestamp_ms, value.generation_id, cause(before, value), len(value.members), moved, since
        )
        before = value


def _name(member: StoredMember) -> str:
    return member.group_instance_id or member.member_id


def _owners(value: GroupMetadataValue) -> dict[TopicPartition, str]:
    return {partition: _name(member) for member in value.members for partition in _assigned(member)}


def _assigned(member: StoredMember) -> list[TopicPartition]:
    try:
        return decode_assignment(member.assignment)
    except ValueError:  # of another protocol: what it was given is its own affair
        return []


def cause(before: GroupMetadataValue | None, value: GroupMetadataValue) -> str:
    """Describe what changed between two generations.

    A member that left is named. Whether it left on its own or its session ended is not recorded.
    """
    old = {} if before is None else {_name(member): member for member in before.members}
    new = {_name(member): member for member in value.members}
    parts = [f"{name} came" for name in sorted(new.keys() - old.keys())]
    parts += [f"{name} went" for name in sorted(old.keys() - new.keys())]
    stayed = sorted(old.keys() & new.keys())
    parts += [f"{name} came back" for name in stayed if old[name].member_id != new[name].member_id]
    if parts:
        return ", ".join(parts)
    if any(_topics(old[name]) != _topics(new[name]) for name in stayed):
        return "subscriptions changed"
    if before is not None and before.protocol_name != value.protocol_name:
        return f"assignor {value.protocol_name} in place of {before.protocol_name}"
    if before is not None and _owners(before).keys() != _owners(value).keys():
        return "partitions given up or added: the second round of a cooperative rebalance, or a topic that grew"
    return "a member joined again"


def _topics(member: StoredMember) -> list[str]:
    try:
        return sorted(decode_subscription(member.subscription).topics)
    except ValueError:
        return []


def show_events(out: Output, events: list[Event]) -> None:
    if out.json:
        out.data([_as_json(event) for event in events])
        return
    rows = [
        (
            format_time(event.at_ms),
            event.generation_id,
            event.members,
            event.moved,
            None if event.since_ms is None else format_setting(event.since_ms),
            event.cause,
        )
        for event in events
    ]
    out.table(["at", "generation", "members", "moved", "after", "cause"], rows)


def _as_json(event: Event) -> dict[str, Any]:
    return {**event._asdict(), "at": format_time(event.at_ms)}
