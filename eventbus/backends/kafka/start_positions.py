"""Find the offset at which a consumer starts to read a partition. All calls block, and run in the poll thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.kafka.poll_thread import PollThread
from eventbus.backends.reading import no_start, no_start_again
from eventbus.errors import EventBusError, OffsetOutOfRange
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.consumer")

_STABLE_SECONDS = 1.0
"""How long to wait for a transaction that is about to commit offsets; then they are requested again later."""


class StartOffsets(NamedTuple):
    """The start offsets, and the errors of the partitions without one."""

    offsets: dict[TopicPartition, int]
    errors: dict[TopicPartition, EventBusError]


class StartPositions:
    """Determines a consumer's start positions: the group's committed offsets, else by ``start``."""

    def __init__(self, backend: KafkaBackend, config: ConsumerConfig) -> None:
        self._backend = backend
        self._config = config
        self._known: dict[str, int] = {}
        """Topics and their partition counts at the subscription: later partitions are read from their beginning."""

    def set_partition_counts(self, counts: Mapping[str, int]) -> None:
        """Store the partition counts of subscribed topics. The count of a topic read before stays."""
        self._known = {topic: self._known.get(topic, count) for topic, count in counts.items()}

    def known_offsets(self, member: PollThread, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the start offsets that can be found now. The caller retries the other partitions later."""
        try:
            return self.offsets(member, partitions, {}).offsets
        except EventBusError as error:
            logger.debug("where to begin in %s is not known yet: %s", partitions, error)
            return {}

    def offsets(
        self, member: PollThread, fresh: list[TopicPartition], passed: Mapping[TopicPartition, int]
    ) -> StartOffsets:
        """Return where to begin in new partitions, and in those whose position (``passed``) is out of range.

        The errors are NoCommittedOffset and OffsetOutOfRange with ``start="none"``, and those of the partition's
        leader. Raises an error of the whole group.
        """
        result = StartOffsets({}, {})
        if self._config.start == "none":
            for where, position in passed.items():
                result.errors[where] = OffsetOutOfRange(
                    f'{where}: offset {position} is out of range, and start="none" does not say where to go on: seek'
                )
        else:
            self._reset(list(passed), result)
        if self._config.group is not None:
            # With require_stable (KIP-447): an offset that an open transaction is about to change would make records be
            # handled twice.
            committed, errors = member.committed(fresh, _STABLE_SECONDS)
            result.offsets.update({where: at.offset for where, at in committed.items()})
            result.errors.update(errors)
        rest = [where for where in fresh if where not in result.offsets and where not in result.errors]
        # start="latest" must not skip the first records of a partition that was added while this consumer ran.
        new = [where for where in rest if self._is_new(where)]
        self._list(dict.fromkeys(new, EARLIEST), result)
        self._reset([where for where in rest if where not in new], result)
        for where, error in result.errors.items():
            error.topic_partition = where
        return result

    def offsets_after_recreation(self, partitions: list[TopicPartition]) -> StartOffsets:
        """Return where to begin in topics that were deleted and created again since this consumer began.

        Committed offsets belong to the old topics. All records were sent since this consumer began, so
        ``start="latest"`` means all of them, as for a partition that was added.
        """
        result = StartOffsets({}, {})
        match self._config.start:
            case "none":
                for where in partitions:
                    result.errors[where] = no_start_again(where)
            case "by_duration":
                self._reset(partitions, result)
            case _:
                self._list(dict.fromkeys(partitions, EARLIEST), result)
        for where, error in result.errors.items():
            error.topic_partition = where
        return result

    def _is_new(self, where: TopicPartition) -> bool:
        """True if the partition was created while this consumer runs: all of it is new, whatever ``start`` is for
        old records."""
        return where.partition >= self._known.get(where.topic, 0)

    def _list(self, at: Mapping[TopicPartition, int], result: StartOffsets) -> None:
        offsets, errors = self._backend.offsets_in_thread(at, self._config.isolation)
        result.offsets.update(offsets)
        result.errors.update(errors)

    def _reset(self, partitions: list[TopicPartition], result: StartOffsets) -> None:
        """Add the offsets that ``start=`` specifies."""
        match self._config.start:
            case "none":
                for where in partitions:
                    result.errors[where] = no_start(self._config.group, where)
            case "by_duration":
                # KIP-1106: by_duration starts that long ago, or at the end if all records are older.
                since_ms = max(self._backend.clock() - self._config.start_duration_ms, 0)
                self._list(dict.fromkeys(partitions, since_ms), result)
                late = [where for where in partitions if result.offsets.get(where, 0) < 0]
                for where in late:
                    del result.offsets[where]
                self._list(dict.fromkeys(late, LATEST), result)
            case start:
                at = EARLIEST if start == "earliest" else LATEST
                self._list(dict.fromkeys(partitions, at), result)
