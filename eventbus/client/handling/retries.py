"""Perform the verdicts of a failure policy that need no other topic: call the record again, now or after a wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from eventbus.backends.clock import Clock, Timers
from eventbus.client.handling.call_loop import Slices, TimeSlice
from eventbus.client.handling.calls import Counts
from eventbus.client.handling.failures import as_failure, check_exit_at
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.recovery import Again, Decides, Move, Stop, Verdict, WaitHere
from eventbus.types import ConsumerRecord, TopicPartition
from eventbus.units_of_work import NotHandled

_LOOK_SECONDS = 0.1
"""How often one that waits in its place looks whether its partition moves away."""
_MOST_QUESTIONS = 1_000
"""A policy that says "again" for ever, where a call cannot be made again, is not asked for ever."""


class Recall(NamedTuple):
    """How a record is called again."""

    begin: Callable[[], object]
    """Report that a new call begins, to the watch of slow calls."""
    rest: Callable[[], object]
    """Report that no call of the record is in flight for now."""
    call: Callable[[], Awaitable[None]]
    """Call the handler, and send what it returns."""


class Ended(NamedTuple):
    """The outcome of a record that was called again in place."""

    verdict: Verdict | None
    """None if the record was handled after all."""
    error: Exception
    """The error of the last call."""


class Retries:
    """The repeated calls of one handler, and its waits for a policy or an open circuit."""

    def __init__(
        self, handler: Handler[Any, Any], recovery: Decides, counts: Counts, timers: Timers, clock: Clock
    ) -> None:
        self._handler = handler
        self._recovery = recovery
        self._counts = counts
        self._timers = timers
        self._clock = clock
        self.waiting_for: dict[TopicPartition, str] = {}
        """Partitions in which a record waits in its place now, and the reason."""
        self._slice = TimeSlice(Slices(timers.current_time), ends_at=0)  # the first failure lets the others run
        self._told = 0
        """Records handled, as the policy knows them."""

    async def outcome(
        self,
        driver: PartitionDriver,
        record: ConsumerRecord,
        error: Exception,
        recall: Recall | None,
        may_call: Callable[[], bool] = lambda: True,
        *,
        may_wait: bool = True,
    ) -> Ended:
        """Ask, and call again or wait, until it was handled or the policy has another word for it.

        What it may not do here is returned: ``may_call`` says whether what was published may stay. Without ``recall``
        there is nothing to call: the record cannot be read.
        """
        await self.breathe()
        tries = 1 + (driver.tried[1] if driver.tried[0] == record.offset else 0)
        while True:
            verdict = self._ask(record, error, tries)
            if isinstance(verdict, Again) and tries < _MOST_QUESTIONS:
                if not may_call():
                    driver.tried = (record.offset, tries)
                    return Ended(verdict, error)
                tries += 1
            elif isinstance(verdict, WaitHere):
                if not may_wait:
                    driver.tried = (record.offset, tries)
                    return Ended(verdict, error)
                if not await self._waits(driver, verdict, recall):
                    return Ended(verdict, error)
                tries += 1
            else:
                return Ended(verdict, error)
            if recall is None:
                continue
            recall.begin()
            try:
                await recall.call()
            except BaseException as raised:
                check_exit_at(self._handler, record, raised)
                error = await as_failure(raised)
                if isinstance(error, NotHandled):
                    return Ended(Stop(), error)
            else:
                return Ended(None, error)

    async def breathe(self) -> None:
        """Let other tasks run, if that was not just now: a failure or a later try costs as much as many calls."""
        if not self._slice.look():
            await self._slice.turn()

    def at_once(self, record: ConsumerRecord, error: Exception) -> Verdict:
        """Return a verdict that needs neither another call nor a wait, for a call that was cancelled by its timeout."""
        for tries in range(1, _MOST_QUESTIONS):  # a policy counts the tries that it allows
            verdict = self._ask(record, error, tries)
            if isinstance(verdict, WaitHere):
                return self._aside(record)
            if not isinstance(verdict, Again):
                return verdict
        return Stop()

    def _aside(self, record: ConsumerRecord) -> Verdict:
        """Move the record to the retry topic, where it waits like a record that was not tried."""
        if self._recovery.retry_topic is None:
            return Stop()
        return Move(self._recovery.behind(record, self._clock()), "retry")

    def _ask(self, record: ConsumerRecord, error: Exception, tries: int) -> Verdict:
        now_ms = self._clock()
        self._tell(now_ms)
        return self._recovery.decide(record, error, tries, now_ms)

    def _tell(self, now_ms: int) -> None:
        handled = self._counts.handled - self._told
        if handled:
            self._told += handled
            self._recovery.handled(handled, now_ms)

    async def _waits(self, driver: PartitionDriver, verdict: WaitHere, recall: Recall | None) -> bool:
        """Wait as long as the policy requires. False if the partition stops meanwhile."""
        if recall is not None:
            recall.rest()
        async with driver.step_aside():
            seconds = verdict.seconds
            while seconds > 0 and await self.sleeps(driver, seconds, verdict.reason):
                seconds = self.closed_for()
        if seconds > 0 and recall is not None:
            recall.begin()  # the partition stops: the record counts as in flight and unfinished
        return seconds <= 0

    async def sleeps(self, driver: PartitionDriver, seconds: float, reason: str = "") -> bool:
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

    def closed_for(self) -> float:
        """Seconds to wait before a record may be begun; 0: go on."""
        now_ms = self._clock()
        self._tell(now_ms)
        return self._recovery.admit(now_ms)

    async def admitted(self, driver: PartitionDriver) -> bool:
        """Wait while the circuit is open. False if the partition stops meanwhile."""
        while (seconds := self.closed_for()) > 0:
            if not await self.sleeps(driver, seconds, "a circuit is open, as too many calls have failed"):
                return False
        return True
