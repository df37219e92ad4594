"""What a failed call comes to: a policy is asked if there is one, else ``on_error`` says."""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.calls import Counts
from eventbus.client.handling.failures import (
    CallTimedOut,
    Failure,
    OnFailure,
    as_failure,
    check_exit_at,
    handler_error,
    log_passed_over,
    log_skipped,
    log_stopped,
)
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.lane import Lane, Outcome
from eventbus.client.handling.outcomes import joined
from eventbus.client.handling.retries import Recall, Retries
from eventbus.client.handling.work_actions import Cursor
from eventbus.client.producing.joining import CallTransaction
from eventbus.recovery import Again, Move, RetryOrder, Skip, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import NotHandled

logger = logging.getLogger("eventbus.runner")


OnEnded = Callable[[ConsumerRecord, Exception], object]


class Passed(IntEnum):
    """How one gets past a record that failed."""

    NOT = 0
    """The lane has stopped."""
    OVER = 1
    """Nothing comes of it here any more."""
    HANDLED = 2
    """It was handled after all."""


class Failing:
    """Of one handler, or of one lane that fails in a way of its own."""

    def __init__(self, handler: Handler[Any, Any], counts: Counts) -> None:
        self._handler = handler
        self._counts = counts
        self._on_failure: OnFailure = self._by_policy
        self.retries: Retries | None = None
        self.is_asked = False
        """A policy decides about failures; else ``retries`` waits for the end of outages and leaves the rest."""
        self._retry_order: RetryOrder = "none"
        self._in_place = True
        """Records are called again where they failed; else that is for whoever owns the transaction."""
        self._joins: CallTransaction | None = None
        self.on_ended: OnEnded = _ignore
        """Called with each record that ends in failure: nothing calls the handler with it again in this run."""
        self._left_behind: dict[tuple[str, int, int], Outcome] = {}
        self.given_up: dict[tuple[Lane, int], bool] = {}
        """Calls in threads that took too long and still run, by offset: what they come to is ignored. Whether a policy
        has said what becomes of the record, so that it is finished when its call ends."""

    def bound(self, on_failure: OnFailure, joins: CallTransaction | None) -> Failing:
        """The same for one lane, whose transaction ``on_failure`` knows, and its calls may send in."""
        bound = copy.copy(self)
        bound._on_failure, bound._joins, bound._in_place = on_failure, joins, False
        return bound

    def recover_by(self, retries: Retries, order: RetryOrder) -> None:
        self.retries, self._retry_order, self.is_asked = retries, order, True

    def wait_out(self, retries: Retries) -> None:
        self.retries = retries

    def may_go_on(self, outputs: Sequence[Delivery]) -> bool:
        """Calling again adds to what was published; where that belongs to a transaction, it has to be taken back."""
        return self._in_place or self._is_clean(outputs)

    def _is_clean(self, outputs: Sequence[Delivery]) -> bool:
        return not outputs and self._handler.signature.transaction_name is None and not self._has_joined

    @property
    def _has_joined(self) -> bool:
        """True if the call that failed has sent something in the handler's transaction."""
        return self._joins is not None and self._joins.has_sent

    async def failed(
        self,
        lane: Lane,
        chunk: FetchedRecords,
        index: int,
        raised: BaseException,
        recall: Recall | None,
        outputs: list[Delivery],
        count: int = 1,
    ) -> Passed:
        """A record's handler raised. Go on with the next record, unless the lane has stopped.

        ``outputs``: what it published; what it publishes when it is called again is added.
        """
        if not isinstance(raised, Exception):
            check_exit_at(self._handler, chunk.record(index), raised, count)
        if (lane, chunk.offsets[index]) in self.given_up:
            return Passed.NOT
        try:
            error = await as_failure(raised)
            verdict = None
            may_call = self.is_asked or recall is not None
            if self.retries is not None and may_call and not isinstance(error, NotHandled):
                record, in_place = chunk.record(index), self._in_place
                verdict, error = await self.retries.outcome(
                    lane, record, error, recall, partial(self.may_go_on, outputs), may_wait=in_place
                )
                if verdict is None:
                    self._counts.handled += count
                    return Passed.HANDLED
                if isinstance(verdict, WaitHere) and in_place:  # the lane is closing, and the record is not handled
                    # Later records that a worker holds are not handled either, and no call will acknowledge this one.
                    lane.cut(min(lane.limit, record.offset))
                    return Passed.NOT
                if isinstance(verdict, Stop) and not self.is_asked:
                    verdict = None
        except BaseException:
            if outputs and self._handler.spec.timeout is not None:
                self._left_behind[_position(chunk, index)] = joined(list(outputs))
            raise
        if isinstance(error, NotHandled):
            return self._not_handled(lane, chunk.record(index), error, count)
        is_passed_over = self._decide(lane, chunk, index, error, count, self._is_clean(outputs), verdict)
        return Passed.OVER if is_passed_over else Passed.NOT

    def _not_handled(self, lane: Lane, record: ConsumerRecord, error: NotHandled, count: int) -> Passed:
        """No policy is asked: the partition stops here, or the runner does."""
        lane.limit = min(lane.limit, record.offset)
        if not error.is_stopping:
            wrapped = handler_error(self._handler, record, error, count)
            lane.error = lane.error or wrapped
            if self._handler.spec.on_error == "crash":
                raise wrapped from error
            log_stopped(lane, wrapped, "stop")
        return Passed.NOT

    def tell_acknowledged(self, record: ConsumerRecord, raised: BaseException) -> None:
        """A handler raised behind its acknowledgement: the record is done, and not tried again."""
        self._counts.failed += 1
        if isinstance(raised, Exception):
            self.on_ended(record, raised)
        logger.error(
            "handler %r: %s-%d offset %d was acknowledged, and its call raised behind that; it is not tried again",
            self._handler.__name__, record.topic, record.partition, record.offset, exc_info=raised,
        )  # fmt: skip

    def wants_each_alone(self, lane: Lane, chunk: FetchedRecords, index: int, count: int, error: Exception) -> bool:
        """A batch failed in a transaction that cannot keep what it published: its records are to come one by one."""
        return self._decide(lane, chunk, index, error, count, False, Again())

    def timed_out(self, lane: Lane, chunk: FetchedRecords, indexes: Sequence[int], seconds: float) -> bool:
        """The call of these records took too long. True: go on behind it."""
        if self._handler.signature.is_async:
            return self._timed_out(lane, chunk, indexes, seconds)
        call = lane, chunk.offsets[indexes[0]]
        self.given_up[call] = False
        self.given_up[call] = is_passed_over = self._timed_out(lane, chunk, indexes, seconds)
        return is_passed_over

    def ends_late(self, lane: Lane, offset: int) -> bool | None:
        """A call that had been given up has ended: whether one gets past it. None: it had not."""
        return self.given_up.pop((lane, offset), None)

    def _timed_out(self, lane: Lane, chunk: FetchedRecords, indexes: Sequence[int], seconds: float) -> bool:
        is_clean = self._handler.producer is None and self._is_clean(())
        index, error, count = indexes[0], CallTimedOut(seconds), len(indexes)
        if self.retries is None or not self.is_asked:
            return self._decide(lane, chunk, index, error, count, is_clean, None)
        if count > 1 and not self._in_place:
            return self.wants_each_alone(lane, chunk, index, count, error)
        return all(  # nobody knows which one is to blame: each goes its way
            self._decide(lane, chunk, one, error, 1, is_clean, self.retries.at_once(chunk.record(one), error))
            for one in indexes
        )

    def left_behind(self, chunk: FetchedRecords, index: int) -> Outcome | None:
        """What a call that was cancelled because of its ``timeout`` had published before, told once."""
        return self._left_behind.pop(_position(chunk, index), None)

    def _decide(
        self,
        lane: Lane,
        chunk: FetchedRecords,
        index: int,
        error: Exception,
        count: int,
        is_clean: bool,
        verdict: Verdict | None,
    ) -> bool:
        counts = self._counts
        counts.failed += count
        if isinstance(error, CallTimedOut):
            counts.timed_out += count
        record = chunk.record(index)
        wrapped = handler_error(self._handler, record, error, count)
        failure = Failure(index, count, record.offset, wrapped, error, is_clean, verdict)
        comes_again = isinstance(verdict, Again) or (isinstance(verdict, Move) and verdict.kind == "retry")
        if not comes_again:
            self.on_ended(record, error)
        is_passed_over = self._on_failure(lane, failure)
        if is_passed_over and isinstance(verdict, Move):
            if verdict.kind == "retry":
                counts.retried += count
                lane.hold(record)
            else:
                counts.dead_lettered += count
            # The next record may have to wait for this one: whoever runs the lane looks before it begins another.
            is_held = verdict.kind == "retry" and self._retry_order != "none"
            lane.stopping = lane.stopping or is_held or self._handler.spec.tx is not None
        elif is_passed_over:
            counts.skipped += count
        return is_passed_over

    def _by_policy(self, lane: Lane, failure: Failure) -> bool:
        """What the policy says, else ``on_error=`` at once: skip, crash, or stop the lane."""
        verdict, on_error = failure.verdict, self._handler.spec.on_error
        if isinstance(verdict, Move):
            lane.moves[failure.offset] = verdict.outgoing
            return True
        if isinstance(verdict, Skip):
            log_passed_over(failure.error, verdict.reason)
            return True
        if on_error == "skip":
            log_skipped(failure.error)
            return True
        lane.error = lane.error or failure.error
        if on_error == "crash":
            raise failure.error from failure.cause
        log_stopped(lane, failure.error, on_error)
        return False


def _ignore(record: ConsumerRecord, error: Exception) -> None: ...


def in_order(cursor: Cursor, call: Callable[[], Awaitable[None]]) -> Recall:
    """How the record at a cursor is called again."""

    def begin() -> None:
        cursor.is_resting = False
        cursor.recalls += 1

    def rest() -> None:
        cursor.is_resting = True

    return Recall(begin, rest, call)


def _position(chunk: FetchedRecords, index: int) -> tuple[str, int, int]:
    return chunk.topic, chunk.partition, chunk.offsets[index]
