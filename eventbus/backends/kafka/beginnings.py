"""Where a consumer begins to read a partition. Everything here blocks: it is for the consumer's thread."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.kafka.member import Member
from eventbus.errors import EventBusError, NoCommittedOffset, OffsetOutOfRange
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.consumer")

_STABLE_SECONDS = 1.0
"""How long to wait for a transaction that is about to commit offsets: it is asked again later."""


class Beginnings:
    """Of one consumer: the group's committed offsets, else what ``start`` says."""

    def __init__(self, backend: KafkaBackend, config: ConsumerConfig) -> None:
        self._backend = backend
        self._config = config
        self._known: dict[str, int] = {}
        """Topics and their partitions when they were subscribed to: what came later is read from its beginning."""

    def know(self, counts: Mapping[str, int]) -> None:
        """What is read from now on; of what was read before, what was known then."""
        self._known = {topic: self._known.get(topic, count) for topic, count in counts.items()}

    def at_once(self, member: Member, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """As far as it can be said now: the others are asked for again, and may raise then."""
        try:
            committed = member.committed(partitions, _STABLE_SECONDS)
            offsets = {where: at.offset for where, at in committed.items()}
            rest = [where for where in partitions if where not in offsets]
            if self._config.start == "none":
                rest = [where for where in rest if self._is_new(where)]
            return {**offsets, **self._without_commit(rest)}
        except EventBusError as error:
            logger.debug("where to begin in %s is not known yet: %s", partitions, error)
            return {}

    def offsets(
        self, member: Member, fresh: list[TopicPartition], passed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Of partitions taken up, and of those whose position (``passed``) is out of range.

        Raises NoCommittedOffset and OffsetOutOfRange with ``start="none"``, and what keeps the group from telling.
        """
        if passed and self._config.start == "none":
            where, position = next(iter(passed.items()))
            raise OffsetOutOfRange(
                f'{where}: offset {position} is out of range, and start="none" does not say where to go on: seek'
            )
        committed = member.committed(fresh, _STABLE_SECONDS) if self._config.group is not None else {}
        rest = [where for where in fresh if where not in committed]
        return {
            **{where: at.offset for where, at in committed.items()},
            **self._without_commit(rest),
            **self._reset(list(passed)),
        }

    def _is_new(self, where: TopicPartition) -> bool:
        """It came into being while this consumer runs: all of it is new, whatever ``start`` says of old records."""
        return where.partition >= self._known.get(where.topic, 0)

    def _without_commit(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        wanted = list(partitions)
        new = {where: EARLIEST for where in wanted if self._is_new(where)}
        return {
            **self._backend.offsets_in_thread(new, self._config.isolation),
            **self._reset([where for where in wanted if where not in new]),
        }

    def _reset(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        start, isolation = self._config.start, self._config.isolation
        if not partitions:
            return {}
        match start:
            case "none":
                raise NoCommittedOffset(
                    f'group {self._config.group!r} has no committed offset for {partitions[0]} and start="none": '
                    'commit one (`bus.admin.alter_group_offsets`), or use start="earliest" or "latest"'
                )
            case "by_duration":
                since_ms = max(self._backend.clock() - self._config.start_duration_ms, 0)
                found = self._backend.offsets_in_thread(dict.fromkeys(partitions, since_ms), isolation)
                late = [where for where, offset in found.items() if offset < 0]
                return {**found, **self._backend.offsets_in_thread(dict.fromkeys(late, LATEST), isolation)}
            case _:
                at = EARLIEST if start == "earliest" else LATEST
                return self._backend.offsets_in_thread(dict.fromkeys(partitions, at), isolation)
