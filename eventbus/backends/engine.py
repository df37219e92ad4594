"""The embedded log's async shell: one `Broker`, the waits around it, and who shares it.

Everything inside the broker is synchronous, so each call on it is atomic on the event loop and no locks exist. Here
are the only waits: for a flush (one thread runs them, all waiting sends share each) and for records to arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import anyio
import anyio.from_thread
import anyio.lowlevel

from eventbus.backends.clock import Clock, monotonic_clock, timers_of
from eventbus.backends.histogram import BYTES, RECORDS, SECONDS, Histogram
from eventbus.backends.membership import Membership, Sight
from eventbus.backends.statistics import LogStatistics
from eventbus.broker import Broker, BrokerConfig
from eventbus.broker.groups import Groups
from eventbus.errors import ConfigError, EventBusError, KafkaError, StorageError, UnknownTopicOrPartition
from eventbus.forks import watch_forks
from eventbus.log.commit import Flush
from eventbus.log.memory import Copy, MemoryStorage
from eventbus.log.storage import OutOfDescriptors, Storage, storage_error
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.engine")

_TICK_MS = 1_000
_SELDOM_MS = 60_000
_TOO_LATE = 3
"""A flush that covers a record makes it durable; after so many without that, whoever waits gets an error."""
_PAUSE_SECONDS = 0.25
"""The time that a flush without a file descriptor waits, before it counts as failed and the next one begins."""


_Result = TypeVar("_Result")

Then = Callable[[KafkaError | None], object]
"""What is to be done when the disk has answered: with None when all is well."""


class _RunningFlush:
    """A flush in its thread, and those who wait for it."""

    __slots__ = ("completed", "error", "finished", "flush", "number", "seconds")

    def __init__(self, flush: Flush, number: int) -> None:
        self.flush = flush
        self.number = number
        """How many have begun before it, and this one."""
        self.finished = threading.Event()
        """Set by the thread: the disk has answered."""
        self.completed = anyio.Event()
        """Set on the loop: the watermarks tell it."""
        self.error: Exception | None = None
        self.seconds = 0.0
        """How long the disk took."""


class Queued(NamedTuple):
    """What a producer holds."""

    records: int
    size_bytes: int


class _Producer(Protocol):
    """A producer of this process, as its log counts it."""

    def queued(self) -> Queued: ...

    def tell_counts(self) -> None:
        """Tell of all that was written (`Engine.wrote`) and not told yet."""
        ...


class _Waiter:
    """A callback that waits: for a record when ``topic_partition`` is set, else for a flush."""

    __slots__ = ("flush_number", "flushes_left", "offset", "then", "topic_id", "topic_partition")

    def __init__(
        self, then: Then, flush_number: int, topic_partition: TopicPartition | None, offset: int, topic_id: str
    ) -> None:
        self.then = then
        self.flush_number = flush_number
        self.topic_partition = topic_partition
        self.offset = offset
        self.topic_id = topic_id
        """The topic's, when it was written to: a later one of the same name has other records there."""
        self.flushes_left = _TOO_LATE


class Engine:
    """One opened log. Buses of one process that name the same log share one engine."""

    _all_open: ClassVar[list[Engine]] = []

    def __init__(
        self, name: str, storage: Storage, config: BrokerConfig, clock: Clock, new_id: Callable[[], bytes]
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        """The wall clock: for timestamps that are stored, and for the age of what is stored."""
        self.now_ms: Clock = monotonic_clock(clock)
        """The monotonic clock: for sessions and timeouts. A machine's clock that is set must not expire them."""
        self.timers = timers_of(clock)
        self.waits_for_flush = storage.durable and config.fsync == "commit"
        self.topic_listeners: list[Callable[[], None]] = []
        """Told when topics are created, grown or deleted."""
        self._storage = storage
        self._new_id = new_id
        self._users = 0
        self._thread = 0
        self._broker: Broker | None = None
        self._running: _RunningFlush | None = None
        self._flusher: ThreadPoolExecutor | None = None
        self._loop: anyio.lowlevel.EventLoopToken | None = None
        """Where flushes complete. A server's callbacks run outside of any task, where it cannot be asked for."""
        self._flushes_begun = 0
        self._flushes_done = 0
        """The number of the last flush that went well."""
        self._waiters: list[_Waiter] = []
        self.flush_seconds = Histogram(SECONDS)
        self.batch_records = Histogram(RECORDS)
        self.batch_bytes = Histogram(BYTES)
        """What producers here write at a time, and how long the disk takes for all of it together."""
        self.producers: WeakSet[_Producer] = WeakSet()
        self._is_out_of_descriptors = False
        """Whether the last flush found no descriptor: one warning is enough for all that follow."""
        self._flush_called = False
        """A flush begins with the loop's next turn."""
        self._listeners: dict[TopicPartition, list[Callable[[TopicPartition], None]]] = {}
        self._members: dict[str, list[Membership]] = {}
        """The members of groups that live in this process."""
        self._next_tick_ms = 0
        self._nearer_deadline = anyio.Event()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """The log is open in the parent alone. A new bus here opens the storage itself, or is refused by its lock."""
        with contextlib.suppress(ValueError):
            Engine._all_open.remove(self)

    @classmethod
    def shared(cls, name: str, config: BrokerConfig, make: Callable[[], Engine]) -> Engine:
        """The engine called ``name``, made if nobody in this process has it open.

        Raises ConfigError when it is open with other settings: one of the two would not get what it asked for.
        """
        engine = next(iter(cls.opened(name)), None)
        if engine is None:
            return make()
        for key in BrokerConfig.__struct_fields__:
            mine, theirs = getattr(config, key), getattr(engine.config, key)
            if mine != theirs:
                raise ConfigError(
                    f"{name} is open in this process with {key}={theirs!r}, and cannot be opened with {key}={mine!r} "
                    "beside it: give all buses of a log the same settings"
                )
        return engine

    @classmethod
    def opened(cls, name: str | None = None) -> list[Engine]:
        """Those called ``name`` (or all) that are open in this process: several where each bus has one of its own."""
        return [engine for engine in cls._all_open if name in (engine.name, None)]

    @property
    def is_open(self) -> bool:
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise ConfigError(f"{self.name} is not open: use `async with bus:` or `await bus.start()` first")
        return self._broker

    def attach(self, *, clients_may_return: bool = False) -> None:
        """Open the log, or join those who have it open.

        ``clients_may_return``: who used the log before lives in other processes, and goes on when it is open again: as
        clients of a server do. Else their groups' memberships and open transactions are ended, if this opens the log.

        Blocks while the tail of the log is verified: without an await nobody can be cancelled half-way, with the
        directory locked and no one to unlock it.
        """
        if self._users and self._thread != threading.get_ident():
            raise ConfigError(
                f"{self.name} is open in another thread of this process; one event loop owns a log: "
                "share the bus, or give each thread a log of its own"
            )
        if self._broker is None:
            now_ms = self.now_ms()
            broker = self._open(now_ms)
            try:
                if not clients_may_return:
                    # Whoever had the log open before lived in another process, or left: nobody of them comes back.
                    broker.groups.drop_clients(now_ms)
                    broker.transactions.abort_all(now_ms)
            except BaseException:
                self._broker = None
                with contextlib.suppress(EventBusError):
                    broker.close(now_ms)  # or the directory stays locked, and nobody there to unlock it
                raise
            self._nearer_deadline = anyio.Event()
            self._thread = threading.get_ident()
            with contextlib.suppress(anyio.NoEventLoopError):  # opened before the loop runs: see `flush_soon`
                self._loop = anyio.lowlevel.current_token()
            Engine._all_open.append(self)
        self._users += 1

    def _open(self, now_ms: int) -> Broker:
        broker = self._broker = Broker.open(
            self._storage, self.config, now_ms=now_ms, new_id=self._new_id, wall_now_ms=self.clock()
        )
        broker.on_advance = self._advanced
        broker.groups.on_rebalance = self._rebalancing
        return broker

    def restart(self) -> None:
        """Close the log and open it again underneath those who use it, as a broker that is restarted.

        What groups and transactions keep in memory alone is forgotten; members, producers and what they have stored
        stay. For tests: it blocks, and must not meet a flush or a compaction.
        """
        assert self._running is None, "a flush is under way: restart between two"
        now_ms = self.now_ms()
        self.broker.close(now_ms)
        self._open(now_ms)
        self.topics_changed()
        self._nearer_deadline.set()

    def detach(self) -> None:
        """Leave; the last one closes the log. Blocks for its last flush."""
        self._users -= 1
        if self._users or self._broker is None:
            return
        broker = self._broker
        try:
            if self._running is not None:
                self._running.finished.wait()
                self._complete(self._running, go_on=False)
            broker.close(self.now_ms())
        except OSError as error:
            raise storage_error(error, f"closing {self.name}") from error
        finally:
            self._broker = self._loop = None
            if self._flusher is not None:
                self._flusher.shutdown(wait=False)
                self._flusher = None
            Engine._all_open.remove(self)
            self._tell_all(StorageError(f"{self.name} was closed before the disk had answered"))

    # readers in other processes --------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Let readers in other processes go as far as the log goes now, instead of within a second."""
        self.broker.publish_checkpoints(self.now_ms())

    def copy_to(self, to: Storage) -> Copy:
        """Keep a copy of a log in memory in the directory ``to``, for such readers. Raises OSError, and ConfigError for
        a log that is elsewhere.
        """
        if not isinstance(self._storage, MemoryStorage):
            raise ConfigError(f"{self.name} is kept by {type(self._storage).__name__}, and only memory is copied")
        self.publish()
        return self._storage.copy_to(to)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call ``function`` where the log lives, from any thread. Raises ConfigError when its event loop is gone."""
        if self._thread == threading.get_ident():
            return function()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # as anyio says it
                return anyio.from_thread.run_sync(function, token=self._loop)
        raise ConfigError(f"{self.name} belongs to an event loop that is not there any more: open it anew")

    # flushes ---------------------------------------------------------------------------------------------------------

    async def wait_durable(self, topic_partition: TopicPartition, offset: int) -> None:
        """Return when the record at ``offset`` is as durable as the log's policy promises; see `wait_flushed`."""
        if not self.broker.is_durable(topic_partition, offset):
            await self.wait_flushed(topic_partition, offset)

    async def wait_flushed(self, topic_partition: TopicPartition, offset: int) -> None:
        """Do what `wait_durable` does for a record that was appended just now to a log whose acks wait for flushes.

        All who wait share flushes. Raises StorageError when the flush failed: then the log is poisoned and nothing was
        promised.
        """
        if self._running is None:
            # Yield once, so that the tasks woken by the last flush can append; then one flush covers all of them.
            await anyio.lowlevel.checkpoint()
        flushes = failures = 0
        while True:
            assert flushes < _TOO_LATE, f"{flushes} flushes have not made {topic_partition} durable at {offset}"
            # The flush under way began before this record, perhaps; the one after it covers it for certain.
            flushes += self._running is None
            failures = await self._flushed(failures)
            if self.broker.is_durable(topic_partition, offset):
                return

    async def flush_all(self) -> None:
        """Return when everything appended so far is durable: for changes of groups, which are few.

        A flush that is under way may have begun before the last append. It is followed by one that covers that, which
        may have begun by the time this task runs again. Raises StorageError.
        """
        covering = self._flushes_begun + self.broker.has_unsynced
        failures = 0
        while self._flushes_done < covering and (self._running is not None or self.broker.needs_sync):
            failures = await self._flushed(failures)
            self.broker.check_healthy()

    async def _flushed(self, failures: int) -> int:
        """Wait for the flush under way, or the next one. Return how many have found no file descriptor so far.

        Raises StorageError when they were too many. What was appended stays, and a later flush covers it.
        """
        running = self.flush_soon()
        await running.completed.wait()
        if not isinstance(running.error, OutOfDescriptors):
            return failures
        if failures + 1 >= _TOO_LATE:
            raise storage_error(running.error, f"flushing {self.name}") from running.error
        return failures + 1

    def when_durable(self, topic_partition: TopicPartition, offset: int, then: Then) -> None:
        """Call ``then`` when the record at ``offset`` is as durable as the log's policy promises: at once if it is.

        Else right after the flush that covers it, in the order of these calls, with what went wrong: LogPoisoned,
        UnknownTopicOrPartition when the topic was deleted meanwhile, StorageError. For a server, on asyncio: nothing
        awaits.
        """
        broker = self.broker
        try:
            durable = broker.is_durable(topic_partition, offset)
        except KafkaError as error:
            self._tell(then, error)
            return
        if durable:
            self._tell(then, None)
        else:
            self._wait(_Waiter(then, 0, topic_partition, offset, broker.topic_id(topic_partition.topic)))

    def when_flushed(self, then: Then) -> None:
        """Call ``then`` when everything appended so far is as durable as the log's policy promises.

        As `when_durable`, for changes of groups and transactions, which are few.
        """
        broker = self.broker
        if not self.waits_for_flush:
            self._tell(then, None)
        elif not (broker.has_unsynced or self._running):
            self._tell(then, self._health())
        else:
            self._wait(_Waiter(then, self._flushes_begun + broker.has_unsynced, None, -1, ""))

    def _wait(self, waiter: _Waiter) -> None:
        self._waiters.append(waiter)
        if self._running is None and not self._flush_called:
            # Others who have sent something by now are heard in this turn of the loop: one flush for all of them.
            self._flush_called = True
            asyncio.get_running_loop().call_soon(self._flush_for_waiters)

    def _flush_for_waiters(self) -> None:
        self._flush_called = False
        if self._waiters and self._broker is not None:
            self.flush_soon()

    def _tell_waiters(self, failure: Exception | None = None) -> None:
        """Those whose outcome is known by now. What they append then shares the next flush.

        ``failure`` is the error of the flush that has just ended.
        """
        health = self._health() if any(waiter.topic_partition is None for waiter in self._waiters) else None
        waiting: list[_Waiter] = []
        told: list[tuple[Then, KafkaError | None]] = []
        for waiter in self._waiters:
            try:
                if health is not None and waiter.topic_partition is None:
                    raise health
                if self._is_done(waiter, failure):
                    told.append((waiter.then, None))
                else:
                    waiting.append(waiter)
            except KafkaError as error:
                told.append((waiter.then, error))
        self._waiters = waiting
        for then, error in told:
            self._tell(then, error)

    def _is_done(self, waiter: _Waiter, failure: Exception | None) -> bool:
        topic_partition = waiter.topic_partition
        if topic_partition is None:
            done = waiter.flush_number <= self._flushes_done
        elif self.broker.topic_id(topic_partition.topic) != waiter.topic_id:
            raise UnknownTopicOrPartition(f"{topic_partition} was deleted before the disk had answered")
        else:
            done = self.broker.is_durable(topic_partition, waiter.offset)
        waiter.flushes_left -= 1
        if not done and not waiter.flushes_left:
            if isinstance(failure, OutOfDescriptors):
                raise storage_error(failure, f"flushing {self.name}")
            raise StorageError(f"{_TOO_LATE} flushes have not reached {topic_partition or self.name}: see the log")
        return done

    def _health(self) -> KafkaError | None:
        try:
            self.broker.check_healthy()
        except KafkaError as error:
            return error
        return None

    def _tell_all(self, error: KafkaError) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            self._tell(waiter.then, error)

    def _tell(self, then: Then, error: KafkaError | None) -> None:
        try:
            then(error)
        except Exception:  # whoever waits beside it has its own answer to give
            logger.exception("%s: a callback that waited for a flush failed", self.name)

    def flush_soon(self) -> _RunningFlush:
        """Begin a flush, unless one is under way. Nobody needs to wait: it completes by itself.

        Whoever waits for it may be cancelled in any way: the outcome is not theirs to lose.
        """
        if self._running is None:
            running = self._running = _RunningFlush(self.broker.begin_sync(), self._flushes_begun + 1)
            self._flushes_begun += 1
            if self._flusher is None:
                self._flusher = ThreadPoolExecutor(1, thread_name_prefix="eventbus-flush")
            self._loop = self._loop or anyio.lowlevel.current_token()
            self._flusher.submit(self._flush_in_thread, running, self._loop)
        return self._running

    def _flush_in_thread(self, running: _RunningFlush, token: anyio.lowlevel.EventLoopToken) -> None:
        began = time.monotonic()
        try:
            running.flush.run()
        except OutOfDescriptors as error:
            running.error = error
            time.sleep(_PAUSE_SECONDS)  # in this thread: the event loop goes on, and starts no other flush meanwhile
        except Exception as error:
            running.error = error
        running.seconds = time.monotonic() - began
        running.finished.set()
        try:
            anyio.from_thread.run_sync(self._complete, running, token=token)
        except RuntimeError:
            logger.debug("%s: the event loop ended before its flush", self.name)

    def _complete(self, running: _RunningFlush, go_on: bool = True) -> None:
        if running is not self._running:
            return
        self._running = None
        broker = self.broker
        try:
            broker.complete_sync(running.flush, running.error)
        except Exception:  # whatever it is: a bug, and nobody who waits for the disk may wait for ever because of it
            logger.exception("%s: after a flush", self.name)
        if running.error is None:
            self._flushes_done = running.number
            self.flush_seconds.add(running.seconds)
        is_out_of_descriptors = isinstance(running.error, OutOfDescriptors)
        if is_out_of_descriptors and not self._is_out_of_descriptors:
            logger.warning(
                "%s cannot flush. The process has no file descriptors left. It is tried again; raise `ulimit -n`.",
                self.name,
            )
        self._is_out_of_descriptors = is_out_of_descriptors
        running.completed.set()
        self._tell_waiters(running.error)
        if go_on and self._broker is broker and (self._waiters or (self.waits_for_flush and broker.needs_sync)):
            # What came meanwhile: its senders wait for it, or were cancelled, or never waited.
            self.flush_soon()

    # counts ----------------------------------------------------------------------------------------------------------

    def wrote(self, records: int, size_bytes: float, batches: int = 1) -> None:
        """A producer of this process wrote a batch; or several, of that size on average."""
        self.batch_records.add(records, batches)
        self.batch_bytes.add(size_bytes, batches)

    def statistics(self) -> LogStatistics:
        """What was counted since the engine was made."""
        queued = [producer.queued() for producer in self.producers]
        for producer in self.producers:
            producer.tell_counts()
        return LogStatistics(
            flush_seconds=self.flush_seconds.copy(),
            batch_records=self.batch_records.copy(),
            batch_bytes=self.batch_bytes.copy(),
            queued_records=sum(one.records for one in queued),
            queued_bytes=sum(one.size_bytes for one in queued),
            rebalances=self.broker.groups.rebalances(),
        )

    # records ---------------------------------------------------------------------------------------------------------

    def listen(self, topic_partition: TopicPartition, listener: Callable[[TopicPartition], None]) -> None:
        """Call ``listener`` whenever records of the partition become readable."""
        self._listeners.setdefault(topic_partition, []).append(listener)

    def unlisten(self, topic_partition: TopicPartition, listener: Callable[[TopicPartition], None]) -> None:
        listeners = self._listeners.get(topic_partition, [])
        if listener in listeners:
            listeners.remove(listener)
        if not listeners:
            self._listeners.pop(topic_partition, None)

    def topics_changed(self) -> None:
        for listener in list(self.topic_listeners):
            listener()

    def partition_count(self, topic: str) -> int:
        """Partitions of ``topic``, created first where the log creates topics on demand."""
        broker = self.broker
        known = broker.has_topic(topic)
        count = broker.partition_count(topic)
        if not known:
            self.topics_changed()
        return count

    def _advanced(self, topic_partition: TopicPartition) -> None:
        for listener in self._listeners.get(topic_partition, ()):
            listener(topic_partition)

    # groups ----------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> Groups:
        return self.broker.groups

    def sight(self, topic: str) -> Sight:
        """A topic's id and its partition count: what a member remembers to see a change by."""
        return self.broker.topic_id(topic), self.broker.partitions_of(topic)

    def add_member(self, member: Membership) -> None:
        self._members.setdefault(member.group, []).append(member)

    def remove_member(self, member: Membership) -> None:
        members = self._members.get(member.group, [])
        if member in members:
            members.remove(member)
        if not members:
            self._members.pop(member.group, None)

    def members_of(self, group: str) -> Sequence[Membership]:
        """Those of the group that live in this process."""
        return tuple(self._members.get(group, ()))

    def _rebalancing(self, group: str) -> None:
        for member in self.members_of(group):
            member.rebalancing()

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is due. Members of this process are heard of first: they live, or nothing here would run.

        A rebalance may have gone on without one that did not come in time: it hears of that before others begin.
        """
        now_ms = self.now_ms()
        members = [member for members in self._members.values() for member in members]
        for member in members:
            member.beat(now_ms)
        self.broker.tick(now_ms, self.clock())
        for member in members:
            member.heartbeat()

    @property
    def closes_with_next(self) -> bool:
        """True if the next `detach` closes a log that outlives the process."""
        return self._users == 1 and self._broker is not None and self._storage.durable

    def clean_up(self) -> bool:
        """Delete what is past its retention now. Return True if there is more (`Broker.clean_up`)."""
        self.tick()
        return self.broker.clean_up(self.now_ms())

    def due_by(self, deadline_ms: int) -> None:
        """Something is to be looked at by then. Cheap, for it is said with every poll."""
        if 0 <= deadline_ms < self._next_tick_ms:
            self._nearer_deadline.set()

    def deadline_changed(self) -> None:
        """Something may be due earlier than the housekeeping thinks: a rebalance began, a transaction was opened."""
        if self.broker.next_deadline_ms() < self._next_tick_ms:
            self._nearer_deadline.set()

    def _longest_wait_ms(self, now_ms: int) -> int:
        if self.config.fsync == "interval":
            return self.config.fsync_interval_ms
        if self.timers is not self.clock:
            return _TICK_MS
        # Waited for by the very clock that the deadlines are set by: none is missed in between.
        deadlines_ms = [member.poll_deadline_ms for members in self._members.values() for member in members]
        return min([_SELDOM_MS, *(deadline_ms - now_ms for deadline_ms in deadlines_ms if deadline_ms > now_ms)])

    async def run(self) -> None:
        """Housekeeping: heartbeats, timeouts, flushes by interval, retention, checkpoints for other processes."""
        while True:
            now_ms = self.now_ms()
            wait_ms = min(self._longest_wait_ms(now_ms), max(self.broker.next_deadline_ms() - now_ms, 1))
            self._next_tick_ms = now_ms + wait_ms
            if self._nearer_deadline.is_set():
                self._nearer_deadline = anyio.Event()
            with self.timers.move_on_after(wait_ms / 1000):
                await self._nearer_deadline.wait()
            self.tick()
            # In commit mode: what the tick decided, say that a transaction timed out, which goes on after a flush.
            if self.config.fsync != "os" and self.broker.needs_sync:
                self.flush_soon()
