"""The last act: Spark lands ``flights`` as Parquet and answers the same question as the running table.

The topic is Avro: the table gets the columns of both versions of its schema from the log's own registry. In the end
`spark_sinks.verify` proves that every record is in the warehouse once.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec

import spark_sinks  # its names load Spark when they are used: --quick needs none
from demo.flights import Departures, Group, Table
from demo.places import Places
from eventbus.cli.progress import Bars
from eventbus.cli.shell import run_async


class Landed(msgspec.Struct, kw_only=True):
    """The result of landing, queries and verification."""

    rows: int
    """Flights landed by this run; 0 when the warehouse was up to date."""
    table: Table
    means: dict[Group, float | None]
    """The average delays that Spark computed."""
    named: int
    """Flights with the field that the second release has added."""
    proved: int
    """Records that are in the table once, as they were written."""
    problems: list[str]
    seconds: float


QUERY = """
    SELECT carrier, month, count(*), count(dep_delay), sum(dep_delay), avg(dep_delay), count(airline)
    FROM flights GROUP BY carrier, month
"""


def fill_warehouse(places: Places, held: int, bars: Bars) -> Landed:
    """Land what the table lacks, a directory per month, and query it.

    Spark reads directories: another log is mirrored into one first.
    """
    started, topic, table = time.monotonic(), f"{places.prefix}flights", str(places.table)
    if places.readable_url != places.url:
        run_async(lambda: _copy(places, topic))
    bars.say("  starting Spark in this process ...")
    bar = bars.bar("Spark -> warehouse/flights", held)
    avro: dict[str, Any] = {"value": "avro", "registry": "log"}
    quick_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with spark_sinks.spark_session("eventbus demo", conf=quick_start, log_level="OFF") as spark:
        landed = spark_sinks.land(
            places.readable_url, topic, table, partition_by="month", spark=spark, **avro,
            progress=lambda now: bar.update(held - now.total + now.rows),
        )  # fmt: skip
        bar.update(held)
        spark.read.option("mergeSchema", "true").parquet(table).createOrReplaceTempView("flights")
        rows = [tuple(row) for row in spark.sql(QUERY).collect()]
    report = spark_sinks.verify(places.readable_url, topic, table, values=True, **avro)
    return Landed(
        rows=landed.rows,
        table={Group(row[0], row[1]): Departures(row[2], row[3], row[4] or 0) for row in rows},
        means={Group(row[0], row[1]): row[5] for row in rows},
        named=sum(row[6] for row in rows),
        proved=report.records,
        problems=[f"verify: {problem}" for problem in report.problems],
        seconds=time.monotonic() - started,
    )


async def _copy(places: Places, topic: str) -> None:
    from eventbus.mirror import Mirror

    async with Mirror(places.url, places.readable_url, topics=[topic, "_schemas"], groups=None) as mirror:
        await mirror.copy()
