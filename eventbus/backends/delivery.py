"""Results of sends: one outcome per batch, shared by the handles of its records."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, cast

import anyio
import anyio.lowlevel
import msgspec

from eventbus.errors import ConfigError, EventBusError
from eventbus.types import RecordMetadata

logger = logging.getLogger("eventbus.producer")

OnDelivery = Callable[[RecordMetadata | None, EventBusError | None], None]

"""Called once per record, with its metadata or with the error."""


def check_ran(result: object, callback: object) -> None:
    """Raise TypeError if ``callback`` returned a coroutine: callbacks are not awaited, so its body would never run."""
    if isinstance(result, Coroutine):
        cast("Coroutine[Any, Any, Any]", result).close()
        raise TypeError(
            f"{callback!r} returned a coroutine, which is not awaited. Make it a plain def; it may start a task"
        )


def this_loop() -> Any:
    """Return the event loop of this task; None outside of a task."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    try:
        return anyio.lowlevel.current_token().native_token
    except RuntimeError:
        return None


class BatchDelivery:
    """The outcome of a batch: pending, stored at an offset, or failed. It applies to all records but `failures`."""

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
        """``home``: the event loop in which the outcome is set, and the only one whose tasks can wait for it."""
        self.topic = topic
        self.partition = partition
        self.done = False
        self.error: EventBusError | None = None
        self.failures: dict[int, EventBusError] | None = None
        """The records, by index, that the log refused while it stored the rest. ``error`` is the first error."""
        self.base_offset = -1
        self.log_append_time_ms = -1
        self.count = 0
        self._home = home
        self._event: anyio.Event | None = None
        self._callbacks: list[Callable[[], None]] | None = None

    def resolve(self, base_offset: int, log_append_time_ms: int) -> None:
        """Record that the batch is stored. ``base_offset`` is -1 without acks (``acks=0``)."""
        self.base_offset = base_offset
        self.log_append_time_ms = log_append_time_ms
        self._finish()

    def fail(self, error: EventBusError) -> None:
        """Record that nothing of the batch is stored. This is logged, so that unawaited handles do not hide it."""
        self.error = error
        self.failures = None
        logger.error("%d record(s) for %s-%d were not stored: %s", self.count, self.topic, self.partition, error)
        self._finish()

    def fail_some(self, failures: dict[int, EventBusError]) -> None:
        """Record that the log refused these records, and stored the rest. `resolve` sets the offset of the first."""
        self.failures = failures
        self.error = next(iter(failures.values()))
        for error in failures.values():
            logger.error("a record for %s-%d was not stored: %s", self.topic, self.partition, error)

    def error_at(self, index: int) -> EventBusError | None:
        """Return the error of one record, or None."""
        return self.error if self.failures is None else self.failures.get(index)

    def offset_at(self, index: int) -> int:
        """Return the offset of a stored record."""
        # Refused records have no offset, so later records of the batch are stored that much earlier.
        before = 0 if self.failures is None else sum(failed < index for failed in self.failures)
        return self.base_offset + index - before

    def discard(self, error: EventBusError) -> None:
        """Record that the batch was intentionally dropped, which is not logged."""
        self.error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        if self._event is not None:
            self._event.set()
        # Taken first, because a callback may register another one on this batch.
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            self._call(callback)

    def _call(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception:  # user code: its error must not affect later batches
            logger.exception("a delivery callback for %s-%d raised", self.topic, self.partition)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once the outcome is known; at once if it is. Its exceptions are logged."""
        if self.done:
            self._call(callback)
        elif self._callbacks is None:
            self._callbacks = [callback]
        else:
            self._callbacks.append(callback)

    async def wait(self) -> None:
        """Return when the outcome is known. Raises ConfigError in an event loop that cannot wait for it."""
        if not self.done:
            # An event of another loop would never wake this task.
            if self._home is not None and self._home is not this_loop():
                raise ConfigError(
                    f"a record for {self.topic}-{self.partition} was awaited in another event loop than it was sent "
                    "in, and is still on its way: await it there, or use `with bus.blocking() as b:` here, whose "
                    "b.send_nowait(...) gives a future that any thread can wait for"
                )
            await self.event.wait()

    @property
    def event(self) -> anyio.Event:
        """An event that is set with the outcome. The task must run in the right loop, which is not checked."""
        if self._event is None:
            self._event = anyio.Event()
        return self._event


class Delivery(msgspec.Struct, gc=False):
    """The handle of one sent record. Awaiting it returns `RecordMetadata` or raises the error."""

    batch: BatchDelivery
    index: int
    timestamp_ms: int

    def done(self) -> bool:
        """True once the outcome is known."""
        return self.batch.done

    def exception(self) -> EventBusError | None:
        """Return the error, or None; also None while the outcome is open."""
        batch = self.batch
        return None if batch.error is None else batch.error_at(self.index)

    def result(self) -> RecordMetadata:
        """Return the metadata. Raises the delivery's error, or RuntimeError while the outcome is open."""
        batch = self.batch
        if not batch.done:
            raise RuntimeError("the record is still in flight: await the delivery, or flush the producer first")
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

        The callback runs in the caller's context variables, even if another handler's call triggers it.
        """
        context = copy_context()

        def call() -> None:
            error = self.exception()
            check_ran(context.run(on_delivery, None if error is not None else self.result(), error), on_delivery)

        self.batch.when_done(call)

    async def wait(self) -> None:
        """Return when the outcome is known, success or failure."""
        await self.batch.wait()

    async def _result(self) -> RecordMetadata:
        await self.batch.wait()
        return self.result()

    def __await__(self) -> Generator[Any, Any, RecordMetadata]:
        return self._result().__await__()
