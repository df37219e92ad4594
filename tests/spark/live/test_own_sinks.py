"""Spark's own sinks after ``format("eventbus")``: each record once, over a restart from the kept checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from eventbus.types import Record

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
