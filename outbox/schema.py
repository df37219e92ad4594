"""Create, fill and check the outbox's tables, and explain errors about them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError
from eventbus.suggest import nearest
from outbox.autocommit import AUTOCOMMIT, is_autocommit
from outbox.database import proxy_advice
from outbox.sequence import restarted
from outbox.table_names import exists, quoted, schema_of, shown
from outbox.tables import VERSION, OutboxTables

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Dialect
    from sqlalchemy.engine.interfaces import ReflectedColumn

_CREATE = "outbox.create_tables(), a migration with op.create_outbox(), or what `eventbus outbox ddl` prints"

_NO_TABLE_STATES = frozenset({"42P01", "42S02", "3F000"})
_NO_COLUMN_STATES = frozenset({"42703", "42S22"})
_READ_ONLY_STATES = frozenset({"25006"})
_NO_TABLE_NUMBERS = frozenset({1146})
_NO_COLUMN_NUMBERS = frozenset({1054})
_READ_ONLY_NUMBERS = frozenset({1290, 1792, 1836})


def lock_name(shard: int) -> str:
    """Return the name of meta's row that ``strict_order`` locks for a shard."""
    return f"lock {shard:04}"


def meta_rows(tables: OutboxTables) -> list[dict[str, str]]:
    """Return the initial rows of meta.

    The ``id`` identifies this database. It is part of the relays' transactional ids, so that services whose outboxes
    share a name and a log do not fence each other.
    """
    return [
        {"name": "version", "value": str(VERSION)},
        {"name": "shards", "value": str(tables.shard_count)},
        {"name": "id", "value": secrets.token_hex(6)},
        *({"name": lock_name(shard), "value": ""} for shard in range(tables.shard_count)),
    ]


def shard_rows(tables: OutboxTables) -> list[dict[str, Any]]:
    """Return a row for each shard, without an owner."""
    return [{"shard": shard, "slot": None} for shard in range(tables.shard_count)]


def create(connection: Connection, tables: OutboxTables) -> None:
    """Create and fill missing tables. Raises ConfigError for tables with another number of shards or version."""
    from sqlalchemy import select

    if is_autocommit(connection):
        raise ConfigError(AUTOCOMMIT)
    for table in tables.all:
        table.create(connection, checkfirst=True)
    meta = read_meta(connection, tables)
    problem = mismatch(meta, tables)
    if problem is not None:
        raise ConfigError(problem)
    missing = [row for row in meta_rows(tables) if row["name"] not in meta]
    if missing:
        connection.execute(tables.meta.insert(), missing)
    shards = set(connection.scalars(select(tables.shards.c.shard)))
    free = [row for row in shard_rows(tables) if row["shard"] not in shards]
    if free:
        connection.execute(tables.shards.insert(), free)


def read_meta(connection: Connection, tables: OutboxTables) -> dict[str, str]:
    """Return meta's rows as a dictionary."""
    from sqlalchemy import select

    columns = tables.meta.c
    return {name: value for name, value in connection.execute(select(columns.name, columns.value))}


def mismatch(meta: dict[str, str], tables: OutboxTables) -> str | None:
    """Return why the tables do not match this program, as far as meta shows it, or None."""
    version, shards = meta.get("version", str(VERSION)), meta.get("shards", str(tables.shard_count))
    if version != str(VERSION):
        return (
            f"the outbox {tables.name!r} in the database is of version {version}, and this program works with version "
            f"{VERSION}: run the migration of the release that brought it, or the program that fits"
        )
    if shards != str(tables.shard_count):
        return (
            f"the outbox {tables.name!r} in the database has {shards} shards, and this program says "
            f"{tables.shard_count}: Outbox(shards={shards}); to change it, stop all writers and relays when the table "
            f"is empty, drop its tables and create them again"
        )
    return None


# checking ------------------------------------------------------------------------------------------------------------


def check(connection: Connection, tables: OutboxTables) -> list[str]:
    """Return the problems of the tables, each with its fix. Empty if there are none. Changes nothing."""
    from sqlalchemy import inspect, select

    inspector = inspect(connection)
    missing = [table for table in tables.all if not exists(connection, table)]
    problems = [AUTOCOMMIT] if is_autocommit(connection) else []
    problems += [f"the table {shown(connection, table)} is missing: {_CREATE}" for table in missing]
    for table in tables.all:
        if table not in missing:
            found = inspector.get_columns(table.name, schema=schema_of(connection, table))
            problems += _of_columns(table, shown(connection, table), found)
    if tables.meta not in missing:
        meta = read_meta(connection, tables)
        problem = mismatch(meta, tables)
        if problem is not None:
            return [*problems, problem]
        absent = [row["name"] for row in meta_rows(tables) if row["name"] not in meta]
        if absent:
            problems.append(f"the table {shown(connection, tables.meta)} has no row {_some(absent)}: {_CREATE}")
    if tables.shards not in missing:
        shards = set(connection.scalars(select(tables.shards.c.shard)))
        absent = [str(shard) for shard in range(tables.shard_count) if shard not in shards]
        if absent:
            problems.append(
                f"the table {shown(connection, tables.shards)} has no row for shard {_some(absent)}: {_CREATE}"
            )
    if not missing and not problems:
        problems = [*filter(None, (restarted(connection, tables),))]
    return [*problems, *_of_dialect(connection, tables, {table.name for table in missing})]


def _of_columns(table: Table, name: str, found: list[ReflectedColumn]) -> list[str]:
    names = {column["name"] for column in found}
    absent = [column.name for column in table.columns if column.name not in names]
    if absent:
        return [
            f"the table {name} has no column {', '.join(absent)}: it is of another version, or was made with "
            "another columns=...; run the migration, or name the preset it was made with"
        ]
    ours = {column.name for column in table.columns}
    strange = [
        each["name"] for each in found if each["name"] not in ours and not each["nullable"] and not each.get("default")
    ]
    if strange:
        return [
            f"the table {name} has a column that no event fills, and that must not be NULL: "
            f"{', '.join(strange)}; give it a default"
        ]
    return []


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _of_dialect(connection: Connection, tables: OutboxTables, missing: set[str]) -> list[str]:
    """Return missing settings that an outbox needs and that the database does not have by default."""
    if tables.events.name in missing:
        return []
    name = connection.dialect.name
    if name == "sqlite":
        return _of_sqlite(connection, tables)
    if name == "postgresql":
        return _of_postgresql(connection, tables)
    return _of_mysql(connection, tables, missing) if name in ("mysql", "mariadb") else []


def _of_sqlite(connection: Connection, tables: OutboxTables) -> list[str]:
    from sqlalchemy import column, select, table

    master = table("sqlite_master", column("sql"), column("name"), schema=schema_of(connection, tables.events))
    made = connection.scalar(select(master.c.sql).where(master.c.name == tables.events.name))
    if "AUTOINCREMENT" in str(made).upper():
        return []
    return [
        f"the table {shown(connection, tables.events)} gives ids again that were deleted: its {tables.columns.id} must "
        "be INTEGER PRIMARY KEY AUTOINCREMENT; drop the table while it is empty, and create it again"
    ]


def _of_postgresql(connection: Connection, tables: OutboxTables) -> list[str]:
    from sqlalchemy import text

    options = connection.scalar(
        text("SELECT reloptions::text FROM pg_class WHERE oid = CAST(:name AS regclass)"),
        {"name": quoted(connection, tables.events)},
    )
    if "autovacuum_vacuum_threshold" in str(options):
        return []
    return [
        f"the table {shown(connection, tables.events)} is vacuumed like any other, and a queue is mostly dead rows: "
        f"ALTER TABLE {quoted(connection, tables.events)} SET (autovacuum_vacuum_scale_factor = 0, "
        "autovacuum_vacuum_threshold = 1000)"
    ]


def _of_mysql(connection: Connection, tables: OutboxTables, missing: set[str]) -> list[str]:
    from sqlalchemy import text

    found = connection.execute(
        text("SELECT table_name, engine FROM information_schema.tables WHERE table_schema = COALESCE(:s, DATABASE())"),
        {"s": schema_of(connection, tables.events)},
    )
    engines = {str(name): str(engine) for name, engine in found}
    return [
        f"the table {shown(connection, table)} is of the engine {engines.get(table.name)}, which has no transactions: "
        f"ALTER TABLE {quoted(connection, table)} ENGINE = InnoDB"
        for table in tables.all
        if table.name not in missing and engines.get(table.name, "").lower() != "innodb"
    ]


# DDL -----------------------------------------------------------------------------------------------------------------


DIALECTS = {name: f"{name}+{driver}" for name, driver in (
    ("sqlite", "pysqlite"), ("postgresql", "psycopg"), ("mysql", "pymysql"), ("mariadb", "pymysql")
)}  # fmt: skip
"""SQLAlchemy dialects by name. The driver is only used to compile statements and need not be installed."""


def ddl(tables: OutboxTables, dialect_name: str) -> str:
    """Return the statements that `create` would run in an empty database. Raises ConfigError."""
    dialect = _dialect(dialect_name)
    statements = list(_creating(tables.all, dialect))
    for table, rows in ((tables.meta, meta_rows(tables)), (tables.shards, shard_rows(tables))):
        insert = table.insert().values(rows)
        statements.append(str(insert.compile(dialect=dialect, compile_kwargs={"literal_binds": True})))
    return _script(statements)


def inbox_ddl(tables: Iterable[Table], dialect_name: str) -> str:
    """Return the statements that create the tables of an inbox. Raises ConfigError."""
    return _script(_creating(tables, _dialect(dialect_name)))


def _dialect(name: str) -> Dialect:
    from sqlalchemy import make_url

    if name not in DIALECTS:
        raise ConfigError(f"dialect {name!r}: {', '.join(DIALECTS)}{nearest(name, DIALECTS)}")
    return make_url(f"{DIALECTS[name]}://").get_dialect()()


def _creating(tables: Iterable[Table], dialect: Dialect) -> Iterator[str]:
    from sqlalchemy.schema import CreateIndex, CreateTable

    for table in tables:
        yield str(CreateTable(table).compile(dialect=dialect)).strip()
        yield from (str(CreateIndex(index).compile(dialect=dialect)) for index in sorted(table.indexes, key=str))


def _script(statements: Iterable[str]) -> str:
    return "".join(f"{statement};\n\n" for statement in statements)


# errors --------------------------------------------------------------------------------------------------------------


def explained(error: Exception, tables: OutboxTables) -> Exception:
    """Return the error to raise: ConfigError if tables are missing or outdated, else the given error."""
    original: Any = getattr(error, "orig", None)
    if original is None:
        return error  # not an error of the database
    state = str(getattr(original, "sqlstate", "") or getattr(original, "pgcode", "") or "")
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    number = arguments[0] if arguments and isinstance(arguments[0], int) else None
    said = str(original).lower()
    first_line = str(original).partition("\n")[0]
    if state in _NO_TABLE_STATES or number in _NO_TABLE_NUMBERS or "no such table" in said:
        return ConfigError(
            f"this database has no table {tables.events.fullname!r} ({first_line}): create it with {_CREATE}; or the "
            "session is of another database than the outbox"
        )
    if state in _NO_COLUMN_STATES or number in _NO_COLUMN_NUMBERS or "has no column named" in said:
        return ConfigError(
            f"the table {tables.events.fullname!r} has other columns than this program writes ({first_line}): it is of "
            "another version, or was made with another columns=...; run `eventbus outbox check`"
        )
    if advice := proxy_advice(error):
        error.add_note(advice)
    if state in _READ_ONLY_STATES or number in _READ_ONLY_NUMBERS or "readonly database" in said:
        error.add_note("an event is written here: the transaction is read-only, or this database is a replica; "
                       "publish with a session of the primary")  # fmt: skip
    return error
