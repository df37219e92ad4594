"""The bus: declared handlers and producers on one log."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack, overload

import msgspec

from eventbus import client
from eventbus.backends.clock import system_clock
from eventbus.backends.masking import shown_url
from eventbus.client.asking import Asking
from eventbus.client.declarations import Declarations
from eventbus.client.scheduling.scheduling import Scheduling
from eventbus.client.sending import Sending
from eventbus.durations import Milliseconds, setting_ms
from eventbus.errors import ConfigError, HandlerError
from eventbus.properties import check_keywords

if TYPE_CHECKING:
    from eventbus.backends.base import Backend
    from eventbus.client.admin import Admin
    from eventbus.client.blocking import BlockingBus
    from eventbus.client.bus_run import BusRun, Plan
    from eventbus.client.consumer import Consumer
    from eventbus.client.context import BusContext
    from eventbus.client.handling.middleware import Middleware
    from eventbus.client.health import BusHealth
    from eventbus.client.interceptors import ConsumerInterceptor, ProducerInterceptor
    from eventbus.client.keywords import BusOptions, ConsumerOptions, NewConsumerOptions, ProducerOptions
    from eventbus.client.metrics import BusMetrics
    from eventbus.client.producer import Producer
    from eventbus.client.rebalance import Listener
    from eventbus.client.schema_uses import Members
    from eventbus.client.transaction import Transaction
    from eventbus.types import ReadKeyT, ReadValueT, TopicPartition
    from serdes import Serde

logger = logging.getLogger("eventbus")


class EventBus(Declarations, Sending, Asking, Scheduling):
    """The producers and consumers of a log, declared with decorators.

    ``url``: ``memory://`` (private; ``memory://name`` is shared within the process), ``file://DIR``, ``kafka://...``.
    ``service``: the name that all processes of this service share. It names the groups of handlers that have none, and
    the topics of ``@bus.every``, delayed records and replies. A durable log refuses the former three without it.
    Keywords are settings of the log (``fsync``, ``auto_create_topics``, ``num_partitions``, ...), defaults of this
    bus's producers and consumers (``acks``, ``linger_ms``, ``compression_type``, ``session_timeout_ms``, ...), and
    settings of a Kafka client (``security_protocol``, ``client_rack``, ...). Each log ignores the settings of the
    others, so that one program runs on all of them. ``serde`` writes types without a byte format: JSON by default, or
    ``Avro("log")``. ``serdes`` maps types to custom serdes, ``clock`` returns milliseconds since the epoch, and
    ``backend`` is a log that was opened without a URL. ``middleware`` runs around every handler, outside of the
    handler's middleware; ``interceptors`` see what the producers send. ``drain_timeout_ms`` limits how long records in
    flight may take to finish when the bus closes. Then they are cancelled, and the next member handles them again.
    ``wedged_after_ms``: a handler that makes no progress for so long, although records wait, is wedged, see `health`.
    ``slow_loop_ms``: a warning names code that blocks the event loop for longer; None switches the watch off.
    A setting that is not given here is read from the environment (``EVENTBUS_LINGER_MS``), or from the file that
    ``config_file`` (or ``EVENTBUS_CONFIG``) names: docs/reference/configuration.md.
    Raises ConfigError for an unknown scheme or setting, naming the right one.

    Use it as ``async with bus:``. Entering opens the log and starts the consumers. Leaving finishes the records in
    flight, stores what was sent, commits, and closes.
    """

    def __init__(
        self,
        url: str | msgspec.UnsetType = msgspec.UNSET,
        *,
        serde: Serde | None = None,
        serdes: Mapping[type, Serde] | None = None,
        clock: Callable[[], int] = system_clock,
        backend: Backend | None = None,
        middleware: Sequence[Middleware] = (),
        interceptors: Sequence[ProducerInterceptor] = (),
        config_file: str | None = None,
        **config: Unpack[BusOptions],
    ) -> None:
        given: dict[str, Any] = {} if url is msgspec.UNSET else {"url": url}
        chosen = client.configure({**given, **config}, config_file)
        check_keywords("EventBus(...)", config)
        self._context = client.BusContext(chosen, clock, client.serdes_given(serde, serdes), backend, middleware)
        super().__init__(self._context)
        self.url = chosen.url
        self._producer_config = chosen.settings.producers
        self._slow_loop_ms = chosen.slow_loop_ms
        self._interceptors = tuple(interceptors)
        self._schedules = client.Schedules(self)

    @property
    def context(self) -> BusContext:
        """The interface for parts of a bus, and for programs that run, inspect or test one."""
        return self._context

    @property
    def admin(self) -> Admin:
        """Topics, offsets and groups."""
        return self._context.admin

    def __repr__(self) -> str:
        state = "running" if self.is_running else "stopped"
        return f"<EventBus {shown_url(self.url)} {state}, {len(self._context.handlers)} handler(s)>"

    @property
    def is_running(self) -> bool:
        """True between `start` and the end of `close`."""
        return self._context.is_running

    @property
    def failure(self) -> HandlerError | None:
        """The first handler error that stopped a partition since the last start, or None."""
        return self._context.outcome.failure

    def blocking(self) -> BlockingBus:
        """Return this bus for plain threads and programs; see `BlockingBus`."""
        return client.BlockingBus(self, self._context.bridge)

    # life ------------------------------------------------------------------------------------------------------------

    if not TYPE_CHECKING:  # a type checker says so without them

        def __enter__(self) -> None:
            raise ConfigError("with bus: it is 'async with bus:', or 'with bus.blocking() as b:' in a plain program")

        def __exit__(self, *error: object) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._close(kind, error, traceback)

    async def start(self) -> None:
        """Open the log, create declared topics, start the consumers. Pair it with `close` in the same task.

        Raises ConfigError for handlers without a group on a durable log, or that would share records by accident, for
        ``order="global"`` over partitions, and for a bus that runs; UnknownTopicOrPartition for a handler's topic that
        is not there; StorageError.
        """
        context = self._context
        if context.bus_run is not None:
            context.bus_run.home.check_fork("start")
            raise ConfigError("the bus is running already")
        for handler in context.handlers:
            handler.override(self.dependency_overrides)
        members = [(handler, context.group_of(handler)) for handler in context.handlers_in_force()]
        context.check_names()
        client.check_groups(members, context.topics)
        with client.outside_calls():  # the tasks of this bus do not belong to the call of a handler that starts it
            context.bus_run = bus_run = client.BusRun(self, self._plan(members))
            context.outcome = bus_run.outcome
            try:
                await bus_run.open()
            except BaseException:
                context.bus_run = None
                raise

    def _plan(self, members: Members) -> Plan:
        context = self._context
        middleware, interceptors = context.surroundings()
        return client.Plan(
            backend=context.backend, clock=context.clock, serdes=context.serdes, members=members,
            functions=context.producer_functions, topics=self._with_tables(context.topics),
            temporary=context.temporary, tables=tuple(context.tables.values()), parts=tuple(context.parts),
            hooks=context.hooks, schedules=self._schedules, middleware=(*middleware, *context.middleware),
            interceptors=(*interceptors, *self._interceptors), producer_config=self._producer_config,
            consumer_config=context.consumer_config, slow_loop_ms=self._slow_loop_ms,
            wedged_after_ms=context.wedged_after_ms,
        )  # fmt: skip

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Run the bus as long as a web application serves: ``FastAPI(lifespan=bus.lifespan)``.

        Starlette takes it too, and Litestar takes a list of them. Handlers run alongside the application's requests. In
        a custom lifespan, use ``async with bus:``.
        """
        async with self:
            yield

    async def close(self) -> None:
        """Finish the records in flight, within ``drain_timeout_ms``, store what was sent, commit, and close the log.

        Raises StoppedBySignal after a second signal, HandlerError of an ``on_error="crash"``, and ConfigError inside a
        handler of this bus, which would wait for itself, and in any other task than the one that started the bus.
        """
        if handler := client.inside_handler.get():
            raise ConfigError(
                f"handler {handler!r} closes the bus that runs it, and would wait for itself: call "
                "bus.stop(), which ends bus.run()"
            )
        await self._close(None, None, None)

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        bus_run = self._context.bus_run
        if bus_run is None:
            return None
        bus_run.home.check_fork("close")
        if bus_run.phase == "closing":
            return None
        bus_run.home.check_task("close")  # else it would cancel what is not the bus's
        if bus_run.phase == "starting":
            raise ConfigError("close: the bus is starting: raise an error to end that, or call bus.stop()")
        try:
            return await bus_run.close(kind, error, traceback)
        finally:
            self._context.bus_run = None

    async def run(self, *, ends_with_handlers: bool = False) -> None:
        """Run until SIGINT, SIGTERM or `stop`. Starts the bus if it is not running.

        ``ends_with_handlers``: return also when every handler has stopped (`failure` has the first error), so that the
        process can end and be started again. Without it the bus stays, to send and to report its health.

        The first signal makes this return; closing then gives the records in flight ``drain_timeout_ms``. A second
        signal, also while the bus closes, cancels them: they are not committed, and handled again after the next start.
        Then closing raises `StoppedBySignal`. Outside of the main thread signals are not received; use `stop`.
        """
        bus_run = self._context.bus_run
        if bus_run is not None and bus_run.is_open:
            bus_run.home.check("run")
            await bus_run.run(ends_with_handlers)
            return
        async with self:
            await self.run(ends_with_handlers=ends_with_handlers)

    def stop(self) -> None:
        """Make `run` return. From any thread, and from a signal handler."""
        bus_run = self._context.bus_run
        if bus_run is not None:
            bus_run.stop()

    async def drain(self) -> None:
        """Return when every handler has finished everything now in its topics, outputs and their handlers included.

        The offsets are committed, unless commits fail: those are logged and tried again in the background.
        What parts hold, as the relay of an outbox does, is published first. Raises the HandlerError of a handler that
        has stopped, and ConfigError when the bus is closed meanwhile.
        """
        if handler := client.inside_handler.get():
            raise ConfigError(
                f"handler {handler!r} waits for itself: drain() returns when all handlers are idle, "
                "so call it outside of them"
            )
        await self._running("drain").drain()

    async def health(self) -> BusHealth:
        """Return whether records go through the handlers, and the reason if not; `BusHealth.is_healthy` for a probe.

        The bus also checks this every few seconds, and logs a warning when a handler is wedged, and when it goes on.
        """
        bus_run = self._context.bus_run
        if bus_run is None:
            return client.BusHealth(status="failed", reason="the bus is not running")
        return await bus_run.health()

    def metrics(self) -> BusMetrics:
        """Return the current counters, without a request to the log: records handled, lags, Kafka's round trips."""
        bus_run = self._context.bus_run
        if bus_run is None or not bus_run.is_open:
            return client.BusMetrics()
        bus_run.home.check("metrics")
        return client.bus_metrics(bus_run.watch.metrics(), self._context.backend.statistics(), bus_run.parts)

    # sending ---------------------------------------------------------------------------------------------------------

    def _sending_producer(self, transactional: bool = True) -> Producer:
        return self._context.alive("send").producers.main

    def transaction(
        self, transactional_id: str, *, timeout_ms: Milliseconds | None = None, independent: bool = False
    ) -> Transaction:
        """Open a transaction: all its records are stored, or none: ``async with bus.transaction("importer-1") as tx:``.

        ``transactional_id`` names the writer over restarts: only the producer that opened the id last may write, and
        the transaction that a dead producer left open is aborted. Transactions of one id take turns. The log aborts a
        transaction that is open for longer than ``timeout_ms`` (``transaction_timeout_ms``, 60,000). See `Transaction`
        for the errors.

        In a handler with ``exactly_once=True``, whose own transaction is open, entering raises ConfigError.
        ``independent=True`` allows it: the transaction is committed whatever becomes of the handler's.
        """
        return self._running("transaction").transactions.transaction(
            transactional_id, setting_ms(timeout_ms), independent
        )

    async def flush(self) -> None:
        """Return when every record sent by this bus so far is stored or has failed."""
        bus_run = self._context.bus_run
        if bus_run is not None:
            bus_run.home.check("flush")
            await bus_run.producers.flush()

    async def prepare(self, topic: str, *types: Any, key: Any = None) -> None:
        """Have the schemas of these types registered, or looked up, for ``topic``: then `send_nowait` takes them.

        What is declared is prepared at start. Raises ConfigError for what the registry refuses, SchemaUnavailable.
        """
        self._running("prepare")
        await client.prepare(client.uses_of_types(topic, types, key, self._context.serdes))

    # clients ---------------------------------------------------------------------------------------------------------

    def new_producer(
        self, *, interceptors: Sequence[ProducerInterceptor] = (), **config: Unpack[ProducerOptions]
    ) -> Producer:
        """Open a producer with other settings: ``async with bus.new_producer(linger_ms=5) as producer:``.

        ``interceptors`` see its records after the bus's own. It sends from now on; leave it with `Producer.aclose`, or
        the bus closes it when it closes.
        """
        bus_run = self._running("new_producer")
        bus_run.restoring.check_known(interceptors)
        return bus_run.producers.open({**config}, interceptors)

    @overload
    def new_consumer(
        self,
        *names: str,
        key: type[ReadKeyT] = bytes,
        value: type[ReadValueT] = bytes,
        **options: Unpack[NewConsumerOptions],
    ) -> Consumer[ReadKeyT | None, ReadValueT | None]: ...

    @overload
    def new_consumer(
        self, *names: str, key: Any = bytes, value: Any = bytes, **options: Unpack[NewConsumerOptions]
    ) -> Consumer[Any, Any]: ...

    def new_consumer(
        self,
        *names: str,
        topics: str | Sequence[str] = (),
        group: str | None = None,
        pattern: str | None = None,
        partitions: Iterable[TopicPartition] = (),
        key: Any = bytes,
        value: Any = bytes,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        **config: Unpack[ConsumerOptions],
    ) -> Consumer[Any, Any]:
        """Return a consumer for a loop: ``async with bus.new_consumer("orders", group="audit") as consumer:``.

        ``partitions`` in place of topics are read without a group, also if other consumers read them. ``key`` and
        ``value`` are the types to read them as. ``interceptors`` see what `poll` returns and what is committed.
        ``on_assigned``, ``on_revoked`` and ``on_lost`` are called when the group moves partitions, see
        `RebalanceListener`. Further keywords are Kafka's keys with underscores:
        ``start``, ``isolation``, ``fetch_min_bytes``, ``group_instance_id``, ``session_timeout_ms``,
        ``partition_assignment_strategy``, ...; see `ConsumerConfig`.
        """
        bus_run = self._running("new_consumer")
        context = self._context
        settings = client.consumer_settings({**context.consumer_config, "group": group, **config})
        check_keywords("new_consumer(...)", config)
        wanted = (*names, *((topics,) if isinstance(topics, str) else topics))
        return client.Consumer(
            context.backend, lambda: context.backend.consumer(settings), settings, wanted, spawn=bus_run.start_soon,
            listener=client.RebalanceListener(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost),
            pattern=pattern, partitions=tuple(partitions), key=key, value=value, serdes=context.serdes,
            interceptors=tuple(interceptors), restoring=bus_run.restoring,
        )  # fmt: skip

    def _running(self, what: str) -> BusRun:
        return self._context.running(what)
