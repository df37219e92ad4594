"""Read a topic by offset, to check a table against it: from the log's files, or from a cluster through Spark."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import numpy as np

from eventbus.errors import OffsetOutOfRange
from eventbus.log.reader import LogReader
from eventbus.records import iter_batches
from eventbus.records.aborted import AbortedRanges
from eventbus.records.columnar import record_arrays
from eventbus.types import IsolationLevel, TopicPartition
from spark_sinks.shape import SOURCE_COLUMNS
from spark_sinks.source.offsets import OffsetRange
from spark_sinks.source.origin import Origin, PartitionBounds
from spark_sinks.source.topic_reader import TopicReader
from spark_sinks.upkeep.offsets import WINDOW

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    Kinds = NDArray[np.uint8]

NOTHING, RECORD, MARKER, ABORTED, GONE = range(5)
"""The kinds of offsets: empty (compacted away, or on a cluster anything but a record), a committed record, a
transaction marker, a record of an aborted transaction, or a record that retention removed.
"""
_READ_BYTES = 4 << 20


class TopicContents(Protocol):
    """The present contents of a topic."""

    tells_gaps: bool
    """True if it distinguishes why offsets have no record."""

    def bounds(self) -> PartitionBounds: ...

    def kinds(self, partition: int, start: int, end: int) -> Kinds:
        """Return the kind of each offset from ``start`` to before ``end``, all of them below the log's end."""
        ...

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the committed records that still exist, ascending, with `shape.SOURCE_COLUMNS`."""
        ...


def contents_of(origin: Origin, session: Callable[[], SparkSession]) -> TopicContents:
    """Return the contents of a topic. ``session`` is only called for a cluster."""
    if origin.directory is not None:
        return LogContents(origin.directory, origin.topic)
    return ClusterContents(origin, session())


class LogContents:
    """A topic in a directory. Headers suffice for batches without gaps, so most records are not decoded."""

    tells_gaps = True

    def __init__(self, directory: str, topic: str) -> None:
        self._directory = directory
        self._reader = LogReader(directory)
        self._topic = topic

    def bounds(self) -> PartitionBounds:
        return TopicReader(self._directory).offsets(self._topic)

    def kinds(self, partition: int, start: int, end: int) -> Kinds:
        kinds = np.zeros(end - start, np.uint8)
        first = start
        while True:
            try:
                self._fill(kinds, partition, start, first, end)
                return kinds
            except OffsetOutOfRange:  # retention removed records meanwhile
                first = self._reader.offsets(self._topic)[partition][0]
                kinds[: max(0, first - start)] = GONE
                if first >= end:
                    return kinds

    def _fill(self, kinds: Kinds, partition: int, start: int, first: int, end: int) -> None:
        aborted = AbortedRanges(self._reader.aborted(self._topic, partition, first, end))
        chunks = self._reader.read(
            self._topic, partition, first, end, _READ_BYTES, isolation=IsolationLevel.READ_UNCOMMITTED
        )
        for data in chunks:
            for batch in iter_batches(data, verify=False):
                header = batch.header
                low, high = max(header.base_offset, first), min(header.next_offset, end)
                if low >= high:
                    continue
                if header.is_control:
                    kinds[low - start : high - start] = MARKER
                elif header.is_transactional and aborted.covers(header.producer_id, header.base_offset):
                    kinds[low - start : high - start] = ABORTED
                elif header.records_count == header.last_offset_delta + 1:
                    kinds[low - start : high - start] = RECORD
                elif header.records_count:
                    whole = data[batch.position : batch.position + header.size_bytes]
                    kinds[record_arrays(whole, low, high, verify=False).offsets - start] = RECORD

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        from spark_sinks.source.arrow import read_range

        start = max(start, self.bounds()[partition][0])
        for batch in read_range(self._reader, OffsetRange(TopicPartition(self._topic, partition), start, end)):
            yield batch.select(SOURCE_COLUMNS)


class ClusterContents:
    """A topic of a cluster. It shows only committed records, not why an offset has none."""

    tells_gaps = False

    def __init__(self, origin: Origin, spark: SparkSession) -> None:
        self._origin = origin
        self._spark = spark

    def bounds(self) -> PartitionBounds:
        return self._origin.bounds()

    def kinds(self, partition: int, start: int, end: int) -> Kinds:
        kinds = np.zeros(end - start, np.uint8)
        frame = self._origin.batch(self._spark, {partition: start}, {partition: end})
        offsets = frame.select("offset").toArrow().column("offset").to_numpy()
        kinds[offsets - start] = RECORD
        return kinds

    def records(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        start = max(start, self.bounds()[partition][0])
        for low in range(start, end, WINDOW):
            frame = self._origin.batch(self._spark, {partition: low}, {partition: min(low + WINDOW, end)})
            yield from frame.select(*SOURCE_COLUMNS).sort("offset").toArrow().to_batches()
