"""Buses in async fixtures: pytest-asyncio sets a fixture up in one task, and tears it down in another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar

T = TypeVar("T")

_fixtures_under_way = 0


@contextmanager
def setting_up() -> Generator[None]:
    """While inside, pytest sets a fixture up."""
    global _fixtures_under_way
    _fixtures_under_way += 1
    try:
        yield
    finally:
        _fixtures_under_way -= 1


def needs_own_task() -> bool:
    """What is entered now may be left in another task: a fixture is being set up, on asyncio.

    On trio the plugins there are keep to one task.
    """
    try:
        return _fixtures_under_way > 0 and asyncio.current_task() is not None
    except RuntimeError:
        return False


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[T, Any]) -> AsyncGenerator[T]:
    """``context``, entered and left in one task of its own, as a task group has to be. For asyncio alone.

    An error that ends it meanwhile is raised at the end.
    """
    entered, leaving = asyncio.Event(), asyncio.Event()
    values: list[T] = []
    exits: list[BaseException] = []

    async def live() -> None:
        try:
            async with context as value:
                values.append(value)
                entered.set()
                await leaving.wait()
        except (SystemExit, KeyboardInterrupt) as error:
            exits.append(error)  # a task that raised it would stop the event loop: it is raised by the fixture below

    life = asyncio.get_running_loop().create_task(live())  # anyio has no task that outlives the one that starts it
    life.add_done_callback(lambda _: entered.set())
    try:
        await entered.wait()
        if not values:
            await life  # entering has raised
        if values:
            yield values[0]
        leaving.set()
        await life
        for error in exits:
            raise error
    finally:
        life.cancel()  # unless it is over
