"""Threads that block in librdkafka, and how they and the event loop tell each other of things."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import anyio

from eventbus.backends.delivery import this_loop

T = TypeVar("T")


class Loop:
    """The event loop that something was made in, asyncio's or trio's."""

    def __init__(self) -> None:
        self.token = this_loop()
        loop: Any = self.token
        # What asyncio and trio call it; anyio's own way waits for the answer.
        self._from_thread: Callable[..., object] | None = None
        self._from_here: Callable[..., object] | None = None
        if loop is not None:
            self._from_thread = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
            self._from_here = getattr(loop, "call_soon", None) or loop.run_sync_soon

    def tell(self, function: Callable[[], object]) -> None:
        """Have the loop call ``function`` soon, from a thread; not at all when the loop has ended."""
        if self._from_thread is not None:
            with contextlib.suppress(RuntimeError):
                self._from_thread(function)

    def later(self, function: Callable[[], object]) -> None:
        """Have the loop call ``function`` after what it does now, from a task of it."""
        if self._from_here is not None:
            self._from_here(function)


class Job(Generic[T]):
    """Something a thread is to do, and its outcome. Who waits for it may be cancelled: the thread goes on."""

    def __init__(self, function: Callable[[], T], loop: Loop, then: Callable[[], object] | None = None) -> None:
        """``then`` is called in the event loop once it knows the outcome."""
        self._function = function
        self._loop = loop
        self._then = then
        self._done = anyio.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """The event loop knows the outcome."""
        return self._done.is_set()

    def run(self) -> None:
        """In the thread."""
        try:
            self._result = self._function()
        except BaseException as error:  # raised where it is waited for
            self._error = error
        self._loop.tell(self._finish)

    def _finish(self) -> None:
        self._done.set()
        if self._then is not None:
            self._then()

    async def wait(self) -> T:
        """The result; raises what the function raised."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class Worker:
    """One thread that does jobs in their order. A daemon: one that hangs in a call does not keep the process."""

    def __init__(self, name: str, loop: Loop) -> None:
        self._loop = loop
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, function: Callable[[], T], then: Callable[[], object] | None = None) -> Job[T]:
        """Give the thread a job."""
        job = Job(function, self._loop, then)
        self._inbox.put(job)
        return job

    def stop(self) -> None:
        """End after the jobs given so far."""
        self._inbox.put(None)

    @property
    def has_work(self) -> bool:
        """Jobs wait. For the thread itself, in a job that takes long."""
        return not self._inbox.empty()

    def work_one(self) -> None:
        """Do the next job, waiting for it. For the thread itself, within a job."""
        job = self._inbox.get()
        if job is None:
            self._inbox.put(None)  # for the outermost
            return
        job.run()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            job.run()
