"""The last step: Spark lands ``flights`` as Parquet and answers a question over it.

The topic is Avro. `spark_sinks.land` gives its records as bytes to a transformation of ours, which reads both versions
of the schema as the newer one, in Spark's tasks.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from datetime import datetime
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from eventbus.cli.demo.display import Display
from eventbus.cli.demo.flights import Departures, Flight, Group, Table
from eventbus.cli.demo.names import Places
from eventbus.cli.shell import run_async
from serdes import split_optional
from serdes.avro.codec.reader import Decoder
from serdes.avro.from_types import schema_of
from serdes.avro.parse import parse
from serdes.framing import ID_SIZE, id_prefix


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
    named: int
    """Flights with the field that the second release has added."""


def land_flights(places: Places, held: int, schemas: dict[int, str], display: Display) -> Landed:
    """Land what the table lacks, a directory per month; then ask for flights and mean delay by carrier and month.

    Spark reads directories: a log that is none is mirrored into one first. ``schemas``: what was written with, by id.
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
            transform=ReadAvro(schemas),
            partition_by="month",
            progress=on_progress,
            spark=spark,
        )
        landed = time.monotonic()
        bar.update(held)
        rows, named = _query(spark, to)
    files = [path for path in to.rglob("*.parquet") if path.is_file()]
    return Landed(
        rows=report.rows,
        files=len(files),
        size_bytes=sum(path.stat().st_size for path in files),
        land_seconds=landed - started,
        query_seconds=time.monotonic() - landed,
        table={Group(row[0], row[1]): Departures(row[2], row[3], row[4] or 0) for row in rows},
        means={Group(row[0], row[1]): row[5] for row in rows},
        named=named,
    )


class ReadAvro:
    """From a frame of the log's records to one of flights, each beside where it comes from. Spark pickles it."""

    def __init__(self, schemas: dict[int, str]) -> None:
        self._schemas = schemas

    def __call__(self, frame: Any) -> Any:
        columns = [f"{name} {_SQL[kind]}" for name, kind in _columns().items()]
        return frame.mapInArrow(self.decode, ", ".join((*columns, *_COORDINATES)))

    def decode(self, batches: Iterable[Any]) -> Iterator[Any]:
        """In a task of Spark's: a message begins with the id of the schema it was written with."""
        import pyarrow as pa

        reader = schema_of(Flight)
        decoders = {
            id_prefix(schema_id): Decoder(parse(text), reader, Flight).decode
            for schema_id, text in self._schemas.items()
        }
        kinds = {int: pa.int64(), str: pa.string(), datetime: pa.timestamp("us", "UTC")}
        for batch in batches:
            values = batch.column("value").to_pylist()
            flights = [decoders[value[:ID_SIZE]](value, ID_SIZE) for value in values]
            arrays = {name: pa.array(map(attrgetter(name), flights), kinds[kind]) for name, kind in _columns().items()}
            for column in _COORDINATES:
                name = column.split()[0]
                arrays[name] = batch.column(name)
            yield pa.RecordBatch.from_pydict(arrays)


_SQL = {int: "bigint", str: "string", datetime: "timestamp"}
_COORDINATES = ("_topic string", "_partition int", "_offset bigint", "_timestamp timestamp")


def _columns() -> dict[str, type]:
    """The fields of a flight and what they hold, apart from None."""
    return {name: split_optional(kind)[0] for name, kind in get_type_hints(Flight).items()}


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


def _query(spark: Any, to: Path) -> tuple[list[tuple[Any, ...]], int]:
    spark.read.parquet(str(to)).createOrReplaceTempView("flights")
    [(named,)] = spark.sql("SELECT count(airline) FROM flights").collect()
    return [tuple(row) for row in spark.sql(QUERY).collect()], named
