"""The job of which a class cache is made: ``python -m spark_sinks.session.training FILE``.

It loads what a landing loads: a Python source in batch and stream, ``foreachBatch``, ``mapInArrow``, Parquet.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from spark_sinks.java.jvm import Jvm
from spark_sinks.session.spark import connect, default_conf
from spark_sinks.source.datasource import COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

_RECORDS = 1_000


class Reader(DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _records()


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def initialOffset(self) -> dict[str, Any]:
        return {"training": {"0": 0}}

    def prepareForTriggerAvailableNow(self) -> None:
        pass

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        return {"training": {"0": _RECORDS}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _records()


class Training(DataSource):
    """Records out of nothing, in the columns of ``format("eventbus")``."""

    @classmethod
    def name(cls) -> str:
        return "eventbus_training"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> Reader:
        return Reader()

    def streamReader(self, schema: Any) -> StreamReader:
        return StreamReader()


def _records() -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    from spark_sinks.source.arrow import source_schema

    rows = [
        {"key": b"k", "value": b"v", "topic": "t", "partition": 0, "offset": n, "timestamp": n, "timestampType": 0}
        for n in range(_RECORDS)
    ]
    yield pa.RecordBatch.from_pylist(rows, schema=source_schema(include_headers=False))


def _offsets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch.select(["offset"])


def _land(frame: Any, batch: int) -> None:
    frame.mapInArrow(_offsets, "offset bigint").collect()


def train(cache: Path) -> None:
    """Run the job in a session whose JVM writes ``cache`` when it ends."""
    conf = default_conf()
    spark = connect("eventbus warmup", conf, Jvm(conf, log_level="OFF", training=cache))
    with tempfile.TemporaryDirectory() as work:
        spark.dataSource.register(Training)
        source = spark.readStream.format("eventbus_training").load().select("key", "value", "offset")
        for number in range(2):
            writer = source.writeStream.foreachBatch(_land).option("checkpointLocation", f"{work}/checkpoint-{number}")
            writer.trigger(availableNow=True).start().awaitTermination()
        frame = spark.read.format("eventbus_training").load()
        frame.selectExpr("cast(value as string) v", "timestamp", "partition").write.parquet(f"{work}/table")
        table = spark.read.parquet(f"{work}/table")
        table.groupBy("partition").count().orderBy("partition").collect()
        table.createOrReplaceTempView("training")
        spark.sql("select date(timestamp) d, count(*) n from training group by d").toPandas()
    spark.stop()


if __name__ == "__main__":
    train(Path(sys.argv[1]))
