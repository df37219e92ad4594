"""From a synchronous command into the event loop, and out again on a signal."""

from __future__ import annotations

import signal
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from eventbus.cli.parser import UsageError
from eventbus.errors import ConfigError, UnknownTopicOrPartition

if TYPE_CHECKING:
    import argparse

    import anyio
    import anyio.abc

    from eventbus import EventBus


def run_async(main: Callable[[], Awaitable[int | None]]) -> int:
    """Run ``main`` on an event loop of its own; its answer is the exit code."""
    import anyio

    return anyio.run(main) or 0


def open_bus(args: argparse.Namespace, *, create: bool = False, **config: Any) -> EventBus:
    """The bus that ``--url`` names. Unless ``create``, a directory that holds no log is an error and is not made."""
    from eventbus import EventBus
    from eventbus.backends.urls import split_url

    url: str = args.url
    try:
        scheme, rest, _ = split_url(url)
        bus = EventBus(url, client_id="eventbus-cli", **config)
    except ConfigError as error:
        raise UsageError(f"--url: {error}") from error
    if scheme == "file" and not create and rest and not Path(unquote(rest)).expanduser().exists():
        raise UnknownTopicOrPartition(
            f"there is no log at {url} (no such directory): name another with --url, "
            f"or create a topic there: eventbus topics create NAME --url {url}"
        )
    return bus


@asynccontextmanager
async def until_signal() -> AsyncGenerator[anyio.CancelScope]:
    """A scope that the first SIGINT or SIGTERM cancels; ``cancel_called`` tells afterwards. The second one kills."""
    import anyio

    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            await tasks.start(_cancel_on_signal, scope)
            yield scope
        tasks.cancel_scope.cancel()


async def _cancel_on_signal(scope: anyio.CancelScope, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    import anyio

    try:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                break
    except (
        NotImplementedError,
        ValueError,
        RuntimeError,
    ):  # Windows, or not the main thread: Ctrl-C stays an exception
        task_status.started()
        return
    scope.cancel()
