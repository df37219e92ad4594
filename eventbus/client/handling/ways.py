"""The ways a lane handles what was fetched: in order, committed before, acknowledged by hand, or beside one another.

The fifth, in transactions, is `exactly_once`.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import anyio
import anyio.lowlevel

from eventbus.backends.base import BackendConsumer
from eventbus.backends.clock import Timers
from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.lane import Lane, Taken, nothing_before, part_of
from eventbus.client.handling.lane_commits import REBALANCED, LaneCommits
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.turns import Turns
from eventbus.client.handling.unfinished import described, fate_of, log_lost, unfinished_of
from eventbus.client.handling.watch import Watch
from eventbus.client.handling.work_actions import Call, Commit, Cursor, Policy
from eventbus.client.handling.workers import Backlog, Workers
from eventbus.errors import EventBusError, HandlerError
from eventbus.recovery import EveryKey, Move, Recovery, Stop
from eventbus.types import FetchedRecords, OffsetAndMetadata

logger = logging.getLogger("eventbus.runner")

_MOST_TAKEN = 2_000
"""Records given to the workers in one go; then others run."""
_FETCHES_AHEAD = 4
"""A partition runs ahead of its first unfinished record by at most so many fetches of `max_partition_fetch_bytes`."""
_FETCHES_UNACKNOWLEDGED = 16
"""The same where records are acknowledged by hand: the handler may collect many before it acknowledges them."""
_PATIENCE_SECONDS = 10.0
"""How long nothing is acknowledged, while nothing more is begun, before that is logged."""
_LONGEST_PAUSE_SECONDS = 5.0


class Way(Protocol):
    """One lane's."""

    async def run(self, chunk: FetchedRecords) -> None:
        """Begin all records, or as many as the lane may; what was begun need not have ended on return."""
        ...

    async def advance_to(self, next_offset: int) -> None:
        """Everything fetched before has been `run`, and nothing from there to ``next_offset`` is for the handler."""
        ...

    async def rest(self) -> None:
        """Return when the lane is woken."""
        ...

    async def finish(self) -> None:
        """The lane is closing, or in error: return when all that was begun has ended."""
        ...

    async def aclose(self) -> None:
        """The lane ends here, also when it was cancelled. On return nothing of it is at work."""
        ...


class Shared:
    """What the lanes of one handler share."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        dispatch: Dispatch,
        consumer: BackendConsumer,
        commits: LaneCommits,
        timers: Timers,
        flush: Callable[[], Awaitable[None]],
        settled: Callable[[Lane], Awaitable[None]],
        budget_seconds: float,
        fetch_bytes: int,
        on_given_up: Callable[[Lane, HandlerError], object],
        unblocked: Callable[[Lane], Awaitable[bool]],
        moved: Callable[[Lane], Awaitable[bool]],
        recovery: Recovery | None,
    ) -> None:
        self.handler = handler
        self.dispatch = dispatch
        self.consumer = consumer
        self.commits = commits
        self.timers = timers
        self.flush = flush
        self.settled = settled
        """Returns when no rebalance is under way, or the lane is closing."""
        self.unblocked = unblocked
        """Returns when no record of the lane has to wait for an earlier one; False: the lane stops meanwhile."""
        self.moved = moved
        """Returns when what failed so far is stored elsewhere, as far as later records have to wait for that. False:
        the lane stops meanwhile."""
        self.recovery = recovery
        self.budget_seconds = budget_seconds
        """How long a partition that moves waits for what is at work."""
        self.watch = Watch(handler, dispatch, timers, on_given_up)
        spec = handler.spec
        self.most_bytes_ahead = fetch_bytes * (_FETCHES_UNACKNOWLEDGED if spec.ack == "manual" else _FETCHES_AHEAD)
        in_threads = not handler.signature.is_async
        limited = spec.concurrency is not None and spec.is_ordered and not in_threads
        self.turns = Turns(spec.concurrency, timers) if limited and spec.concurrency is not None else None
        """Plain functions wait for one of their threads instead."""
        self.workers: Workers | None = None
        if not spec.is_ordered:
            by_key = spec.order == "key"
            self.workers = Workers(dispatch, self.watch, spec.concurrency or 1, by_key=by_key, in_threads=in_threads)

    def turn(self, lane: Lane) -> AbstractAsyncContextManager[None]:
        """Around the work of a lane, where only so many may be at work."""
        return nullcontext() if self.turns is None else self.turns.of(lane)

    def way_of(self, lane: Lane, tasks: ContainedTasks) -> Way:
        spec = self.handler.spec
        if self.workers is not None:
            return Beside(lane, self, self.workers, tasks)
        if spec.ack == "manual":
            return ByHand(lane, self)
        return InOrder(lane, self)


class InOrder:
    """Performs the calls of a partition in order, at least once or at most once. `PartitionWork` decides what is next.

    At least once, a record is finished when its call has returned and its outputs are stored.

    At most once, a slice of records is committed before its calls. Whatever ends a slice early gives back the records
    that were not begun: the next commit takes the offset back to the first of them. So only the records in flight are
    lost, or all of the slice where the process dies. A partition that was lost is another matter. Its next owner begins
    after the slice and nothing can be committed any more, so the slice is handled to its end.
    """

    def __init__(self, lane: Lane, shared: Shared) -> None:
        spec, recovery = shared.handler.spec, shared.recovery
        self._lane = lane
        self._shared = shared
        self._is_at_most_once = spec.delivery == "at-most-once"
        policy = Policy(
            delivery="at-most-once" if self._is_at_most_once else "at-least-once",
            commit_every=spec.commit_every,
            max_unfinished=sys.maxsize,
            retry_order="none" if recovery is None else recovery.order,
            store_forwards_first=spec.tx is not None,
        )
        self._work = lane.work = PartitionWork(policy, LaneKeys(lane))
        self._retry_topic = None if recovery is None else recovery.retry_topic
        self._call: Call | None = None
        """The call in flight."""
        if self._is_at_most_once:
            lane.cut_off = self._cut_off
        else:
            lane.report = self._report

    async def run(self, chunk: FetchedRecords) -> None:
        lane, shared, work = self._lane, self._shared, self._work
        work.fetched(chunk)
        with at_work(lane):
            while True:
                call = None if lane.error is not None else work.next_call()
                if call is not None:
                    await self._handle(call)
                elif lane.closing or lane.error is not None or not await self._goes_on():
                    break
            if not (lane.closing or lane.error):
                lane.handled(chunk.next_offset)
            if lane.closing:
                await shared.flush()  # somebody waits for this lane: do not let outputs linger
            await lane.outputs_stored()
        if lane.error is not None and self._is_at_most_once:
            await shared.commits.attempt([lane])

    async def _goes_on(self) -> bool:
        """Return True when there may be another call, False if there is none now."""
        lane, shared, work = self._lane, self._shared, self._work
        if self._is_at_most_once:
            return await self._commit()
        if work.waits_for_commit:
            return await shared.moved(lane)
        return work.waits_as_a_whole and await shared.unblocked(lane)

    async def _commit(self) -> bool:
        """At most once: store the next commit. False: there is none, or the partition moves away."""
        commit, is_stored = self._work.next_commit(), True
        if not isinstance(commit, Commit):
            return False
        try:
            is_stored = await commit_now(self._lane, self._shared, commit.next_offset)
        finally:  # the log may have stored a commit whose wait is cancelled
            (self._work.commit_stored if is_stored else self._work.commit_failed)(commit)
        return is_stored

    async def _handle(self, call: Call) -> None:
        lane, shared, work = self._lane, self._shared, self._work
        self._call = call
        async with shared.turn(lane):
            lane.stopping = lane.closing and not lane.abandoned
            await shared.watch.run_in_order(shared.dispatch, lane, call)
        lane.stopping = lane.closing
        if self._is_at_most_once:
            work.returned(call, call.at)
            if lane.error is not None and not call.is_over:
                work.raised(call, call.at, Stop(), count=len(shared.dispatch.records_at(call)), error=lane.error)
        else:
            if call.indexes[-1] + 1 == len(call.records) and call.is_over and not lane.closing:
                await lane.outputs_stored()  # all of them are then reported together
            self._report()
            self._hand_in(call)
        work.ended(call)
        self._call = None  # its records may be large
        if shared.handler.spec.commit_every and not self._is_at_most_once and work.wants_commit:
            await shared.commits.attempt()

    def _report(self) -> None:
        """Report the records of the call in flight that are finished."""
        lane, work, call = self._lane, self._work, self._call
        if call is None or not call.is_open:
            return
        offsets, finished = call.column(call.records.offsets), lane.finished
        for offset in sorted(offset for offset in lane.moves if offset < finished):
            self._move(call, bisect_left(offsets, offset))
        work.returned(call, bisect_left(offsets, finished))

    def _hand_in(self, call: Call) -> None:
        """Report the records whose outputs are in flight."""
        lane = self._lane
        offsets = call.column(call.records.offsets) if lane.in_flight or lane.moves else ()
        for next_offset, output in lane.in_flight:
            at = bisect_left(offsets, next_offset) - 1
            if at >= 0 and offsets[at] in lane.moves:
                self._move(call, at)
            elif at >= 0:
                self._work.returned(call, at + 1, id(output))

    def _move(self, call: Call, at: int) -> None:
        outgoing = self._lane.moves.pop(call.offset(at))
        kind = "retry" if outgoing.topic == self._retry_topic else "dead-letter"
        self._work.raised(call, at, Move(outgoing, kind))

    def _cut_off(self) -> None:
        """What is in flight was cancelled, or is left behind in its thread. The next commit gives back the rest."""
        lane, work, call = self._lane, self._work, self._call
        if call is not None and call.is_open:
            # A thread says which record it begins before it looks whether to stop. It looks at the end of each call,
            # so it begins none after the record found below, whichever of the two comes first.
            lane.stopping = True
            first = call.at
            end = first if call.is_resting else first + len(self._shared.dispatch.records_at(call))
            end = max(end, call.called)
            if not lane.closing and end > first:  # a stop or rebalance would have reported it
                logger.error(
                    "handler %r: it was cancelled, and %s is lost. It was committed before it was handled",
                    self._shared.handler.__name__,
                    described(lane.topic_partition, call.column(call.records.offsets)[first:end]),
                )  # fmt: skip
            work.returned(call, first)
            work.ended(call, end - first)
        work.revoked()
        if lane.abandoned:
            log_lost(self._shared.handler, lane)

    async def advance_to(self, next_offset: int) -> None:
        await self.run(nothing_before(self._lane.topic_partition, next_offset))

    async def rest(self) -> None:
        await self._lane.wake.wait()

    async def finish(self) -> None: ...

    async def aclose(self) -> None:
        if self._is_at_most_once:
            self._cut_off()


async def commit_now(lane: Lane, shared: Shared, next_offset: int) -> bool:
    """Commit, again and again until it is stored. False: the lane is closing, and another member commits next."""
    pause = shared.handler.spec.commit_interval_ms / 1000
    while not lane.closing:
        try:
            with shared.commits.asked():
                await shared.consumer.commit({lane.topic_partition: OffsetAndMetadata(next_offset)})
        except REBALANCED as error:
            logger.debug("handler %r: not committed yet: %s", shared.handler.__name__, error)
            await shared.settled(lane)
        except EventBusError as error:
            if str(error) != shared.commits.error:
                logger.error(
                    "handler %r: the offset %d of %s is not committed, so what is below it is not handled yet: %s",
                    shared.handler.__name__, next_offset, lane.topic_partition, error,
                )  # fmt: skip
            shared.commits.failed(error)
        else:
            lane.was_committed(next_offset)
            shared.commits.succeeded()
            return True
        lane.wake = anyio.Event()
        if not lane.closing:
            with shared.timers.move_on_after(pause):
                await lane.wake.wait()
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return False


class LaneKeys:
    """The keys of a partition that wait for a later try, as its lane sees them."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane

    def __len__(self) -> int:
        return len(self._lane.held or ())

    def __contains__(self, key: bytes | None) -> bool:
        return self._lane.holds(key)

    def block(self, records: FetchedRecords, index: int) -> None:
        self._lane.hold(records.record(index))

    def unblock(self, records: FetchedRecords, index: int) -> None:
        self._lane.unhold(records.record(index))


class _Ahead:
    """Ways that begin records while earlier ones are not finished, as far as `max_unfinished` and a size allow.

    The size keeps large records from taking more memory than in order. It never keeps a worker idle: as many records as
    the handler's ``concurrency`` may be begun whatever their size.
    """

    def __init__(self, lane: Lane, shared: Shared) -> None:
        self._lane = lane
        self._shared = shared
        self._is_told = False

    async def _next(self, chunk: FetchedRecords, start: int) -> Taken | None:
        """As many records as may be begun now; None: the lane is closing or in error."""
        lane, spec, most_bytes = self._lane, self._shared.handler.spec, self._shared.most_bytes_ahead
        most, least_at_once, wanted = spec.max_unfinished, spec.concurrency or 1, len(chunk) - start
        least = min(wanted, max(most // 4, 1))
        with at_work(lane):  # what waits for room is nowhere else: the lane is not idle
            while lane.error is None and not lane.closing:
                room = most - lane.unfinished
                is_small = lane.taken_bytes < most_bytes
                if not is_small:
                    room = min(room, least_at_once - lane.unfinished)
                if room >= (least if is_small else 1):
                    return lane.take(part_of(chunk, start, start + min(room, wanted, _MOST_TAKEN)))
                lane.wake = anyio.Event()
                # Half of them, so that the lane does not run empty before the next records are begun.
                await self._wait_for_room(most - least if is_small else max(lane.unfinished // 2, least_at_once - 1))
        return None

    async def _wait_for_room(self, unfinished: int) -> None:
        if self._is_told or self._shared.handler.spec.ack != "manual":
            await self._wait(unfinished)
            return
        with self._shared.timers.move_on_after(_PATIENCE_SECONDS) as patience:
            await self._wait(unfinished)
        if patience.cancelled_caught:
            self._is_told = True
            lane, handler = self._lane, self._shared.handler
            logger.warning(
                "handler %r: no further record of %s is begun. %d records (%d bytes) wait for their acknowledgement. "
                "At most max_unfinished=%d records and %d bytes (%d times max_partition_fetch_bytes) may wait. "
                "Acknowledge earlier, or raise the option whose limit is reached",
                handler.__name__, lane.topic_partition, lane.unfinished, lane.taken_bytes, handler.spec.max_unfinished,
                self._shared.most_bytes_ahead, _FETCHES_UNACKNOWLEDGED,
            )  # fmt: skip

    async def advance_to(self, next_offset: int) -> None:
        self._lane.take(nothing_before(self._lane.topic_partition, next_offset))  # finished after what was taken before

    async def rest(self) -> None:
        await self._wait(0)

    async def _wait(self, unfinished: int) -> None:
        """Return when the lane is woken, or no more records than that are unfinished."""
        if self._lane.unfinished > unfinished:
            self._lane.wake_when(unfinished)
        await self._lane.wake.wait()

    async def _acknowledged(self) -> None:
        """Return when all that was begun is acknowledged, or the time for that is over."""
        lane, handler = self._lane, self._shared.handler
        with self._shared.timers.move_on_after(self._shared.budget_seconds) as time:
            while lane.unfinished and lane.error is None and not lane.abandoned:
                lane.wake = anyio.Event()
                lane.wake_when(0)
                await lane.wake.wait()
        if time.cancelled_caught:
            logger.warning(
                "handler %r: %s not acknowledged within drain_timeout_ms=%d: %s",
                handler.__name__, unfinished_of(handler, lane, self._shared.dispatch, ()),
                handler.spec.drain_timeout_ms, fate_of(handler),
            )  # fmt: skip


class ByHand(_Ahead):
    """One call after the other; a record is finished when it is acknowledged, in the call or later."""

    async def run(self, chunk: FetchedRecords) -> None:
        lane, shared = self._lane, self._shared
        start = 0
        while start < len(chunk):
            taken = await self._next(chunk, start)
            if taken is None:
                return
            start += len(taken.chunk)
            cursor = Cursor(taken.chunk, range(len(taken.chunk)))
            with at_work(lane):
                while not (cursor.is_over or lane.closing or lane.error):
                    if isinstance(lane.held, EveryKey) and not await shared.unblocked(lane):
                        break
                    lane.stopping = lane.closing
                    async with shared.turn(lane):
                        await shared.watch.run_in_order(shared.dispatch, lane, cursor, taken)
            if not cursor.is_over and lane.error is None:
                lane.cut(cursor.offset(cursor.at))

    async def finish(self) -> None:
        await self._acknowledged()

    async def aclose(self) -> None: ...


class Beside(_Ahead):
    """By the handler's workers: by key or without any order."""

    def __init__(self, lane: Lane, shared: Shared, workers: Workers, tasks: ContainedTasks) -> None:
        super().__init__(lane, shared)
        self._workers = workers
        self._backlog: Backlog = workers.open(lane)
        self._tasks = tasks
        self._is_settling = False

    async def run(self, chunk: FetchedRecords) -> None:
        start = 0
        while start < len(chunk):
            taken = await self._next(chunk, start)
            if taken is None:
                return
            start += len(taken.chunk)
            self._workers.add(self._backlog, taken)
            await anyio.lowlevel.checkpoint()

    async def _wait(self, unfinished: int) -> None:
        if self._lane.has_outputs and not self._is_settling:
            self._is_settling = True
            self._tasks.start_soon(self._settle)
        await super()._wait(unfinished)

    async def _settle(self) -> None:
        """Records wait for their outputs: that must not keep the lane from taking others."""
        try:
            await self._lane.outputs_stored()
        finally:
            self._is_settling = False
            self._lane.wake.set()

    async def finish(self) -> None:
        lane, backlog = self._lane, self._backlog
        if not (lane.error or lane.abandoned):
            backlog.close()
        while True:
            if lane.error or lane.abandoned:
                backlog.drop()
            if backlog.is_over:
                break
            lane.wake = anyio.Event()
            await lane.wake.wait()
        if lane.has_outputs:
            await self._shared.flush()
            await lane.outputs_stored()
        if self._shared.handler.spec.ack == "manual":
            await self._acknowledged()

    async def aclose(self) -> None:
        lane, backlog = self._lane, self._backlog
        if backlog.is_over:
            return
        self._workers.cancel(backlog)
        with anyio.CancelScope(shield=True):
            while backlog.workers:
                lane.wake = anyio.Event()
                await lane.wake.wait()


@contextmanager
def at_work(lane: Lane) -> Generator[None]:
    lane.at_work = True
    try:
        yield
    finally:
        lane.at_work = False
