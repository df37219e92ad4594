"""Threads that block in librdkafka, and their communication with the event loop."""

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
    """The event loop in which an object was created, asyncio's or trio's."""

    def __init__(self) -> None:
        self.token = this_loop()
        loop: Any = self.token
        # The names in asyncio and trio; anyio's own function waits for the result.
        self._from_thread: Callable[..., object] | None = None
        self._from_here: Callable[..., object] | None = None
        if loop is not None:
            self._from_thread = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
            self._from_here = getattr(loop, "call_soon", None) or loop.run_sync_soon

    def tell(self, function: Callable[[], object]) -> None:
        """Make the loop call ``function`` soon, from a thread; not at all if the loop has ended."""
        if self._from_thread is not None:
            with contextlib.suppress(RuntimeError):
                self._from_thread(function)

    def later(self, function: Callable[[], object]) -> None:
        """Make the loop call ``function`` after its current turn, from a task of the loop."""
        if self._from_here is not None:
            self._from_here(function)


class Job(Generic[T]):
    """A function for a thread, and its outcome. If the waiting task is cancelled, the thread continues."""

    def __init__(self, function: Callable[[], T], loop: Loop, then: Callable[[], object] | None = None) -> None:
        """Create a job for ``function``. ``then`` is called in the event loop after the outcome is set."""
        self._function = function
        self._loop = loop
        self._then = then
        self._done = anyio.Event()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """True once the outcome is set in the event loop."""
        return self._done.is_set()

    def run(self) -> None:
        """Run the function, in the thread."""
        try:
            self._result = self._function()
        except BaseException as error:  # raised in `wait`
            self._error = error
        self._loop.tell(self._finish)

    def _finish(self) -> None:
        self._done.set()
        if self._then is not None:
            self._then()

    async def wait(self) -> T:
        """Wait for the result; raise what the function raised."""
        await self._done.wait()
        if self._error is not None:
            raise self._error
        return cast("T", self._result)


class Worker:
    """A thread that runs jobs in order. A daemon: a thread that hangs in a call does not keep the process alive."""

    def __init__(self, name: str, loop: Loop) -> None:
        self._loop = loop
        self._inbox: SimpleQueue[Job[Any] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def do(self, function: Callable[[], T], then: Callable[[], object] | None = None) -> Job[T]:
        """Queue a job for the thread."""
        job = Job(function, self._loop, then)
        self._inbox.put(job)
        return job

    def stop(self) -> None:
        """End after the jobs queued so far."""
        self._inbox.put(None)

    @property
    def has_work(self) -> bool:
        """True if jobs wait. For use in the thread, in a job that takes long."""
        return not self._inbox.empty()

    def work_one(self) -> None:
        """Wait for the next job and run it. For use in the thread, within a job."""
        job = self._inbox.get()
        if job is None:
            self._inbox.put(None)  # for the outermost loop
            return
        job.run()

    def _work(self) -> None:
        while (job := self._inbox.get()) is not None:
            job.run()
