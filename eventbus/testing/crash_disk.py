"""A disk that outlives processes, and the records visible on it; see `eventbus.testing.crash_points`."""

from __future__ import annotations

from collections.abc import Callable, Generator

from eventbus.backends.base import EARLIEST
from eventbus.broker import Broker
from eventbus.broker.names import CLUSTER_METADATA, CONSUMER_OFFSETS, TRANSACTION_STATE
from eventbus.log.memory import MemoryFile, MemoryStorage
from eventbus.log.storage import Buffer
from eventbus.records import fetched_records
from eventbus.types import ConsumerRecord, IsolationLevel, TopicPartition

_FETCH_BYTES = 1 << 20
_INTERNAL = {
    CONSUMER_OFFSETS: "group state or offsets",
    TRANSACTION_STATE: "transaction state",
    CLUSTER_METADATA: "topics",
}


def named(partition: str) -> str:
    """Describe the target of a write."""
    topic, _, _ = partition.rpartition("-")
    return f"of {_INTERNAL[topic]}" if topic in _INTERNAL else f"to {partition}"


class Disk(MemoryStorage):
    """The storage that outlives a process. ``on_write`` is called for each write to a partition's log."""

    def __init__(self) -> None:
        super().__init__()
        self.on_write: Callable[[str], object] = _ignore
        self.writes = 0

    def open(self, path: str, create: bool = False) -> MemoryFile:
        is_new = path not in self._files
        file = super().open(path, create)
        if is_new and path.endswith(".log"):
            file = self._files[path] = _LogFile(self, path)
        return file

    def wrote(self, path: str) -> None:
        self.writes += 1
        self.on_write(path.split("/")[-2])

    def copy(self) -> Disk:
        """Return a copy of the disk with its current contents."""
        copied = Disk()
        copied._directories = set(self._directories)
        copied._ids = self._ids
        for path, file in self._files.items():
            twin = copied._files[path] = _LogFile(copied, path) if path.endswith(".log") else MemoryFile()
            twin.data = bytearray(file.data)
            twin.size = file.size
        return copied


class _LogFile(MemoryFile):
    """The records of a partition: each write to it is a step."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: Disk, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = path

    def append(self, data: Buffer) -> None:
        super().append(data)
        self._disk.wrote(self._path)


def _ignore(partition: str) -> None: ...


Visible = dict[TopicPartition, list[ConsumerRecord]]
"""The records in the topics of users that a read-committed reader sees."""


def visible(broker: Broker) -> Visible:
    """Return the records that a read-committed reader sees now."""
    return {
        where: list(records_of(broker, where, broker.list_offsets(where, EARLIEST).offset))
        for where in partitions_of(broker)
    }


def partitions_of(broker: Broker) -> Generator[TopicPartition]:
    for topic in broker.list_topics():
        if not topic.startswith("__"):
            for partition in range(broker.partitions_of(topic)):
                yield TopicPartition(topic, partition)


def records_of(broker: Broker, where: TopicPartition, position: int) -> Generator[ConsumerRecord]:
    while True:
        data = broker.fetch(where, position, _FETCH_BYTES, IsolationLevel.READ_COMMITTED)
        if not data.records:
            return
        chunk = fetched_records(data.records, *where, position, check_crcs=False, aborted=data.aborted)
        yield from chunk
        position = chunk.next_offset
