"""Create, widen and write the tables of a sink: its rows and its quarantine."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.errors import ConfigError
from spark_sinks.shape import COORDINATES, KEY, LEFT_IN_LOG, quarantine_schema
from spark_sinks.targets.sql.account import TABLE
from spark_sinks.targets.sql.dialect import Dialect, Layout
from spark_sinks.targets.sql.kinds import Column, columns_of
from spark_sinks.targets.sql.newest import newest
from spark_sinks.targets.target import QUARANTINE_SUFFIX, Batch, SinkState, StagedFile

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

_FILE_ROWS = 16_384
_PLACE = ("_partition", "_offset")


class Change(NamedTuple):
    """A change of the columns; ``before`` is None if the table does not exist yet."""

    before: Layout | None
    after: Layout


class Tables:
    """All calls belong to a transaction of the caller's; ``name`` is the table's for people."""

    def __init__(self, dialect: Dialect, schema: str | None, table: str, name: str) -> None:
        self._dialect = dialect
        self._schema = schema
        self._table = table
        self._name = name

    @property
    def quarantine(self) -> Layout:
        columns = columns_of(quarantine_schema(), _PLACE)
        return Layout(self._schema, f"{self._table}{QUARANTINE_SUFFIX}", columns, _PLACE)

    def rows(self, state: SinkState) -> Layout | None:
        """Return the layout of the table; None before the first rows. Coordinates are the key if nothing else is."""
        schema = state.columns()
        if schema is None:
            return None
        records = _PLACE if set(COORDINATES) <= set(schema.names) and not state.transformed else ()
        deleted_by = (KEY,) if state.upsert and KEY in schema.names else ()
        key = state.upsert or records
        return Layout(self._schema, self._table, columns_of(schema, (*key, *deleted_by)), key)

    # made and changed ------------------------------------------------------------------------------------------------

    def check_absent(self, connection: Connection) -> None:
        """Raise `ConfigError` for tables that another program made, or whose account was deleted."""
        for layout in (Layout(self._schema, self._table, ()), self.quarantine):
            if self._columns(connection, layout) is not None:
                raise ConfigError(
                    f"{self._name}: there is a table {layout.table} that no landing made ({TABLE} does not know it): "
                    f"land into another one, or drop it"
                )

    def check_present(self, connection: Connection, state: SinkState) -> None:
        """Raise `ConfigError` when the tables that the account is about are gone."""
        for layout in (self.rows(state), self.quarantine) if state.schema else ():
            if layout is not None and self._columns(connection, layout) is None:
                raise ConfigError(
                    f"{self._name}: table {layout.table} is gone, and {TABLE} has an account of {state.rows} rows: "
                    f"restore it, or delete the row of {self._table!r} there to land the topic once more"
                )

    def change(self, before: SinkState, after: SinkState) -> Change | None:
        """Return the change of columns that a commit needs. Raises `ConfigError` for columns that cannot exist."""
        new = self.rows(after)
        if before.schema == after.schema or new is None:
            return None
        self._dialect.check(new)
        return Change(self.rows(before), new)

    def make(self, connection: Connection, change: Change) -> None:
        """Make or widen the tables. Where that is not part of a transaction, a crash may have left some of it done."""
        dialect, layout = self._dialect, change.after
        if change.before is None:
            for each in (layout, self.quarantine):
                self._drop_leftover(connection, each)
                for statement in dialect.create(each):
                    dialect.run(connection, statement)
            return
        there = self._columns(connection, layout)
        known = {column.name: column for column in change.before.columns}
        for column in layout.columns:
            before = known.get(column.name)
            if before is not None:
                statements = dialect.widen(layout, column, before)
            elif there is None or self._folded(column.name) not in there:
                statements = dialect.add(layout, column)
            elif dialect.is_transactional:
                raise ConfigError(
                    f"{self._name}: column {column.name!r} is new in the topic, and another program added a column of "
                    f"that name to the table: rename the column in the table"
                )
            else:
                statements = dialect.change(layout, column)
            for statement in statements:
                dialect.run(connection, statement)

    def _drop_leftover(self, connection: Connection, layout: Layout) -> None:
        """Drop the empty table left by a crash between CREATE TABLE and the first rows; its columns may differ."""
        if self._columns(connection, layout) is None:
            return
        table = self._dialect.qualified(layout)
        is_leftover = not self._dialect.is_transactional
        if not is_leftover or connection.exec_driver_sql(f"SELECT 1 FROM {table} LIMIT 1").first() is not None:
            raise ConfigError(f"{self._name}: another program made a table {layout.table} meanwhile: land elsewhere")
        self._dialect.run(connection, f"DROP TABLE {table}")

    def _columns(self, connection: Connection, layout: Layout) -> set[str] | None:
        """Return the names of the table's columns; None if no table or view of that name exists."""
        from sqlalchemy import inspect
        from sqlalchemy.exc import NoSuchTableError

        try:
            return {self._folded(each["name"]) for each in inspect(connection).get_columns(layout.table, layout.schema)}
        except NoSuchTableError:
            return None

    def _folded(self, name: str) -> str:
        return name.casefold() if self._dialect.folds_case else name

    # written ---------------------------------------------------------------------------------------------------------

    def write(self, connection: Connection, state: SinkState, batch: Batch) -> None:
        """``state``: after the batch."""
        layout = self.rows(state)
        if layout is None:
            return
        gone = None
        if batch.files and state.upsert:
            gone = self._upsert(connection, layout, batch.files)
        elif batch.files:
            self._dialect.append(connection, layout, _batches(batch.files, layout))
        if batch.replaces_quarantine:
            self._dialect.run(connection, f"DELETE FROM {self._dialect.qualified(self.quarantine)}")
        if batch.rejected:
            longest = self._dialect.longest_row_bytes(connection)
            rejected = (_that_fit(each, longest) for each in _batches(batch.rejected, self.quarantine))
            self._dialect.append(connection, self.quarantine, rejected)
        if gone is not None and state.rejected:
            self._settle(connection, gone)

    def _upsert(self, connection: Connection, layout: Layout, files: Sequence[StagedFile]) -> pa.Table | None:
        """Write the newest row of each key, delete the deleted keys, and return the tombstones."""
        found = newest(files, layout.key)
        if found.gone is not None:
            self._dialect.delete(connection, layout, found.gone, (KEY,))
        if found.outlived is not None:
            self._dialect.delete(connection, layout, found.outlived, layout.key)
        self._dialect.upsert(connection, layout, _batches(files, layout, found.rows))
        return found.gone

    def _settle(self, connection: Connection, gone: pa.Table) -> None:
        """Delete refused records whose keys were deleted later: a replay would restore the deleted keys."""
        ends: dict[tuple[Any, int], int] = {}
        for key, partition, offset in zip(*(gone.column(name).to_pylist() for name in (KEY, *_PLACE)), strict=True):
            ends[key.encode() if isinstance(key, str) else key, partition] = offset
        layout = self.quarantine
        wanted = self._dialect.select(layout, ("key", *_PLACE))
        settled = [
            (partition, offset)
            for key, partition, offset in connection.exec_driver_sql(wanted)
            if offset < ends.get((key, partition), -1)
        ]
        where = " AND ".join(f"{self._dialect.quote(name)} = {self._dialect.mark}" for name in _PLACE)
        self._dialect.run(connection, f"DELETE FROM {self._dialect.qualified(layout)} WHERE {where}", settled)


def _batches(files: Sequence[StagedFile], layout: Layout, masks: Sequence[Any] = ()) -> Iterator[pa.RecordBatch]:
    """Yield the rows of staged files in the columns of a table; with ``masks`` only some rows of each file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(column.name, column.type) for column in layout.columns])
    for number, file in enumerate(files):
        start = 0
        for batch in pq.ParquetFile(file.path).iter_batches(_FILE_ROWS):
            rows = pa.RecordBatch.from_arrays([_conformed(batch, column) for column in layout.columns], schema=schema)
            mask = masks[number][start : start + batch.num_rows] if masks else None
            start += batch.num_rows
            yield rows if mask is None or mask.all() else rows.filter(pa.array(mask))


def _that_fit(rejected: pa.RecordBatch, longest_bytes: int) -> pa.RecordBatch:
    """Return refused records without the bytes of those that are too long for a statement. The log has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    compute: Any = pc
    if rejected.nbytes <= longest_bytes:
        return rejected
    sizes = [compute.fill_null(compute.binary_length(rejected.column(name)), 0) for name in ("key", "value", "error")]
    long = compute.greater(compute.add(compute.add(sizes[0], sizes[1]), sizes[2]), longest_bytes)
    for name, size in zip(("key", "value"), sizes[:2], strict=True):
        number = rejected.schema.get_field_index(name)
        is_long = compute.and_(long, compute.greater(size, longest_bytes // 4))
        kept = compute.if_else(is_long, pa.scalar(b"", pa.binary()), rejected.column(name))
        rejected = rejected.set_column(number, rejected.schema.field(number), kept)
    number = rejected.schema.get_field_index("error")
    marked = compute.binary_join_element_wise(rejected.column("error"), LEFT_IN_LOG, "")
    return rejected.set_column(
        number, rejected.schema.field(number), compute.if_else(long, marked, rejected.column("error"))
    )


def _conformed(batch: pa.RecordBatch, column: Column) -> pa.Array:
    import pyarrow as pa
    import pyarrow.types as pt

    if column.name not in batch.schema.names:  # written before the table had it
        return pa.nulls(batch.num_rows, column.type)
    array = batch.column(column.name)
    # Times lose what is below their unit; anything else that does not fit is an error.
    return array if array.type == column.type else array.cast(column.type, safe=not pt.is_temporal(column.type))
