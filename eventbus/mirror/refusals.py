"""Partitions that cannot be copied now, with reason and time of the next try. Others are copied meanwhile."""

from __future__ import annotations

import logging

from eventbus.backends.clock import Timers
from eventbus.errors import (
    EventBusError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    ProducerFenced,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.mirror.progress import Progress
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.mirror")

_OF_PRODUCER = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
"""The transaction timed out, or another mirror has begun: the next session determines which."""
_FIRST_PAUSE_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 30.0


def is_of_producer(error: EventBusError) -> bool:
    """True if the whole transaction failed, and a new session may succeed."""
    kinds = (*_OF_PRODUCER, TransactionAborted, TransactionOutcomeUnknown)
    # librdkafka's producer that has failed permanently raises a plain EventBusError, whatever the reason.
    return isinstance(error, kinds) or type(error) is EventBusError


def may_pass(error: EventBusError) -> bool:
    """True if a new session may succeed where this one failed."""
    return error.retriable or is_of_producer(error)


class Refusals:
    """The partitions that one run of a mirror cannot copy now. They outlive its sessions.

    A transaction carries records of many partitions, and fails as a whole. So a partition that was refused, or that may
    be the reason of a refusal (a suspect), is tried in a separate transaction, without its neighbours.
    """

    def __init__(self, progress: Progress, timers: Timers, *, follow: bool) -> None:
        self.errors: dict[TopicPartition, EventBusError] = {}
        """Why partitions are refused, until they are copied again."""
        self._progress = progress
        self._timers = timers
        self._follow = follow
        self._suspects: dict[TopicPartition, None] = {}
        self._retry_at: dict[TopicPartition, float] = {}
        self._pauses: dict[TopicPartition, float] = {}

    def waits(self, where: TopicPartition) -> bool:
        """True if the partition must not be read now."""
        return where in self._retry_at

    def add(self, where: TopicPartition, error: EventBusError) -> None:
        """Record a refusal. The partition is tried again later if the mirror follows, else in the next run."""
        if self._follow and str(error) != self._progress.refused.get(where):  # a copy raises it at its end
            logger.warning("%s", error)
        self.errors[where] = error
        self._progress.refused[where] = str(error)
        self.postpone(where)

    def postpone(self, where: TopicPartition) -> None:
        """Try the partition later."""
        self._suspects.pop(where, None)
        pause = self._pauses.get(where, _FIRST_PAUSE_SECONDS)
        self._pauses[where] = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._retry_at[where] = self._timers.current_time() + pause if self._follow else float("inf")

    def suspect(self, where: TopicPartition) -> None:
        """Try the partition separately."""
        self._suspects[where] = None

    def clear(self, where: TopicPartition) -> None:
        """Clear the refusal of a partition that was copied, or has nothing to copy."""
        self._suspects.pop(where, None)
        self._retry_at.pop(where, None)
        self._pauses.pop(where, None)
        if self.errors.pop(where, None) is not None:
            del self._progress.refused[where]
            logger.warning("%s is copied again", where)

    def release_due(self) -> None:
        """Make suspects of the partitions that have waited long enough."""
        now = self._timers.current_time()
        for where in [where for where, at in self._retry_at.items() if at <= now]:
            del self._retry_at[where]
            self._suspects[where] = None

    def release_passing(self) -> None:
        """Make suspects of the partitions whose refusal may have passed, at the beginning of a session."""
        for where in [where for where, error in self.errors.items() if error.retriable]:
            self._retry_at.pop(where, None)
            self._suspects[where] = None

    def check(self) -> None:
        """Raise the error of a partition that was not copied: preferably a temporary one, which is retried."""
        for error in sorted(self.errors.values(), key=lambda error: not error.retriable):
            raise error

    def next_trial(self) -> TopicPartition | None:
        """Return the partition to be copied separately now, or None: then all that do not wait are copied together."""
        return next(iter(self._suspects), None)
