"""A landing while it runs: Spark plans micro-batches, tasks write files, the target commits them with the offsets.

Only the target's account is kept. The checkpoint of the query is temporary: it is created for every run, and read for
the end of a batch alone.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import (
    OffsetOutOfRange,
    SerializationError,
    SparkCrashed,
    SparkFailed,
    StorageError,
    StorageFull,
)
from eventbus.types import TopicPartition
from spark_sinks.decoding.values import RowPlan, Values
from spark_sinks.errors import is_gone, own_error, spark_errors
from spark_sinks.frames import Frames
from spark_sinks.names import check_names
from spark_sinks.partitions import check_key_columns, check_partition_columns
from spark_sinks.refusals import Place
from spark_sinks.shape import DATE, TOMBSTONE
from spark_sinks.source.batch_end import batch_end
from spark_sinks.source.offsets import OffsetRange, split
from spark_sinks.source.origin import Origin
from spark_sinks.stage import joined
from spark_sinks.targets.files import disk_errors
from spark_sinks.targets.table_creation import check_new_table
from spark_sinks.targets.target import Batch, NewTable, SinkState, Target
from spark_sinks.tasks import (
    FIT,
    REJECTED,
    REPORT_COLUMNS,
    ROWS,
    UNFIT,
    UNKNOWN,
    DecodeTask,
    Decoding,
    FusedTask,
    Report,
    WriteTask,
    first_refusal,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger("eventbus.spark")
REJECTED_UNNOTICED = 100
"""Up to this number of rejected records in a batch never stop a landing; more do, if their share is too large."""
_RECORDS_PER_TASK = 20_000
"""Starting a task costs as much as landing this many records."""
_KINDS = (ROWS, REJECTED, UNKNOWN, UNFIT, FIT)
_MAX_RESTARTS = 3
_LOOK_SECONDS = 0.5
_MAX_ROUNDS = 20
"""The number of times that a batch is decoded: each round learns all unknown schemas that its tasks found."""


class LandProgress(NamedTuple):
    """How far a landing is, after each batch: ``offsets`` of a ``total``.

    Both count offsets, also those without a row: of aborted records, of the markers of transactions, and of what
    compaction removed. ``lag``: offsets that are not landed yet; ``behind``: the same for each partition. Spark's
    ``avgOffsetsBehindLatest``, ``minOffsetsBehindLatest`` and ``maxOffsetsBehindLatest`` are of these: its Python data
    sources have no metrics.
    """

    topic: str
    rows: int
    total: int
    files: int
    batches: int
    rejected: int
    lag: int
    offsets: int
    behind: dict[int, int]


class Limits(NamedTuple):
    """``max_offsets`` a batch; rejected records go to the quarantine (else they stop the landing), up to a share."""

    max_offsets: int
    quarantine: bool = True
    quarantine_limit: float = 0.01
    fail_on_data_loss: bool = True


class Running:
    """The landing of one topic into its open table. It is called from one thread at a time."""

    def __init__(
        self,
        origin: Origin,
        values: Values,
        target: Target,
        new_table: NewTable,
        state: SinkState,
        frames: Frames,
        limits: Limits,
        progress: Callable[[LandProgress], None] | None = None,
    ) -> None:
        self._origin = origin
        self._values = values
        self._target = target
        self._founding = new_table
        self.state = state
        self._frames = frames
        self._limits = limits
        self._progress = progress
        self._busy = threading.Lock()
        """Held during a batch. A stop waits for it and releases it, because Spark's stop waits for its thread."""
        self._stopping = False
        self._spark: Any = None
        self._query: Any = None
        self._checkpoint: Path | None = None
        self._odd: Any = None
        self._error: BaseException | None = None
        self.rows = self.rejected = self.files = self.batches = 0
        self._restarts = self._batches_before = 0
        self.total = self.offsets = 0
        self.behind: dict[int, int] = {}
        self.lag = 0

    @property
    def table(self) -> str:
        """The table for people."""
        return self._target.name

    # -- the query ----------------------------------------------------------------------------------------------------

    def look(self) -> int:
        """How many offsets there are to land now."""
        bounds = self._origin.bounds()
        landed = self.state.offsets
        self.behind = {each: max(0, end - landed.get(each, first)) for each, (first, end) in sorted(bounds.items())}
        self.lag = sum(self.behind.values())
        return self.lag

    def exists(self) -> bool:
        """True if the topic has been created."""
        return bool(self._origin.bounds())

    def check_kept(self) -> None:
        """Raise `OffsetOutOfRange` when the log has lost what the table lacks, or the end of what the table has."""
        if self._limits.fail_on_data_loss:
            bounds = self._origin.bounds()
            for partition in sorted({*bounds, *self.state.offsets}):
                first, last = bounds.get(partition, (0, 0))
                self._check_kept(partition, self.state.offsets.get(partition, first), 0, (first, last))

    def start(self, spark: SparkSession, every_ms: int | None) -> None:
        """Start a query, which ends at the present end of the log or, with ``every_ms``, never."""
        self._spark = spark
        self._error = None
        self._remove_checkpoint()
        self.total = self.offsets + self.look()
        with disk_errors(Path(tempfile.gettempdir()), "make a directory in"):
            self._checkpoint = Path(tempfile.mkdtemp(prefix="eventbus-land-"))
        trigger: dict[str, Any] = (
            {"availableNow": True} if every_ms is None else {"processingTime": f"{every_ms} milliseconds"}
        )
        with spark_errors(spark):
            there = self._origin.bounds()  # a source cannot begin in a partition that is gone
            begin = {partition: offset for partition, offset in self.state.offsets.items() if partition in there}
            source = self._origin.stream(spark, begin, self._limits.max_offsets)
            writer = source.writeStream.foreachBatch(self._land).queryName(f"land {self._origin.topic} {id(self)}")
            writer = writer.option("checkpointLocation", self._checkpoint.as_uri())
            self._query = writer.trigger(**trigger).start()

    def wait(self) -> None:
        """Until the query ends. Raises what ended it."""
        try:
            while self._error is None and not self._query.awaitTermination(_LOOK_SECONDS):
                pass
            if self._error is not None:
                self._query.stop()
        except Exception as error:
            raise (self._error or self._told(error)) from error
        if self._error is not None:
            raise self._error

    def _told(self, error: Exception) -> BaseException:
        """Return the error that ended the query. Spark's own errors about its temporary directory are not helpful."""
        own = own_error(error, self._spark)
        if isinstance(own, OffsetOutOfRange):  # the source names options and checkpoints that the caller has not set
            try:
                self.check_kept()
            except OffsetOutOfRange as lost:
                return lost
        if not isinstance(own, SparkFailed):
            return own
        if self._checkpoint is not None and not self._checkpoint.exists():
            return StorageError(f"{self._checkpoint}, scratch paper of this landing, was removed meanwhile: land again")
        if os.strerror(errno.ENOSPC) in str(error):
            return StorageFull(
                f"no space left for Spark's scratch paper in {tempfile.gettempdir()}: make room, land again"
            )
        return own

    def goes_on_after(self, error: BaseException) -> bool:
        """True if a new query should continue, because a Python worker ended: the account has the place.

        A worker that ends again and again without a batch in between raises its error.
        """
        self._restarts = 1 if self.batches > self._batches_before else self._restarts + 1
        self._batches_before = self.batches
        if not isinstance(error, SparkCrashed) or is_gone(self._spark) or self._restarts > _MAX_RESTARTS:
            return False
        _log.warning("The landing of %s starts a new query. %s", self._origin.topic, error)
        return not self._stopping

    @property
    def is_active(self) -> bool:
        return self._query is not None and bool(self._query.isActive)

    def stop(self) -> None:
        """After the batch that runs."""
        self._stopping = True
        with self._busy:
            pass
        if self._query is not None:
            self._query.stop()

    def close(self) -> None:
        """End the query at once, and remove what only it needed. No batch runs afterwards."""
        self._stopping = True
        try:
            if self._query is not None:
                self._query.stop()
                with self._busy:
                    pass
        except Exception:  # pyspark's own, or a refused connection
            if not is_gone(self._spark):
                raise
        finally:
            self._remove_checkpoint()

    def _remove_checkpoint(self) -> None:
        if self._checkpoint is not None:
            shutil.rmtree(self._checkpoint, ignore_errors=True)

    # -- a batch ------------------------------------------------------------------------------------------------------

    def _land(self, frame: DataFrame, batch_id: int) -> None:
        """One micro-batch. An error is kept for `wait`, which stops the query: Spark would log a stack of what is
        raised here, in the session of the user.
        """
        with self._busy:
            if self._stopping or self._error is not None:
                return
            try:
                assert self._checkpoint is not None
                self._land_batch(frame, batch_end(self._checkpoint, batch_id, self._origin.topic))
            except BaseException as error:
                self._error = own_error(error, self._spark)

    def _land_batch(self, frame: DataFrame, end: Mapping[int, int]) -> None:
        landed = self.state.offsets
        ahead = {partition: offset for partition, offset in end.items() if offset > landed.get(partition, -1)}
        if not ahead:
            return
        written = self._written(frame, ahead)
        self._check_rejected(written)
        # After the batch was read: a topic that is created again between this check and the commit is not in it.
        check_new_table(self.table, self.state, self._founding._replace(topic_id=self._origin.topic_id()))
        files, rejected = written.files()
        batch = Batch(ahead, joined(files, self._frames.layout.compression), rejected, written.columns)
        self.state = self._target.commit(batch, time.time_ns() // 1_000_000)
        self.rows += sum(file.rows for file in batch.files)
        self.rejected += sum(file.rows for file in batch.rejected)
        self.files += len(batch.files)
        self.batches += 1
        if self._progress is not None:
            bounds = self._origin.bounds()
            self.offsets += sum(
                offset - landed.get(each, bounds.get(each, (0, 0))[0]) for each, offset in ahead.items()
            )
            self.look()
            self.total = max(self.total, self.offsets)
            counts = self.rows, self.total, self.files, self.batches, self.rejected, self.lag, self.offsets, self.behind
            self._progress(LandProgress(self._origin.topic, *counts))

    def _written(self, frame: DataFrame, end: Mapping[int, int]) -> _Written:
        """The batch in staged files, once all its schemas are known, and all records that a transform makes unfit."""
        frames = self._frames
        upsert = self._founding.upsert if frames.are_direct else ()  # a transform may make the columns
        refused: dict[Place, str] = {}
        for _ in range(_MAX_ROUNDS):
            plan = self._values.plan(self.state.value_columns())
            stage = self._target.stage_directory()
            decoding = Decoding(plan, dict(self.state.offsets), upsert, frames.decoded_layout, refused)
            written = self._written_once(frame, end, plan, decoding, stage)
            if not written.unknown and not written.unfit:
                return written
            self._values.learn(written.unknown)
            if again := refused.keys() & written.unfit.keys():
                partition, offset = min(again)
                raise SerializationError(
                    f"A row of {self._origin.topic}-{partition} at offset {offset} cannot be landed: "
                    f"{written.unfit[min(again)]}. The record was left out, and transform= made the row again. Change "
                    f"transform= so that _partition and _offset are those of the record that a row is made of."
                )
            refused |= written.unfit
        raise SerializationError(
            f"{self._origin.topic}: after {_MAX_ROUNDS} rounds there are still unknown schemas, or records that cannot "
            f"be landed because of other rows of transform= each time"
        )

    def _written_once(
        self, frame: DataFrame, end: Mapping[int, int], plan: RowPlan, decoding: Decoding, stage: str
    ) -> _Written:
        frames, spark = self._frames, frame.sparkSession
        layout = frames.layout
        if not frames.are_direct:
            return self._transformed(frame, plan, decoding, stage)
        columns = self._table_columns(plan.columns)
        write = WriteTask(stage, layout, decoding)
        if self._origin.directory is not None:
            cores = spark.sparkContext.defaultParallelism
            ranges = self._ranges(end, cores)
            # Each task writes a file per directory: a small batch is one task's work, however many partitions it has.
            records = sum(each.end - each.start for each in ranges)
            tasks = max(1, min(len(ranges), -(-records // _RECORDS_PER_TASK)))
            numbers = spark.range(0, len(ranges), 1, tasks)
            skip_lost = not self._limits.fail_on_data_loss
            task = FusedTask(self._origin.directory, ranges, write, skip_lost=skip_lost)
            reports = numbers.mapInArrow(task, REPORT_COLUMNS)
        else:
            reports = frame.mapInArrow(write, REPORT_COLUMNS)
        return _Written.of(collected(reports), columns)

    def _transformed(self, frame: DataFrame, plan: RowPlan, decoding: Decoding, stage: str) -> _Written:
        """Write a batch with the caller's transform. Rejected records do not pass through it, and cost a second pass.

        The accumulator may count a task twice if Spark runs it twice; here it only matters whether it is zero. All
        batches share it, because pyspark never frees an accumulator.
        """
        odd = self._odd = self._odd or frame.sparkSession.sparkContext.accumulator(0)
        odd.value = 0
        rows = self._frames.rows(frame, DecodeTask(decoding, odd), plan.columns)
        if self._founding.upsert:
            self._frames.check_upsert(rows.columns, plan.columns.names)
        rows = self._frames.fitted(rows, self.state.columns())
        columns = self._table_columns(self._frames.columns(rows))
        write = WriteTask(stage, self._frames.layout, None, upsert=self._founding.upsert)
        reports = collected(rows.mapInArrow(write, REPORT_COLUMNS))
        if odd.value:
            again = WriteTask(stage, self._frames.layout, decoding, keep_rows=False)
            reports += collected(frame.mapInArrow(again, REPORT_COLUMNS))
        return _Written.of(reports, columns)

    # -- columns ------------------------------------------------------------------------------------------------------

    def _table_columns(self, rows: pa.Schema) -> pa.Schema:
        """Return the table's columns after a batch with these rows. Raises `ConfigError` when some are missing."""
        import pyarrow as pa

        layout, names = self._frames.layout, list(rows.names)
        self._frames.check(names, self._founding.upsert)
        check_partition_columns(layout.partition_by, rows)
        check_key_columns(self._founding.upsert, rows)
        self._frames.check_time(rows)
        fields = [field for field in rows if field.name != TOMBSTONE]
        if layout.makes_date(names):
            fields.append(pa.field(DATE, pa.date32()))
        before = self.state.columns()
        if before is None or not {*names} <= {*before.names}:
            check_names(pa.schema(fields), self._target.names)
        if before is not None:  # what a transformation leaves out stays a column of the table
            known = {field.name for field in fields}
            fields += [field for field in before if field.name not in known]
        return pa.schema(fields)

    # -- offsets ------------------------------------------------------------------------------------------------------

    def _ranges(self, end: Mapping[int, int], min_tasks: int) -> list[OffsetRange]:
        """Return the ranges that the tasks of a batch read from a log in a directory."""
        bounds = self._origin.bounds()
        ranges: list[OffsetRange] = []
        for partition, offset in sorted(end.items()):
            first, last = bounds.get(partition, (0, 0))
            start = self.state.offsets.get(partition, first)
            if self._limits.fail_on_data_loss:
                self._check_kept(partition, start, offset, (first, last))
            ranges.append(
                OffsetRange(
                    TopicPartition(self._origin.topic, partition), min(max(start, first), last), min(offset, last)
                )
            )
        return split(ranges, min_tasks=min_tasks, max_records=None)

    def _check_kept(self, partition: int, start: int, end: int, bounds: tuple[int, int]) -> None:
        first, last = bounds
        if start < first or max(start, end) > last:
            raise OffsetOutOfRange(
                f"{TopicPartition(self._origin.topic, partition)} is to be landed in {self.table} from offset {start} "
                f"on, but the log has {first} to {last}: retention removed records, or the topic was deleted and "
                f"created again. fail_on_data_loss=False skips what is gone; a new topic belongs in a new table"
            )

    # -- what was refused ---------------------------------------------------------------------------------------------

    def _check_rejected(self, written: _Written) -> None:
        """Raise `SerializationError` when so much of a batch is bad that something else must be wrong."""
        rejected = sum(report.rows for report in written.rejected)
        if not rejected:
            return
        told = first_refusal(written.rejected, self._origin.topic)
        if not self._limits.quarantine:
            raise SerializationError(f"{told}. Nothing of this batch was landed")
        share = rejected / (rejected + written.fit)
        if rejected > REJECTED_UNNOTICED and share > self._limits.quarantine_limit:
            raise SerializationError(
                f"{told}. That is {share:.1%} of the batch, and at most {self._limits.quarantine_limit:.1%} may go to "
                f"the quarantine (quarantine_limit): a wrong registry or schema, perhaps. Nothing of it was landed"
            )


def collected(reports: DataFrame) -> list[Any]:
    """All rows, or an error. `collect` takes a connection that broke for their end, so that rows of a killed JVM would
    be missing; in Arrow's form their number comes last.
    """
    return [tuple(row.values()) for row in reports.toArrow().to_pylist()]


class _Written(NamedTuple):
    """The reports of the tasks of a batch. ``fit``: the number of records that were not rejected. ``unfit``: records
    that must be, for the rows that a transform makes of them.
    """

    rows: list[Report]
    rejected: list[Report]
    unknown: frozenset[int]
    unfit: dict[Place, str]
    fit: int
    columns: pa.Schema

    @classmethod
    def of(cls, collected: list[Any], columns: pa.Schema) -> _Written:
        reports = [Report(*row) for row in collected]
        by_kind = {kind: [each for each in reports if each.kind == kind] for kind in _KINDS}
        unknown = frozenset(each.rows for each in by_kind[UNKNOWN])
        unfit = {(each.partition, each.offset): each.reason for each in by_kind[UNFIT]}
        fit = sum(each.rows for each in by_kind[FIT] or by_kind[ROWS])
        return cls(by_kind[ROWS], by_kind[REJECTED], unknown, unfit, fit, columns)

    def files(self) -> tuple[list[Any], list[Any]]:
        return [report.file() for report in self.rows], [report.file() for report in self.rejected]
