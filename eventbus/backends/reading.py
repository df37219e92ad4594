"""Checks and errors that the consumers of all logs share: arguments, held partitions, and unspecified starts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from eventbus.backends.base import ConsumerConfig
from eventbus.backends.transactional import nothing
from eventbus.errors import ConfigError, NoCommittedOffset, UnknownTopicOrPartition
from eventbus.topic_patterns import check_pattern
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.consumer")


class Reading(ABC):
    """The part of a `BackendConsumer` that does not depend on its log."""

    _held: dict[TopicPartition, Any]

    def __init__(self, config: ConsumerConfig) -> None:
        self._config = config
        self._topics: set[str] = set()
        self._pattern: str | None = None
        self._manual = False
        self.on_revoked: Callable[[TopicPartition], object] = nothing
        self.on_revoking: Callable[[list[TopicPartition]], Awaitable[object]] = _do_nothing
        self.on_assigned: Callable[[list[TopicPartition]], Awaitable[object]] = _do_nothing
        self.on_settled: Callable[[], object] = nothing
        self.on_readable: Callable[[TopicPartition], object] = nothing
        self._lost_place = False
        """True if the group has removed this member since its last fetch."""
        self._positions: dict[TopicPartition, int] = {}
        self._passed: set[TopicPartition] = set()
        self.deleted_unread: Counter[TopicPartition] = Counter()
        """Partitions whose positions have moved without a record, see `passed`."""
        self._closed = False

    @abstractmethod
    def assignment(self) -> list[TopicPartition]: ...

    @abstractmethod
    async def _placed(self, partition: TopicPartition) -> None:
        """Return when the start of the partition is known, or when it is revoked."""

    def _position(self, partition: TopicPartition) -> int:
        return self._positions[partition]

    async def position(self, partition: TopicPartition) -> int:
        await self._placed(partition)
        self._check_held(partition)
        return self._position(partition)

    async def positions(self, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        wanted = self.assignment() if partitions is None else list(partitions)
        for partition in wanted:
            await self._placed(partition)
        return {partition: self._position(partition) for partition in wanted if partition in self._positions}

    def _check_subscribes(self, pattern: str | None) -> None:
        if self._manual:
            raise ConfigError("this consumer has assigned partitions: use either subscribe() or assign(), not both")
        if pattern is not None:
            check_pattern(pattern)

    def _check_assigns(self, is_subscribed: bool) -> None:
        if is_subscribed:
            raise ConfigError("this consumer has subscribed: use either subscribe() or assign(), not both")
        self._manual = True

    def _check_held(self, partition: TopicPartition) -> None:
        if partition not in self._held:
            raise ConfigError(f"{partition} is not assigned to this consumer: {self.assignment()} are")

    def _check_seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_held(partition)
        if offset < 0:
            raise ConfigError(
                f"seek of {partition} to {offset}: offsets are 0 or more (see seek_to_beginning, seek_to_end)"
            )

    def _check_group(self, what: str = "this consumer has no group: open it") -> str:
        if self._config.group is None:
            raise ConfigError(f"{what} with group=...")
        return self._config.group

    def _log_reset(self, partition: TopicPartition, position: int, fresh: int, why: str = "") -> None:
        """Apply Kafka's ``auto.offset.reset`` to a position that retention passed, and always log it."""
        self.deleted_unread[partition] += max(fresh - position, 0)
        logger.warning(
            "%s: offset %d is out of range%s; reading goes on at %d, start=%r: %d offset(s) skipped",
            partition, position, why, fresh, self._config.start, max(fresh - position, 0),
        )  # fmt: skip


def check_partition(partition: TopicPartition, count: int) -> None:
    """Raise UnknownTopicOrPartition unless the topic, which has ``count`` partitions, has this one."""
    topic, number = partition
    if not 0 <= number < count:
        raise UnknownTopicOrPartition(
            f"topic {topic!r} has partitions 0 to {count - 1}; there is no partition {number}"
        )


def no_start(group: str | None, partition: TopicPartition) -> NoCommittedOffset:
    """Return the error of ``start="none"`` for a group without an offset."""
    return NoCommittedOffset(
        f'group {group!r} has no committed offset for {partition} and start="none": '
        'commit one (`bus.admin.alter_group_offsets`), or use start="earliest" or "latest"'
    )


def no_start_again(partition: TopicPartition) -> NoCommittedOffset:
    """Return the error of ``start="none"`` for a topic that was created again."""
    return NoCommittedOffset(
        f'{partition}: its topic was deleted and created again, and start="none" does not specify where to '
        'begin. Seek, or use start="earliest"'
    )


async def _do_nothing(partitions: list[TopicPartition]) -> None:
    """Do nothing: the default for rebalances."""
