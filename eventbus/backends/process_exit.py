"""Let user code end the process without killing the event loop under the bus.

asyncio leaves its loop at once when a task raises SystemExit or KeyboardInterrupt. The bus's shutdown (wait for
threads, flush, commit, leave the group) is shielded from cancellation and waits for tasks of that loop, so it could
wait forever. The tasks of a bus therefore raise `ProcessExit` instead. Task groups handle it as any other error, the
bus shuts down in its usual order, and leaving the bus raises the original exception (see `SingleError`).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

import anyio
import anyio.abc

T = TypeVar("T")

logger = logging.getLogger("eventbus")


class ProcessExit(BaseException):
    """Raised in the bus's tasks instead of an exception that ends the process, which is its ``cause``."""

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause
        self.__cause__ = cause


def ends_process(error: BaseException) -> bool:
    """True unless the exception is an error to handle, a cancellation, or the closing of a coroutine.

    A group ends the process when one of the exceptions in it does.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(ends_process, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return not isinstance(error, (Exception, GeneratorExit, anyio.get_cancelled_exc_class()))


def check_exit(raised: BaseException, where: str) -> None:
    """Log and raise `ProcessExit` if the exception ends the process. ``where``: the user's code and its record."""
    if isinstance(raised, Exception) or not ends_process(raised):
        return
    text = str(raised)
    error = ProcessExit(f"{where} raised {type(raised).__name__}{f': {text}' if text else ''}", raised)
    logger.error("%s. The bus stops and raises it again", error)
    raise error from raised


class ContainedTasks:
    """A task group whose tasks raise `ProcessExit` instead of SystemExit and KeyboardInterrupt."""

    def __init__(self) -> None:
        self._tasks = anyio.create_task_group()

    @property
    def cancel_scope(self) -> anyio.CancelScope:
        return self._tasks.cancel_scope

    def start_soon(self, func: Callable[..., Awaitable[Any]], *args: Any, name: object = None) -> None:
        self._tasks.start_soon(_contained, func, args, name=name or func)

    async def start(self, func: Callable[..., Awaitable[Any]], *args: Any, name: object = None) -> Any:
        return await self._tasks.start(_started, func, args, name=name or func)

    async def __aenter__(self) -> ContainedTasks:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._tasks.__aexit__(kind, error, traceback)


class _ExitOfLoop(Exception):
    """Carries an exception that ends the process out of an event loop's thread, as an error that does not stop the
    loop."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


@asynccontextmanager
async def carrying_exits(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T]:
    """Enter and leave a context on the loop of another thread, which is inside `raising_exits`."""
    try:
        async with context as value:
            yield value
    except BaseException as error:
        if isinstance(error, Exception) or not ends_process(error):
            raise
        raise _ExitOfLoop(error) from error


@contextmanager
def raising_exits() -> Generator[None]:
    """Raise an exception that ends the process as it was before `carrying_exits`."""
    try:
        yield
    except _ExitOfLoop as error:
        raise error.cause from None


async def _started(
    func: Callable[..., Awaitable[Any]], args: tuple[Any, ...], *, task_status: anyio.abc.TaskStatus[Any]
) -> None:
    await _contained(partial(func, task_status=task_status), args)


async def _contained(func: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
    try:
        await func(*args)
    except (SystemExit, KeyboardInterrupt) as error:
        check_exit(error, "a task of the bus")
