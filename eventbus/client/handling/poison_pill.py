"""Detect poison pills: records that kill the process that handles them.

A mark in the metadata of the committed offset tells the partition's next owner that records were in flight. The mark is
written when a partition is assigned, and any commit clears it. An owner that finds a mark follows a process that died,
so it handles the next records singly: across all such partitions one record is in flight at a time. Before each call
it commits a mark that counts how often this record was begun, and it commits the record before the next call. So a
crash is always attributed to the right record. The cost is one commit per assignment, and one per record only after a
crash.
A record whose mark was found as often as the policy allows is not called again; the policy decides what to do with it.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from eventbus.backends.base import BackendConsumer
from eventbus.backends.clock import Clock
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.in_place_retries import InPlaceRetries
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.partition_driver import PartitionDriver, part_of
from eventbus.errors import EventBusError, HandlerError, ProcessCrashed
from eventbus.recovery import Entry, Move, Recovery, Skip, Stop, Verdict
from eventbus.types import ConsumerRecord, FetchedRecords, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

_RECORDS_IN_DOUBT = 1_000
"""How many records after the committed offset are in doubt. Most processes run less far ahead of their commits; after
the next crash the rest is found."""
_LOOK_SECONDS = 0.01
_AWAY_SECONDS = 0.5
"""How long to wait before brokers that do not answer are asked again."""
_BEGUN = "eb-begun"
_TRY = re.compile(r"eb-try (\d{1,9}) (.+)", re.DOTALL)


class _Doubt:
    """The mark that a partition's last owner left in the committed offset."""

    def __init__(self, committed: OffsetAndMetadata | None, begun_at: int) -> None:
        self.at = begun_at if committed is None else committed.offset
        """The committed offset that holds the mark; -1 if it has none any more."""
        mark = "" if committed is None else committed.metadata
        found = _TRY.fullmatch(mark)
        # A mark that is still there means that its owner did not end in order: an orderly end clears it.
        self.left = _RECORDS_IN_DOUBT if found is not None or mark == _BEGUN else 0
        """The number of records still to be handled singly."""
        self.crashes: dict[str, int] = {} if found is None else {found[2]: int(found[1])}


class CrashMarks:
    """Find the record that crashed the process: a mark is committed before the call of each record in doubt."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        recovery: Recovery,
        retries: InPlaceRetries,
        consumer: BackendConsumer,
        commits: OffsetCommits,
        clock: Clock,
    ) -> None:
        self._handler = handler
        self._recovery = recovery
        self._most = recovery.crashes or 1
        self._retries = retries
        self._consumer = consumer
        self._commits = commits
        self._clock = clock
        self._doubts: dict[PartitionDriver, _Doubt] = {}
        self._turn: tuple[PartitionDriver, int] | None = None
        """The partition whose record in doubt is in flight, and the offset whose commit ends it."""

    async def ready(self, driver: PartitionDriver) -> bool:
        """True if the records left in the partition's next fetch may be begun. If not, check the partition again."""
        doubt = await self._doubt_of(driver, driver.chunks[0].offsets[0])
        if doubt is None or not driver.chunks:
            return False
        if not doubt.left:
            return True
        if not (await self._all_committed(driver) and await self._takes_turn(driver, driver.chunks[0].offsets[0])):
            return False
        one = self._first_alone(driver)
        record = one.record(0)
        doubt.left -= 1
        verdict = await self._mark(driver, doubt, record, record.offset)
        # The commit of the mark was a pause: the group may have revoked the partition meanwhile.
        if driver.closing or driver.error is not None or driver.chunks[0] is not one:
            return False
        if verdict is None:
            return True
        driver.chunks.popleft()
        # The record has killed too many processes. It is finished without being called.
        if isinstance(verdict, (Move, Skip)):
            driver.work.not_called(one, verdict)
        await self._all_committed(driver)
        return False

    def _first_alone(self, driver: PartitionDriver) -> FetchedRecords:
        """Return the next record as a separate fetch. The rest stays in ``chunks``, where `is_idle` looks."""
        chunk = driver.chunks[0]
        if len(chunk) > 1:
            driver.chunks[0] = part_of(chunk, 1, len(chunk))
            driver.chunks.appendleft(part_of(chunk, 0, 1))
        return driver.chunks[0]

    async def is_in_doubt(self, driver: PartitionDriver) -> bool:
        """Return True if entries of a retry partition must be handled singly, with `ready_entry` and `entry_ended`."""
        doubt = await self._doubt_of(driver, max(driver.begun_at, 0))
        return doubt is not None and doubt.left > 0

    async def ready_entry(self, driver: PartitionDriver, entry: Entry) -> Verdict | None:
        """Return None if the entry may be called, else the verdict about it; `Stop` if the partition stops."""
        doubt = await self._doubt_of(driver, 0)
        if doubt is None or not await self._takes_turn(driver, sys.maxsize):
            return Stop()
        doubt.left -= 1
        return await self._mark(driver, doubt, entry.record, max(doubt.at, driver.work.committed))

    def entry_ended(self, driver: PartitionDriver) -> None:
        """The outcome of the entry is committed, so another record in doubt may begin."""
        if self._turn is not None and self._turn[0] is driver:
            self._turn = None

    async def _takes_turn(self, driver: PartitionDriver, offset: int) -> bool:
        """Wait until no other record in doubt is in flight or uncommitted. False if the partition stops meanwhile."""
        while self._turn is not None and self._turn[0] is not driver:
            holder, at = self._turn
            # If the holder's partition was lost, its record is in doubt at the next owner, and not here.
            if holder.work.committed > at or holder.abandoned or holder.ended.is_set():
                break
            # An exactly-once partition commits in its own transaction, so there is only to wait for it.
            if not self._handler.spec.exactly_once:
                await self._commits.attempt()
            if not await self._retries.sleep(driver, _LOOK_SECONDS):
                return False
        # One record in doubt at a time in the whole handler. If two were in flight when the process dies, neither could
        # be blamed.
        self._turn = driver, offset
        return True

    async def _doubt_of(self, driver: PartitionDriver, begun_at: int) -> _Doubt | None:
        """Return the mark of a partition, or None if the partition stops before it is known."""
        doubt = self._doubts.get(driver)
        while doubt is None:
            try:
                committed = (await self._consumer.committed([driver.topic_partition])).get(driver.topic_partition)
            except EventBusError as error:
                if not error.retriable:
                    raise
                logger.debug("handler %r: %s: %s", self._handler.__name__, driver.topic_partition, error)
                if not await self._retries.sleep(driver, _AWAY_SECONDS, f"its committed offset is not known: {error}"):
                    return None
                continue
            doubt = self._doubts[driver] = _Doubt(committed, begun_at)
            if doubt.left:
                logger.warning(
                    "handler %r: the last owner of %s died at offset %d or soon after it. Records are handled singly "
                    "for a while, to find the one at fault", self._handler.__name__, driver.topic_partition, doubt.at,
                )  # fmt: skip
            else:
                await self._write(driver.topic_partition, doubt.at, _BEGUN)
        return doubt

    async def _mark(self, driver: PartitionDriver, doubt: _Doubt, record: ConsumerRecord, at: int) -> Verdict | None:
        """Mark the record before its call, or return the policy's verdict if it has killed too many processes."""
        where = f"{record.topic} {record.partition} {record.offset}"
        crashes = doubt.crashes.get(where, 0)
        if crashes >= self._most:
            error = ProcessCrashed(f"the process died {crashes} time(s) while it handled this record")
            verdict = self._retries.at_once(record, error)
            if isinstance(verdict, (Move, Skip)):
                return verdict
            driver.stop(HandlerError(f"handler {self._handler.__name__!r}: {where}: {error}"))
            return verdict
        # Committed before the call: after a crash this mark is the only witness of which record was in flight.
        await self._write(driver.topic_partition, at, f"eb-try {crashes + 1} {where}")
        doubt.at = at
        return None

    async def _write(self, partition: TopicPartition, at: int, mark: str) -> None:
        try:
            await self._consumer.commit({partition: OffsetAndMetadata(at, mark)})
        except EventBusError as error:
            # The group is rebalancing, or its coordinator does not answer. The offset commits log that already.
            logger.debug("handler %r: %s is not marked: %s", self._handler.__name__, partition, error)

    async def _all_committed(self, driver: PartitionDriver) -> bool:
        """Wait until every record begun is finished and committed. False if the partition stops meanwhile."""
        while not self._is_committed(driver):
            if not driver.work.unfinished:
                # Only this partition: a transaction may be open in others, and it commits their offsets itself.
                await self._commits.attempt([driver])
            if not self._is_committed(driver) and not await self._retries.sleep(driver, _LOOK_SECONDS):
                return False
        return not driver.closing and driver.error is None

    def _is_committed(self, driver: PartitionDriver) -> bool:
        return not (driver.work.unfinished or driver.has_moves or driver.work.has_uncommitted)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        for driver in [driver for driver in self._doubts if driver.topic_partition == partition and driver.abandoned]:
            del self._doubts[driver]

    async def ended(self, driver: PartitionDriver) -> None:
        """Clear the mark of a partition that ended normally, so that its next owner does not see a crash."""
        self.entry_ended(driver)
        doubt = self._doubts.pop(driver, None)
        if doubt is not None and not driver.abandoned and max(driver.work.finished, driver.work.committed) <= doubt.at:
            await self._write(driver.topic_partition, doubt.at, "")
