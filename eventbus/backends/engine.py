"""The embedded log's async shell: one `Broker`, the waits around it, and who shares it.

Everything inside the broker is synchronous, so each call on it is atomic on the event loop and no locks exist. Here
are the only waits: for a flush (a worker thread runs it, all waiting sends share it) and for records to arrive.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import ClassVar

import anyio
import anyio.to_thread

from eventbus.broker import Broker, BrokerConfig
from eventbus.errors import ConfigError
from eventbus.log.storage import Storage
from eventbus.types import TopicPartition

logger = logging.getLogger("eventbus.engine")

Clock = Callable[[], int]
"""Milliseconds since the epoch."""


class Engine:
    """One opened log. Buses of one process that name the same log share one engine."""

    _shared: ClassVar[dict[str, Engine]] = {}

    def __init__(
        self, name: str, storage: Storage, config: BrokerConfig, clock: Clock, new_id: Callable[[], bytes]
    ) -> None:
        self.name = name
        self.config = config
        self.clock = clock
        self.waits_for_flush = storage.durable and config.fsync == "commit"
        self.members: dict[tuple[str, str], object] = {}
        """Who reads a topic for a group: (group, topic) -> consumer. One each, until the group coordinator lands."""
        self.topic_listeners: list[Callable[[], None]] = []
        """Told when topics are created, grown or deleted."""
        self._storage = storage
        self._new_id = new_id
        self._users = 0
        self._thread = 0
        self._broker: Broker | None = None
        self._opening: anyio.Lock | None = None
        self._flushing: anyio.Event | None = None
        self._flush_thread: anyio.CapacityLimiter | None = None
        self._listeners: dict[TopicPartition, list[Callable[[TopicPartition], None]]] = {}

    @classmethod
    def shared(cls, name: str, make: Callable[[], Engine]) -> Engine:
        """The engine called ``name``, made if nobody in this process has it open."""
        engine = cls._shared.get(name)
        if engine is None:
            engine = cls._shared[name] = make()
        return engine

    @property
    def broker(self) -> Broker:
        if self._broker is None:
            raise ConfigError(f"{self.name} is not open: use `async with bus:` or `await bus.start()` first")
        return self._broker

    async def attach(self) -> None:
        """Open the log, or join those who have it open."""
        if self._users and self._thread != threading.get_ident():
            raise ConfigError(
                f"{self.name} is open in another thread of this process; one event loop owns a log: "
                "share the bus, or give each thread a log of its own"
            )
        if self._opening is None:
            self._opening = anyio.Lock()
        self._thread = threading.get_ident()
        self._users += 1
        try:
            async with self._opening:
                if self._broker is None:
                    self._broker = await self._open()
        except BaseException:
            await self._detach()
            raise

    async def _open(self) -> Broker:
        self._flush_thread = anyio.CapacityLimiter(1)

        def open_broker() -> Broker:
            return Broker.open(self._storage, self.config, now_ms=self.clock(), new_id=self._new_id)

        broker = await anyio.to_thread.run_sync(open_broker) if self._storage.durable else open_broker()
        broker.on_advance = self._advanced
        return broker

    async def detach(self) -> None:
        """Leave; the last one closes the log."""
        with anyio.CancelScope(shield=True):
            await self._detach()

    async def _detach(self) -> None:
        self._users -= 1
        if self._users:
            return
        Engine._shared.pop(self.name, None)
        broker, self._broker = self._broker, None
        if broker is None:
            return
        while self._flushing is not None:
            await self._flushing.wait()
        if self._storage.durable:
            await anyio.to_thread.run_sync(broker.close, self.clock())
        else:
            broker.close(self.clock())

    # waits -----------------------------------------------------------------------------------------------------------

    async def wait_durable(self, topic_partition: TopicPartition, offset: int) -> None:
        """Return when the record at ``offset`` is as durable as the log's policy promises.

        The first to wait runs the flush in a worker thread; those who come meanwhile share the next one. Raises
        StorageError when the flush failed: then the log is poisoned and nothing was promised.
        """
        broker = self.broker
        while not broker.is_durable(topic_partition, offset):
            if self._flushing is not None:
                await self._flushing.wait()
            else:
                await self.flush()

    async def flush(self) -> None:
        """Run one flush now. A cancelled caller still completes it: the outcome belongs to everybody who waits."""
        broker = self.broker
        flush = broker.begin_sync()
        self._flushing = anyio.Event()
        error: Exception | None = None
        try:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(flush.run, limiter=self._flush_thread)
        except Exception as caught:
            error = caught
        finally:
            event, self._flushing = self._flushing, None
            broker.complete_sync(flush, error)
            event.set()

    async def flush_all(self) -> None:
        """Return when everything appended so far is durable: for changes of metadata, whose records are few."""
        while self._flushing is not None:
            await self._flushing.wait()
        if self.broker.needs_sync:
            await self.flush()
            self.broker.check_healthy()

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

    async def run(self) -> None:
        """Housekeeping: flushes by interval, retention, checkpoints for readers of other processes."""
        interval_ms = self.config.fsync_interval_ms if self.config.fsync == "interval" else 1_000
        while True:
            broker = self.broker
            deadline_ms = broker.next_deadline_ms()
            now_ms = self.clock()
            wait_ms = min(interval_ms, max(deadline_ms - now_ms, 1))
            await anyio.sleep(wait_ms / 1000)
            if self._broker is None:
                return
            broker.tick(self.clock())
            if self.config.fsync == "interval" and broker.needs_sync and self._flushing is None:
                await self.flush()
