"""Buses in async fixtures: pytest-asyncio sets a fixture up in a task, and tears it down in a different task."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

T = TypeVar("T")


def needs_own_task() -> bool:
    """Return True if pytest is setting up a fixture, on asyncio: what is entered now may be left in another task.

    The call stack answers it, because the plugin's event loop runs inside pytest's set-up of the fixture. A hook around
    that set-up would answer it too, and would run for every fixture of every project that has this package installed.
    On trio the plugins keep to one task.
    """
    try:
        if asyncio.current_task() is None:
            return False
    except RuntimeError:
        return False
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "pytest_fixture_setup" and frame.f_globals.get("__name__") == "_pytest.fixtures":
            return True
        frame = frame.f_back
    return False


@asynccontextmanager
async def in_own_task(context: AbstractAsyncContextManager[T, Any]) -> AsyncGenerator[T]:
    """Enter and leave ``context`` in a single, separate task, as a task group requires. For asyncio only.

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
            exits.append(error)  # a task that raised it would stop the event loop: the fixture below raises it

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
        life.cancel()  # if it still runs
