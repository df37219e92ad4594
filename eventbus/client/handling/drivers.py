"""The drivers of partitions in order, and of those whose records are called by workers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio
import msgspec

from eventbus.backends.base import BackendConsumer
from eventbus.backends.clock import Timers
from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.call_timeouts import CallTimeouts
from eventbus.client.handling.concurrency_limiter import ConcurrencyLimiter
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.failure_policy import RunningPolicy
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.offset_commits import REBALANCED, OffsetCommits
from eventbus.client.handling.options import ConsumerSpec
from eventbus.client.handling.partition_driver import PartitionDriver, nothing_before
from eventbus.client.handling.unfinished_records import described, fate_of, log_lost, unfinished_of
from eventbus.client.handling.work_actions import Call, Commit, Policy
from eventbus.client.handling.worker_pool import WorkerPool
from eventbus.errors import EventBusError, HandlerError
from eventbus.types import FetchedRecords, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.runner")

_MOST_AT_ONCE = 8
"""Records of one key queue that a worker takes at a time: other keys and other partitions have their turns."""
_MOST_IN_THREADS = 32
"""The same of a plain function: they share a change of threads."""
_KEY_QUEUES_PER_WORKER = 64
_COMMITTED_AHEAD = 500
"""At most once: records committed at a time before they are handled. A crash may lose so many."""
_FETCHES_AHEAD = 4
"""A partition runs ahead of its first unfinished record by at most so many fetches of `max_partition_fetch_bytes`."""
_FETCHES_UNACKNOWLEDGED = 16
"""The same where records are acknowledged by hand: the handler may collect many before it acknowledges them."""
_PATIENCE_SECONDS = 10.0
"""How long nothing is acknowledged, while nothing more is begun, before that is logged."""
_LONGEST_PAUSE_SECONDS = 5.0


class HandlerResources:
    """The parts of a runner that all partitions of its handler share."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        dispatch: Dispatch,
        consumer: BackendConsumer,
        commits: OffsetCommits,
        timers: Timers,
        flush: Callable[[], Awaitable[None]],
        settled: Callable[[PartitionDriver], Awaitable[None]],
        budget_seconds: float,
        fetch_bytes: int,
        on_abandoned: Callable[[PartitionDriver, HandlerError], object],
        on_output_error: Callable[[HandlerError], bool],
        failure_policy: RunningPolicy | None,
    ) -> None:
        self.handler = handler
        self.dispatch = dispatch
        self.consumer = consumer
        self.commits = commits
        self.timers = timers
        self.flush = flush
        self.settled = settled
        """Returns when no rebalance is under way, or the partition is closing."""
        self.on_output_error = on_output_error
        """Called if the log refuses an output. True: the handler goes on without it."""
        self.failure_policy = failure_policy
        self.budget_seconds = budget_seconds
        """How long a revoked partition waits for its records in flight."""
        self.timeouts = CallTimeouts(handler, timers, on_abandoned)
        spec = handler.spec
        is_manual = spec.ack == "manual"
        self.is_at_most_once = spec.delivery == "at-most-once"
        self.commits_by_count = spec.commit_every is not None and not (self.is_at_most_once or is_manual)
        # In order without manual acknowledgement, at most two fetches are here, which bounds the memory already.
        self.counts_bytes = is_manual or not spec.is_ordered
        self._is_slow_logged = not is_manual
        in_threads = not handler.signature.is_async
        limited = spec.concurrency is not None and spec.is_ordered and not in_threads
        self.limiter = (
            ConcurrencyLimiter(spec.concurrency, timers) if limited and spec.concurrency is not None else None
        )
        """Plain functions wait for one of their threads instead."""
        self.workers: WorkerPool | None = None
        if not spec.is_ordered:
            self.workers = WorkerPool(dispatch, self.timeouts, spec.concurrency or 1, in_threads=in_threads)
        concurrency = spec.concurrency or 1
        self._policy = Policy(
            order="partition" if spec.is_ordered else "key" if spec.order == "key" else "none",
            delivery=spec.delivery,
            manual_ack=is_manual,
            batch=sys.maxsize if spec.batch is True else int(spec.batch) or None,
            call_records=_call_records(spec, in_threads),
            slice_records=spec.transaction_records if spec.exactly_once else _COMMITTED_AHEAD,
            commit_every=None if spec.exactly_once else spec.commit_every,
            max_unfinished=spec.max_unfinished if self.counts_bytes else sys.maxsize,
            max_bytes=fetch_bytes * (_FETCHES_UNACKNOWLEDGED if is_manual else _FETCHES_AHEAD),
            least_unfinished=concurrency,
            retry_order="none" if failure_policy is None else failure_policy.recovery.order,
            store_forwards_first=spec.tx is not None,
            key_queues=_KEY_QUEUES_PER_WORKER * concurrency,
        )

    def policy(self, *, is_ordered: bool = False) -> Policy:
        """Return the handler's options for `PartitionWork`. ``is_ordered`` overrides them: records in sequence."""
        return (
            msgspec.structs.replace(self._policy, order="partition", commit_every=None) if is_ordered else self._policy
        )

    def turn(self, driver: PartitionDriver) -> AbstractAsyncContextManager[None]:
        """Entered around a partition's calls: limits the number of active partitions to ``concurrency``."""
        return nullcontext() if self.limiter is None else self.limiter.slot(driver)

    async def room(self, driver: PartitionDriver, has_room: Callable[[], bool], *, once: bool = False) -> None:
        """Return when records may be begun, or the partition stops. ``once``: also when it is woken."""
        while driver.error is None and not driver.closing and not has_room():
            if self._is_slow_logged:
                await driver.until(has_room)
            else:
                with self.timers.move_on_after(_PATIENCE_SECONDS) as patience:
                    await driver.until(has_room)
                if patience.cancelled_caught:
                    self._log_slow(driver)
            if once:
                return

    def _log_slow(self, driver: PartitionDriver) -> None:
        self._is_slow_logged = True
        policy, work = self._policy, driver.work
        logger.warning(
            "handler %r: no further record of %s is begun. %d records (%d bytes) wait for their acknowledgement. "
            "At most max_unfinished=%d records and %d bytes (%d times max_partition_fetch_bytes) may wait. "
            "Acknowledge earlier, or raise the option whose limit is reached",
            self.handler.__name__, driver.topic_partition, work.unfinished, work.size_bytes, policy.max_unfinished,
            policy.max_bytes, _FETCHES_UNACKNOWLEDGED,
        )  # fmt: skip

    async def acknowledged(self, driver: PartitionDriver) -> None:
        """Return when all that was begun is acknowledged, or the time for that is over."""
        work, handler = driver.work, self.handler
        with self.timers.move_on_after(self.budget_seconds) as time:
            while work.has_unacknowledged and driver.error is None and not driver.abandoned:
                await driver.until(lambda: not work.has_unacknowledged)
        if time.cancelled_caught:
            logger.warning(
                "handler %r: %s not acknowledged within drain_timeout_ms=%d: %s",
                handler.__name__, unfinished_of(driver, self.dispatch), handler.spec.drain_timeout_ms, fate_of(handler),
            )  # fmt: skip


def _call_records(spec: ConsumerSpec, in_threads: bool) -> int:
    if spec.is_ordered:
        return sys.maxsize
    return _MOST_IN_THREADS if in_threads else _MOST_AT_ONCE if spec.order == "key" else 1


class InOrderDriver(PartitionDriver):
    """Performs the calls of a partition in order. `PartitionWork` decides what is next.

    At least once, a record is finished when its call has returned and its outputs are stored, or at its
    acknowledgement.

    At most once, a slice of records is committed before its calls. Whatever ends a slice early gives back the records
    that were not begun: the next commit takes the offset back to the first of them. So only the records in flight are
    lost, or all of the slice where the process dies. A partition that was lost is another matter. Its next owner begins
    after the slice and nothing can be committed any more, so the slice is handled to its end.
    """

    def __init__(self, topic_partition: TopicPartition, shared: HandlerResources) -> None:
        super().__init__(topic_partition, shared.on_output_error, shared.policy(), on_commit_due=shared.commits.due)
        self._shared = shared
        self._call: Call | None = None
        """The call in flight."""

    async def run(self, chunk: FetchedRecords) -> None:
        shared, work = self._shared, self.work
        if shared.counts_bytes:
            await shared.room(self, lambda: not work.is_paused)
        work.fetched(chunk, chunk.size_bytes if shared.counts_bytes else 0)
        while self.error is None:
            call = work.next_call()
            if call is not None:
                await self._handle(call)
                if shared.commits_by_count and work.wants_commit:
                    await shared.commits.attempt()
                if not (shared.is_at_most_once or work.has_more):
                    break
            elif self.closing or not await self._wait_for_call():
                break
        if self.closing:
            await shared.flush()  # the group waits for this partition, so outputs must not linger
        if self.outputs:
            await self.outputs_stored()
        if self.error is not None and shared.is_at_most_once:
            await shared.commits.attempt([self])

    async def _wait_for_call(self) -> bool:
        """Wait until there may be another call. Return False if no call can follow before the next fetch."""
        work, failure_policy = self.work, self._shared.failure_policy
        if self._shared.is_at_most_once:
            return await self._commit()
        if failure_policy is not None and work.waits_for_commit:
            return await failure_policy.moved(self)
        if failure_policy is not None and work.waits_as_a_whole:
            return await failure_policy.unblocked(self)
        if not work.has_left:
            return False
        await self._shared.room(self, lambda: work.has_room)
        return True

    async def _commit(self) -> bool:
        """At most once: store the next commit. False: there is none, or the partition moves away."""
        commit, is_stored = self.work.next_commit(), True
        if not isinstance(commit, Commit):
            return False
        try:
            is_stored = await commit_now(self, self._shared, commit.next_offset)
        finally:  # the log may have stored a commit whose wait is cancelled
            # Also after a cancellation, so that `next_commit` is not blocked by a commit without an outcome.
            (self.work.commit_stored if is_stored else self.work.commit_failed)(commit)
        return is_stored

    async def _handle(self, call: Call) -> None:
        shared = self._shared
        self._call = call
        if shared.limiter is None:
            await shared.timeouts.run_in_order(shared.dispatch, self, call)
        else:
            async with shared.limiter.slot(self):
                await shared.timeouts.run_in_order(shared.dispatch, self, call)
        self._call = None
        self.work.ended(call)

    async def finish(self) -> None:
        if self._shared.handler.spec.ack == "manual":
            await self._shared.acknowledged(self)

    async def aclose(self) -> None:
        if self._shared.is_at_most_once:
            self.cut_off()
        elif self._call is not None:
            self.work.ended(self._call)

    def cut_off(self) -> None:
        """The call in flight was cancelled, or abandoned in its thread. The next commit gives back later records."""
        call, work = self._call, self.work
        if not self._shared.is_at_most_once:
            return
        if call is not None and call.is_open:
            # At most once, the records up to `end` count as called: the thread may have begun them, and calling them
            # again would break the promise.
            work.cut(call)  # a thread may go on; from here on it begins no record
            first = call.at if call.is_live else call.done
            end = call.at if call.is_resting else call.at + len(self._shared.dispatch.records_at(call))
            end = max(end, call.called, first)
            if not self.closing and end > first:  # a stop or rebalance would have reported it
                logger.error(
                    "handler %r: it was cancelled, and %s is lost. It was committed before it was handled",
                    self._shared.handler.__name__,
                    described(self.topic_partition, call.column(call.records.offsets)[first:end]),
                )  # fmt: skip
            work.ended(call, end - first)
        work.revoked()
        if self.abandoned:
            log_lost(self._shared.handler, self)


class WorkerPoolDriver(PartitionDriver):
    """A partition whose calls are made by the handler's workers: in order of each key, or in any order."""

    def __init__(
        self, topic_partition: TopicPartition, shared: HandlerResources, workers: WorkerPool, tasks: ContainedTasks
    ) -> None:
        super().__init__(topic_partition, shared.on_output_error, shared.policy(), on_commit_due=shared.commits.due)
        self._shared = shared
        self._workers = workers
        self._tasks = tasks
        self._is_settling = False

    def wake_workers(self) -> None:
        self._workers.notify(self)

    async def run(self, chunk: FetchedRecords) -> None:
        work = self.work
        await self._until(lambda: not work.is_paused)
        if self.error is None and not self.closing:
            work.fetched(chunk, chunk.size_bytes)
            self._workers.notify(self)
            await self._until(lambda: not work.has_left)

    async def advance_to(self, next_offset: int) -> None:
        self.work.fetched(nothing_before(self.topic_partition, next_offset))

    async def rest(self) -> None:
        """Return when the partition is woken, or all is finished that was not."""
        self._settle_outputs()
        self.awaited = None if self.work.is_idle else lambda: self.work.is_idle
        try:
            await self.wake.wait()
        finally:
            self.awaited = None

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self.error is None and not self.closing and not condition():
            self._settle_outputs()
            await self._shared.room(self, condition, once=True)

    def _settle_outputs(self) -> None:
        if self.outputs and not self._is_settling:
            self._is_settling = True
            self._tasks.start_soon(self._settle)

    async def _settle(self) -> None:
        """Records wait for their outputs: that must not keep the partition from taking others."""
        try:
            await self.outputs_stored()
        finally:
            self._is_settling = False
            self.wake.set()

    async def finish(self) -> None:
        work = self.work
        while work.has_calls:
            self._workers.notify(self)
            await self.until(lambda: not work.has_calls)
        if self.outputs:
            await self._shared.flush()
            await self.outputs_stored()
        if self._shared.handler.spec.ack == "manual":
            await self._shared.acknowledged(self)

    async def aclose(self) -> None:
        work = self.work
        if work.has_calls:
            self._workers.cancel(self)
        with anyio.CancelScope(shield=True):
            while work.has_calls:
                await self.until(lambda: not work.has_calls)


async def commit_now(driver: PartitionDriver, shared: HandlerResources, next_offset: int) -> bool:
    """Commit, again and again until it is stored. False: the partition is closing, and another member commits next."""
    pause = shared.handler.spec.commit_interval_ms / 1000
    while not driver.closing:
        try:
            with shared.commits.asked():
                await shared.consumer.commit({driver.topic_partition: OffsetAndMetadata(next_offset)})
        # The group decides who owns the partition. Committing again before that can only be refused again.
        except REBALANCED as error:
            logger.debug("handler %r: not committed yet: %s", shared.handler.__name__, error)
            await shared.settled(driver)
        except EventBusError as error:
            if str(error) != shared.commits.error:
                logger.error(
                    "handler %r: the offset %d of %s is not committed, so what is below it is not handled yet: %s",
                    shared.handler.__name__, next_offset, driver.topic_partition, error,
                )  # fmt: skip
            shared.commits.failed(error)
        else:
            shared.commits.succeeded()
            return True
        driver.wake.clear()
        if not driver.closing:
            with shared.timers.move_on_after(pause):
                await driver.wake.wait()
        # Records below this offset may not be called before it is stored, so giving up is not an option.
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    return False
