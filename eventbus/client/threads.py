"""The thread and event loop of a bus, and calls into that loop from other threads."""

from __future__ import annotations

import contextlib
import contextvars
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, InvalidStateError
from functools import partial
from threading import get_ident
from typing import Any, TypeVar

import anyio

from eventbus.backends.delivery import this_loop
from eventbus.backends.process_exit import ContainedTasks
from eventbus.errors import ConfigError
from eventbus.forks import forked, watch_forks

T = TypeVar("T")
_LOOK_SECONDS = 1.0
"""How long a thread waits for the loop before it wakes to handle signals."""


_NO_THREAD = 0
"""Thread identity that matches no thread."""


class Home:
    """The thread and event loop of a bus. Its methods check that they are called there."""

    def __init__(self) -> None:
        self.thread = get_ident()
        """`_NO_THREAD` in a forked child, so that the thread check of every call also detects a fork."""
        self._process = os.getpid()
        self._loop = this_loop()
        self._task = None if self._loop is None else anyio.get_current_task().id

        watch_forks(self)

    def after_fork_in_child(self) -> None:
        self.thread = _NO_THREAD

    @property
    def is_forked(self) -> bool:
        """True in a child that was forked since: neither the thread nor the event loop exists here."""
        return self.thread == _NO_THREAD

    def check_fork(self, what: str) -> None:
        """Raise ConfigError in a forked child."""
        if self.is_forked:
            raise self.elsewhere(what)

    def is_here(self) -> bool:
        """True in a task of that thread and event loop."""
        return get_ident() == self.thread and this_loop() is self._loop

    def check(self, what: str) -> None:
        """Raise ConfigError in any other thread or event loop."""
        # inlined `is_here`, because every send checks this
        if get_ident() != self.thread or this_loop() is not self._loop:
            raise self.elsewhere(what)

    def check_task(self, what: str) -> None:
        """Raise ConfigError in any other task. A task group must be left by the task that entered it."""
        self.check_fork(what)
        if not self.is_here() or anyio.get_current_task().id != self._task:
            raise ConfigError(
                f"{what} was called in another task than the one that started the bus: leave `async with bus:` where "
                "it was entered, or call bus.stop(), which ends bus.run(), from anywhere. In an async fixture of "
                "pytest-asyncio, which is torn down by another task, use eventbus.testing.in_memory(bus) or a TestBus"
            )

    def check_thread(self, what: str) -> None:
        """Raise ConfigError in any other thread. It may be called outside of a task: in a callback, or while the loop
        ends.
        """
        if get_ident() != self.thread:
            raise self.elsewhere(what)

    def elsewhere(self, what: str) -> ConfigError:
        """Return the error for a call from another thread, event loop or process."""
        if self.is_forked:
            return forked(what, "The bus", self._process)
        if get_ident() != self.thread:
            return ConfigError(
                f"{what} was called in thread {threading.current_thread().name!r}, and the bus runs in the event loop "
                "of another: use `with bus.blocking() as b:` there and call the same on `b`"
            )
        where = "another event loop" if this_loop() is not None else "no task of an event loop"
        return ConfigError(
            f"{what} was called in {where}: call it in a task of the loop that started the bus, a different loop "
            "of this thread (under pytest-asyncio, give the fixture and its tests one loop_scope)"
        )

    def call(self, function: Callable[[], object]) -> None:
        """Call the function here, or schedule it in the loop from any thread.

        Does nothing if the loop is closed, or in a forked child.
        """
        if self.is_here():
            function()
            return
        with contextlib.suppress(RuntimeError, ConfigError):
            self.call_soon(function)

    def call_soon(self, function: Callable[[], object]) -> None:
        """Schedule ``function`` in the loop, from any thread. Raises RuntimeError if the loop is closed."""
        self.check_fork("a call of the bus's event loop")
        loop = self._loop
        # The methods of asyncio and trio. anyio's equivalent waits for the result.
        soon = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon
        soon(function)


def _result_of(future: Future[T]) -> T:
    """Wait for the result, waking regularly: a Ctrl-C just before the wait would otherwise not be noticed."""
    while True:
        try:
            return future.result(_LOOK_SECONDS)
        except TimeoutError:
            if future.done():  # raised by the call itself, or done at this instant
                return future.result()


class Bridge:
    """Runs calls from other threads in a running bus. `close` raises ConfigError in the threads that still wait."""

    def __init__(self, tasks: ContainedTasks) -> None:
        """``tasks`` runs the calls and `serve`. If it is cancelled, so are they."""
        self.home = Home()
        self._tasks = tasks
        self._lock = threading.Lock()
        self._asked: deque[Callable[[], object]] = deque()
        """Calls that the loop has not seen yet. It has been woken if there are any."""
        self._open: set[Future[Any]] = set()
        self._closed = False
        self._wake = anyio.Event()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Fail open calls, whose loop runs in the parent. The lock may be held by a thread there, so replace it."""
        self.home.after_fork_in_child()
        self._lock = threading.Lock()
        self._closed = True
        left, self._open = list(self._open), set()
        for future in left:
            future._condition = threading.Condition()  # pyright: ignore[reportPrivateUsage] - may be held, as the lock
            settle(future, error=self._gone("a call from another thread"))

    def _gone(self, what: str) -> ConfigError:
        """Return the error for a call that will not be answered."""
        return self.home.elsewhere(what) if self.home.is_forked else _closed(what)

    @property
    def is_closed(self) -> bool:
        return self._closed

    def call(self, function: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
        """Run it as a task in the loop, and wait. Raises what it raises, or ConfigError if the bus closes meanwhile."""
        future = self.start(function, what)
        try:
            return _result_of(future)
        except BaseException:
            # Ctrl-C during the wait: end the task too. If the task itself has raised, there is nothing to cancel.
            future.cancel()
            raise

    def start(self, function: Callable[[], Coroutine[Any, Any, T]], what: str) -> Future[T]:
        """Start it as a task in the loop, with the caller's context variables."""
        future: Future[T] = Future()
        context = contextvars.copy_context()

        def begin() -> None:
            try:
                context.run(self._tasks.start_soon, self._run, function, future, what)
            except RuntimeError:  # the task group has ended, so nothing runs in it any more
                settle(future, error=_closed(what))

        self._ask(begin, future, what)
        return future

    def ask(self, function: Callable[[], T], what: str) -> T:
        """Call a plain function in the loop's thread, in the caller's context variables, and wait for its result."""
        future: Future[T] = Future()
        context = contextvars.copy_context()
        self._ask(lambda: context.run(self._answer, function, future), future, what)
        return _result_of(future)

    def promise(self, what: str) -> Future[Any]:
        """Return a future that the caller or `close` settles. Raises ConfigError if the bus is closed."""
        future: Future[Any] = Future()
        with self._lock:
            if self._closed:
                raise self._gone(what)
            self._open.add(future)
        future.add_done_callback(self._forget)
        return future

    def _ask(self, ask: Callable[[], object], future: Future[Any], what: str) -> None:
        if get_ident() == self.home.thread:
            raise ConfigError(
                f"{what} would wait for the event loop it is called in, for ever: bus.blocking() is for other threads; "
                "here, await the bus itself"
            )
        with self._lock:
            if self._closed:
                raise self._gone(what)
            self._open.add(future)
            self._asked.append(ask)
            wakes = len(self._asked) == 1
        future.add_done_callback(self._forget)
        if wakes:
            try:
                self.home.call_soon(lambda: self._wake.set())
            except RuntimeError:  # the loop is closed, and could not close the bus before
                self.close()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._open.discard(future)

    async def serve(self) -> None:
        """Run all calls in a task, because a bare callback has no current task. A single wake serves a burst."""
        try:
            while True:
                wake = self._wake = anyio.Event()
                with self._lock:
                    asked, self._asked = self._asked, deque()
                for one in asked:
                    one()
                await wake.wait()
        finally:
            # Cancelled: no further calls are served, and the bus waits for the threads that wait for them.
            self.close()

    async def _run(self, function: Callable[[], Coroutine[Any, Any, T]], future: Future[T], what: str) -> None:
        with anyio.CancelScope() as scope:
            future.add_done_callback(partial(self._given_up, scope))
            try:
                result = await function()
            except anyio.get_cancelled_exc_class():
                settle(future, error=_closed(what))
                raise
            except BaseException as error:  # passed on to the thread that asked
                settle(future, error=error)
                if not isinstance(error, Exception):
                    raise
            else:
                settle(future, result)

    def _given_up(self, scope: anyio.CancelScope, future: Future[Any]) -> None:
        if future.cancelled():
            try:
                self.home.call_soon(scope.cancel)
            except RuntimeError:  # the loop is closed: nothing is left to cancel
                return

    def _answer(self, function: Callable[[], T], future: Future[T]) -> None:
        try:
            result = function()
        except Exception as error:  # passed on to the thread that asked
            settle(future, error=error)
        else:
            settle(future, result)

    def close(self) -> None:
        """Raise ConfigError in the threads that wait, and in every call from now on, because the bus is closed."""
        with self._lock:
            self._closed = True
            left = list(self._open)
            self._asked.clear()
        for future in left:
            settle(future, error=_closed("a call from another thread"))


def settle(future: Future[T], result: Any = None, error: BaseException | None = None) -> None:
    """Set the outcome of a future, unless it has one because its waiter gave up or the bus has closed."""
    try:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
    except InvalidStateError:
        pass


def _closed(what: str) -> ConfigError:
    return ConfigError(f"{what}: the bus has closed meanwhile, and its answer is lost: whether it was done is unknown")
