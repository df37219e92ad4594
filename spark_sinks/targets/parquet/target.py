"""`ParquetTarget`: staged files are renamed into the table, and an entry of its ledger makes them count.

A reader of plain directories may see files of a batch some milliseconds before it is committed, never a torn one and
never a record twice. What a crash leaves goes when the table is opened again.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eventbus.errors import ConfigError, CorruptRecord, EventBusError, StorageError
from spark_sinks.names import IN_FILES
from spark_sinks.shape import Lack
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.parquet.compaction import Compaction
from spark_sinks.targets.parquet.ledger import (
    LEDGER,
    Entry,
    TableFile,
    append,
    entry_path,
    newest,
    successor,
    unfinished,
)
from spark_sinks.targets.parts import Epochs, parent, part_of, sorts_below
from spark_sinks.targets.place import ObjectPath, Place
from spark_sinks.targets.rewrite import Rewrite, rewrite, rows_of
from spark_sinks.targets.side_files import (
    META,
    Quarantine,
    ReadLock,
    Stage,
    TableLock,
    check_kind,
    move_parts,
    remove_parts,
)
from spark_sinks.targets.storage import MakeFiles, files_at
from spark_sinks.targets.table_creation import check_new_table, fenced, new_account, new_id, take_over
from spark_sinks.targets.target import Batch, Compacted, FileCount, NewTable, SinkState, StagedFile, advanced

if TYPE_CHECKING:
    import pyarrow as pa


class ParquetTarget:
    """A directory of Parquet files; partitions are directories as Hive names them."""

    is_partitioned = True
    keeps_partition_columns = False
    keeps_nan = True
    names = IN_FILES
    lacks: frozenset[Lack] = frozenset({"narrow"})
    """Spark and pandas cannot read a directory in which a column is int in one file and long in another."""

    def __init__(
        self, directory: Place, options: TargetOptions, *, make_files: MakeFiles = files_at, rewrite: Rewrite = rewrite
    ) -> None:
        self._directory = directory
        self._files = make_files(directory)
        self._stage = Stage(directory, options.stage, make_files)
        self._quarantine = Quarantine(directory, make_files)
        self._entry: Entry | None = None
        self.lock = TableLock(directory, self._files)
        self._reading = ReadLock(directory)
        self._compaction = (
            None
            if isinstance(directory, ObjectPath)
            else Compaction(directory, make_files, self._reading, options.compression, rewrite)
        )

    @property
    def name(self) -> str:
        return str(self._directory)

    # -- landing ------------------------------------------------------------------------------------------------------

    def limits(self, upsert: tuple[str, ...]) -> None:
        return None

    def open(self, new_table: NewTable, now_ms: int) -> SinkState:
        if new_table.upsert:
            raise ConfigError(f"{self.name}: Parquet files are only added to: upsert= needs delta: or a database")
        check_kind(self._directory, "Parquet files", self._files)
        if newest(self._files) is None and (foreign := self._foreign()):
            raise ConfigError(
                f"{self.name} contains {foreign[0]}, which no landing wrote. Readers of the directory would take its "
                f"rows for the topic's. Land into an empty directory."
            )
        self._files.makedirs(LEDGER)
        self.lock.acquire()
        try:
            entry = self._take_over(new_table, now_ms)
            self._heal(entry)
        except BaseException:
            self.close()
            raise
        self._entry = entry
        return entry.state

    def stage_directory(self) -> str:
        return self._stage.directory(self._opened().state)

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        last = self._opened()
        state = advanced(last.state, batch, now_ms)
        self._entry = None  # until it is certain what the table holds
        if self._files.exists(entry_path(last.number + 1)):  # else its files would be in the table for a moment
            raise fenced(self.name, last.state)
        try:
            rejected = self._quarantine.take(batch.rejected, last.state)
            files = self._move(batch.files, last.state)
        except EventBusError:
            self._give_up(last.state)
            raise
        entry = successor(last, "committed", state, files=files, rejected=rejected)
        if not append(self._files, entry):
            self._give_up(last.state)
            raise fenced(self.name, last.state)
        self._entry = entry
        self._stage.done(last.state)
        if batch.replaces_quarantine:
            with contextlib.suppress(StorageError):  # they do not count any more; the next opening removes them
                self._quarantine.clear(state, Epochs(entry.begins))
        return state

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        last = self._opened()
        if self._compaction is None:
            raise ConfigError(
                f"{self.name} cannot be compacted. An object store cannot replace the files of a partition in one "
                f"step, and readers would see rows twice. Land into delta:{self.name}, which can."
            )
        if not last.state.partition_by:
            raise ConfigError(
                f"{self.name} has no partitions, and plain files cannot be replaced in one step: use Delta"
            )
        groups: dict[str, list[str]] = {}
        for path in sorted(self._counted(last)):
            groups.setdefault(parent(path), []).append(path)
        self._entry = None
        total = Compacted(0, 0, 0, 0)
        for directory, paths in groups.items():
            if len(paths) >= max(min_files, 2) and sorts_below(directory, before):
                last, done = self._compaction.compact(last, directory, paths)
                total = Compacted(*(a + b for a, b in zip(total, done, strict=True)))
        self._entry = last
        return total

    def close(self) -> None:
        self._entry = None
        self.lock.release()

    # -- looking at it ------------------------------------------------------------------------------------------------

    def state(self) -> SinkState | None:
        entry = newest(self._files)
        return entry and entry.state

    def files(self) -> FileCount | None:
        with self._reading.shared():
            entry = newest(self._files)
            sizes = [self._files.size(path) for path in self._counted(entry)] if entry else []
        return FileCount(len(sizes), sum(sizes))

    def strangers(self) -> list[str]:
        entry = newest(self._files)
        return self._foreign(entry.state.id) if entry else []

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with self._reading.shared():
            entry = newest(self._files)
            known = entry and entry.state.columns()
            if entry is None or known is None:
                return
            wanted = pa.schema([known.field(name) for name in columns])
            for path in self._counted(entry):
                yield from rows_of(self._directory / path, parent(path), wanted)

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        entry = newest(self._files)
        if entry is not None:
            yield from self._quarantine.read(entry.state, Epochs(entry.begins))

    # -- steps --------------------------------------------------------------------------------------------------------

    def _opened(self) -> Entry:
        if self._entry is None:
            raise ConfigError(f"{self.name} is not open: open it, and again after an error")
        return self._entry

    def _take_over(self, new_table: NewTable, now_ms: int) -> Entry:
        """Check the table, then enter the next epoch. Nothing is touched before it is known to be ours."""
        while True:
            last = newest(self._files)
            state = last.state if last is not None else new_account(new_table, new_id(), now_ms)
            check_new_table(self.name, state, new_table)
            self._check_parts(state)
            state = take_over(state, new_table)
            begins = Epochs(last.begins if last else {}).begun(state.epoch, state.sequence).begins
            swap, files = (last.swap, last.files) if last and last.swap is not None else (None, [])
            number = last.number + 1 if last else 0
            entry = Entry(number=number, what="opened", state=state, files=files, swap=swap, begins=begins)
            if append(self._files, entry):
                return entry

    def _check_parts(self, state: SinkState) -> None:
        for path in self._files.files_below(""):
            part = part_of(path)
            if part is not None and (part.id != state.id or part.sequence > state.sequence):
                raise CorruptRecord(
                    f"{path} was landed by a ledger that is not here any more (this one: table {state.id}, "
                    f"{state.sequence} commits): restore the directory {META}, or land into an empty directory"
                )

    def _heal(self, entry: Entry) -> None:
        """Finish an interrupted compaction, and remove files that crashes have left."""
        if self._compaction is not None:
            self._compaction.heal(entry)
        self._stage.clear(entry.state.id)
        epochs = Epochs(entry.begins)
        parts = ((path, part_of(path)) for path in self._files.files_below(""))
        orphans = [path for path, part in parts if part is not None and not epochs.counts(part, entry.state.sequence)]
        self._files.remove(*unfinished(self._files), *orphans)
        for directory in sorted({parent(path) for path in orphans}):
            # Else a power cut could bring an orphan back after its batch was written again.
            self._files.sync_dir(directory)
        self._quarantine.clear(entry.state, epochs)

    def _foreign(self, id: str | None = None) -> list[str]:
        """Return the Parquet files that no landing wrote or, with the ``id`` of a table, no landing of that table."""
        found = ((path, part_of(path)) for path in self._files.files_below("") if path.endswith(".parquet"))
        return [path for path, part in found if part is None or (id is not None and part.id != id)]

    def _move(self, staged: Sequence[StagedFile], state: SinkState) -> list[TableFile]:
        staged = sorted(file for file in staged if file.rows)
        paths = move_parts(self._files, "", staged, state)
        return [TableFile(path, file.rows, file.size_bytes) for path, file in zip(paths, staged, strict=True)]

    def _give_up(self, state: SinkState) -> None:
        remove_parts(self._files, "", state)
        self._quarantine.give_up(state)

    def _counted(self, entry: Entry) -> list[str]:
        epochs = Epochs(entry.begins)
        parts = ((path, part_of(path)) for path in self._files.files_below(""))
        return [path for path, part in parts if part is not None and epochs.counts(part, entry.state.sequence)]
