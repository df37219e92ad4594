"""Read records at chosen offsets, and add new dead letters to an index."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from dlq.headers import ERROR_CLASS, GROUP, HANDLER, LAST_FAILED, OURS, REASON, TOP_FRAME
from dlq.index import OPEN, PARKED, TopicIndex
from dlq.letters import DeadLetter, dead_letter
from dlq.selection import Selection, key_of
from eventbus import Consumer, EventBus
from eventbus.delays.header_values import number_of
from eventbus.types import ConsumerRecord, TopicPartition

POLL_RECORDS = 1_000
WAIT_MS = 10
_WIDE = 2_000
"""A gap of at least this many offsets is skipped with a seek. A smaller gap is read through."""
_MOST_KNOWN = 10_000
_LAST_MS = 10**15
"""Later timestamps are considered invalid."""


def reader(bus: EventBus, partitions: Iterable[TopicPartition]) -> Consumer:
    """Return a consumer for existing records. It does not wait for more at the end of the log."""
    return bus.new_consumer(partitions=partitions, start="earliest", fetch_max_wait_ms=WAIT_MS)


async def records_at(
    bus: EventBus, wanted: Mapping[TopicPartition, Sequence[int]]
) -> AsyncGenerator[list[ConsumerRecord]]:
    """Yield the records at these offsets in batches, in order within each partition. Removed records are omitted.

    The partitions must exist, and their offsets must be sorted.
    """
    ends = await bus.admin.list_offsets(dict.fromkeys(wanted, -1))
    begins = await bus.admin.list_offsets(dict.fromkeys(wanted, -2))
    for where, offsets in wanted.items():
        begin, end = begins[where].offset, ends[where].offset
        held = [offset for offset in offsets if begin <= offset < end]
        if not held:
            continue
        async with reader(bus, [where]) as consumer:
            position, at = -_WIDE, 0
            while at < len(held) and position < end:
                if held[at] - position >= _WIDE:
                    consumer.seek(where, held[at])
                polled = await consumer.poll(max_records=min(POLL_RECORDS, held[-1] - held[at] + 1))
                position = await consumer.position(where)
                found: list[ConsumerRecord] = []
                for record in polled:
                    while at < len(held) and held[at] < record.offset:
                        at += 1
                    if at < len(held) and held[at] == record.offset:
                        found.append(record)
                        at += 1
                while at < len(held) and held[at] < position:
                    at += 1
                if found:
                    yield found


async def selected(
    bus: EventBus, wanted: Mapping[TopicPartition, Sequence[int]], selection: Selection
) -> AsyncGenerator[list[DeadLetter]]:
    """Yield the letters at these offsets that match the selection, judged by the letters' own contents."""
    left = selection.limit
    async with aclosing(records_at(bus, wanted)) as batches:
        async for records in batches:
            found = [letter for letter in map(dead_letter, records) if selection.takes(letter)][:left]
            if found:
                yield found
            if left is not None:
                left -= len(found)
                if not left:
                    return


class Scanner:
    """Adds dead letters to an index. The case is computed once for each combination of headers."""

    def __init__(self, index: TopicIndex) -> None:
        self._index = index
        self._known: dict[tuple[bytes | None, ...], tuple[int, int]] = {}

    def take(self, partition: int, records: Iterable[ConsumerRecord]) -> None:
        """Add records of one partition, in offset order."""
        known, add = self._known, self._index.partition(partition).add
        for record in records:
            headers = record.headers
            get = dict(headers).get
            # The system whose headers come last wrote the letter. Only if that is us do our headers identify the case.
            if not headers or not headers[-1][0].startswith(OURS) or not get(ERROR_CLASS):
                letter = dead_letter(record)
                add(record.offset, *self._case_of(letter), _time_of(letter.last_failed_ms, record))
                continue
            names = get(HANDLER), get(GROUP), get(ERROR_CLASS), get(TOP_FRAME), get(REASON)
            found = known.get(names)
            if found is None:
                if len(known) >= _MOST_KNOWN:
                    known.clear()
                found = known[names] = self._case_of(dead_letter(record))
            add(record.offset, *found, _time_of(number_of(get(LAST_FAILED)), record))

    def _case_of(self, letter: DeadLetter) -> tuple[int, int]:
        return self._index.number_of(key_of(letter)), PARKED if letter.reason == "parked" else OPEN


def _time_of(failed_ms: int | None, record: ConsumerRecord) -> int:
    return failed_ms if failed_ms is not None and failed_ms < _LAST_MS else record.timestamp_ms
