"""The part of a landing that runs in Spark's tasks: records in, staged files out, and a `Report` of each to the driver.

Every class here is pickled to the tasks and called there by ``mapInArrow``.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_sinks.decoding.values import Decoded, RowDecoder, RowPlan
from spark_sinks.refusals import Place, unfit_records, without_unfit
from spark_sinks.shape import SOURCE_COLUMNS
from spark_sinks.source.offsets import OffsetRange
from spark_sinks.stage import Layout, StageWriter
from spark_sinks.targets.target import StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import Accumulator

REPORT_COLUMNS = (
    "kind string, path string, directory string, rows bigint, size_bytes bigint, "
    "partition int, offset bigint, reason string"
)
ROWS, REJECTED, UNKNOWN, FIT, UNFIT = "rows", "rejected", "unknown", "fit", "unfit"


class Report(NamedTuple):
    """The report of a task to the driver, distinguished by ``kind``.

    It names a staged file of rows or of rejected records, the id of an unknown schema (in ``rows``), the number of
    records that fit if the task did not write them, or a record from which a transform made an invalid row.

    ``partition``, ``offset`` and ``reason`` describe the first rejected record of a file, or the invalid row's record.
    """

    kind: str
    path: str = ""
    directory: str = ""
    rows: int = 0
    size_bytes: int = 0
    partition: int = -1
    offset: int = -1
    reason: str = ""

    def file(self) -> StagedFile:
        return StagedFile(self.path, self.directory, self.rows, self.size_bytes)


class Decoding:
    """From records to rows: drop those that are landed already, reject those that cannot be a row of the table.

    ``upsert``: the columns that must not be null. ``layout``: its partitions must have a place for every row.
    ``refused``: records that are rejected for the rows that a transform makes of them, see `WriteTask`.
    """

    def __init__(
        self,
        plan: RowPlan,
        landed: dict[int, int],
        upsert: tuple[str, ...] = (),
        layout: Layout | None = None,
        refused: Mapping[Place, str] | None = None,
    ) -> None:
        self._plan = plan
        self._landed = landed
        self._upsert = upsert
        self._layout = layout or Layout()
        self._refused = refused
        self._decoder: RowDecoder | None = None

    def __call__(self, batch: pa.RecordBatch) -> Decoded:
        """Split a batch with the columns of the source into rows and rejected records."""
        if self._decoder is None:
            self._decoder = self._plan.decoder()
        fresh = above(batch, self._landed)
        return without_unfit(self._decoder.rows(fresh), fresh, self._upsert, self._layout, self._refused)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_decoder": None}


class DecodeTask:
    """From records to rows, for a transform of the caller. Other records are only counted, in ``odd``."""

    def __init__(self, decoding: Decoding, odd: Accumulator[int]) -> None:
        self._decoding = decoding
        self._odd = odd

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            decoded = self._decoding(batch)
            if decoded.rejected is not None or decoded.unknown:
                self._odd.add(1)
            yield decoded.rows


class WriteTask:
    """Writes rows to staged files; with ``decoding``, records to staged files of rows and of rejected records.

    ``keep_rows=False`` writes the rejected only, and counts the others. Without ``decoding`` the rows are those of a
    transform, for a table that is upserted by ``upsert``. If one of them cannot be landed, its record is reported
    instead of files, and the batch is done again without that record. So none of the rows that a transform makes of a
    record are in the table while the record is in the quarantine.
    """

    def __init__(
        self,
        stage: str,
        layout: Layout,
        decoding: Decoding | None,
        *,
        keep_rows: bool = True,
        upsert: tuple[str, ...] = (),
    ) -> None:
        self._stage = stage
        self._layout = layout
        self._decoding = decoding
        self._keep_rows = keep_rows
        self._upsert = upsert

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = StageWriter(self._stage, self._layout)
        quarantine = _Quarantine(self._stage, self._layout.compression)
        unknown: set[int] = set()
        unfit: dict[Place, str] = {}
        fit = 0
        for batch in batches:
            rows = batch
            if self._decoding is not None:
                rows, rejected, ids = self._decoding(batch)
                unknown |= ids
                if rejected is not None:
                    quarantine.write(rejected)
            else:
                unfit = unfit_records(rows, self._upsert, self._layout) | unfit
            fit += rows.num_rows
            if self._keep_rows and not unknown and not unfit:  # else all of it is done again
                writer.write(rows)
        reports = [Report(UNKNOWN, rows=schema_id) for schema_id in sorted(unknown)]
        reports += [Report(UNFIT, "", "", 0, 0, *place, reason) for place, reason in unfit.items()]
        if not reports:
            reports = [Report(ROWS, *file) for file in writer.finish()] + quarantine.finish()
            if not self._keep_rows:
                reports.append(Report(FIT, rows=fit))
        if reports:
            yield _as_batch(reports)


class FusedTask:
    """Reads the log and writes, in one pass: nothing but the reports goes through the JVM.

    Spark gives it the numbers of the ranges to land. ``skip_lost`` skips records that retention removes meanwhile.
    """

    def __init__(
        self, directory: str, ranges: Sequence[OffsetRange], write: WriteTask, *, skip_lost: bool = False
    ) -> None:
        self._directory = directory
        self._ranges = list(ranges)
        self._write = write
        self._skip_lost = skip_lost

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return self._write(self._records(batches))

    def _records(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from eventbus.log.reader import LogReader
        from spark_sinks.source.arrow import read_range
        from spark_sinks.source.claims import Claims

        reader, claims = LogReader(self._directory), Claims()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for records in read_range(reader, self._ranges[number], skip_lost=self._skip_lost, claims=claims):
                    yield records.select(SOURCE_COLUMNS)


class _Quarantine:
    """The rejected records of a task, as staged files."""

    def __init__(self, stage: str, compression: str) -> None:
        self._writer = StageWriter(stage, Layout(compression=compression))
        self._first: tuple[int, int, str] | None = None

    def write(self, rejected: pa.RecordBatch) -> None:
        if self._first is None and rejected.num_rows:
            partition, offset, reason = (
                rejected.column(name)[0].as_py() for name in ("_partition", "_offset", "error")
            )
            self._first = partition, offset, reason
        self._writer.write(rejected)

    def finish(self) -> list[Report]:
        if self._first is None:
            return []
        return [Report(REJECTED, *file, *self._first) for file in self._writer.finish()]


def above(batch: pa.RecordBatch, landed: dict[int, int]) -> pa.RecordBatch:
    """Return the rows of a source batch that the table does not hold yet."""
    import numpy as np
    import pyarrow as pa

    if not landed or batch.num_rows == 0:
        return batch
    partitions = batch.column("partition").to_numpy(zero_copy_only=False)
    next_offsets = np.zeros(int(max(partitions.max(), *landed)) + 1, np.int64)
    next_offsets[list(landed)] = list(landed.values())
    fresh = batch.column("offset").to_numpy(zero_copy_only=False) >= next_offsets[partitions]
    return batch if fresh.all() else batch.filter(pa.array(fresh))


def first_refusal(reports: Sequence[Report], topic: str) -> str:
    """Return the sentence for records that were rejected."""
    first = min(reports, key=lambda report: (report.partition, report.offset))
    count = sum(report.rows for report in reports)
    records = "1 record does" if count == 1 else f"{count:,} records do"
    return f"{records} not fit, the first in {topic}-{first.partition} at offset {first.offset}: {first.reason}"


def _as_batch(reports: list[Report]) -> pa.RecordBatch:
    import pyarrow as pa

    text, number = pa.string(), pa.int64()
    kinds = (text, text, text, number, number, pa.int32(), number, text)
    columns: list[list[Any]] = [list(column) for column in zip(*reports, strict=True)]
    schema = pa.schema(list(zip(Report._fields, kinds, strict=True)))
    return pa.RecordBatch.from_pydict(dict(zip(Report._fields, columns, strict=True)), schema=schema)
