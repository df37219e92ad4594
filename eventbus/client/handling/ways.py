"""The ways a lane handles what was fetched: in order, committed before, acknowledged by hand, or beside one another.

The fifth, in transactions, is `exactly_once`.
"""

from __future__ import annotations

import logging
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
from eventbus.client.handling.work_actions import Call, Commit, Policy
from eventbus.client.handling.workers import Backlog, Workers
from eventbus.errors import EventBusError, HandlerError
from eventbus.recovery import EveryKey, Stop
from eventbus.types import FetchedRecords, OffsetAndMetadata

logger = logging.getLogger("eventbus.runner")

_MOST_TAKEN = 2_000
"""Records given to the workers in one go; then others run."""
_LEAST_AHEAD = 64
"""Records looked at for keys that wait: after a failure so many, then twice as many each time, up to a whole fetch."""
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
        moved: Callable[[Lane], Awaitable[bool]] | None,
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
        """Returns when what failed so far is stored elsewhere: before that no later record may be handled, where a
        database says that everything below one is done. False: the lane stops meanwhile. None: it need not be asked."""
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
        if spec.delivery == "at-most-once":
            return AtMostOnce(lane, self)
        return InOrder(lane, self)


class InOrder:
    """One record after the other; finished when its call has returned and its outputs are stored."""

    def __init__(self, lane: Lane, shared: Shared) -> None:
        self._lane = lane
        self._shared = shared
        self._uncommitted = 0

    async def run(self, chunk: FetchedRecords) -> None:
        every = self._shared.handler.spec.commit_every
        if every is None:
            await self._handle(chunk)
            return
        start = 0
        while start < len(chunk) and not (self._lane.closing or self._lane.error):
            end = min(start + every - self._uncommitted, len(chunk))
            await self._handle(part_of(chunk, start, end))
            self._uncommitted += end - start
            start = end
            if self._uncommitted >= every:
                self._uncommitted = 0
                await self._shared.commits.attempt()

    async def _handle(self, chunk: FetchedRecords) -> None:
        lane, shared = self._lane, self._shared
        with at_work(lane):
            if lane.held is not None or shared.moved is not None:
                await self._past_those_held(chunk)
            elif shared.turns is None:
                await shared.watch.run_in_order(shared.dispatch, lane, chunk)
            else:
                await self._in_turns(shared.turns, chunk)
            if lane.closing:
                await shared.flush()  # somebody waits for this lane: do not let outputs linger
            await lane.outputs_stored()

    async def _past_those_held(self, chunk: FetchedRecords) -> None:
        """Records of keys that wait for a next try are put behind it; a failure may add a key, so look again then."""
        lane, shared = self._lane, self._shared
        start, end = 0, len(chunk)
        ahead = end
        while start < end and not (lane.closing or lane.error):
            if shared.moved is not None and not await shared.moved(lane):
                break
            stop = min(start + ahead, end)
            held = held_in(lane, chunk, start, stop)
            if held is None:
                if not await shared.unblocked(lane):
                    return
                continue
            if shared.moved is not None:
                stop, held = _alike(held, start, stop)
            for index in held:
                lane.hold_back(chunk, index)
            piece = part_of(chunk, start, stop, held)
            lane.stopping = lane.closing
            async with shared.turn(lane):
                begun = await shared.watch.run_in_order(shared.dispatch, lane, piece)
            if begun < len(piece):
                start, ahead = bisect_left(chunk.offsets, piece.offsets[begun]), _LEAST_AHEAD
            else:
                start, ahead = stop, 2 * ahead
        lane.stopping = lane.closing

    async def _in_turns(self, turns: Turns, chunk: FetchedRecords) -> None:
        lane, shared = self._lane, self._shared
        start = 0
        while start < len(chunk) and not (lane.closing or lane.error):
            async with turns.of(lane):
                start = await shared.watch.run_in_order(shared.dispatch, lane, chunk, start)

    async def advance_to(self, next_offset: int) -> None:
        self._lane.handled(next_offset)

    async def rest(self) -> None:
        await self._lane.wake.wait()

    async def finish(self) -> None: ...

    async def aclose(self) -> None: ...


class AtMostOnce:
    """Performs the commits and calls of a partition whose records are committed, a slice at a time, before their calls.

    Whatever ends a slice early gives back the records that were not begun: the next commit takes the offset back to
    the first of them. So only the records in flight are lost, or all of the slice where the process dies.

    A partition that was lost is another matter. Its next owner begins after the slice and nothing can be committed any
    more, so the slice is handled to its end.
    """

    def __init__(self, lane: Lane, shared: Shared) -> None:
        self._lane = lane
        self._shared = shared
        policy = Policy(delivery="at-most-once", commit_every=shared.handler.spec.commit_every)
        self._work = lane.work = PartitionWork(policy)
        self._call: Call | None = None
        """The call in flight."""
        lane.cut_off = self._cut_off

    async def run(self, chunk: FetchedRecords) -> None:
        lane, work = self._lane, self._work
        work.fetched(chunk)
        with at_work(lane):
            while True:
                call = work.next_call()
                if call is not None:
                    await self._handle(call)
                elif lane.closing or lane.error is not None or not await self._commit():
                    break
        if lane.error is not None:
            await self._shared.commits.attempt([lane])

    async def _commit(self) -> bool:
        """Store the next commit. False: there is none, or the partition moves away."""
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
        piece, begun, self._call = piece_of(call), 0, call
        while begun < len(piece) and lane.error is None and not (lane.closing and not lane.abandoned):
            async with shared.turn(lane):
                lane.stopping = lane.closing and not lane.abandoned
                begun = await shared.watch.run_in_order(shared.dispatch, lane, piece, begun)
            work.returned(call, begun)
        if lane.error is not None:
            count = shared.dispatch.end_of(piece, begun, lane) - begun
            work.raised(call, begun, Stop(), count=count, error=lane.error)
        work.ended(call)
        if lane.closing:
            await shared.flush()
        await lane.outputs_stored()

    def _cut_off(self) -> None:
        """What is in flight was cancelled, or is left behind in its thread. The next commit gives back the rest."""
        lane, work, call = self._lane, self._work, self._call
        if call is not None and call.is_open:
            # A thread says which record it begins before it looks whether to stop. It looks at the end of each call,
            # so it begins none after the record found below, whichever of the two comes first.
            lane.stopping = True
            offsets = [call.records.offsets[index] for index in call.indexes]
            first = end = max(call.done, bisect_left(offsets, lane.reached), lane.index)
            if lane.index >= 0 and first < len(offsets):  # -1: the thread has not begun
                end = self._shared.dispatch.end_of(piece_of(call), first, lane)
            end = max(end, lane.ran)
            if not lane.closing and end > first:  # a stop or rebalance would have reported it
                logger.error(
                    "handler %r: it was cancelled, and %s is lost. It was committed before it was handled",
                    self._shared.handler.__name__, described(lane.topic_partition, offsets[first:end]),
                )  # fmt: skip
            work.returned(call, first)
            work.ended(call, end - first)
        work.revoked()
        if lane.abandoned:
            log_lost(self._shared.handler, lane)

    async def advance_to(self, next_offset: int) -> None:
        await self.run(nothing_before(self._lane.topic_partition, next_offset))
        self._lane.handled(next_offset)

    async def rest(self) -> None:
        await self._lane.wake.wait()

    async def finish(self) -> None: ...

    async def aclose(self) -> None:
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


def held_in(lane: Lane, chunk: FetchedRecords, start: int, end: int | None = None) -> set[int] | None:
    """Records from ``start`` on that wait for earlier ones; None: all of them do, for as long as anything waits."""
    held = lane.held
    if not held:
        return set()
    if isinstance(held, EveryKey):
        return None
    keys = chunk.keys
    return {index for index in range(start, len(chunk) if end is None else end) if keys[index] in held}


def _alike(held: set[int], start: int, stop: int) -> tuple[int, set[int]]:
    """As many records from ``start`` on as are all held, or all not; and those that are."""
    is_held = start in held
    end = next((index for index in range(start, stop) if (index in held) is not is_held), stop)
    return end, set(range(start, end)) if is_held else set()


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
            begun = 0
            with at_work(lane):
                while begun < len(taken.chunk) and not (lane.closing or lane.error):
                    if isinstance(lane.held, EveryKey) and not await shared.unblocked(lane):
                        break
                    lane.stopping = lane.closing
                    async with shared.turn(lane):
                        begun = await shared.watch.run_in_order(shared.dispatch, lane, taken.chunk, begun, taken)
            if begun < len(taken.chunk) and lane.error is None:
                lane.cut(taken.chunk.offsets[begun])

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


def piece_of(call: Call) -> FetchedRecords:
    """Return the records of a call as a fetch."""
    start, end = call.indexes[0], call.indexes[-1] + 1
    left_out = () if end - start == len(call.indexes) else set(range(start, end)).difference(call.indexes)
    return part_of(call.records, start, end, left_out)


@contextmanager
def at_work(lane: Lane) -> Generator[None]:
    lane.at_work = True
    try:
        yield
    finally:
        lane.at_work = False
