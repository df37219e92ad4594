"""`IcebergLog`: snapshots that add files, and the account in a property of the table that changes with them.

**Every commit makes a snapshot**, also one without files: a snapshot is only accepted on the snapshot that it was made
for, while a change of properties alone would be accepted on any. That, and no retries by pyiceberg, is the fence.

Files come from tasks and have no field ids: the table has a name mapping. They contain the partition columns, as the
specification requires: not every reader takes their values from the manifest, which has rounded doubles in pyiceberg.
"""

# pyarrow and pyiceberg have little type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import errno
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from eventbus.errors import ConfigError, CorruptRecord, EventBusError, StorageError, StorageFull
from spark_sinks.targets.iceberg.datafile import data_file
from spark_sinks.targets.logged import LostRace, Placed
from spark_sinks.targets.parts import Epochs, parent
from spark_sinks.targets.place import Place
from spark_sinks.targets.rewrite import rewrite
from spark_sinks.targets.storage import files_at
from spark_sinks.targets.target import SinkState, StagedFile, pack_columns, read_account

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table, Transaction

_ACCOUNT = "eventbus.account"
_PROPERTIES = {
    "commit.retry.num-retries": "0",  # pyiceberg would commit again what another landing came before
    "commit.manifest-merge.enabled": "true",  # else each commit reads and writes a line for all before it
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


_KEEP = "history.expire.min-snapshots-to-keep"
_SNAPSHOTS = 100
"""How many are kept where the table has no property `_KEEP`: all of them are read and written at each commit."""


class Where(NamedTuple):
    """The place of a table: its directory, its name, and its catalog, which exists if its ``file`` does."""

    directory: Place
    identifier: tuple[str, ...]
    catalog: Callable[[], Catalog]
    file: Path | None


class Account(msgspec.Struct, frozen=True):
    """The content of the property."""

    state: msgspec.Raw
    begins: dict[int, int]


class IcebergLog:
    """Commit files to an Iceberg table, and read its history (implements `TableLog`)."""

    data = "data"
    merges = False

    def __init__(self, where: Where, compression: str) -> None:
        self._where = where
        self._compression = compression
        self._catalog: Catalog | None = None
        self._table: Table | None = None

    def exists(self) -> bool:
        if self._where.file is not None and not self._where.file.exists():
            return False
        with self._errors():
            return self.catalog.table_exists(self._where.identifier)

    def refresh(self) -> None:
        with self._errors():
            if self._table is None:
                self._table = self.catalog.load_table(self._where.identifier)
            else:
                self._table.refresh()

    def create(self, state: SinkState, epochs: Epochs) -> None:
        from pyiceberg.schema import Schema

        with self._errors():
            self.catalog.create_namespace_if_not_exists(self._where.identifier[:-1])
            self._table = self.catalog.create_table(
                self._where.identifier,
                Schema(),
                location=location_of(self._where.directory),
                properties={**_PROPERTIES, _ACCOUNT: _packed(state, epochs)},
            )

    def take_over(self, state: SinkState, epochs: Epochs) -> None:
        with self._commit(state, epochs):
            pass

    def account(self) -> tuple[SinkState, Epochs]:
        packed = self.table.properties.get(_ACCOUNT)
        if packed is None:
            raise ConfigError(f"{self._name} is an Iceberg table that no landing made: land into another one")
        if str(self._place(self.table.location())) != str(self._where.directory):
            raise ConfigError(f"{self._name} is in {self.table.location()}, not in {self._where.directory}")
        try:
            account = msgspec.json.decode(packed, type=Account)
        except msgspec.DecodeError as error:
            raise CorruptRecord(f"the account of {self._name} is damaged ({error}): restore it from a copy") from error
        return read_account(bytes(account.state), self._name), Epochs(account.begins)

    def fits(self, columns: pa.Schema) -> bool:
        if self.account()[0].schema != pack_columns(columns):
            _widen(self.table.transaction(), columns, ())
        return True

    def fit(self, state: SinkState, columns: pa.Schema) -> None:
        raise NotImplementedError("columns change in the commit of their rows")  # `fits` is always true here

    def commit(self, state: SinkState, files: Sequence[Placed], columns: pa.Schema, now_ms: int) -> None:
        last, epochs = self.account()
        changed = len(columns) > 0 and last.schema != pack_columns(columns)
        with self._commit(state, epochs, columns if changed else None) as (transaction, snapshot):
            for file in files:
                snapshot.append_data_file(data_file(transaction, self._where.directory, file))

    def merge(self, state: SinkState, files: Sequence[StagedFile], columns: pa.Schema) -> None:
        raise NotImplementedError("pyiceberg has no merge that commits an account with it")  # refused: `merges`

    def compact(self, state: SinkState, directory: str) -> None:
        columns = state.columns()
        assert columns is not None, "there are files"
        with self._errors():
            tasks = [task for task in self.table.scan().plan_files() if self._directory(task.file) == directory]
        if any(task.delete_files for task in tasks):
            raise ConfigError(f"{self._name} has rows deleted by another writer in {directory}: compact it with that")
        place = self._where.directory / self.data / directory
        name = f"compacted-{uuid.uuid4().hex}"
        sources = sorted(self._place(task.file.file_path) for task in tasks)
        written = rewrite(sources, columns, lambda number: place / f"{name}-{number:05d}.parquet", self._compression)
        files_at(place).sync_dir("")
        with self._commit(state, self.account()[1], overwrite=True) as (transaction, snapshot):
            for task in tasks:
                snapshot.delete_data_file(task.file)
            for each in written:
                file = Placed(f"{self.data}/{directory}/{each.path.name}", directory, each.size_bytes)
                snapshot.append_data_file(data_file(transaction, self._where.directory, file))

    def files(self) -> dict[str, list[int]]:
        sizes: dict[str, list[int]] = {}
        with self._errors():
            for task in self.table.scan().plan_files():
                sizes.setdefault(self._directory(task.file), []).append(task.file.file_size_in_bytes)
        return sizes

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        with self._errors():
            yield from self.table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader()

    def newest(self) -> list[str]:
        return []  # see `SyncedFileIO`

    def close(self) -> None:
        catalog, self._catalog, self._table = self._catalog, None, None
        if catalog is not None:
            catalog.close()

    # -- steps --------------------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        if self._catalog is None:
            self._catalog = self._where.catalog()
        return self._catalog

    @property
    def table(self) -> Table:
        assert self._table is not None, "refresh first"
        return self._table

    @property
    def _name(self) -> str:
        return ".".join(self._where.identifier)

    @contextlib.contextmanager
    def _commit(
        self, state: SinkState, epochs: Epochs, columns: pa.Schema | None = None, *, overwrite: bool = False
    ) -> Generator[tuple[Transaction, Any]]:
        """A transaction with the account, and a snapshot in it to add files to; committed at the end of the block."""
        with self._errors():
            transaction = self.table.transaction()
            if columns is not None:
                _widen(transaction, columns, state.partition_by)
            transaction.set_properties({**_PROPERTIES, _ACCOUNT: _packed(state, epochs)})
            _expire(transaction)
            offsets = msgspec.json.encode(state.offsets).decode()
            update = transaction.update_snapshot(snapshot_properties={"eventbus.offsets": offsets})
            with update.overwrite() if overwrite else update.merge_append() as snapshot:
                yield transaction, snapshot
            transaction.commit_transaction()

    def _directory(self, file: Any) -> str:
        """Return the partition directory of a data file, below `data`."""
        data = f"{self._where.directory / self.data}/"
        return parent(str(self._place(file.file_path)).removeprefix(data))

    def _place(self, location: str) -> Place:
        """Return the place of a location; objects are read with the options of the table's own place."""
        directory = self._where.directory
        if isinstance(directory, Path):
            return Path(location.removeprefix("file://"))
        return directory._replace(key=location.removeprefix(f"{directory.bucket}/").rstrip("/"))

    @contextlib.contextmanager
    def _errors(self) -> Generator[None]:
        """Turn errors of pyiceberg, and of what is below it, into our own; a lost race into `LostRace`."""
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationException

        try:
            yield
        except (EventBusError, LostRace):
            raise
        except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
            raise LostRace(str(error)) from error
        except Exception as error:  # pyiceberg raises what its parts raise
            full = (
                getattr(error, "errno", None) == errno.ENOSPC
                or "No space left" in str(error)
                or "is full" in str(error)
            )
            kind = StorageFull if full else StorageError
            raise kind(f"{self._name} in {self._where.directory}: {type(error).__name__}: {error}") from error


def location_of(place: Place) -> str:
    """Nothing in it is quoted: readers of Iceberg take locations as they are."""
    return f"file://{place.as_posix()}" if isinstance(place, Path) else str(place)


def _packed(state: SinkState, epochs: Epochs) -> str:
    return msgspec.json.encode(Account(msgspec.Raw(msgspec.json.encode(state)), epochs.begins)).decode()


def _expire(transaction: Transaction) -> None:
    """Let go of the oldest snapshots, as far as no branch or tag is one of them. Their files stay."""
    from pyiceberg.table.update.snapshot import ExpireSnapshots

    metadata = transaction.table_metadata
    keep = max(int(metadata.properties.get(_KEEP, _SNAPSHOTS)), 1)
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    snapshots = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    old = [each.snapshot_id for each in snapshots[:-keep] if each.snapshot_id not in named]
    if old:
        ExpireSnapshots(transaction).by_ids(old).commit()


def _unsigned(kind: Any) -> list[Any]:
    import pyarrow as pa

    within = (kind.field(number).type for number in range(kind.num_fields)) if pa.types.is_nested(kind) else ()
    return [kind] if kind in (pa.uint32(), pa.uint64()) else [found for each in within for found in _unsigned(each)]


def _widen(transaction: Transaction, columns: pa.Schema, partition_by: Sequence[str]) -> None:
    """Bring the columns of a table up to these; its first ones bring its partitions. Raises `ConfigError`."""
    from pyiceberg.transforms import IdentityTransform

    for column in columns:
        for kind in _unsigned(column.type):  # pyiceberg makes int and long of them, which are too small
            raise ConfigError(f"column {column.name!r}: Iceberg has no type for {kind}; make another with transform=")
    try:
        with transaction.update_schema() as update:
            update.union_by_name(columns)
    except Exception as error:  # pyiceberg raises what its parts raise
        raise ConfigError(f"Iceberg cannot take these columns ({error}); make others with transform=") from error
    schema = transaction.table_metadata.schema()
    if partition_by and not transaction.table_metadata.spec().fields:
        with transaction.update_spec() as spec:
            for name in partition_by:
                spec.add_field(name, IdentityTransform(), name)
    mapping = schema.name_mapping.model_dump_json()
    transaction.set_properties({"schema.name-mapping.default": mapping})
