"""Batches as a source hands them over."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

import pyarrow as pa

DAY = dt.datetime(2024, 2, 29, 23, 59, 59, 999000, tzinfo=dt.UTC)


def source_batch(
    values: Sequence[bytes | None],
    *,
    keys: Sequence[bytes | None] | None = None,
    partition: int = 0,
    first: int = 0,
    day: dt.datetime = DAY,
) -> pa.RecordBatch:
    """Records of one partition, with the columns `shape.SOURCE_COLUMNS`."""
    count = len(values)
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * count if keys is None else keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": pa.array(["t"] * count, pa.string()),
            "partition": pa.array([partition] * count, pa.int32()),
            "offset": pa.array(range(first, first + count), pa.int64()),
            "timestamp": pa.array([day] * count, pa.timestamp("us", "UTC")),
        }
    )
