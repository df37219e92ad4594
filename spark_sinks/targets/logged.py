"""`LoggedTarget`: tables whose own log lists their files, and holds the account as well.

Staged files are renamed to their place, then one commit of the log adds them together with the account. A crash leaves
the old state or the new one; files that it left are not part of the table, and are removed at the next opening.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from eventbus.errors import ConfigError, EventBusError, StorageError
from spark_sinks.names import IN_FILES
from spark_sinks.shape import Lack, quarantine_schema
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.deleted_keys import ends_of, without_deleted
from spark_sinks.targets.parts import Epochs, Part, part_of, sorts_below
from spark_sinks.targets.place import Place, place_of
from spark_sinks.targets.rewrite import write_file
from spark_sinks.targets.side_files import (
    META,
    Kind,
    Quarantine,
    Stage,
    TableLock,
    check_kind,
    move_parts,
    remove_parts,
)
from spark_sinks.targets.storage import MakeFiles, parquet_file
from spark_sinks.targets.table_creation import check_new_table, fenced, new_account, new_id, take_over
from spark_sinks.targets.target import Batch, Compacted, FileCount, NewTable, SinkState, StagedFile, advanced

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 5
"""The number of tries of a commit, if commits of others come first, say a user's OPTIMIZE."""


class LostRace(Exception):
    """Raised when another process committed to the table since it was refreshed."""


class Placed(NamedTuple):
    """A file in its place: ``path`` below the table, and the partition directory that speaks for its rows."""

    path: str
    directory: str
    size_bytes: int


class TableLog(Protocol):
    """The log of one table, as a table format's library keeps it.

    All methods but `exists`, `refresh` and `create` work on what the table was when it was refreshed last. **Those that
    commit raise `LostRace` when anybody committed since**: so what was read before still holds when they succeed. Other
    errors are `StorageError`; whether the commit happened is then not known.
    """

    data: str
    """The directory of data files below the table; ``""``: the table itself."""
    merges: bool
    """True if `merge` is supported."""

    def exists(self) -> bool: ...
    def refresh(self) -> None: ...
    def create(self, state: SinkState, epochs: Epochs) -> None: ...
    def take_over(self, state: SinkState, epochs: Epochs) -> None:
        """Commit an account of a new epoch."""
        ...

    def account(self) -> tuple[SinkState, Epochs]:
        """Return the account. Raises `ConfigError` for a table that no landing made."""
        ...

    def fits(self, columns: pa.Schema) -> bool:
        """Return True if `commit` takes rows with these columns, False if `fit` must be called first.

        Raises `ConfigError` for columns that the format has no type for.
        """
        ...

    def fit(self, state: SinkState, columns: pa.Schema) -> None: ...
    def commit(self, state: SinkState, files: Sequence[Placed], columns: pa.Schema, now_ms: int) -> None: ...
    def merge(self, state: SinkState, files: Sequence[StagedFile], columns: pa.Schema) -> None:
        """Put rows in their place by ``state.upsert``; the files stay where they are."""
        ...

    def compact(self, state: SinkState, directory: str) -> None:
        """Rewrite the files of one partition as few; the account stays unchanged."""
        ...

    def files(self) -> dict[str, list[int]]:
        """Return the sizes of the files by partition directory."""
        ...

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]: ...
    def newest(self) -> list[str]:
        """Files of the newest commit, to be synced: paths below the table."""
        ...

    def close(self) -> None: ...


class LoggedTarget:
    """A table in a directory or an object store, with its own log."""

    is_partitioned = True
    keeps_nan = True
    names = IN_FILES

    def __init__(
        self,
        name: str,
        kind: Kind,
        directory: Place,
        options: TargetOptions,
        make_log: Callable[[], TableLog],
        make_files: MakeFiles,
        *,
        lacks: frozenset[Lack],
        keeps_partition_columns: bool = False,
    ) -> None:
        self.name = name
        self.lacks = lacks
        self.keeps_partition_columns = keeps_partition_columns
        self._kind: Kind = kind
        self._directory = directory
        self._make_log = make_log
        self._log: TableLog | None = None
        self._files = make_files(directory)
        self._stage = Stage(directory, options.stage, make_files)
        self._quarantine = Quarantine(directory, make_files)
        self._account: tuple[SinkState, Epochs] | None = None
        self.lock = TableLock(directory, self._files)

    # -- landing ------------------------------------------------------------------------------------------------------

    def limits(self, upsert: tuple[str, ...]) -> None:
        return None

    def open(self, new_table: NewTable, now_ms: int) -> SinkState:
        self._account = None
        check_kind(self._directory, self._kind, self._files)
        self._files.makedirs(META)
        self.lock.acquire()
        try:
            self._log = self._log or self._make_log()
            if new_table.upsert and not self._log.merges:
                raise ConfigError(f"{self.name} is only added to: upsert= needs delta: or a database")
            state, epochs = self._take_over(self._log, new_table, now_ms)
            self._clear(self._log, state, epochs)
        except BaseException:
            self.close()
            raise
        self._account = state, epochs
        return state

    def stage_directory(self) -> str:
        return self._stage.directory(self._opened()[1])

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        log, last, epochs = self._opened()
        state = advanced(last, batch, now_ms)
        files = sorted(file for file in batch.files if file.rows)
        self._account = None  # until it is certain what the table holds
        try:
            rejected, state = self._settled(batch, files, last, state, epochs)
            self._quarantine.take(rejected, last)
            log.refresh()
            if len(batch.columns) and not log.fits(batch.columns):
                self._committed(log, last, None, lambda: log.fit(last, batch.columns))
            if last.upsert and files:
                self._committed(log, last, state, lambda: log.merge(state, files, batch.columns))
            else:
                placed = self._place(log, files, last)
                self._committed(log, last, state, lambda: log.commit(state, placed, batch.columns, now_ms))
        except EventBusError:
            self._give_up(log, last)
            raise
        self._account = state, epochs
        self._stage.done(last)
        if state.quarantine_from > last.quarantine_from:
            with contextlib.suppress(StorageError):  # they do not count any more; the next opening removes them
                self._quarantine.clear(state, epochs)
        return state

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        log, last, epochs = self._opened()
        if before is not None and not last.partition_by:
            raise ConfigError(f"{self.name} has no partitions: compact it without before=")
        self._account = None
        log.refresh()
        groups = {directory: sizes for directory, sizes in log.files().items() if len(sizes) >= max(min_files, 2)}
        groups = {directory: sizes for directory, sizes in groups.items() if sorts_below(directory, before)}
        for directory in sorted(groups):
            self._committed(log, last, None, partial(log.compact, last, directory))
        after = log.files()
        self._account = last, epochs
        now = [size for directory in groups for size in after.get(directory, [])]
        was = [size for sizes in groups.values() for size in sizes]
        return Compacted(len(was), len(now), sum(was), sum(now))

    def close(self) -> None:
        self._account = None
        log, self._log = self._log, None
        if log is not None:
            log.close()
        self.lock.release()

    # -- looking at it ------------------------------------------------------------------------------------------------

    def state(self) -> SinkState | None:
        with self._look() as log:
            return log.account()[0] if log is not None else None

    def files(self) -> FileCount | None:
        with self._look() as log:
            sizes = [size for sizes in log.files().values() for size in sizes] if log else []
        return FileCount(len(sizes), sum(sizes))

    def strangers(self) -> list[str]:
        return []

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._look() as log:
            if log is not None and log.account()[0].schema:
                yield from log.read(columns)

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        with self._look() as log:
            account = log.account() if log is not None else None
        if account is not None:
            yield from self._quarantine.read(*account)

    @contextlib.contextmanager
    def _look(self) -> Generator[TableLog | None]:
        """Open the present table. The log that a landing checked last, and commits to, stays unchanged."""
        log = self._make_log()
        try:
            if log.exists():
                log.refresh()
                yield log
            else:
                yield None
        finally:
            log.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[TableLog, SinkState, Epochs]:
        if self._account is None or self._log is None:
            raise ConfigError(f"{self.name} is not open: open it, and again after an error")
        return self._log, *self._account

    def _take_over(self, log: TableLog, new_table: NewTable, now_ms: int) -> tuple[SinkState, Epochs]:
        for _ in range(_TRIES):
            try:
                if not log.exists():
                    state = take_over(new_account(new_table, new_id(), now_ms), new_table)
                    epochs = Epochs({}).begun(state.epoch, state.sequence)
                    log.create(state, epochs)
                else:
                    log.refresh()
                    state, epochs = log.account()
                    check_new_table(self.name, state, new_table)
                    state = take_over(state, new_table)
                    epochs = epochs.begun(state.epoch, state.sequence)
                    log.take_over(state, epochs)
            except LostRace:
                continue
            self._sync(log)
            return state, epochs
        raise StorageError(f"{self.name}: others committed before each of {_TRIES} tries to open it: try again")

    def _clear(self, log: TableLog, state: SinkState, epochs: Epochs) -> None:
        """Remove files that no commit will ever name. Those that one named once are a matter of the format's vacuum."""
        self._stage.clear(state.id)
        parts = ((path, part_of(path)) for path in self._files.files_below(log.data))
        mine = ((path, part) for path, part in parts if part is not None and part.id == state.id)
        self._files.remove(*(path for path, part in mine if not epochs.counts(part, state.sequence)))
        self._quarantine.clear(state, epochs)

    def _settled(
        self, batch: Batch, files: Sequence[StagedFile], last: SinkState, state: SinkState, epochs: Epochs
    ) -> tuple[Sequence[StagedFile], SinkState]:
        """The refused records of a commit, and its account. A tombstone removes older
        records of its key from the quarantine, whose rest is then written again."""
        if not (last.upsert and state.rejected and (ends := ends_of(files))):
            return batch.rejected, state
        waiting = () if batch.replaces_quarantine else self._quarantine.read(last, epochs)
        kept, settled = without_deleted(itertools.chain(waiting, _rows_of(batch.rejected)), ends)
        if not settled:
            return batch.rejected, state
        path = place_of(self._stage.directory(last)) / f"waiting-{new_id()}.staged"
        state = msgspec.structs.replace(state, quarantine_from=last.sequence)
        return [write_file(path, "", kept, "zstd")] if kept else [], state

    def _place(self, log: TableLog, files: Sequence[StagedFile], last: SinkState) -> list[Placed]:
        paths = move_parts(self._files, log.data, files, last)
        return [Placed(path, file.directory, file.size_bytes) for path, file in zip(paths, files, strict=True)]

    def _committed(self, log: TableLog, last: SinkState, state: SinkState | None, commit: Callable[[], None]) -> None:
        """Commit to the table of ``last``, unless another landing has it. ``state``: the account of the commit.

        Raises `ProducerFenced`, `StorageError`.
        """
        error: Exception | None = None
        for _ in range(_TRIES):
            log.refresh()
            now, epochs = log.account()
            if state is not None and _happened(last, now, epochs):
                return self._sync(log)  # it was committed, and failed afterwards, say at a checkpoint of the log
            if now.epoch != last.epoch:
                raise fenced(self.name, last)
            if error is not None and not isinstance(error, LostRace):
                raise error
            try:
                commit()
                return self._sync(log)
            except (LostRace, StorageError) as failure:
                error = failure
        raise StorageError(f"{self.name}: others committed before each of {_TRIES} tries: try again") from error

    def _sync(self, log: TableLog) -> None:
        """Make the newest commit survive a power cut: the formats' libraries leave that to the operating system."""
        log.refresh()
        paths = log.newest()
        for path in paths:
            self._files.sync_file(path)
        for directory in sorted({path.rpartition("/")[0] for path in paths}):
            self._files.sync_dir(directory)

    def _give_up(self, log: TableLog, last: SinkState) -> None:
        """Remove the files of a commit that was refused, if it is certain that it was."""
        with contextlib.suppress(EventBusError):
            log.refresh()
            if not _happened(last, *log.account()):
                remove_parts(self._files, log.data, last)
                self._quarantine.give_up(last)


def _rows_of(files: Sequence[StagedFile]) -> Iterator[pa.RecordBatch]:
    for each in files:
        with parquet_file(each.path) as file:
            for batch in file.iter_batches():
                yield batch.cast(quarantine_schema())


def _happened(last: SinkState, now: SinkState, epochs: Epochs) -> bool:
    """Return True if the account contains the commit after ``last``."""
    return epochs.counts(Part(last.id, last.sequence, last.epoch, 0), now.sequence)
