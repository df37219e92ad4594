"""A table of a SQL database as a landing's target."""

# pyarrow has no type information.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from eventbus.errors import ConfigError, CorruptRecord
from spark_sinks.names import IN_DATABASES
from spark_sinks.shape import Lack
from spark_sinks.targets.sql.account import Account
from spark_sinks.targets.sql.address import Address, file_is_missing, parse_address, table_of
from spark_sinks.targets.sql.database_errors import kind_of_error, own_error
from spark_sinks.targets.sql.dialect import Dialect, Layout
from spark_sinks.targets.sql.kinds import held
from spark_sinks.targets.sql.limits import SqlLimits
from spark_sinks.targets.sql.mysql import SESSION, MySqlDialect
from spark_sinks.targets.sql.postgresql import PostgresDialect
from spark_sinks.targets.sql.sqlite import LOOKS, SqliteDialect
from spark_sinks.targets.sql.tables import Tables
from spark_sinks.targets.sql.values import unwire
from spark_sinks.targets.stages import Stage
from spark_sinks.targets.table_creation import check_new_table, fenced, new_account, new_id, take_over
from spark_sinks.targets.target import Batch, Compacted, FileCount, NewTable, SinkState, advanced

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection, Engine

    from spark_sinks.targets.choose import TargetOptions

PATIENCE_S = 30.0
"""How long a commit waits for a database that does not answer, or for locks of other transactions."""
_WAIT_S = 0.2
_READ_ROWS = 20_000
_T = TypeVar("_T")


def open_sql(to: str, options: TargetOptions) -> SqlTarget:
    """The target for a database's URL with ``#table`` or ``#schema.table``: see `address`. Nothing is connected yet.

    Without a table `Target.open` takes the topic's name. Raises `ConfigError`.
    """
    return SqlTarget(parse_address(to), stage=options.stage)


class SqlTarget:
    """Change the rows, quarantine and account of a batch in one transaction, on a connection of its own.

    A transaction that met a deadlock, or whose connection broke, runs again, even if its COMMIT may have succeeded:
    the account shows that before anything is written.
    """

    is_partitioned = False
    keeps_partition_columns = False
    keeps_nan = False
    names = IN_DATABASES
    lacks: frozenset[Lack] = frozenset({"nanos"})

    def __init__(
        self,
        address: Address,
        *,
        stage: str | None = None,
        patience_s: float = PATIENCE_S,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._address = address
        self._stage = Stage(stage)
        self._patience_s = patience_s
        self._wait = wait
        self.engine = _engine(address)
        self._looking = self.engine.execution_options(**{LOOKS: True})
        self._dialect = _dialect(self.engine)
        self._state: SinkState | None = None
        """None until it is opened, and after a commit that failed."""

    @property
    def name(self) -> str:
        return self._address.name

    def limits(self, upsert: tuple[str, ...]) -> SqlLimits:
        limits = SqlLimits(type(self._dialect), upsert)
        if self._dialect.longest_packet is None:
            return limits
        longest = self._run(self._dialect.longest_row_bytes, may_wait=False, looks=True)
        return limits._replace(longest_bytes=longest)

    def open(self, new_table: NewTable, now_ms: int) -> SinkState:
        if self._address.table is None:
            self._address = self._address._replace(table=table_of(new_table.topic))
        self._state = None
        account, tables = self._account(), self._tables()
        self._dialect.check(tables.quarantine)
        self._run(lambda connection: account.exists(connection) or account.make(connection), may_wait=False)

        def opened(connection: Connection) -> SinkState:
            state = account.load(connection, lock=True)
            if state is None:
                tables.check_absent(connection)
                state = take_over(new_account(new_table, new_id(), now_ms), new_table)
                account.insert(connection, state)
                return state
            check_new_table(self.name, state, new_table)
            tables.check_present(connection, state)
            mine = take_over(state, new_table)
            if not account.replace(connection, state, mine):
                raise CorruptRecord(f"{self.name}: its account changed under a lock: restore it from a copy")
            return mine

        state = self._run(opened, may_wait=False)
        self._stage.clear(state)
        self._state = state
        return state

    def stage_directory(self) -> str:
        return self._stage.directory(self._opened())

    def commit(self, batch: Batch, now_ms: int) -> SinkState:
        state = self._opened()
        batch = batch._replace(columns=held(batch.columns))
        following = advanced(state, batch, now_ms)
        account, tables, dialect = self._account(), self._tables(), self._dialect
        self._state = None  # until this has gone well
        change = tables.change(state, following)

        def committed(connection: Connection) -> None:
            if not account.replace(connection, state, following):
                if account.load(connection) != following:  # else it was committed, and the answer was lost
                    raise fenced(self.name, state)
                return
            if change is not None and dialect.is_transactional:
                tables.make(connection, change)
            tables.write(connection, following, batch)

        def changed(connection: Connection) -> None:
            """Change the tables outside the transaction, if this landing still owns them. Running twice is harmless."""
            if change is not None and account.load(connection) in (state, following):
                tables.make(connection, change)

        if change is not None and not dialect.is_transactional:
            self._run(changed)
        self._run(committed)
        self._stage.clear(following)
        self._state = following
        return following

    def close(self) -> None:
        if self._state is not None:
            self._stage.clear(self._state)
        self._state = None
        self.engine.dispose()

    # -- for looking at it --------------------------------------------------------------------------------------------

    def state(self) -> SinkState | None:
        account = self._account()
        if file_is_missing(self._address):
            return None
        return self._run(
            lambda connection: account.load(connection) if account.exists(connection) else None,
            may_wait=False,
            looks=True,
        )

    def strangers(self) -> list[str]:
        return []

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Read with a single statement, which sees a single state of the table however long it takes."""
        state = self.state()
        layout = self._tables().rows(state) if state is not None else None
        if layout is not None:
            yield from self._rows(layout, columns)

    def read_quarantine(self) -> Iterator[pa.RecordBatch]:
        state = self.state()
        if state is not None and state.schema:
            layout = self._tables().quarantine
            yield from self._rows(layout, layout.names)

    def files(self) -> FileCount | None:
        return None

    def compact(self, *, before: str | None, min_files: int) -> Compacted:
        raise ConfigError(f"{self.name}: a database has no files to compact; it reclaims space on its own")

    # -- transactions -------------------------------------------------------------------------------------------------

    def _opened(self) -> SinkState:
        if self._state is None:
            raise ConfigError(f"{self.name} is not open: open it (again), its account says where to go on")
        return self._state

    def _account(self) -> Account:
        return Account(self._address.schema, self._named())

    def _tables(self) -> Tables:
        return Tables(self._dialect, self._address.schema, self._named(), self.name)

    def _named(self) -> str:
        if self._address.table is None:
            raise ConfigError(f"{self.name} names no table: say it after a #, as in {self.name}#orders")
        return self._address.table

    def _run(self, work: Callable[[Connection], _T], *, may_wait: bool = True, looks: bool = False) -> _T:
        """Run a transaction, again if others are in its way or, if it ``may_wait``, the database is away."""
        engine = self._looking if looks else self.engine
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except Exception as error:
                trouble = kind_of_error(error)
                again = trouble in ("conflict", "taken") or (trouble == "away" and may_wait)
                if not again or time.monotonic() >= deadline:
                    self._raise(error)
                self._wait(_WAIT_S)

    def _rows(self, layout: Layout, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        columns = [layout.column(name) for name in names]
        schema = pa.schema([(column.name, column.type) for column in columns])
        select = self._dialect.select(layout, names)
        try:
            with self._looking.begin() as connection:
                streaming = connection.execution_options(stream_results=True)
                with contextlib.closing(streaming.exec_driver_sql(select)) as found:
                    for rows in found.partitions(_READ_ROWS):
                        values = zip(*rows, strict=True)
                        arrays = [unwire(list(each), column) for each, column in zip(values, columns, strict=True)]
                        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except Exception as error:
            self._raise(error)

    def _raise(self, error: Exception) -> NoReturn:
        own = own_error(error, self.name)
        raise own from (None if own is error else error)


def _engine(address: Address) -> Engine:
    import sqlalchemy.orm as _  # noqa: F401 - half imported, by pyiceberg in another thread, it breaks statements here
    from sqlalchemy import NullPool, create_engine

    of_kinds: dict[str, dict[str, Any]] = {
        "postgresql": {"client_encoding": "utf8"},
        "sqlite": {"timeout": PATIENCE_S},
    }
    settings = of_kinds.get(address.url.get_backend_name(), {"init_command": SESSION})
    # Connections do not grow old between batches; a statement in an error shows no values.
    return create_engine(address.url, poolclass=NullPool, hide_parameters=True, connect_args=settings)


def _dialect(engine: Engine) -> Dialect:
    kinds: dict[str, type[Dialect]] = {"postgresql": PostgresDialect, "sqlite": SqliteDialect}
    dialect = kinds.get(engine.dialect.name, MySqlDialect)(engine.dialect)
    dialect.prepare(engine)
    return dialect
