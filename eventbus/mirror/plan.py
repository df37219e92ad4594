"""Plan what a mirror copies, and what must be done at the destination before. Nothing is changed here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from eventbus.broker import TopicDescription
from eventbus.errors import ConfigError, UnknownTopicOrPartition
from eventbus.mirror.journal import Journal, TopicState
from eventbus.suggest import nearest
from eventbus.topic_patterns import check_pattern, matches
from eventbus.types import Compression, TopicPartition

_TIMES = ("message.timestamp.type", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms")
"""Configs that would change, or refuse, the timestamps of copied records."""
_THE_CLUSTERS_OWN = (
    "min.insync.replicas", "unclean.leader.election.enable", "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas", "remote.storage.enable", "remote.log.copy.disable",
    "remote.log.delete.on.disable", "local.retention.ms", "local.retention.bytes",
)  # fmt: skip
"""Configs about brokers and their disks, not about records."""

_KEEPS_LESS = ("retention.ms", "retention.bytes")
"""Configs because of which the destination might delete copied records at once."""

Action = Literal["create", "take up", "go on", "refuse"]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects topics: named ones, those that match a pattern, or all; without excluded ones. Never internal ones."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    exclude: str | None = None
    """A pattern of whole names."""

    def check(self) -> None:
        """Raise ConfigError for an invalid selection."""
        for pattern in (self.pattern, self.exclude):
            check_pattern(pattern or "")
        if self.names and self.pattern is not None:
            raise ConfigError("topics by name or by pattern: give one of the two")
        for name in self.names:
            if name.startswith("__"):
                raise ConfigError(f"topic {name!r} is the log's own: its contents are translated, not copied")

    def choose(self, topics: Iterable[TopicDescription]) -> list[TopicDescription]:
        """Return the selected topics. Raises UnknownTopicOrPartition for a name that does not exist."""
        found = {one.name: one for one in topics if not one.is_internal and not one.name.startswith("__")}
        for name in self.names:
            if name not in found:
                raise UnknownTopicOrPartition(f"there is no topic {name!r} at the source{nearest(name, found)}")
        return [found[name] for name in sorted(found) if self.takes(name)]

    def takes(self, name: str) -> bool:
        if name.startswith("__") or (self.exclude is not None and re.fullmatch(self.exclude, name)):
            return False
        if self.names:
            return name in self.names
        return self.pattern is None or matches(self.pattern, name)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `eventbus.mirror.Mirror`."""

    name: str
    selection: Selection
    groups: str | None = ".*"
    """A pattern of whole names; None selects no group."""
    overwrite_groups: bool = False
    replication_factor: int = -1
    compression: Compression = Compression.NONE
    again: tuple[str, ...] = ()
    refresh_seconds: float = 2.0

    @property
    def transactional_id(self) -> str:
        return f"eventbus-mirror.{self.name}"


class TopicPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The planned action for one topic."""

    topic: str
    action: Action
    partitions: int
    grow_to: int = 0
    """The partition count that the destination must grow to; 0 if it has enough."""
    set_configs: dict[str, str] = {}
    delete_configs: tuple[str, ...] = ()
    kept_back: tuple[str, ...] = ()
    """Configs of the source that are not copied."""
    reason: str = ""
    """The reason of a refusal."""


def own_configs(topic: TopicDescription) -> dict[str, str]:
    """Return the topic's own configs that a mirror copies."""
    skipped = {*_TIMES, *_THE_CLUSTERS_OWN}
    return {
        name: entry.value for name, entry in topic.configs.items() if entry.source == "topic" and name not in skipped
    }


def plan_topic(
    source: TopicDescription, destination: TopicDescription | None, state: TopicState | None, journal: Journal
) -> TopicPlan:
    """Return the plan for a topic, given the journal."""
    name, count = source.name, len(source.partitions)
    wanted = own_configs(source)
    reason = _why_not(source, destination, state, journal)
    action: Action = "create" if destination is None else "take up" if state is None else "go on"
    known = {} if state is None else state.configs
    if destination is None:
        changed = wanted
    elif state is None:  # created manually: its own configs stay, others are copied
        changed = {key: value for key, value in wanted.items() if key not in own_configs(destination)}
    else:
        changed = {key: value for key, value in wanted.items() if known.get(key) != value}
    return TopicPlan(
        topic=name,
        action="refuse" if reason else action,
        partitions=count,
        grow_to=count if destination is not None and len(destination.partitions) < count else 0,
        set_configs=changed,
        delete_configs=tuple(sorted(known.keys() - wanted.keys())),
        kept_back=tuple(
            key
            for key in (*_TIMES, *_THE_CLUSTERS_OWN)
            if key in source.configs and source.configs[key].source == "topic"
        )
        + _kept_longer(source, destination),
        reason=reason,
    )


def _kept_longer(source: TopicDescription, destination: TopicDescription | None) -> tuple[str, ...]:
    """Return configs whose default at the source keeps records longer than the destination's topic."""
    found: list[str] = []
    for key in _KEEPS_LESS:
        here = source.configs.get(key)
        there = None if destination is None else destination.configs.get(key)
        if here is None or there is None or here.source == "topic":
            continue
        most, least = int(here.value), int(there.value)
        if least >= 0 and (most < 0 or most > least):
            found.append(f"{key}={most} (there {least}: older records are deleted)")
    return tuple(found)


def _why_not(
    source: TopicDescription, destination: TopicDescription | None, state: TopicState | None, journal: Journal
) -> str:
    """Return why a topic cannot be mirrored; empty if it can."""
    name, count = source.name, len(source.partitions)
    if state is not None and source.topic_id and state.source_id and source.topic_id != state.source_id:
        return (
            f"topic {name!r} of the source is not the one that was mirrored: it was deleted and created again, or this "
            f"is another log. {_how_to_start_over(name)}"
        )
    if destination is None:
        if state is not None:
            return f"topic {name!r} was mirrored, and is gone at the destination. {_how_to_start_over(name)}"
        return ""
    if source.topic_id and source.topic_id == destination.topic_id:
        return f"source and destination are one log: topic {name!r} has the same id on both sides"
    stamps = destination.configs.get("message.timestamp.type")
    if stamps is not None and stamps.value == "LogAppendTime":
        return (
            f"topic {name!r} of the destination stamps records with its own time, and copies would lose theirs: "
            f"`eventbus configs --alter --topic {name} --add-config message.timestamp.type=CreateTime` there, until "
            "all is copied"
        )
    if state is not None:
        return _changed_since(source, destination, state, journal)
    held = sum(max(one.log_end_offset - one.log_start_offset, 0) for one in destination.partitions)
    if held:
        return (
            f"topic {name!r} of the destination holds {held:,} offset(s) that this mirror did not write: mirror it to "
            f"an empty log, leave it out (--exclude {name}), or go on as the mirror that wrote "
            "them (--name); for --again, delete it there first"
        )
    if len(destination.partitions) != count:
        return (
            f"topic {name!r} has {count} partition(s) at the source and {len(destination.partitions)} at the "
            "destination, where keys would go elsewhere: delete it there (it is empty), and it is made alike"
        )
    return ""


def _changed_since(source: TopicDescription, destination: TopicDescription, state: TopicState, journal: Journal) -> str:
    name = source.name
    if destination.topic_id and state.destination_id and destination.topic_id != state.destination_id:
        return (
            f"topic {name!r} of the destination is not the one that was written: it was created again. "
            f"{_how_to_start_over(name)}"
        )
    for one in source.partitions:
        where = TopicPartition(name, one.partition)
        copied = journal.maps.get(where)
        if copied is not None and 0 <= one.log_end_offset < copied.position:
            return (
                f"{where} of the source ends at {one.log_end_offset:,}, and was mirrored up to {copied.position:,}: it "
                f"has lost its end, say by a restored backup. {_how_to_start_over(name)}"
            )
    return ""


def _how_to_start_over(name: str) -> str:
    return f"To copy it from its beginning, delete it at the destination and say --again {name}; or --exclude {name}"


def check_plans(plans: Sequence[TopicPlan]) -> None:
    """Raise ConfigError with all refused topics: nothing has been copied then."""
    reasons = [plan.reason for plan in plans if plan.reason]
    if len(reasons) == 1:
        raise ConfigError(reasons[0])
    if reasons:
        raise ConfigError("\n  ".join((f"{len(reasons)} topics cannot be mirrored:", *reasons)))


def by_name(topics: Iterable[TopicDescription]) -> Mapping[str, TopicDescription]:
    return {one.name: one for one in topics}
