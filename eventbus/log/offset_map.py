"""The last offset of each key of a log, and the log's aborted transactions: the input of compaction."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from eventbus.records.batch import BatchHeader, RecordBatch
from eventbus.records.control import ControlType, read_control_type
from eventbus.records.rewrite import open_batch

MAX_KEYS = 500_000
"""The most keys that a cleaning holds, some 60 MB; with more, the rest of the dirty part waits for the next
cleaning."""

_DIGEST_BYTES = 16
_NEVER = 1 << 62


class _Open:
    """A transaction whose marker has not been read yet."""

    __slots__ = ("first_offset", "newest")

    def __init__(self, first_offset: int) -> None:
        self.first_offset = first_offset
        self.newest: dict[bytes, int] = {}


class NewestOffsets:
    """Maps each key to the offset of its last valid record, and holds the aborted transactions."""

    def __init__(self, max_keys: int) -> None:
        self._newest: dict[bytes, int] = {}
        self._max_keys = max_keys
        self._pending_count = 0
        self._aborted: dict[int, list[tuple[int, int]]] = {}
        """(First offset, offset of the marker) of each aborted transaction, in order, by producer id."""
        self.undecided: dict[int, _Open] = {}

    @property
    def is_full(self) -> bool:
        return len(self._newest) + self._pending_count >= self._max_keys

    def add(self, batch: RecordBatch, first_offset: int) -> None:
        """Add the keys of a batch, from ``first_offset`` on."""
        header = batch.header
        if header.is_control:
            self.decide(batch)
            return
        newest = self._newest
        transaction = None
        if header.is_transactional:
            transaction = self.undecided.get(header.producer_id)
            if transaction is None:
                transaction = self.undecided[header.producer_id] = _Open(header.base_offset)
            newest = transaction.newest
            self._pending_count -= len(newest)
        if header.records_count and header.next_offset > first_offset:
            _, columns = open_batch(batch)
            for key, offset in zip(columns.keys, columns.offsets, strict=True):
                if key is not None and offset >= first_offset:
                    newest[key if len(key) < _DIGEST_BYTES else _digest(key)] = offset
        if transaction is not None:
            self._pending_count += len(newest)

    def decide(self, marker: RecordBatch) -> None:
        """Apply a marker to its producer's transaction."""
        header = marker.header
        # Empty: its transaction has no records left.
        control_type = type_of(marker) if header.records_count else ControlType.COMMIT
        if control_type is None or header.producer_id not in self.undecided:
            return
        transaction = self.undecided.pop(header.producer_id)
        self._pending_count -= len(transaction.newest)
        if control_type is ControlType.ABORT:
            ranges = self._aborted.setdefault(header.producer_id, [])
            ranges.append((transaction.first_offset, header.base_offset))
            return
        newest = self._newest
        for key, offset in transaction.newest.items():
            if newest.get(key, -1) < offset:
                newest[key] = offset

    def is_aborted(self, header: BatchHeader) -> bool:
        """True if a transactional batch belongs to an aborted transaction."""
        ranges = self._aborted.get(header.producer_id)
        if not ranges:
            return False
        number = bisect_right(ranges, (header.base_offset, _NEVER)) - 1
        return number >= 0 and header.base_offset < ranges[number][1]

    def newest_offsets(self, keys: Sequence[bytes | None]) -> list[int]:
        """Return the last offset of each key; -1 for None and for keys whose last record is in the part cleaned
        before."""
        get = self._newest.get
        return [
            -1 if key is None else get(key if len(key) < _DIGEST_BYTES else _digest(key), -1) for key in keys
        ]  # fmt: skip


def type_of(marker: RecordBatch) -> ControlType | None:
    """Return the type of a control batch with records; None for a type that this version does not know."""
    return read_control_type(marker.columns().keys[0])


def _digest(key: bytes) -> bytes:
    """Return the digest that replaces a long key. Shorter keys are used directly, and are never as long as a digest."""
    from hashlib import blake2b  # 2 ms of every program, for those that compact

    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
