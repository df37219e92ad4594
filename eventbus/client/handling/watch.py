"""How long calls take: one task looks at all calls of a handler at intervals, and knows those that take too long.

It compares what it sees with what it saw before; a call costs nothing. A call is met at most one interval after it
began, so that it is late at most an interval after its time is over, and never before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.here import Calling, Member, begin_here, here
from eventbus.client.handling.lane import Lane, Taken
from eventbus.client.handling.work_actions import Cursor
from eventbus.errors import HandlerError
from eventbus.types import FetchedRecords, TopicPartition

logger = logging.getLogger("eventbus.runner")

_LONGEST_INTERVAL_SECONDS = 1.0
_INTERVALS_PER_TIMEOUT = 20
"""A call is cancelled within 5 % of its timeout, plus what the event loop is late."""


class AtWork(NamedTuple):
    """A record whose handler is at work."""

    topic_partition: TopicPartition
    offset: int
    since: float
    """Seconds on the backend's timers, known to the interval of the watch: one second at most."""


class Watched(Calling, Protocol):
    """What makes calls, and how the watch sees it."""

    @property
    def marker(self) -> object | None:
        """Another value for each call; None while there is none."""
        ...

    @property
    def where(self) -> tuple[TopicPartition, int] | None:
        """Partition and offset of the record at work."""
        ...

    def is_too_late(self) -> None:
        """Cancel the call at work and begin no other inside the scope that is cancelled."""
        ...

    def give_up(self, dispatch: Dispatch, seconds: float) -> Lane | None:
        """The call at work is in a thread and cannot be cancelled: its lane is in error from now on."""
        ...


class _Seen:
    """What was seen of one that makes calls."""

    __slots__ = ("is_told", "marker", "since")

    def __init__(self) -> None:
        self.marker: object | None = None
        self.since = 0.0
        self.is_told = False


class LaneCall:
    """Records of a lane being handled in order: one `Dispatch.run`."""

    __slots__ = ("_cursor", "_lane", "late", "member", "scope", "task_id")

    def __init__(self, lane: Lane, cursor: Cursor) -> None:
        self._lane = lane
        self._cursor = cursor
        self.member: Member | None = None
        self.task_id = 0
        self.scope = anyio.CancelScope()
        self.late: object | None = None
        """The marker of a call that was cancelled because it took too long."""

    @property
    def marker(self) -> object | None:
        cursor = self._cursor
        return None if cursor.is_resting or self._lane.call_loop.is_over else (cursor.at, cursor.recalls)

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        cursor = self._cursor
        return None if cursor.is_resting or cursor.is_over else (cursor.records, cursor.indexes[cursor.at])

    @property
    def where(self) -> tuple[TopicPartition, int] | None:
        return None if (at := self.at) is None else (self._lane.topic_partition, at[0].offsets[at[1]])

    def is_too_late(self) -> None:
        self.late = self.marker
        self._lane.stopping = True
        self.scope.cancel()

    def give_up(self, dispatch: Dispatch, seconds: float) -> Lane | None:
        cursor = self._cursor
        self._lane.given_up_at = cursor.offset(cursor.at)
        if not dispatch.timed_out(self._lane, cursor.records, dispatch.records_at(cursor), seconds):
            self._lane.stopping = True
        return self._lane


class Watch:
    """Of one handler."""

    def __init__(
        self,
        handler: Handler[..., object],
        dispatch: Dispatch,
        timers: Timers,
        on_given_up: Callable[[Lane, HandlerError], object],
    ) -> None:
        self._on_given_up = on_given_up
        """Called with a lane that stops while a thread is at work in it."""
        self.name = handler.__name__
        self.group = ""
        """Whose member makes the calls."""
        self._handler = handler
        self._dispatch = dispatch
        self._timers = timers
        self.timeout_seconds = timeout = handler.spec.timeout
        self._in_threads = not handler.signature.is_async
        self._interval_seconds = _LONGEST_INTERVAL_SECONDS
        if timeout is not None:
            self._interval_seconds = min(timeout / _INTERVALS_PER_TIMEOUT, _LONGEST_INTERVAL_SECONDS)
        self._seen: dict[Watched, _Seen] = {}
        self._waiting: dict[Calling, float] = {}
        """Those whose calls wait on purpose, and since when."""
        self._wake: anyio.Event | None = None
        """While nobody makes calls: the watch sleeps."""

    def begins(self, one: Watched) -> None:
        """From now on it may make calls."""
        self._seen[one] = _Seen()
        if self._wake is not None:
            self._wake.set()

    def ends(self, one: Watched) -> None:
        """It makes no calls for now."""
        self._seen.pop(one, None)
        self._waiting.pop(one, None)

    def waits(self, one: Calling) -> None:
        self._waiting[one] = self._timers.current_time()

    def goes_on(self, one: Calling) -> None:
        began = self._waiting.pop(one, None)
        if began is not None and (seen := self._seen.get(cast("Watched", one))) is not None:
            seen.since += self._timers.current_time() - max(began, seen.since)

    async def run(self) -> None:
        """Look at all calls, for ever. Raises HandlerError for one in a thread that takes too long ("crash")."""
        while True:
            if not self._seen:
                self._wake = anyio.Event()
                await self._wake.wait()
                self._wake = None
            await self._timers.sleep(self._look())

    def _look(self) -> float:
        """One look at all calls; seconds until the next one."""
        now, timeout = self._timers.current_time(), self.timeout_seconds
        pause = self._interval_seconds
        for one, seen in list(self._seen.items()):
            marker = one.marker
            if marker is None or marker != seen.marker:
                seen.marker, seen.since, seen.is_told = marker, now, False
            if marker is None or timeout is None or seen.is_told or one in self._waiting:
                continue
            left = seen.since + timeout - now
            if left <= 0:
                seen.is_told = True
                self._is_late(one)
            else:
                pause = min(pause, left)
        return pause

    def _is_late(self, one: Watched) -> None:
        timeout = self.timeout_seconds
        assert timeout is not None
        if not self._in_threads:
            one.is_too_late()
        elif self._handler.spec.on_error == "skip":
            logger.warning(
                "handler %r: %s takes longer than timeout=%s s in its thread, where it cannot be cancelled: "
                "what is behind it waits", self._handler.__name__, _named(one.where), timeout,
            )  # fmt: skip
        else:
            lane = one.give_up(self._dispatch, timeout)
            if lane is not None and lane.error is not None:
                self._on_given_up(lane, lane.error)

    def at_work(self) -> list[AtWork]:
        """The records whose handlers are at work now."""
        now = self._timers.current_time()
        found: list[AtWork] = []
        for one, seen in self._seen.items():
            where = one.where
            if where is not None and (marker := one.marker) is not None:
                found.append(AtWork(*where, seen.since if marker == seen.marker else now))
        return sorted(found)

    def timed_out(self, dispatch: Dispatch, lane: Lane, chunk: FetchedRecords, indexes: Sequence[int]) -> bool:
        """A call was cancelled because it took too long. True: go on behind it. Raises HandlerError ("crash")."""
        assert self.timeout_seconds is not None
        return dispatch.timed_out(lane, chunk, indexes, self.timeout_seconds)

    async def run_in_order(self, dispatch: Dispatch, lane: Lane, cursor: Cursor, taken: Taken | None = None) -> None:
        """Handle the records from the cursor on, which ends at the first one not begun if the lane stops or fails.

        A call that takes too long is passed over, or stops the lane, as ``on_error`` says.
        """
        lane.call = cursor
        try:
            while not cursor.is_over:
                call, first = LaneCall(lane, cursor), cursor.at
                begin_here(self, call)
                self.begins(call)
                times = dispatch.times
                began, was_each = times.now(), times.is_each
                try:
                    if self.timeout_seconds is None or self._in_threads:
                        await dispatch.run(lane, cursor, taken)
                    else:
                        with call.scope:
                            await dispatch.run(lane, cursor, taken)
                finally:
                    here.set(None)
                    self.ends(call)
                    times.ran(began, cursor.at - first, was_each)
                if call.late is None:
                    break
                lane.stopping = lane.closing
                if call.marker == call.late and not cursor.is_over:
                    indexes = dispatch.records_at(cursor)
                    if not self.timed_out(dispatch, lane, cursor.records, indexes):
                        break
                    self._pass_over(dispatch, lane, cursor, indexes, taken)
                # Else it ended in the very turn in which it was cancelled: its task was about to go on already, and saw
                # nothing of it; `Dispatch.run` then looked at ``stopping`` and returned. It has finished, in time.
                if lane.closing or lane.error is not None:
                    break
            if cursor.is_over and taken is None:
                lane.handled(cursor.next_offset)
        finally:
            lane.ends(cursor)

    def _pass_over(
        self, dispatch: Dispatch, lane: Lane, cursor: Cursor, indexes: Sequence[int], taken: Taken | None
    ) -> None:
        """The records of a call are finished, for better or worse."""
        output = dispatch.left_behind(cursor.records, indexes[0])
        if taken is None:
            lane.handled(cursor.records.offsets[indexes[-1]] + 1, output)
        else:
            for index in indexes:
                taken.handled(index, output)
        cursor.at += len(indexes)
        cursor.is_alone = False


def _named(where: tuple[TopicPartition, int] | None) -> str:
    return "a call" if where is None else f"{where[0]} offset {where[1]}"
