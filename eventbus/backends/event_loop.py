"""The event loop that owns an embedded log: the few functions of asyncio or trio that the log needs.

anyio determines the library in each call, which takes longer than the call itself. A log stays in one event loop while
it is open, so the library is determined only once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import anyio
import anyio.lowlevel

from eventbus.errors import KafkaError

if TYPE_CHECKING:
    import trio

_Result = TypeVar("_Result")


class Outcome(Protocol):
    """A result that a task awaits: an error, or None for success. It may be set even after the task has ended."""

    def __call__(self, error: KafkaError | None, /) -> object: ...

    def __await__(self) -> Generator[Any, Any, KafkaError | None]: ...


class EventLoop:
    """A running event loop. `from_thread` may be called in any thread, the rest only in the loop's own."""

    def __init__(
        self,
        call_soon: Callable[..., object],
        from_thread: Callable[..., object],
        new_outcome: Callable[[], Outcome],
        call_later: Callable[[float, Callable[[], object]], object] | None = None,
    ) -> None:
        self.call_soon = call_soon
        """Calls a function in the next turn of the loop. The function must not raise: trio would end the program."""
        self.from_thread = from_thread
        """Does what `call_soon` does, from another thread. Raises RuntimeError if the loop has ended."""
        self.new_outcome = new_outcome
        self.call_later = call_later
        """Calls a function after so many seconds. None for trio, whose timers are cancel scopes."""

    @classmethod
    def running(cls) -> EventLoop:
        """Return the loop that runs in this thread. Raises RuntimeError if there is none."""
        try:
            native: object = anyio.lowlevel.current_token().native_token
        except anyio.NoEventLoopError:
            native = asyncio.get_running_loop()  # a server's callbacks run outside of tasks, where anyio sees no loop
        if isinstance(native, asyncio.AbstractEventLoop):
            return cls(
                native.call_soon,
                native.call_soon_threadsafe,
                partial(_AsyncioOutcome, loop=native),
                native.call_later,
            )
        return _on_trio()

    def call_from_thread(self, function: Callable[[], _Result]) -> _Result:
        """Call ``function`` in the loop and return its result to another thread, which waits for it."""
        future: Future[_Result] = Future()

        def call() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self.from_thread(call)
        return future.result()


def _on_trio() -> EventLoop:
    import trio
    import trio.lowlevel

    token = trio.lowlevel.current_trio_token()
    return EventLoop(token.run_sync_soon, token.run_sync_soon, lambda: _TrioOutcome(trio.Event()))


class _AsyncioOutcome(asyncio.Future["KafkaError | None"]):
    def __call__(self, error: KafkaError | None, /) -> None:
        if not self.done():  # it is if the task was cancelled
            self.set_result(error)


class _TrioOutcome:
    __slots__ = ("_error", "_event")

    def __init__(self, event: trio.Event) -> None:
        self._event = event
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, /) -> None:
        self._error = error
        self._event.set()

    def __await__(self) -> Generator[Any, Any, KafkaError | None]:
        yield from self._event.wait().__await__()
        return self._error
