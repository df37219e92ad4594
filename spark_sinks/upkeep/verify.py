"""`verify`: check that a table holds each committed record of its topic exactly once, and explain every gap.

The table's rows and quarantine become sets of offsets (`spark_sinks.upkeep.table_offsets`), which are compared with the
kinds of offsets in the log (`spark_sinks.upkeep.topic_contents`), a million offsets at a time.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from eventbus.errors import ConfigError
from spark_sinks.decoding.values import Change, KeyKind, ValueKind
from spark_sinks.shape import COORDINATES, KEY
from spark_sinks.targets.target import SinkState
from spark_sinks.upkeep.newest import Newest, Shown
from spark_sinks.upkeep.offsets import WINDOW, Ranges, RangesBuilder
from spark_sinks.upkeep.report import Kind, PartitionReport, VerifyProgress, VerifyReport, problems_of
from spark_sinks.upkeep.rows import RowMaker, ValueArguments
from spark_sinks.upkeep.table_offsets import PartitionOffsets, TableOffsets
from spark_sinks.upkeep.tables import Opened, opened
from spark_sinks.upkeep.topic_contents import ABORTED, GONE, MARKER, NOTHING, RECORD, TopicContents, contents_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from serdes.registry import SchemaClient

BEYOND, OUTSIDE, LATER, SUPERSEDED, DELETED, EITHER = range(GONE + 1, GONE + 7)
"""Further kinds of offsets: beyond the log's end; outside of the table's range; landed while the table was read;
replaced by a newer record of the key; deleted; one of several that may be the newest (see `Shown`).
"""
_ATTEMPTS = 3
"""Maximum number of checks. A concurrent landing may replace rows, so apparent problems are checked again."""

ArrowSchema = Any
"""A `pyarrow.Schema`, whose type is unknown to type checkers."""

OnProgress = Callable[[VerifyProgress], Any]


def verify(
    url: str,
    topic: str | None,
    to: str,
    *,
    values: bool = False,
    value: ValueKind = "auto",
    schema: type[msgspec.Struct] | ArrowSchema | str | None = None,
    registry: str | SchemaClient | None = None,
    key: KeyKind = "bytes",
    on_incompatible: Change = "fail",
    spark: SparkSession | None = None,
    progress: OnProgress | None = None,
) -> VerifyReport:
    """Check a table against its topic.

    - ``url``, ``topic``, ``to``: as for `land`; ``topic=None`` is the topic in the table's account.
    - ``values``: decode all records again, and compare the values too.
    - ``value``, ``schema``, ``registry``, ``key``, ``on_incompatible``: as for `land`; needed for ``values``, and for a
      table that is upserted by columns of the value.
    - ``spark``: only for ``kafka://``; by default the active session, or else a new one.

    A log in files is read without Spark. The table may be landed meanwhile.

    Raises `ConfigError` if the table does not exist or belongs to another topic, `CorruptRecord` for a damaged log.
    """
    started = time.monotonic()
    arguments = ValueArguments(value, schema, registry, key, on_incompatible)
    with opened(url, topic, to, spark=spark) as there:
        truth, state = contents_of(there.origin, there.session), there.state
        for attempt in range(_ATTEMPTS):
            check = _Check(there, truth, state, arguments, progress or (lambda _: None))
            report = check.run(values=values, started=started)
            now = there.target.state()
            if report.ok or now is None or now.sequence == state.sequence or attempt == _ATTEMPTS - 1:
                return report
            state = now
        raise AssertionError("the last attempt returns")


class _Check:
    """One comparison, with the account as of its start."""

    def __init__(
        self, there: Opened, truth: TopicContents, state: SinkState, arguments: ValueArguments, progress: OnProgress
    ) -> None:
        self._there = there
        self._truth = truth
        self._target = there.target
        self._state = state
        self._arguments = arguments
        self._progress = progress
        columns = state.columns()
        self._columns: set[str] = set() if columns is None else set(columns.names)
        self._kind: Kind = "transformed" if state.transformed else "upserted" if state.upsert else "records"
        self._seen = TableOffsets(state.topic)
        self._later = state
        """The account after the table was read."""
        self._shown: Mapping[int, Shown] = {}
        self._done = 0
        self._total = 0
        self.checked: list[str] = []
        self.problems: list[str] = []
        self.remarks: list[str] = []

    def run(self, *, values: bool, started: float) -> VerifyReport:
        state = self._state
        if self._columns:
            self._seen.read_rows(self._target, self._columns, self._report_rows)
        self._seen.read_quarantine(self._target)
        self._later = self._target.state() or state
        bounds = self._truth.bounds()  # after the table was read, so that the log is at least as far
        numbers = sorted({*state.offsets, *state.started, *self._seen.held})
        ends = {each: state.offsets.get(each, state.started.get(each, 0)) for each in numbers}
        self._total = sum(end - state.started.get(each, 0) for each, end in ends.items())
        if self._kind == "upserted":
            self._shown = self._newest(bounds)
        partitions = [self._partition(each, ends[each], bounds.get(each, (0, 0))) for each in numbers]
        if values:
            partitions = self._compare_values(partitions)
        self._judge(partitions)
        return VerifyReport(
            topic=state.topic,
            table=self._target.name,
            log=self._there.log,
            kind=self._kind,
            sequence=state.sequence,
            records=sum(each.records for each in partitions),
            rows=self._seen.rows,
            rejected=sum(held.rejected.count for held in self._seen.held.values()),
            partitions=partitions,
            checked=self.checked,
            problems=self.problems,
            remarks=self.remarks,
            seconds=time.monotonic() - started,
        )

    # -- partition by partition ---------------------------------------------------------------------------------------

    @property
    def _has_coordinates(self) -> bool:
        """True if the rows have coordinates, or the table is empty."""
        return not self._columns or {"_partition", "_offset"} <= self._columns

    def _partition(self, number: int, end: int, bounds: tuple[int, int]) -> PartitionReport:
        start, held = self._state.started.get(number, 0), self._seen.held[number]
        where: dict[str, Any] = {
            "partition": number,
            "start": start,
            "end": end,
            "log_start": bounds[0],
            "log_end": bounds[1],
        }
        if not self._has_coordinates:
            return PartitionReport(**where, rejected=held.rejected.count)
        tally = _Tally(self._kind, self._truth.tells_gaps)
        windows = {*range(start // WINDOW, -(-end // WINDOW))} | held.windows()
        for window in sorted(windows):
            kinds = self._kinds(number, window * WINDOW, start, end, bounds)
            tally.add(window, kinds, held)
        return PartitionReport(
            **where,
            rows=held.rows.count,
            rejected=held.rejected.count,
            records=tally.records,
            missing=tally.missing.build(),
            doubled=tally.doubled.build(),
            foreign=tally.foreign.build(),
            explained=tally.explained,
        )

    def _kinds(self, number: int, base: int, start: int, end: int, bounds: tuple[int, int]) -> NDArray[np.uint8]:
        """Return the kinds of the offsets in a window."""
        kinds = np.full(WINDOW, OUTSIDE, np.uint8)
        later = self._later.offsets.get(number, end)
        kinds[max(0, end - base) : max(0, later - base)] = LATER
        first, last = max(start, base), min(end, base + WINDOW)
        if first >= last:
            return kinds
        kept_from, kept_to = (min(max(each, first), last) for each in bounds)
        kinds[first - base : kept_from - base] = GONE
        if kept_from < kept_to:
            kinds[kept_from - base : kept_to - base] = self._truth.kinds(number, kept_from, kept_to)
        kinds[kept_to - base : last - base] = BEYOND
        if self._kind == "upserted":
            self._only_newest(kinds, number, base)
        self._done += last - first
        self._progress(VerifyProgress("comparing with the log", self._done, self._total))
        return kinds

    # -- tables that are upserted -------------------------------------------------------------------------------------

    def _only_newest(self, kinds: NDArray[np.uint8], number: int, base: int) -> None:
        """Keep only the newest record of each key as a record. Records in the quarantine keep their kind."""
        window = self._seen.held[number].rejected.window(base // WINDOW)
        records = (kinds == RECORD) & ~window
        kinds[records] = SUPERSEDED
        shown = self._shown.get(number)
        if shown is None:
            return
        for offsets, kind in ((shown.newest, RECORD), (shown.either, EITHER), (shown.deleted, DELETED)):
            low, high = np.searchsorted(offsets, (base, base + WINDOW))
            kinds[offsets[low:high] - base] = kind

    def _newest(self, bounds: Mapping[int, tuple[int, int]]) -> Mapping[int, Shown]:
        state = self._state
        by_record_key = state.upsert == (KEY if KEY in self._columns else "key",)
        newest = Newest(len(state.upsert))
        if by_record_key:
            for batch in self._records(bounds):
                newest.add_records(batch)
            return newest.shown()
        rows = RowMaker(self._there.url, state, self._arguments, self._there.session)
        try:
            for batch in self._records(bounds):
                newest.add_rows(rows(batch).rows, state.upsert)
        finally:
            rows.close()
        return newest.shown()

    def _records(self, bounds: Mapping[int, tuple[int, int]]) -> Iterator[Any]:
        """Yield the records below the account's offsets, without those in the quarantine."""
        for number, end in sorted(self._state.offsets.items()):
            first, last = bounds.get(number, (0, 0))
            start = max(self._state.started.get(number, 0), first)
            rejected = self._seen.held[number].rejected
            for batch in self._truth.records(number, start, min(end, last)) if start < min(end, last) else ():
                offsets = batch.column("offset").to_numpy()
                self._progress(VerifyProgress("reading keys", int(offsets[-1]) - start, end - start))
                bad = rejected.has(offsets)
                yield batch.filter(_mask(~bad)) if bad.any() else batch

    # -- values -------------------------------------------------------------------------------------------------------

    def _compare_values(self, partitions: list[PartitionReport]) -> list[PartitionReport]:
        from spark_sinks.upkeep.compare import compare_values

        if self._kind == "transformed":
            raise ConfigError("values of a table that was transformed cannot be compared: leave values out")
        bounds = {each.partition: (each.log_start, each.log_end) for each in partitions}
        rows = RowMaker(self._there.url, self._state, self._arguments, self._there.session)
        try:
            found = compare_values(self._target, self._state, rows, self._records(bounds))
        finally:
            rows.close()
        self.checked.append(
            f"{found.compared:,} rows have the values that the log has, in {len(found.columns)} columns"
        )
        if found.left_out:
            self.remarks.append(f"not compared, being of other types in the table: {', '.join(found.left_out)}")
        return [
            msgspec.structs.replace(each, differing=found.differing.get(each.partition, Ranges()))
            for each in partitions
        ]

    # -- in words -----------------------------------------------------------------------------------------------------

    def _judge(self, partitions: list[PartitionReport]) -> None:
        state = self._state
        for each in partitions:
            self.problems += problems_of(state.topic, each)
        if self._seen.strangers:
            self.problems.append(
                f"{self._seen.strangers:,} rows are of another topic, or do not say where they are from"
            )
        if strangers := self._target.strangers():
            more = f" and {len(strangers) - 1:,} more" if len(strangers) > 1 else ""
            self.problems.append(
                f"{strangers[0]}{more} in {self._target.name}: no landing wrote it, and plain readers take its rows "
                f"for the table's"
            )
        if state.sequence and not state.columns() and state.rows:
            self.problems.append(f"the account counts {state.rows:,} rows, and the table has no columns")
        told = {
            "records": "each committed record is in the table or in the quarantine, once",
            "upserted": f"the newest record of each {', '.join(state.upsert)} is in the table, once, and no older one",
            "transformed": "each row is of a committed record that was landed",
        }
        if self._has_coordinates:
            self.checked.insert(0, told[self._kind])
        else:
            self.checked.insert(0, "the table's offsets are within the log")
            lacking = [name for name in COORDINATES if name not in self._columns]
            self.remarks.append(
                f"rows do not say which records they are of (no {', '.join(lacking)}): keep these columns in the "
                f"transform, and they can be checked"
            )
        if state.upsert and self._kind == "transformed":
            self.remarks.append(
                f"not checked: whether the table has the newest row of each {', '.join(state.upsert)}. A transform "
                f"makes the rows, so only the transform knows which records have the same key"
            )
        if not state.upsert and not state.rows <= self._seen.rows <= self._later.rows:
            self.problems.append(
                f"the table has {self._seen.rows:,} rows, and its account counts {state.rows:,}: rows were added or "
                f"removed by another program"
            )

    def _report_rows(self, rows: int) -> None:
        self._progress(VerifyProgress("reading the table", rows, max(rows, self._state.rows)))


class _Tally:
    """The counts and ranges of one partition."""

    def __init__(self, kind: Kind, tells_gaps: bool) -> None:
        self._transformed = kind == "transformed"
        self._nothing = "compacted" if tells_gaps else "unseen"
        self.records = 0
        self.missing, self.doubled, self.foreign = RangesBuilder(), RangesBuilder(), RangesBuilder()
        self.explained: dict[str, int] = {}

    def add(self, window: int, kinds: NDArray[np.uint8], held: PartitionOffsets) -> None:
        """Compare the ``kinds`` of the offsets in a window with what the table holds of them."""
        base = window * WINDOW
        rows, rejected = held.rows.window(window), held.rejected.window(window)
        twice, here = held.doubled.window(window), rows | rejected
        record = kinds == RECORD
        self.records += int(np.count_nonzero(record))
        missing = record & ~here
        both = rows & rejected
        if self._transformed:
            self._explain("dropped", missing)
            self._explain("several", twice)
            missing, twice = missing & False, both
        wrong = here & ((kinds == MARKER) | (kinds == ABORTED) | (kinds == OUTSIDE))
        wrong |= rows & ((kinds == SUPERSEDED) | (kinds == DELETED))
        for builder, mask in ((self.missing, missing), (self.doubled, twice | both), (self.foreign, wrong)):
            builder.add(np.flatnonzero(mask) + base)
        self._explain("unchecked", here & ((kinds == NOTHING) | (kinds == GONE) | (kinds == BEYOND)))
        for word, kind in (
            ("markers", MARKER),
            ("aborted", ABORTED),
            (self._nothing, NOTHING),
            ("gone", GONE),
            ("superseded", SUPERSEDED),
            ("deleted", DELETED),
            ("either", EITHER),
        ):
            self._explain(word, (kinds == kind) & ~here)

    def _explain(self, word: str, mask: NDArray[np.bool_]) -> None:
        if count := int(np.count_nonzero(mask)):
            self.explained[word] = self.explained.get(word, 0) + count


def _mask(mask: NDArray[np.bool_]) -> Any:
    import pyarrow as pa

    return pa.array(mask)
