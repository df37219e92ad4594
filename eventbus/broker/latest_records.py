"""The last record of every key of a shard's partition, and the records of its open transactions.

Replaying these records instead of the whole log gives a shard the same state. Compaction relies on that, too. From time
to time they are written to ``coordinator.state`` in the partition's directory. So the cost of opening a log depends on
its live state, not on the number of transactions and commits there ever were.

The file is a cache (big-endian)::

    "ebs1" | crc uint32: CRC-32C of all that follows | next_offset int64 | last_batch_crc uint32, then per record:
        offset int64 | producer_id int64: -1 outside of transactions | key length int32 | value length int32
        key | value (of length -1: null)

``next_offset`` is the end of the log that the records represent, and ``last_batch_crc`` the CRC of the batch that ends
there. If the log has another batch at that place, the file was made from another log. It may also be ahead of the log
after a power cut, and is not used then, because other records may follow at its offsets.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import NamedTuple

from eventbus.coordinator import CoordinatorRecord, Shard, TransactionalShard
from eventbus.records.crc import crc32c

_NO_TRANSACTION = -1
_MAGIC = b"ebs1"
_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">qI")
_RECORD = struct.Struct(">qqii")

Identify = Callable[[bytes, "bytes | None"], tuple[bytes, bool]]
"""Returns the name under which a later record replaces this record, and whether this record is kept."""

_Records = dict[bytes, tuple[int, bytes, "bytes | None"]]
"""Offset, key and value of each record, by the name of its subject."""


class LatestRecords:
    """The records of one partition that are still valid."""

    __slots__ = ("_identify", "_latest", "_pending")

    def __init__(self, identify: Identify | None = None) -> None:
        """``identify`` is needed for a shard whose keys alone do not distinguish its records."""
        self._identify = identify
        self._latest: _Records = {}
        self._pending: dict[int, _Records] = {}
        """The records of each open transaction, by producer id."""

    def __len__(self) -> int:
        return len(self._latest) + sum(map(len, self._pending.values()))

    def add(self, offset: int, key: bytes, value: bytes | None) -> None:
        """Add the next record, which replaces its key's previous record."""
        if self._identify is not None:
            name, is_kept = self._identify(key, value)
        else:
            name, is_kept = key, value is not None
        if is_kept:
            self._latest[name] = (offset, key, value)
            return
        self._latest.pop(name, None)
        # A tombstone also deletes earlier records of open transactions: their transactions began before it.
        for producer_id, records in list(self._pending.items()):
            if records.pop(name, None) is not None and not records:
                del self._pending[producer_id]

    def add_batch(self, offset: int, records: Iterable[CoordinatorRecord]) -> None:
        """Add the records of a batch that begins at ``offset``. It runs for every commit."""
        latest, is_plain = self._latest, self._identify is None
        for key, value in records:
            if is_plain and value is not None:
                latest[key] = (offset, key, value)
            else:
                self.add(offset, key, value)
            offset += 1

    def add_pending(self, producer_id: int, offset: int, key: bytes, value: bytes | None) -> None:
        """Add a record of the producer's open transaction."""
        self._pending.setdefault(producer_id, {})[key] = (offset, key, value)

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        """End the producer's transaction. Its records do not replace records that are later in the log."""
        records = self._pending.pop(producer_id, {})
        if committed:
            latest = self._latest
            for key, record in records.items():
                if key not in latest or latest[key][0] < record[0]:
                    latest[key] = record

    def replay(self, shard: Shard) -> None:
        """Replay the records into an empty shard, in the order of the log. Raises `BadRecord`."""
        for offset, producer_id, key, value in self._in_order():
            try:
                if producer_id == _NO_TRANSACTION:
                    shard.replay(key, value)
                elif isinstance(shard, TransactionalShard):
                    shard.replay_pending(producer_id, key, value)
                else:
                    raise ValueError("a record of a transaction, which is never written here")
            except ValueError as error:
                raise BadRecord(offset, str(error)) from error

    def _in_order(self) -> list[tuple[int, int, bytes, bytes | None]]:
        found = [(offset, _NO_TRANSACTION, key, value) for offset, key, value in self._latest.values()]
        for producer_id, records in self._pending.items():
            found += [(offset, producer_id, key, value) for offset, key, value in records.values()]
        found.sort(key=_offset_of)
        return found

    def encode(self, next_offset: int, last_batch_crc: int) -> bytes:
        """Return the bytes of the file."""
        parts = [_HEAD.pack(next_offset, last_batch_crc)]
        for offset, producer_id, key, value in self._in_order():
            parts.append(_RECORD.pack(offset, producer_id, len(key), -1 if value is None else len(value)))
            parts.append(key)
            if value is not None:
                parts.append(value)
        body = b"".join(parts)
        return _MAGIC + _CRC.pack(crc32c(body)) + body

    def restore(self, data: bytes, position: int) -> None:
        """Add the records of a file whose CRC is right. Raises ValueError, `struct.error` if they cannot be read."""
        size = len(data)
        while position < size:
            offset, producer_id, key_size, value_size = _RECORD.unpack_from(data, position)
            key_end = position + _RECORD.size + key_size
            end = key_end + max(value_size, 0)
            if key_size < 0 or value_size < -1 or end > size:
                raise ValueError("a record of another length than it has")
            key = data[position + _RECORD.size : key_end]
            value = None if value_size < 0 else data[key_end:end]
            if producer_id == _NO_TRANSACTION:
                self.add(offset, key, value)
            else:
                self.add_pending(producer_id, offset, key, value)
            position = end


class BadRecord(ValueError):
    """A record that its shard cannot read."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset = offset


class SavedRecords(NamedTuple):
    """The content of a file."""

    next_offset: int
    last_batch_crc: int
    records: LatestRecords


def decode(data: bytes, identify: Identify | None) -> SavedRecords | None:
    """Decode a file; return None if it is damaged or of another version."""
    start = len(_MAGIC) + _CRC.size
    if len(data) < start + _HEAD.size or not data.startswith(_MAGIC):
        return None
    (crc,) = _CRC.unpack_from(data, len(_MAGIC))
    if crc32c(memoryview(data)[start:]) != crc:
        return None
    next_offset, last_batch_crc = _HEAD.unpack_from(data, start)
    records = LatestRecords(identify)
    try:
        records.restore(data, start + _HEAD.size)
    except (struct.error, ValueError):
        return None  # the CRC is right: a later version wrote it
    return SavedRecords(next_offset, last_batch_crc, records)


def _offset_of(record: tuple[int, int, bytes, bytes | None]) -> int:
    return record[0]
