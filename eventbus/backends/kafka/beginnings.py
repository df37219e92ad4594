"""The position at which a consumer begins to read a partition. Everything here blocks, and runs in the consumer's
thread."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.kafka.member import Member
from eventbus.errors import EventBusError, NoCommittedOffset, OffsetOutOfRange
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.consumer")

_STABLE_SECONDS = 1.0
"""How long to wait for a transaction that is about to commit offsets; then they are requested again later."""


class Beginning(NamedTuple):
    """The offsets at which to begin, and the errors of the other partitions."""

    offsets: dict[TopicPartition, int]
    errors: dict[TopicPartition, EventBusError]


class Beginnings:
    """Determines a consumer's start positions: the group's committed offsets, else by ``start``."""

    def __init__(self, backend: KafkaBackend, config: ConsumerConfig) -> None:
        self._backend = backend
        self._config = config
        self._known: dict[str, int] = {}
        """Topics and their partition counts at the subscription: later partitions are read from their beginning."""

    def know(self, counts: Mapping[str, int]) -> None:
        """Remember these counts, or for topics that were already read, the earlier counts."""
        self._known = {topic: self._known.get(topic, count) for topic, count in counts.items()}

    def at_once(self, member: Member, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that are known now. The other partitions are tried again, and may raise then."""
        try:
            return self.offsets(member, partitions, {}).offsets
        except EventBusError as error:
            logger.debug("where to begin in %s is not known yet: %s", partitions, error)
            return {}

    def offsets(self, member: Member, fresh: list[TopicPartition], passed: Mapping[TopicPartition, int]) -> Beginning:
        """Return where to begin in new partitions, and in those whose position (``passed``) is out of range.

        The errors are NoCommittedOffset and OffsetOutOfRange with ``start="none"``, and those of the partition's
        leader. Raises an error of the whole group.
        """
        result = Beginning({}, {})
        if self._config.start == "none":
            for where, position in passed.items():
                result.errors[where] = OffsetOutOfRange(
                    f'{where}: offset {position} is out of range, and start="none" does not say where to go on: seek'
                )
        else:
            self._reset(list(passed), result)
        if self._config.group is not None:
            committed, errors = member.committed(fresh, _STABLE_SECONDS)
            result.offsets.update({where: at.offset for where, at in committed.items()})
            result.errors.update(errors)
        rest = [where for where in fresh if where not in result.offsets and where not in result.errors]
        new = [where for where in rest if self._is_new(where)]
        self._list(dict.fromkeys(new, EARLIEST), result)
        self._reset([where for where in rest if where not in new], result)
        for where, error in result.errors.items():
            error.topic_partition = where
        return result

    def again(self, partitions: list[TopicPartition]) -> Beginning:
        """Return where to begin in topics that were deleted and created again since this consumer began.

        Committed offsets belong to the old topics. All records were sent since this consumer began, so
        ``start="latest"`` means all of them, as for a partition that was added.
        """
        result = Beginning({}, {})
        match self._config.start:
            case "none":
                for where in partitions:
                    result.errors[where] = NoCommittedOffset(
                        f'{where}: its topic was deleted and created again, and start="none" does not specify where to '
                        'begin. Seek, or use start="earliest"'
                    )
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

    def _list(self, at: Mapping[TopicPartition, int], result: Beginning) -> None:
        offsets, errors = self._backend.offsets_in_thread(at, self._config.isolation)
        result.offsets.update(offsets)
        result.errors.update(errors)

    def _reset(self, partitions: list[TopicPartition], result: Beginning) -> None:
        """Begin where ``start=`` specifies."""
        match self._config.start:
            case "none":
                for where in partitions:
                    result.errors[where] = NoCommittedOffset(
                        f'group {self._config.group!r} has no committed offset for {where} and start="none": '
                        'commit one (`bus.admin.alter_group_offsets`), or use start="earliest" or "latest"'
                    )
            case "by_duration":
                since_ms = max(self._backend.clock() - self._config.start_duration_ms, 0)
                self._list(dict.fromkeys(partitions, since_ms), result)
                late = [where for where in partitions if result.offsets.get(where, 0) < 0]
                for where in late:
                    del result.offsets[where]
                self._list(dict.fromkeys(late, LATEST), result)
            case start:
                at = EARLIEST if start == "earliest" else LATEST
                self._list(dict.fromkeys(partitions, at), result)
