"""Concurrent calls: a handler's partitions share up to ``concurrency`` workers.

Any free worker takes the next call of a partition that has one. If keys are ordered, `PartitionWork` has at most one
open call for the keys of a hash. So a call that never ends blocks a single worker and the few keys with its hash. A
fixed worker per hash would block all keys of that worker.
"""

from __future__ import annotations

from collections import deque
from contextvars import copy_context

import anyio

from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.call_loop import CallLoop, fresh_context
from eventbus.client.handling.call_timeouts import Caller, CallTimeouts
from eventbus.client.handling.current_record import set_current_caller
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.partition_driver import PartitionDriver


class Worker(Caller):
    """A task that calls the handler with one record at a time."""

    __slots__ = ("wake",)

    def __init__(self, dispatch: Dispatch) -> None:
        super().__init__(dispatch, CallLoop())
        self.wake = anyio.Event()


class WorkerPool:
    """All workers of one handler."""

    def __init__(self, dispatch: Dispatch, timeouts: CallTimeouts, concurrency: int, *, in_threads: bool) -> None:
        self._dispatch = dispatch
        self._timeouts = timeouts
        self.concurrency = concurrency
        """The maximum number of records in flight."""
        self._in_threads = in_threads
        """Plain functions: records of several queues share a change of threads."""
        self._ready: deque[PartitionDriver] = deque()
        """Partitions that may have a call: each gives a call to a worker and moves to the end of the queue."""
        self._all: set[Worker] = set()
        self._idle: list[Worker] = []
        self._tasks: ContainedTasks | None = None
        self._closing = False

    def start(self, tasks: ContainedTasks) -> None:
        """Start workers in ``tasks`` on demand. They run until `close`."""
        self._tasks = tasks

    def close(self) -> None:
        """End the workers, and start no others: all partitions are finished, or the handler is cancelled."""
        self._closing = True
        for worker in self._idle:
            worker.wake.set()

    def notify(self, driver: PartitionDriver) -> None:
        """Wake or start a worker, because the partition may have a call."""
        self._queue(driver)
        self._wake_another()

    def _wake_another(self) -> None:
        assert self._tasks is not None
        if self._closing:  # the last commit makes room for calls, but the task group of the workers has ended
            return
        if self._idle:
            self._idle.pop().wake.set()
        elif len(self._all) < self.concurrency:
            worker = Worker(self._dispatch)
            self._all.add(worker)
            self._tasks.start_soon(self._run, worker)

    def _queue(self, driver: PartitionDriver) -> None:
        if not driver.is_queued:
            driver.is_queued = True
            self._ready.append(driver)

    def cancel(self, driver: PartitionDriver) -> None:
        """Cancel the calls in flight of a partition, and begin no further calls."""
        driver.work.begin_none_from(-1)
        for worker in self._all:
            if worker.driver is driver:
                worker.scope.cancel()

    # a worker --------------------------------------------------------------------------------------------------------

    async def _run(self, worker: Worker) -> None:
        set_current_caller(self._timeouts, worker)
        try:
            while not self._closing:
                worker.is_late = False
                with anyio.CancelScope() as worker.scope:  # around many calls: a scope costs as much as a call
                    await worker.call_loop.run(self._dispatch.slices, self._work(worker))
                # A call that ended in the very turn of the loop in which it was cancelled has returned to `_work`.
                if worker.call is not None:
                    try:
                        worker.fail_cancelled(self._timeouts.timeout_seconds or 0)
                    finally:
                        self._leave(worker)
        finally:
            if worker.call is not None:
                self._leave(worker)
            self._all.discard(worker)
            self._timeouts.remove(worker)

    async def _work(self, worker: Worker) -> None:
        """Make calls until the worker's scope is cancelled or the pool is closed."""
        times, loop = self._dispatch.times, worker.call_loop
        self._timeouts.add(worker)
        while not (self._closing or worker.scope.cancel_called):
            if not self._take(worker):
                await self._wait(worker)
                continue
            driver, call = worker.driver, worker.call
            assert driver is not None and call is not None
            began, was_each = times.now(), times.is_each
            await self._dispatch.work(driver, call, loop)
            times.ran(began, call.at, was_each)
            if copy_context() != loop.clean:
                await fresh_context()  # `_leave` may begin another worker, whose task inherits the context
            self._leave(worker)

    async def _wait(self, worker: Worker) -> None:
        self._timeouts.remove(worker)
        worker.wake = anyio.Event()
        self._idle.append(worker)
        try:
            with worker.call_loop.paused():
                await worker.wake.wait()
        finally:
            if worker in self._idle:
                self._idle.remove(worker)
        self._timeouts.add(worker)

    def _take(self, worker: Worker) -> bool:
        """Take the next call. Return False if no partition has a call."""
        workers = self.concurrency if self._in_threads else 0
        ready = self._ready
        while ready:
            driver = ready[0]
            worker.call = driver.work.next_call(workers=workers)
            driver.progressed()
            if worker.call is not None:
                worker.driver = driver
                ready.rotate(-1)
                self._wake_another()
                return True
            driver.is_queued = False
            ready.popleft()
        return False

    def _leave(self, worker: Worker) -> None:
        driver, call = worker.driver, worker.call
        assert driver is not None and call is not None
        driver.work.ended(call)
        worker.call = worker.driver = None
        if not driver.is_queued:
            self._queue(driver)
        driver.progressed()
