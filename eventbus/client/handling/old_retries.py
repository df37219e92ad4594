"""Have handlers without later tries read the retry topic of their group.

An entry of a retry topic belongs to a group, and the name of the topic to an option of the code. When a release changes
that option, the entries must still be handled, or the release refused. Dead letters that are redriven come through the
retry topic too, because other groups do not read it. So a handler that writes dead letters always has one.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from eventbus.backends.base import Backend, ConsumerConfig
from eventbus.broker import TopicDescription
from eventbus.client.handling.failure_policy import ways_apart
from eventbus.client.handling.handlers import Handler
from eventbus.errors import ConfigError, KafkaError
from eventbus.recovery import DrainsRetries, Waiting, policy_of, retry_topic_of
from eventbus.types import OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

Members = Sequence[tuple[Handler[Any, Any], str, ConsumerConfig]]
"""Handlers, the group of each, and the settings of its consumer."""

_EARLIEST = -2
_WAIT_MS = 10


async def with_old_retries(members: Members, topics: Mapping[str, TopicDescription], backend: Backend) -> Members:
    """Return ``members``, and give handlers without later tries a policy that reads the group's old retry topic.

    ``retry.<group>`` is read even when it is empty: during a rolling deployment members of the earlier release still
    write to it after this member has started. A handler with dead letters gets the topic if it does not exist. Groups
    that look like former names of handlers are logged.

    ``topics``: those of the log. A group that the log does not let us look at is logged.
    Raises ConfigError when records wait in a topic that no handler of the group can read.
    """
    if not members:
        return members
    changed: dict[Handler[Any, Any], Handler[Any, Any]] = {}
    groups = dict.fromkeys(group for _, group, _ in members)
    for group in groups:
        of_group = [one for one in members if one[1] == group]
        try:
            changed |= await _OldRetries(group, of_group, topics, backend).look()
        except KafkaError as error:
            # A handler whose group is denied, or whose coordinator is away, reports that itself. It may also come back.
            logger.warning("It is not known whether records of group %r wait in an old retry topic: %s", group, error)
    try:
        await _warn_of_renamed(members, groups, topics, backend)
    except KafkaError as error:  # this user may lack the permission to describe the other group
        logger.debug("It is not known whether records wait for a group with a former name: %s", error)
    return [(changed.get(handler, handler), group, config) for handler, group, config in members]


async def _warn_of_renamed(
    members: Members, groups: Collection[str], topics: Mapping[str, TopicDescription], backend: Backend
) -> None:
    """Log how many records wait for groups without members whose names look like former names of ``groups``.

    This is not refused: the group may be that of another process of the service, which starts later.
    """
    prefix = retry_topic_of("")
    last_names, first_names = {*map(_last_name, groups)}, {*map(_first_name, groups)} - {None}
    similar = [
        group
        for topic in topics
        if topic.startswith(prefix)
        and (group := topic.removeprefix(prefix)) not in groups
        and (_last_name(group) in last_names or _first_name(group) in first_names)
    ]
    for listing in await backend.list_groups() if similar else ():
        if listing.group in similar and listing.state in ("Empty", "Dead"):
            old = _OldRetries(listing.group, members, topics, backend)
            topic = retry_topic_of(listing.group)
            if count := await old.count(topic):
                logger.warning(
                    "%d record(s) of group %r wait in the retry topic %r, and the group has no members. If a handler, "
                    "its router or the service was renamed, they stay there. Start a handler with group=%r until they "
                    "are handled. See: eventbus dlq list",
                    count, listing.group, topic, listing.group,
                )  # fmt: skip


def _last_name(group: str) -> str:
    """Return the part that stays when the prefix of a router, or the service, is renamed."""
    return group.rpartition(".")[2]


def _first_name(group: str) -> str | None:
    """Return the part that stays when a handler is renamed."""
    return group.partition(".")[0] if "." in group else None


class _OldRetries:
    """The old retry topics of one group."""

    def __init__(self, group: str, members: Members, topics: Mapping[str, TopicDescription], backend: Backend) -> None:
        self._group = group
        self._members = members
        self._topics = topics
        self._backend = backend

    async def look(self) -> dict[Handler[Any, Any], Handler[Any, Any]]:
        """Return the changed handlers, by the handlers that they replace."""
        offsets = await self._backend.group_offsets(self._group)
        default = retry_topic_of(self._group)
        found = dict.fromkeys((default, *(partition.topic for partition in offsets)))
        sources = {name for handler, _, _ in self._members for name in self._topics if reads(handler, name)}
        names = [name for name in found if name in self._topics and name not in sources]
        policies = list(self._policies())
        if len(policies) < len(self._members):
            return {}  # a custom policy has its own topics
        read = {policy.retry_topic(self._group) for policy in policies}
        left = [name for name in names if name not in read]
        counts = {name: count for name in left if (count := await self.count(name, offsets))}
        changed: dict[Handler[Any, Any], Handler[Any, Any]] = {}
        handler, _, config = self._members[0]
        if len(self._members) == 1 and None in read and handler.spec.delivery != "at-most-once":
            topic = next(iter(counts), default)
            is_redriven = policies[0].is_redriven(self._group) and not reads(handler, default)
            if topic in self._topics or is_redriven:
                changed[handler] = self._draining(handler, policies[0], topic, config)
                counts.pop(topic, None)
                for other, count in counts.items():  # refused, the handler could never empty the first one
                    logger.warning("%s. Start the service again when %r is empty", self._found(other, count), topic)
                return changed
        for topic, count in counts.items():
            raise ConfigError(
                f"{self._found(topic, count)}. First run a release whose handler of that topic's records has "
                "retry=Retry(delays=None): it handles what waits. Or bring the former retry= back until then. To give "
                f"the records up: eventbus groups reset-offsets --group {self._group} --topic {topic} --to-latest "
                "--execute"
            )
        return changed

    def _found(self, topic: str, count: int) -> str:
        names = ", ".join(repr(handler.__name__) for handler, _, _ in self._members)
        return (
            f"handler {names}: {count} record(s) of group {self._group!r} wait in the retry topic {topic!r}, which it "
            "does not read. An earlier release wrote them there, with another retry="
        )

    def _policies(self) -> Iterator[DrainsRetries]:
        for handler, _, _ in self._members:
            policy = handler.spec.retry
            if policy is None:
                policy = policy_of(
                    0, False, f"handler {handler.__name__!r}: reading the retry topic of group {self._group!r}"
                )
            if isinstance(policy, DrainsRetries):
                yield policy

    def _draining(
        self, handler: Handler[Any, Any], policy: DrainsRetries, topic: str, config: ConsumerConfig
    ) -> Handler[Any, Any]:
        widths = {len(one.partitions) for name, one in self._topics.items() if reads(handler, name)}
        draining = policy.draining(topic, keeps_order=len(widths) < 2 and ways_apart(config) is None)
        changed = copy.copy(handler)
        changed.spec = msgspec.structs.replace(handler.spec, retry=draining)
        return changed

    async def count(self, topic: str, offsets: Mapping[TopicPartition, OffsetAndMetadata] | None = None) -> int:
        """Return how many entries of the group wait in a topic. ``offsets``: those of the group, if they are known."""
        from eventbus.delays.retry_partition import RetryPartition

        offsets = await self._backend.group_offsets(self._group) if offsets is None else offsets
        partitions = [TopicPartition(topic, one.partition) for one in self._topics[topic].partitions]
        starts = await self._backend.list_offsets(dict.fromkeys(partitions, _EARLIEST))
        count = 0
        for partition in partitions:
            start = offsets[partition].offset if partition in offsets else 0
            start = max(start, starts[partition].offset)
            waiting = RetryPartition("none", owner=self._group)
            await _read(self._backend, waiting, partition, start)
            count += len(waiting)
        return count


async def _read(backend: Backend, waiting: Waiting, partition: TopicPartition, start: int) -> None:
    """Read a partition from ``start`` to its end, or until it is clear that it does not hold entries."""
    consumer = backend.consumer(ConsumerConfig(fetch_max_wait_ms=_WAIT_MS))
    try:
        end = (await consumer.end_offsets([partition]))[partition]
        if start >= end:
            return
        await consumer.assign([partition])
        consumer.seek(partition, start)
        while await consumer.position(partition) < end:
            fetched = await consumer.fetch()
            for chunk in fetched:
                waiting.add(chunk)
            # The committed offset is that of an entry that waits. A topic that does not begin with one is another kind
            # of topic, which the group has read once, and may be large.
            if fetched and not len(waiting):
                return
    finally:
        await consumer.aclose()


def reads(handler: Handler[Any, Any], topic: str) -> bool:
    """Return whether a handler reads a topic."""
    return handler.spec.reads(topic)
