"""Run steps 5 to 7 as one transaction: a handler's outputs and the offsets of its records (KIP-98, KIP-447).

`PartitionWork` decides which records share a transaction and what an error costs. This module performs its calls and
commits. An error of the handler costs at most its slice of records:

- If nothing was published for the record, the slice is committed up to it, or after it if it is skipped or moved.
- If something was published, the slice is aborted. Records before the one at fault are handled again and committed.
  Then that record is skipped, moved or called again in a separate transaction, or the partition stops before it.
- If the log refused an output, and the record at fault is unknown, the slice is handled again record by record.

The transaction's timeout, another member or a rebalance may also end the transaction. The group's offset then decides
where to resume, if the partition is still assigned here. The partition waits for brokers that do not answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.drivers import HandlerResources, commit_now
from eventbus.client.handling.forwarding import TAKEN_OVER, send
from eventbus.client.handling.handler_errors import Failure, log_skipped, log_skipped_by_policy, log_stopped
from eventbus.client.handling.handlers import ProducerFunction
from eventbus.client.handling.offset_commits import REBALANCED
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.waits import tried
from eventbus.client.handling.work_actions import Abort, Call, Commit
from eventbus.client.producer import Producer
from eventbus.client.producing.joining import CallTransaction
from eventbus.client.transaction import Transaction
from eventbus.errors import (
    BufferExhausted,
    EventBusError,
    HandlerError,
    KafkaError,
    TransactionAborted,
    TransactionOutcomeUnknown,
)
from eventbus.recovery import Move, Outgoing, Skip, Stop, Verdict, WaitHere
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.runner")

_MOST_INTERRUPTIONS = 5
"""Interrupted transactions in a row without progress, after which the handler stops."""
_AWAY = frozenset((5, 6, 7, 13, 14, 15, 16, 19, 20, 88))
"""Error codes for which no record is at fault: brokers do not answer, leaders and coordinators are moving, or an open
transaction of another producer is about to change the offsets."""
_AWAY_SECONDS = 0.5
"""How long to wait before trying again then."""
LONGEST_SHARE = 4
"""A slice takes no further record once this part of the transaction's timeout has passed."""

OpenProducer = Callable[[str], Producer]
"""Opens the producer of a transactional id."""


class _Slow(NamedTuple):
    """A record during whose call the transaction reached its timeout."""

    offset: int
    seconds: float
    """How long the transaction had been open."""


class _Ended(Exception):
    """The transaction is aborted, and nothing of it is visible. ``cause`` says why.

    ``slow``: it was open for longer than its timeout allows, and this is the record that took so long.
    """

    def __init__(self, cause: EventBusError, slow: _Slow | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.slow = slow


class _NothingToCommit(Exception):
    """Abort: nothing was handled, or what was published belongs to a record at fault."""


class _Failed(NamedTuple):
    """Records of the call in flight that failed together."""

    at: int
    many: int
    verdict: Verdict
    error: Exception | None
    is_clean: bool


class ExactlyOnce(PartitionDriver):
    """Performs the transactions of a partition in sequence."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        shared: HandlerResources,
        transactional_id: str,
        open_producer: OpenProducer,
    ) -> None:
        super().__init__(
            topic_partition, _leaves_it_to_the_transaction, shared.policy(), on_commit_due=shared.commits.due
        )
        self._shared = shared
        self._handler = shared.handler
        self._id = transactional_id
        publish = None if shared.handler.producer is None else self._publish
        self._joins = CallTransaction(shared.handler.__name__, self._call_number)
        self._bound = shared.dispatch.bound(publish, self._failed, self._joins)
        self._consumer = shared.consumer
        self._open_producer = open_producer
        self._producer: Producer | None = None
        self._call: Call | None = None
        """The call in flight, or else the last call."""
        self._failed_records: list[_Failed] = []
        self._interruption: EventBusError | None = None
        self._interruptions = 0
        """Transactions in a row that others have ended."""
        self._wait_reason = ""
        self._logged_error: HandlerError | None = None
        """The reason why the partition stopped, if it is in the log already."""
        self.transaction_since: float | None = None
        """When the open transaction began, in seconds on the backend's timers."""

    # a fetch ---------------------------------------------------------------------------------------------------------

    async def run(self, chunk: FetchedRecords) -> None:
        """Handle the records in transactions; on return all are committed, or the partition is closing or in error."""
        policy, work = self._handler.spec.on_error, self.work
        work.fetched(chunk)
        try:
            # Opened by the first record and not by the assignment: a partition without records needs no transactional
            # id.
            if self._producer is None:
                await self._outlast(chunk.offsets[0])
            while not (self.closing or work.error is not None or work.is_idle):
                if not await self._step():
                    break
        except HandlerError as error:
            work.stop(error)
        except EventBusError as error:
            stopped = HandlerError(f"handler {self._handler.__name__!r}: {self.topic_partition}: {error}")
            stopped.__cause__ = error
            work.stop(stopped)
        finally:
            self.wait = None
        if isinstance(work.error, HandlerError) and not self.closing:
            if policy != "crash" and work.error is not self._logged_error:
                log_stopped(self, work.error, policy)
            self.error = work.error

    async def _step(self) -> bool:
        """Perform the next transaction, or wait until it can begin. Return False if the partition stops meanwhile."""
        work, call, commit = self.work, self.work.next_call(self._now_ms()), None
        if call is None:
            commit = work.next_commit()
            if not isinstance(commit, Commit):
                return await self._waits()
        first = work.finished if call is None else call.records.offsets[call.indexes[0]]
        try:
            await self._transaction(first, call, commit)
        except _Ended as ended:
            await self._after(ended, first)
        return True

    async def _waits(self) -> bool:
        """Return when records may be called; False: the partition stops meanwhile."""
        until_ms = self.work.waits_until_ms
        if until_ms is None:
            failure_policy = self._shared.failure_policy
            return failure_policy is not None and bool(self.blocked) and await failure_policy.unblocked(self)
        retries = self._bound.failed_calls.retries
        assert retries is not None
        seconds = max(until_ms - self._now_ms(), 1) / 1000
        return await retries.sleep(self, seconds, self._wait_reason) and await retries.wait_for_circuit(self)

    def _now_ms(self) -> int:
        return int(self._shared.timers.current_time() * 1000)

    async def _after(self, ended: _Ended, first: int) -> None:
        """The transaction was aborted and no record is known to be at fault: make ready for the next try."""
        cause, slow, work = ended.cause, ended.slow, self.work
        if isinstance(cause, REBALANCED):
            # The records are handled again in a transaction of the new generation, if the partition is still assigned
            # here.
            work.aborted()
            await self._shared.settled(self)
        elif _was_interrupted(cause):
            self._interruptions += 1
            if self._interruptions > _MOST_INTERRUPTIONS:
                raise self._never_ends(first, cause, slow) from cause
            # A fenced producer usually means that the partition went to another member. Taking the id over while the
            # group rebalances would fence the new owner.
            await self._shared.settled(self)
            if not self.closing:
                await self._take_over()
            # When one record is slow, those before it are committed, and it has a whole timeout to itself.
            work.aborted(singly=slow is not None)
        elif _is_away(cause):
            # The outcome is unknown while brokers are away. Taking the id over later decides it, and the committed
            # offset then shows it.
            await self._outlast(first, cause)
            work.aborted()
        # The log refused something of a slice, too large a record for instance. Singly, the others can be committed.
        elif work.slice_count > 1:
            work.aborted(singly=True)
        elif work.slice_count == 0:  # the offset alone is refused: leaving out a record does not help
            raise cause
        else:
            error = self._not_stored(first, cause)
            if self._handler.spec.on_error == "skip":
                log_skipped(error)
                work.aborted(verdict=Skip())
            else:
                work.aborted(verdict=Stop(), error=error)

    async def _outlast(self, first: int, away: EventBusError | None = None) -> None:
        """Take the partition up. Where brokers do not answer, try again until they do."""
        while not self.closing:
            if away is None:
                try:
                    await self._take_over()
                    return
                except EventBusError as error:
                    if not _is_away(error):
                        raise
                    away = error
            if self.wait is None:  # once for each outage
                logger.warning(
                    "handler %r: %s waits at offset %d for brokers that do not answer, and goes on there by itself: %s",
                    self._handler.__name__, self.topic_partition, first, away,
                )  # fmt: skip
            self.wait = tried(self.wait, str(away), self._shared.timers.current_time())
            away = None
            await self._shared.timers.sleep(_AWAY_SECONDS)
            await self._shared.settled(self)

    async def _take_over(self) -> None:
        """Take over the partition's transactional id, and find the first uncommitted record.

        InitProducerId completes or aborts the transaction that the id's last producer left open. The committed offset
        is read after that, because the transaction may still change it.
        """
        await self.aclose()
        self._producer = self._open_producer(self._id)
        await self._producer.init()
        committed = (await self._consumer.committed([self.topic_partition])).get(self.topic_partition)
        if committed is not None:
            self.work.done_below(committed.offset)

    # a transaction ---------------------------------------------------------------------------------------------------

    async def _transaction(self, first: int, call: Call | None, commit: Commit | Abort | None) -> None:
        """Call the handler with the records of a slice, and commit what came of it.

        Raises _Ended when the transaction was aborted and no single record is to blame.
        """
        work = self.work
        assert self._producer is not None
        self.error = self._interruption = None
        self.transaction_since = self._shared.timers.current_time()
        try:
            async with self._producer.transaction() as transaction:
                self._bound.calls.transaction = transaction
                if call is not None:
                    commit = await self._fill(call)
                # Raising inside the block aborts the transaction. A lost partition must not commit: its new owner may
                # have fenced this producer already, or be about to.
                if not isinstance(commit, Commit) or self.abandoned:
                    raise _NothingToCommit
                # The offsets first: then one flush makes them durable together with what the handler published.
                await self._write(transaction, commit)
                # Before the block ends: an output that was refused must abort the transaction and not be missing in a
                # committed one.
                await self._check_stored()
                filled_at = self._shared.timers.current_time()
            self._shared.commits.seconds.add(self._shared.timers.current_time() - filled_at)
            self._interruptions, self.wait = 0, None
            work.commit_stored(commit)
        except _NothingToCommit:
            work.aborted()
        except TransactionOutcomeUnknown as error:
            if _is_away(error):  # taking the id over completes or aborts the transaction
                raise _Ended(error, None) from error
            raise self._unknown(first, error) from error
        except EventBusError as error:
            raise _Ended(error, self._slow_record()) from error
        finally:
            self.transaction_since = None
            self.outputs.clear()

    async def _fill(self, call: Call | None) -> Commit | Abort | None:
        """Call the handler until the slice is handled. Raises the error of a transaction that others have ended."""
        while call is not None:
            await self._handle(call)
            if self._interruption is not None:
                await self._check_stored()  # it may have been an output of ours that spoiled it
                raise self._interruption
            call = self.work.next_call(self._now_ms())
        return self.work.next_commit()

    async def _handle(self, call: Call) -> None:
        shared, work = self._shared, self.work
        self._call, self._failed_records = call, []
        assert self._producer is not None
        async with shared.turn(self):
            with self._joins.calls_of(self._producer):
                await shared.timeouts.run_in_order(self._bound, self, call)
        # The transaction is over, so results of its calls mean nothing. `_after` handles the records again.
        if self._interruption is not None:
            return
        self._report(call, call.at)
        if call.is_open:  # its turn is over, the transaction grows old, or the partition is closing
            work.end_slice()
            work.ended(call)

    def _call_number(self) -> object:
        call = self._call
        return None if call is None else (call, call.at, call.recalls)

    def _report(self, call: Call, reached: int) -> None:
        """Report what became of the call: its first ``reached`` records are handled, or have failed.

        Not while it goes on: a thread may have left a record to its timeout, and the results of those before it are
        dealt with when the thread has ended.
        """
        work, now_ms = self.work, self._now_ms()
        for at, count, verdict, error, is_clean in sorted(self._failed_records, key=lambda failed: failed.at):
            if isinstance(verdict, WaitHere):
                self._wait_reason = verdict.reason
            # In the order of offsets: a verdict applies to a record only after all before it are accounted for.
            work.returned(call, min(at, reached))
            work.raised(call, at, verdict, count=count, now_ms=now_ms, error=error, is_clean=is_clean)
        work.returned(call, reached)

    async def _write(self, transaction: Transaction, commit: Commit) -> None:
        """Add what became of the records that failed, and how far the partition is finished."""
        await self._send_forwards(commit)
        offsets = {self.topic_partition: commit.next_offset}
        await transaction.send_offsets(offsets, self._consumer.group_metadata())

    async def _send_forwards(self, commit: Commit, *others: Outgoing) -> None:
        failure_policy = self._shared.failure_policy
        forwards = [] if failure_policy is None else failure_policy.moves.records_of(commit)
        for outgoing in (*forwards, *others):
            assert self._producer is not None and failure_policy is not None
            await send(self._producer, outgoing, failure_policy.partitions[outgoing.topic])

    async def _check_stored(self) -> None:
        """Raise the error of an output of this slice that the log did not store."""
        assert self._producer is not None
        await self._producer.flush()
        for _, output in self.outputs:
            error = output.exception()
            if error is not None:
                raise error

    async def advance_to(self, next_offset: int) -> None:
        """Commit without a transaction: no transaction of this partition is open between two fetches."""
        if await commit_now(self, self._shared, next_offset):
            self.work.done_below(next_offset)

    async def aclose(self) -> None:
        """Close the partition's producer; a partition that continues opens a new one."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.aclose()

    # the handler -----------------------------------------------------------------------------------------------------

    async def _publish(self, value: Any) -> Delivery | None:
        producer, function = self._producer, self._handler.producer
        assert producer is not None and function is not None
        return await enqueue(producer, function, value)

    def _failed(self, driver: PartitionDriver, call: Call, failure: Failure) -> bool:
        """A record's handler raised. Return True if the call goes on with the next record."""
        cause = failure.cause
        # The handler's own send or commit raised because the transaction has ended. That is no failure of the record,
        # so no policy decides.
        if isinstance(cause, (*TAKEN_OVER, *REBALANCED, TransactionAborted)):
            self._interruption = cause
            return False
        verdict = self._verdict(failure)
        self._failed_records.append(_Failed(failure.at, failure.count, verdict, failure.error, failure.is_clean))
        # The next record may have the same key. It must not be called before this one is in the retry topic.
        if isinstance(verdict, Move) and self.work.blocks(verdict):
            self.work.cut(call)
        if failure.comes_late and isinstance(verdict, Stop):  # its thread may run for any time
            self._logged_error = self.error = failure.error
            log_stopped(self, failure.error, self._handler.spec.on_error)
        return failure.is_clean and isinstance(verdict, (Move, Skip))

    def _verdict(self, failure: Failure) -> Verdict:
        verdict = failure.verdict
        if isinstance(verdict, Skip):
            log_skipped_by_policy(failure.error, verdict.reason)
        elif verdict is None or isinstance(verdict, Stop):
            if self._handler.spec.on_error == "skip":
                log_skipped(failure.error)
                return Skip()
            return Stop()
        return verdict

    # errors ----------------------------------------------------------------------------------------------------------

    def _not_stored(self, offset: int, cause: EventBusError) -> HandlerError:
        error = HandlerError(
            f"handler {self._handler.__name__!r}: {self.topic_partition} offset {offset}: what was "
            f"published for it was not stored, its transaction is aborted: {cause}"
        )
        error.__cause__ = cause
        return error

    def _slow_record(self) -> _Slow | None:
        """Return the record that kept the transaction open beyond its timeout, or None if it is younger.

        A slice takes no further record after a quarter of the timeout, so it is the last record whose call began:
        the record whose output was refused, else the last record that was handled.
        """
        assert self.transaction_since is not None
        seconds = self._shared.timers.current_time() - self.transaction_since
        if seconds * 1000 < self._handler.spec.transaction_timeout_ms or self._call is None:
            return None
        call = self._call
        last = call.at if self._interruption is not None else call.at - 1
        return _Slow(call.offset(min(max(last, 0), len(call) - 1)), seconds)

    def _never_ends(self, first: int, cause: EventBusError, slow: _Slow | None) -> HandlerError:
        spec = self._handler.spec
        if slow is not None:
            return HandlerError(
                f"handler {self._handler.__name__!r}: {self.topic_partition} offset {slow.offset}: the record "
                f"takes longer than its transaction may be open: {slow.seconds:.1f} s with transaction_timeout_ms="
                f"{spec.transaction_timeout_ms:,}. The log aborted it {_MOST_INTERRUPTIONS + 1} times in a "
                f"row, and nothing of it is visible. Raise transaction_timeout_ms, or make the handler faster"
                f"{', or lower batch=' if spec.batch else ''}"
            )
        return HandlerError(
            f"handler {self._handler.__name__!r}: {self.topic_partition} offset {first}: its "
            f"transaction was ended by others {_MOST_INTERRUPTIONS} times in a row: {cause}. If a record takes long, "
            f"raise transaction_timeout_ms={spec.transaction_timeout_ms:,} or lower "
            f"transaction_records={spec.transaction_records}; if not, something else uses the transactional id "
            f"{self._id!r}"
        )

    def _unknown(self, first: int, cause: EventBusError) -> HandlerError:
        return HandlerError(
            f"handler {self._handler.__name__!r}: {self.topic_partition}: whether the transaction from offset "
            f"{first} on was committed is unknown: {cause}. Restart the bus: the group's committed offset then tells, "
            "and handling goes on there"
        )


async def enqueue(producer: Producer, function: ProducerFunction[..., Any, Any], value: Any) -> Delivery | None:
    """Give a handler's output to the producer; its ack is awaited per fetch, not per record. None sends nothing."""
    if value is None:
        return None
    spec = function.spec
    key = spec.key(value) if spec.key else None
    try:
        return producer.send_nowait(spec.topic, value, key=key, transactional=False)
    except BufferExhausted:
        await producer.wait_for_room(transactional=False)
        return producer.send_nowait(spec.topic, value, key=key, transactional=False)


def _leaves_it_to_the_transaction(error: HandlerError) -> bool:
    """Stop at an output that was not stored: the end of its transaction decides what becomes of its record."""
    return False


def _was_interrupted(error: EventBusError) -> bool:
    """Others ended the transaction. Not so when it had failed before: then the cause is what an output met."""
    if isinstance(error, TransactionAborted):
        return error.__cause__ is None or isinstance(error.__cause__, (*TAKEN_OVER, TransactionAborted))
    return isinstance(error, TAKEN_OVER)


def _is_away(error: BaseException | None) -> bool:
    """It came of brokers that do not answer now."""
    while isinstance(error, EventBusError):
        if isinstance(error, KafkaError) and error.code in _AWAY:
            return True
        error = error.__cause__
    return False
