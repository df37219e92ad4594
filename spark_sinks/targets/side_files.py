"""The files of a table besides its rows: staged files, a lock, and refused records."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal

from eventbus.errors import ConfigError, LogLocked, StorageError
from spark_sinks.shape import quarantine_schema
from spark_sinks.targets.files import DirectoryLock, Files, disk_errors, try_lock
from spark_sinks.targets.parts import Epochs, Part, join, parent, part_of
from spark_sinks.targets.place import Place, table_place, text_of
from spark_sinks.targets.storage import MakeFiles, parquet_file
from spark_sinks.targets.target import QUARANTINE_SUFFIX, SinkState, StagedFile

if TYPE_CHECKING:
    import pyarrow as pa

META = "_eventbus"
_PROBE = f"{META}/conditional-puts"
Kind = Literal["Parquet files", "Delta", "Iceberg"]
_MARKS: dict[Kind, tuple[str, str]] = {
    "Parquet files": (f"{META}/ledger/*.json", ""),
    "Delta": ("_delta_log/*", "delta:"),
    "Iceberg": ("metadata/*.metadata.json", "iceberg:"),
}
"""The files in the directory of each kind, and the prefix of its URL."""


class Stage:
    """Staged files: a directory for each batch, hidden from readers of the table.

    ``shared``: a directory that other tables may use too, instead of the table's own.
    """

    def __init__(self, table: Place, shared: str | None, make_files: MakeFiles) -> None:
        self.root = table_place(shared) if shared else table / META / "stage"
        if _store_of(self.root) != _store_of(table):
            raise ConfigError(
                f"stage={str(self.root)!r} is not in the store of {table}. Files cannot be moved between stores in one "
                f"step. Leave stage= out, or choose a place in the same bucket."
            )
        self._is_shared = shared is not None
        self._files = make_files(self.root)

    def directory(self, state: SinkState) -> str:
        """Return the directory for the next batch; it exists afterwards."""
        name = self._name(state)
        self._files.makedirs(name)
        return text_of(self.root / name)

    def clear(self, id: str) -> None:
        """Remove what landings of this table left."""
        prefix = f"{id}-" if self._is_shared else ""
        self._files.remove(*(path for path in self._files.files_below("", hidden=True) if path.startswith(prefix)))
        self._files.remove_empty("", prefix)

    def done(self, state: SinkState) -> None:
        """Remove the files of failed attempts of tasks after the commit. An error of the disk does not matter here."""
        with contextlib.suppress(StorageError):
            self._files.remove(*self._files.files_below(self._name(state), hidden=True))
            self._files.remove_empty("", self._name(state))

    def _name(self, state: SinkState) -> str:
        return f"{state.id}-{state.epoch:06d}-{state.sequence:010d}"


class Quarantine:
    """Refused records: Parquet files in a directory next to the table, counted by the table's account.

    A file counts iff ``quarantine_from <= its sequence < sequence`` of the account: one commit decides for rows and
    refused records.
    """

    def __init__(self, table: Place, make_files: MakeFiles) -> None:
        self.root = table.with_name(table.name + QUARANTINE_SUFFIX)
        self._files = make_files(self.root)

    def take(self, staged: Sequence[StagedFile], state: SinkState) -> list[str]:
        """Move the files of the next commit in; their names. Empty ones stay out."""
        return move_parts(self._files, "", [file for file in sorted(staged) if file.rows], state)

    def give_up(self, state: SinkState) -> None:
        """Remove the files of a commit that was refused."""
        remove_parts(self._files, "", state)

    def clear(self, state: SinkState, epochs: Epochs) -> None:
        """Remove files that never counted, and those that have been dealt with."""
        dead = [path for path in self._paths(state) if not self._counts(path, state, epochs)]
        self._files.remove(*dead)
        if dead:
            self._files.sync_dir("")

    def read(self, state: SinkState, epochs: Epochs) -> Iterator[pa.RecordBatch]:
        """The refused records that wait."""
        for path in self._paths(state):
            if self._counts(path, state, epochs):
                with parquet_file(self.root / path) as file:
                    for batch in file.iter_batches():
                        yield batch.cast(quarantine_schema())

    def _paths(self, state: SinkState) -> list[str]:
        parts = ((path, part_of(path)) for path in self._files.files_below(""))
        return [path for path, part in parts if part is not None and part.id == state.id]

    def _counts(self, path: str, state: SinkState, epochs: Epochs) -> bool:
        part = part_of(path)
        return part is not None and state.quarantine_from <= part.sequence and epochs.counts(part, state.sequence)


def move_parts(files: Files, root: str, staged: Sequence[StagedFile], state: SinkState) -> list[str]:
    """Move staged files to their places below ``root`` in a table, durably, and return their paths."""
    directories = [join(root, file.directory) if file.directory else root for file in staged]
    for directory in sorted({*directories}):
        files.makedirs(directory)
    names = [Part(state.id, state.sequence, state.epoch, number).name for number in range(len(staged))]
    paths = [join(directory, name) for directory, name in zip(directories, names, strict=True)]
    if files.parallel == 1 or len(staged) == 1:
        for file, path in zip(staged, paths, strict=True):
            files.rename(file.path, path)
    else:
        with ThreadPoolExecutor(files.parallel) as threads:
            list(threads.map(files.rename, (file.path for file in staged), paths))
    for directory in sorted({*directories}):
        files.sync_dir(directory)
    return paths


def remove_parts(files: Files, directory: str, state: SinkState) -> None:
    """Remove the files of this landing's next commit, which was refused. What resists is left to the next opening."""
    with contextlib.suppress(StorageError):
        parts = ((path, part_of(path)) for path in files.files_below(directory))
        mine = (state.id, state.sequence, state.epoch)
        files.remove(*(path for path, part in parts if part is not None and part[:3] == mine))


def check_kind(directory: Place, kind: Kind, files: Files) -> None:
    """Raise `ConfigError` where a table of another kind is: a reader of directories would see the rows of both."""
    for other, (mark, prefix) in _MARKS.items():
        if other != kind and any(PurePosixPath(path).match(mark) for path in files.files_below(parent(mark))):
            raise ConfigError(
                f"{directory} is a table of {other}, not of {kind}: say {prefix}{directory}, or another directory"
            )


class TableLock:
    """The lock of a table on this machine, held from opening to closing. Opening again with it is fine.

    An object store has none: a lock that outlives its landing would need a clock. There the second landing takes the
    table over, and conditional puts fence the first.
    """

    def __init__(self, directory: Place, files: Files) -> None:
        self._directory = directory
        self._files = files
        self._held: DirectoryLock | None = None

    def acquire(self) -> None:
        """Raises `LogLocked` when another living landing holds the table. The directory must exist.

        Raises `ConfigError` for an object store that ignores the condition of a put, as some old ones do.
        """
        if not isinstance(self._directory, Path):
            if self._files.create(_PROBE, b"") and self._files.create(_PROBE, b""):
                raise ConfigError(
                    f"{self._directory} cannot hold a table. Its store ignores the condition of a put "
                    f"(If-None-Match), so two landings could write the same commit. Upgrade the store."
                )
        elif self._held is None:
            self._held = DirectoryLock(self._directory / META / "lock").__enter__()

    def release(self) -> None:
        if self._held is not None:
            self._held.__exit__()
            self._held = None


class ReadLock:
    """Keeps compaction and our own readers of a Parquet table apart; commits need none, they only add."""

    def __init__(self, directory: Place) -> None:
        self._path = directory / META / "reading"

    @contextlib.contextmanager
    def shared(self) -> Generator[None]:
        """Hold the lock while rows are read. A read-only directory, Windows and object stores have none."""
        if not isinstance(self._path, Path):  # nothing is compacted there
            yield
            return
        try:
            file = self._path.open("a+")
        except OSError:
            yield
            return
        with file:
            if os.name != "nt":
                import fcntl

                fcntl.flock(file, fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Generator[None]:
        """Hold the lock while files are replaced. Raises `LogLocked` while the table is being read."""
        assert isinstance(self._path, Path), "nothing is compacted in an object store"
        with disk_errors(self._path, "open"):
            file = self._path.open("a+")
        with file:
            if not try_lock(file):
                raise LogLocked(f"{self._path.parent.parent} is being read (by verify?): compact it afterwards")
            yield


def _store_of(place: Place) -> str:
    return "" if isinstance(place, Path) else place.bucket
