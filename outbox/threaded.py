"""A connection of a blocking driver, whose calls run in worker threads: the event loop never waits for a database."""

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
    """One transaction: ``async with ThreadedConnection(engine) as connection``; the methods of `AsyncConnection`."""

    def __init__(self, engine: Engine) -> None:
        self._begun = engine.begin()
        self._connection: Connection | None = None
        self._one = anyio.CapacityLimiter(1)
        self._alone = threading.Lock()
        """A connection is for one thread at a time. What asyncio itself cancels (`asyncio.timeout`) leaves the limiter
        before its thread is through: else the rollback would pass the statement, which began a transaction anew."""

    async def __aenter__(self) -> ThreadedConnection:
        self._connection = await self._in_thread(self._begun.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._connection = None
        # Commit or roll back, and close: cancelled or not, one of them happens.
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
        """Run a statement; its rows have been fetched."""
        return await self.run_sync(_execute, statement, parameters)

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """The first column of the first row, or None."""
        return (await self.execute(statement, parameters)).scalar()


def _execute(connection: Connection, statement: Any, parameters: Any) -> Any:
    result = connection.execute(statement, parameters)
    return result.freeze()() if result.returns_rows else result
