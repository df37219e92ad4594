"""One run of a bus, from opening its log to closing it."""

from __future__ import annotations

import logging
import signal
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext
from contextvars import copy_context
from functools import cached_property, partial
from types import TracebackType
from typing import Any, NamedTuple

import anyio
import anyio.lowlevel

from eventbus.backends.base import Backend, ConsumerConfig
from eventbus.backends.clock import Clock
from eventbus.backends.process_exit import ContainedTasks
from eventbus.broker import TopicSpec
from eventbus.client.blocked_loop import BlockedLoopWatch, watch_loop
from eventbus.client.config import consumer_settings
from eventbus.client.consuming.restoring import Restoring
from eventbus.client.declared import Drains, Surrounds
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.middleware import Middleware
from eventbus.client.handling.old_retries import with_old_retries
from eventbus.client.handling.runner import Runner
from eventbus.client.health import BusHealth, BusPhase
from eventbus.client.host import Host, Part
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.lifespan import Hooks, HooksAtWork
from eventbus.client.producer import Producer
from eventbus.client.producers import Producers
from eventbus.client.replies import Replies
from eventbus.client.requests import Requests, requests_of
from eventbus.client.running.health_watch import HealthWatch
from eventbus.client.running.signals import hear_signals
from eventbus.client.running.single_error import SingleError, passing_on
from eventbus.client.running.start_checks import prepare_topics
from eventbus.client.scheduling.schedules import Schedules
from eventbus.client.schema_uses import Members, prepare, uses_of
from eventbus.client.tables.table import Table
from eventbus.client.threads import Bridge
from eventbus.client.transaction import Transactions
from eventbus.errors import ConfigError, HandlerError, StoppedBySignal
from eventbus.types import TopicPartition
from serdes.base import SchemaSerde
from serdes.choose import Serdes

_REPORT_AFTER_SECONDS = 5.0

logger = logging.getLogger("eventbus")


class Plan(NamedTuple):
    """The declarations and settings of a bus at the start of a run."""

    backend: Backend
    clock: Clock
    members: Members
    functions: Sequence[ProducerFunction[..., Any, Any]]
    topics: Mapping[str, TopicSpec]
    temporary: Collection[str]
    """The names of the topics that are deleted when the run ends."""
    tables: Sequence[Table[Any, Any]]
    parts: Sequence[Part | Surrounds]
    hooks: Hooks
    schedules: Schedules
    serdes: Serdes
    middleware: Sequence[Middleware]
    """Middleware that goes around every handler."""
    interceptors: Sequence[ProducerInterceptor]
    """Interceptors of every producer."""
    producer_config: Mapping[str, Any]
    consumer_config: Mapping[str, Any]
    slow_loop_ms: int | None
    wedged_after_ms: int


class Outcome:
    """The result of a run; a bus keeps it after the run has ended."""

    def __init__(self) -> None:
        self.failure: HandlerError | None = None
        self.cut_off = False


class BusRun:
    """The tasks, producers, runners and parts of a bus that runs. One task starts, uses and closes it.

    The bus keeps it until its log is closed. A task that waits across the end (in `drain`, `run` or a call from a
    thread) holds this object, so it gets the result of this run and never of the next one.
    """

    def __init__(self, bus: Host, plan: Plan) -> None:
        self._bus = bus
        self._plan = plan
        self.outcome = Outcome()
        self.phase: BusPhase = "starting"
        self.is_open = False
        """True while its tasks run, so that the bus sends and reads: from within `open` until nearly the end of
        `close`.
        """
        self._context = copy_context()
        self.tasks = ContainedTasks()
        self.bridge = Bridge(self.tasks)
        """The access of other threads to the bus."""
        self.home = self.bridge.home
        self.producers = Producers(
            plan.backend, plan.clock, plan.serdes, plan.producer_config, plan.interceptors, self.start_soon,
            self._drain_seconds, plan.schedules,
        )  # fmt: skip
        self.restoring = Restoring(plan.interceptors)
        """Undoes the interceptors' changes, for every reader."""
        self._middleware = (self.restoring.around_call, *plan.middleware) if self.restoring else plan.middleware
        self.runners: list[Runner] = []
        self.parts: list[Part] = []
        """The parts that are open."""
        self._hooks = HooksAtWork(plan.hooks, bus)
        self._loop_watch: BlockedLoopWatch | None = None
        """Watches the event loop if code of handlers runs on it."""
        self.watch = HealthWatch(self.runners, self.parts, plan.backend, plan.wedged_after_ms, self._blocked_lately)
        self._stack = AsyncExitStack()
        """The steps of closing, run in reverse order."""
        self._progress: anyio.Event | None = None
        self._moves = 0
        """Counts the progress of handlers, which `drain` observes."""
        self._draining = anyio.Lock()
        self._waits: set[anyio.CancelScope] = set()
        """The scopes of the callers that wait in `drain`."""
        self._stop_asked = anyio.Event()
        self._hears_signals = False
        self._ends_with_handlers = False
        """True if `run` returns once every handler has stopped."""
        self._stopped_by: signal.Signals | None = None

    def start_soon(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a background task with the context variables of the bus's start.

        The first send of a producer, or the first request, may start such a task within a handler's call. With the
        caller's context, the task would keep the variables of that call (a tenant, bound log fields, the transaction
        joined by its sends) for as long as it runs. Tasks of `Bridge` do have the context of their callers.
        """
        self._context.copy().run(self.tasks.start_soon, function, *args)

    @property
    def _drain_seconds(self) -> float:
        return self._bus.context.drain_timeout_ms / 1000

    def check(self, what: str) -> None:
        """Raise ConfigError if its tasks do not run, or in another thread or event loop."""
        if not self.is_open:
            raise not_running(what)
        self.home.check(what)

    # opening ---------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the log, create missing topics, and start parts and handlers. If anything fails, all of it is closed."""
        plan, admin = self._plan, self._bus.admin
        async with AsyncExitStack() as stack:
            await plan.backend.start()
            stack.push_async_callback(plan.backend.aclose)
            stack.callback(self._end)
            stack.push_async_callback(admin.delete_temporary)
            await admin.create_temporary([plan.topics[name] for name in sorted(plan.temporary)])
            topics = await prepare_topics(plan.backend, plan.topics, plan.members)
            handlers = [handler for handler, _ in plan.members]
            self._loop_watch = watch_loop(handlers, plan.middleware, plan.slow_loop_ms, plan.backend.timers)
            if self._loop_watch is not None:
                stack.callback(self._loop_watch.stop)
            stack.push_async_exit(SingleError())
            await self.tasks.__aenter__()
            stack.push_async_exit(passing_on(self.tasks.__aexit__))
            self.is_open = True
            stack.push_async_exit(passing_on(self._finish))
            self.tasks.start_soon(self.bridge.serve)
            self.tasks.start_soon(plan.backend.run)
            await self._start_parts()
            members = [(handler, group, self._consumer_config(handler, group)) for handler, group in plan.members]
            for member in await with_old_retries(members, topics, plan.backend):
                await self._start_handler(*member)
            if self.runners:
                self.tasks.start_soon(self.watch.run)
            self._stack = stack.pop_all()
            self.phase = "running"

    async def _start_parts(self) -> None:
        """Start the parts, then prepare the schemas of all declared types."""
        bus, plan = self._bus, self._plan
        uses = uses_of(plan.members, plan.functions, plan.serdes)
        uses += [use for table in plan.tables for use in table.uses(plan.serdes)]
        serdes = [*plan.serdes.values(), *(use.serde for use in uses)]
        sources = (serde.source for serde in serdes if isinstance(serde, SchemaSerde))
        around = (*plan.middleware, *(one for handler, _ in plan.members for one in handler.spec.middleware))
        for part in (*plan.parts, *around, *sources):
            if isinstance(part, Part) and all(one is not part for one in self.parts):
                self.parts.append(part)
                await part.start(bus)
        await prepare(uses)
        for table in plan.tables:
            self.parts.append(table)
            await table.start(bus)
        await plan.schedules.start(bus)
        if plan.hooks:
            self.parts.append(self._hooks)
            await self._hooks.start(bus)

    def _consumer_config(self, handler: Handler[Any, Any], group: str) -> ConsumerConfig:
        return consumer_settings({**self._plan.consumer_config, "group": group, **handler.spec.consumer_options()})

    async def _start_handler(self, handler: Handler[Any, Any], group: str, config: ConsumerConfig) -> None:
        plan, producers = self._plan, self.producers
        publish = None if handler.producer is None else partial(producers.enqueue, handler.producer)
        open_producer = partial(producers.transactional, handler)
        replies = Replies(handler, self._bus, plan.serdes) if handler.spec.replies else None
        around = self._middleware if replies is None else (*self._middleware, replies.middleware)
        runner = Runner(
            handler, group, plan.backend, config, publish, producers.flush, open_producer, plan.serdes,
            self._tell if handler.spec.is_firing else self._notify, around, producers.mover, plan.clock,
            None if replies is None else replies.failed,
        )  # fmt: skip
        await runner.start(self.runners)
        self.runners.append(runner)
        self.tasks.start_soon(runner.run)

    # running ---------------------------------------------------------------------------------------------------------

    @cached_property
    def transactions(self) -> Transactions:
        """The transactions of the bus, created on first use."""

        def open_producer(**config: Any) -> Producer:
            self.check("transaction")
            return self.producers.open(config)

        return Transactions(open_producer, self._plan.backend.timers)

    @cached_property
    def requests(self) -> Requests:
        """The requests of the bus, created on first use."""
        return requests_of(self._bus, self.start_soon)

    async def run(self, ends_with_handlers: bool) -> None:
        """Return after a signal or `stop`, when the bus is closed, or when every handler has stopped."""
        self._ends_with_handlers = ends_with_handlers
        self._end_with_handlers()
        if not self._hears_signals:
            self._hears_signals = True
            await self.tasks.start(hear_signals, self._drain_seconds, self.stop, self.stop_at_once)
        stop_asked = self._stop_asked
        await stop_asked.wait()
        if self._stop_asked is stop_asked:
            self._stop_asked = anyio.Event()

    def stop(self) -> None:
        """Make `run` return. May be called from any thread."""
        self.home.check_fork("stop")
        self.home.call(self._stop_asked.set)

    def stop_at_once(self, number: signal.Signals) -> None:
        """Cancel everything after a second signal."""
        self._stopped_by = number
        for runner in self.runners:
            runner.cancel()
        self.producers.shutdown_work.end()
        self._hooks.end()
        self.stop()

    async def drain(self) -> None:
        """Wait until every handler has finished and committed all records now in its topics, and parts are drained."""
        self.home.check_fork("drain")  # another task of the parent may hold the lock
        with self._while_open("drain"):
            # One drain at a time: a part reports whether it has published since the last call, and two callers would
            # take that from each other.
            async with self._draining:
                # For scheduled functions, only what has fired by now counts, because there is always a next time.
                firings = await self._plan.schedules.fired()
                await self._idle(firings)
                parts = (self._plan.schedules, *self.parts)
                while any([await part.drain() for part in parts if isinstance(part, Drains)]):
                    await self._idle(firings)

    @contextmanager
    def _while_open(self, what: str) -> Generator[None]:
        """Raise ConfigError when the bus is closed inside, because what the caller waits for may never come."""
        with anyio.CancelScope() as scope:
            self._waits.add(scope)
            try:
                yield
            finally:
                self._waits.discard(scope)
        if scope.cancelled_caught:
            raise not_running(what)

    async def _idle(self, firings: Mapping[TopicPartition, int]) -> None:
        """Wait until every handler has finished all records now in its topics, and firings up to these end offsets."""
        while True:
            self.check("drain")
            if self.phase == "closing" and self.runners:
                raise ConfigError("drain: the bus is not running any more: its handlers take nothing more")
            progress = self._next_progress()
            await self.producers.flush()
            for runner in self.runners:
                if runner.error is not None:
                    raise runner.error
            # No handler may have moved during the checks: one that was idle may have got records from one checked after
            # it. Scheduled functions are checked first and may continue, because what they publish from then on does
            # not count.
            fired = [await one.is_idle(firings) for one in self.runners if one.handler.spec.is_firing]
            moves = self._moves
            others = [await one.is_idle() for one in self.runners if not one.handler.spec.is_firing]
            is_idle = all(fired) and all(others) and moves == self._moves
            if is_idle and all([await runner.commit_finished() for runner in self.runners]):
                return
            await progress.wait()

    def _next_progress(self) -> anyio.Event:
        """Return the event that is set when a handler makes progress. It is created on request."""
        if self._progress is None:
            self._progress = anyio.Event()
        return self._progress

    def _notify(self) -> None:
        self._moves += 1
        self._tell()

    def _tell(self) -> None:
        for runner in self.runners:
            if runner.error is not None and self.outcome.failure is None:
                self.outcome.failure = runner.error
        if self._ends_with_handlers:
            self._end_with_handlers()
        progress, self._progress = self._progress, None
        if progress is not None:
            progress.set()

    def _end_with_handlers(self) -> None:
        """Make `run` return if it ends with the handlers, and all of them have stopped."""
        if not self._ends_with_handlers or self.outcome.failure is None or self.phase == "closing":
            return
        if all(runner.has_stopped for runner in self.runners):
            self._ends_with_handlers = False
            logger.error(
                "every handler has stopped, so the bus stops. Fix the cause and start it again: each handler goes on "
                "at the record where it stopped"
            )
            self.stop()

    async def health(self) -> BusHealth:
        """Return the health of the bus; see `EventBus.health`."""
        self.home.check_fork("health")
        if self.phase == "starting":
            return BusHealth(status="starting", reason="the bus is starting")
        if self.phase == "closing":
            return BusHealth(status="failed", reason="the bus is closing")
        self.check("health")
        return await self.watch.look()

    def _blocked_lately(self, within_seconds: float) -> str:
        return "" if self._loop_watch is None else self._loop_watch.lately(within_seconds)

    # closing ---------------------------------------------------------------------------------------------------------

    async def close(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Undo what `open` did, in reverse order. Raises StoppedBySignal after a second signal."""
        self.phase = "closing"
        swallowed = await self._stack.__aexit__(kind, error, traceback)
        if self._stopped_by is not None and error is None:
            raise StoppedBySignal(
                f"{self._stopped_by.name} came twice: the bus was stopped at once; what was unfinished is not "
                "committed, and handled again after the next start",
                self._stopped_by,
            )
        return swallowed

    async def _finish(self, *_: Any) -> None:
        """Stop fetching, let records in flight finish, close the parts and producers, then end the background tasks."""
        is_cancelled, timers = True, self._plan.backend.timers
        ends_at = timers.current_time() + self._drain_seconds
        try:
            for runner in self.runners:
                runner.stop(self._drain_seconds)
            self._notify()  # callers of `drain` would wait for records that these no longer take
            await anyio.lowlevel.checkpoint()
            await self._until_all_have_left()
            is_cancelled = self.tasks.cancel_scope.cancel_called
        finally:
            with anyio.CancelScope(shield=True):
                if is_cancelled:
                    self.producers.shutdown_work.end(self._drain_seconds)
                if any(not runner.has_left for runner in self.runners):
                    # Cancelled: a plain function may still run in its thread, and its result needs its producer.
                    self.tasks.cancel_scope.cancel()
                    await self._until_all_have_left()
                publishes = self.parts or len(self.producers)
                left = max(ends_at - timers.current_time(), 0)  # a common limit for everything that closing does
                self.producers.shutdown_work.within(left)
                with self.producers.within(left) if publishes else nullcontext():
                    try:
                        await self._close_parts()
                    finally:
                        await self.producers.aclose()
            self.tasks.cancel_scope.cancel()

    async def _until_all_have_left(self) -> None:
        with self._plan.backend.timers.move_on_after(_REPORT_AFTER_SECONDS) as patience:
            while self._working():
                await self._next_progress().wait()
        if patience.cancelled_caught and (working := self._working()):
            logger.warning(
                "closing has waited for %g s for records in flight of %s, and waits up to %g s (drain_timeout_ms); a "
                "plain function in a thread cannot be interrupted", _REPORT_AFTER_SECONDS, ", ".join(working),
                self._drain_seconds,
            )  # fmt: skip
        while self._working():
            await self._next_progress().wait()

    def _working(self) -> list[str]:
        """Return the names of the handlers that have not ended."""
        return [runner.handler.__name__ for runner in self.runners if not runner.has_left]

    async def _close_parts(self) -> None:
        """Close the parts in reverse order, including those that start meanwhile. An error is raised after all are
        closed.
        """
        if self.parts:
            try:
                await self.parts.pop().aclose()
            finally:
                await self._close_parts()

    def _end(self) -> None:
        """Release the callers that wait for a task, because no task runs any more."""
        self.is_open = False
        self.bridge.close()
        self.outcome.cut_off = any(runner.cut_off for runner in self.runners)
        for scope in self._waits:
            scope.cancel()
        self._notify()
        self._stop_asked.set()


def not_running(what: str) -> ConfigError:
    """Return the error for a call that needs a bus that runs."""
    return ConfigError(f"{what}: the bus is not running; use it inside `async with bus:`")
