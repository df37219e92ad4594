"""``console:``: the first rows of each batch, to see what a landing does. Nothing is kept."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from eventbus.errors import ConfigError
from spark_sinks.names import IN_FILES
from spark_sinks.shape import TOMBSTONE, Lack
from spark_sinks.targets.stages import Stage
from spark_sinks.targets.table_creation import new_account, new_id, take_over
from spark_sinks.targets.target import Batch, Compacted, FileCount, NewTable, SinkState, StagedFile, advanced

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_sinks.targets.choose import TargetOptions

SHOWN_ROWS = 20
_CELL = 40


def open_console(options: TargetOptions) -> ConsoleTarget:
    """Return the target that prints."""
    return ConsoleTarget(stage=options.stage)


class ConsoleTarget:
    """Print `SHOWN_ROWS` rows of each batch to standard output: as a table on a terminal, else lines with tabs.

    The account is in memory only: the next landing starts at ``starting_offsets``, not where this landing ended.
    """

    name = "console:"
    is_partitioned = False
    keeps_partition_columns = False
    keeps_nan = True
    names = IN_FILES
    lacks: frozenset[Lack] = frozenset()

    def __init__(self, *, stage: str | None = None, out: TextIO | None = None) -> None:
        self._stage = Stage(stage)
        self._out = out
        self._state: SinkState | None = None

    def limits(self, upsert: tuple[str, ...]) -> None:
        return None

    def open(self, new_table: NewTable, now_ms: int) -> SinkState:
        if self._state is None:
            self._say(f"console: {new_table.topic} is only shown, and the landed offsets are not stored")
            self._state = new_account(new_table, new_id(), now_ms)
        self._state = take_over(self._state, new_table)
        return self._state

    def stage_directory(self) -> str:
        return self._stage.directory(self._opened())

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        state = self._opened()
        following = advanced(state, batch, now_ms)
        self._show(f"{state.topic}: batch {state.sequence}", batch.files)
        self._show(f"{state.topic}: refused in batch {state.sequence}", batch.rejected)
        self._stage.clear(state)
        self._state = following
        return following

    def close(self) -> None:
        if self._state is not None:
            self._stage.clear(self._state)

    def state(self) -> SinkState | None:
        return self._state

    def files(self) -> FileCount | None:
        return None

    def strangers(self) -> list[str]:
        return []

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        raise ConfigError("console: keeps nothing, so there is nothing to read: land into a table")

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        raise ConfigError("console: keeps nothing, so there is nothing to read: land into a table")

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        raise ConfigError("console: keeps nothing, so there is nothing to compact: land into a table of files")

    def _opened(self) -> SinkState:
        if self._state is None:
            raise ConfigError("console: is not open: open it first")
        return self._state

    # -- printing -----------------------------------------------------------------------------------------------------

    def _show(self, title: str, files: Sequence[StagedFile]) -> None:
        total = sum(file.rows for file in files)
        if not total:
            return
        names, rows = _first_rows(files)
        title = f"{title}, {total:,} rows" + (f", the first {len(rows)}" if total > len(rows) else "")
        from eventbus.cli.output import Output

        out = Output(stdout=self._file)
        if out.rich:
            out.table(names, rows, title=title)
            self._say("")
        else:
            lines = [title, *("\t".join(each) for each in (names, *rows))]
            self._say("\n".join(lines))

    def _say(self, text: str) -> None:
        print(text, file=self._file, flush=True)

    @property
    def _file(self) -> TextIO:
        return self._out or sys.stdout


def _first_rows(files: Sequence[StagedFile]) -> tuple[list[str], list[list[str]]]:
    """Names and cells of the first rows; a column that only some files have is there too."""
    import pyarrow.parquet as pq

    names: dict[str, None] = {}
    found: list[dict[str, Any]] = []
    for file in files:
        for batch in pq.ParquetFile(file.path).iter_batches(SHOWN_ROWS):
            names.update(dict.fromkeys(batch.schema.names))
            found += batch.slice(0, SHOWN_ROWS - len(found)).to_pylist()
            if len(found) >= SHOWN_ROWS:
                break
        if len(found) >= SHOWN_ROWS:
            break
    shown = [name for name in names if name != TOMBSTONE]
    return shown, [[_cell(row.get(name)) for name in shown] for row in found]


def _cell(value: Any) -> str:
    """On one line, and not too long."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    text = "".join(each if each.isprintable() else " " for each in str(value))
    return text if len(text) <= _CELL else f"{text[: _CELL - 1]}…"
