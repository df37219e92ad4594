"""The bus: declared handlers and producers on one log."""

from __future__ import annotations

import logging
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.backends.clock import Clock
from eventbus.backends.masking import shown_url
from eventbus.backends.urls import open_backend, system_clock
from eventbus.broker import TopicSpec
from eventbus.client.admin import Admin
from eventbus.client.blocked_loop import watch_loop
from eventbus.client.config import consumer_settings
from eventbus.client.configuration.choose import Configuration, configure
from eventbus.client.configuration.handlers import tuned_handlers
from eventbus.client.consumer import Consumer
from eventbus.client.declarations import Declarations, Drains, Part
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.handling.runner import Runner, inside_handler
from eventbus.client.health import BusHealth, BusPhase
from eventbus.client.health_watch import HealthWatch
from eventbus.client.interceptors import ConsumerInterceptor, ProducerInterceptor
from eventbus.client.metrics import BusMetrics, bus_metrics
from eventbus.client.producer import Producer
from eventbus.client.producers import Producers
from eventbus.client.rebalance import Listener, RebalanceListener
from eventbus.client.requests import Asking, replying
from eventbus.client.scheduling.schedules import Schedules
from eventbus.client.scheduling.scheduling import Scheduling
from eventbus.client.schema_uses import SchemaUse, prepare, uses_of, uses_of_types
from eventbus.client.sending import Sending
from eventbus.client.signals import hear_signals
from eventbus.client.single_error import SingleError, passing_on
from eventbus.client.start_checks import check_groups, prepare_topics
from eventbus.client.threads import Bridge
from eventbus.client.transaction import Transaction, Transactions
from eventbus.errors import ConfigError, HandlerError, StoppedBySignal
from eventbus.types import TopicPartition
from serdes import Others, SchemaSerde, Serde

if TYPE_CHECKING:
    from eventbus.client.blocking import BlockingBus

logger = logging.getLogger("eventbus")


class EventBus(Declarations, Sending, Asking, Scheduling):
    """Producers and consumers of one log, declared with decorators.

    ``url``: ``memory://`` (private; ``memory://name`` is shared within the process), ``file://DIR``, ``kafka://...``.
    Keywords: the log's settings (``fsync``, ``auto_create_topics``, ``num_partitions``, ...), the defaults of this
    bus's producers and consumers (``acks``, ``linger_ms``, ``compression_type``, ``session_timeout_ms``, ...), and what
    a Kafka's clients are told (``security_protocol``, ``client_rack``, ...), which other logs pass over, as ``kafka://``
    does with ``fsync`` and the like: one program runs on all of them. ``serde`` is what types without a byte format of
    their own are written in: JSON by default, ``Avro("log")`` for one. ``serdes`` maps types to serdes of your own,
    ``clock`` gives milliseconds since the epoch, ``backend`` is a log opened by other means than a URL.
    ``middleware`` runs around every handler, outside of the handler's own, ``interceptors`` see what its producers
    send. ``drain_timeout_ms``: how long records at work may take to finish when the bus closes; then they are
    cancelled, and handled again by whoever comes next.
    ``wedged_after_ms``: a handler that has not moved for so long, though records wait, is wedged, see `health`.
    ``slow_loop_ms``: code that blocks the event loop for longer is named in a warning; None: do not look.
    What is not said here may stand in the environment (``EVENTBUS_LINGER_MS``), or in the file that ``config_file`` (or
    ``EVENTBUS_CONFIG``) names: docs/configuration.md.
    Raises ConfigError for an unknown scheme or setting, naming the right one.

    Use it as ``async with bus:``: entering opens the log and starts the consumers; leaving finishes the records at
    work, stores what was sent, commits, and closes.
    """

    def __init__(
        self,
        url: str | msgspec.UnsetType = msgspec.UNSET,
        *,
        client_id: str | msgspec.UnsetType = msgspec.UNSET,
        serde: Serde | None = None,
        serdes: Mapping[type, Serde] | None = None,
        clock: Callable[[], int] = system_clock,
        backend: Backend | None = None,
        middleware: Sequence[Middleware] = (),
        interceptors: Sequence[ProducerInterceptor] = (),
        drain_timeout_ms: int | msgspec.UnsetType = msgspec.UNSET,
        wedged_after_ms: int | msgspec.UnsetType = msgspec.UNSET,
        slow_loop_ms: int | msgspec.UnsetType | None = msgspec.UNSET,
        config_file: str | None = None,
        **config: Any,
    ) -> None:
        said = {
            "url": url, "client_id": client_id, "drain_timeout_ms": drain_timeout_ms,
            "wedged_after_ms": wedged_after_ms, "slow_loop_ms": slow_loop_ms,
        }  # fmt: skip
        self.configuration: Configuration = configure(said, config, config_file)
        """What it goes by, and where each setting stands."""
        chosen, settings = self.configuration, self.configuration.settings
        url, client_id = chosen.url, chosen.client_id
        super().__init__(client_id)
        self.url = url
        self._clock = clock
        self._serdes: dict[type, Serde] = {**({} if serde is None else {Others: serde}), **(serdes or {})}
        self._producer_config = settings.producers
        self._consumer_config = {"client_id": client_id, **settings.consumers}
        self.log_settings: Mapping[str, Any] = settings.log
        """Those of the keywords that are the log's, and what a Kafka's clients are told."""
        self._backend = open_backend(url, settings.log, clock) if backend is None else backend
        self._middleware: tuple[Middleware, ...] = check_middleware(middleware, "EventBus")
        self._around: tuple[Middleware, ...] = ()
        """While it runs: all that goes around every handler."""
        self.set_drain_timeout(chosen.drain_timeout_ms)
        self.wedged_after_ms = chosen.wedged_after_ms
        self._slow_loop_ms = chosen.slow_loop_ms
        self._health: HealthWatch | None = None
        self._interceptors = tuple(interceptors)
        self._schedules = Schedules(self)
        self._producers: Producers | None = None
        """While it runs."""
        self._transactions = Transactions(self.new_producer, self._backend.timers)
        self._runners: list[Runner] = []
        self._started: list[Part] = []
        """Parts that are to be closed."""
        self._tasks: anyio.abc.TaskGroup | None = None
        self._is_starting = False
        self._stack: AsyncExitStack | None = None
        self._bridge: Bridge | None = None
        """What other threads reach this bus by, while it runs."""
        self._progress = anyio.Event()
        self._draining = anyio.Lock()
        self._stop_asked = anyio.Event()
        self._hears_signals = False
        self._stopped_by: signal.Signals | None = None
        self.failure: HandlerError | None = None
        """The first handler error that stopped a partition since the last start; None while all is well."""
        self.cut_off = False
        """Whether closing has cancelled records at work because their time was over (``drain_timeout_ms``)."""
        self.admin: Admin = Admin(self._backend, self._check_home)
        """Topics, offsets and groups."""

    def handlers_in_force(self) -> list[Handler[Any, Any]]:
        """The handlers with what the configuration file says of each. Raises ConfigError for what it says wrong."""
        return tuned_handlers(self._handlers, self.configuration.outside.handlers)

    @property
    def producer_functions(self) -> tuple[ProducerFunction[Any, Any], ...]:
        """What is declared to publish, in its order."""
        return tuple(self._functions)

    @property
    def declared_topics(self) -> Mapping[str, TopicSpec]:
        """What the bus creates at start where it is missing, by name."""
        return dict(self._topics)

    def __repr__(self) -> str:
        state = "running" if self._tasks is not None else "stopped"
        return f"<EventBus {shown_url(self.url)} {state}, {len(self._handlers)} handler(s)>"

    @property
    def is_running(self) -> bool:
        """Between `start` and the end of `close`."""
        return self._tasks is not None

    @property
    def phase(self) -> BusPhase:
        """Where in its life it is; may be read in any thread."""
        if self._is_starting:
            return "starting"
        return "stopped" if self._tasks is None else "closing" if self._stack is None else "running"

    def set_drain_timeout(self, drain_timeout_ms: int) -> None:
        """As the argument of that name: for whoever runs the bus, before it starts."""
        self._drain_seconds = self._hooks.timeout_seconds = drain_timeout_ms / 1000

    @property
    def drain_timeout_ms(self) -> int:
        """How long records at work may take to finish when it closes."""
        return round(self._drain_seconds * 1000)

    @property
    def serdes(self) -> Mapping[type, Serde]:
        """The serdes of one's own, by type."""
        return self._serdes

    @property
    def runners(self) -> tuple[Runner, ...]:
        """What runs the handlers, one for each, in the order of their declaration; empty while the bus is stopped."""
        return tuple(self._runners)

    @contextmanager
    def on_backend(self, backend: Backend, clock: Clock, middleware: Sequence[Middleware] = ()) -> Generator[None]:
        """While inside, the bus runs on that log and clock instead of its own; handlers, topics and serdes stay.

        ``middleware`` goes around the bus's own. For tests of an application's bus: enter it while the bus is stopped,
        leave it when it is stopped again; ConfigError otherwise.
        """
        if self.is_running:
            raise ConfigError("on_backend: the bus is running already; enter it before the bus starts")
        before = self._backend, self._clock, self.admin, self._middleware
        self._backend, self._clock, self.admin = backend, clock, Admin(backend, self._check_home)
        self._middleware = (*check_middleware(middleware, "on_backend"), *self._middleware)
        self._transactions = Transactions(self.new_producer, backend.timers)
        try:
            yield
        finally:
            self._backend, self._clock, self.admin, self._middleware = before
            self._transactions = Transactions(self.new_producer, self._backend.timers)

    def blocking(self) -> BlockingBus:
        """This bus for plain threads and plain programs, see `BlockingBus`."""
        from eventbus.client.blocking import BlockingBus  # most services never need it

        return BlockingBus(self, lambda: self._bridge)

    # life ------------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> EventBus:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._close(kind, error, traceback)

    async def start(self) -> None:
        """Open the log, create declared topics, start the consumers. Pair it with `close` in the same task.

        Raises ConfigError for handlers that would share records by accident, for ``order="global"`` over partitions,
        and for a bus that runs; UnknownTopicOrPartition for a handler's topic that is not there; StorageError.
        """
        if self._tasks is not None or self._is_starting:
            raise ConfigError("the bus is running already")
        for handler in self._handlers:
            handler.override(self.dependency_overrides)
        members = [(handler, self.group_of(handler)) for handler in self.handlers_in_force()]
        check_groups(members, self._topics)
        self._is_starting = True
        try:
            await self._open(members)
        finally:
            self._is_starting = False

    async def _open(self, members: Sequence[tuple[Handler[Any, Any], str]]) -> None:
        async with AsyncExitStack() as stack:
            await self._backend.start()
            stack.push_async_callback(self._backend.aclose)
            # Events belong to the event loop that waits for them: each start may have another one.
            self._stop_asked = anyio.Event()
            self._progress = anyio.Event()
            self._draining = anyio.Lock()
            self.failure, self.cut_off = None, False
            self._hears_signals = False
            self._stopped_by = None
            stack.callback(self._forget_run)
            stack.push_async_callback(self.admin.delete_temporary)
            topics = self._with_tables(self._topics)
            await self.admin.create_temporary([topics[name] for name in sorted(self._temporary)])
            await prepare_topics(self._backend, topics, members)
            middleware, interceptors = self._surroundings()
            self._around = (*middleware, *self._middleware)
            watch = watch_loop(self._handlers, self._around, self._slow_loop_ms, self._backend.timers)
            if watch is not None:
                stack.callback(watch.stop)
            stack.push_async_exit(SingleError())
            self._tasks = await anyio.create_task_group().__aenter__()
            stack.push_async_exit(passing_on(self._tasks.__aexit__))
            self._bridge = Bridge(self._tasks)
            self._producers = producers = Producers(
                self._backend, self._clock, self._serdes, self._producer_config,
                (*interceptors, *self._interceptors), self._tasks.start_soon, self._drain_seconds,
            )  # fmt: skip
            producers.schedules = self._schedules
            stack.push_async_exit(passing_on(self._drain_tasks))
            self._tasks.start_soon(self._backend.run)
            await self._start_parts(members)
            for handler, group in members:
                await self._start_handler(handler, group, producers)
            self._health = HealthWatch(
                self._runners,
                self._started,
                self._backend,
                self.wedged_after_ms,
                None if watch is None else watch.lately,
            )
            if members:
                self._tasks.start_soon(self._health.run)
            self._stack = stack.pop_all()

    async def _start_parts(self, members: Sequence[tuple[Handler[Any, Any], str]]) -> None:
        """What lives with the bus, then the schemas of all that is declared."""
        uses = uses_of(members, self._functions, self._serdes)
        uses += [use for table in self._tables.values() for use in table.uses(self._serdes)]
        serdes = [*self._serdes.values(), *(use.serde for use in uses)]
        sources = (serde.source for serde in serdes if isinstance(serde, SchemaSerde))
        around = (*self._around, *(one for handler, _ in members for one in handler.spec.middleware))
        for part in (*self._parts, *around, *sources):
            if isinstance(part, Part) and all(one is not part for one in self._started):
                self._started.append(part)
                await part.start(self)
        await prepare(uses)
        for table in self._tables.values():
            self._started.append(table)
            await table.start(self)
        await self._schedules.start(self)
        if self._hooks:
            self._started.append(self._hooks)
            await self._hooks.start(self)

    async def _close_parts(self) -> None:
        """The last one first; what one raises is raised when all are closed."""
        async with AsyncExitStack() as stack:
            for part in self._started:
                stack.push_async_callback(part.aclose)
            self._started.clear()

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """For a web application that is to have this bus as long as it serves: ``FastAPI(lifespan=bus.lifespan)``.

        The same for Starlette; Litestar takes a list of them. Handlers run beside the application's requests. Inside a
        lifespan of one's own it is ``async with bus:``.
        """
        async with self:
            yield

    async def close(self) -> None:
        """Finish the records at work, within ``drain_timeout_ms``, store what was sent, commit, and close the log.

        Raises StoppedBySignal after a second signal, HandlerError of an ``on_error="crash"``, and ConfigError inside a
        handler of this bus, which would wait for itself, and in any other task than the one that started the bus.
        """
        if inside_handler.get():
            raise ConfigError(
                f"handler {inside_handler.get()!r} closes the bus that runs it, and would wait for itself: call "
                "bus.stop(), which ends bus.run()"
            )
        await self._close(None, None, None)

    async def _close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._stack is None or self._bridge is None:
            return None
        self._bridge.home.check_task("close")  # else it would cancel what is not the bus's
        stack, self._stack = self._stack, None
        swallowed = await stack.__aexit__(kind, error, traceback)
        if self._stopped_by is not None and error is None:
            raise StoppedBySignal(
                f"{self._stopped_by.name} came twice: the bus was stopped at once; what was unfinished is not "
                "committed, and handled again after the next start",
                self._stopped_by,
            )
        return swallowed

    def _forget_run(self) -> None:
        self._tasks = None
        if self._bridge is not None:
            self._bridge.close()
            self._bridge = None
        self.cut_off = any(runner.cut_off for runner in self._runners)
        self._runners = []
        self._producers = None
        self._health = None
        self._requests = None
        self._transactions = Transactions(self.new_producer, self._backend.timers)
        self._notify()  # who waits in `drain` waits for nothing now

    async def _drain_tasks(self, *_: Any) -> None:
        """Stop intake, let the lanes finish, then end the background tasks."""
        is_cancelled = True
        try:
            for runner in self._runners:
                runner.stop(self._drain_seconds)
            await anyio.lowlevel.checkpoint()
            await self._until_all_have_left()
            is_cancelled = self._tasks is None or self._tasks.cancel_scope.cancel_called
        finally:
            with anyio.CancelScope(shield=True):
                if is_cancelled and self._producers is not None:
                    self._producers.last_words.end(self._drain_seconds)
                if self._tasks is not None and any(not runner.has_left for runner in self._runners):
                    # Cancelled. A plain function may be at work in its thread: what it returns needs its producer.
                    self._tasks.cancel_scope.cancel()
                    await self._until_all_have_left()
                with nullcontext() if self._producers is None else self._producers.within(self._drain_seconds):
                    try:
                        await self._close_parts()
                    finally:
                        if self._producers is not None:
                            await self._producers.aclose()
            if self._tasks is not None:
                self._tasks.cancel_scope.cancel()

    async def _until_all_have_left(self) -> None:
        while any(not runner.has_left for runner in self._runners):
            await self._progress.wait()

    async def _start_handler(self, handler: Handler[Any, Any], group: str, producers: Producers) -> None:
        config = consumer_settings({**self._consumer_config, "group": group, **handler.spec.consumer_options()})
        publish = None if handler.producer is None else partial(producers.enqueue, handler.producer)
        open_producer = partial(producers.transactional, handler)
        around = (*self._around, replying(self.send)) if handler.spec.replies else self._around
        runner = Runner(
            handler, group, self._backend, config, publish, self.flush, open_producer, self._serdes, self._notify,
            around, producers.mover, self._clock,
        )  # fmt: skip
        await runner.start(self._runners)
        self._runners.append(runner)
        assert self._tasks is not None
        self._tasks.start_soon(runner.run)

    async def run(self) -> None:
        """Run until SIGINT, SIGTERM or `stop`. Starts the bus if it is not running.

        The first signal makes this return; closing then gives the records at work ``drain_timeout_ms``. A second one,
        also while the bus closes, cancels them: they are not committed, and handled again after the next start. Then
        closing raises `StoppedBySignal`. Outside of the main thread signals are somebody else's, and `stop` works.
        """
        if self._tasks is None:
            async with self:
                await self.run()
            return
        if not self._hears_signals:
            self._hears_signals = True
            await self._tasks.start(hear_signals, self._drain_seconds, self.stop, self._stop_at_once)
        stop_asked = self._stop_asked
        await stop_asked.wait()
        if self._stop_asked is stop_asked:
            self._stop_asked = anyio.Event()

    def _stop_at_once(self, number: signal.Signals) -> None:
        self._stopped_by = number
        for runner in self._runners:
            runner.cancel()
        if self._producers is not None:
            self._producers.last_words.end()
        self.stop()

    def stop(self) -> None:
        """Make `run` return. From any thread, and from a signal handler."""
        if self._bridge is None:
            self._stop_asked.set()
        else:
            self._bridge.home.call(self._stop_asked.set)

    async def drain(self) -> None:
        """Return when every handler has finished everything now in its topics, outputs and their handlers included.

        What parts hold, as the relay of an outbox does, is published first. Raises the HandlerError of a handler that
        has stopped, and ConfigError when the bus is closed meanwhile.
        """
        if inside_handler.get():
            raise ConfigError(
                f"handler {inside_handler.get()!r} waits for itself: drain() returns when all handlers are idle, "
                "so call it outside of them"
            )
        # One at a time: a part says whether anything came since it was last asked, and two would take that from each
        # other.
        async with self._draining:
            await self._idle()
            parts = (self._schedules, *self._started)
            while any([await part.drain() for part in parts if isinstance(part, Drains)]):
                await self._idle()

    async def _idle(self) -> None:
        """Return when every handler has finished everything now in its topics."""
        while True:
            self._running("drain")
            progress = self._progress
            await self.flush()
            for runner in self._runners:
                if runner.error is not None:
                    raise runner.error
            # Nothing may have happened meanwhile: a runner asked before may have got work from one asked after it.
            if all([await runner.is_idle() for runner in self._runners]) and progress is self._progress:
                return
            await progress.wait()

    async def health(self) -> BusHealth:
        """Whether records go through the handlers, and what stands in their way; `BusHealth.is_healthy` for a probe.

        The bus looks by itself every few seconds too, and logs a warning when a handler is wedged, and when it goes on.
        """
        if self._health is None or self._stack is None:
            if self.phase == "starting":
                return BusHealth(status="starting", reason="the bus is starting")
            state = "closing" if self.phase == "closing" else "not running"
            return BusHealth(status="failed", reason=f"the bus is {state}")
        self._running("health")
        return await self._health.look()

    def metrics(self) -> BusMetrics:
        """What the bus counts, as of now and without asking anybody: records handled, lags, a Kafka's round trips."""
        if self._health is None:
            return BusMetrics()
        self._running("metrics")
        return bus_metrics(self._health.metrics(), self._backend.statistics(), self._started)

    def _notify(self) -> None:
        for runner in self._runners:
            if runner.error is not None and self.failure is None:
                self.failure = runner.error
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    # sending ---------------------------------------------------------------------------------------------------------

    def _sending_producer(self) -> Producer:
        return self._open_producers("send").main

    def _open_producers(self, what: str) -> Producers:
        producers = self._producers
        if producers is None:
            raise _not_running(what)
        return producers

    def transaction(self, transactional_id: str, *, timeout_ms: int | None = None) -> Transaction:
        """Several records, of several topics, all or nothing: ``async with bus.transaction("importer-1") as tx:``.

        ``transactional_id`` names the writer over restarts: whoever opened it last is the one that may write, and what
        a dead one left open is aborted. Transactions of one id take turns. ``timeout_ms``: one that is open for longer
        is aborted by the log (``transaction_timeout_ms``, 60,000). See `Transaction` for the errors.
        """
        self._running("transaction")
        return self._transactions.transaction(transactional_id, timeout_ms)

    def main_producer(self) -> Producer:
        """What `send` sends with: for a `Part`."""
        return self._sending_producer()

    def now_ms(self) -> int:
        """Milliseconds since the epoch, by the clock that gives records their time."""
        return self._clock()

    @property
    def backend(self) -> Backend:
        """What it runs on, for whoever builds another bus on the same log."""
        return self._backend

    async def flush(self) -> None:
        """Return when every record sent by this bus so far is stored or has failed."""
        self._check_home("flush")
        if self._producers is not None:
            await self._producers.flush()

    async def publish(self, function: ProducerFunction[Any, Any], value: Any) -> None:
        if value is not None:
            spec = function.spec
            one = self._open_producers(function.__name__).of(function)
            await one.send(spec.topic, value, key=spec.key(value) if spec.key else None)

    async def prepare(self, topic: str, *types: Any, key: Any = None) -> None:
        """Have the schemas of these types registered, or looked up, for ``topic``: then `send_nowait` takes them.

        What is declared is prepared at start. Raises ConfigError for what the registry refuses, SchemaUnavailable.
        """
        self._running("prepare")
        await prepare(uses_of_types(topic, types, key, self._serdes))

    def schema_uses(self) -> list[SchemaUse]:
        """The types that are declared to be read and written, with their serdes; asks nobody."""
        return uses_of([(one, self.group_of(one)) for one in self._handlers], self._functions, self._serdes)

    # clients ---------------------------------------------------------------------------------------------------------

    def new_producer(self, *, interceptors: Sequence[ProducerInterceptor] = (), **config: Any) -> Producer:
        """A producer with settings of its own: ``async with bus.new_producer(linger_ms=5) as producer:``.

        ``interceptors`` see its records after the bus's own. It sends from now on; leave it with `Producer.aclose`, or
        the bus closes it when it closes.
        """
        self._running("new_producer")
        return self._open_producers("new_producer").open(config, interceptors)

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
        **config: Any,
    ) -> Consumer:
        """A consumer for a loop of one's own: ``async with bus.new_consumer("orders", group="audit") as consumer:``.

        ``partitions`` in place of topics are read as they are, whoever else reads them. ``key`` and ``value`` are the
        types to read them as. ``interceptors`` see what `poll` returns and what is committed. ``on_assigned``,
        ``on_revoked`` and ``on_lost`` are called when the group moves partitions, see `RebalanceListener`. Further
        keywords are Kafka's keys with underscores:
        ``start``, ``isolation``, ``fetch_min_bytes``, ``group_instance_id``, ``session_timeout_ms``,
        ``partition_assignment_strategy``, ...; see `ConsumerConfig`.
        """
        tasks = self._running("new_consumer")
        settings = consumer_settings({**self._consumer_config, "group": group, **config})

        def open_consumer() -> BackendConsumer:
            return self._backend.consumer(settings)

        wanted = (*names, *((topics,) if isinstance(topics, str) else topics))
        return Consumer(
            self._backend,
            open_consumer,
            settings,
            wanted,
            spawn=tasks.start_soon,
            listener=RebalanceListener(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost),
            pattern=pattern,
            partitions=tuple(partitions),
            key=key,
            value=value,
            serdes=self._serdes,
            interceptors=tuple(interceptors),
        )

    def reader(self, **config: Any) -> BackendConsumer:
        """A consumer without a group that gives records in columns: for a `Part`, which closes it."""
        self._running("reader")
        return self._backend.consumer(consumer_settings({**self._consumer_config, **config}))

    def has_begun(self, part: Part) -> None:
        """A part that begins when it is first needed; it is closed behind those that may need it."""
        self._started.insert(0, part)

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a task of a `Part`, until the bus closes. What it raises ends the bus."""
        self._running("start_soon").start_soon(function)

    def _running(self, what: str) -> anyio.abc.TaskGroup:
        if self._tasks is None:
            raise _not_running(what)
        self._check_home(what)
        return self._tasks

    def _check_home(self, what: str) -> None:
        if self._bridge is not None:
            self._bridge.home.check(what)


def _not_running(what: str) -> ConfigError:
    return ConfigError(f"{what}: the bus is not running; use it inside `async with bus:`")
