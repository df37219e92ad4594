"""Entries as they wait in memory, and the lines in which they stand."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from eventbus.delays.delay_queue import BLOCKED, TAKEN, Due
from eventbus.delays.retry_records import ROOT, read_root
from eventbus.types import ConsumerRecord, Headers, TimestampType, TopicPartition

_ENTRY_BYTES = 450
"""What an entry takes in memory beside its key, value and headers: 390 to 450, as its tables are just filled."""

_pack_into = msgspec.msgpack.Encoder().encode_into
_unpack = msgspec.msgpack.Decoder(tuple[bytes | None, Headers]).decode


def packed(value: bytes | None, headers: Headers, buffer: bytearray) -> bytes:
    """One object in the place of a dozen. By way of a buffer: what an encoder returns may keep twice its size."""
    _pack_into((value, headers), buffer)
    return bytes(buffer)


class SourcePartition(NamedTuple):
    """A partition of one topic, and not of another topic that had its name before or has it now."""

    topic_partition: TopicPartition
    topic_id: str


class RetryEntry(Due):
    """An entry, small while it waits: its record is made when it is asked for."""

    offset: int
    """Its offset in the retry partition, which is its number in the queue."""
    attempt: int
    source: SourcePartition
    place: int
    """The number by which it is sorted in its line, see `retry_records.place_of`."""
    key: bytes | None
    packed: bytes
    """Value and headers: one object in the place of a dozen."""

    @property
    def record(self) -> ConsumerRecord:
        """Return the record as it was read first: topic, partition, offset and timestamp are those of its source.

        Its headers hold how often it was tried, for the handler and for `Recovery.decide`.
        """
        value, headers = _unpack(self.packed)
        root = read_root(dict(headers)[ROOT])
        assert root is not None, "it was read when the entry was"
        topic, partition, offset, timestamp_ms, kind, _ = root
        return ConsumerRecord(topic, partition, offset, timestamp_ms, TimestampType(kind), self.key, value, headers)

    @property
    def size(self) -> int:
        return _ENTRY_BYTES + len(self.packed) + len(self.key or b"")


class Source:
    """A source partition: the places of its records that wait, which sort by their offsets there.

    Places of one key form a line. The head may go; the others are behind it. A place without an entry is kept for one
    that is on its way.
    """

    __slots__ = ("behind", "coming", "heads", "is_watched", "partition", "places")

    def __init__(self, partition: SourcePartition) -> None:
        self.partition = partition
        self.places: dict[int, RetryEntry | None] = {}
        self.heads: dict[bytes | None, int] = {}
        """By key."""
        self.behind: dict[bytes | None, list[int]] = {}
        """Heaps, for keys of which more than one waits. Places that are gone are passed over when they come up."""
        self.coming: dict[int, bytes | None] = {}
        """What is on its way, and its key."""
        self.is_watched = False
        """Somebody has a view of the heads."""

    def join(self, key: bytes | None, place: int) -> None:
        """Put a place into the line of a key. None gets ahead of a head that is in flight."""
        head = self.heads.get(key)
        if head is None:
            self.heads[key] = place
            return
        entry = self.places[head]
        if place < head and (entry is None or entry.state != TAKEN):
            self.heads[key], place = place, head
            if entry is not None:
                entry.state = BLOCKED
        heappush(self.behind.setdefault(key, []), place)

    def leave(self, key: bytes | None, place: int) -> RetryEntry | None:
        """Free a place. Return the entry that is the head of the line because of it, if there is one."""
        del self.places[place]
        if self.heads.get(key) != place:
            return None
        line = self.behind.get(key, [])
        while line and line[0] not in self.places:
            heappop(line)
        if not line:
            self.behind.pop(key, None)
            del self.heads[key]
            return None
        self.heads[key] = heappop(line)
        return self.places[self.heads[key]]
