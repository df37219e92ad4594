"""``format("eventbus")``: a log directory as a Spark source, batch and stream, with the Kafka source's columns.

Written on Spark's Python Data Source API. The driver plans offset ranges, tasks read and decode their range on their
own through `eventbus.log.reader`, and records cross to the JVM as Arrow columns. A reader object is pickled to the
tasks, so it holds options only.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from eventbus.errors import OffsetOutOfRange
from eventbus.log.reader import LogReader
from eventbus.types import TopicPartition
from spark_sinks.source.offsets import (
    EARLIEST,
    TOPIC_IDS,
    Bounds,
    OffsetRange,
    Offsets,
    check_kept,
    from_json,
    limited,
    resolve,
    split,
    to_json,
)
from spark_sinks.source.options import SourceOptions, parse_options
from spark_sinks.source.topic_reader import TopicReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
"""Those of Spark's Kafka source."""
_HEADERS = ", headers array<struct<key string, value binary>>"


def register(spark: SparkSession) -> None:
    """Teach a session ``format("eventbus")``. `spark_session` has done it already."""
    spark.dataSource.register(EventBusDataSource)


class EventBusDataSource(DataSource):
    """The source ``format("eventbus")``. Spark requests its schema first, so a wrong option fails at ``load()``."""

    @classmethod
    def name(cls) -> str:
        return "eventbus"

    def schema(self) -> str:
        options = parse_options(self.options)
        return COLUMNS + (_HEADERS if options.include_headers else "")

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(parse_options(self.options, stream=False))

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(parse_options(self.options, stream=True))


class Range(InputPartition):
    """An `OffsetRange` in the form in which Spark sends it to a task."""

    def __init__(self, offsets: OffsetRange) -> None:
        super().__init__(tuple(offsets))
        self.offsets = offsets


class BatchReader(DataSourceReader):
    """``spark.read``: the records between two offsets per partition."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        options, reader = self._options, TopicReader(self._options.directory)
        bounds = options.bounds(reader)
        return _plan(options, options.start(bounds, reader), options.end(bounds, reader), bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``: offsets are Kafka's JSON, as those of Spark's Kafka source, and the ids of their topics.

    A checkpoint outlives the stream. Without the ids, a stream that is started again could not tell a topic from one
    that was deleted and created again meanwhile, if that is longer.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._target: Offsets | None = None
        self._triggered = -math.inf
        self._topic_ids: dict[str, str] = {}

    def initialOffset(self) -> dict[str, Any]:
        return self._json(self._options.start(self._bounds(), TopicReader(self._options.directory)))

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = {each: end for each, (_, end) in self._bounds().items()}

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        bounds = self._bounds(start)
        begin = {each: first for each, (first, _) in bounds.items()} | from_json(start)
        end = self._target if self._target is not None else {each: last for each, (_, last) in bounds.items()}
        if self._options.fail_on_data_loss:
            for each, offset in begin.items():
                check_kept(each, offset, offset, bounds.get(each, (0, 0)))
        # An offset of a stream never goes back, not even when the topic did.
        reached = {each: max(begin.get(each, 0), end.get(each, 0)) for each in begin.keys() | end.keys()}
        if self._is_too_little(sum(reached[each] - begin.get(each, reached[each]) for each in reached)):
            return start
        if isinstance(limit, ReadMaxRows):
            reached = limited(begin, reached, limit.max_rows)
        return self._json(reached)

    def _is_too_little(self, records: int) -> bool:
        """True if a micro-batch should wait for more records. The first never waits, and ``availableNow`` cannot."""
        least, now = self._options.min_offsets_per_trigger, time.monotonic()
        if least is None or self._target is not None:
            return False
        if records < least and (now - self._triggered) * 1000 < self._options.max_trigger_delay_ms:
            return True
        if records:
            self._triggered = now
        return False

    def reportLatestOffset(self) -> dict[str, Any]:
        return self._json({each: end for each, (_, end) in self._bounds().items()})

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        bounds = self._bounds(start)
        begin = {each: first for each, (first, _) in bounds.items()} | from_json(start)
        return _plan(self._options, begin, from_json(end), bounds)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)

    def _json(self, offsets: Offsets) -> dict[str, Any]:
        return to_json(offsets, self._topic_ids)

    def _bounds(self, start: dict[str, Any] | None = None) -> Bounds:
        """Return what the log has now. ``start``: offsets of an earlier call, perhaps from the checkpoint."""
        self._topic_ids = {**(start or {}).get(TOPIC_IDS, {}), **self._topic_ids}
        reader = TopicReader(self._options.directory)
        bounds = self._options.bounds(reader)
        if self._options.fail_on_data_loss:
            for topic in {each.topic for each in bounds}:
                self._check_topic(topic, reader.topic_id(topic))
        return bounds

    def _check_topic(self, topic: str, id: str) -> None:
        """Compare the topic's id: a topic created again may have as many records, so offsets do not show it."""
        if id and self._topic_ids.setdefault(topic, id) != id:
            raise OffsetOutOfRange(
                f"the topic {topic} was deleted and made again since this stream read it: its records have other "
                f"offsets now. Start again with another checkpoint, or set failOnDataLoss=false to go on from the "
                f"offset that was reached"
            )


def _plan(options: SourceOptions, start: Offsets, end: Offsets, bounds: Bounds) -> list[InputPartition]:
    ranges = [
        OffsetRange(each, *_kept(options, each, start.get(each, EARLIEST), end[each], bounds.get(each)))
        for each in sorted(end)
    ]
    pieces = split(ranges, min_tasks=options.min_partitions, max_records=options.max_records_per_partition)
    return [Range(piece) for piece in pieces]


def _kept(
    options: SourceOptions, where: TopicPartition, start: int, end: int, bounds: tuple[int, int] | None
) -> tuple[int, int]:
    """Return the part of ``[start, end)`` that the log has. With ``failOnDataLoss`` it must have all of it."""
    first, last = bounds or (0, 0)
    start = resolve(start, (first, last))
    inside = min(max(start, first), last), min(max(end, first), last)
    if options.fail_on_data_loss:
        check_kept(where, start, end, (first, last))
    return inside[0], max(inside)


def _read(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    from spark_sinks.source.arrow import read_range
    from spark_sinks.source.claims import Claims

    assert isinstance(partition, Range)
    reader = LogReader(options.directory)
    return read_range(
        reader,
        partition.offsets,
        include_headers=options.include_headers,
        skip_lost=not options.fail_on_data_loss,
        # With their headers, a reader can distinguish names in a claim check's store from values.
        claims=None if options.include_headers and not options.claims else Claims(options.claims),
    )
