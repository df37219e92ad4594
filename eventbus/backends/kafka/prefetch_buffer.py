"""Buffer records between the poll thread and the consumer, so that a paused partition keeps what was fetched for it.

When a partition is paused, librdkafka drops the megabytes it has prefetched for it, and fetches them again when it is
resumed. A runner pauses a partition whenever it has enough records for now, a hundred times a second. So librdkafka
pauses only if as much is buffered as it may prefetch: then it holds the partition back.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterable

from eventbus.backends.kafka.columns import joined
from eventbus.types import FetchedRecords, TopicPartition

_LONG_SECONDS = 5.0
"""The records of a partition that was paused for longer may be dropped and fetched again."""
_RECORD_BYTES = 100
"""The memory that Python needs for a record besides its bytes."""


class PrefetchBuffer:
    """The records that the poll thread has returned and the consumer has not taken yet."""

    def __init__(self, room_bytes: int, fetch_bytes: int) -> None:
        """``room_bytes``: the limit for buffered records of all partitions together. ``fetch_bytes``: the size of a
        fetch."""
        self._room_bytes = room_bytes
        self._fetch_bytes = fetch_bytes
        self._ready: deque[FetchedRecords] = deque()
        self._paused: dict[TopicPartition, float] = {}
        """The start of each pause, on the system's monotonic clock; the longest pause first."""
        self._buffered: dict[TopicPartition, list[FetchedRecords]] = {}
        self._buffered_bytes: dict[TopicPartition, int] = {}
        self.paused_in_client: set[TopicPartition] = set()
        """Partitions that are paused in librdkafka."""

    def __bool__(self) -> bool:
        """True if there is something to take."""
        return bool(self._ready)

    def add(self, records: FetchedRecords) -> None:
        where = TopicPartition(records.topic, records.partition)
        if where not in self._paused:
            self._ready.append(records)
            return
        self._buffered.setdefault(where, []).append(records)
        self._buffered_bytes[where] = self._buffered_bytes.get(where, 0) + _room_bytes(records)

    def take(self) -> list[FetchedRecords]:
        """Return all records that are ready. The parts of a partition are joined, up to the size of a fetch.

        While a handler works, each poll buffers a part of a few records. It would never catch up if each part became a
        transaction or a batch.
        """
        ready, self._ready = self._ready, deque()
        if len(ready) < 2:
            return list(ready)
        parts_of: dict[TopicPartition, list[FetchedRecords]] = {}
        for records in ready:
            parts_of.setdefault(TopicPartition(records.topic, records.partition), []).append(records)
        taken: list[FetchedRecords] = []
        for parts in parts_of.values():
            taken += parts if len(parts) == 1 else self._joined(parts)
        return taken

    def _joined(self, parts: list[FetchedRecords]) -> list[FetchedRecords]:
        groups: list[list[FetchedRecords]] = []
        group_bytes = 0
        for records in parts:
            group_bytes += (size := _room_bytes(records))
            if groups and group_bytes <= self._fetch_bytes and groups[-1][0].timestamp_type == records.timestamp_type:
                groups[-1].append(records)
            else:
                groups.append([records])
                group_bytes = size
        return [joined(group) for group in groups]

    @property
    def ready_bytes(self) -> int:
        return sum(map(size_bytes, self._ready))

    def first_offset(self, where: TopicPartition) -> int | None:
        """Return the next offset to take of a partition; None if nothing of it is buffered."""
        for records in (*self._ready, *self._buffered.get(where, ())):
            if (records.topic, records.partition) == where:
                return records.offsets[0]
        return None

    def forget(self, where: TopicPartition) -> None:
        """Drop the buffered records of a partition."""
        if self._buffered.pop(where, None):
            del self._buffered_bytes[where]
        # Checked first, because forgetting is common and copying the queue is not cheap.
        if any((one.topic, one.partition) == where for one in self._ready):
            self._ready = deque(one for one in self._ready if (one.topic, one.partition) != where)

    def drop(self, where: TopicPartition) -> None:
        """Drop everything about a partition that was revoked."""
        self.forget(where)
        self._paused.pop(where, None)
        self.paused_in_client.discard(where)

    # pauses ----------------------------------------------------------------------------------------------------------

    def is_paused(self, where: TopicPartition) -> bool:
        return where in self._paused

    def are_paused(self, held: Collection[TopicPartition]) -> bool:
        """True if all of these partitions are paused, and there is at least one."""
        return 0 < len(held) <= len(self._paused)

    def pause(self, where: TopicPartition) -> None:
        if where in self._paused:
            return
        # Records that are ready already belong to the pause too: `take` returns nothing of a paused partition.
        mine = [one for one in self._ready if (one.topic, one.partition) == where]
        if mine:
            self.forget(where)
        self._paused[where] = time.monotonic()
        for records in mine:
            self.add(records)

    def resume(self, where: TopicPartition) -> bool:
        """Resume a partition. Return True if librdkafka must be resumed too, at a given position."""
        if self._paused.pop(where, None) is None:
            return False
        # At once, without a request to the broker: this is what the buffer is for.
        self._ready.extend(self._buffered.pop(where, ()))
        self._buffered_bytes.pop(where, None)
        was_kept_back = where in self.paused_in_client
        self.paused_in_client.discard(where)
        return was_kept_back

    def overfull(self, arrived: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Return the partitions that librdkafka must pause from now on, because too much is buffered.

        Each has the offset from which it must be fetched again if its records were dropped, which happens to partitions
        that were paused for long, to make space for those paused briefly. None: its buffered records stay.
        """
        found: dict[TopicPartition, int | None] = {}
        if sum(self._buffered_bytes.values()) <= self._room_bytes:
            return found
        for where, since in self._paused.items():
            # The dict is ordered by the start of the pauses, so all later ones are short.
            if since > time.monotonic() - _LONG_SECONDS:
                break
            if where in self._buffered:
                found[where] = self._buffered[where][0].offsets[0]
                self.forget(where)
        # Still too much. What arrived last is what librdkafka fetches right now, so it is paused there.
        for where in arrived:
            if where in self._paused and where not in found:
                found[where] = None
        self.paused_in_client |= found.keys()
        return found


def size_bytes(records: FetchedRecords) -> int:
    """Estimate the size of the values."""
    return sum(len(value or b"") for value in records.values)


def _room_bytes(records: FetchedRecords) -> int:
    """Estimate the memory of the records, counting records without a value too."""
    return records.size_bytes + _RECORD_BYTES * len(records)
