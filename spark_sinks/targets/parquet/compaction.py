"""Compact a Parquet table: write a partition directory again with fewer files, then exchange it for the old one.

The new directory is written next to the table, in ``<table>__compaction``, because a wildcard like ``**/*.parquet``
also matches files in hidden directories of the table. (A table that is a mount point has no such neighbour.)

The ledger names the new directory before it is in place, so the next opening completes a compaction that crashed at
any step. A reader that lists the directory finds the old files or the new ones. A reader that listed it before the
exchange and opens a file afterwards does not find the file and must list again: plain directories have no snapshots.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from eventbus.errors import ConfigError
from spark_sinks.targets.files import Files
from spark_sinks.targets.parquet.ledger import Entry, TableFile, append, successor
from spark_sinks.targets.parts import Part, join, parent
from spark_sinks.targets.rewrite import Rewrite
from spark_sinks.targets.side_files import META, ReadLock
from spark_sinks.targets.storage import MakeFiles
from spark_sinks.targets.table_creation import fenced
from spark_sinks.targets.target import Compacted

_SUFFIX = "__compaction"


class Compaction:
    """Compacts directories of one table, for the target that has it open."""

    def __init__(
        self, table: Path, make_files: MakeFiles, reading: ReadLock, compression: str, rewrite: Rewrite
    ) -> None:
        self._table = table
        self._make_files = make_files
        self._files = make_files(table)
        self._reading = reading
        self._compression = compression
        self._rewrite = rewrite

    def compact(self, last: Entry, directory: str, paths: Sequence[str]) -> tuple[Entry, Compacted]:
        """Rewrite the files of a directory. Return the table's newest entry afterwards, and a report."""
        if foreign := sorted(set(self._files.files_below(directory)) - set(paths)):
            raise ConfigError(f"{self._table / foreign[0]} was not landed here: move it away, then compact the table")
        self._clear()  # also of what a landing that lost its table wrote since
        state = last.state
        place, made = self._place()
        made.makedirs(directory)
        columns = state.columns()
        assert columns is not None, "there are files"
        for name in state.partition_by:
            columns = columns.remove(columns.get_field_index(name))
        written = self._rewrite(
            [self._table / path for path in paths],
            columns,
            lambda number: place / directory / Part(state.id, state.sequence, state.epoch, number).name,
            self._compression,
        )
        made.sync_dir(directory)
        files = [TableFile(join(directory, each.path.name), each.rows, each.size_bytes) for each in written]
        before = sum(self._files.size(path) for path in paths)
        state = msgspec.structs.replace(state, sequence=state.sequence + 1)
        entry = successor(last, "compacted", state, files=files, swap=directory)
        with self._reading.exclusive():
            if not append(self._files, entry):
                raise fenced(str(self._table), state)
            self._swap(entry)
        self._clear()
        return entry, Compacted(len(paths), len(files), before, sum(file.size_bytes for file in files))

    def heal(self, entry: Entry) -> None:
        """Finish the compaction that an opening found, and remove what is left of any."""
        if entry.swap is not None:
            with self._reading.exclusive():
                self._swap(entry)
        self._clear()

    def _swap(self, entry: Entry) -> None:
        assert entry.swap is not None
        directory, (place, made) = entry.swap, self._place()
        made.makedirs(parent(directory))  # cleared, if a crash came after that
        if not self._files.exists(entry.files[0].path):
            self._files.exchange(directory, str(place / directory))
        # Before the old files go: else a power cut could undo the exchange and not their removal.
        self._files.sync_dir(parent(directory))
        made.sync_dir(parent(directory))

    def _clear(self) -> None:
        place, made = self._place()
        made.remove(*made.files_below("", hidden=True))
        self._make_files(place.parent).remove_empty("", place.name)

    def _place(self) -> tuple[Path, Files]:
        """Return the directory for new partition directories. It must be on the table's disk, for `rename`."""
        beside = self._table.with_name(self._table.name + _SUFFIX)
        if self._table.stat().st_dev != self._table.parent.stat().st_dev:
            beside = self._table / META / "compaction"
        return beside, self._make_files(beside)
