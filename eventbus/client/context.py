"""The interface of a bus for its parts and for tools, besides the methods for users."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.backends.clock import Clock
from eventbus.backends.urls import is_durable, open_backend
from eventbus.client.admin import Admin
from eventbus.client.bus_run import BusRun, Outcome, not_running
from eventbus.client.config import consumer_settings
from eventbus.client.configuration.handlers import tuned_handlers
from eventbus.client.configuration.resolution import Configuration
from eventbus.client.consuming.restoring import Restoring
from eventbus.client.declared import Declared
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.handling.runner import Runner
from eventbus.client.health import BusPhase
from eventbus.client.host import Part
from eventbus.client.producer import Producer
from eventbus.client.running.start_checks import check_named_groups, unnamed_service
from eventbus.client.threads import Bridge
from eventbus.errors import ConfigError
from serdes.choose import Serdes

if TYPE_CHECKING:
    from eventbus.client.keywords import ReaderOptions


class BusContext(Declared):
    """The configuration, the log and the current run of a bus: `EventBus.context`.

    Parts of a bus, and the programs that run, inspect or test one, use it. A service does not need it.
    """

    def __init__(
        self,
        configuration: Configuration,
        clock: Clock,
        serdes: Serdes,
        backend: Backend | None,
        middleware: Sequence[Middleware],
    ) -> None:
        super().__init__(configuration.service, configuration.client_id, serdes)
        self.configuration = configuration
        """Every setting, and where its value comes from."""
        self.clock = clock
        log_settings = configuration.settings.log
        self.log_settings: Mapping[str, Any] = log_settings
        """The settings of the log, and those of a Kafka client."""
        self.consumer_config: Mapping[str, Any] = {
            "client_id": configuration.client_id,
            **configuration.settings.consumers,
        }
        self.backend: Backend = open_backend(configuration.url, log_settings, clock) if backend is None else backend
        self.log_is_durable: bool = is_durable(self.backend.url)
        """True if the bus's own log outlives the process. Running the bus in memory for a test does not change it, so a
        test fails where production would.
        """
        self.middleware: tuple[Middleware, ...] = check_middleware(middleware, "EventBus")
        self.admin: Admin = Admin(self.backend, self.check_home)
        self.drain_timeout_ms: int = configuration.drain_timeout_ms
        """How long records in flight may take to finish when the bus closes. Set it before the bus starts."""
        self.wedged_after_ms: int = configuration.wedged_after_ms
        self.bus_run: BusRun | None = None
        """The current run; None while the bus is stopped."""
        self.outcome = Outcome()
        """The result of the last run."""

    @property
    def is_running(self) -> bool:
        return self.bus_run is not None

    @property
    def phase(self) -> BusPhase:
        """The phase of the current run; may be read in any thread."""
        bus_run = self.bus_run
        return "stopped" if bus_run is None else bus_run.phase

    @property
    def runners(self) -> tuple[Runner, ...]:
        """One runner for each handler, in the order of their declaration; empty while the bus is stopped."""
        bus_run = self.bus_run
        return () if bus_run is None else tuple(bus_run.runners)

    def handlers_in_force(self) -> list[Handler[Any, Any]]:
        """Return the handlers with their settings from the configuration file. Raises ConfigError for a wrong one."""
        return tuned_handlers(self.handlers, self.configuration.outside.handlers)

    def check_names(self) -> None:
        """Raise ConfigError for handlers that only a default would name, if the log is durable.

        Another service may have the same default.
        """
        if self.service is None and self.log_is_durable:
            check_named_groups(self.handlers, self.client_id)
        for handler in self.handlers:
            if handler.spec.is_firing:
                self.check_service(f"@bus.every: {handler.__name__!r}")

    def check_service(self, what: str) -> None:
        """Raise ConfigError if ``what`` needs the service's name, which is missing, and the log is durable."""
        if self.service is None and self.log_is_durable:
            raise unnamed_service(what, self.client_id)

    @contextmanager
    def on_backend(self, backend: Backend, clock: Clock, middleware: Sequence[Middleware] = ()) -> Generator[None]:
        """While inside, the bus runs on another log and clock; handlers, topics and serdes stay.

        ``middleware`` goes around the bus's own. For tests of an application's bus: enter it while the bus is stopped,
        leave it when it is stopped again; ConfigError otherwise.
        """
        if self.is_running:
            raise ConfigError("on_backend: the bus is running already; enter it before the bus starts")
        before = self.backend, self.clock, self.admin, self.middleware
        self.backend, self.clock, self.admin = backend, clock, Admin(backend, self.check_home)
        self.middleware = (*check_middleware(middleware, "on_backend"), *self.middleware)
        try:
            yield
        finally:
            self.backend, self.clock, self.admin, self.middleware = before

    def now_ms(self) -> int:
        """Return the milliseconds since the epoch, by the clock that gives records their timestamps."""
        return self.clock()

    async def publish(self, function: ProducerFunction[..., Any, Any], value: Any) -> None:
        if value is not None:
            spec = function.spec
            producer = self.alive(function.__name__).producers.of(function)
            await producer.send(spec.topic, value, key=spec.key(value) if spec.key else None)

    # for a part, while the bus runs -----------------------------------------------------------------------------------

    def main_producer(self) -> Producer:
        """Return the producer that `EventBus.send` uses."""
        return self.alive("send").producers.main

    def reader(self, **config: Unpack[ReaderOptions]) -> BackendConsumer:
        """Return a consumer without a group that gives records in columns. The part that opens it closes it."""
        self.running("reader")
        return self.backend.consumer(consumer_settings({**self.consumer_config, **config}))

    @property
    def restoring(self) -> Restoring:
        """Undoes the interceptors' changes to records that were read with `reader`."""
        return self.running("reader").restoring

    def has_begun(self, part: Part) -> None:
        """Register a part that starts when it is first needed. It is closed after the parts that may need it."""
        self.alive("has_begun").parts.insert(0, part)

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Run a task until the bus closes. An error that it raises ends the bus."""
        self.running("start_soon").start_soon(function)

    # the current run --------------------------------------------------------------------------------------------------

    def alive(self, what: str) -> BusRun:
        """Return the run, if its tasks run. The caller checks the thread. Raises ConfigError."""
        bus_run = self.bus_run
        if bus_run is None or not bus_run.is_open:
            if bus_run is not None:
                bus_run.home.check_fork(what)
            raise not_running(what)
        return bus_run

    def running(self, what: str) -> BusRun:
        """Return the run, if its tasks run and the caller is a task of its event loop. Raises ConfigError."""
        bus_run = self.alive(what)
        bus_run.home.check(what)
        return bus_run

    def check_home(self, what: str) -> None:
        """Raise ConfigError if the bus runs on another event loop, or in the parent of this process."""
        bus_run = self.bus_run
        if bus_run is not None:
            bus_run.home.check(what)

    def bridge(self, what: str) -> Bridge | None:
        """Return the access of other threads to the run; None while it has none.

        May be called in any thread. Raises ConfigError in a forked child, in every phase of the parent's bus.
        """
        bus_run = self.bus_run
        if bus_run is None:
            return None
        bus_run.home.check_fork(what)
        return bus_run.bridge if bus_run.is_open else None
