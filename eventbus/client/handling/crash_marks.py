"""Records that kill the process are found: a mark beside the committed offset tells the next owner what was begun.

A partition is marked when it is taken up; any progress clears the mark. Who finds one follows somebody that died: it
handles the next records one by one, of all such partitions only one at a time, with a mark before each that says how
often this very record was begun; it is committed before the next one. So nobody is blamed for another's record, and it
costs one commit for a partition, and one for each record only where a process has died. A record whose mark has been
found as often as the policy allows is not called again: the policy is asked what becomes of it.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import Any

from eventbus.backends.base import BackendConsumer
from eventbus.backends.clock import Clock
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.partition_driver import PartitionDriver, part_of
from eventbus.client.handling.retries import Retries
from eventbus.errors import EventBusError, HandlerError, ProcessCrashed
from eventbus.recovery import Entry, Move, Recovery, Skip, Stop, Verdict
from eventbus.types import ConsumerRecord, FetchedRecords, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

_RECORDS_IN_DOUBT = 1_000
"""Behind the offset at which a process died: so far ahead of its commits most are. The next death tells of others."""
_LOOK_SECONDS = 0.01
_AWAY_SECONDS = 0.5
"""How long to wait before brokers that do not answer are asked again."""
_BEGUN = "eb-begun"
_TRY = re.compile(r"eb-try (\d{1,9}) (.+)", re.DOTALL)


class _Doubt:
    """Of a partition: what its last owner left behind."""

    def __init__(self, committed: OffsetAndMetadata | None, begun_at: int) -> None:
        self.at = begun_at if committed is None else committed.offset
        """Where the mark stands; -1: there is none any more."""
        mark = "" if committed is None else committed.metadata
        found = _TRY.fullmatch(mark)
        self.left = _RECORDS_IN_DOUBT if found is not None or mark == _BEGUN else 0
        """Records to be handled one by one."""
        self.crashes: dict[str, int] = {} if found is None else {found[2]: int(found[1])}


class CrashMarks:
    """Of one handler whose policy counts crashes."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        recovery: Recovery,
        retries: Retries,
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
        """Whose record in doubt is at work, and the offset whose commit tells that it is over."""

    async def ready(self, driver: PartitionDriver) -> bool:
        """The partition's next fetch may be begun, as far as it is left there. False: look at the partition first."""
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
        if driver.closing or driver.error is not None or driver.chunks[0] is not one:
            return False
        if verdict is None:
            return True
        driver.chunks.popleft()
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
        """Entries of a retry partition are to be handled one by one, between `ready_entry` and `entry_ended`."""
        doubt = await self._doubt_of(driver, max(driver.begun_at, 0))
        return doubt is not None and doubt.left > 0

    async def ready_entry(self, driver: PartitionDriver, entry: Entry) -> Verdict | None:
        """None: the entry may be called. Else that is what becomes of it, or the partition stops."""
        doubt = await self._doubt_of(driver, 0)
        if doubt is None or not await self._takes_turn(driver, sys.maxsize):
            return Stop()
        doubt.left -= 1
        return await self._mark(driver, doubt, entry.record, max(doubt.at, driver.work.committed))

    def entry_ended(self, driver: PartitionDriver) -> None:
        """What became of it is committed."""
        if self._turn is not None and self._turn[0] is driver:
            self._turn = None

    async def _takes_turn(self, driver: PartitionDriver, offset: int) -> bool:
        """Return when no other record in doubt is in flight or uncommitted. False: the partition stops meanwhile."""
        while self._turn is not None and self._turn[0] is not driver:
            holder, at = self._turn
            if holder.work.committed > at or holder.abandoned or holder.ended.is_set():
                break
            if not self._handler.spec.exactly_once:
                await self._commits.attempt()
            if not await self._retries.sleeps(driver, _LOOK_SECONDS):
                return False
        self._turn = driver, offset
        return True

    async def _doubt_of(self, driver: PartitionDriver, begun_at: int) -> _Doubt | None:
        """None: the partition stops before that is known."""
        doubt = self._doubts.get(driver)
        while doubt is None:
            try:
                committed = (await self._consumer.committed([driver.topic_partition])).get(driver.topic_partition)
            except EventBusError as error:
                if not error.retriable:
                    raise
                logger.debug("handler %r: %s: %s", self._handler.__name__, driver.topic_partition, error)
                if not await self._retries.sleeps(driver, _AWAY_SECONDS, f"its committed offset is not known: {error}"):
                    return None
                continue
            doubt = self._doubts[driver] = _Doubt(committed, begun_at)
            if doubt.left:
                logger.warning(
                    "handler %r: whoever had %s before died at offset %d or soon behind it: records are handled one by "
                    "one for a while, to find out at which", self._handler.__name__, driver.topic_partition, doubt.at,
                )  # fmt: skip
            else:
                await self._write(driver.topic_partition, doubt.at, _BEGUN)
        return doubt

    async def _mark(self, driver: PartitionDriver, doubt: _Doubt, record: ConsumerRecord, at: int) -> Verdict | None:
        """Say that the record is about to be called; or what the policy says of one that has killed too often."""
        where = f"{record.topic} {record.partition} {record.offset}"
        crashes = doubt.crashes.get(where, 0)
        if crashes >= self._most:
            error = ProcessCrashed(f"the process died {crashes} time(s) while it handled this record")
            verdict = self._retries.at_once(record, error)
            if isinstance(verdict, (Move, Skip)):
                return verdict
            driver.stop(HandlerError(f"handler {self._handler.__name__!r}: {where}: {error}"))
            return verdict
        await self._write(driver.topic_partition, at, f"eb-try {crashes + 1} {where}")
        doubt.at = at
        return None

    async def _write(self, partition: TopicPartition, at: int, mark: str) -> None:
        try:
            await self._consumer.commit({partition: OffsetAndMetadata(at, mark)})
        except EventBusError as error:
            # The group is on the move, or its coordinator away: the commits say that loudly enough.
            logger.debug("handler %r: %s is not marked: %s", self._handler.__name__, partition, error)

    async def _all_committed(self, driver: PartitionDriver) -> bool:
        """Return when everything begun is finished and committed. False: the partition stops meanwhile."""
        while not self._is_committed(driver):
            if not driver.work.unfinished:
                await self._commits.attempt(
                    [driver]
                )  # in the others a transaction may be open, which says more than that
            if not self._is_committed(driver) and not await self._retries.sleeps(driver, _LOOK_SECONDS):
                return False
        return not driver.closing and driver.error is None

    def _is_committed(self, driver: PartitionDriver) -> bool:
        return not (driver.work.unfinished or driver.has_moves or driver.work.has_uncommitted)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer ours."""
        for driver in [driver for driver in self._doubts if driver.topic_partition == partition and driver.abandoned]:
            del self._doubts[driver]

    async def ended(self, driver: PartitionDriver) -> None:
        """The partition has come to its end in an orderly way: nobody died."""
        self.entry_ended(driver)
        doubt = self._doubts.pop(driver, None)
        if doubt is not None and not driver.abandoned and max(driver.work.finished, driver.work.committed) <= doubt.at:
            await self._write(driver.topic_partition, doubt.at, "")
