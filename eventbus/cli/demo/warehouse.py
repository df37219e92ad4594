"""The last step: Spark lands ``flights`` as Parquet and answers a question over it."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from eventbus.cli.demo.display import Display
from eventbus.cli.demo.flights import Departures, Flight, Group, Table
from eventbus.cli.demo.names import Places
from eventbus.cli.shell import run_async


class Landed(msgspec.Struct):
    """What landing and the query brought."""

    rows: int
    """Rows landed by this run; 0 when the warehouse was up to date."""
    files: int
    """Parquet files in the table, earlier runs' too."""
    size_bytes: int
    land_seconds: float
    """Spark's start included."""
    query_seconds: float
    table: Table
    means: dict[Group, float | None]
    """Spark's own averages."""


def land_flights(places: Places, held: int, display: Display) -> Landed:
    """Land what the table lacks, a directory per month; then ask for flights and mean delay by carrier and month.

    Spark reads directories: a log that is none is mirrored into one first.
    """
    url, to = places.url if places.is_a_file else _mirrored(places, held, display), places.table
    # spark_sinks stands above eventbus, which never imports it: the step is looked up by name, as commands are.
    sinks: Any = import_module("spark_sinks")
    display.say("  starting Spark in this process ...")
    bar = display.bar("Spark -> warehouse/flights", held)

    def on_progress(progress: Any) -> None:
        bar.update(held - progress.total + progress.rows)

    started = time.monotonic()
    quick_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    with sinks.spark_session("eventbus demo", conf=quick_start, log_level="OFF") as spark:
        report = sinks.land(
            url,
            places.names.flights,
            str(to),
            schema=Flight,
            partition_by="month",
            progress=on_progress,
            spark=spark,
        )
        landed = time.monotonic()
        bar.update(held)
        rows = _query(spark, to)
    files = [path for path in to.rglob("*.parquet") if path.is_file()]
    return Landed(
        rows=report.rows,
        files=len(files),
        size_bytes=sum(path.stat().st_size for path in files),
        land_seconds=landed - started,
        query_seconds=time.monotonic() - landed,
        table={Group(row[0], row[1]): Departures(row[2], row[3], row[4] or 0) for row in rows},
        means={Group(row[0], row[1]): row[5] for row in rows},
    )


def _mirrored(places: Places, held: int, display: Display) -> str:
    """The URL of a directory that holds the flights; what an earlier run has copied is not copied again."""
    from eventbus.mirror import Mirror

    bar = display.bar("mirror -> copy", held)

    async def copy() -> None:
        async with Mirror(places.url, places.copy_url, topics=[places.names.flights], groups=None) as mirror:
            await mirror.copy()

    run_async(copy)
    bar.update(held)
    return places.copy_url


QUERY = """
    SELECT carrier, month, count(*), count(dep_delay), sum(dep_delay), avg(dep_delay)
    FROM flights GROUP BY carrier, month ORDER BY carrier, month
"""


def _query(spark: Any, to: Path) -> list[tuple[Any, ...]]:
    spark.read.parquet(str(to)).createOrReplaceTempView("flights")
    return [tuple(row) for row in spark.sql(QUERY).collect()]
