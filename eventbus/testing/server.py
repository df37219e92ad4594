"""A Kafka server that starts in a tenth of a second: the wire server on a private log, for tests."""

from __future__ import annotations

import asyncio
import itertools
import threading
from typing import Unpack

from eventbus.client.bus import EventBus
from eventbus.client.keywords import BusOptions, LogOptions
from eventbus.errors import ConfigError
from eventbus.server import Listener, Server, ServerConfig

_numbers = itertools.count(1)


class KafkaServer(Server):
    """A server for Kafka clients: ``async with KafkaServer() as server:``, then use ``server.bootstrap``.

    ``with KafkaServer() as server:`` runs it in a separate thread, for tests that block. It uses a free port of the
    loopback interface, in memory unless a ``url`` is given; topics are created on first use, and sessions of groups may
    be short. ``settings`` are those of the log (`BrokerConfig`).
    """

    __test__ = False

    def __init__(
        self, url: str | None = None, config: ServerConfig | None = None, **settings: Unpack[LogOptions]
    ) -> None:
        self._settings: LogOptions = {"auto_create_topics": True, "group_min_session_timeout_ms": 10, **settings}
        super().__init__(
            url or f"memory://kafka-server-{next(_numbers)}",
            config or ServerConfig(listeners=(Listener(port=0),)),
            self._settings,
        )
        self._thread: _ServerThread | None = None

    def bus(self, **options: Unpack[BusOptions]) -> EventBus:
        """Return a bus on the same log, not started: it shares topics, groups and transactions with the server's
        clients.

        Only for a server in the test's own event loop, because a log belongs to one loop. Raises ConfigError for one in
        a thread.
        """
        if self._thread is not None:
            raise ConfigError(
                "this server runs in a thread, and a log belongs to one event loop: share it with `async with "
                f'KafkaServer() as server:`, or be its client: EventBus("kafka://{self.bootstrap}")'
            )
        both: BusOptions = {**self._settings, **options}
        return EventBus(self.url, **both)

    def __enter__(self) -> KafkaServer:
        self._thread = _ServerThread(self)
        self._thread.begin()
        return self

    def __exit__(self, *_: object) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.end()


class _ServerThread(threading.Thread):
    """An event loop for one server."""

    def __init__(self, server: Server) -> None:
        super().__init__(name=f"server of {server.url}", daemon=True)
        self._server = server
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def begin(self) -> None:
        """Return when it listens. Raises the error that prevented it."""
        self.start()
        self._ready.wait()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Return when it has stopped. Raises errors of stopping."""
        if self._loop is not None and self._stopping is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self.join()
        if self._error is not None:
            raise self._error

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # raised by `begin` or `end`
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        async with self._server:
            self._loop = asyncio.get_running_loop()
            self._ready.set()
            await self._stopping.wait()
