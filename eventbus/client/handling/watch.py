"""How long calls take: one task looks at all calls of a handler at intervals, and knows those that take too long.

It compares what it sees with what it saw before; a call costs nothing. A call is met at most one interval after it
began, so that it is late at most an interval after its time is over, and never before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, cast

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.handling.call_loop import CallLoop
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.here import Calling, Member, begin_here, here
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Call
from eventbus.errors import HandlerError
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.runner")

_LONGEST_INTERVAL_SECONDS = 1.0
_INTERVALS_PER_TIMEOUT = 20
"""A call is cancelled within 5 % of its timeout, plus what the event loop is late."""


class AtWork(NamedTuple):
    """A record whose call is in flight."""

    topic_partition: TopicPartition
    offset: int
    since: float
    """Seconds on the backend's timers, known to the interval of the watch: one second at most."""


class Caller:
    """A task that makes calls: of a partition in order, or of any partition of the handler."""

    __slots__ = (
        "call", "call_loop", "dispatch", "driver", "is_late", "is_told", "member", "scope", "seen", "since", "task_id",
    )  # fmt: skip

    def __init__(self, dispatch: Dispatch, call_loop: CallLoop) -> None:
        self.dispatch = dispatch
        self.call_loop = call_loop
        self.driver: PartitionDriver | None = None
        self.call: Call | None = None
        """The records that it handles now."""
        self.member: Member | None = None
        self.task_id = 0
        self.scope = anyio.CancelScope()
        self.is_late = False
        """The scope is cancelled because a record's call took too long."""
        # What the watch saw at its last look.
        self.seen: object | None = None
        """The marker."""
        self.since = 0.0
        self.is_told = False

    @property
    def in_flight(self) -> Call | None:
        """The call, while a record of it is in flight."""
        call = self.call
        return None if call is None or call.is_resting or call.is_over or self.call_loop.is_over else call

    @property
    def marker(self) -> object | None:
        """Another value for each record's call; None while there is none."""
        return None if (call := self.in_flight) is None else (call, call.at, call.recalls)

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        return None if (call := self.in_flight) is None else (call.records, call.indexes[call.at])

    @property
    def where(self) -> tuple[TopicPartition, int] | None:
        """Partition and offset of the record in flight."""
        call, driver = self.in_flight, self.driver
        return None if call is None or driver is None else (driver.topic_partition, call.offset(call.at))

    def is_too_late(self) -> None:
        """Cancel the record's call, and begin no other inside the scope that is cancelled."""
        if self.driver is not None and self.call is not None:
            self.is_late = True
            self.driver.work.cut(self.call)
            self.scope.cancel()

    def pass_over(self, seconds: float) -> None:
        """Fail the record whose call was cancelled by its timeout, and continue after it or raise HandlerError."""
        driver, call = self.driver, self.call
        if not self.is_late or driver is None or call is None or call.is_over or call.is_resting:
            return
        if self.dispatch.timed_out(driver, call, seconds):
            self.dispatch.pass_over(driver, call)

    def give_up(self, seconds: float) -> PartitionDriver | None:
        """Give up a call in a thread, which cannot be cancelled: its result is ignored."""
        driver, call = self.driver, self.in_flight
        if driver is not None and call is not None:
            if not self.dispatch.timed_out(driver, call, seconds):
                driver.work.cut(call)
            driver.wake.set()
        return driver


class Watch:
    """Watches the calls of one handler, and cancels those that exceed ``timeout=``."""

    def __init__(
        self,
        handler: Handler[..., object],
        timers: Timers,
        on_given_up: Callable[[PartitionDriver, HandlerError], object],
    ) -> None:
        self._on_given_up = on_given_up
        """Called with a partition that stops while a thread still runs its call."""
        self.name = handler.__name__
        self.group = ""
        """The group of the handler."""
        self._handler = handler
        self._timers = timers
        self.timeout_seconds = timeout = handler.spec.timeout
        self._in_threads = not handler.signature.is_async
        self._interval_seconds = _LONGEST_INTERVAL_SECONDS
        if timeout is not None:
            self._interval_seconds = min(timeout / _INTERVALS_PER_TIMEOUT, _LONGEST_INTERVAL_SECONDS)
        self._callers: dict[Caller, None] = {}
        self._waiting: dict[Calling, float] = {}
        """Callers whose calls wait on purpose, and since when."""
        self._wake: anyio.Event | None = None
        """Set while no calls are made and the watch sleeps."""

    def begins(self, one: Caller) -> None:
        """From now on it may make calls."""
        one.seen = None
        self._callers[one] = None
        if self._wake is not None:
            self._wake.set()

    def ends(self, one: Caller) -> None:
        """It makes no calls for now."""
        self._callers.pop(one, None)
        self._waiting.pop(one, None)

    def waits(self, one: Calling) -> None:
        self._waiting[one] = self._timers.current_time()

    def goes_on(self, one: Calling) -> None:
        began = self._waiting.pop(one, None)
        if began is not None and (caller := cast("Caller", one)) in self._callers:
            caller.since += self._timers.current_time() - max(began, caller.since)

    async def run(self) -> None:
        """Look at all calls, for ever. Raises HandlerError for one in a thread that takes too long ("crash")."""
        while True:
            if not self._callers:
                self._wake = anyio.Event()
                await self._wake.wait()
                self._wake = None
            await self._timers.sleep(self._look())

    def _look(self) -> float:
        """Check all calls once. Return the seconds until the next check."""
        now, timeout = self._timers.current_time(), self.timeout_seconds
        pause = self._interval_seconds
        for one in list(self._callers):
            marker = one.marker
            if marker is None or marker != one.seen:
                one.seen, one.since, one.is_told = marker, now, False
            if marker is None or timeout is None or one.is_told or one in self._waiting:
                continue
            left = one.since + timeout - now
            if left <= 0:
                one.is_told = True
                self._is_late(one)
            else:
                pause = min(pause, left)
        return pause

    def _is_late(self, one: Caller) -> None:
        timeout = self.timeout_seconds
        assert timeout is not None
        if not self._in_threads:
            one.is_too_late()
        elif self._handler.spec.on_error == "skip":
            logger.warning(
                "handler %r: %s takes longer than timeout=%s s in its thread, where it cannot be cancelled: "
                "records after it wait", self._handler.__name__, _named(one.where), timeout,
            )  # fmt: skip
        else:
            driver = one.give_up(timeout)
            if driver is not None and driver.error is not None:
                self._on_given_up(driver, driver.error)

    def at_work(self) -> list[AtWork]:
        """Return the records whose calls are in flight."""
        now = self._timers.current_time()
        found: list[AtWork] = []
        for one in self._callers:
            where = one.where
            if where is not None and (marker := one.marker) is not None:
                found.append(AtWork(*where, one.since if marker == one.seen else now))
        return sorted(found)

    async def run_in_order(self, dispatch: Dispatch, driver: PartitionDriver, call: Call) -> None:
        """Handle the records of a call in order, up to where it has to end.

        A record that takes too long is skipped, or stops the partition, depending on ``on_error``.
        """
        caller, first, times = driver.caller, call.at, dispatch.times
        if caller is None:  # all calls share it, so that their contexts are equal
            caller = driver.caller = Caller(dispatch, driver.call_loop)
            caller.driver = driver
            begin_here(self, caller)
        caller.call, caller.is_late = call, False
        here.set(caller)
        self.begins(caller)
        began, was_each = times.now(), times.is_each
        try:
            if self.timeout_seconds is None or self._in_threads:
                await dispatch.run(driver, call)
            else:
                with anyio.CancelScope() as caller.scope:
                    await dispatch.run(driver, call)
                    # A call that ended in the very turn in which it was cancelled comes here: its task was about to go
                    # on already. `Dispatch.run` then looked where the call has to end and returned. It was in time.
                    caller.is_late = False
        finally:
            here.set(None)
            self.ends(caller)
            times.ran(began, call.at - first, was_each)
        if caller.is_late:
            caller.pass_over(self.timeout_seconds or 0)
        caller.call = None  # its records may be large


def _named(where: tuple[TopicPartition, int] | None) -> str:
    return "a call" if where is None else f"{where[0]} offset {where[1]}"
