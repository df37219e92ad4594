"""Decide about a failed call: by the handler's failure policy if it has one, else by ``on_error``."""

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
from eventbus.client.handling.outcomes import joined
from eventbus.client.handling.partition_driver import Outcome, PartitionDriver
from eventbus.client.handling.retries import Recall, Retries
from eventbus.client.handling.work_actions import Call
from eventbus.client.producing.joining import CallTransaction
from eventbus.recovery import Again, Move, Skip, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import NotHandled

logger = logging.getLogger("eventbus.runner")


OnEnded = Callable[[ConsumerRecord, Exception], object]


class Passed(IntEnum):
    """How one gets past a record that failed."""

    NOT = 0
    """The partition has stopped."""
    OVER = 1
    """Nothing comes of it here any more."""
    HANDLED = 2
    """It was handled after all."""


class Failing:
    """The failure handling of a handler, or of a partition with its own transactions."""

    def __init__(self, handler: Handler[Any, Any], counts: Counts) -> None:
        self._handler = handler
        self._counts = counts
        self._on_failure: OnFailure = self._by_policy
        self.retries: Retries | None = None
        self.is_asked = False
        """True if a policy decides about failures. Otherwise ``retries`` only waits for the end of outages."""
        self._in_place = True
        """Failed records are called again in place. If False, the owner of the transaction does that."""
        self._joins: CallTransaction | None = None
        self.on_ended: OnEnded = _ignore
        """Called with each record that ends in failure: nothing calls the handler with it again in this run."""
        self._left_behind: dict[tuple[str, int, int], Outcome] = {}
        self.given_up: dict[tuple[PartitionDriver, int], list[Failure] | None] = {}
        """Calls in threads that took too long and still run, by offset: what they come to is ignored. What becomes of
        their records when the call ends; None: the partition stops before them."""

    def bound(self, on_failure: OnFailure, joins: CallTransaction | None) -> Failing:
        """Return a copy for a partition with transactions: ``on_failure`` acts on them, and calls send in ``joins``."""
        bound = copy.copy(self)
        bound._on_failure, bound._joins, bound._in_place = on_failure, joins, False
        return bound

    def recover_by(self, retries: Retries) -> None:
        """Ask a policy about each failure."""
        self.retries, self.is_asked = retries, True

    def wait_out(self, retries: Retries) -> None:
        """Wait outages out as ``retries`` decides, without a policy."""
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
        driver: PartitionDriver,
        call: Call,
        at: int,
        raised: BaseException,
        recall: Recall | None,
        outputs: list[Delivery],
        count: int = 1,
        *,
        is_last: bool = True,
    ) -> Passed:
        """The handler raised for the record at this position. Go on with the next one, unless the call ends here.

        ``outputs``: what it published; what it publishes when it is called again is added. ``is_last``: see
        `PartitionWork.raised`.
        """
        chunk, index = call.records, call.indexes[at]
        if not isinstance(raised, Exception):
            check_exit_at(self._handler, chunk.record(index), raised, count)
        if (driver, chunk.offsets[index]) in self.given_up:
            return Passed.NOT
        try:
            error = await as_failure(raised)
            verdict = None
            may_call = self.is_asked or recall is not None
            if self.retries is not None and may_call and not isinstance(error, NotHandled):
                record, in_place = chunk.record(index), self._in_place
                verdict, error = await self.retries.outcome(
                    driver, record, error, recall, partial(self.may_go_on, outputs), may_wait=in_place
                )
                if verdict is None:
                    self._counts.handled += count
                    return Passed.HANDLED
                if isinstance(verdict, WaitHere) and in_place:
                    # The partition is closing, and the record is not handled. Later records that a worker holds are not
                    # handled either, and no call will acknowledge this one.
                    driver.work.begin_none_from(record.offset)
                    return Passed.NOT
                if isinstance(verdict, Stop) and not self.is_asked:
                    verdict = None
        except BaseException:
            if outputs and self._handler.spec.timeout is not None:
                self._left_behind[_position(chunk, index)] = joined(list(outputs))
            raise
        if isinstance(error, NotHandled):
            return self._not_handled(driver, chunk.record(index), error, count)
        is_clean = self._is_clean(outputs)
        is_passed_over = self._decide(driver, call, at, error, count, is_clean, verdict, is_last=is_last)
        return Passed.OVER if is_passed_over else Passed.NOT

    def _not_handled(self, driver: PartitionDriver, record: ConsumerRecord, error: NotHandled, count: int) -> Passed:
        """No policy is asked: the partition stops here, or the runner does."""
        driver.work.begin_none_from(record.offset)
        if not error.is_stopping:
            wrapped = handler_error(self._handler, record, error, count)
            driver.stop(wrapped)
            if self._handler.spec.on_error == "crash":
                raise wrapped from error
            log_stopped(driver, wrapped, "stop")
        return Passed.NOT

    def tell_acknowledged(self, record: ConsumerRecord, raised: BaseException) -> None:
        """Report an error that a handler raised after acknowledging the record, which is not retried."""
        self._counts.failed += 1
        if isinstance(raised, Exception):
            self.on_ended(record, raised)
        logger.error(
            "handler %r: %s-%d offset %d was acknowledged before its call raised; it is not retried",
            self._handler.__name__, record.topic, record.partition, record.offset, exc_info=raised,
        )  # fmt: skip

    def wants_each_alone(self, driver: PartitionDriver, call: Call, count: int, error: Exception) -> bool:
        """Request that the records of a batch, which failed in a transaction that must be aborted, come singly."""
        return self._decide(driver, call, call.at, error, count, False, Again())

    def timed_out(self, driver: PartitionDriver, call: Call, count: int, seconds: float) -> bool:
        """Fail ``count`` records whose call took too long. Return True to continue after them."""
        late: list[Failure] | None = None
        if not self._handler.signature.is_async:
            late = self.given_up[driver, call.offset(call.at)] = []
        is_passed_over = self._timed_out(driver, call, CallTimedOut(seconds), count, late)
        if late is not None and not is_passed_over:
            self.given_up[driver, call.offset(call.at)] = None
        return is_passed_over

    def ends_late(self, driver: PartitionDriver, call: Call, at: int) -> bool | None:
        """Return whether the partition continues after an abandoned call ended; None if it was not abandoned."""
        key = driver, call.offset(at)
        if key not in self.given_up:
            return None
        late = self.given_up.pop(key)
        if late is None:
            return False
        for failure in late:
            self._report(driver, call, failure, is_last=failure is late[-1])
        return True

    def _timed_out(
        self, driver: PartitionDriver, call: Call, error: CallTimedOut, count: int, late: list[Failure] | None
    ) -> bool:
        is_clean, at = self._handler.producer is None and self._is_clean(()), call.at
        if self.retries is None or not self.is_asked:
            return self._decide(driver, call, at, error, count, is_clean, None, late)
        if count > 1 and not self._in_place:
            return self.wants_each_alone(driver, call, count, error)
        for one in range(at, at + count):  # the record at fault is unknown, so each gets its own verdict
            verdict, is_last = (
                self.retries.at_once(call.records.record(call.indexes[one]), error),
                one == at + count - 1,
            )
            if not self._decide(driver, call, one, error, 1, is_clean, verdict, late, is_last=is_last):
                return False
        return True

    def left_behind(self, chunk: FetchedRecords, index: int) -> Outcome | None:
        """Return what a call had published before its ``timeout`` cancelled it; None at the second request."""
        return self._left_behind.pop(_position(chunk, index), None)

    def _decide(
        self,
        driver: PartitionDriver,
        call: Call,
        at: int,
        error: Exception,
        count: int,
        is_clean: bool,
        verdict: Verdict | None,
        late: list[Failure] | None = None,
        *,
        is_last: bool = True,
    ) -> bool:
        """``late`` takes the failure if a thread is still in the call. ``is_last``: see `PartitionWork.raised`."""
        counts = self._counts
        counts.failed += count
        if isinstance(error, CallTimedOut):
            counts.timed_out += count
        record = call.records.record(call.indexes[at])
        wrapped = handler_error(self._handler, record, error, count)
        failure = Failure(at, count, wrapped, error, is_clean, verdict, late is not None)
        comes_again = isinstance(verdict, Again) or (isinstance(verdict, Move) and verdict.kind == "retry")
        if not comes_again:
            self.on_ended(record, error)
        is_passed_over = self._on_failure(driver, call, failure)
        if is_passed_over and isinstance(verdict, Move):
            if verdict.kind == "retry":
                counts.retried += count
            else:
                counts.dead_lettered += count
            if late is None:
                self._report(driver, call, failure, is_last)
            else:
                late.append(failure)
        elif is_passed_over:
            counts.skipped += count
        return is_passed_over

    def _report(self, driver: PartitionDriver, call: Call, failure: Failure, is_last: bool) -> None:
        """Forward the records of a failure, unless the owner of the transaction does that."""
        if self._in_place and isinstance(failure.verdict, Move):
            driver.work.raised(call, failure.at, failure.verdict, count=failure.count, is_last=is_last)

    def _by_policy(self, driver: PartitionDriver, call: Call, failure: Failure) -> bool:
        """Apply the policy's verdict, else ``on_error=``: skip, crash, or stop the partition."""
        verdict, on_error = failure.verdict, self._handler.spec.on_error
        if isinstance(verdict, Move):
            return True
        if isinstance(verdict, Skip):
            log_passed_over(failure.error, verdict.reason)
            return True
        if on_error == "skip":
            log_skipped(failure.error)
            return True
        if not failure.comes_late:
            driver.work.raised(call, failure.at, Stop(), count=failure.count, error=failure.error)
        driver.stop(failure.error)
        if on_error == "crash":
            raise failure.error from failure.cause
        log_stopped(driver, failure.error, on_error)
        return False


def _ignore(record: ConsumerRecord, error: Exception) -> None: ...


def recall_of(call: Call, again: Callable[[], Awaitable[None]]) -> Recall:
    """How the record in flight of a call is called again."""

    def begin() -> None:
        call.is_resting = False
        call.recalls += 1

    def rest() -> None:
        call.is_resting = True

    return Recall(begin, rest, again)


def _position(chunk: FetchedRecords, index: int) -> tuple[str, int, int]:
    return chunk.topic, chunk.partition, chunk.offsets[index]
