"""A connection of a blocking driver whose calls run in worker threads, so that they do not block the event loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

P = ParamSpec("P")
T = TypeVar("T")


class ThreadedConnection:
    """A transaction with the methods of `AsyncConnection`: ``async with ThreadedConnection(engine) as connection``."""

    def __init__(self, engine: Engine) -> None:
        self._begun = engine.begin()
        self._connection: Connection | None = None
        self._one = anyio.CapacityLimiter(1)
        self._alone = threading.Lock()
        """Allows one thread at a time to use the connection. The limiter alone is not enough: a call cancelled by
        asyncio itself (`asyncio.timeout`) leaves the limiter before its thread has finished. The rollback would
        overtake the statement, which would then begin another transaction.
        """

    async def __aenter__(self) -> ThreadedConnection:
        self._connection = await self._in_thread(self._begun.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection = None
        # Commit or roll back even if the task is cancelled, so that the connection is always closed.
        with anyio.CancelScope(shield=True):
            await self._in_thread(partial(self._begun.__exit__, kind, error, traceback))

    async def _in_thread(self, function: Callable[[], T]) -> T:
        def call() -> T:
            with self._alone:
                return function()

        return await anyio.to_thread.run_sync(call, limiter=self._one)

    async def run_sync(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn(connection, ...)`` in a worker thread."""
        connection = self._connection
        assert connection is not None, "the transaction is over"
        return await self._in_thread(partial(fn, connection, *args, **kwargs))

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Run a statement and fetch its rows."""
        return await self.run_sync(_execute, statement, parameters)

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """Return the first column of the first row, or None."""
        return (await self.execute(statement, parameters)).scalar()


def _execute(connection: Connection, statement: Any, parameters: Any) -> Any:
    result = connection.execute(statement, parameters)
    return result.freeze()() if result.returns_rows else result
