"""Compare both sides, record by record: a digest for each partition, and the first offset that differs."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from eventbus.backends.base import EARLIEST, Backend, BackendConsumer
from eventbus.ledger import ends_of
from eventbus.mirror.journal import READER
from eventbus.mirror.offset_map import OffsetMap
from eventbus.types import ConsumerRecord, TopicPartition

_DIGEST_BYTES = 8
_WAIT_MS = 50
_SHOWN = 3
"""The number of differing offsets that are listed."""


class PartitionCheck(msgspec.Struct, kw_only=True):
    """The result of comparing one partition. Offsets are the destination's."""

    topic: str
    partition: int
    records: int = 0
    """Records that are equal on both sides."""
    source_digest: str = ""
    destination_digest: str = ""
    """A digest of the records that should be on both sides, in order: equal to the other digest if all are equal."""
    gone_at_source: int = 0
    gone_at_destination: int = 0
    """Records deleted by retention or compaction on one side, and so not compared."""
    newer: int = 0
    """Records at the destination after those that were mirrored, written by others."""
    behind: int = 0
    """Offsets at the source that were not mirrored yet, with at least one record among them."""
    differences: list[str] = []
    """The first differences, in words."""
    difference_count: int = 0

    @property
    def ok(self) -> bool:
        return not self.difference_count

    def differs(self, text: str) -> None:
        self.difference_count += 1
        if len(self.differences) < _SHOWN:
            self.differences.append(text)


def refused(where: TopicPartition, reason: str) -> PartitionCheck:
    """Return a result for a partition that cannot be compared."""
    check = PartitionCheck(topic=where.topic, partition=where.partition)
    check.differs(reason)
    return check


class Verifier:
    """Compares what was mirrored. The maps say which record is a copy of which; verified is that none is missing."""

    def __init__(self, source: Backend, destination: Backend) -> None:
        self._source = source
        self._destination = destination

    async def check(self, where: TopicPartition, copied: OffsetMap) -> PartitionCheck:
        """Compare a partition up to the last record that was mirrored."""
        check = PartitionCheck(topic=where.topic, partition=where.partition)
        compacts = [await _compacts(side, where.topic) for side in (self._source, self._destination)]
        sides = _reader(self._source), _reader(self._destination)
        try:
            starts = [await _start(side, where) for side in (self._source, self._destination)]
            end = (await ends_of(self._source, [where]))[where]
            if end < copied.position:
                check.differs(f"the source ends at {end:,}, and was mirrored up to {copied.position:,}")
            walk = _Walk(check, copied, *compacts, *starts)
            here = _records(sides[0], where, starts[0], min(copied.position, end))
            there = _records(sides[1], where, starts[1], None)
            await walk.run(here, there)
            begin = max(copied.position, starts[0])
            if begin < end and await anext(_records(sides[0], where, begin, end), None) is not None:
                check.behind = end - begin
        finally:
            for side in sides:
                await side.aclose()
        walk.judge(await _start(self._source, where), await _start(self._destination, where))
        return check

    async def check_absent(self, where: TopicPartition, name: str) -> list[PartitionCheck]:
        """Check a partition that this mirror has never copied, which is right if it is empty."""
        reader = _reader(self._source)
        try:
            end = (await ends_of(self._source, [where]))[where]
            record = await anext(_records(reader, where, await _start(self._source, where), end), None)
        finally:
            await reader.aclose()
        return [] if record is None else [refused(where, f"the mirror {name!r} has never copied it")]


class _Walk:
    """Reads both sides of a partition in parallel, in the order of the destination."""

    def __init__(
        self,
        check: PartitionCheck,
        copied: OffsetMap,
        source_compacts: bool,
        destination_compacts: bool,
        source_start: int,
        destination_start: int,
    ) -> None:
        self._check = check
        self._map = copied
        self._source_compacts = source_compacts
        self._destination_compacts = destination_compacts
        self._digests = hashlib.blake2b(digest_size=_DIGEST_BYTES), hashlib.blake2b(digest_size=_DIGEST_BYTES)
        self._source_start = source_start
        self._destination_start = destination_start
        self._absent_here: list[int] = []
        """Offsets at the source of records that exist only at the destination, without those known to be deleted."""
        self._absent_there: list[tuple[int, bytes]] = []
        """Offsets at the destination, and digests, of records that exist only at the source, without deleted ones."""
        self._last_of_key: dict[bytes, tuple[int, bytes]] = {}
        """Such records if the destination is compacted, by key, until a later record of the key is found."""

    async def run(self, here: AsyncIterator[ConsumerRecord], there: AsyncIterator[ConsumerRecord]) -> None:
        source, copy = await anext(here, None), await anext(there, None)
        while source is not None or copy is not None:
            expected = None if source is None else self._map.copy_of(source.offset)
            if source is not None and expected is None:
                self._only_here(source)
                source = await anext(here, None)
            elif copy is None or (expected is not None and expected < copy.offset):
                assert source is not None and expected is not None
                self._only_at_source(source, expected)
                source = await anext(here, None)
            elif expected is None or copy.offset < expected:
                if copy.offset >= self._map.end:
                    self._check.newer += 1
                    self._supersede(copy)
                else:
                    self._only_there(copy)
                copy = await anext(there, None)
            else:
                assert source is not None
                self._compare(source, copy)
                source, copy = await anext(here, None), await anext(there, None)
        self._check.source_digest, self._check.destination_digest = (one.hexdigest() for one in self._digests)

    def _compare(self, source: ConsumerRecord, copy: ConsumerRecord) -> None:
        self._supersede(source)
        ours, theirs = _canonical(source), _canonical(copy)
        self._digests[0].update(ours)
        self._digests[1].update(theirs)
        if ours == theirs:
            self._check.records += 1
        else:
            self._check.differs(
                f"offset {copy.offset} is not the record of offset {source.offset}: {_what(source, copy)}"
            )

    def _only_here(self, source: ConsumerRecord) -> None:
        self._digests[0].update(_canonical(source))
        self._check.differs(f"the source's offset {source.offset} was never copied")

    def _only_at_source(self, source: ConsumerRecord, expected: int) -> None:
        self._supersede(source)
        if expected < self._destination_start or (self._destination_compacts and source.value is None):
            self._check.gone_at_destination += 1
            return
        absent = expected, _digest(_canonical(source))
        if self._destination_compacts and source.key is not None:
            self._last_of_key[_digest(source.key)] = absent
        else:
            self._absent_there.append(absent)

    def _supersede(self, record: ConsumerRecord) -> None:
        """Drop missing records of the key: compaction removes a record only if there is a later record with its key."""
        if self._last_of_key and record.key is not None and self._last_of_key.pop(_digest(record.key), None):
            self._check.gone_at_destination += 1

    def _only_there(self, copy: ConsumerRecord) -> None:
        origin = self._map.origin_of(copy.offset)
        if origin is not None and (origin < self._source_start or self._source_compacts):
            self._check.gone_at_source += 1
        elif origin is not None:
            self._absent_here.append(origin)
        elif len(self._map) and copy.offset >= self._map.base:
            self._digests[1].update(_canonical(copy))
            self._check.differs(f"offset {copy.offset} is not a copy: another client wrote it")

    def judge(self, source_start: int, destination_start: int) -> None:
        """Judge records that exist on only one side: deleted as expected, or missing."""
        check = self._check
        for origin in self._absent_here:
            if origin < source_start:  # it was deleted while we read
                check.gone_at_source += 1
            else:
                check.differs(f"the source's offset {origin} was copied, and is not there any more")
        missing = hashlib.blake2b(check.source_digest.encode(), digest_size=_DIGEST_BYTES)
        for offset, digest in sorted([*self._absent_there, *self._last_of_key.values()]):
            if offset < destination_start:
                check.gone_at_destination += 1
            else:
                missing.update(digest)
                check.differs(f"offset {offset} is missing")
                check.source_digest = missing.hexdigest()


def _reader(backend: Backend) -> BackendConsumer:
    return backend.consumer(READER)


async def _records(
    consumer: BackendConsumer, where: TopicPartition, start: int, end: int | None
) -> AsyncIterator[ConsumerRecord]:
    """Yield the records of a partition, in order, before ``end``; None: up to the present end."""
    await consumer.assign([where])
    consumer.seek(where, start)
    if end is None:
        end = (await consumer.end_offsets([where]))[where]
    passed = -1
    while start < end:
        fetched = await consumer.fetch(_WAIT_MS)
        for records in fetched:
            for record in records:
                if record.offset >= end:
                    return
                yield record
            start = records.next_offset
        if fetched:
            passed = -1
        elif passed >= end:  # it was empty then, and is empty now
            return
        else:
            passed = await consumer.position(where)


async def _start(backend: Backend, where: TopicPartition) -> int:
    return (await backend.list_offsets({where: EARLIEST}))[where].offset


async def _compacts(backend: Backend, topic: str) -> bool:
    [found] = await backend.describe_topics([topic])
    policy = found.configs.get("cleanup.policy")
    return policy is not None and "compact" in policy.value


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _canonical(record: ConsumerRecord) -> bytes:
    """Encode a record independently of its position. The type of its timestamp is not included."""
    time_ms = 1 if record.timestamp_ms == 0 else record.timestamp_ms  # a Kafka client cannot write timestamp 0
    content: tuple[Any, ...] = (time_ms, record.key, record.value, record.headers)
    return msgspec.msgpack.encode(content)


def _what(source: ConsumerRecord, copy: ConsumerRecord) -> str:
    """Return the names of differing fields."""
    fields = ("key", "value", "headers", "timestamp_ms")
    names = [name for name in fields if getattr(source, name) != getattr(copy, name)]
    return f"other {', '.join(names)}"
