"""``format("eventbus")`` in Spark, batch and stream."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.types import Compression, Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]

T0 = 1_709_251_199_000
ODD = [
    Record(None, None, (), T0),
    Record(b"", b"", (), T0 + 1),
    Record(b"k", b"\x00\xff", (("a", b"1"), ("a", None), ("b", b"")), T0 + 2),
    Record("é".encode(), b"x" * 20_000, (), T0 + 86_400_000),
]


def plain(count: int, first: int = 0) -> list[Record]:
    return [Record(b"k%d" % (n % 7), b"v%d" % n, (), T0 + n) for n in range(first, first + count)]


def read(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("eventbus").options(path=path, **options).load()


def by_offset(frame: DataFrame) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))


def test_batch_read_equals_the_records(spark: SparkSession, log: TestLog) -> None:
    written: dict[int, list[Record]] = {0: [], 1: [], 2: []}
    for number, compression in enumerate(Compression):
        for partition in (0, 2):
            records = [*ODD, *plain(150, 1000 * number)]
            log.write("orders", records, partition=partition, partitions=3, compression=compression, per_batch=64)
            written[partition] += records
    frame = read(spark, log.path, subscribe="orders", includeHeaders="true")
    kinds = (
        "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
    )
    assert frame.schema.simpleString() == "struct<" + ",".join(
        [each.strip().replace(" ", ":") for each in kinds.split(",")]
        + ["headers:array<struct<key:string,value:binary>>>"]
    )
    got = by_offset(frame)
    expected = [(p, offset, record) for p, records in written.items() for offset, record in enumerate(records)]
    assert len(got) == len(expected)
    for row, (partition, offset, record) in zip(got, expected, strict=True):
        assert (row.topic, row.partition, row.offset, row.timestampType) == ("orders", partition, offset, 0)
        assert (_bytes(row.key), _bytes(row.value)) == (record.key, record.value)
        headers = None if row.headers is None else tuple((each.key, _bytes(each.value)) for each in row.headers)
        assert headers == (record.headers or None)
        assert row.timestamp.astimezone(dt.UTC).timestamp() * 1000 == record.timestamp_ms


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def test_offsets_bound_a_batch_read(spark: SparkSession, log: TestLog) -> None:
    log.write("orders", plain(100), partition=0, partitions=2, per_batch=30)
    log.write("orders", plain(50), partition=1, per_batch=30)
    frame = read(
        spark,
        log.path,
        assign='{"orders": [0, 1]}',
        startingOffsets='{"orders": {"0": 95, "1": -2}}',
        endingOffsets='{"orders": {"0": -1, "1": 3}}',
        maxRecordsPerPartition="2",
    )
    assert [(row.partition, row.offset) for row in by_offset(frame)] == [
        *((0, offset) for offset in range(95, 100)),
        *((1, offset) for offset in range(3)),
    ]
    assert frame.rdd.getNumPartitions() == 5


def test_patterns_take_topics_made_later(spark: SparkSession, log: TestLog) -> None:
    log.write("a.one", plain(3))
    log.write("b.one", plain(3))
    assert {row.topic for row in read(spark, log.path, subscribePattern="a.*").collect()} == {"a.one"}
    log.write("a.two", plain(3))
    assert {row.topic for row in read(spark, log.path, subscribePattern="a.*").collect()} == {"a.one", "a.two"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"subscribe": "orders", "startingOffset": "earliest"}, "did you mean 'startingOffsets'?"),
        ({"subscribe": "order"}, "there is no topic 'order'"),
        ({"subscribe": "orders", "startingOffsets": '{"orders": {"0": 99}}'}, "but the log has 0 to 3"),
    ],
)
def test_wrong_options_reach_the_user(spark: SparkSession, log: TestLog, options: dict[str, str], text: str) -> None:
    from pyspark.errors import PySparkException

    log.write("orders", plain(3))
    with pytest.raises(PySparkException) as caught:
        read(spark, log.path, **options).collect()
    assert text in str(caught.value)


def stream_all(spark: SparkSession, log: TestLog, checkpoint: Path, **options: str) -> tuple[list[int], list[Any]]:
    """Run a stream until it is caught up; the offsets it saw, and its batches' progress."""
    seen: list[int] = []
    frame = spark.readStream.format("eventbus").options(path=log.path, subscribe="orders", **options).load()
    writer = frame.select("offset").writeStream.foreachBatch(
        lambda batch, _: seen.extend(sorted(row.offset for row in batch.collect()))
    )
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    return seen, [each for each in query.recentProgress if each.numInputRows]


def test_stream_reads_what_there_is_in_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    log.write("orders", plain(250), per_batch=7)
    seen, batches = stream_all(spark, log, tmp_path / "c", maxOffsetsPerTrigger="100")
    assert seen == list(range(250))
    assert [each.numInputRows for each in batches] == [100, 100, 50]
    assert json.loads(batches[-1].sources[0].endOffset)["orders"] == {"0": 250}
    log.write("orders", plain(5, 250))
    assert stream_all(spark, log, tmp_path / "c")[0] == list(range(250, 255))


def test_a_stream_whose_records_are_gone_says_so(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    from pyspark.errors import PySparkException

    log.write("orders", plain(10))
    wanted = '{"orders": {"0": 50}}'
    with pytest.raises(PySparkException, match="query reads orders-0 from offset 50 to 50, but the log has 0 to 10"):
        stream_all(spark, log, tmp_path / "c", startingOffsets=wanted)
    assert stream_all(spark, log, tmp_path / "d", startingOffsets=wanted, failOnDataLoss="false")[0] == []
