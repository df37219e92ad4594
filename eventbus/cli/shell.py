"""From a synchronous command into the event loop, and out again on a signal."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from eventbus.backends.masking import shown_url
from eventbus.cli.parser import UsageError, bootstrap_url
from eventbus.cli.properties import java_settings, properties_of
from eventbus.errors import ConfigError, UnknownTopicOrPartition

if TYPE_CHECKING:
    import argparse

    import anyio
    import anyio.abc

    from eventbus import EventBus
    from eventbus.backends.base import Backend

BOOTSTRAP = "bootstrap.servers"
_CONNECTION = re.compile(
    r"(allow\.auto|api\.version|bootstrap\.|broker\.|client\.|connections\.|debug|default\.api|delivery\.|log\.|metadata\.|"
    r"metric|receive\.|reconnect\.|request\.|retries|retry\.|sasl\.|security\.|send\.|socket\.|ssl\.|statistics\.)"
)
"""Settings of clients that are about the network, in Java's and in librdkafka's spelling."""


def run_async(main: Callable[[], Awaitable[int | None]]) -> int:
    """Run ``main`` on an event loop of its own; its answer is the exit code."""
    import anyio

    return anyio.run(main) or 0


def open_bus(
    args: argparse.Namespace, *, create: bool = False, properties: Mapping[str, str] | None = None
) -> EventBus:
    """The bus that ``--url`` names. Unless ``create``, a directory that holds no log is an error and is not made.

    ``properties``: settings of the connection to a Kafka; by default those that go with every command. A log in this
    process has no connection.
    """
    return open_log(args, create=create, properties=properties)[0]


def open_log(
    args: argparse.Namespace, *, create: bool = False, properties: Mapping[str, str] | None = None
) -> tuple[EventBus, Backend]:
    """As `open_bus`, with the log that the bus is on."""
    from eventbus import EventBus
    from eventbus.backends.urls import open_backend, split_url, system_clock
    from eventbus.client.configuration.resolution import configure
    from eventbus.settings.setting import as_keyword

    given = connection_settings(properties_of(args) if properties is None else properties)
    url = url_of(args, given)
    outside = configure({"url": url, "client_id": "eventbus-cli"}).settings.log
    try:
        scheme, rest, _ = split_url(url)
        connection = {key: value for key, value in given.items() if key != BOOTSTRAP}
        own = {**outside, **{as_keyword(key): value for key, value in connection.items()}}
        backend = open_backend(url, own if scheme == "kafka" else outside, system_clock)
        bus = EventBus(url, client_id="eventbus-cli", backend=backend)
    except ConfigError as error:
        raise UsageError(str(error) if url.startswith("kafka://") else f"--url: {error}") from error
    if scheme == "file" and not create and rest and not Path(unquote(rest)).expanduser().exists():
        raise UnknownTopicOrPartition(
            f"there is no log at {shown_url(url)} (no such directory): name another with --url, "
            f"or create a topic there: eventbus topics create NAME --url {shown_url(url)}"
        )
    return bus, backend


def url_of(args: argparse.Namespace, properties: Mapping[str, str]) -> str:
    """Return the log's URL: as an option says, else ``bootstrap.servers`` of the properties, else the default."""
    servers = properties.get(BOOTSTRAP)
    return bootstrap_url(servers) if servers and getattr(args, "url_is_default", False) else args.url


def connection_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """Those of the properties that are about a connection, under librdkafka's names. Raises UsageError."""
    return {key: value for key, value in java_settings(properties).items() if _CONNECTION.match(key)}


def own_settings(properties: Mapping[str, str]) -> dict[str, str]:
    """The others: what a producer or consumer goes by on every log. Unknown ones are refused by whom they are for."""
    return {key: value for key, value in properties.items() if not _CONNECTION.match(key)}


def own_keywords(properties: Mapping[str, str]) -> dict[str, Any]:
    """Return `own_settings` as keyword arguments, which have underscores where Kafka's names have dots."""
    return {key.replace(".", "_"): value for key, value in own_settings(properties).items()}


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
