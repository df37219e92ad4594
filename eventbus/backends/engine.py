"""The asynchronous layer of the embedded log: a `Broker`, the waits around it, and its sharing between buses.

Everything inside the broker is synchronous, so each call of it is atomic on the event loop and no locks exist. All
waits are here: for a flush (one thread runs them, all waiting sends share each) and for records to arrive.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol, TypeVar
from weakref import WeakSet

import anyio

from eventbus.backends.clock import Clock, monotonic_clock, timers_of
from eventbus.backends.flushes import Flushes
from eventbus.backends.histogram import BYTES, RECORDS, SECONDS, Histogram
from eventbus.backends.membership import Membership, Sight
from eventbus.backends.statistics import LogStatistics
from eventbus.broker import Broker, BrokerConfig
from eventbus.broker.groups import Groups
from eventbus.errors import ConfigError, EventBusError, StorageError
from eventbus.forks import watch_forks
from eventbus.log.memory import Copy, MemoryStorage
from eventbus.log.storage import Storage, storage_error
from eventbus.types import TopicPartition

_TICK_MS = 1_000
_SELDOM_MS = 60_000

_Result = TypeVar("_Result")


class Queued(NamedTuple):
    """The records that a producer buffers."""

    records: int
    size_bytes: int


class _Producer(Protocol):
    """A producer of this process, for the statistics of its log."""

    def queued(self) -> Queued: ...

    def tell_counts(self) -> None:
        """Report what was written since the last call (`Engine.wrote`)."""
        ...


class Engine:
    """An opened log. Buses of a process that open the same log share its engine."""

    _all_open: ClassVar[list[Engine]] = []

    def __init__(
        self, name: str, storage: Storage, config: BrokerConfig, clock: Clock, new_id: Callable[[], bytes]
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        """The wall clock: for timestamps that are stored, and for the age of what is stored."""
        self.now_ms: Clock = monotonic_clock(clock)
        """The monotonic clock: for sessions and timeouts, which must not expire when the machine's clock is set."""
        self.timers = timers_of(clock)
        self.waits_for_flush = storage.durable and config.fsync == "commit"
        self.topic_listeners: list[Callable[[], None]] = []
        """Called when topics are created, grown or deleted."""
        self._storage = storage
        self._new_id = new_id
        self._users = 0
        self._thread = 0
        self._broker: Broker | None = None
        self._flushes: Flushes | None = None
        self.flush_seconds = Histogram(SECONDS)
        self.batch_records = Histogram(RECORDS)
        self.batch_bytes = Histogram(BYTES)
        """The sizes of batches that producers of this process write, and the durations of flushes."""
        self.producers: WeakSet[_Producer] = WeakSet()
        self._listeners: dict[TopicPartition, list[Callable[[TopicPartition], None]]] = {}
        self._members: dict[str, list[Membership]] = {}
        """The members of groups that run in this process."""
        self._next_tick_ms = 0
        self._nearer_deadline = anyio.Event()
        watch_forks(self)

    def after_fork_in_child(self) -> None:
        """Mark the log as closed, because only the parent has it open. A new bus in the child must open the storage
        itself."""
        with contextlib.suppress(ValueError):
            Engine._all_open.remove(self)

    @classmethod
    def shared(cls, name: str, config: BrokerConfig, make: Callable[[], Engine]) -> Engine:
        """Return the engine called ``name``, created if it is not open in this process.

        Raises ConfigError if it is open with other settings, which cannot both be used.
        """
        engine = next(iter(cls.opened(name)), None)
        if engine is None:
            return make()
        for key in BrokerConfig.__struct_fields__:
            mine, theirs = getattr(config, key), getattr(engine.config, key)
            # One log cannot have two settings. Ignoring the second would break a promise such as fsync silently.
            if mine != theirs:
                raise ConfigError(
                    f"{name} is open in this process with {key}={theirs!r}, and cannot be opened with {key}={mine!r} "
                    "at the same time: give all buses of a log the same settings"
                )
        return engine

    @classmethod
    def opened(cls, name: str | None = None) -> list[Engine]:
        """Return the open engines called ``name`` (or all) in this process: several if each bus has a private log."""
        return [engine for engine in cls._all_open if name in (engine.name, None)]

    @property
    def is_open(self) -> bool:
        return self._broker is not None

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise self._not_open()
        return self._broker

    @property
    def flushes(self) -> Flushes:
        """The flushes of the open log. Raises ConfigError if it is not open."""
        if self._flushes is None:
            raise self._not_open()
        return self._flushes

    def _not_open(self) -> ConfigError:
        return ConfigError(f"{self.name} is not open: use `async with bus:` or `await bus.start()` first")

    def attach(self, *, clients_may_return: bool = False) -> None:
        """Open the log, or share it with those who have it open.

        ``clients_may_return``: previous clients of the log are in other processes, and continue once it is open again,
        as clients of a server do. Otherwise, if this opens the log, their group memberships and open transactions are
        ended.

        Blocks while the tail of the log is verified: without an await, no cancellation can leave the directory locked.
        """
        # The broker has no locks: all of its calls must come from one event loop.
        if self._users and self._thread != threading.get_ident():
            raise ConfigError(
                f"{self.name} is open in another thread of this process; one event loop owns a log: "
                "share the bus, or give each thread a separate log"
            )
        if self._broker is None:
            now_ms = self.now_ms()
            broker = self._open(now_ms)
            try:
                if not clients_may_return:
                    # Previous clients of the log were in another process, or have left: none of them comes back.
                    broker.groups.drop_clients(now_ms)
                    broker.transactions.abort_all(now_ms)
            except BaseException:
                self._broker = None
                with contextlib.suppress(EventBusError):
                    broker.close(now_ms)  # otherwise the directory stays locked without an owner
                raise
            self._nearer_deadline = anyio.Event()
            self._thread = threading.get_ident()
            with contextlib.suppress(RuntimeError):  # opened before the loop runs: the first flush finds it
                self.flushes.loop()
            Engine._all_open.append(self)
        self._users += 1

    def _open(self, now_ms: int) -> Broker:
        broker = self._broker = Broker.open(
            self._storage, self.config, now_ms=now_ms, new_id=self._new_id, wall_now_ms=self.clock()
        )
        broker.on_advance = self._advanced
        broker.groups.on_rebalance = self._rebalancing
        self._flushes = Flushes(self.name, broker, self.waits_for_flush, self.flush_seconds)
        return broker

    def restart(self) -> None:
        """Close the log and open it again while it is in use, like the restart of a broker.

        Groups and transactions lose what they keep only in memory; members, producers and stored data stay. For tests:
        it blocks, and must not run during a flush or a compaction.
        """
        assert not self.flushes.is_running, "a flush is under way: restart between two"
        now_ms = self.now_ms()
        flushes = self.flushes
        flushes.close()
        self.broker.close(now_ms)
        flushes.fail_waiters(StorageError(f"{self.name} was restarted before the disk had answered"))
        self._open(now_ms)
        self.topics_changed()
        self._nearer_deadline.set()

    def detach(self) -> None:
        """Release the engine; the last user closes the log, and blocks for its last flush."""
        self._users -= 1
        if self._users or self._broker is None:
            return
        broker, flushes = self._broker, self.flushes
        try:
            # Before the broker closes: a flush in a worker thread must not use files that are closed under it.
            flushes.close()
            broker.close(self.now_ms())
        except OSError as error:
            raise storage_error(error, f"closing {self.name}") from error
        finally:
            self._broker = self._flushes = None
            Engine._all_open.remove(self)
            flushes.fail_waiters(StorageError(f"{self.name} was closed before the disk had answered"))

    # readers in other processes --------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Let readers in other processes read up to the present end now, instead of within a second."""
        self.broker.publish_checkpoints(self.now_ms())

    def copy_to(self, to: Storage) -> Copy:
        """Maintain a copy of a log in memory in the directory ``to``, for readers in other processes. Raises
        OSError, and ConfigError for a log that is not in memory."""
        if not isinstance(self._storage, MemoryStorage):
            raise ConfigError(f"{self.name} is kept by {type(self._storage).__name__}, and only memory is copied")
        self.publish()
        return self._storage.copy_to(to)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Call ``function`` in the log's event loop, from any thread. Raises ConfigError if the loop has ended."""
        if self._thread == threading.get_ident():
            return function()
        if self._flushes is not None and self._flushes.event_loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                return self._flushes.event_loop.call_from_thread(function)
        raise ConfigError(f"{self.name} belongs to an event loop that is not there any more: open it again")

    # counts ----------------------------------------------------------------------------------------------------------

    def wrote(self, records: int, size_bytes: float, batches: int = 1) -> None:
        """Count a batch that a producer of this process wrote, or several of that mean size."""
        self.batch_records.add(records, batches)
        self.batch_bytes.add(size_bytes, batches)

    def statistics(self) -> LogStatistics:
        """Return the statistics since the engine was created."""
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
        """Return the partition count of ``topic``, which is created first if the log creates topics on demand."""
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
        """Return a topic's id and partition count, by which a member detects changes."""
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
        """Return the group's members in this process."""
        return tuple(self._members.get(group, ()))

    def _rebalancing(self, group: str) -> None:
        for member in self.members_of(group):
            member.rebalancing()

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do everything that is due. Members of this process are counted as alive first, since they run if this runs.

        A rebalance may have continued without a late member: it notices that before others begin.
        """
        now_ms = self.now_ms()
        members = [member for members in self._members.values() for member in members]
        for member in members:
            # Before the broker's tick, which expires sessions. If the loop was blocked for longer than a session, the
            # members are alive nevertheless, because this code runs.
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
        """Ensure that the housekeeping runs by a deadline. Cheap, because every poll calls it."""
        if 0 <= deadline_ms < self._next_tick_ms:
            self._nearer_deadline.set()

    def deadline_changed(self) -> None:
        """Wake the housekeeping, because something may be due earlier: a rebalance began, a transaction was opened."""
        if self.broker.next_deadline_ms() < self._next_tick_ms:
            self._nearer_deadline.set()

    def _longest_wait_ms(self, now_ms: int) -> int:
        if self.config.fsync == "interval":
            return self.config.fsync_interval_ms
        if self.timers is not self.clock:
            return _TICK_MS
        # Measured with the clock by which the deadlines are set, so that none is missed.
        deadlines_ms = [member.poll_deadline_ms for members in self._members.values() for member in members]
        return min([_SELDOM_MS, *(deadline_ms - now_ms for deadline_ms in deadlines_ms if deadline_ms > now_ms)])

    async def run(self) -> None:
        """Run the housekeeping: heartbeats, timeouts, flushes by interval, retention, checkpoints for other
        processes."""
        while True:
            now_ms = self.now_ms()
            wait_ms = min(self._longest_wait_ms(now_ms), max(self.broker.next_deadline_ms() - now_ms, 1))
            # Set before the wait, so that a nearer deadline that is set during it wakes this task.
            self._next_tick_ms = now_ms + wait_ms
            if self._nearer_deadline.is_set():
                self._nearer_deadline = anyio.Event()
            with self.timers.move_on_after(wait_ms / 1000):
                await self._nearer_deadline.wait()
            self.tick()
            # In commit mode: flush what the tick decided, such as the abort of a transaction that timed out.
            if self.config.fsync != "os" and self.broker.needs_sync:
                self.flushes.begin()
