"""Retry entries in memory, and the lines in which they wait."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import msgspec

from eventbus.delays.delay_queue import BLOCKED, TAKEN, Due
from eventbus.delays.retry_records import ROOT, read_root
from eventbus.types import ConsumerRecord, Headers, TimestampType, TopicPartition

_ENTRY_BYTES = 450
"""The memory of an entry apart from key, value and headers: 390 to 450 bytes, depending on hash tables."""

_pack_into = msgspec.msgpack.Encoder().encode_into
_unpack = msgspec.msgpack.Decoder(tuple[bytes | None, Headers]).decode


def packed(value: bytes | None, headers: Headers, buffer: bytearray) -> bytes:
    """Pack value and headers into a single bytes object, which uses less memory than a dozen objects.

    ``buffer`` is reused, because the results of an encoder are larger than their content.
    """
    _pack_into((value, headers), buffer)
    return bytes(buffer)


class SourcePartition(NamedTuple):
    """A partition of one topic, identified by the topic's id, and not of an earlier or later topic with its name."""

    topic_partition: TopicPartition
    topic_id: str


class RetryEntry(Due):
    """An entry, small while it waits: its record is created on request."""

    offset: int
    """Its offset in the retry partition, which is its number in the queue."""
    attempt: int
    source: SourcePartition
    place: int
    """The number by which it is sorted in its line, see `retry_records.place_of`."""
    key: bytes | None
    packed: bytes
    """Value and headers in one object instead of a dozen."""

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
    """A source partition: the places of its waiting records, sorted by their offsets there.

    The places of a key form a line. Only its head may be handled; the others wait. A place without an entry is reserved
    for an entry in flight.
    """

    __slots__ = ("behind", "coming", "heads", "is_watched", "partition", "places")

    def __init__(self, partition: SourcePartition) -> None:
        self.partition = partition
        self.places: dict[int, RetryEntry | None] = {}
        self.heads: dict[bytes | None, int] = {}
        """The head of each key's line."""
        self.behind: dict[bytes | None, list[int]] = {}
        """The other places of keys with more than one, as heaps. Places that are gone are skipped when they come up."""
        self.coming: dict[int, bytes | None] = {}
        """Places of entries in flight, with their keys."""
        self.is_watched = False
        """True if there is a view of the heads."""

    def join(self, key: bytes | None, place: int) -> None:
        """Put a place into the line of a key. None precedes a head that is in flight."""
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
