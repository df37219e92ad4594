"""Spark's own sinks after ``format("eventbus")``: each record once, over a restart from the kept checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import deltalake
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from pyspark.errors import StreamingQueryException

from eventbus.types import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


def test_a_stream_into_a_table_of_spark_goes_on_from_its_checkpoint(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    for first in (0, 30):
        log.write("orders", [Record(b"k", b"%d" % n, (), n) for n in range(first, first + 30)])
        stream = (
            spark.readStream.format("eventbus").option("maxOffsetsPerTrigger", 20).load(log.path, subscribe="orders")
        )
        values = stream.selectExpr("offset", "CAST(value AS string) AS value")
        writer = values.writeStream.option("checkpointLocation", str(tmp_path / "c")).option(
            "path", str(tmp_path / "t")
        )
        writer.trigger(availableNow=True).toTable("own_orders").awaitTermination()
    try:
        rows = spark.read.table("own_orders").orderBy("offset").collect()
    finally:
        spark.sql("DROP TABLE own_orders")
    assert [(row.offset, row.value) for row in rows] == [(n, str(n)) for n in range(60)]


def test_a_function_that_commits_the_number_of_a_batch_with_its_rows_skips_a_batch_that_is_repeated(
    spark: SparkSession, log: TestLog, tmp_path: Path
) -> None:
    table = str(tmp_path / "lake")

    def append(batch: DataFrame, batch_id: int) -> None:
        """Commit a micro-batch together with its number, unless an earlier run has done it."""
        last = DeltaTable(table).transaction_version("orders") if DeltaTable.is_deltatable(table) else None
        if last is None or batch_id > last:
            number = CommitProperties(app_transactions=[Transaction("orders", batch_id)])
            deltalake.write_deltalake(table, batch.toArrow(), mode="append", commit_properties=number)

    def append_and_crash(batch: DataFrame, batch_id: int) -> None:
        append(batch, batch_id)
        raise OSError("the driver ends before Spark has noted the batch")

    log.write("orders", [Record(b"k", b"%d" % n, (), n) for n in range(30)])
    for function in (append_and_crash, append):
        stream = spark.readStream.format("eventbus").option("maxOffsetsPerTrigger", 20)
        rows = stream.load(log.path, subscribe="orders").select("offset")
        writer = rows.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "c"))
        query = writer.trigger(availableNow=True).start()
        if function is append:
            query.awaitTermination()
        else:
            with pytest.raises(StreamingQueryException, match="before Spark has noted the batch"):
                query.awaitTermination()
            assert DeltaTable(table).to_pyarrow_table().num_rows == 20
    assert sorted(DeltaTable(table).to_pyarrow_table().column("offset").to_pylist()) == [*range(30)]
