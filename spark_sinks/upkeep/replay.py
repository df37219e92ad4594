"""`replay_quarantine`: decode refused records again, and move those that are accepted now into the table.

It runs on this machine without Spark, because a quarantine is small. A single commit adds the new rows to the table,
and keeps in the quarantine what is refused again.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.decoding.values import Change, KeyKind, ValueKind
from spark_sinks.shape import DATE, LEFT_IN_LOG, SOURCE_COLUMNS, TOMBSTONE
from spark_sinks.stage import Layout, StageWriter
from spark_sinks.targets.target import Batch, SinkState, Target
from spark_sinks.upkeep.deletions import Deletions
from spark_sinks.upkeep.rows import RowMaker, ValueArguments
from spark_sinks.upkeep.tables import founding_of, opened
from spark_sinks.upkeep.topic_contents import contents_of

if TYPE_CHECKING:
    import msgspec
    import pyarrow as pa

    from serdes.registry import SchemaClient

ArrowSchema = Any
"""A `pyarrow.Schema`, whose type is unknown to type checkers."""
_AT_ONCE = 20_000
"""Maximum number of records decoded together."""


class ReplayReport(NamedTuple):
    """The result of `replay_quarantine`.

    ``waiting`` records were in the quarantine, and ``landed`` of them are rows now. ``reasons`` are those of the
    others, each with its count and the first record. ``committed`` is True if the table was changed.
    """

    topic: str
    table: str
    waiting: int
    landed: int
    left: int
    reasons: dict[str, tuple[int, str]]
    committed: bool
    seconds: float


def replay_quarantine(
    url: str,
    topic: str | None,
    to: str,
    *,
    value: ValueKind = "auto",
    schema: type[msgspec.Struct] | ArrowSchema | str | None = None,
    registry: str | SchemaClient | None = None,
    key: KeyKind = "bytes",
    on_incompatible: Change = "fail",
    event_time: str | None = None,
    compression: str = "zstd",
    dry_run: bool = False,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Decode the records in a table's quarantine again; the arguments are those of its landing, corrected.

    It takes over the table, so a landing of it must not run (it would be fenced). With ``dry_run`` it only reports the
    outcome. ``progress`` is called with the number of records so far. In a table that is upserted, an older record
    never replaces a newer one, nor restores what was deleted after it.

    Raises `ConfigError` for a table that was transformed, or is partitioned by an expression that only Spark can
    compute.
    """
    started = time.monotonic()
    arguments = ValueArguments(value, schema, registry, key, on_incompatible)
    with opened(url, topic, to) as there:
        target, state = there.target, there.state
        by = state.partition_by if target.is_partitioned else ()
        layout = Layout(
            by, event_time or "_timestamp", compression, target.keeps_partition_columns, target.limits(state.upsert)
        )
        rows = RowMaker(there.url, state, arguments, there.session, layout, target.names, target.lacks)
        deleted = Deletions(lambda: contents_of(there.origin, there.session)) if state.upsert else None
        replay = _Replay(target, state, rows, layout, deleted, progress or (lambda _: None))
        try:
            committed = replay.dry() if dry_run else replay.run()
        finally:
            rows.close()
        return ReplayReport(
            state.topic,
            target.name,
            replay.waiting,
            replay.landed,
            replay.waiting - replay.landed,
            replay.reasons,
            committed,
            time.monotonic() - started,
        )


class _Replay:
    def __init__(
        self,
        target: Target,
        state: SinkState,
        rows: RowMaker,
        layout: Layout,
        deleted: Deletions | None,
        progress: Callable[[int], None],
    ) -> None:
        self._target = target
        self._state = state
        self._rows = rows
        self._layout = layout
        self._deleted = deleted
        self._progress = progress
        self.waiting = self.landed = 0
        self.reasons: dict[str, tuple[int, str]] = {}

    def dry(self) -> bool:
        for _ in self._decoded():
            pass
        return False

    def run(self) -> bool:
        """Return True if anything was landed. Otherwise the table is unchanged and was not taken over."""
        self.dry()
        if not self.landed:
            return False
        self._state = self._target.open(founding_of(self._state), time.time_ns() // 1_000_000)
        self._rows.follow(self._state)
        if self._deleted is not None:
            self._deleted.look(self._state, self._waiting())
        batch = None
        while batch is None:
            batch = self._staged()
        if self.landed:
            self._target.commit(batch, time.time_ns() // 1_000_000)
        return bool(self.landed)

    def _staged(self) -> Batch | None:
        """Write all rows to staged files. Return None if a record widened the columns: all files must have the same."""
        stage, columns = self._target.stage_directory(), self._rows.columns
        good, bad = StageWriter(stage, self._layout), StageWriter(stage, Layout(compression=self._layout.compression))
        for rows, rejected in self._decoded():
            if self._rows.columns != columns:
                return None
            if self._deleted is not None:
                rows = self._deleted.left_out(rows)
            if rows.num_rows:
                good.write(rows)
            if rejected is not None:
                bad.write(rejected)
        for rejected in self._quarantined(left_in_log=True):
            bad.write(rejected)
        return Batch({}, good.finish(), bad.finish(), self._columns(), replaces_quarantine=True)

    def _decoded(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch | None]]:
        """Decode the waiting records, and count them again."""
        self.waiting = self.landed = 0
        self.reasons.clear()
        for rejected in self._quarantined(left_in_log=True):
            self.waiting += rejected.num_rows
            self._note(rejected)
        for batch in self._waiting():
            rows, rejected, _ = self._rows(batch)
            self.waiting += batch.num_rows
            self.landed += rows.num_rows
            self._note(rejected)
            if rows.num_rows and (missing := self._layout.missing(rows.schema.names)):
                raise ConfigError(
                    f"{self._target.name} is split by {missing[0]}, which a replay cannot reckon: only Spark can, in "
                    f"`land`"
                )
            self._progress(self.waiting)
            yield rows, rejected

    def _waiting(self) -> Iterator[pa.RecordBatch]:
        """Yield the quarantine as records of the source, ascending in each batch."""
        import pyarrow as pa

        names = dict(zip(("_topic", "_partition", "_offset", "_timestamp"), SOURCE_COLUMNS[2:], strict=True))
        for batch in self._quarantined(left_in_log=False):
            table = pa.Table.from_batches([batch]).sort_by([("_partition", "ascending"), ("_offset", "ascending")])
            table = table.rename_columns([names.get(name, name) for name in table.column_names])
            for part in table.select(SOURCE_COLUMNS).combine_chunks().to_batches(max_chunksize=_AT_ONCE):
                if part.num_rows:
                    yield part

    def _quarantined(self, *, left_in_log: bool) -> Iterator[pa.RecordBatch]:
        """Yield the records whose bytes the quarantine has, or those that stay because it does not."""
        import pyarrow.compute as pc

        compute: Any = pc
        for batch in self._target.read_quarantine():
            found = compute.fill_null(compute.ends_with(batch.column("error"), LEFT_IN_LOG), False)
            yield batch.filter(found if left_in_log else compute.invert(found))

    def _note(self, rejected: pa.RecordBatch | None) -> None:
        if rejected is None:
            return
        errors, partitions, offsets = (rejected.column(name) for name in ("error", "_partition", "_offset"))
        for number, reason in enumerate(errors.to_pylist()):
            if reason in self.reasons:
                count, first = self.reasons[reason]
                self.reasons[reason] = count + 1, first
            else:
                where = f"{self._state.topic}-{partitions[number].as_py()} at offset {offsets[number].as_py()}"
                self.reasons[reason] = 1, where

    def _columns(self) -> pa.Schema:
        """Return the columns of the table after the replay."""
        import pyarrow as pa

        made = [field for field in self._rows.columns if field.name != TOMBSTONE]
        if self._layout.makes_date(self._rows.columns.names):
            made.append(pa.field(DATE, pa.date32()))
        known = {field.name for field in made}
        before = self._state.columns() or ()
        return pa.schema([*made, *(field for field in before if field.name not in known)])
