"""`DeltaTarget`: staged files are renamed into the table and added to its log, together with the account.

Files that no commit of the log names are not part of a Delta table, so a crash leaves the old state or the new one;
what it left of files goes at the next opening. Tables with ``upsert`` are merged instead, which reads the batch here.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from eventbus.errors import ConfigError, EventBusError, StorageError
from spark_sinks.targets.beside import META, MakeFiles, Quarantine, Stage, TableLock, remove_parts
from spark_sinks.targets.choose import TargetOptions
from spark_sinks.targets.delta.actions import add_action, delta_columns
from spark_sinks.targets.delta.log import DeltaLog, LostRace
from spark_sinks.targets.delta.upsert import batch_rows
from spark_sinks.targets.files import LocalFiles
from spark_sinks.targets.founding import check_founding, fenced, found, new_id, take_over
from spark_sinks.targets.parts import Epochs, Part, join, part_of, sorts_below
from spark_sinks.targets.target import Batch, Compacted, FileCount, Founding, SinkState, advanced

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake.transaction import AddAction

_TRIES = 5
"""How often a commit is tried that somebody else's, say a user's OPTIMIZE, came before."""


class DeltaTarget:
    """A Delta table in a local directory."""

    is_partitioned = True

    def __init__(
        self,
        directory: Path,
        options: TargetOptions,
        *,
        make_files: MakeFiles = LocalFiles,
        make_log: Callable[[Path], DeltaLog] = DeltaLog,
    ) -> None:
        self._directory = directory
        self._compression = options.compression
        self._files = make_files(directory)
        self._make_log = make_log
        self._log = make_log(directory)
        self._stage = Stage(directory, options.stage, make_files)
        self._quarantine = Quarantine(directory, make_files)
        self._account: tuple[SinkState, Epochs] | None = None
        self.lock = TableLock(directory)

    @property
    def name(self) -> str:
        return f"delta:{self._directory}"

    # -- landing ------------------------------------------------------------------------------------------------------

    def open(self, founding: Founding, now_ms: int) -> SinkState:
        self._account = None
        self._files.makedirs(META)
        self.lock.acquire()
        try:
            state, epochs = self._take_over(founding, now_ms)
            self._clear(state, epochs)
        except BaseException:
            self.close()
            raise
        self._account = state, epochs
        return state

    def stage_directory(self) -> str:
        return self._stage.directory(self._opened()[0])

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        last, epochs = self._opened()
        state = advanced(last, batch, now_ms)
        self._account = None  # until it is certain what the table holds
        try:
            self._quarantine.take(batch.rejected, last)
            if last.upsert and any(file.rows for file in batch.files):
                self._merge(last, state, batch)
            else:
                self._append(last, state, batch, now_ms)
        except EventBusError:
            self._give_up(last)
            raise
        self._account = state, epochs
        self._stage.done(last)
        if batch.replaces_quarantine:
            with contextlib.suppress(StorageError):  # they do not count any more; the next opening removes them
                self._quarantine.clear(state, epochs)
        return state

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        last, epochs = self._opened()
        if before is not None and not last.partition_by:
            raise ConfigError(f"{self.name} has no partitions: compact it without before=")
        self._account = None
        self._log.refresh()
        files = self._log.files()
        groups = {directory: sizes for directory, sizes in files.items() if len(sizes) >= max(min_files, 2)}
        groups = {directory: sizes for directory, sizes in groups.items() if sorts_below(directory, before)}
        for directory in sorted(groups):
            self._committed(last, None, partial(self._log.compact, last, directory))
        self._log.refresh()
        after = self._log.files()
        self._account = last, epochs
        now = [size for directory in groups for size in after.get(directory, [])]
        was = [size for sizes in groups.values() for size in sizes]
        return Compacted(len(was), len(now), sum(was), sum(now))

    def close(self) -> None:
        self._account = None
        self.lock.release()

    # -- looking at it ------------------------------------------------------------------------------------------------

    def state(self) -> SinkState | None:
        log = self._look()
        return log and log.account()[0]

    def files(self) -> FileCount | None:
        log = self._look()
        sizes = [size for sizes in log.files().values() for size in sizes] if log else []
        return FileCount(len(sizes), sum(sizes))

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        log = self._look()
        if log is not None and log.columns() is not None:
            yield from log.read(columns)

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        log = self._look()
        if log is not None:
            yield from self._quarantine.read(*log.account())

    def _look(self) -> DeltaLog | None:
        """The table as it is now; for a landing, what it checked last stays what it commits on."""
        log = self._make_log(self._directory)
        if not log.exists():
            return None
        log.refresh()
        return log

    # -- steps --------------------------------------------------------------------------------------------------------

    def _opened(self) -> tuple[SinkState, Epochs]:
        if self._account is None:
            raise ConfigError(f"{self.name} is not open: open it, and again after an error")
        return self._account

    def _take_over(self, founding: Founding, now_ms: int) -> tuple[SinkState, Epochs]:
        while True:
            try:
                if not self._log.exists():
                    state = take_over(found(founding, new_id(), now_ms))
                    epochs = Epochs({}).begun(state.epoch, state.sequence)
                    self._log.create(state, epochs)
                else:
                    self._log.refresh()
                    state, epochs = self._log.account()
                    check_founding(self.name, state, founding)
                    state = take_over(state)
                    epochs = epochs.begun(state.epoch, state.sequence)
                    self._log.commit(state, [], None, epochs)
            except LostRace:
                continue
            self._sync_log()
            return state, epochs

    def _clear(self, state: SinkState, epochs: Epochs) -> None:
        """Remove files that no commit will ever name. Those that one named once are a matter of VACUUM."""
        self._stage.clear(state.id)
        for path in self._files.files_below(""):
            part = part_of(path)
            if part is not None and part.id == state.id and not epochs.counts(part, state.sequence):
                self._files.remove(path)
        self._quarantine.clear(state, epochs)

    def _append(self, last: SinkState, state: SinkState, batch: Batch, now_ms: int) -> None:
        adds: list[AddAction] = []
        files = sorted(file for file in batch.files if file.rows)
        for directory in sorted({file.directory for file in files}):
            self._files.makedirs(directory)
        for number, file in enumerate(files):
            path = join(file.directory, Part(state.id, last.sequence, state.epoch, number).name)
            self._files.rename(file.path, path)
            adds.append(add_action(self._directory, path, file.directory, now_ms))
        for directory in sorted({file.directory for file in files}):
            self._files.sync_dir(directory)
        first = self._fit(last, batch.columns)
        self._committed(last, state, lambda: self._log.commit(state, adds, first))

    def _merge(self, last: SinkState, state: SinkState, batch: Batch) -> None:
        first = self._fit(last, batch.columns)
        if first is not None:
            self._committed(last, None, lambda: self._log.commit(last, [], first))
        rows = batch_rows(batch.files, batch.columns)
        self._committed(last, state, lambda: self._log.merge(state, rows, self._compression))

    def _fit(self, last: SinkState, columns: pa.Schema) -> pa.Schema | None:
        """Bring the table's columns up to these. Where it has none yet: these, for the commit of the first rows."""
        if not len(columns):
            return None
        columns = delta_columns(columns)
        self._log.refresh()
        has = self._log.columns()
        if has is None:
            return columns
        new = [field for field in columns if field.name not in has.names]
        if any(has.field(field.name).type != field.type for field in columns if field not in new):
            self._committed(last, None, lambda: self._log.rewrite(last, columns, self._compression))
        elif new:
            self._committed(last, None, lambda: self._log.add_columns(last, new))
        return None

    def _committed(self, last: SinkState, state: SinkState | None, commit: Callable[[], None]) -> None:
        """Commit to the table of ``last``, unless another landing has it. ``state``: the account of the commit.

        Raises `ProducerFenced`, `StorageError`.
        """
        error: Exception | None = None
        for _ in range(_TRIES):
            self._log.refresh()
            now, epochs = self._log.account()
            if state is not None and epochs.counts(Part(last.id, last.sequence, last.epoch, 0), now.sequence):
                return self._sync_log()  # it was committed, and failed afterwards, say at a checkpoint of the log
            if now.epoch != last.epoch:
                raise fenced(self.name, last)
            if error is not None and not isinstance(error, LostRace):
                raise error
            try:
                commit()
                return self._sync_log()
            except (LostRace, StorageError) as failure:
                error = failure
        raise StorageError(f"{self.name}: others committed before each of {_TRIES} tries: try again") from error

    def _sync_log(self) -> None:
        """Make the newest commit survive a power cut: deltalake leaves that to the operating system."""
        self._log.refresh()
        self._files.sync_file(f"_delta_log/{self._log.version():020d}.json")
        self._files.sync_dir("_delta_log")

    def _give_up(self, last: SinkState) -> None:
        """Remove the files of a commit that was refused, if it is certain that it was."""
        with contextlib.suppress(EventBusError):
            self._log.refresh()
            now, epochs = self._log.account()
            if not epochs.counts(Part(last.id, last.sequence, last.epoch, 0), now.sequence):
                remove_parts(self._files, last)
                self._quarantine.give_up(last)
