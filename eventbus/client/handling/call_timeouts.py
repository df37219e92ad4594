"""Enforce ``timeout=``: one task checks all calls of a handler at intervals, and cancels those that take too long.

It compares the state of each caller with the state at the previous check, so a call itself costs nothing. The first
check of a call comes at most one interval after it began. So a call is cancelled up to one interval late, never early.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, cast

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.handling.call_loop import CallLoop
from eventbus.client.handling.current_record import CurrentCaller, RunningHandler, current_caller, set_current_caller
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Call
from eventbus.errors import HandlerError
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.runner")

_LONGEST_INTERVAL_SECONDS = 1.0
_INTERVALS_PER_TIMEOUT = 20
"""A call is cancelled within 5 % of its timeout, plus what the event loop is late."""


class InFlight(NamedTuple):
    """A record whose call is in flight."""

    topic_partition: TopicPartition
    offset: int
    since: float
    """Seconds on the backend's timers, exact to one check interval: one second at most."""


class Caller:
    """A task that makes calls: of a partition in order, or of any partition of the handler."""

    __slots__ = (
        "call", "call_loop", "checked", "dispatch", "driver", "handler", "is_late", "is_reported", "scope", "since",
        "task_id",
    )  # fmt: skip

    def __init__(self, dispatch: Dispatch, call_loop: CallLoop) -> None:
        self.dispatch = dispatch
        self.call_loop = call_loop
        self.driver: PartitionDriver | None = None
        self.call: Call | None = None
        """The records of its current call."""
        self.handler: RunningHandler | None = None
        self.task_id = 0
        self.scope = anyio.CancelScope()
        self.is_late = False
        """The scope is cancelled because a record's call took too long."""
        # The state at the last check.
        self.checked: object | None = None
        """The marker of the call."""
        self.since = 0.0
        self.is_reported = False

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

    def cancel(self) -> None:
        """Cancel the record's call, and begin no other call in the cancelled scope."""
        if self.driver is not None and self.call is not None:
            self.is_late = True
            self.driver.work.cut(self.call)
            self.scope.cancel()

    def fail_cancelled(self, seconds: float) -> None:
        """Fail the record whose call was cancelled by its timeout, and continue after it or raise HandlerError."""
        driver, call = self.driver, self.call
        if not self.is_late or driver is None or call is None or call.is_over or call.is_resting:
            return
        if self.dispatch.timed_out(driver, call, seconds):
            self.dispatch.continue_after(driver, call)

    def abandon(self, seconds: float) -> PartitionDriver | None:
        """Abandon a call in a thread, which cannot be cancelled: its result is ignored."""
        driver, call = self.driver, self.in_flight
        if driver is not None and call is not None:
            if not self.dispatch.timed_out(driver, call, seconds):
                driver.work.cut(call)
            driver.wake.set()
        return driver


class CallTimeouts:
    """The time limit of one handler's calls."""

    def __init__(
        self,
        handler: Handler[..., object],
        timers: Timers,
        on_abandoned: Callable[[PartitionDriver, HandlerError], object],
    ) -> None:
        self._on_abandoned = on_abandoned
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
        self._waiting: dict[CurrentCaller, float] = {}
        """Callers whose calls wait on purpose, and since when."""
        self._wake: anyio.Event | None = None
        """Not None while no calls are made and `run` sleeps."""

    def add(self, caller: Caller) -> None:
        """Check this caller from now on, because it may make calls."""
        caller.checked = None
        self._callers[caller] = None
        if self._wake is not None:
            self._wake.set()

    def remove(self, caller: Caller) -> None:
        """Stop checking this caller until it makes calls again."""
        self._callers.pop(caller, None)
        self._waiting.pop(caller, None)

    def pause(self, caller: CurrentCaller) -> None:
        self._waiting[caller] = self._timers.current_time()

    def resume(self, caller: CurrentCaller) -> None:
        began = self._waiting.pop(caller, None)
        if began is not None and (paused := cast("Caller", caller)) in self._callers:
            paused.since += self._timers.current_time() - max(began, paused.since)

    async def run(self) -> None:
        """Check all calls until cancelled. Raises HandlerError if a call in a thread takes too long ("crash")."""
        while True:
            if not self._callers:
                self._wake = anyio.Event()
                await self._wake.wait()
                self._wake = None
            await self._timers.sleep(self._check())

    def _check(self) -> float:
        """Check all calls once. Return the seconds until the next check."""
        now, timeout = self._timers.current_time(), self.timeout_seconds
        pause = self._interval_seconds
        for caller in list(self._callers):
            marker = caller.marker
            if marker is None or marker != caller.checked:
                caller.checked, caller.since, caller.is_reported = marker, now, False
            if marker is None or timeout is None or caller.is_reported or caller in self._waiting:
                continue
            left = caller.since + timeout - now
            if left <= 0:
                caller.is_reported = True
                self._time_out(caller)
            else:
                pause = min(pause, left)
        return pause

    def _time_out(self, caller: Caller) -> None:
        timeout = self.timeout_seconds
        assert timeout is not None
        if not self._in_threads:
            caller.cancel()
        elif self._handler.spec.on_error == "skip":
            logger.warning(
                "handler %r: %s takes longer than timeout=%s s in its thread, where it cannot be cancelled: "
                "records after it wait", self._handler.__name__, _named(caller.where), timeout,
            )  # fmt: skip
        else:
            driver = caller.abandon(timeout)
            if driver is not None and driver.error is not None:
                self._on_abandoned(driver, driver.error)

    def in_flight(self) -> list[InFlight]:
        """Return the records whose calls are in flight."""
        now = self._timers.current_time()
        records: list[InFlight] = []
        for caller in self._callers:
            where = caller.where
            if where is not None and (marker := caller.marker) is not None:
                records.append(InFlight(*where, caller.since if marker == caller.checked else now))
        return sorted(records)

    async def run_in_order(self, dispatch: Dispatch, driver: PartitionDriver, call: Call) -> None:
        """Handle the records of a call in order, up to where it has to end.

        A record that takes too long is skipped, or stops the partition, depending on ``on_error``.
        """
        caller, first, times = driver.caller, call.at, dispatch.times
        if caller is None:  # all calls share one caller, so that their contexts are equal
            caller = driver.caller = Caller(dispatch, driver.call_loop)
            caller.driver = driver
            set_current_caller(self, caller)
        caller.call, caller.is_late = call, False
        current_caller.set(caller)
        self.add(caller)
        began, was_each = times.now(), times.is_each
        try:
            if self.timeout_seconds is None or self._in_threads:
                await dispatch.run(driver, call)
            else:
                with anyio.CancelScope() as caller.scope:
                    await dispatch.run(driver, call)
                    # A call that ended in the very turn of the event loop in which it was cancelled comes here, because
                    # its task was scheduled already. `Dispatch.run` ended the call there and returned. It was in time.
                    caller.is_late = False
        finally:
            current_caller.set(None)
            self.remove(caller)
            times.ran(began, call.at - first, was_each)
        if caller.is_late:
            caller.fail_cancelled(self.timeout_seconds or 0)
        caller.call = None  # its records may be large


def _named(where: tuple[TopicPartition, int] | None) -> str:
    return "a call" if where is None else f"{where[0]} offset {where[1]}"
