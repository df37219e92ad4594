"""Code that blocks the event loop is named, while it does and when it ends; nothing else is.

The blocks are real: a handler waits, on the loop, until the watch's thread has logged the warning that names it.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from eventbus.client.blocked_loop import BlockedLoopWatch, known_code
from eventbus.client.handling.handlers import Handler, consumer

PATIENCE_SECONDS = 30  # for a test that would otherwise hang; nothing waits so long


class Warnings(logging.Handler):
    """Collects the warnings of the watch, and can wait for them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._more = threading.Condition()

    def emit(self, record: logging.LogRecord) -> None:
        with self._more:
            self.texts.append(record.getMessage())
            self._more.notify_all()

    def wait_for(self, *parts: str) -> str:
        """Block until a warning holds all of ``parts``; return it."""

        def found() -> str:
            return next((text for text in self.texts if all(part in text for part in parts)), "")

        with self._more:
            assert self._more.wait_for(found, PATIENCE_SECONDS), f"no warning with {parts}: {self.texts}"
            return found()

    def count(self, *parts: str) -> int:
        return sum(all(part in text for part in parts) for text in self.texts)


@pytest.fixture
def warnings() -> Generator[Warnings]:
    handler, logger = Warnings(), logging.getLogger("eventbus.loop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@contextmanager
def watching(
    handlers: list[Handler[Any, Any]], middleware: Any = (), slow_ms: float = 5
) -> Generator[BlockedLoopWatch]:
    before = set(threading.enumerate())
    watch = BlockedLoopWatch(handlers, middleware, slow_ms)
    watch.start()
    [thread] = [one for one in threading.enumerate() if one not in before and one.name == "eventbus-loop-watch"]
    assert thread.daemon
    try:
        yield watch
    finally:
        watch.stop()
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


def line_of(function: Callable[..., Any], text: str) -> str:
    """``file:line`` of the line of ``function`` that holds ``text``."""
    import inspect

    lines, first = inspect.getsourcelines(function)
    [at] = [number for number, line in enumerate(lines) if text in line]
    return f"{function.__code__.co_filename}:{first + at}"


async def turns() -> None:
    """Let the loop answer waiting threads."""
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_that_blocks_is_named_with_its_line_and_its_time(backend: str, warnings: Warnings) -> None:
    @consumer("t")
    async def stuck(text: str) -> None:
        warnings.wait_for("has been blocked", "handler 'stuck'")

    async def main() -> None:
        with watching([stuck]):
            await stuck("x")
            await turns()
            ended = await anyio.to_thread.run_sync(warnings.wait_for, "was blocked", "handler 'stuck'")
        assert "it goes on" in ended

    anyio.run(main, backend=backend)
    said = warnings.wait_for("has been blocked", "handler 'stuck'")
    assert line_of(stuck.function, "warnings.wait_for") in said  # where the handler is
    assert "test_blocked_loop.py" in said.partition("(in ")[2] or "threading.py" in said.partition("(in ")[2]
    assert "plain function (def)" in said
    assert warnings.count("has been blocked", "handler 'stuck'") == 1
    assert warnings.count("was blocked", "handler 'stuck'") == 1


async def test_each_block_is_told_anew(warnings: Warnings) -> None:
    @consumer("t")
    async def one(text: str) -> None:
        warnings.wait_for("has been blocked", "handler 'one'")

    @consumer("t")
    async def two(text: str) -> None:
        warnings.wait_for("has been blocked", "handler 'two'")

    with watching([one, two]) as watch:
        assert watch.lately(60) == ""
        await one("x")  # without a turn of the loop between them
        await two("x")
        await turns()
        await anyio.to_thread.run_sync(warnings.wait_for, "was blocked", "handler 'two'")
        # The thread may not have got to noting it when it has said it.
        assert watch.lately(3_600).startswith("the event loop was blocked for") and "'two'" in watch.lately(3_600)
        assert watch.lately(-1) == ""


async def test_code_that_is_no_handlers_is_told_by_its_place(warnings: Warnings) -> None:
    def elsewhere() -> None:
        warnings.wait_for("has been blocked", "none of this bus's handlers")

    with watching([]):
        elsewhere()
        await turns()
        await anyio.to_thread.run_sync(warnings.wait_for, "was blocked", "none of this bus's handlers")


async def test_middleware_is_told_from_its_handler(warnings: Warnings) -> None:
    async def slow(record: Any, call_next: Any) -> Any:
        warnings.wait_for("has been blocked", "middleware 'slow'")
        return await call_next(record)

    @consumer("t")
    async def handle(text: str) -> None:
        warnings.wait_for("has been blocked", "handler 'handle'")

    async def call_next(record: Any) -> None:
        await handle(record)

    with watching([handle], [slow]):
        await slow("x", call_next)
        await turns()


class Object:
    async def __call__(self, text: str) -> None: ...


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def around(text: str) -> None:
        await function(text)

    return around


def test_the_code_of_wrapped_functions_and_objects_is_known_and_shared_code_is_nobodys() -> None:
    async def one(text: str) -> None: ...

    async def two(text: str) -> None: ...

    async def three(text: str) -> None: ...

    functions = (decorated(one), decorated(two), functools.partial(three), Object())
    names = known_code([consumer("t")(function) for function in functions], [])
    assert names[one.__code__] == "handler 'one'" and names[three.__code__] == "handler 'partial'"
    assert names[two.__code__] == "handler 'two'"
    assert names[Object.__call__.__code__] == "handler 'Object'"
    assert decorated(one).__code__ not in names


def test_a_filter_is_told_from_its_handler() -> None:
    def is_large(record: Any) -> bool:
        return True

    @consumer("t", filter=is_large)
    async def handle(text: str) -> None: ...

    assert known_code([handle], [])[is_large.__code__] == "filter= of handler 'handle'"


@pytest.mark.parametrize(
    ("woke_after", "computed", "suspended"),
    [
        (0.010, 0.000, False),  # in time: the loop alone stands still
        (0.012, 0.000, False),  # a little late
        (9.000, 0.000, True),  # the process was suspended, or the machine slept
        (9.000, 0.100, True),
        (9.000, 8.900, False),  # code that holds the interpreter's lock keeps this thread waiting too
    ],
)
async def test_a_process_that_was_suspended_is_not_blocked(woke_after: float, computed: float, suspended: bool) -> None:
    now, used = [100.0], [7.0]
    watch = BlockedLoopWatch([], [], 10, now=lambda: now[0], processor_time=lambda: used[0])
    answer, before = watch._answer, used[0]
    now[0] += woke_after
    used[0] += computed
    assert watch._was_suspended(answer, before) is suspended


async def test_a_loop_that_turns_is_left_alone(warnings: Warnings) -> None:
    with watching([], slow_ms=60_000):
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
    assert warnings.texts == []


def test_a_loop_that_is_gone_ends_its_watch() -> None:
    started: list[threading.Thread] = []

    async def main() -> None:
        before = set(threading.enumerate())
        BlockedLoopWatch([], [], 1).start()
        started.extend(one for one in threading.enumerate() if one not in before)

    anyio.run(main)
    for thread in started:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()
