"""Hops 5 to 7 as one transaction: records, what a handler publishes for them, and their offsets (KIP-98, KIP-447).

A lane works through a fetch slice by slice, one transaction each. A handler that raises costs at most its slice:

- nothing was published for the record: the slice is committed up to it, and ``on_error`` decides at once;
- something was: the slice is aborted and run again without the record ("skip"), or only up to it ("stop", "crash");
- something was, and it is called again, because of an outage say: first the slice is run again up to it, then it alone;
- the log refused an output, and nobody knows which record is to blame: the slice is run again record by record.

Whoever ends the transaction instead (its timeout, another member, a rebalance) makes the lane look where its group
stands now, and go on there if the partition is still its own. Where brokers do not answer it waits until they do.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.failures import Failure, log_passed_over, log_skipped, log_stopped
from eventbus.client.handling.handlers import ProducerFunction
from eventbus.client.handling.lane import Lane, part_of
from eventbus.client.handling.lane_commits import REBALANCED
from eventbus.client.handling.moves import TAKEN_OVER, send
from eventbus.client.handling.recovering import Recovering
from eventbus.client.handling.waits import tried
from eventbus.client.handling.ways import Shared, at_work, commit_now, held_in
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
from eventbus.recovery import Again, Move, Outgoing, Skip, WaitHere
from eventbus.types import FetchedRecords

logger = logging.getLogger("eventbus.runner")

_MOST_INTERRUPTIONS = 5
"""In a row, without progress; beyond that it is no accident."""
_AWAY = frozenset((5, 6, 7, 13, 14, 15, 16, 19, 20, 88))
"""Codes of brokers that do not answer, or whose leaders and coordinators are moving; of offsets that somebody else's
transaction is about to change: no record is to blame."""
_AWAY_SECONDS = 0.5
"""How long to wait before trying again then."""
LONGEST_SHARE = 4
"""A slice takes no further record once this part of the transaction's timeout has passed."""

OpenProducer = Callable[[str], Producer]
"""By transactional id."""


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

    def __init__(self, failure: Failure | None) -> None:
        super().__init__()
        self.failure = failure


class Work:
    """A fetch on its way through transactions: what is committed, what is left, what is left out."""

    __slots__ = ("apart", "chunk", "dropped", "end", "interruptions", "moves", "singly_until", "start", "stopped_by")

    def __init__(self, chunk: FetchedRecords) -> None:
        self.chunk = chunk
        self.start = 0
        """The first record that is not committed."""
        self.end = len(chunk)
        """Where to stop: at a record at fault, or behind the last one."""
        self.stopped_by: HandlerError | None = None
        self.singly_until = 0
        """Up to here each record has a transaction of its own, so that the one at fault shows."""
        self.apart = range(0)
        """Records that are called again in a transaction of their own: those before them are not handled each time."""
        self.dropped: set[int] = set()
        """Records left out: skipped, or moved elsewhere without a call in the transaction that commits them."""
        self.moves: dict[int, Outgoing] = {}
        """By offset what those turn into that are moved."""
        self.interruptions = 0

    @property
    def next_offset(self) -> int:
        return self.chunk.offsets[self.start]

    def next_end(self, most: int) -> int:
        if self.start < self.singly_until:
            return self.start + 1
        end = min(self.start + most, self.end)
        if self.start in self.apart:
            return min(end, self.apart.stop)
        return self.apart.start if self.start < self.apart.start < end else end

    def done_below(self, offset: int) -> None:
        self.start = max(self.start, bisect_left(self.chunk.offsets, offset))

    def slice(self, end: int) -> FetchedRecords:
        """The records up to ``end``, without those dropped."""
        return part_of(self.chunk, self.start, end, {index for index in self.dropped if self.start <= index < end})

    def place(self, failure: Failure, piece: FetchedRecords) -> Failure:
        """A failure in a slice, with its place in the whole fetch."""
        first = bisect_left(self.chunk.offsets, piece.offsets[failure.index])
        last = bisect_left(self.chunk.offsets, piece.offsets[failure.index + failure.count - 1])
        return msgspec.structs.replace(failure, index=first, count=last - first + 1)


class ExactlyOnce:
    """One lane's transactions, one after the other."""

    def __init__(
        self,
        lane: Lane,
        shared: Shared,
        transactional_id: str,
        open_producer: OpenProducer,
        recovering: Recovering | None,
    ) -> None:
        self._lane = lane
        self._shared = shared
        self._handler = shared.handler
        self._id = transactional_id
        publish = None if shared.handler.producer is None else self._publish
        self._joins = CallTransaction(shared.handler.__name__, lambda: (lane.index, lane.calls))
        self._bound = shared.dispatch.bound(publish, self._failed, self._joins)
        self._consumer = shared.consumer
        self._open_producer = open_producer
        self._recovering = recovering
        self._producer: Producer | None = None
        self._failure: Failure | None = None
        self._interruption: EventBusError | None = None
        self.begun_at: float | None = None
        """When the open transaction began, in seconds on the backend's timers."""

    # a fetch ---------------------------------------------------------------------------------------------------------

    async def run(self, chunk: FetchedRecords) -> None:
        """Handle the records in transactions; on return all are committed, or the lane is closing or in error."""
        lane, policy = self._lane, self._handler.spec.on_error
        work = Work(chunk)
        lane.at_work = True
        try:
            if self._producer is None:
                await self._outlast(work)
            while work.start < work.end and not lane.closing:
                await self._step(work)
        except HandlerError as error:
            work.stopped_by = error
        except EventBusError as error:
            work.stopped_by = HandlerError(f"handler {self._handler.__name__!r}: {lane.topic_partition}: {error}")
            work.stopped_by.__cause__ = error
        finally:
            lane.at_work = False
            lane.wait = None
        if work.stopped_by is not None and not lane.closing:
            if policy != "crash":
                log_stopped(lane, work.stopped_by, policy)
            lane.error = work.stopped_by

    async def _step(self, work: Work) -> None:
        """One transaction, and what follows from it."""
        end = work.next_end(self._handler.spec.transaction_records)
        if not await self._past_those_held(work, end):
            work.end = work.start  # the lane stops: to ask again would not yield to what stops it
            return
        before = work.start
        try:
            failure = await self._transaction(work, end)
        except _Ended as ended:
            failure = await self._after(ended, work, end)
        if work.start > before:
            work.interruptions = 0
            self._lane.wait = None
        if failure is None:
            return
        if failure.verdict is not None and await self._as_policy_says(work, failure):
            return
        if self._handler.spec.on_error == "skip":
            log_skipped(failure.error)
            work.dropped.update(range(failure.index, failure.index + failure.count))
        else:
            work.end, work.stopped_by = failure.index, failure.error

    async def _past_those_held(self, work: Work, end: int) -> bool:
        """Records of keys that wait for a next try are put behind it. False: the lane stops meanwhile."""
        lane = self._lane
        while lane.held:
            held = held_in(lane, work.chunk, work.start, end)
            if held is not None:
                for index in held - work.dropped:
                    lane.hold_back(work.chunk, index)
                    work.dropped.add(index)
                    work.moves[work.chunk.offsets[index]] = lane.moves[work.chunk.offsets[index]]
                break
            if not await self._shared.unblocked(lane):
                return False
        return True

    async def _as_policy_says(self, work: Work, failure: Failure) -> bool:
        """A record whose transaction could not go on because of it. False: ``on_error`` decides."""
        verdict, lane = failure.verdict, self._lane
        if isinstance(verdict, (Again, WaitHere)):
            work.apart = range(failure.index, failure.index + failure.count)
        if isinstance(verdict, Again):
            if failure.count > 1:
                work.singly_until = failure.index + failure.count
            return True
        if isinstance(verdict, WaitHere):
            retries = self._bound.retries
            assert retries is not None
            if await retries.sleeps(lane, verdict.seconds, verdict.reason):
                await retries.admitted(lane)
            return True
        if isinstance(verdict, (Move, Skip)):
            work.dropped.update(range(failure.index, failure.index + failure.count))
            self._log(failure)
            if isinstance(verdict, Move):
                work.moves[failure.offset] = verdict.outgoing
                if verdict.kind == "retry":
                    lane.hold(work.chunk.record(failure.index))
            return True
        return False

    def _log(self, failure: Failure) -> None:
        if isinstance(failure.verdict, Skip):
            log_passed_over(failure.error, failure.verdict.reason)

    async def _after(self, ended: _Ended, work: Work, end: int) -> Failure | None:
        """The transaction was aborted and no record is known to be at fault: make ready for the next try."""
        cause, slow = ended.cause, ended.slow
        if isinstance(cause, REBALANCED):
            await self._shared.settled(self._lane)
        elif _was_interrupted(cause):
            work.interruptions += 1
            if work.interruptions > _MOST_INTERRUPTIONS:
                raise self._never_ends(work, cause, slow) from cause
            if slow is not None:
                work.singly_until = end  # those before it are committed, and it has a whole timeout to itself
            await self._shared.settled(self._lane)
            if not self._lane.closing:
                await self._take_up(work)
        elif _is_away(cause):
            await self._outlast(work, cause)
        elif end - work.start > 1:
            work.singly_until = end
        elif work.start in work.dropped:  # its offset alone is refused: leaving out more does not help
            raise cause
        else:
            return self._not_stored(work, cause)
        return None

    async def _outlast(self, work: Work, away: EventBusError | None = None) -> None:
        """Take the partition up; where brokers do not answer, again and again: they will, and tell where to go on."""
        while not self._lane.closing:
            if away is None:
                try:
                    await self._take_up(work)
                    return
                except EventBusError as error:
                    if not _is_away(error):
                        raise
                    away = error
            if self._lane.wait is None:  # once for each outage
                logger.warning(
                    "handler %r: %s waits at offset %d for brokers that do not answer, and goes on there by itself: %s",
                    self._handler.__name__, self._lane.topic_partition, work.next_offset, away,
                )  # fmt: skip
            self._lane.wait = tried(self._lane.wait, str(away), self._shared.timers.current_time())
            away = None
            await self._shared.timers.sleep(_AWAY_SECONDS)
            await self._shared.settled(self._lane)

    async def _take_up(self, work: Work) -> None:
        """Become the one who writes for this partition, and find the first record that is not committed.

        Taking the transactional id over ends what its last holder left open, one way or the other; only then the
        committed offset says the truth.
        """
        await self.aclose()
        self._producer = self._open_producer(self._id)
        await self._producer.init()
        committed = (await self._consumer.committed([self._lane.topic_partition])).get(self._lane.topic_partition)
        if committed is not None:
            work.done_below(committed.offset)

    # a transaction ---------------------------------------------------------------------------------------------------

    async def _transaction(self, work: Work, end: int) -> Failure | None:
        """Handle the records up to ``end`` and commit as far as that went; the record at fault, if there is one.

        Raises _Ended when the transaction was aborted and no single record is to blame.
        """
        lane = self._lane
        assert self._producer is not None
        piece, first = work.slice(end), work.next_offset
        lane.rewind(first)
        lane.moves = dict(work.moves)
        self._failure = self._interruption = None
        self.begun_at = self._shared.timers.current_time()
        try:
            async with self._producer.transaction() as self._bound.transaction:
                failure = await self._fill(self._bound.transaction, work, piece)
                next_offset = lane.reached
                filled_at = self._shared.timers.current_time()
            self._shared.commits.seconds.add(self._shared.timers.current_time() - filled_at)
            lane.committed = next_offset
            work.done_below(next_offset)
            for moves in (lane.moves, work.moves):
                for offset in [offset for offset in moves if offset < next_offset]:
                    del moves[offset]
            return failure
        except _NothingToCommit as aborted:
            return aborted.failure
        except TransactionOutcomeUnknown as error:
            if _is_away(error):  # taking the id over will end it, one way or the other
                raise _Ended(error, None) from error
            raise self._unknown(first, error) from error
        except EventBusError as error:
            raise _Ended(error, self._slow_record(piece)) from error
        finally:
            self.begun_at = None
            lane.stopping = lane.closing
            self._take_back(work)
            if lane.reached > lane.committed:
                lane.rewind(first)

    async def _fill(self, transaction: Transaction, work: Work, piece: FetchedRecords) -> Failure | None:
        """Handle the records and add how far that went: all that belongs to the transaction. Raises to abort it."""
        lane = self._lane
        async with self._shared.turn(lane):
            assert self._producer is not None
            with self._joins.calls_of(self._producer):
                await self._shared.watch.run_in_order(self._bound, lane, piece)
        if self._interruption is not None:
            await self._check_stored()  # it may have been an output of ours that spoiled it
            raise self._interruption
        failure = None if self._failure is None else work.place(self._failure, piece)
        if lane.reached == work.next_offset or lane.abandoned or not (failure is None or failure.is_clean):
            raise _NothingToCommit(failure)
        # The offsets first: then one flush makes them durable together with what the handler published.
        await self._say_finished(transaction)
        await self._check_stored()
        return failure

    async def _say_finished(self, transaction: Transaction) -> None:
        """What became of the records that failed, and how far the partition is finished."""
        lane = self._lane
        await self._send_moves([lane.moves[offset] for offset in sorted(lane.moves) if offset < lane.reached])
        await transaction.send_offsets({lane.topic_partition: lane.reached}, self._consumer.group_metadata())

    async def _send_moves(self, moves: Sequence[Outgoing]) -> None:
        for outgoing in moves:
            assert self._producer is not None and self._recovering is not None
            await send(self._producer, outgoing, self._recovering.partitions[outgoing.topic])

    def _take_back(self, work: Work) -> None:
        """Moves of records that are to be handled once more: what waits for them need not."""
        for offset in [offset for offset in self._lane.moves if offset not in work.moves]:
            del self._lane.moves[offset]
            self._lane.unhold(work.chunk.record(bisect_left(work.chunk.offsets, offset)))

    async def _check_stored(self) -> None:
        """Raises what kept an output of this slice from the log."""
        lane = self._lane
        assert self._producer is not None
        await self._producer.flush()
        lane.settle()
        error, lane.error = lane.error, None
        if error is not None:
            raise error.__cause__ if isinstance(error.__cause__, EventBusError) else error

    async def advance_to(self, next_offset: int) -> None:
        """Commit without a transaction: no transaction of this partition is open between two fetches."""
        with at_work(self._lane):
            if await commit_now(self._lane, self._shared, next_offset):
                self._lane.handled(next_offset)

    async def rest(self) -> None:
        await self._lane.wake.wait()

    async def finish(self) -> None: ...

    async def aclose(self) -> None:
        """Let go of the producer."""
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.aclose()

    # the handler -----------------------------------------------------------------------------------------------------

    async def _publish(self, value: Any) -> Delivery | None:
        producer, function = self._producer, self._handler.producer
        assert producer is not None and function is not None
        return await enqueue(producer, function, value)

    def _failed(self, lane: Lane, failure: Failure) -> bool:
        """A record's handler raised: see what is to be done once the slice has stopped there."""
        cause = failure.cause
        if isinstance(cause, (*TAKEN_OVER, *REBALANCED, TransactionAborted)):
            self._interruption = cause
            return False
        if failure.is_clean and isinstance(failure.verdict, (Move, Skip)):
            if isinstance(failure.verdict, Move):
                lane.moves[failure.offset] = failure.verdict.outgoing
            self._log(failure)
            return True
        if failure.is_clean and failure.verdict is None and self._handler.spec.on_error == "skip":
            log_skipped(failure.error)
            return True
        self._failure = failure
        return False

    # errors ----------------------------------------------------------------------------------------------------------

    def _not_stored(self, work: Work, cause: EventBusError) -> Failure:
        error = HandlerError(
            f"handler {self._handler.__name__!r}: {self._lane.topic_partition} offset {work.next_offset}: what was "
            f"published for it was not stored, its transaction is aborted: {cause}"
        )
        error.__cause__ = cause
        return Failure(work.start, 1, work.next_offset, error, cause, True)

    def _slow_record(self, piece: FetchedRecords) -> _Slow | None:
        """The record that kept the open transaction beyond its timeout; None when it is younger than that.

        A slice takes no further record after a quarter of the timeout, so it is the last record whose call began:
        the one that failed when its output was refused, else the last one that was handled.
        """
        assert self.begun_at is not None
        seconds = self._shared.timers.current_time() - self.begun_at
        if seconds * 1000 < self._handler.spec.transaction_timeout_ms or not len(piece):
            return None
        begun = bisect_left(piece.offsets, self._lane.reached)
        last = begun if self._interruption is not None else begun - 1
        return _Slow(piece.offsets[min(max(last, 0), len(piece) - 1)], seconds)

    def _never_ends(self, work: Work, cause: EventBusError, slow: _Slow | None) -> HandlerError:
        spec = self._handler.spec
        if slow is not None:
            return HandlerError(
                f"handler {self._handler.__name__!r}: {self._lane.topic_partition} offset {slow.offset}: the record "
                f"takes longer than its transaction may be open: {slow.seconds:.1f} s with transaction_timeout_ms="
                f"{spec.transaction_timeout_ms:,}. The log aborted it {_MOST_INTERRUPTIONS + 1} times in a "
                f"row, and nothing of it is visible. Raise transaction_timeout_ms, or make the handler faster"
                f"{', or lower batch=' if spec.batch else ''}"
            )
        return HandlerError(
            f"handler {self._handler.__name__!r}: {self._lane.topic_partition} offset {work.next_offset}: its "
            f"transaction was ended by others {_MOST_INTERRUPTIONS} times in a row: {cause}. If a record takes long, "
            f"raise transaction_timeout_ms={spec.transaction_timeout_ms:,} or lower "
            f"transaction_records={spec.transaction_records}; if not, something else uses the transactional id "
            f"{self._id!r}"
        )

    def _unknown(self, first: int, cause: EventBusError) -> HandlerError:
        return HandlerError(
            f"handler {self._handler.__name__!r}: {self._lane.topic_partition}: whether the transaction from offset "
            f"{first} on was committed is unknown: {cause}. Restart the bus: the group's committed offset then tells, "
            "and handling goes on there"
        )


async def enqueue(producer: Producer, function: ProducerFunction[Any, Any], value: Any) -> Delivery | None:
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
