"""What Spark refuses in the midst of a landing: its words are told while it is there, and are ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.errors import ConfigError, EventBusError
from eventbus.types import Record
from spark_sinks import SparkFailed, land
from spark_sinks.cli.land import transform_of
from spark_sinks.errors import in_short
from tests.spark.conftest import TestLog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("spark")]
RECORDS = [Record(b"k", b'{"id": %d}' % number, (), 1_700_000_000_000) for number in range(4)]


def unknown_column(frame: DataFrame) -> DataFrame:
    return frame.where("cents > 5")


def dividing(frame: DataFrame) -> DataFrame:
    from pyspark.sql.functions import udf

    return frame.withColumn("part", udf(lambda number: 1 // number, "int")("id"))


def nothing(frame: DataFrame) -> Any:
    frame.limit(0)


@pytest.mark.parametrize(
    ("transform", "kind", "told"),
    [
        (unknown_column, SparkFailed, r"^Spark could not do it: .*`cents` cannot be resolved\..*`id`[^\n]*$"),
        (dividing, SparkFailed, r"^Spark could not do it: a Python worker raised ZeroDivisionError: [^\n]*$"),
        (nothing, ConfigError, r"transform= returned None: it must return a DataFrame"),
    ],
)
def test_a_transform_that_spark_cannot_do(
    spark: SparkSession,
    log: TestLog,
    tmp_path: Path,
    transform: Callable[[Any], Any],
    kind: type[EventBusError],
    told: str,
) -> None:
    log.write("orders", RECORDS)
    with pytest.raises(kind, match=told):
        land(log.path, "orders", str(tmp_path / "w"), schema="id long", transform=transform, spark=spark)


def test_the_command_line_names_the_transform(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    named = transform_of(f"{__name__}:unknown_column", "eventbus spark land")
    with pytest.raises(
        ConfigError, match=r"^--transform .*:unknown_column raised AnalysisException: [^\n]*`cents`"
    ) as caught:
        named(spark.range(3))
    assert "SQLSTATE" not in str(caught.value)


def test_a_schema_that_is_none(spark: SparkSession, log: TestLog, tmp_path: Path) -> None:
    log.write("orders", RECORDS)
    with pytest.raises(
        ConfigError, match=r"^schema='id lon g' is not Spark DDL[^\n]*Syntax error at or near 'g'[^\n]*$"
    ):
        land(log.path, "orders", str(tmp_path / "w"), schema="id lon g", spark=spark)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[STREAM_FAILED] Query x terminated. SQLSTATE: XXKST\nat a.b.C", "Query x terminated"),
        (
            "\n\nTraceback (most recent call last):\n  File x\n    y()\nValueError: no\n\nat a.b.C",
            "a Python worker raised ValueError: no",
        ),
        ("", "it gave no reason"),
    ],
)
def test_what_is_left_of_a_stack_trace(text: str, told: str) -> None:
    assert in_short(text) == told
