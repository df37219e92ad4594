"""Spark reads each value of a partition column of a Parquet table, if it is given the column's type."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_sinks.targets.choose import open_target
from tests.spark.targets.kit import PARTITIONS, land_values

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("spark")]


@pytest.mark.parametrize("name", PARTITIONS)
def test_spark_reads_each_value_of_a_partition_column(spark: SparkSession, tmp_path: Path, name: str) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    kind, values = PARTITIONS[name]
    target = open_target(str(tmp_path / "t"))
    land_values(target, kind, values, 0)
    target.close()
    columns = from_arrow_schema(pa.schema([("_offset", pa.int64()), ("p", kind)]))
    found = spark.read.schema(columns).parquet(str(tmp_path / "t")).toArrow()
    assert sorted(map(repr, found["p"].cast(kind).to_pylist())) == sorted(map(repr, pa.array(values, kind).to_pylist()))
