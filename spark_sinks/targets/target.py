"""The seam between a landing and where it lands: one commit of files, quarantine, columns and offsets.

Tasks write staged Parquet files, whatever the target; `Target.commit` makes them part of the table together with the
offsets that they reach. **What the target says of the offsets is the truth**: a landing begins there, and nothing else
is kept anywhere.
"""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from eventbus.errors import CorruptRecord
from spark_sinks.names import NameRule
from spark_sinks.shape import COORDINATES, DATE, KEY, Lack

if TYPE_CHECKING:
    import pyarrow as pa

QUARANTINE_SUFFIX = "__quarantine"
"""The suffix of the name of the table of refused records."""


class NewTable(NamedTuple):
    """The options that a table is created with. Each later landing must have them too, or `ConfigError` is raised.

    ``upsert``: the columns of the key; without them every record is a row. ``transformed``: a row need not be one
    record. ``started``: the offset that each partition is landed from; other partitions start at the beginning.
    ``topic_id``: the id of the topic, if known. A topic that is created again has another id.
    """

    topic: str
    partition_by: tuple[str, ...] = ()
    upsert: tuple[str, ...] = ()
    transformed: bool = False
    started: Mapping[int, int] = {}
    topic_id: str = ""


VERSION = 1


class _Version(msgspec.Struct):
    version: int = VERSION


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """The account of a table. It changes with the rows, in one step.

    ``sequence`` counts commits and names the next one; ``epoch`` is raised by each landing that opens the table, and
    fences the one before. ``offsets``: the next offset to land of every partition. ``rows`` were landed and
    ``rejected`` refused in all. Quarantine files of commits below ``quarantine_from`` have been dealt with.
    ``schema``: the columns (Arrow IPC), as `columns` reads them; empty before the first rows.
    """

    id: str
    topic: str
    partition_by: tuple[str, ...] = ()
    upsert: tuple[str, ...] = ()
    transformed: bool = False
    started: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    topic_id: str = ""
    epoch: int = 0
    sequence: int = 0
    offsets: dict[int, int] = msgspec.field(default_factory=dict[int, int])
    rows: int = 0
    rejected: int = 0
    quarantine_from: int = 0
    committed_at_ms: int = 0
    schema: bytes = b""
    version: int = VERSION

    def columns(self) -> pa.Schema | None:
        """The columns of the table, `shape.DATE` and other partition columns among them; None before the first rows."""
        import pyarrow as pa

        return pa.ipc.read_schema(pa.py_buffer(self.schema)) if self.schema else None

    def value_columns(self) -> pa.Schema | None:
        """Return the columns that are fields of values; None before the first rows and after a transform."""
        import pyarrow as pa

        columns = None if self.transformed else self.columns()
        if columns is None:
            return None
        made_here = {*COORDINATES, KEY} | ({DATE} if DATE in self.partition_by else set())
        return pa.schema([field for field in columns if field.name not in made_here])


class StagedFile(NamedTuple):
    """A complete Parquet file, synced, at an absolute ``path`` below `Target.stage_directory`.

    ``directory``: its partition directory (``dt=2024-02-29``).
    """

    path: str
    directory: str
    rows: int
    size_bytes: int


class Batch(NamedTuple):
    """The content of one commit. ``offsets`` may name some partitions only; other partitions stay unchanged.

    ``columns``: of the table from now on, wider than before or the same. ``replaces_quarantine``: ``rejected`` is all
    that is left of the quarantine.
    """

    offsets: Mapping[int, int]
    files: Sequence[StagedFile]
    rejected: Sequence[StagedFile]
    columns: pa.Schema
    replaces_quarantine: bool = False


class Compacted(NamedTuple):
    """The result of a compaction: files before and after, in the partitions that it changed."""

    files_before: int
    files_after: int
    size_bytes_before: int
    size_bytes_after: int


class FileCount(NamedTuple):
    """Committed data files, without the quarantine's."""

    files: int
    size_bytes: int


RowLimits = Callable[["pa.RecordBatch"], Iterator[tuple[Any, str]]]
"""Yields masks of rows that a table cannot hold, each with the reason; picklable."""


class Target(Protocol):
    """A table that a landing writes. Called from one thread of the driver."""

    @property
    def name(self) -> str:
        """The table for people: a path, or a URL without its password."""
        ...

    @property
    def is_partitioned(self) -> bool:
        """True if staged files are split by ``partition_by``; a database has indexes instead."""
        ...

    @property
    def keeps_partition_columns(self) -> bool:
        """True if data files contain the partition columns too; else the directory has the only copy of a value."""
        ...

    @property
    def keeps_nan(self) -> bool:
        """False if NaN may become null: SQLite and MySQL have no NaN, and JSON, in any database, has none."""
        ...

    @property
    def names(self) -> NameRule:
        """The names that columns may have."""
        ...

    @property
    def lacks(self) -> frozenset[Lack]:
        """The types that columns cannot have."""
        ...

    def limits(self, upsert: tuple[str, ...]) -> RowLimits | None:
        """Return a check that tasks run on rows of a table that is upserted by these columns; None: it holds all."""
        ...

    def open(self, new_table: NewTable, now_ms: int) -> SinkState:
        """Found the table if it is missing, take it over (a new epoch), and clear what a crash left.

        Raises `ConfigError` when the table is another topic's or was founded otherwise, `LogLocked` when a living
        landing on this machine holds a table of files, `CorruptRecord` when the account was tampered with.
        """
        ...

    def stage_directory(self) -> str:
        """Return the absolute directory for staged files; it exists, and what a crash left there is gone."""
        ...

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        """Commit the whole batch, or nothing of it after a crash at any step.

        Raises `ProducerFenced` when another landing took the table over, `StorageError` and `StorageFull`; then nothing
        was committed as far as this process knows, and the table must be opened again.
        """
        ...

    def close(self) -> None: ...

    # -- for looking at it, without taking it over --------------------------------------------------------------------

    def state(self) -> SinkState | None:
        """Return the present account; None if the table does not exist."""
        ...

    def files(self) -> FileCount | None:
        """Return the number and size of the data files; None for a database."""
        ...

    def strangers(self) -> list[str]:
        """Return files that no landing wrote, which plain readers would take for files of the table."""
        ...

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """These columns of all committed rows, a batch at a time; for `verify` and `status`."""
        ...

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        """The refused records that wait: those of commits from ``quarantine_from`` on."""
        ...

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        """Make few files of many, in partitions whose value sorts below ``before`` (None: all) and that have at least
        ``min_files``. Call it on an open target. Raises `ConfigError` where there is nothing of that kind to do."""
        ...


def read_account(data: bytes | str, where: str) -> SinkState:
    """Return the account that JSON holds. Raises `CorruptRecord` for what is damaged, or of a later release."""
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version <= VERSION:
            return msgspec.json.decode(data, type=SinkState)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"the account of {where} is damaged ({error}): restore it from a copy") from error
    raise CorruptRecord(f"the account of {where} has version {version}, this release knows {VERSION}: upgrade it")


def pack_columns(columns: pa.Schema) -> bytes:
    """Return the bytes of columns for `SinkState.schema`."""
    return columns.serialize().to_pybytes()


def advanced(state: SinkState, batch: Batch, now_ms: int) -> SinkState:
    """The account after a batch: the same arithmetic for every target. Raises `CorruptRecord` for offsets gone back."""
    back = {each: offset for each, offset in batch.offsets.items() if offset < state.offsets.get(each, -math.inf)}
    if back:
        raise CorruptRecord(f"{state.topic}-{min(back)} would go back to offset {back[min(back)]}: nothing was landed")
    return msgspec.structs.replace(
        state,
        sequence=state.sequence + 1,
        offsets={**state.offsets, **batch.offsets},
        rows=state.rows + sum(file.rows for file in batch.files),
        rejected=state.rejected + (0 if batch.replaces_quarantine else sum(file.rows for file in batch.rejected)),
        quarantine_from=state.sequence if batch.replaces_quarantine else state.quarantine_from,
        committed_at_ms=now_ms,
        schema=pack_columns(batch.columns) if len(batch.columns) else state.schema,
    )
