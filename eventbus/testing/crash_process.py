"""An application's process on a disk in memory, which may end at any instant; see `eventbus.testing.crash_points`."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from copy import copy
from types import coroutine
from typing import Any, Literal, NamedTuple, cast

import anyio

from eventbus.backends.base import LATEST
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.engine import Engine
from eventbus.broker import BrokerConfig
from eventbus.client.bus import EventBus
from eventbus.client.handling.current_record import inside_handler
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.middleware import CallNext
from eventbus.client.handling.runner import Runner
from eventbus.testing.clock import FakeClock
from eventbus.testing.crash_disk import Disk, Visible, named, partitions_of, records_of, visible
from eventbus.testing.faulty import Call, FaultyBackend, Wait
from eventbus.types import ConsumerRecord, IsolationLevel, TopicPartition

Way = Literal["kill", "cancel", "stop"]
"""How a process ends. kill: nothing of it reaches the log any more (SIGKILL, a crash). cancel: everything is
cancelled at once (a second SIGTERM, the end of a supervisor's timeout). stop: it is closed in order (SIGTERM)."""

_TURN_MS = 100
"""How far time is advanced when all tasks wait: a commit interval."""
_QUIET_TURNS = 12
"""After this many turns without a write or a call, a custom loop counts as finished: a poll takes 0.5 s."""
_STUCK_TURNS = 150
"""After this many turns, uncommitted records will stay so: a partition is stopped, or is read from its end."""


class Instant(NamedTuple):
    """A moment in the life of a process."""

    when: Literal["before", "after"]
    what: str
    nth: int
    """The occurrence, counted separately for each kind."""

    def __str__(self) -> str:
        return f"{self.when} {self.what}" + (f" (the {_ordinal(self.nth)})" if self.nth > 1 else "")


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 not in (11, 12, 13) else "th"
    return f"{number}{ending}"


class HandlerCall:
    """A call of a handler in one life."""

    __slots__ = ("handler", "is_done", "records", "sent", "swallowed")

    def __init__(self, handler: str, records: list[ConsumerRecord]) -> None:
        self.handler = handler
        self.records = [(record.topic_partition, record.offset) for record in records]
        self.is_done = False
        """True if it has returned normally."""
        self.swallowed = False
        """True if it was cancelled, and returned as if it had not been."""
        self.sent: list[tuple[str, bytes | None, bytes | None]] = []
        """The records sent on its behalf: topic, key, value."""

    def copy(self) -> HandlerCall:
        """Copy the present state of the call."""
        return copy(self)

    @property
    def label(self) -> str:
        where, first = self.records[0]
        last = self.records[-1][1]
        return f"{self.handler}({where}@{first}{f'..{last}' if last != first else ''})"


class Past(NamedTuple):
    """The remains of a life that is over."""

    survivors: Disk
    calls: list[HandlerCall]
    ended_at: Instant


_at_work: ContextVar[HandlerCall | None] = ContextVar("eventbus_crash_points_at_work", default=None)
_group: ContextVar[str | None] = ContextVar("eventbus_crash_points_group", default=None)
"""Set by the polls of a handler; the tasks that call the handler are started by them, and inherit it."""


class Settings(NamedTuple):
    """Settings shared by all lives."""

    clock: FakeClock
    config: BrokerConfig
    run: Callable[[EventBus], Awaitable[object]] | None
    limit_seconds: float


class Process:
    """One life of a process: a bus on a disk, from its start to an end of any kind."""

    def __init__(
        self,
        bus: EventBus,
        disk: Disk,
        settings: Settings,
        dies_at: Instant | int | None = None,
        way: Way = "kill",
    ) -> None:
        self.bus = bus
        self.disk = disk
        self.trace: list[Instant] = []
        self.keys: list[tuple[int, int]] = []
        """The amount written and the calls begun and ended at each instant. Equal values mean equivalent instants."""
        self.calls: list[HandlerCall] = []
        self.ended_at: Instant | None = None
        """The requested instant, once it was reached."""
        self.survivors = disk
        """The disk that the next life finds."""
        self.kept: dict[Instant, Past] | None = None
        """The remains of the process at each instant, if requested."""
        self.found: Visible = {}
        """The records that readers saw before this life began its work."""
        self.seen_at_end: Visible = {}
        self.committed: dict[str, dict[TopicPartition, int]] = {}
        self.is_stuck = False
        self.error: BaseException | None = None
        self._settings = settings
        self._dies_at = dies_at
        self._way: Way = way
        self._counts: Counter[tuple[str, str]] = Counter()
        self._events = 0
        self._is_over = False
        """True once nothing of the life counts any more."""
        self._scope = anyio.CancelScope()
        self._stop = anyio.Event()
        self._ended = False
        self._polled: set[str] = set()
        self.handlers: tuple[Runner, ...] = ()
        """The handlers, once the bus has started."""
        self._has_started = False
        self._at_work = 0
        """The number of running handler calls."""
        self._in_threads = 0
        """The number of those that are plain functions, running in threads."""
        self._progress = anyio.Event()
        inner = EmbeddedBackend("memory://", self._engine, settings.clock)
        self.backend = FaultyBackend(inner)
        self.backend.start = self._start_backend
        self.backend.hooks.append(self._step)
        disk.on_write = self._wrote

    def _engine(self) -> Engine:
        ids = itertools.count(1)
        return Engine(
            "memory://", self.disk, self._settings.config, self._settings.clock, lambda: next(ids).to_bytes(16, "big")
        )

    async def _start_backend(self) -> None:
        await self.backend.inner.start()
        self.found = visible(self.backend.engine.broker)

    # instants --------------------------------------------------------------------------------------------------------

    def _hit(self, when: Literal["before", "after"], what: str) -> bool:
        """Register an instant. Return True if the life ends there, or is already over."""
        if self.ended_at is not None:
            return self._way != "stop"
        number = self._counts[when, what] = self._counts[when, what] + 1
        instant = Instant(when, what, number)
        self.trace.append(instant)
        self.keys.append((self.disk.writes, self._events))
        if self.kept is not None and self.is_told_apart(len(self.trace) - 1):
            self.kept[instant] = Past(self.disk.copy(), [call.copy() for call in self.calls], instant)
        if instant != self._dies_at and len(self.trace) - 1 != self._dies_at:
            return False
        self.ended_at = instant
        if self._way == "stop":
            self._stop.set()
            return False
        if self._way == "kill":
            self.survivors = self.disk.copy()
            self._is_over = True
        self._scope.cancel()
        return True

    def is_told_apart(self, index: int) -> bool:
        """True if something was written, or a call began or ended, since the previous instant."""
        return index == 0 or self.keys[index] != self.keys[index - 1]

    async def _rest(self) -> None:
        """Stop here forever, unless the task is in a shielded cancellation."""
        if anyio.current_effective_deadline() == -float("inf"):
            await anyio.sleep_forever()

    def _wrote(self, partition: str) -> None:
        self._hit("after", f"write {named(partition)}")

    def _step(self, call: Call) -> Wait | None:
        if call.step == "send":
            at_work = _at_work.get()
            if call.when == "before" and at_work is not None and not self._is_over:
                at_work.sent.append((call.topic, call.key, call.value))
            if not call.is_awaited:
                return None
        if call.step == "fetch":
            _group.set(call.group)
            if call.when == "before" and call.group in self._polled:
                return None
            self._polled.add(call.group)
            if call.when == "after":
                if not call.records:
                    return None
                self._polled.discard(call.group)
        return self._rest if self._hit(call.when, _name_of(call)) else None

    # handlers --------------------------------------------------------------------------------------------------------

    async def watch(self, given: Any, call_next: CallNext) -> Any:
        """Observe each call as the outermost middleware."""
        records = cast("list[ConsumerRecord]", given if isinstance(given, list) else [given])
        call = HandlerCall(self.label(inside_handler.get(), _group.get()), records)
        if self._hit("before", f"handler {call.label}"):
            await self._rest()
        self._begins(call)
        in_thread = not self._is_async(call.handler)
        self._in_threads += in_thread
        self._at_work += 1
        try:
            result = await self.watched(call_next(given), call)
        finally:
            self._in_threads -= in_thread
            self._at_work -= 1
            progress, self._progress = self._progress, anyio.Event()
            progress.set()
        if not self._is_over and not call.swallowed:
            call.is_done = True
            self._events += 1
        if self._hit("after", f"handler {call.label}") and self._is_over:
            await self._rest()
        return result

    def _begins(self, call: HandlerCall) -> None:
        if self._is_over:
            return
        self.calls.append(call)
        self._events += 1
        _at_work.set(call)

    def label(self, name: str, group: str | None) -> str:
        """Return a handler's name, with its group if handlers of several groups have that name."""
        context = self.bus.context
        groups = {context.group_of(handler) for handler in context.handlers if handler.__name__ == name}
        return name if len(groups) <= 1 else f"{group}.{name}"

    def label_of(self, runner: Runner) -> str:
        return self.label(runner.handler.__name__, runner.group)

    def _is_async(self, handler: str) -> bool:
        return all(one.handler.signature.is_async for one in self.handlers if self.label_of(one) == handler)

    @coroutine
    def watched(self, work: Awaitable[Any], call: HandlerCall | None = None) -> Generator[Any, Any, Any]:
        """Await ``work``, which stops once the process is dead; detect whether it swallows a cancellation."""
        steps = work.__await__()
        cancelled = anyio.get_cancelled_exc_class()
        value: Any = None
        error: BaseException | None = None
        was_cancelled = False
        while True:
            try:
                waits_for = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as returned:
                if call is not None:
                    call.swallowed = was_cancelled
                return returned.value
            value = error = None
            try:
                value = yield waits_for
                if self._is_over and anyio.current_effective_deadline() == -float("inf"):
                    yield from anyio.sleep_forever().__await__()  # dead: it does not wake up to do more
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as raised:  # passed to its recipient
                error = raised
            # asyncio throws exceptions directly; trio sends them wrapped.
            raised_error = error or getattr(cast(object, value), "error", None)
            if self._way == "cancel" and self.ended_at is not None and isinstance(raised_error, cancelled):
                was_cancelled = True

    # a life ----------------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Run from start to end. Errors are stored in ``error``."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run_bus)
                await self._pump()
        except BaseExceptionGroup as errors:
            self.error = _leaf(errors)
            if not isinstance(self.error, Exception):
                raise

    async def only_publish(self) -> None:
        """Run a life in which nothing is read: the records of ``run`` are stored, and its crash is not judged."""
        done = anyio.Event()
        self.backend.hooks.insert(0, lambda call: anyio.sleep_forever if call.step == "fetch" else None)
        send = self._settings.run
        assert send is not None

        async def publish() -> None:
            try:
                async with self.bus:
                    await send(self.bus)
            except Exception as error:  # raised by the user's function or the log: stored for the caller
                self.error = error
            finally:
                done.set()

        with self.bus.context.on_backend(self.backend, self._settings.clock):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(publish)
                while not done.is_set():
                    await self._settings.clock.settle()
                    if not done.is_set():
                        await self._settings.clock.advance(ms=_TURN_MS)

    async def _run_bus(self) -> None:
        try:
            with self._scope:
                on_backend = self.bus.context.on_backend(self.backend, self._settings.clock, middleware=(self.watch,))
                with on_backend:
                    async with self.bus:
                        self.handlers = self.bus.context.runners
                        self._has_started = True
                        async with self._run_alongside():
                            await self._stop.wait()
        finally:
            self._ended = True

    @asynccontextmanager
    async def _run_alongside(self) -> AsyncGenerator[None]:
        """Run the application's own loop alongside its handlers."""
        run = self._settings.run
        if run is None:
            yield
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_application, run)
            yield
            tasks.cancel_scope.cancel()

    async def _run_application(self, run: Callable[[EventBus], Awaitable[object]]) -> None:
        await self.watched(run(self.bus))

    async def _pump(self) -> None:
        """Let time pass until the process has ended; stop it when there is nothing left to do."""
        clock = self._settings.clock
        until = clock.current_time() + self._settings.limit_seconds
        quiet, before = 0, (-1, -1)
        while True:
            await clock.settle()
            if self._ended:
                return
            if self._in_threads:
                await self._progress.wait()
                continue
            if self._ended_by_itself(until):
                continue
            now = self.disk.writes, self._events
            quiet = quiet + 1 if now == before else 0
            before = now
            if not self._stop.is_set() and self.ended_at is None and self._is_drained(quiet):
                self._look()
                self._stop.set()
                continue
            await clock.advance(ms=_TURN_MS)

    def _ended_by_itself(self, until: float) -> bool:
        if self._stop.is_set() or self.ended_at is not None or not self._has_started:
            return False
        failed = self.bus.failure is not None
        if not failed and self._settings.clock.current_time() < until:
            return False
        self.is_stuck = not failed
        self.error = self.bus.failure
        self._look()
        self._stop.set()
        return True

    def _is_drained(self, quiet: int) -> bool:
        """True if all is handled and committed, and nothing has moved for longer than a custom loop may pause."""
        if not self._has_started or (self._settings.run is not None and quiet < _QUIET_TURNS):
            return False
        broker = self.backend.engine.broker
        partitions = list(partitions_of(broker))
        for runner in self.handlers:
            committed = broker.groups.fetch_offsets(runner.group, None)
            for where in topics_of(runner.handler, partitions):
                offset = committed[where].offset if where in committed else 0
                # After the last record there may be markers of transactions, which are never committed.
                end = broker.list_offsets(where, LATEST, IsolationLevel.READ_COMMITTED).offset
                if offset < end and any(record.offset >= offset for record in records_of(broker, where, offset)):
                    return quiet >= _STUCK_TURNS and not self._at_work
        return True

    def _look(self) -> None:
        """Record the visible results of this life."""
        broker = self.backend.engine.broker
        self.seen_at_end = visible(broker)
        for runner in self.handlers:
            offsets = broker.groups.fetch_offsets(runner.group, None)
            self.committed[runner.group] = {where: one.offset for where, one in offsets.items()}


def topics_of(handler: Handler[Any, Any], partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the partitions that the handler reads."""
    spec = handler.spec
    if spec.pattern is None:
        return [where for where in partitions if where.topic in spec.topics]
    return [where for where in partitions if re.fullmatch(spec.pattern, where.topic)]


def _name_of(call: Call) -> str:
    match call.step:
        case "fetch":
            return f"poll of group {call.group}" if call.group else "poll"
        case "commit":
            return f"commit of group {call.group}"
        case "send":
            return f"send to {call.topic}"
        case _:
            name = call.step.replace("_", " ")
            return f"{name} of {call.transactional_id}" if call.transactional_id else name


def _leaf(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error inside nested groups."""
    first = errors.exceptions[0]
    return _leaf(cast("BaseExceptionGroup[BaseException]", first)) if isinstance(first, BaseExceptionGroup) else first
