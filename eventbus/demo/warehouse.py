"""The last step: Spark lands ``flights`` as Parquet, counts them by airport and hour as a stream, and lands that, too.

The topic is Avro: the table gets the columns of both versions of its schema from the log's own registry. In the end
`spark_sinks.verify` proves that every record is in the warehouse once.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec

import spark_sinks  # its names load Spark on first use: --quick needs none
from eventbus.cli.shell import run_async
from eventbus.demo.display import Display
from eventbus.demo.flights import Departures, Group, Hours, Table
from eventbus.demo.hours import HourDelays, count_hours, counted_again, last_told
from eventbus.demo.names import Places
from eventbus.demo.picture import draw

_SCHEMAS = "_schemas"


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `spark_sinks.verify` for a table."""

    topic: str
    offsets: int
    records: int
    """Records that are in the table once."""
    markers: int
    """Markers of transactions: offsets without a record."""
    problems: list[str]

    def __str__(self) -> str:
        gaps = f", {self.markers:,} gaps are transaction markers" if self.markers else ""
        return (
            f"every one of {self.offsets:,} offsets of {self.topic} is in the warehouse once, as it was written{gaps}"
        )


class Landed(msgspec.Struct, kw_only=True):
    """The results of landing, stream and queries."""

    rows: int
    """Flights landed by this run; 0 if the warehouse was up to date."""
    files: int
    """Parquet files in the tables, including those of earlier runs."""
    size_bytes: int
    table: Table
    means: dict[Group, float | None]
    """The averages computed by Spark."""
    named: int
    """Flights with the field that the second release has added."""
    told: Hours
    """The stream's last record of each hour."""
    told_again: int
    """Hours with several records, because more of their flights had come."""
    counted: Hours
    """The counts of a batch job."""
    proofs: list[Proof]
    picture: Path | None
    """The path of the picture; None without matplotlib."""
    steps: list[tuple[str, int, float]]
    """The steps: name, number of records, seconds."""


def fill_warehouse(places: Places, held: int, display: Display) -> Landed:
    """Land what the tables lack, flights in a directory per month; then query flights and delays.

    Spark reads directories: another log is mirrored into a directory first.
    """
    names, watch = places.names, _Watch()
    url = _readable(places, [names.flights, _SCHEMAS], held, display)
    display.say("  starting Spark in this process ...")
    bar = display.bar("Spark -> warehouse/flights", held)

    def on_progress(progress: Any) -> None:
        bar.update(held - progress.total + progress.rows)

    watch.restart()
    quick_start = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    table, hours_table = str(places.table), str(places.hours_table)
    with spark_sinks.spark_session("eventbus demo", conf=quick_start, log_level="OFF") as spark:
        avro: dict[str, Any] = {"value": "avro", "registry": "log"}
        flights = spark_sinks.land(
            url, names.flights, table, partition_by="month", progress=on_progress, spark=spark, **avro
        )
        bar.update(held)
        watch.step("Spark: start, land as Parquet", flights.rows)
        counted = count_hours(spark, url, places, held, display.bar("Spark: flights -> hours", held))
        watch.step("Spark: count hours as a stream", counted)
        url = _readable(places, [names.hours], held, display)
        hours = spark_sinks.land(url, names.hours, hours_table, schema=HourDelays, partition_by=(), spark=spark)
        watch.step("Spark: land the hours", hours.rows)
        answers = _ask(spark, table, hours_table)
        watch.step("Spark: queries", held)
    proofs = [
        _proof(spark_sinks.verify(url, names.flights, table, values=True, **avro)),
        _proof(spark_sinks.verify(url, names.hours, hours_table, values=True, schema=HourDelays)),
    ]
    watch.step("verify: each record once", sum(proof.records for proof in proofs))
    picture = places.picture if draw(answers["told"], places.picture) else None
    files = [path for tables in (places.table, places.hours_table) for path in tables.rglob("*.parquet")]
    size_bytes = sum(path.stat().st_size for path in files)
    return Landed(
        **answers,
        rows=flights.rows,
        files=len(files),
        size_bytes=size_bytes,
        proofs=proofs,
        picture=picture,
        steps=watch.steps,
    )


def _ask(spark: Any, table: str, hours_table: str) -> dict[str, Any]:
    """Return the query results in `Landed`."""
    spark.read.option("mergeSchema", "true").parquet(table).createOrReplaceTempView("flights")
    spark.read.parquet(hours_table).createOrReplaceTempView("hours")
    [(named,)] = spark.sql("SELECT count(airline) FROM flights").collect()
    rows = [tuple(row) for row in spark.sql(QUERY).collect()]
    told, told_again = last_told(spark)
    return {
        "table": {Group(row[0], row[1]): Departures(row[2], row[3], row[4] or 0) for row in rows},
        "means": {Group(row[0], row[1]): row[5] for row in rows},
        "named": named,
        "told": told,
        "told_again": told_again,
        "counted": counted_again(spark),
    }


class _Watch:
    """Measures the time of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, int, float]] = []
        self.restart()

    def restart(self) -> None:
        self._since = time.monotonic()

    def step(self, name: str, records: int) -> None:
        self.steps.append((name, records, time.monotonic() - self._since))
        self.restart()


def _proof(report: Any) -> Proof:
    return Proof(
        topic=report.topic,
        offsets=sum(part.end - part.start for part in report.partitions),
        records=report.records,
        markers=report.explained.get("markers", 0),
        problems=list(report.problems),
    )


def _readable(places: Places, topics: list[str], held: int, display: Display) -> str:
    """Return the URL of a directory with the topics; what an earlier run has copied there is not copied again."""
    if places.is_a_file:
        return places.url
    from eventbus.mirror import Mirror

    bar = display.bar("mirror -> copy", held)

    async def copy() -> None:
        async with Mirror(places.url, places.copy_url, topics=topics, groups=None) as mirror:
            await mirror.copy()

    run_async(copy)
    bar.update(held)
    return places.copy_url


QUERY = """
    SELECT carrier, month, count(*), count(dep_delay), sum(dep_delay), avg(dep_delay)
    FROM flights GROUP BY carrier, month ORDER BY carrier, month
"""
