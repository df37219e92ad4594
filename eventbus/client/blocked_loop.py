"""Detect code that blocks the event loop, and name it while it does.

Nothing of a bus runs while its loop is blocked: no poll, no commit, no other handler, no signal. Only another thread
can see that, so a thread regularly schedules a callback in the loop, and inspects the loop's stack if it is late.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

from eventbus.backends.clock import RealTimers, Timers
from eventbus.client.handling.functions import name_of, own_function
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.middleware import Middleware
from eventbus.client.threads import Home

logger = logging.getLogger("eventbus.loop")


class BlockedLoopWatch:
    """A thread that warns, once per block, that the loop has been blocked for ``slow_ms``, and reports how long it
    took.

    Start it in the loop to watch. If the process was suspended, or got no CPU time, no code is to blame. The thread
    recognizes that because it woke late too and the process used no CPU time.
    """

    def __init__(
        self,
        handlers: Iterable[Handler[Any, Any]],
        middleware: Iterable[Middleware],
        slow_ms: float,
        *,
        now: Callable[[], float] = time.monotonic,
        processor_time: Callable[[], float] = time.process_time,
    ) -> None:
        self._names = known_code(handlers, middleware)
        self._slow_seconds = slow_ms / 1000
        self._now = now
        self._processor_time = processor_time
        self._home = Home()
        self._stopping = threading.Event()
        self._answer = _Answer(now)
        self._last: tuple[float, float, str] | None = None
        """When the last block ended, its duration, and the code that caused it."""

    def start(self) -> None:
        """Start to watch the loop of the calling task."""
        threading.Thread(target=self._run, name="eventbus-loop-watch", daemon=True).start()

    def stop(self) -> None:
        """Stop the thread. It ends soon, and no caller waits for it."""
        self._stopping.set()
        self._answer.given.set()

    def lately(self, within_seconds: float) -> str:
        """Describe the last block, if it ended within ``within_seconds``; else return ""."""
        if self._last is None:
            return ""
        ended, seconds, whose = self._last
        ago = self._now() - ended
        return (
            f"the event loop was blocked for {seconds:.1f} s {whose}, {ago:.0f} s ago" if ago <= within_seconds else ""
        )

    def _run(self) -> None:
        while not self._stopping.is_set():
            answer = self._answer = _Answer(self._now)
            used = self._processor_time()
            try:
                self._home.call_soon(answer.give)
            except RuntimeError:
                return  # the loop is closed
            if not answer.given.wait(self._slow_seconds) and not self._was_suspended(answer, used):
                self._blocked(answer)
            self._stopping.wait(self._slow_seconds / 2)

    def _was_suspended(self, answer: _Answer, used: float) -> bool:
        """True if the whole process was suspended: this thread woke late too, and the process used no CPU time."""
        late = self._now() - answer.asked_at - self._slow_seconds
        return late > self._slow_seconds / 2 and self._processor_time() - used < late / 2

    def _blocked(self, answer: _Answer) -> None:
        """Log which code blocks the loop: once, or once for each of several callbacks that block it in a row."""
        place = ""
        logged: set[str] = set()
        while not answer.given.is_set():
            # Despite its underscore this function is documented, and the only way to read another thread's stack.
            frame = sys._current_frames().get(self._home.thread)  # pyright: ignore[reportPrivateUsage]
            if frame is not None and not answer.given.is_set():
                name, place = self._whose(frame)
                if name not in logged:
                    logged.add(name)
                    logger.warning(
                        "the event loop has been blocked for %.3g s %s; meanwhile nothing else runs in it: no poll, no "
                        "commit, no other handler. Await what takes time, or make it a plain function (def): those run "
                        "in a thread",
                        self._now() - answer.asked_at, place,
                    )  # fmt: skip
            del frame  # it keeps the handler's locals alive
            answer.given.wait(self._slow_seconds)
        if not self._stopping.is_set():
            seconds = answer.given_at - answer.asked_at
            self._last = answer.given_at, seconds, place
            logger.warning("the event loop was blocked for %.3g s %s; it goes on", seconds, place)

    def _whose(self, innermost: FrameType) -> tuple[str, str]:
        """Return ``handler 'bill'`` and ``by handler 'bill' at shop.py:42 (in ssl.py:1134)``."""
        place = f"{innermost.f_code.co_filename}:{innermost.f_lineno}"
        frame: FrameType | None = innermost
        while frame is not None:
            name = self._names.get(frame.f_code)
            if name is not None:
                own = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                return name, f"by {name} at {own}" + ("" if frame is innermost else f" (in {place})")
            frame = frame.f_back
        return "", f"at {place}, by none of this bus's handlers"


def watch_loop(
    handlers: Sequence[Handler[Any, Any]], middleware: Sequence[Middleware], slow_ms: float | None, timers: Timers
) -> BlockedLoopWatch | None:
    """Watch the current loop if handlers or middleware run on it. A test's clock stands still, so it is not watched."""
    on_loop = handlers and (middleware or any(one.signature.is_async or one.spec.middleware for one in handlers))
    if slow_ms is None or not on_loop or not isinstance(timers, RealTimers):
        return None
    watch = BlockedLoopWatch(handlers, middleware, slow_ms)
    watch.start()
    return watch


class _Answer:
    """A callback that runs when the loop is free."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.given = threading.Event()
        self.asked_at = self.given_at = now()

    def give(self) -> None:
        self.given_at = self._now()
        self.given.set()


def known_code(handlers: Iterable[Handler[Any, Any]], middleware: Iterable[Middleware]) -> dict[CodeType, str]:
    """Map the code of handlers and middleware to names. Code that several of them share has no name."""
    names: dict[CodeType, str] = {}
    shared: set[CodeType] = set()
    handlers = list(handlers)
    called: list[tuple[Any, str]] = [(one.undecorated, f"handler {one.__name__!r}") for one in handlers]
    for one in handlers:
        of_it = one.signature.injection.calls if one.signature.injection is not None else ()
        called += [(call, f"dependency {name_of(call)!r}") for call in of_it]
        called.append((one.spec.filter, f"filter= of handler {one.__name__!r}"))
    around = [*middleware, *(one for handler in handlers for one in handler.spec.middleware)]
    called += [(one, f"middleware {getattr(one, '__name__', type(one).__name__)!r}") for one in around]
    for function, name in called:
        for code in _codes(function):
            if names.setdefault(code, name) != name:
                shared.add(code)
    return {code: name for code, name in names.items() if code not in shared}


def _codes(function: Any) -> Iterator[CodeType]:
    """Yield the code of a function and of what it wraps, resolving partials and callable objects."""
    while function is not None:
        function = own_function(function)
        code = getattr(function, "__code__", None)
        if code is not None:
            yield code
        function = getattr(function, "__wrapped__", None)
