"""Spark as a part of the bus: it counts ``flights`` by airport and hour as a stream, and writes ``hours`` back.

flights --(Spark: windows of an hour, with a watermark)--> hours

Flights come out of order, so an hour is published again whenever more of its flights have come: its last record is
valid. A batch of rows and its number are one transaction, so that a batch which Spark repeats after a kill is detected.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

import spark_sinks
from eventbus import EventBus
from eventbus.demo.display import Bar
from eventbus.demo.flights import AirportHour, Departures, Hours
from eventbus.demo.names import Names, Places
from eventbus.errors import ConfigError
from eventbus.types import TopicPartition
from spark_sinks.errors import own_error

if TYPE_CHECKING:
    from eventbus import BlockingBus

_BATCH_RECORDS = 120_000
_WATERMARK = "14 days"
"""How much later than others a flight may come and still be counted. The file lists a day's flights by the clock,
those that left after midnight first; and partitions, which share a batch, are up to a week apart: planes do not fly
evenly."""
_KEEP = {"cleanup.policy": "compact"}


class HourDelays(msgspec.Struct, frozen=True, gc=False):
    """A record of ``hours``: the present count of one hour."""

    airport: str
    hour: datetime
    flights: int
    departed: int
    delay_minutes: int


class WriteBack:
    """Called by Spark with each batch, in the driver; after a kill, again with the last batch and equal rows."""

    def __init__(self, bus: BlockingBus, names: Names, checkpoint: str) -> None:
        self._bus = bus
        self._names = names
        self._checkpoint = checkpoint
        self._next = TopicPartition(names.hours, 0)

    def __call__(self, batch: int, hours: list[HourDelays]) -> None:
        """Publish the hours of a batch, unless they are already published.

        Raises:
            ConfigError: the batch does not belong to this log. A query without its checkpoint begins at 0 again, and
                has lost the hours that were open.
        """
        committed = self._bus.admin.group_offsets(self._names.hour_counter).get(self._next)
        expected = committed.offset if committed else 0
        if batch == expected - 1:
            return
        if batch != expected:
            raise ConfigError(
                f"{self._names.hours} goes on with batch {expected}, and the checkpoint in {self._checkpoint} with "
                f"{batch}: one of them was deleted, or is of another log. Start over with --fresh"
            )
        with self._bus.transaction(self._names.hour_counter) as transaction:
            transaction.send_many(self._names.hours, hours, key=_key)
            transaction.send_offsets({self._next: batch + 1}, self._names.hour_counter)


def _key(hour: HourDelays) -> str:
    return f"{hour.airport} {hour.hour:%Y-%m-%dT%H}"


def count_hours(spark: Any, source: str, places: Places, held: int, bar: Bar) -> int:
    """Run the stream until it has read all of the flights in the directory ``source``. Return how many it has read."""
    names = places.names
    bus = EventBus(places.url, service="demo-hours")
    bus.topic(names.hours, partitions=1, configs=_KEEP)
    with bus.blocking() as blocking:
        write_back = WriteBack(blocking, names, str(places.checkpoint))
        errors: list[BaseException] = []

        def each_batch(rows: Any, batch: int) -> None:
            try:
                write_back(batch, [HourDelays(**row) for row in rows.toArrow().to_pylist()])
                bar.update(min(held, (batch + 1) * _BATCH_RECORDS))
            except BaseException as error:
                errors.append(error)  # Spark converts it to text
                raise

        writer = _counted(spark, source, names.flights).writeStream.outputMode("update").foreachBatch(each_batch)
        writer = writer.option("checkpointLocation", places.checkpoint.absolute().as_uri())
        query = writer.trigger(availableNow=True).start()
        # Wait in a thread: Ctrl-C in the middle of a call to the JVM would break the connection to it.
        with ThreadPoolExecutor(1, "demo-hours") as waiting:
            end = waiting.submit(query.awaitTermination)
            try:
                end.result()
            except Exception as error:
                raise (errors[0] if errors else own_error(error, spark)) from error
            finally:
                query.stop()
        counted = sum(int(progress.numInputRows) for progress in query.recentProgress)
    bar.update(held)
    return counted


def _counted(spark: Any, source: str, topic: str) -> Any:
    """Return the stream of hours: all of Spark's code."""
    records = spark.readStream.format("eventbus").option("path", source).option("subscribe", topic)
    records = records.option("maxOffsetsPerTrigger", _BATCH_RECORDS).load()
    flights = spark_sinks.typed(records, source, topic, columns=["origin", "time_hour", "dep_delay"])
    flights.withWatermark("time_hour", _WATERMARK).createOrReplaceTempView("departures")
    return spark.sql("""
        SELECT origin AS airport, window.start AS hour, count(*) AS flights, count(dep_delay) AS departed,
               coalesce(sum(dep_delay), 0) AS delay_minutes
        FROM departures GROUP BY origin, window(time_hour, '1 hour')
    """)


LAST_TOLD = """
    SELECT airport, hour, max_by(struct(flights, departed, delay_minutes), _offset) AS last, count(*) AS times
    FROM hours GROUP BY airport, hour
"""
COUNTED_AGAIN = """
    SELECT origin AS airport, time_hour AS hour, count(*) AS flights, count(dep_delay) AS departed,
           coalesce(sum(dep_delay), 0) AS delay_minutes
    FROM flights GROUP BY origin, time_hour
"""


def last_told(spark: Any) -> tuple[Hours, int]:
    """Return the stream's last record of each hour, from its landed topic, and how many hours have several records."""
    rows = spark.sql(LAST_TOLD).toArrow().to_pylist()
    hours = {AirportHour(row["airport"], row["hour"]): Departures(**row["last"]) for row in rows}
    return hours, sum(row["times"] > 1 for row in rows)


def counted_again(spark: Any) -> Hours:
    """Count the hours from the landed flights, as a batch job."""
    rows = spark.sql(COUNTED_AGAIN).toArrow().to_pylist()
    return {AirportHour(row.pop("airport"), row.pop("hour")): Departures(**row) for row in rows}
