"""Find the batches that belong to aborted transactions.

Kafka's clients go through a fetch with a set of producers: an aborted transaction enters it at its first offset and
leaves it at its marker. Here the marker's offset is known too, so each batch can be decided independently, also if
compaction has removed a marker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from eventbus.records.batch import iter_batches
from eventbus.types import AbortedTransaction


class AbortedRanges:
    """The offsets of aborted transactions, by producer. A producer's transactions do not overlap."""

    __slots__ = ("_by_producer",)

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, tuple[list[int], list[int]]] = {}
        for producer_id, first_offset, last_offset in sorted(aborted):
            first_offsets, last_offsets = self._by_producer.setdefault(producer_id, ([], []))
            first_offsets.append(first_offset)
            last_offsets.append(last_offset)

    def covers(self, producer_id: int, base_offset: int) -> bool:
        """True if a transactional batch of the producer, at this offset, was aborted."""
        ranges = self._by_producer.get(producer_id)
        if ranges is None:
            return False
        number = bisect_right(ranges[0], base_offset) - 1
        return number >= 0 and base_offset <= ranges[1][number]


def committed_batches(data: bytes, ranges: AbortedRanges) -> bytes:
    """Return the batches without those of aborted transactions and without markers, which are then superfluous."""
    kept: list[bytes] = []
    for batch in iter_batches(data, verify=False):
        header = batch.header
        if not header.is_control and not (
            header.is_transactional and ranges.covers(header.producer_id, header.base_offset)
        ):
            kept.append(data[batch.position : batch.position + header.size_bytes])
    return b"".join(kept)
