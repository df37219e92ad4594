"""What a send gives back: one outcome per batch, shared by the handles of its records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextvars import copy_context
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from eventbus.errors import ConfigError, EventBusError
from eventbus.types import RecordMetadata

logger = logging.getLogger("eventbus.producer")

OnDelivery = Callable[[RecordMetadata | None, EventBusError | None], None]
"""Called once per record: with its metadata, or with the error."""


def this_loop() -> Any:
    """The event loop of this task; None where there is no task."""
    try:
        return anyio.lowlevel.current_token().native_token
    except RuntimeError:
        return None


class BatchDelivery:
    """The outcome of one batch: pending, stored at an offset, or failed; for all of its records, but for `failures`."""

    __slots__ = (
        "_callbacks",
        "_event",
        "_home",
        "base_offset",
        "count",
        "done",
        "error",
        "failures",
        "log_append_time_ms",
        "partition",
        "topic",
    )

    def __init__(self, topic: str, partition: int, home: Any = None) -> None:
        """``home``: the event loop that will know the outcome, and the only one that can be woken by it."""
        self.topic = topic
        self.partition = partition
        self.done = False
        self.error: EventBusError | None = None
        self.failures: dict[int, EventBusError] | None = None
        """The records, by index, that the log refused while it stored the others. ``error`` is the first of them."""
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.count = 0
        self._home = home
        self._event: anyio.Event | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def resolve(self, base_offset: int, log_append_time_ms: int) -> None:
        """Every record of the batch is stored. ``base_offset`` is -1 when nobody waited (``acks=0``)."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: EventBusError) -> None:
        """No record of the batch is stored. Logged, since a handle that nobody awaits must not hide it."""
        self.error = error
        self.failures = None
        logger.error("%d record(s) for %s-%d were not stored: %s", self.count, self.topic, self.partition, error)
        self._finish()

    def fail_some(self, failures: dict[int, EventBusError]) -> None:
        """The log refused these records, and the others are written. `resolve` tells the offset of the first."""
        self.failures = failures
        self.error = next(iter(failures.values()))
        for error in failures.values():
            logger.error("a record for %s-%d was not stored: %s", self.topic, self.partition, error)

    def error_at(self, index: int) -> EventBusError | None:
        """What kept one record from the log."""
        return self.error if self.failures is None else self.failures.get(index)

    def offset_at(self, index: int) -> int:
        """The offset of a stored record."""
        before = 0 if self.failures is None else sum(failed < index for failed in self.failures)
        return self.base_offset + index - before

    def discard(self, error: EventBusError) -> None:
        """No record of the batch is stored, as was asked for: nothing to log."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._event is not None:
            self._event.set()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # the user's code: it must not take the batches behind it with it
            logger.exception("a delivery callback for %s-%d raised", self.topic, self.partition)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the outcome is known; at once if it is. What it raises is logged."""
        if self.done:
            self._call(callback)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        """Return when the outcome is known, good or bad. Raises ConfigError in an event loop that cannot know it."""
        if not self.done:
            if self._home is not None and self._home is not this_loop():
                raise ConfigError(
                    f"a record for {self.topic}-{self.partition} was awaited in another event loop than it was sent "
                    "in, and is still on its way: await it there, or use `with bus.blocking() as b:` here, whose "
                    "b.send_nowait(...) gives a future that any thread can wait for"
                )
            await self.event.wait()

    @property
    def event(self) -> anyio.Event:
        """Set when the outcome is known, while it is open. For tasks that are surely of the right loop: no check."""
        if self._event is None:
            self._event = anyio.Event()
        return self._event


class Delivery(msgspec.Struct, gc=False):
    """The handle of one sent record. Await it for its `RecordMetadata`; it raises what kept the record from the log."""

    batch: BatchDelivery
    index: int
    timestamp_ms: int

    def done(self) -> bool:
        """The outcome is known."""
        return self.batch.done

    def exception(self) -> EventBusError | None:
        """What went wrong, or None; None too while the outcome is open."""
        batch = self.batch
        return None if batch.error is None else batch.error_at(self.index)

    def result(self) -> RecordMetadata:
        """The metadata. Raises the delivery's error, or RuntimeError while the outcome is open."""
        batch = self.batch
        if not batch.done:
            raise RuntimeError("the record is still on its way: await the delivery, or flush the producer first")
        if batch.error is None:
            offset = batch.base_offset + self.index if batch.base_offset >= 0 else -1
        else:
            error = batch.error_at(self.index)
            if error is not None:
                raise error
            offset = batch.offset_at(self.index) if batch.base_offset >= 0 else -1
        timestamp_ms = batch.log_append_time_ms if batch.log_append_time_ms >= 0 else self.timestamp_ms
        return RecordMetadata(batch.topic, batch.partition, offset, timestamp_ms)

    def add_callback(self, on_delivery: OnDelivery) -> None:
        """Call ``on_delivery(metadata, error)`` once; at once if the outcome is known.

        The callback runs in the context variables of the caller: a call of another handler may learn the outcome first.
        """
        context = copy_context()

        def call() -> None:
            error = self.exception()
            context.run(on_delivery, None if error is not None else self.result(), error)

        self.batch.when_done(call)

    async def wait(self) -> None:
        """Return when the outcome is known, good or bad."""
        await self.batch.wait()

    async def _result(self) -> RecordMetadata:
        await self.batch.wait()
        return self.result()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._result().__await__()
