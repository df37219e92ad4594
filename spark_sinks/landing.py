"""`land`: a topic into a directory of Parquet files, each record once.

Spark's Structured Streaming plans the batches, its tasks decode and write, and the driver enters each batch in the
table's ledger together with its offsets (`spark_sinks.targets.ledger`). What the ledger says is what the table holds;
Spark's checkpoint beside it only saves looking that up.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import unquote

import msgspec

from eventbus import errors
from eventbus.errors import ConfigError, EventBusError, SerializationError
from eventbus.log.reader import LogReader
from eventbus.types import TopicPartition
from spark_sinks.checkpoint import Checkpoint
from spark_sinks.decoding.columns import RowSchema
from spark_sinks.session.jvm import require_pyspark
from spark_sinks.shape import COORDINATES, DATE
from spark_sinks.source.offsets import to_json
from spark_sinks.source.options import log_directory, parse_options
from spark_sinks.targets.files import DirectoryLock, LocalFiles
from spark_sinks.targets.ledger import CHECKPOINT, META, Ledger, StagedFile
from spark_sinks.tasks import REPORT_COLUMNS, DecodeTask, Report, WriteTask, undecodable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ArrowSchema = Any
"""A `pyarrow.Schema`: unknown to type checkers, and it should not make `land` unknown too."""
DEFAULT_BATCH_RECORDS = 500_000
"""What a crash makes the next run repeat, at most."""
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")
_LONG_JOB_RECORDS = 5_000_000
_SOURCE_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp")


class LandProgress(NamedTuple):
    """How far a landing is, after each batch. ``total`` counts offsets, so it may exceed the rows there are."""

    rows: int
    total: int
    files: int
    batches: int


class LandReport(NamedTuple):
    """What one call of `land` did. ``offsets`` is the next offset to land of every partition, also of earlier calls."""

    rows: int
    files: int
    batches: int
    offsets: dict[int, int]
    seconds: float


def land(
    path: str,
    topic: str,
    to: str,
    *,
    schema: type[msgspec.Struct] | ArrowSchema | str | None = None,
    transform: Callable[[DataFrame], DataFrame] | None = None,
    partition_by: str | Sequence[str] | Mapping[str, str] = DATE,
    starting_offsets: str = "earliest",
    max_offsets_per_trigger: int = DEFAULT_BATCH_RECORDS,
    fail_on_data_loss: bool = True,
    compression: str = "zstd",
    progress: Callable[[LandProgress], None] | None = None,
    spark: SparkSession | None = None,
) -> LandReport:
    """Land a topic of a ``file://`` log as a directory of Parquet files, until it is caught up.

    Each record is there once, however often this is called and wherever a call before it was killed; a reader of plain
    directories (pyarrow, pandas, DuckDB, Spark) sees just that. A lost checkpoint costs nothing.

    - ``path``: the log's directory or ``file://`` URL. ``to``: the table's directory; made if missing.
    - ``schema``: the columns of JSON values, as a `msgspec.Struct` type, a pyarrow schema or a Spark DDL string
      (``"carrier string, dep_delay double"``). None keeps ``key`` and ``value`` as bytes. Every row also gets
      ``_topic, _partition, _offset, _timestamp`` and, with a schema, ``_key``; a null value becomes a row of nulls.
    - ``transform``: from DataFrame to DataFrame, called for each micro-batch after decoding. Row by row it is exactly
      once too; an aggregation sees one batch only.
    - ``partition_by``: ``"dt"`` (the day of the record's timestamp, UTC), a column, several, ``()`` for none, or a
      mapping from names to Spark SQL expressions (``{"month": "date_format(time_hour, 'yyyy-MM')"}``).
    - ``starting_offsets``: where an empty table starts: ``earliest``, ``latest`` or Kafka's JSON.
    - ``max_offsets_per_trigger``: records per batch, which is what a crash repeats; ``progress`` is called after each.
    - ``spark``: a session to use; by default the active one, else a `spark_session` of its own, ended afterwards.

    Raises `ConfigError` for wrong arguments, `SerializationError` with topic, partition, offset and field when records
    do not fit ``schema`` (batches before them stay landed), `OffsetOutOfRange` when retention removed records not yet
    landed, `LogLocked` when another process lands the same table.
    """
    started = time.monotonic()
    require_pyspark()
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression={compression!r}: choose one of {', '.join(COMPRESSIONS)}")
    options = {
        "path": log_directory(path),
        "subscribe": topic,
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(max_offsets_per_trigger),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
    }
    source = parse_options(options, stream=True)
    bounds = source.bounds(LogReader(source.directory))
    start = source.start(bounds)
    layout = _Layout(schema, transform, partition_by, compression)
    table = table_directory(to)
    (table / META).mkdir(parents=True, exist_ok=True)
    with DirectoryLock(table / META / "lock"):
        files = LocalFiles(table)
        ledger = Ledger.open(files, topic=topic, partition_by=layout.partition_by, new_id=uuid.uuid4().hex[:8])
        if ledger.sequence == 0 and starting_offsets != "earliest":
            # For ever: else records that come before the first batch would not be after "latest" in the next run.
            ledger.commit({each.partition: offset for each, offset in start.items()}, [])
        landing = _Landing(options, layout, ledger, table, progress)
        if not landing.caught_up():
            with _Session(spark, landing.total) as session:
                landing.run(session)
        return landing.report(time.monotonic() - started)


def table_directory(to: str) -> Path:
    """The directory of a table from a path or ``file://`` URL; `ConfigError` for anything that is not local."""
    if to.startswith("file://"):
        to = unquote(to.removeprefix("file://"))
    elif "://" in to or to.partition(":")[0] in ("delta", "iceberg"):
        raise ConfigError(f"to={to!r}: tables are local directories of Parquet files, as in './warehouse/orders'")
    return Path(to).expanduser().absolute()


def own_error(error: BaseException) -> BaseException:
    """The error of ours that Spark turned into text on its way from a worker, or else the error as it is."""
    if isinstance(error, EventBusError):
        return error
    found = re.findall(r"^(?:\w+\.)*errors\.(\w+): (.+)$", str(error), re.MULTILINE)
    kind = getattr(errors, found[-1][0], None) if found else None
    if isinstance(kind, type) and issubclass(kind, EventBusError):
        return kind(found[-1][1])
    return error


class _Layout:
    """How rows look in the table: the arguments of `land` that say so, checked as early as each can be."""

    def __init__(
        self,
        schema: type[msgspec.Struct] | ArrowSchema | str | None,
        transform: Callable[[DataFrame], DataFrame] | None,
        partition_by: str | Sequence[str] | Mapping[str, str],
        compression: str,
    ) -> None:
        self.compression = compression
        self.expressions = dict(partition_by) if isinstance(partition_by, Mapping) else {}
        self.partition_by = [partition_by] if isinstance(partition_by, str) else list(partition_by)
        self.transform = transform
        self._ddl = schema if isinstance(schema, str) else None
        self._rows = None if isinstance(schema, str) else RowSchema(schema)
        if taken := [name for name in self.partition_by if name in COORDINATES]:
            raise ConfigError(f"partition_by={taken[0]!r}: this column stays in the files; partition by another")
        if self._rows is not None and self.direct:
            self.check(self._rows.arrow.names)

    @property
    def direct(self) -> bool:
        """Whether tasks can decode and write in one go: nothing between the two is left to Spark."""
        return self.transform is None and not self.expressions

    def rows(self) -> RowSchema:
        """The decoded columns. A schema in Spark's language is read by Spark, so this needs a session."""
        if self._rows is None:
            from pyspark.sql.pandas.types import to_arrow_schema
            from pyspark.sql.types import StructType

            assert self._ddl is not None
            try:
                struct = cast("StructType", StructType.fromDDL(self._ddl))
            except Exception as error:
                raise ConfigError(f"schema={self._ddl!r} is not Spark DDL ('name type, ...'): {error}") from error
            self._rows = RowSchema(to_arrow_schema(struct, timezone="UTC"))
            if self.direct:
                self.check(self._rows.arrow.names)
        return self._rows

    def check(self, columns: Sequence[str]) -> None:
        """Raise `ConfigError` unless the rows have the columns that the table is partitioned by."""
        known = {*columns, DATE} if "_timestamp" in columns else {*columns}
        if missing := [name for name in self.partition_by if name not in known]:
            raise ConfigError(f"partition_by={missing[0]!r}: there is no such column; there are {', '.join(columns)}")
        if set(columns) <= set(self.partition_by):
            raise ConfigError(f"partition_by={self.partition_by} leaves no column for the files")

    def reports(self, frame: DataFrame, stage: str, landed: dict[int, int]) -> DataFrame:
        """The plan that writes a micro-batch of the source into ``stage`` and yields a `Report` per file."""
        rows = self.rows()
        if self.direct:
            return frame.mapInArrow(WriteTask(stage, rows, landed, self.partition_by, self.compression), REPORT_COLUMNS)
        from pyspark.sql.pandas.types import from_arrow_schema

        frame = frame.mapInArrow(DecodeTask(rows, landed), from_arrow_schema(rows.arrow))
        if self.transform is not None:
            frame = self.transform(frame)
        for name, expression in self.expressions.items():
            from pyspark.sql.functions import expr

            frame = frame.withColumn(name, expr(expression))
        self.check(frame.columns)
        return frame.mapInArrow(WriteTask(stage, None, {}, self.partition_by, self.compression), REPORT_COLUMNS)


class _Landing:
    """One run: the micro-batches of a query, entered in the ledger one by one."""

    def __init__(
        self,
        options: dict[str, str],
        layout: _Layout,
        ledger: Ledger,
        table: Path,
        progress: Callable[[LandProgress], None] | None,
    ) -> None:
        self._options = options
        self._topic = options["subscribe"]
        self._layout = layout
        self._ledger = ledger
        self._table = table
        self._progress = progress
        self._checkpoint = Checkpoint(table / CHECKPOINT, self._topic)
        self._bounds = LogReader(options["path"]).offsets(self._topic)
        self.total = sum(max(0, end - self._next(each, first)) for each, (first, end) in self._bounds.items())
        self._rows = self._files = self._batches = 0
        self._error: BaseException | None = None

    def caught_up(self) -> bool:
        """Whether the table holds all of the topic, so that Spark need not start."""
        return all(self._next(each, first) == end for each, (first, end) in self._bounds.items())

    def report(self, seconds: float) -> LandReport:
        return LandReport(self._rows, self._files, self._batches, self._ledger.offsets, seconds)

    def run(self, spark: SparkSession) -> None:
        """Land what there is now."""
        landed = self._ledger.offsets
        if not self._checkpoint.agrees_with(landed):
            self._checkpoint.remove()
        options = dict(self._options)
        if landed:
            start = {TopicPartition(self._topic, partition): offset for partition, offset in landed.items()}
            options["startingOffsets"] = msgspec.json.encode(to_json(start)).decode()
        self._layout.rows()
        source = spark.readStream.format("eventbus").options(**options).load().select(*_SOURCE_COLUMNS)
        writer = source.writeStream.foreachBatch(self._land)
        writer = writer.option("checkpointLocation", str(self._checkpoint.directory))
        query = writer.trigger(availableNow=True).start()
        # Waited for in a thread: Ctrl-C in the middle of a call to the JVM would break the connection to it.
        with ThreadPoolExecutor(1, "eventbus-land") as waiting:
            end = waiting.submit(query.awaitTermination)
            try:
                end.result()
            except Exception as error:
                raise (self._error or own_error(error)) from error
            finally:
                query.stop()

    def _next(self, partition: int, first: int) -> int:
        return self._ledger.offsets.get(partition, first)

    def _land(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch. Spark calls this and makes text of what it raises, so that is kept here."""
        try:
            self._land_batch(frame, self._checkpoint.end(batch_id))
            return
        except BaseException as error:
            self._error = own_error(error)
        # Short and without a cause: Spark searches the text with a regular expression that overflows its stack.
        raise RuntimeError("the landing stops here")

    def _land_batch(self, frame: DataFrame, end: Mapping[int, int]) -> None:
        landed = self._ledger.offsets
        if all(offset <= landed.get(partition, 0) for partition, offset in end.items()):
            return  # landed before a crash that came before Spark's own note of it
        stage = self._ledger.stage_directory()
        rows = self._layout.reports(frame, str(self._table / stage), landed).collect()
        reports = [Report(*row) for row in rows]
        if failures := [report for report in reports if report.failed]:
            raise SerializationError(undecodable(failures))
        staged = [StagedFile(f"{stage}/{each.path}", each.directory, each.rows, each.size_bytes) for each in reports]
        entry = self._ledger.commit(end, staged)
        self._rows += entry.rows
        self._files += len(entry.files)
        self._batches += 1
        if self._progress is not None:
            self._progress(LandProgress(self._rows, self.total, self._files, self._batches))


class _Session:
    """A session for the length of a ``with`` block; ended there if it was started there."""

    def __init__(self, given: SparkSession | None, records: int) -> None:
        self._given = given
        # The optimizing compiler takes more CPU at the start than it saves in a short job: the work is done in Python.
        quick = records < _LONG_JOB_RECORDS
        self._conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"} if quick else {}
        self._own: Any = None

    def __enter__(self) -> SparkSession:
        from pyspark.sql import SparkSession

        from spark_sinks.session.spark import spark_session
        from spark_sinks.source.datasource import register

        session = self._given or SparkSession.getActiveSession()
        if session is None:
            session = self._own = spark_session("eventbus land", conf=self._conf, log_level="OFF")
        register(session)
        return session

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.stop()
