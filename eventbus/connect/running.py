"""Run a connector: start it, and restart it when it fails, until it is stopped or cannot continue."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import anyio
import anyio.to_thread

from eventbus.client.handling.invocation import abandoned_threads
from eventbus.connect.connector import Connector, Context
from eventbus.connect.converters import Converter
from eventbus.errors import (
    ConfigError,
    InvalidPartitions,
    InvalidReplicationFactor,
    InvalidTopic,
    PolicyViolation,
    ProducerFenced,
    RecordTooLarge,
    SerializationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

logger = logging.getLogger("eventbus.connect")

T = TypeVar("T")
State = Literal["starting", "running", "waiting", "failed", "stopped"]

_FIRST_PAUSE_SECONDS = 1.0
_FINAL = (
    ConfigError, SerializationError, RecordTooLarge, InvalidTopic, InvalidPartitions, InvalidReplicationFactor,
    PolicyViolation, ProducerFenced,
)  # fmt: skip
"""Errors after which a restart would fail again, or do harm."""


class Run(ABC):
    """The common part of running sources and sinks."""

    kind: Literal["source", "sink"]

    def __init__(
        self,
        name: str,
        make: Callable[[Context], Connector],
        context: Context,
        key_converter: Converter,
        value_converter: Converter,
        common: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.state: State = "stopped"
        self.error: Exception | None = None
        """Why it has failed, or waits to start again."""
        self.records: int = 0
        """Records copied since the start."""
        self.errors = 0
        """Records that were skipped."""
        self.restarts = 0
        self.ended = anyio.Event()
        self._make = make
        self._context = context
        self._key_converter = key_converter
        self._value_converter = value_converter
        self._common = common
        self._stopping = False
        self._wake = anyio.Event()
        self._progress = anyio.Event()
        """Set, and replaced, when tasks that wait for this run should check again."""
        self._limiter: anyio.CapacityLimiter | None = None
        self._bus: EventBus | None = None

    @property
    def bus(self) -> EventBus:
        assert self._bus is not None
        return self._bus

    # life ------------------------------------------------------------------------------------------------------------

    def begin(self, bus: EventBus) -> None:
        """Create events before `run`, because they belong to the event loop."""
        self._bus = bus
        self._stopping = False
        self.state, self.error = "starting", None
        self.ended, self._wake, self._progress = anyio.Event(), anyio.Event(), anyio.Event()
        self._limiter = anyio.CapacityLimiter(1)

    async def run(self) -> None:
        """Run until it is stopped, or cannot continue."""
        pause = _FIRST_PAUSE_SECONDS
        try:
            while not self._stopping:
                before = self.records
                try:
                    await self._bus_run()
                except Exception as error:  # a connector may be any code, and its failure affects only itself
                    self._failed(error)
                    if isinstance(error, _FINAL):
                        return
                    pause = _FIRST_PAUSE_SECONDS if self.records > before else pause
                    self._context.note(f"{self.name}: {_describe_error(error)}; it begins again in {pause:g} s")
                    await self._wait(pause)
                    pause = min(pause * 2, self._common["errors.retry.delay.max.ms"] / 1000)
                    self.restarts += 1
                    self.state = "starting"
        finally:
            if self.state != "failed":
                self.state = "stopped"
            self.ended.set()
            self._notify()

    def _failed(self, error: Exception) -> None:
        self.error = error
        logger.debug("connector %r failed", self.name, exc_info=error)
        if isinstance(error, ProducerFenced):
            self.state = "failed"
            self._context.note(
                f"{self.name}: another worker runs a connector of this name on this log: this one stops ({error})"
            )
        elif isinstance(error, _FINAL):
            self.state = "failed"
            self._context.note(f"{self.name}: failed: {_describe_error(error)}")
        else:
            self.state = "waiting"
        self._notify()

    def _is_running(self) -> None:
        self.state, self.error = "running", None
        self._notify()

    @abstractmethod
    async def _bus_run(self) -> None:
        """Run one connector from `start` to `stop`."""

    def stop(self) -> None:
        """Finish the current work; then `ended` is set."""
        self._stopping = True
        self.hurry()

    def hurry(self) -> None:
        """End the present wait."""
        self._wake.set()

    async def _wait(self, seconds: float) -> None:
        """Wait; `hurry` ends the wait."""
        if self._stopping:
            return
        self._wake = anyio.Event()  # earlier calls of `hurry` do not apply to this wait
        with self.bus.context.backend.timers.move_on_after(seconds):
            await self._wake.wait()

    def _notify(self) -> None:
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    async def _in_thread(self, function: Callable[..., T], *args: Any) -> T:
        """Call a connector in a thread, since it may block. Only one call at a time."""
        at_work: list[threading.Thread] = []

        def work() -> T:
            at_work.append(threading.current_thread())
            try:
                return function(*args)
            finally:
                at_work.clear()

        try:
            return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
        finally:
            abandoned_threads.update(at_work)  # cancelled, while the connector waits for something that may never come

    @abstractmethod
    async def drain(self) -> bool:
        """Return when everything that exists now has been copied. Return True if there was anything."""

    # topics ----------------------------------------------------------------------------------------------------------

    async def _create_topics(self, names: set[str], partitions: int, factor: int, configs: Mapping[str, str]) -> None:
        """Create missing topics. Raises UnknownTopicOrPartition if that is not allowed."""
        there = set(await self.bus.admin.list_topics(internal=True))
        for name in sorted(names - there):
            if not self._common["topic.creation.enable"]:
                raise UnknownTopicOrPartition(
                    f"topic {name!r} does not exist, and topic.creation.enable is false: eventbus topics create {name}"
                )
            try:
                await self.bus.admin.create_topic(name, partitions, factor, configs)
            except TopicAlreadyExists:
                continue  # created by another connector meanwhile
            self._context.note(f"{self.name}: topic {name!r} created")

    def _passed_over(self, what: str, error: Exception) -> None:
        self.errors += 1
        if self._common["errors.log.enable"]:
            place = f" ({what})" if self._common["errors.log.include.messages"] else ""
            logger.error("connector %r: a record is skipped%s: %s", self.name, place, error)


def _describe_error(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    known = type(error).__module__.startswith("eventbus.")
    return text if known else f"{type(error).__name__}: {text}"
