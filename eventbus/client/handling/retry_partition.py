"""Drivers of retry partitions: entries wait in memory, and the handler is called with each when it is due."""

from __future__ import annotations

import itertools
import math
import os

import anyio

from eventbus.backends.process_exit import ContainedTasks
from eventbus.backends.wake import Wake
from eventbus.client.handling.drivers import HandlerResources
from eventbus.client.handling.exactly_once import ExactlyOnce
from eventbus.client.handling.failure_policy import RunningPolicy
from eventbus.client.handling.partition_driver import PartitionDriver, nothing_before
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.poison_pill import CrashMarks
from eventbus.client.handling.work_actions import Commit
from eventbus.client.transaction import Transaction
from eventbus.recovery import Entry, Move, Outgoing, Plan, Skip, Waiting
from eventbus.types import FetchedRecords, OffsetAndMetadata, TopicPartition

_PAUSE_SECONDS = 0.1
_LONGEST_LOOK_SECONDS = 10.0
"""The clock may be set while an entry waits, so it is read again at this interval."""


class RetryPartitionDriver(PartitionDriver):
    """Retries at least once: an entry is finished when its call has returned and its outputs are stored.

    Up to ``concurrency`` calls are in flight, each with a separate driver for the partition that the record was first
    read from. `Moves` commits the finished entries together with the outcome of those that failed again.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        shared: HandlerResources,
        failure_policy: RunningPolicy,
        tasks: ContainedTasks,
    ) -> None:
        super().__init__(topic_partition, shared.on_output_error, on_commit_due=shared.commits.due)
        self._waiting = failure_policy.waiting[topic_partition.partition]
        self._shared = shared
        self._failure_policy = failure_policy
        self._tasks = tasks
        self._clock = failure_policy.clock
        self._dispatch = shared.dispatch.of_retries()
        self._most = shared.handler.spec.concurrency or 1
        self._changed = Wake(self._loop)
        self._at_work: dict[PartitionDriver, Entry] = {}
        self._is_firing = False
        self._numbers = itertools.count()
        self._scope = anyio.CancelScope()

    # for its task ----------------------------------------------------------------------------------------------------

    async def run(self, chunk: FetchedRecords) -> None:
        waiting = self._waiting
        if not self._is_firing:
            self._is_firing = True
            self._tasks.start_soon(self._fire)
        if self.begun_at < 0:
            self.begun_at = chunk.offsets[0]
        waiting.add(chunk)
        await self._failure_policy.read(self.topic_partition, self)  # the next fetch may take its time
        self._change()
        self._failure_policy.report_depth()
        # Entries wait in memory, so reading stops when their limit is reached. While loading it must go on: an entry
        # may be finished by a later record.
        while not (waiting.has_room or self._is_loading or self._stops):
            await self._changes()

    async def advance_to(self, next_offset: int) -> None:
        waiting = self._waiting
        waiting.add(nothing_before(self.topic_partition, next_offset))
        if not waiting and waiting.plan() is None:  # else the commit of what waits covers it
            self.work.fetched(nothing_before(self.topic_partition, next_offset))
        await self._failure_policy.read(self.topic_partition, self)
        self._change()

    async def finish(self) -> None:
        """Wait for the calls in flight. The partition's next owner reads the waiting entries again."""
        self._change()
        for one in self._at_work:
            one.close()
        while self._is_firing or self._at_work:
            await self._changes()

    async def aclose(self) -> None:
        self._scope.cancel()
        for one in list(self._at_work):
            one.scope.cancel()
        # The entries go back to the waiting ones in `_call`. Leaving before that would lose them for this member.
        with anyio.CancelScope(shield=True):
            while self._is_firing or self._at_work:
                await self._changes()

    # firing ----------------------------------------------------------------------------------------------------------

    def _change(self) -> None:
        self._changed.set()

    async def _changes(self, seconds: float | None = None) -> None:
        """Return at the next change, or after ``seconds``."""
        self._changed.clear()
        await self._changed.wait(math.inf if seconds is None else seconds, self._shared.timers)

    @property
    def _stops(self) -> bool:
        return self.closing or self.error is not None

    @property
    def _is_loading(self) -> bool:
        """True while the partition is read for the first time: later records may mark an entry as finished."""
        return self._failure_policy.is_loading(self.topic_partition)

    async def _fire(self) -> None:
        try:
            with self._scope:
                # A record that marks an entry as finished may come after it. Firing before the end is read would call a
                # finished entry again.
                while self._is_loading and not self._stops:
                    self._failure_policy.on_change(self._change)
                    await self._changes()
                while not self._stops:
                    await self._next()
        finally:
            self._is_firing = False
            self._change()

    async def _next(self) -> None:
        """Start the calls of due entries, or wait until an entry is due."""
        now_ms = self._clock()
        room = self._most - len(self._at_work)
        self._waiting.correct(now_ms)
        due_ms = self._waiting.next_due_ms()
        if room <= 0 or due_ms is None or due_ms > now_ms:
            self.at_work = bool(self._at_work)
            self._failure_policy.report_depth()
            self.wake.set()  # waiters for `is_idle` check again
            left_seconds = None if room <= 0 or due_ms is None else (due_ms - now_ms) / 1000
            await self._changes(left_seconds and min(left_seconds, _LONGEST_LOOK_SECONDS))
            return
        self.at_work = True
        if not await self._failure_policy.retries.wait_for_circuit(self):
            return
        marks = self._failure_policy.crash_marks
        # The last owner died. Its entries are called singly, each with its outcome committed, until the entry at
        # fault is found.
        if marks is not None and await marks.is_in_doubt(self):
            await self._one_in_doubt(marks)
            return
        for entry in self._waiting.take(self._clock(), room):
            if self._most == 1:
                await self._call(self._begun(entry), entry)  # without a task: the next entry waits anyway
                await self._failure_policy.retries.yield_to_loop()
            else:
                self._tasks.start_soon(self._call, self._begun(entry), entry)

    async def _one_in_doubt(self, marks: CrashMarks) -> None:
        """Handle a single entry and commit its outcome: a process died at this entry or soon after it."""
        while self._at_work:
            await self._changes()
        for entry in self._waiting.take(self._clock(), 1):
            verdict = await marks.ready_entry(self, entry)
            if verdict is None:
                await self._call(self._begun(entry), entry)
            elif isinstance(verdict, (Move, Skip)):  # it has killed too often, and is not called again
                if isinstance(verdict, Move):
                    self.moves[next(self._numbers)] = verdict.outgoing
                self._waiting.finish(entry)
            else:
                self._waiting.put_back(entry)
                self.wake.set()
            while self._waiting.plan() is not None and not self._stops:
                await self._shared.commits.attempt([self])
                await self._changes(_PAUSE_SECONDS if self._waiting.plan() is not None else 0)
            marks.entry_ended(self)

    def _begun(self, entry: Entry) -> PartitionDriver:
        one = self._driver_of(entry)
        self._at_work[one] = entry
        return one

    def _driver_of(self, entry: Entry) -> PartitionDriver:
        record = entry.record
        policy = self._shared.policy(is_ordered=True)
        one = PartitionDriver(TopicPartition(record.topic, record.partition), self._on_output_error, policy)
        one.blocked.hold = self._waiting.hold
        return one

    async def _call(self, one: PartitionDriver, entry: Entry) -> None:
        """Handle one entry. An entry that is not finished goes back to the waiting entries."""
        is_over = False
        try:
            with one.scope:
                is_over = not self._stops and await self._run(one, entry)
            if one.error is not None:
                self.error = self.error or one.error
                self.wake.set()
        finally:
            if not is_over:
                self._waiting.put_back(entry)
            del self._at_work[one]
            self.at_work = bool(self._at_work)
            self._change()
            self._failure_policy.change()

    async def _run(self, one: PartitionDriver, entry: Entry) -> bool:
        """Call the handler. Return False if the entry is not finished."""
        shared, work = self._shared, one.work
        async with shared.turn(one):
            work.fetched(chunk_of(entry))
            call = work.next_call()
            assert call is not None
            await shared.timeouts.run_in_order(self._dispatch, one, call)
            work.ended(call)
        while work.unfinished and one.error is None and not one.closing:  # until it is acknowledged
            if one.outputs:
                await one.outputs_stored()
            else:
                await one.until(lambda: not work.unfinished)
        if one.outputs:
            await shared.flush()
            await one.outputs_stored()
        if one.error is not None or work.finished <= entry.record.offset:
            return False
        commit = work.next_commit()
        if isinstance(commit, Commit):
            for outgoing in self._failure_policy.moves.records_of(commit):
                self.moves[next(self._numbers)] = outgoing
        # A record that failed again has blocked its key again by now, so `finish` does not free the key for a moment.
        self._waiting.finish(entry)
        shared.commits.expect()
        return True


def chunk_of(entry: Entry) -> FetchedRecords:
    """Return a fetch that holds only the entry's record."""
    record = entry.record
    return FetchedRecords(
        record.topic,
        record.partition,
        [record.offset],
        [record.timestamp_ms],
        [record.key],
        [record.value],
        [record.headers] if record.headers else None,
        record.timestamp_type,
        record.next_offset,
    )


class RetryTransactions(ExactlyOnce):
    """The transactions of a retry partition: the outputs of an entry, its next state, and its done mark.

    The entries use it in turn.
    """

    retry_partition: TopicPartition
    waiting: Waiting
    entry: Entry
    _plan: Plan | None = None
    _token = ""
    """Written to the offset's metadata, which shows whether this entry's transaction was committed."""

    async def handle(self, entry: Entry) -> bool:
        """Return False if it was not finished; ``error`` has the reason, if that is an error."""
        self.entry = entry
        self._token = os.urandom(8).hex()
        record = entry.record
        self.topic_partition = TopicPartition(record.topic, record.partition)
        self.tried = (-1, 0)
        self.work = PartitionWork(self._shared.policy(), self.blocked)
        await self.run(chunk_of(entry))
        if self.error is not None or self.work.committed <= record.offset:
            return False
        self.waiting.finish(entry)
        if self._plan is not None:
            self.waiting.stored(self._plan)
        return True

    async def _take_over(self) -> None:
        """Fence the old producer, and find out whether the transaction of the entry was committed.

        Initializing the transactional id completes an open transaction, so the committed offset is final after that.
        """
        await self.aclose()
        self._producer = self._open_producer(self._id)
        await self._producer.init()
        committed = (await self._consumer.committed([self.retry_partition])).get(self.retry_partition)
        if committed is not None and committed.metadata == self._token:
            self.work.done_below(self.entry.record.next_offset)

    async def _write(self, transaction: Transaction, commit: Commit) -> None:
        self._plan = plan = self.waiting.plan([self.entry])
        done = None if plan is None else plan.done
        await self._send_forwards(commit, *([] if done is None else [Outgoing(*self.retry_partition, done)]))
        if plan is None:
            return
        offset = OffsetAndMetadata(plan.next_offset, self._token)
        await transaction.send_offsets({self.retry_partition: offset}, self._consumer.group_metadata())


class ExactlyOnceRetryDriver(RetryPartitionDriver):
    """Retries exactly once: a single entry is in flight at a time."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        shared: HandlerResources,
        failure_policy: RunningPolicy,
        tasks: ContainedTasks,
        transactions: RetryTransactions,
    ) -> None:
        super().__init__(topic_partition, shared, failure_policy, tasks)
        self._most = 1
        self._transactions, waiting = transactions, self._waiting
        transactions.blocked.hold, transactions.blocked.unhold = waiting.hold, waiting.unhold
        transactions.retry_partition, transactions.waiting = topic_partition, waiting

    def _driver_of(self, entry: Entry) -> PartitionDriver:
        return self._transactions

    async def _run(self, one: PartitionDriver, entry: Entry) -> bool:
        return await self._transactions.handle(entry)

    async def advance_to(self, next_offset: int) -> None:
        await super().advance_to(next_offset)
        if self.work.has_uncommitted:
            await self._shared.commits.attempt([self])  # nothing commits regularly for an exactly-once handler

    async def aclose(self) -> None:
        await super().aclose()
        await self._transactions.aclose()
