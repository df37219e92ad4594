"""`DeltaLog`: the few calls of ``deltalake`` that a landing makes, and the account in the log's ``txn`` actions.

A ``txn`` action is a number under a name. It changes with the files, in one commit, and outlives checkpoints and the
clean-up of the log. Two rules of ``deltalake`` matter (1.6):

- a commit never refreshes its object, and with ``max_commit_retries=0`` it fails as soon as anybody committed since the
  object was refreshed: so what was checked on the object still holds when the commit succeeds;
- it does not compare versions of ``txn`` actions: the check of the epoch is ours, on that same object.
"""

# pyarrow and deltalake have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import msgspec

from eventbus.errors import ConfigError, StorageError, StorageFull
from spark_sinks.partitions import directory_name, partition_values
from spark_sinks.shape import DATE
from spark_sinks.targets.delta.actions import add_action, delta_columns
from spark_sinks.targets.delta.upsert import batch_rows, changes, merged, record_key_of
from spark_sinks.targets.logged import LostRace, Placed
from spark_sinks.targets.parts import Epochs
from spark_sinks.targets.place import Place
from spark_sinks.targets.rewrite import fitted
from spark_sinks.targets.storage import files_at
from spark_sinks.targets.target import SinkState, StagedFile, pack_columns, read_account

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import CommitProperties, DeltaTable
    from deltalake.transaction import AddAction

APP = "eventbus"
EMPTY = "_empty"
"""The column of a table without rows: Delta has no table without columns, and which ones come is not known yet."""
_FOUNDING = f"{APP}.new_table"
_COMPRESSIONS: dict[str, Any] = {
    "none": "UNCOMPRESSED",
    "zstd": "ZSTD",
    "snappy": "SNAPPY",
    "gzip": "GZIP",
    "lz4": "LZ4",
}
_RECENT = 20
"""Commits of others, such as a user's OPTIMIZE, that may have come after our newest one."""
_Numbers = tuple[dict[str, int], dict[int, int], Epochs]
_NUMBERS = ("sequence", "epoch", "rows", "rejected", "quarantine_from", "committed_at_ms")


class _Add(msgspec.Struct):
    path: str


class _Transaction(msgspec.Struct):
    app: str = msgspec.field(name="appId")
    version: int


class _People(msgspec.Struct):
    begins: dict[int, int] = {}


class _CommitInfo(msgspec.Struct):
    eventbus: _People | None = None


class _Action(msgspec.Struct):
    """A line of the log."""

    add: _Add | None = None
    txn: _Transaction | None = None
    info: _CommitInfo | None = msgspec.field(name="commitInfo", default=None)

    @classmethod
    def read(cls, line: bytes) -> _Action:
        return msgspec.json.decode(line, type=cls)


class DeltaLog:
    """The `TableLog` of a Delta table."""

    data = ""
    merges = True

    def __init__(self, path: Place, compression: str) -> None:
        self._directory = path
        self._options = None if isinstance(path, Path) else dict(path.options)
        self._path = str(path)
        self._compression = _COMPRESSIONS[compression]
        self._files = files_at(path)
        self._table: DeltaTable | None = None
        self._epochs = Epochs({})

    def exists(self) -> bool:
        from deltalake import DeltaTable

        with delta_errors(self._path):
            return DeltaTable.is_deltatable(self._path, self._options)

    def refresh(self) -> None:
        from deltalake import DeltaTable

        with delta_errors(self._path):
            if self._table is None:
                self._table = DeltaTable(self._path, storage_options=self._options)
            else:
                self._table.update_incremental()

    @property
    def table(self) -> DeltaTable:
        assert self._table is not None, "refresh first"
        return self._table

    def create(self, state: SinkState, epochs: Epochs) -> None:
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        self._epochs = epochs
        fields = [pa.field(name, pa.date32() if name == DATE else pa.string()) for name in state.partition_by]
        try:
            with delta_errors(self._path):
                DeltaTable.create(
                    self._path,
                    pa.schema([*fields, (EMPTY, pa.string())]),
                    partition_by=list(state.partition_by),
                    configuration={_FOUNDING: _founding(state)},
                    commit_properties=self._properties(state),
                    storage_options=self._options,
                    raise_if_key_not_exists=False,
                )
        except StorageError as error:
            if isinstance(error.__cause__, DeltaError) and self.exists():
                raise LostRace from error
            raise

    def account(self) -> tuple[SinkState, Epochs]:
        new_table = self.table.metadata().configuration.get(_FOUNDING)
        if new_table is None:
            raise ConfigError(f"{self._path} is a Delta table that no landing made: land into another directory")
        with delta_errors(self._path):
            numbers, offsets, self._epochs = self._newest_numbers() or self._kept_numbers()
        state = msgspec.structs.replace(
            read_account(new_table, self._path),
            **numbers,
            offsets=offsets,
            schema=b"" if (columns := self.columns()) is None else pack_columns(columns),
        )
        return state, self._epochs

    def _newest_numbers(self) -> _Numbers | None:
        """Return the numbers of our newest commit, which holds all of them; None if that is too old to be in the log.

        One file is read. deltalake reads the whole log since its last checkpoint for each number.
        """
        newest = self.table.version()
        for version in range(newest, max(newest - _RECENT, -1), -1):
            try:
                actions = self._actions(version)
            except StorageError:  # cleaned up
                return None
            numbers = {each.txn.app.removeprefix(f"{APP}."): each.txn.version for each in actions if each.txn}
            people = next((each.info.eventbus for each in actions if each.info and each.info.eventbus), None)
            if people is not None and people.begins and "sequence" in numbers:
                offsets = {each: numbers.get(f"offset.{each}") for each in range(numbers["partitions"])}
                return (
                    {name: numbers[name] for name in _NUMBERS},
                    {each: offset for each, offset in offsets.items() if offset is not None},
                    Epochs(people.begins),
                )
        return None

    def _kept_numbers(self) -> _Numbers:
        """Return the numbers that outlive the files of the log."""

        def number(name: str) -> int | None:
            return self.table.transaction_version(f"{APP}.{name}")

        epoch = number("epoch") or 0
        latest = range(max(1, epoch - Epochs.KEPT + 1), epoch + 1)
        offsets = {each: number(f"offset.{each}") for each in range(number("partitions") or 0)}
        return (
            {name: number(name) or 0 for name in _NUMBERS},
            {each: offset for each, offset in offsets.items() if offset is not None},
            Epochs({each: number(_begin(each)) or 0 for each in latest}),
        )

    def _actions(self, version: int) -> list[_Action]:
        lines = self._files.read(f"_delta_log/{version:020d}.json").splitlines()
        return [_Action.read(line) for line in lines]

    def take_over(self, state: SinkState, epochs: Epochs) -> None:
        before = self.account()[0]
        # A new table may have had no topic id yet, and no schema that decides the name of the key's column.
        if (state.topic_id, state.upsert) != (before.topic_id, before.upsert):
            with delta_errors(self._path):
                self.table.alter.set_table_properties({_FOUNDING: _founding(state)}, raise_if_not_exists=False)
        self._epochs = epochs
        self._add(state, [])

    def commit(self, state: SinkState, files: Sequence[Placed], columns: pa.Schema, now_ms: int) -> None:
        self._add(state, [add_action(self._directory, file, now_ms) for file in files])

    def _add(self, state: SinkState, adds: Sequence[AddAction]) -> None:
        with delta_errors(self._path):
            self.table.create_write_transaction(
                [*adds],
                "append",
                self.table.schema(),
                list(state.partition_by),
                commit_properties=self._properties(state),
            )

    def columns(self) -> pa.Schema | None:
        """Return the columns of the table; None while the table has no rows."""
        import pyarrow as pa

        columns = pa.schema(self.table.schema().to_arrow())
        return None if EMPTY in columns.names else columns

    def fits(self, columns: pa.Schema) -> bool:
        import pyarrow.types as pt

        has = self.columns()
        for name in self.table.metadata().partition_columns:
            kind = columns.field(name).type
            if pt.is_decimal(kind) and kind.scale > 0:
                raise ConfigError(
                    f"A Delta table cannot be partitioned by {name!r}, which is {kind}. deltalake cannot read every "
                    f"such value in the log. Cast it: partition_by={{'p': 'CAST(`{name}` AS STRING)'}}."
                )
        return (
            has is not None
            and all(has.field(each.name) == each for each in delta_columns(columns) if each.name in has.names)
            and set(columns.names) <= set(has.names)
        )

    def fit(self, state: SinkState, columns: pa.Schema) -> None:
        """Add columns, which is quick, or write the table again with wider ones."""
        import pyarrow as pa
        from deltalake import Schema

        has, columns = self.columns(), delta_columns(columns)
        known: list[str] = [] if has is None else has.names
        new = [field for field in columns if field.name not in known]
        wider = [field for field in columns if has and field.name in known and has.field(field.name).type != field.type]
        with delta_errors(self._path):
            if has is None:
                self._allow_local_times(state, columns)
                # It replaces the first columns. The table has no files yet that "overwrite" could remove.
                by = list(state.partition_by)
                self.table.create_write_transaction(
                    [], "overwrite", columns, by, commit_properties=self._properties(state)
                )
            elif wider:
                self._rewrite(state, columns)
            else:
                self.table.alter.add_columns(
                    Schema.from_arrow(pa.schema(new)).fields, commit_properties=self._properties(state)
                )

    def _allow_local_times(self, state: SinkState, columns: pa.Schema) -> None:
        """Enable timestamps without a zone. A table that gets one without this feature cannot be opened any more.

        This is a separate commit. The caller starts again after it, so that the landing's epoch is checked once more.
        """
        from deltalake import Schema, TableFeatures

        feature = "timestampNtz"
        enabled = self.table.protocol().reader_features or ()
        if feature not in enabled and "timestamp_ntz" in Schema.from_arrow(columns).to_json():
            self.table.alter.add_feature(
                TableFeatures.TimestampWithoutTimezone,
                allow_protocol_versions_increase=True,
                commit_properties=self._properties(state),
            )
            raise LostRace(f"{feature} was enabled")

    def _rewrite(self, state: SinkState, columns: pa.Schema) -> None:
        """All rows again: without a table feature that few readers know, Delta has no other way to wider types."""
        import pyarrow as pa
        from deltalake import WriterProperties, write_deltalake

        rows = self.table.to_pyarrow_dataset().to_batches()
        write_deltalake(
            self.table,
            pa.RecordBatchReader.from_batches(columns, (fitted(batch, columns) for batch in rows)),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=list(state.partition_by) or None,
            writer_properties=WriterProperties(compression=self._compression),
            commit_properties=self._properties(state),
        )

    def merge(self, state: SinkState, files: Sequence[StagedFile], columns: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc
        from deltalake import WriterProperties

        rows = batch_rows(files, columns)
        keys = list(state.upsert)
        record_key = record_key_of(columns)

        def having(record_keys: pa.Array) -> pa.Table:
            columns = pa.schema([rows.schema.field(name) for name in dict.fromkeys([*keys, record_key])])
            # Not by a filter of the dataset: that compares binary columns with statistics of another type, and fails.
            batches = (fitted(batch, columns) for batch in self.read(columns.names))
            found = (batch.filter(pc.is_in(batch.column(record_key), record_keys)) for batch in batches)
            return pa.Table.from_batches(found, columns)

        with delta_errors(self._path):
            source = changes(rows, keys, having)
            writer = WriterProperties(compression=self._compression)
            merged(self.table, self._properties(state), source, keys, writer_properties=writer)

    def compact(self, state: SinkState, directory: str) -> None:
        filters = [(name, "=", value or "") for name, value in partition_values(directory).items()]
        with delta_errors(self._path):
            self.table.optimize.compact(filters or None, commit_properties=self._properties(state))

    def files(self) -> dict[str, list[int]]:
        import pyarrow as pa

        by = self.table.metadata().partition_columns
        sizes: dict[str, list[int]] = {}
        for each in pa.table(self.table.get_add_actions(flatten=True)).to_pylist():
            # Not the path: deltalake names the directories that it makes in its own way.
            directory = "/".join(directory_name(name, each[f"partition.{name}"], len(by)) for name in by)
            sizes.setdefault(directory, []).append(each["size_bytes"])
        return sizes

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table = self.table.to_pyarrow_dataset()
        yield from table.to_batches(columns=list(columns), batch_readahead=4, fragment_readahead=2)

    def newest(self) -> list[str]:
        if not isinstance(self._directory, Path):
            return []
        version = self.table.version()
        added = [unquote(action.add.path) for action in self._actions(version) if action.add is not None]
        return [*added, f"_delta_log/{version:020d}.json"]

    def close(self) -> None:
        self._table = None

    def _properties(self, state: SinkState) -> CommitProperties:
        from deltalake import CommitProperties, Transaction

        numbers: dict[str, int] = {name: getattr(state, name) for name in _NUMBERS}
        numbers |= {f"offset.{each}": offset for each, offset in state.offsets.items()}
        numbers["partitions"] = max(state.offsets, default=-1) + 1
        numbers[_begin(state.epoch)] = self._epochs.begins[state.epoch]
        offsets = {str(each): offset for each, offset in state.offsets.items()}
        begins = {str(each): sequence for each, sequence in self._epochs.begins.items()}
        return CommitProperties(
            custom_metadata={APP: {"topic": state.topic, "offsets": offsets, "begins": begins}},
            max_commit_retries=0,
            app_transactions=[Transaction(f"{APP}.{name}", number) for name, number in numbers.items()],
        )


def require_deltalake() -> None:
    """Raise `ConfigError`, with the command, when the library is missing."""
    try:
        import deltalake as _  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        raise ConfigError('delta: needs deltalake: pip install "eventbus-log[spark,delta]"') from error


@contextlib.contextmanager
def delta_errors(path: str) -> Generator[None]:
    """Turn errors of deltalake into our own; a lost race into `LostRace`."""
    from deltalake.exceptions import CommitFailedError, DeltaError

    try:
        yield
    except CommitFailedError as error:
        raise LostRace(str(error)) from error
    except (DeltaError, OSError) as error:
        full = "No space left" in str(error) or "os error 28" in str(error)
        raise (StorageFull if full else StorageError)(f"cannot write {path}: {error}") from error


def _founding(state: SinkState) -> str:
    """Return the part of the account that never changes, for the table's configuration."""
    return msgspec.json.encode(msgspec.structs.replace(state, offsets={}, epoch=0, schema=b"")).decode()


def _begin(epoch: int) -> str:
    return f"begin.{epoch % Epochs.KEPT}"
