"""Retry a record in place: call the handler again with it, at once or after a wait, before any later record."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from eventbus.backends.clock import Clock, Timers
from eventbus.client.handling.call_loop import Slices, TimeSlice
from eventbus.client.handling.handler_errors import as_failure, check_exit_at
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.invocation import HandlerCounts
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.recovery import Again, Decides, Move, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord, TopicPartition
from eventbus.units_of_work import NotHandled

_LOOK_SECONDS = 0.1
"""How often a record that waits in place checks whether its partition is being revoked."""
_MAX_DECISIONS = 1_000
"""Limits a policy that always decides `Again` for a record that cannot be called again."""


class Recall(NamedTuple):
    """The functions that call the handler with a record again."""

    begin: Callable[[], object]
    """Report to the time limit that a new call begins."""
    rest: Callable[[], object]
    """Report that no call of the record is in flight for now."""
    call: Callable[[], Awaitable[None]]
    """Call the handler, and send what it returns."""


class RetryResult(NamedTuple):
    """The outcome of a record that was called again in place."""

    verdict: Verdict | None
    """None if the record was handled after all."""
    error: Exception
    """The error of the last call."""


class InPlaceRetries:
    """The repeated calls of one handler, and its waits for a policy or an open circuit."""

    def __init__(
        self, handler: Handler[Any, Any], recovery: Decides, counts: HandlerCounts, timers: Timers, clock: Clock
    ) -> None:
        self._handler = handler
        self._recovery = recovery
        self._counts = counts
        self._timers = timers
        self._clock = clock
        self.waiting_for: dict[TopicPartition, str] = {}
        """Partitions in which a record waits in its place now, and the reason."""
        self._slice = TimeSlice(Slices(timers.current_time), ends_at=0)  # the first failure yields to other tasks
        self._reported = 0
        """The number of handled records that the policy has been notified of."""

    async def outcome(
        self,
        driver: PartitionDriver,
        record: ConsumerRecord,
        error: Exception,
        recall: Recall | None,
        may_call: Callable[[], bool] = lambda: True,
        *,
        may_wait: bool = True,
    ) -> RetryResult:
        """Retry and wait as the policy decides, until the record is handled or the policy decides otherwise.

        Return the verdict that the caller must apply. It is `Again` if ``may_call`` returns False, because the records
        already published must be aborted first. Without ``recall`` the record cannot be read, so no call is made.
        """
        await self.yield_to_loop()
        tries = 1 + (driver.tried[1] if driver.tried[0] == record.offset else 0)
        while True:
            verdict = self._decide(record, error, tries)
            if isinstance(verdict, Again) and tries < _MAX_DECISIONS:
                if not may_call():
                    driver.tried = (record.offset, tries)
                    return RetryResult(verdict, error)
                tries += 1
            elif isinstance(verdict, WaitHere):
                if not may_wait:
                    driver.tried = (record.offset, tries)
                    return RetryResult(verdict, error)
                if not await self._wait(driver, verdict, recall):
                    return RetryResult(verdict, error)
                tries += 1
            else:
                return RetryResult(verdict, error)
            if recall is None:
                continue
            recall.begin()
            try:
                await recall.call()
            except BaseException as raised:
                check_exit_at(self._handler, record, raised)
                error = await as_failure(raised)
                if isinstance(error, NotHandled):
                    return RetryResult(Stop(), error)
            else:
                return RetryResult(None, error)

    async def yield_to_loop(self) -> None:
        """Let other tasks run, unless they just did: a failure or a retry costs as much as many calls."""
        if not self._slice.look():
            await self._slice.turn()

    def at_once(self, record: ConsumerRecord, error: Exception) -> Verdict:
        """Return a verdict that needs neither a retry nor a wait, for a call that was cancelled by its timeout."""
        for tries in range(1, _MAX_DECISIONS):  # a policy counts the tries that it allows
            verdict = self._decide(record, error, tries)
            if isinstance(verdict, WaitHere):
                return self._move_to_retry_topic(record)
            if not isinstance(verdict, Again):
                return verdict
        return Stop()

    def _move_to_retry_topic(self, record: ConsumerRecord) -> Verdict:
        """Move the record to the retry topic, where it waits like a record that has not been tried."""
        if self._recovery.retry_topic is None:
            return Stop()
        return Move(self._recovery.behind(record, self._clock()), "retry")

    def _decide(self, record: ConsumerRecord, error: Exception, tries: int) -> Verdict:
        now_ms = self._clock()
        self._report_handled(now_ms)
        return self._recovery.decide(record, error, tries, now_ms)

    def _report_handled(self, now_ms: int) -> None:
        handled = self._counts.handled - self._reported
        if handled:
            self._reported += handled
            self._recovery.handled(handled, now_ms)

    async def _wait(self, driver: PartitionDriver, verdict: WaitHere, recall: Recall | None) -> bool:
        """Wait as long as the policy requires. False if the partition stops meanwhile."""
        if recall is not None:
            recall.rest()
        async with driver.release_slot():
            seconds = verdict.seconds
            while seconds > 0 and await self.sleep(driver, seconds, verdict.reason):
                seconds = self.circuit_wait_seconds()
        if seconds > 0 and recall is not None:
            recall.begin()  # the partition stops: the record counts as in flight and unfinished
        return seconds <= 0

    async def sleep(self, driver: PartitionDriver, seconds: float, reason: str = "") -> bool:
        """Sleep, and show ``reason`` in the status. False if the partition stops meanwhile."""
        until = self._timers.current_time() + seconds
        driver.waits = True
        if reason:
            self.waiting_for[driver.topic_partition] = reason
        try:
            while not driver.closing and driver.error is None:
                left = until - self._timers.current_time()
                if left <= 0:
                    return True
                await self._timers.sleep(min(left, _LOOK_SECONDS))
            return False
        finally:
            driver.waits = False
            self.waiting_for.pop(driver.topic_partition, None)

    def circuit_wait_seconds(self) -> float:
        """Seconds to wait before a record may be begun; 0: go on."""
        now_ms = self._clock()
        self._report_handled(now_ms)
        return self._recovery.admit(now_ms)

    async def wait_for_circuit(self, driver: PartitionDriver) -> bool:
        """Wait while the circuit is open. False if the partition stops meanwhile."""
        while (seconds := self.circuit_wait_seconds()) > 0:
            if not await self.sleep(driver, seconds, "a circuit is open, as too many calls have failed"):
                return False
        return True
