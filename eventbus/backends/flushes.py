"""The flushes of an embedded log, and the callers that wait for them.

A single thread runs the flushes in turn. Everything that was appended before a flush begins shares it: publishes,
outputs of handlers, offset commits, requests to a server::

    loop      append, wait ... append, wait    begin    append, wait ...    complete: wake those it covers, begin again
    thread                                          fsync

A flush begins in the turn of the loop after the first append, so that all tasks that were ready could append as well.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

from eventbus.backends.event_loop import EventLoop
from eventbus.backends.histogram import Histogram
from eventbus.broker import Broker
from eventbus.errors import KafkaError, StorageError, UnknownTopicOrPartition
from eventbus.log.commit import Flush
from eventbus.log.partition_log import PartitionLog
from eventbus.log.storage import OutOfDescriptors, storage_error
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.engine")

_MAX_FLUSHES = 3
"""A flush that covers a record makes it durable; after this many without that, the waiting callers get an error."""
_PAUSE_SECONDS = 0.25
"""How long a flush without a file descriptor waits, before it counts as failed and the next one begins."""

Then = Callable[[KafkaError | None], object]
"""A callback for the result of a flush: None, or the error."""


class _Running:
    """A flush that runs in the thread."""

    __slots__ = ("error", "flush", "number", "seconds")

    def __init__(self, flush: Flush, number: int) -> None:
        self.flush = flush
        self.number = number
        """The number of flushes that have begun, including this one."""
        self.error: Exception | None = None
        self.seconds = 0.0
        """The duration of the flush."""

    def run(self) -> None:
        began = time.monotonic()
        try:
            self.flush.run()
        except OutOfDescriptors as error:
            self.error = error
            time.sleep(_PAUSE_SECONDS)  # in the thread: the event loop continues, and begins no other flush meanwhile
        except Exception as error:
            self.error = error
        self.seconds = time.monotonic() - began


class _Waiter:
    """A waiting callback: for a record if ``log`` is set, else for a flush."""

    __slots__ = ("flush_number", "flushes_left", "log", "offset", "then")

    def __init__(self, then: Then, flush_number: int, log: PartitionLog | None = None, offset: int = -1) -> None:
        self.then = then
        self.flush_number = flush_number
        self.log = log
        """The log of the record. A later topic of the same name has another log, with other records."""
        self.offset = offset
        self.flushes_left = _MAX_FLUSHES


class Flushes:
    """The flushes of one open broker. All methods belong to the thread of its event loop."""

    def __init__(self, name: str, broker: Broker, waits: bool, seconds: Histogram) -> None:
        """``waits``: acknowledgements wait for flushes. ``seconds``: receives the duration of each flush."""
        self._name = name
        self._broker = broker
        self._waits = waits
        self._seconds = seconds
        self.event_loop: EventLoop | None = None
        """The event loop of the log, once one has run; see `loop`."""
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._running: _Running | None = None
        self._begun = 0
        self._done = 0
        """The number of the last flush that succeeded."""
        self._waiters: list[_Waiter] = []
        self._is_called = False
        """True if a flush begins with the loop's next turn."""
        self._is_closed = False
        self._is_out_of_descriptors = False
        """True if the last flush had no file descriptor: a single warning is enough for all that follow."""

    def __del__(self) -> None:
        self._queue.put(None)  # ends the thread

    def loop(self) -> EventLoop:
        """Return the event loop of the log: the one that runs in the first call. Raises RuntimeError if none does."""
        if self.event_loop is None:
            self.event_loop = EventLoop.running()
        return self.event_loop

    @property
    def is_running(self) -> bool:
        return self._running is not None

    # waiting ---------------------------------------------------------------------------------------------------------

    async def wait_durable(self, topic_partition: TopicPartition, offset: int) -> None:
        """Return when the record at ``offset`` is as durable as the log's policy promises; see `wait_flushed`."""
        if not self._broker.is_durable(topic_partition, offset):
            await self.wait_flushed(topic_partition, offset)

    async def wait_flushed(self, topic_partition: TopicPartition, offset: int) -> None:
        """Do what `wait_durable` does for a record that was appended just now to a log whose acks wait for flushes.

        Raises what `when_durable` passes to its callback: then nothing was promised.
        """
        outcome = (self.event_loop or self.loop()).new_outcome()
        self._waiters.append(_Waiter(outcome, 0, self._broker.log(topic_partition), offset))
        self.begin_soon()
        error = await outcome
        if error is not None:
            raise error

    async def flush_all(self) -> None:
        """Return when everything appended so far is on disk, whatever the policy. Raises StorageError."""
        if self._broker.has_unsynced or self._running is not None:
            outcome = self.loop().new_outcome()
            self._waiters.append(self._for_all(outcome))
            self.begin_soon()
            error = await outcome
            if error is not None:
                raise error

    def when_durable(self, topic_partition: TopicPartition, offset: int, then: Then) -> None:
        """Call ``then`` when the record at ``offset`` is as durable as the log's policy promises: at once if it is.

        Otherwise the call follows the flush that covers the record, in the order of these requests. Its argument is
        None, or the error: LogPoisoned, UnknownTopicOrPartition if the topic was deleted meanwhile, StorageError.
        """
        try:
            durable = self._broker.is_durable(topic_partition, offset)
        except KafkaError as error:
            self._call(then, error)
            return
        if durable:
            self._call(then, None)
        else:
            self._waiters.append(_Waiter(then, 0, self._broker.log(topic_partition), offset))
            self.begin_soon()

    def when_flushed(self, then: Then) -> None:
        """Call ``then`` when everything appended so far is as durable as the log's policy promises.

        For changes of groups and transactions, which are few. See `when_durable`.
        """
        if not self._waits:
            self._call(then, None)
        elif not (self._broker.has_unsynced or self._running):
            self._call(then, self._health())
        else:
            self._waiters.append(self._for_all(then))
            self.begin_soon()

    def _for_all(self, then: Then) -> _Waiter:
        """Return a waiter for the next flush that covers all appends; a running flush may have begun before the last
        append."""
        return _Waiter(then, self._begun + self._broker.has_unsynced)

    # flushing --------------------------------------------------------------------------------------------------------

    def begin_soon(self) -> None:
        """Begin a flush with the loop's next turn. It covers all that is appended until then."""
        if self._running is None and not self._is_called:
            self._is_called = True
            (self.event_loop or self.loop()).call_soon(self._guarded, self._begin_called)

    def _begin_called(self) -> None:
        self._is_called = False
        if (self._waiters or self._broker.has_unsynced) and not self._is_closed:
            self.begin()

    def begin(self) -> None:
        """Begin a flush, unless one is running. It completes in the background."""
        if self._running is not None:
            return
        loop = self.event_loop or self.loop()
        report = functools.partial(loop.from_thread, self._guarded, self._complete)
        running = self._running = _Running(self._broker.begin_sync(), self._begun + 1)
        self._begun += 1
        if self._thread is None:
            # A daemon, so that an interpreter that exits with an open log does not wait for the next flush forever.
            self._thread = threading.Thread(
                target=_run_each, args=(self._name, self._queue), name="eventbus-flush", daemon=True
            )
            self._thread.start()
        self._queue.put(functools.partial(_run_and_report, running, report))

    def close(self) -> None:
        """Block until the running flush has ended, and begin no other."""
        self._is_closed = True
        self._queue.put(None)
        if self._running is not None and self._thread is not None:
            self._thread.join()
            self._complete(self._running)

    def fail_waiters(self, error: KafkaError) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._call(waiter.then, error)

    def _guarded(self, function: Callable[..., object], *args: object) -> None:
        """Call a function. The event loop has no caller to raise to, and waiters for the disk must not wait forever."""
        try:
            function(*args)
        except Exception as error:
            logger.exception("%s: a flush could not be begun or completed", self._name)
            if self._running is None:
                self.fail_waiters(
                    StorageError(f"{self._name} could not be flushed: {error}. Close it and open it again.")
                )

    def _complete(self, running: _Running) -> None:
        if running is not self._running:
            return  # `close` came first
        self._running = None
        try:
            self._broker.complete_sync(running.flush, running.error)
        except Exception:  # a bug, because of which no caller must wait for the disk forever
            logger.exception("%s: after a flush", self._name)
        if running.error is None:
            self._done = running.number
            self._seconds.add(running.seconds)
        is_out_of_descriptors = isinstance(running.error, OutOfDescriptors)
        if is_out_of_descriptors and not self._is_out_of_descriptors:
            logger.warning(
                "%s cannot flush. The process has no file descriptors left. It is tried again; raise `ulimit -n`.",
                self._name,
            )
        self._is_out_of_descriptors = is_out_of_descriptors
        self._call_waiters(running.error)
        if not self._is_closed and (self._waiters or (self._waits and self._broker.has_unsynced)):
            # More was appended meanwhile; its senders wait for it, were cancelled, or never waited.
            self.begin()

    def _call_waiters(self, failure: Exception | None) -> None:
        """Call the waiters whose outcome is known. What they append then shares the next flush.

        ``failure`` is the error of the flush that has just ended.
        """
        is_checked, health = False, None
        waiting: list[_Waiter] = []
        known: list[tuple[Then, KafkaError | None]] = []
        for waiter in self._waiters:
            try:
                if waiter.log is None:
                    if not is_checked:  # it looks at every partition
                        is_checked, health = True, self._health()
                    if health is not None:
                        raise health
                if self._is_done(waiter, failure):
                    known.append((waiter.then, None))
                else:
                    waiting.append(waiter)
            except KafkaError as error:
                known.append((waiter.then, error))
        self._waiters = waiting
        for then, error in known:
            self._call(then, error)

    def _is_done(self, waiter: _Waiter, failure: Exception | None) -> bool:
        log = waiter.log
        if log is None:
            done = waiter.flush_number <= self._done
        elif log.closed:
            raise UnknownTopicOrPartition(f"{log.topic_partition} was deleted before the disk had answered")
        else:
            done = waiter.offset < log.high_watermark
            if not done:
                log.raise_if_poisoned()
        waiter.flushes_left -= 1
        if not done and not waiter.flushes_left:
            if isinstance(failure, OutOfDescriptors):
                raise storage_error(failure, f"flushing {self._name}")
            raise StorageError(
                f"{_MAX_FLUSHES} flushes have not reached {log.topic_partition if log else self._name}: see the log"
            )
        return done

    def _health(self) -> KafkaError | None:
        try:
            self._broker.check_healthy()
        except KafkaError as error:
            return error
        return None

    def _call(self, then: Then, error: KafkaError | None) -> None:
        try:
            then(error)
        except Exception:  # the other waiters must get their results nevertheless
            logger.exception("%s: a callback that waited for a flush failed", self._name)


def _run_each(name: str, jobs: SimpleQueue[Callable[[], None] | None]) -> None:
    """Run jobs in the thread. It references only the queue, so that an idle thread keeps no log alive."""
    while (job := jobs.get()) is not None:
        try:
            job()
        except RuntimeError:
            logger.debug("%s: the event loop ended before its flush", name)
        del job


def _run_and_report(running: _Running, report: Callable[[_Running], object]) -> None:
    running.run()
    report(running)
