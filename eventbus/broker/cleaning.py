"""Choose the log to compact next, and record how far each log is clean. Part of the broker.

The end of a log's clean part is stored in ``cleaner-offset-checkpoint``. Losing it costs one cleaning of everything.
"""

from __future__ import annotations

import logging
from collections.abc import Generator

from eventbus.broker.logs import Logs
from eventbus.errors import CorruptRecord, EventBusError
from eventbus.log.checkpoints import forget_coordinator_state
from eventbus.log.cleaner import Cleanable, Cleaning, Pause, carry_out, cleanable, last_batches
from eventbus.log.partition_log import PartitionLog
from eventbus.log.recovery import corrupt_record
from eventbus.log.segment import Damage
from eventbus.log.storage import storage_error
from eventbus.log.wall_time import WallTime

__all__ = ["Cleaning", "LogCleaner", "Pause"]

_logger = logging.getLogger("eventbus.broker")


class LogCleaner:
    """Plans cleanings, one at a time, and records their results. The engine runs `Cleaning.run`."""

    def __init__(self, logs: Logs, wall: WallTime) -> None:
        self._logs = logs
        self._wall = wall
        self._under_way: Cleaning | None = None
        self._damaged: set[PartitionLog] = set()
        """Not tried again before the next start, because a person has to check the damage first."""

    def next(self, wall_now_ms: int) -> Cleaning | None:
        """Return a cleaning of the due log with the largest dirty part; None if no log is due.

        A log is due if its dirty part is above ``min.cleanable.dirty.ratio``, or holds a record older than
        ``max.compaction.lag.ms`` (KIP-354).
        """
        # One at a time: the map of the latest offsets is the largest object of a cleaning.
        if self._under_way is not None:
            return None
        due: list[tuple[float, PartitionLog, Cleanable]] = []
        for log in self._compacted():
            plan = self._plan(log, wall_now_ms)
            if plan is None:
                continue
            ratio = plan.dirty_ratio
            if ratio > log.config.min_cleanable_dirty_ratio or (plan.is_overdue and plan.dirty_bytes):
                due.append((ratio, log, plan))
        if not due:
            return None
        _, log, plan = max(due, key=lambda entry: entry[0])
        return self._begin(log, plan, wall_now_ms)

    def run(self, cleaning: Cleaning) -> Generator[Pause, None, None]:
        """Run `Cleaning.run`, after what it depends on is on disk."""

        def before_swap() -> None:
            # The saved state names the CRC of a batch that compaction may rewrite.
            forget_coordinator_state(self._logs.storage, cleaning.log.directory)
            # The redo journal may hold old blocks of these segments. A durable recovery point after them keeps recovery
            # from restoring such a block into the compacted file.
            self._logs.publish_recovery_points()

        return cleaning.run(before_swap)

    def clean_now(self, wall_now_ms: int) -> None:
        """Clean everything that may be cleaned, however little of it is dirty. Blocks. Raises the first error."""
        for log in self._compacted():
            plan = self._plan(log, wall_now_ms)
            if plan is None or not plan.segments:
                continue
            cleaning = self._begin(log, plan, wall_now_ms)
            try:
                carry_out(self.run(cleaning))
            except BaseException as error:
                self.complete(cleaning, error)
                raise self._translated(log, error) from error
            self.complete(cleaning)

    def complete(self, cleaning: Cleaning, error: BaseException | None = None) -> None:
        """Record the result of a cleaning: ``error`` is what its `Cleaning.run` raised. An error loses nothing."""
        assert cleaning is self._under_way, "complete what next() returned"
        self._under_way = None
        log = cleaning.log
        if error is None:
            self._logs.cleaned_offsets[log.topic_partition] = cleaning.end_offset
            _logger.info(
                "%s: compacted up to offset %d, %d bytes became %d",
                log.topic_partition, cleaning.end_offset, cleaning.bytes_before, cleaning.bytes_after,
            )  # fmt: skip
        elif isinstance(error, (OSError, EventBusError, Damage)):
            translated = self._translated(log, error)
            # Trying again would read the same damage, and log it, at every check.
            if isinstance(translated, CorruptRecord):
                self._damaged.add(log)
            _logger.warning("compaction of %s stopped: %s", log.topic_partition, translated)
        else:
            _logger.debug("compaction of %s stopped: %r", log.topic_partition, error)

    def _begin(self, log: PartitionLog, plan: Cleanable, wall_now_ms: int) -> Cleaning:
        self._under_way = Cleaning(self._logs.storage, log, plan, wall_now_ms, last_batches(log))
        return self._under_way

    def _compacted(self) -> list[PartitionLog]:
        logs = [partition.log for partition in self._logs.partitions.values()]
        return [
            log
            for log in logs
            # The active segment is never compacted, so a log with one segment has nothing to do.
            if "compact" in log.config.cleanup_policy and not log.poisoned and len(log.segments) > 1
            if log not in self._damaged
        ]

    def _plan(self, log: PartitionLog, wall_now_ms: int) -> Cleanable | None:
        try:
            return cleanable(log, self._logs.cleaned_offsets.get(log.topic_partition, 0), wall_now_ms, self._wall)
        except (Damage, OSError) as error:
            if isinstance(error, Damage):
                self._damaged.add(log)
            _logger.warning("%s is not compacted: %s", log.topic_partition, self._translated(log, error))
            return None

    def _translated(self, log: PartitionLog, error: BaseException) -> BaseException:
        if isinstance(error, Damage):
            return corrupt_record(self._logs.storage, log.topic_partition, error)
        if isinstance(error, OSError):
            return storage_error(error, f"compacting {log.topic_partition}")
        return error
