"""Log bytes to Arrow columns: equal to the record-by-record decoder, and of the exact types Spark asks for."""

from __future__ import annotations

import datetime as dt
import hashlib
import os
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.broker import Broker, BrokerConfig
from eventbus.client.consuming import restoring
from eventbus.errors import CorruptRecord, OffsetOutOfRange, SerializationError
from eventbus.log import checkpoints
from eventbus.log.config import LogConfig
from eventbus.log.partition_log import PartitionLog
from eventbus.log.reader import LogReader
from eventbus.log.storage import FileStorage
from eventbus.middleware import Directory
from eventbus.records import BatchBuilder, build_marker, fetched_records, patch_offsets
from eventbus.records.control import ControlType, EndTransactionMarker
from eventbus.types import Compression, Record, TopicPartition
from spark_sinks.source.arrow import GROWN_BYTES, read_range, record_batch, source_schema
from spark_sinks.source.claims import CLAIM_CHECK, Claims
from spark_sinks.source.offsets import OffsetRange
from tests.log.test_producers import SMALL, Writer
from tests.spark.conftest import NOW_MS

if TYPE_CHECKING:
    from tests.spark.conftest import TestLog

pytestmark = pytest.mark.system

WHERE = TopicPartition("orders", 3)


def log_bytes(batches: list[tuple[int, Compression, list[Record]]]) -> bytes:
    """Batches back to back, each at its base offset."""
    buffer = bytearray()
    for base_offset, compression, records in batches:
        builder = BatchBuilder(compression)
        for record in records:
            builder.append(record.key, record.value, record.headers, record.timestamp_ms)
        batch = builder.build()
        patch_offsets(batch, base_offset, 0)
        buffer += batch
    return bytes(buffer)


texts = st.none() | st.binary(max_size=200)
all_headers = st.lists(st.tuples(st.text(max_size=5), texts), max_size=3).map(tuple)
times = st.integers(1_600_000_000_000, 1_700_000_000_000)
all_records = st.lists(st.builds(Record, texts, texts, st.just(()) | all_headers, times), min_size=1, max_size=20)
logs = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(Compression), all_records), min_size=1, max_size=4)


@settings(deadline=None)
@given(logs, st.data())
def test_columns_equal_the_records(parts: list[tuple[int, Compression, list[Record]]], data: st.DataObject) -> None:
    batches: list[tuple[int, Compression, list[Record]]] = []
    base_offset = 0
    for gap, compression, records in parts:
        batches.append((base_offset + gap, compression, records))
        base_offset += gap + len(records)
    start = data.draw(st.integers(0, base_offset))
    end = data.draw(st.integers(start, base_offset))
    buffer = log_bytes(batches)
    got = record_batch(buffer, OffsetRange(WHERE, start, end), include_headers=True)
    expected = [record for record in fetched_records(buffer, *WHERE, start) if record.offset < end]
    assert got.column("offset").to_pylist() == [record.offset for record in expected]
    assert got.column("key").to_pylist() == [record.key for record in expected]
    assert got.column("value").to_pylist() == [record.value for record in expected]
    assert got.column("timestamp").cast(pa.int64()).to_pylist() == [record.timestamp_ms * 1000 for record in expected]
    assert got.column("headers").to_pylist() == [
        [{"key": name, "value": value} for name, value in record.headers] or None for record in expected
    ]
    assert set(got.column("topic").to_pylist()) <= {"orders"}
    assert set(got.column("partition").to_pylist()) <= {3}


@pytest.mark.parametrize("include_headers", [False, True])
def test_types_are_those_spark_makes_of_the_schema(include_headers: bool) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        ArrayType,
        BinaryType,
        IntegerType,
        LongType,
        StringType,
        StructType,
        TimestampType,
    )

    expected = StructType()
    for name, kind in (
        ("key", BinaryType()),
        ("value", BinaryType()),
        ("topic", StringType()),
        ("partition", IntegerType()),
        ("offset", LongType()),
        ("timestamp", TimestampType()),
        ("timestampType", IntegerType()),
    ):
        expected = expected.add(name, kind)
    if include_headers:
        expected = expected.add("headers", ArrayType(StructType().add("key", StringType()).add("value", BinaryType())))
    assert source_schema(include_headers=include_headers) == to_arrow_schema(expected, timezone="UTC")
    buffer = log_bytes([(0, Compression.NONE, [Record(None, b"", (("h", None),), 1)])])
    got = record_batch(buffer, OffsetRange(WHERE, 0, 1), include_headers=include_headers)
    assert got.schema == source_schema(include_headers=include_headers)


def test_control_records_are_left_out() -> None:
    marker = build_marker(EndTransactionMarker(ControlType.COMMIT, 0), producer_id=1, producer_epoch=0, timestamp_ms=5)
    patch_offsets(marker, 1, 0)
    buffer = log_bytes([(0, Compression.NONE, [Record(b"k", b"v", (), 5)])]) + bytes(marker)
    got = record_batch(buffer, OffsetRange(WHERE, 0, 2))
    assert got.column("offset").to_pylist() == [0]
    assert record_batch(bytes(marker), OffsetRange(WHERE, 0, 2)).num_rows == 0


def test_no_timestamp_is_kafkas_minus_one_and_an_impossible_one_is_null() -> None:
    buffer = log_bytes(
        [(0, Compression.NONE, [Record(b"", None, (), -1)]), (1, Compression.NONE, [Record(b"", None, (), 2**62)])]
    )
    got = record_batch(buffer, OffsetRange(WHERE, 0, 2)).column("timestamp")
    assert got.to_pylist() == [dt.datetime(1969, 12, 31, 23, 59, 59, 999000, dt.UTC), None]


def test_damage_names_the_partition() -> None:
    buffer = bytearray(log_bytes([(7, Compression.NONE, [Record(b"k", b"value", (), 5)])]))
    buffer[-3] ^= 1
    with pytest.raises(CorruptRecord, match="orders-3, between offset 7 and 8"):
        record_batch(bytes(buffer), OffsetRange(WHERE, 7, 8), verify=True)


def test_a_range_holds_only_what_was_committed(tmp_path) -> None:
    storage = FileStorage(str(tmp_path))
    where = TopicPartition("orders", 0)
    writer = Writer(PartitionLog.open(storage, where, LogConfig(**SMALL), now_ms=0))
    random = Random(5)
    for _ in range(5):
        writer.work(random, 20)
        stable = writer.log.last_stable_offset
        checkpoints.write_offsets(storage, checkpoints.LAST_STABLE_OFFSETS, {where: stable}, sync=False)
        for start in (0, stable // 3):
            batches = [*read_range(LogReader(str(tmp_path)), OffsetRange(where, start, stable))]
            rows = [row for batch in batches for row in batch.to_pylist()]
            expected = sorted(each for each in writer.committed if start <= each[0] < stable)
            assert [(row["offset"], row["value"]) for row in rows] == expected


def test_batches_that_grow_a_thousandfold_are_taken_a_few_at_a_time(log: TestLog) -> None:
    """Together they would not fit into a column, nor into the memory of a worker."""
    zeros = [Record(None, bytes(4 << 20), (), n) for n in range(20)]
    log.write("orders", zeros, per_batch=1, compression=Compression.ZSTD)
    offsets = OffsetRange(TopicPartition("orders", 0), 1, 19)
    batches = [*read_range(LogReader(log.path), offsets)]
    assert max(batch.column("value").nbytes for batch in batches) <= GROWN_BYTES + (4 << 20) + 1_000
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(1, 19)]


def test_a_record_larger_than_any_bound_is_read_once() -> None:
    values = [Random(1).randbytes(GROWN_BYTES + 1), b"small"]
    for compression in (Compression.NONE, Compression.ZSTD):
        buffer = log_bytes([(n, compression, [Record(None, value, (), n)]) for n, value in enumerate(values)])
        reader = cast("LogReader", SimpleNamespace(read=lambda *_, data=buffer: iter([data])))
        batches = [*read_range(reader, OffsetRange(WHERE, 0, 9))]
        assert [value for batch in batches for value in batch.column("value").to_pylist()] == values


def test_values_of_a_claim_check_are_read_from_its_directory_or_refused(log: TestLog, tmp_path: Path) -> None:
    """Their names in it were taken for the values."""
    assert CLAIM_CHECK == restoring.CLAIM_CHECK
    large = bytes(1_000)
    name, no_claim = hashlib.sha256(large).hexdigest().encode(), b"0" * 64
    Directory(tmp_path / "claims").put(name.decode(), large)
    headers = ((CLAIM_CHECK, b"1000"),)
    records = [(b"v", ()), (name, headers), (no_claim, (("own", b"1"),)), (None, headers)]
    log.write("orders", [Record(None, value, marks, 1) for value, marks in records])
    offsets = OffsetRange(TopicPartition("orders", 0), 0, 4)

    def read(claims: Claims | None) -> list[bytes | None]:
        batches = read_range(LogReader(log.path), offsets, claims=claims)
        return [value for batch in batches for value in batch.column("value").to_pylist()]

    assert read(Claims(str(tmp_path / "claims"))) == [b"v", large, no_claim, None]
    assert read(None) == [b"v", name, no_claim, None]
    with pytest.raises(SerializationError, match=r"orders-0 offset 1 is in the store .* option claims=DIRECTORY"):
        read(Claims())
    with pytest.raises(SerializationError, match="is not in the claim check's directory"):
        read(Claims(str(tmp_path)))
    (tmp_path / "claims" / name.decode()).write_bytes(b"other")
    with pytest.raises(SerializationError, match="is damaged in"):
        read(Claims(str(tmp_path / "claims")))


@pytest.mark.parametrize("cut", [7, 20])
def test_what_retention_takes_from_under_a_reader_is_passed_over_or_told(log: TestLog, cut: int) -> None:
    """The task planned from offset 0; the log begins later by the time that it reads."""
    log.write("orders", [Record(None, b"%d" % n, (), n) for n in range(20)], per_batch=5)
    broker = Broker.open(FileStorage(log.path), BrokerConfig(), now_ms=NOW_MS, new_id=lambda: os.urandom(16))
    broker.delete_records(TopicPartition("orders", 0), cut, NOW_MS)
    broker.publish_checkpoints(NOW_MS)
    broker.close(NOW_MS)
    offsets = OffsetRange(TopicPartition("orders", 0), 0, 20)
    with pytest.raises(OffsetOutOfRange, match=f"begins at offset {cut}"):
        list(read_range(LogReader(log.path), offsets))
    batches = [*read_range(LogReader(log.path), offsets, skip_lost=True)]
    assert [offset for batch in batches for offset in batch.column("offset").to_pylist()] == [*range(cut, 20)]
