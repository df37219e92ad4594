"""What a table holds of its topic, committed together with the data.

Spark's checkpoint knows how far a query came, not what reached the table; lose it, or crash between the two, and rows
double. So the table itself keeps the account, below ``_eventbus/``, where readers of Parquet directories do not look:

- ``table.json`` - the table's id, its topic and its partition columns, written once;
- ``ledger/<sequence>.json`` - one entry per landed batch: its files and, per partition of the topic, the next offset.
  **The entry is the commit.** It is created exclusively, complete, and after everything it names is on disk;
- ``stage/`` - files being written. They carry no ``.parquet`` name, so not even a wildcard finds them.

Files in the table are called ``part-<table id>-<sequence>-<number>.parquet``: those of a sequence without an entry are
the leftovers of a crash, known by their name, and go before the batch is written again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple, TypeVar

import msgspec

from eventbus.errors import ConfigError, CorruptRecord, LogLocked
from spark_sinks.targets.files import Files

META = "_eventbus"
CHECKPOINT = f"{META}/checkpoint"
STAGE = f"{META}/stage"
_LEDGER = f"{META}/ledger"
_TABLE = f"{META}/table.json"
_VERSION = 1
_T = TypeVar("_T")
_DATA_NAME = re.compile(r"part-([0-9a-f]{8})-(\d{10})-(\d{5})\.parquet")
_ENTRY_NAME = re.compile(r"(\d{20})\.json")


class TableFile(msgspec.Struct, frozen=True):
    """A committed data file; ``path`` is relative to the table."""

    path: str
    rows: int
    size_bytes: int


class Entry(msgspec.Struct, frozen=True):
    """One landed batch. ``offsets`` is the next offset per partition of the topic, of *all* partitions."""

    version: int
    sequence: int
    offsets: dict[int, int]
    rows: int
    files: list[TableFile]


class Table(msgspec.Struct, frozen=True):
    """The identity of a table."""

    version: int
    id: str
    topic: str
    partition_by: list[str]


class StagedFile(NamedTuple):
    """A complete file, already synced, waiting below ``stage`` for its place in ``directory``."""

    path: str
    directory: str
    rows: int
    size_bytes: int


class Ledger:
    """The account of one table. Call it from one thread, under the table's lock."""

    def __init__(self, files: Files, table: Table, last: Entry | None) -> None:
        self._files = files
        self.table = table
        self._last = last

    @classmethod
    def open(cls, files: Files, *, topic: str, partition_by: Sequence[str], new_id: str) -> Ledger:
        """Open the ledger of a table, or found it with ``new_id`` (8 hexadecimal digits); clear what a crash left.

        Raises `ConfigError` when the table belongs to another topic or is partitioned in another way, `CorruptRecord`
        when the ledger or the table was tampered with.
        """
        files.makedirs(_LEDGER)
        if not files.exists(_TABLE):
            founded = Table(_VERSION, new_id, topic, list(partition_by))
            files.create(_TABLE, msgspec.json.format(msgspec.json.encode(founded)))
        table = _decode(files, _TABLE, Table)
        if table.topic != topic:
            raise ConfigError(f"this table holds topic {table.topic!r}, not {topic!r}: land it into its own directory")
        if table.partition_by != list(partition_by):
            raise ConfigError(
                f"this table is partitioned by {table.partition_by}, not by {list(partition_by)}: pass the same "
                f"partition_by=, or land into another directory"
            )
        ledger = cls(files, table, _last_entry(files))
        ledger.clear_leftovers()
        return ledger

    @property
    def sequence(self) -> int:
        """The sequence of the next batch."""
        return 0 if self._last is None else self._last.sequence + 1

    @property
    def offsets(self) -> dict[int, int]:
        """The next offset to land, per partition; a partition never landed is missing."""
        return {} if self._last is None else dict(self._last.offsets)

    def stage_directory(self) -> str:
        """The directory for the files of the next batch; it exists afterwards."""
        self._files.makedirs(STAGE)
        return STAGE

    def clear_leftovers(self) -> int:
        """Remove what a crash left of the next batch: staged files, and files in the table without an entry."""
        staged = self._files.files_below(STAGE, hidden=True)
        staged += [path for path in self._files.files_below(_LEDGER) if PurePosixPath(path).name.startswith(".")]
        orphans = [path for path in self._files.files_below("") if self._is_orphan(path)]
        for path in (*staged, *orphans):
            self._files.remove(path)
        for directory in sorted({_parent(path) for path in orphans}):
            # Else a power cut could bring an orphan back after its batch was written again.
            self._files.sync_dir(directory)
        return len(staged) + len(orphans)

    def _is_orphan(self, path: str) -> bool:
        match = _DATA_NAME.fullmatch(PurePosixPath(path).name)
        if match is None:
            return False
        if match[1] != self.table.id or int(match[2]) > self.sequence:
            raise CorruptRecord(
                f"{path} was landed by a ledger that is not here any more (this one: table {self.table.id}, "
                f"{self.sequence} batches): restore the directory {META}, or land into an empty directory"
            )
        return int(match[2]) == self.sequence

    def commit(self, offsets: Mapping[int, int], staged: Sequence[StagedFile]) -> Entry:
        """Move staged files into the table and enter them with the next offsets: all or, after a crash, nothing.

        ``offsets`` may name some partitions only; the others stay. Raises `LogLocked` when another process landed the
        same batch, `StorageError` when the disk refuses; then open the ledger again before going on.
        """
        sequence = self.sequence
        committed: list[TableFile] = []
        for number, file in enumerate(sorted(staged)):
            self._files.makedirs(file.directory)
            name = f"part-{self.table.id}-{sequence:010d}-{number:05d}.parquet"
            target = f"{file.directory}/{name}" if file.directory else name
            self._files.rename(file.path, target)
            committed.append(TableFile(target, file.rows, file.size_bytes))
        for directory in sorted({file.directory for file in staged}):
            self._files.sync_dir(directory)
        rows = sum(file.rows for file in committed)
        entry = Entry(_VERSION, sequence, {**self.offsets, **offsets}, rows, committed)
        data = msgspec.json.format(msgspec.json.encode(entry))
        if not self._files.create(f"{_LEDGER}/{sequence:020d}.json", data):
            raise LogLocked(f"another process landed batch {sequence} of this table: stop one of the two")
        self._last = entry
        return entry


def entries(files: Files) -> list[Entry]:
    """All entries of a ledger, in order."""
    return [_decode(files, path, Entry) for path in _entry_paths(files)]


def _last_entry(files: Files) -> Entry | None:
    paths = _entry_paths(files)
    return _decode(files, paths[-1], Entry) if paths else None


def _entry_paths(files: Files) -> list[str]:
    paths = [path for path in files.files_below(_LEDGER) if _ENTRY_NAME.fullmatch(PurePosixPath(path).name)]
    for sequence, path in enumerate(paths):
        if path != f"{_LEDGER}/{sequence:020d}.json":
            raise CorruptRecord(f"entry {sequence} is missing from {_LEDGER}: restore it from a copy of the table")
    return paths


def _decode(files: Files, path: str, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(files.read(path), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{path} is damaged ({error}): restore it from a copy of the table") from error


def _parent(path: str) -> str:
    parent = str(PurePosixPath(path).parent)
    return "" if parent == "." else parent
