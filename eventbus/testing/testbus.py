"""Buses for tests: the production engine, in memory, under a clock that only the test moves."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from eventbus.backends.urls import split_url
from eventbus.client.bus import EventBus
from eventbus.settings.setting import as_keyword
from eventbus.settings.table import rows
from eventbus.testing.clock import FakeClock
from eventbus.testing.fixtures import in_own_task, needs_own_task
from eventbus.testing.log import TestLog
from eventbus.testing.memory import MemoryLog
from serdes import Serde

if TYPE_CHECKING:
    from eventbus.client.handling.middleware import Middleware
    from eventbus.client.interceptors import ProducerInterceptor
    from eventbus.client.keywords import BusOptions, LogOptions


class TestBus(EventBus):
    """A bus on a private log in memory, with a `FakeClock`: groups, transactions, rebalances are the real ones.

    The keywords and their defaults are those of `EventBus`. Unlike there, the log lives as long as this object: a bus
    that is stopped and started again finds its records and offsets. ``log`` shows its content.
    """

    __test__ = False  # pytest would collect every class called Test...

    def __init__(
        self,
        *,
        clock: FakeClock | None = None,
        serde: Serde | None = None,
        serdes: Mapping[type, Serde] | None = None,
        middleware: Sequence[Middleware] = (),
        interceptors: Sequence[ProducerInterceptor] = (),
        **config: Unpack[BusOptions],
    ) -> None:
        self.clock = FakeClock() if clock is None else clock
        memory = MemoryLog(self.clock, _log_config(config))
        config.setdefault("drain_timeout_ms", 30_000)
        super().__init__(
            memory.backend.url,
            serde=serde,
            serdes=serdes,
            clock=self.clock,
            backend=memory.backend,
            middleware=middleware,
            interceptors=interceptors,
            **config,
        )
        self.log = TestLog(self, memory)
        self._memory = memory
        self._own_task: AbstractAsyncContextManager[None] | None = None
        """The task in which it lives when a fixture has started it."""

    async def __aenter__(self) -> Self:
        if not needs_own_task():
            await super().__aenter__()
            return self
        own_task = in_own_task(self._between())
        await own_task.__aenter__()
        self._own_task = own_task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        self._memory.closing()
        own_task, self._own_task = self._own_task, None
        if own_task is not None:
            return await own_task.__aexit__(kind, error, traceback)
        return await super().__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _between(self) -> AsyncGenerator[None]:
        await self.start()
        try:
            yield
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the bus, see `EventBus.close`. If anything waits for the clock from now on, time passes by itself."""
        self._memory.closing()
        await super().close()


@asynccontextmanager
async def in_memory(
    bus: EventBus, clock: FakeClock | None = None, **config: Unpack[LogOptions]
) -> AsyncGenerator[TestLog]:
    """Run an application's own bus on a new log in memory: ``async with in_memory(app.bus) as log:``.

    Its handlers, topics, serdes, middleware and settings stay; its URL and clock are restored at the end. ``config``
    replaces settings of the log, such as ``num_partitions=3``. Raises ConfigError if the bus is running, HandlerError
    as the bus does.
    """
    memory = MemoryLog(FakeClock() if clock is None else clock, {**log_settings_of(bus), **_log_config(config)})
    with bus.context.on_backend(memory.backend, memory.clock):
        async with in_own_task(bus) if needs_own_task() else bus:
            try:
                yield TestLog(bus, memory)
            finally:
                memory.closing()


def log_settings_of(bus: EventBus) -> dict[str, Any]:
    """Return the log's settings for ``bus``'s own URL: from its keywords, its configuration, and the URL."""
    _, _, query = split_url(bus.url)
    return _log_config({**query, **bus.context.log_settings})


def _log_config(config: Mapping[str, Any]) -> dict[str, Any]:
    values = {as_keyword(key): value for key, value in config.items()}
    return {key: value for key, value in values.items() if key in rows("log")}
