"""Decide about a failed call: by the handler's failure policy if it has one, else by ``on_error``."""

from __future__ import annotations

import copy
import logging
from collections.abc import Awaitable, Callable, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from eventbus.backends.delivery import Delivery
from eventbus.client.handling.handler_errors import (
    CallTimedOut,
    Failure,
    OnFailure,
    as_failure,
    check_exit_at,
    handler_error,
    log_skipped,
    log_skipped_by_policy,
    log_stopped,
)
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.in_place_retries import InPlaceRetries, Recall
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.handling.partition_driver import Outcome, PartitionDriver, combined_outcome
from eventbus.client.handling.work_actions import Call
from eventbus.client.producing.joining import CallTransaction
from eventbus.recovery import Again, Move, Skip, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import NotHandled

logger = logging.getLogger("eventbus.runner")


OnEnded = Callable[[ConsumerRecord, Exception], object]


class Resolution(IntEnum):
    """What became of a record whose call failed. False if the call must end here."""

    STOPPED = 0
    """The partition stops before the record."""
    DROPPED = 1
    """The record was skipped, or moves to another topic. The handler is not called with it here again."""
    HANDLED = 2
    """A retry in place succeeded."""


class FailedCalls:
    """The failure handling of a handler, or of a partition with its own transactions."""

    def __init__(self, handler: Handler[Any, Any], counts: HandlerCounts) -> None:
        self._handler = handler
        self._counts = counts
        self._on_failure: OnFailure = self._by_policy
        self.retries: InPlaceRetries | None = None
        self.has_policy = False
        """True if a policy decides about failures. Otherwise ``retries`` only waits for the end of outages."""
        self._in_place = True
        """Failed records are called again in place. If False, the owner of the transaction does that."""
        self._joins: CallTransaction | None = None
        self.on_ended: OnEnded = _ignore
        """Called with each record that ends in failure: nothing calls the handler with it again in this run."""
        self._outputs_of_cancelled: dict[tuple[str, int, int], Outcome] = {}
        self.abandoned_calls: dict[tuple[PartitionDriver, int], list[Failure] | None] = {}
        """Calls in threads that took too long and still run, by offset. Their results are ignored. The value holds what
        becomes of the records when the call ends, or None if the partition stops before them."""

    def bound(self, on_failure: OnFailure, joins: CallTransaction | None) -> FailedCalls:
        """Return a copy for a partition with transactions: ``on_failure`` acts on them, and calls send in ``joins``."""
        bound = copy.copy(self)
        bound._on_failure, bound._joins, bound._in_place = on_failure, joins, False
        return bound

    def use_policy(self, retries: InPlaceRetries) -> None:
        """Let a policy decide about each failure."""
        self.retries, self.has_policy = retries, True

    def wait_out(self, retries: InPlaceRetries) -> None:
        """Wait for the end of outages as ``retries`` decides. The handler has no policy."""
        self.retries = retries

    def may_call_again(self, outputs: Sequence[Delivery]) -> bool:
        """Return False if the records of the failed call are in a transaction, which must be aborted before a retry."""
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
    ) -> Resolution:
        """Decide about the record at this position, for which the handler raised, and retry it if that is the decision.

        ``outputs`` holds what the call has published. Retries add to it. ``is_last``: see `PartitionWork.raised`.
        """
        chunk, index = call.records, call.indexes[at]
        if not isinstance(raised, Exception):
            check_exit_at(self._handler, chunk.record(index), raised, count)
        # The call exceeded its timeout and was decided then. What its thread raises now comes too late.
        if (driver, chunk.offsets[index]) in self.abandoned_calls:
            return Resolution.STOPPED
        try:
            error = await as_failure(raised)
            verdict = None
            may_call = self.has_policy or recall is not None
            if self.retries is not None and may_call and not isinstance(error, NotHandled):
                record, in_place = chunk.record(index), self._in_place
                verdict, error = await self.retries.outcome(
                    driver, record, error, recall, partial(self.may_call_again, outputs), may_wait=in_place
                )
                if verdict is None:
                    self._counts.handled += count
                    return Resolution.HANDLED
                if isinstance(verdict, WaitHere) and in_place:
                    # The partition is closing, and the record is not handled. Later records that a worker holds are not
                    # handled either, and no call will acknowledge this one.
                    driver.work.begin_none_from(record.offset)
                    return Resolution.STOPPED
                if isinstance(verdict, Stop) and not self.has_policy:
                    verdict = None
        except BaseException:
            if outputs and self._handler.spec.timeout is not None:
                # The timeout cancelled a retry. What earlier tries published is in the log, and the record may not be
                # committed before that is stored.
                self._outputs_of_cancelled[_position(chunk, index)] = combined_outcome(list(outputs))
            raise
        if isinstance(error, NotHandled):
            return self._not_handled(driver, chunk.record(index), error, count)
        is_clean = self._is_clean(outputs)
        continues = self._decide(driver, call, at, error, count, is_clean, verdict, is_last=is_last)
        return Resolution.DROPPED if continues else Resolution.STOPPED

    def _not_handled(
        self, driver: PartitionDriver, record: ConsumerRecord, error: NotHandled, count: int
    ) -> Resolution:
        """Stop the partition, or the runner, at a record that was not handled. No policy decides about it."""
        driver.work.begin_none_from(record.offset)
        if not error.is_stopping:
            wrapped = handler_error(self._handler, record, error, count)
            driver.stop(wrapped)
            if self._handler.spec.on_error == "crash":
                raise wrapped from error
            log_stopped(driver, wrapped, "stop")
        return Resolution.STOPPED

    def log_acknowledged(self, record: ConsumerRecord, raised: BaseException) -> None:
        """Report an error that a handler raised after acknowledging the record, which is not retried."""
        self._counts.failed += 1
        if isinstance(raised, Exception):
            self.on_ended(record, raised)
        logger.error(
            "handler %r: %s-%d offset %d was acknowledged before its call raised; it is not retried",
            self._handler.__name__, record.topic, record.partition, record.offset, exc_info=raised,
        )  # fmt: skip

    def retry_singly(self, driver: PartitionDriver, call: Call, count: int, error: Exception) -> bool:
        """Retry the records of a failed batch one by one, after its transaction is aborted."""
        return self._decide(driver, call, call.at, error, count, False, Again())

    def timed_out(self, driver: PartitionDriver, call: Call, count: int, seconds: float) -> bool:
        """Fail ``count`` records whose call took too long. Return True to continue after them."""
        late: list[Failure] | None = None
        # The thread still runs. Its verdict waits until the thread has ended, because results of earlier records of the
        # call come with it.
        if not self._handler.signature.is_async:
            late = self.abandoned_calls[driver, call.offset(call.at)] = []
        continues = self._timed_out(driver, call, CallTimedOut(seconds), count, late)
        if late is not None and not continues:
            self.abandoned_calls[driver, call.offset(call.at)] = None
        return continues

    def abandoned_call_ended(self, driver: PartitionDriver, call: Call, at: int) -> bool | None:
        """Return whether the partition continues after an abandoned call ended; None if it was not abandoned."""
        key = driver, call.offset(at)
        if key not in self.abandoned_calls:
            return None
        late = self.abandoned_calls.pop(key)
        if late is None:
            return False
        for failure in late:
            self._report(driver, call, failure, is_last=failure is late[-1])
        return True

    def _timed_out(
        self, driver: PartitionDriver, call: Call, error: CallTimedOut, count: int, late: list[Failure] | None
    ) -> bool:
        is_clean, at = self._handler.producer is None and self._is_clean(()), call.at
        if self.retries is None or not self.has_policy:
            return self._decide(driver, call, at, error, count, is_clean, None, late)
        if count > 1 and not self._in_place:
            return self.retry_singly(driver, call, count, error)
        for one in range(at, at + count):  # the record at fault is unknown, so each gets its own verdict
            verdict, is_last = (
                self.retries.at_once(call.records.record(call.indexes[one]), error),
                one == at + count - 1,
            )
            if not self._decide(driver, call, one, error, 1, is_clean, verdict, late, is_last=is_last):
                return False
        return True

    def take_outputs_of_cancelled(self, chunk: FetchedRecords, index: int) -> Outcome | None:
        """Return what a call had published before its ``timeout`` cancelled it, once; None after that."""
        return self._outputs_of_cancelled.pop(_position(chunk, index), None)

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
        """Count and apply the verdict. Return True to continue after the record.

        ``late`` collects the failure if a thread is still in the call. ``is_last``: see `PartitionWork.raised`.
        """
        counts = self._counts
        counts.failed += count
        if isinstance(error, CallTimedOut):
            counts.timed_out += count
        record = call.records.record(call.indexes[at])
        wrapped = handler_error(self._handler, record, error, count)
        failure = Failure(at, count, wrapped, error, is_clean, verdict, late is not None)
        comes_again = isinstance(verdict, Again) or (isinstance(verdict, Move) and verdict.kind == "retry")
        # A record that is retried later has not failed permanently, so it is not reported.
        if not comes_again:
            self.on_ended(record, error)
        continues = self._on_failure(driver, call, failure)
        if continues and isinstance(verdict, Move):
            if verdict.kind == "retry":
                counts.retried += count
            else:
                counts.dead_lettered += count
            if late is None:
                self._report(driver, call, failure, is_last)
            else:
                late.append(failure)
        elif continues:
            counts.skipped += count
        return continues

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
            log_skipped_by_policy(failure.error, verdict.reason)
            return True
        if on_error == "skip":
            log_skipped(failure.error)
            return True
        # The thread is still in the call, which must not be closed under it.
        if not failure.comes_late:
            driver.work.raised(call, failure.at, Stop(), count=failure.count, error=failure.error)
        driver.stop(failure.error)
        if on_error == "crash":
            raise failure.error from failure.cause
        log_stopped(driver, failure.error, on_error)
        return False


def _ignore(record: ConsumerRecord, error: Exception) -> None: ...


def recall_of(call: Call, again: Callable[[], Awaitable[None]]) -> Recall:
    """Return the functions that retry the record in flight of a call."""

    def begin() -> None:
        call.is_resting = False
        call.recalls += 1

    def rest() -> None:
        call.is_resting = True

    return Recall(begin, rest, again)


def _position(chunk: FetchedRecords, index: int) -> tuple[str, int, int]:
    return chunk.topic, chunk.partition, chunk.offsets[index]
