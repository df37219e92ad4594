"""`status`: the progress and lag of a table, read from its account without taking it over."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from eventbus.errors import OffsetOutOfRange
from eventbus.log.reader import LogReader
from eventbus.records import iter_batches
from spark_sinks.upkeep.tables import opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class PartitionStatus(msgspec.Struct, frozen=True):
    """The progress of one partition.

    ``landed`` is the next offset to land. ``lag`` counts offsets up to the last stable offset, ``lost`` those that
    retention removed before they were landed. ``waiting_since_ms`` is when the first waiting record was sent (only for
    logs in files).
    """

    partition: int
    started: int
    landed: int
    log_start: int
    log_end: int
    lag: int
    lost: int
    waiting_since_ms: int | None


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a table.

    ``rejected`` counts all refused records, ``quarantined`` those that still wait. ``files`` and ``size_bytes`` are
    None for a table without files. ``lag_seconds`` is the age of the oldest waiting record; None if unknown.
    """

    topic: str
    table: str
    log: str
    now_ms: int
    partitions: list[PartitionStatus]
    lag: int
    lag_seconds: float | None
    rows: int
    rejected: int
    quarantined: int
    sequence: int
    epoch: int
    committed_at_ms: int
    files: int | None
    size_bytes: int | None
    upsert: list[str]
    partition_by: list[str]
    transformed: bool
    columns: dict[str, str]


def status(url: str, topic: str | None, to: str, *, spark: SparkSession | None = None) -> TableStatus:
    """Return the progress of the table at ``to``, without starting Spark.

    ``topic=None`` is the topic in the table's account. Raises `ConfigError` if the table does not exist, or belongs to
    another topic.
    """
    with opened(url, topic, to, spark=spark) as there:
        origin, target, state = there.origin, there.target, there.state
        bounds = origin.bounds()
        reader = LogReader(origin.directory) if origin.directory is not None else None
        partitions: list[PartitionStatus] = []
        for number in sorted({*bounds, *state.offsets}):
            first, end = bounds.get(number, (0, 0))
            started = state.started.get(number, 0)
            landed = state.offsets.get(number, first)
            since_ms = None
            if reader is not None and max(landed, first) < end:
                since_ms = _sent_at_ms(reader, state.topic, number, max(landed, first), end)
            lag, lost = max(0, end - landed), max(0, min(first, end) - landed)
            partitions.append(PartitionStatus(number, started, landed, first, end, lag, lost, since_ms))
        now_ms = time.time_ns() // 1_000_000
        files, columns = target.files(), state.columns()
        return TableStatus(
            topic=state.topic,
            table=target.name,
            log=there.log,
            now_ms=now_ms,
            partitions=partitions,
            lag=sum(each.lag for each in partitions),
            lag_seconds=_age(partitions, now_ms),
            rows=state.rows,
            rejected=state.rejected,
            quarantined=sum(batch.num_rows for batch in target.read_quarantine()),
            sequence=state.sequence,
            epoch=state.epoch,
            committed_at_ms=state.committed_at_ms,
            files=files.files if files else None,
            size_bytes=files.size_bytes if files else None,
            upsert=list(state.upsert),
            partition_by=list(state.partition_by),
            transformed=state.transformed,
            columns={} if columns is None else {field.name: str(field.type) for field in columns},
        )


def _age(partitions: list[PartitionStatus], now_ms: int) -> float | None:
    waiting = [each for each in partitions if each.lag]
    if not waiting:
        return 0.0
    since = [each.waiting_since_ms for each in waiting if each.waiting_since_ms is not None]
    return max(0, now_ms - min(since)) / 1000 if since else None


def _sent_at_ms(reader: LogReader, topic: str, partition: int, offset: int, end: int) -> int | None:
    """Return the time of the batch that contains an offset, or of the next batch."""
    try:
        for data in reader.read(topic, partition, offset, end, 1):
            for batch in iter_batches(data, verify=False):
                if not batch.header.is_control:
                    return batch.header.base_timestamp_ms
    except OffsetOutOfRange:  # retention removed it meanwhile
        return None
    return None
