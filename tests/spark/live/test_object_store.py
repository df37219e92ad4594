"""Spark lands into an object store: its tasks write where the table is, and a landing that was stopped goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from eventbus.errors import StorageError
from eventbus.types import Record
from spark_sinks import land, status, verify
from spark_sinks.targets.choose import open_target
from tests.object_store import Faults, ObjectStore
from tests.spark.targets.kit import records

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.spark.conftest import TestLog

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("kind", ["", "delta:"])
def test_each_record_is_landed_once_although_a_landing_was_stopped(
    spark: SparkSession, log: TestLog, store: ObjectStore, kind: str
) -> None:
    values = [Record(b"k", b'{"id": %d}' % number, (), 1_709_251_199_000 + number) for number in range(2_000)]
    log.write("orders", [*values[:1_000], Record(b"k", b"?", (), 0)])
    to = f"{kind}{store.url('lake/orders')}"
    with store.failing(Faults(stopped_at=20)), pytest.raises(StorageError, match="403 Forbidden"):
        land(log.path, "orders", to, schema="id long", spark=spark)
    for _ in range(2):
        report = land(log.path, "orders", to, schema="id long", spark=spark)
        log.write("orders", values[1_000:])
    assert report.table == f"{kind}s3://{store.bucket}/lake/orders"
    assert records(open_target(to)) == [(0, offset) for offset in range(2_001) if offset != 1_000]
    assert verify(log.path, "orders", to, values=True).problems == []
    assert status(log.path, "orders", to).lag == 1_000
