"""`typed` in a session: the same columns in a batch and in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from eventbus.types import Record
from spark_sinks import typed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


class Order(msgspec.Struct):
    number: int
    amount: float | None = None


def test_a_stream_and_a_batch_have_typed_columns(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    values = [b'{"number": %d, "amount": %d.5}' % (n, n) for n in range(100)]
    values[40] = b"no JSON"
    log.write("orders", [Record(b"k", value, (), 1_000 + n) for n, value in enumerate(values)])
    options = {"path": log.path, "subscribe": "orders"}

    def orders(frame: DataFrame) -> DataFrame:
        return typed(frame, log.path, "orders", schema=Order, columns=["number", "amount"], on_error="drop")

    batch = orders(spark.read.format("eventbus").options(**options).load())
    assert batch.dtypes == [("number", "bigint"), ("amount", "double")]
    assert sum(row["number"] for row in batch.collect()) == sum(range(100)) - 40
    seen: list[float] = []
    stream = orders(spark.readStream.format("eventbus").options(**options).load())
    writer = stream.writeStream.foreachBatch(lambda rows, _: seen.extend(row["amount"] for row in rows.collect()))
    writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start().awaitTermination()
    assert sorted(seen) == [n + 0.5 for n in range(100) if n != 40]
