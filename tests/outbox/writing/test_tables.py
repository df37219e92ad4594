"""Tables are made by this package, by Alembic, or by hand; and `check` tells what is wrong with them."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

import alembic.op
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, Integer, MetaData, Table, inspect, text

import outbox.migrations  # noqa: F401 - for what it adds to Alembic's operations
from eventbus.cli.app import run
from eventbus.errors import ConfigError
from outbox import Inbox, Outbox, SqlOffsets
from outbox.schema import read_meta
from tests.databases import THREE, Database, NewDatabase
from tests.outbox.writing.given import events, made

pytestmark = pytest.mark.system


@pytest.fixture
def database(request: pytest.FixtureRequest, new_database: NewDatabase) -> Database:
    return new_database(getattr(request, "param", "sqlite"))


def check(database: Database, outbox: Outbox) -> list[str]:
    with database.plain.connect() as connection:
        return outbox.check(connection)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DROP TABLE eventbus_outbox_later", "the table eventbus_outbox_later is missing: outbox.create_tables()"),
        ("ALTER TABLE eventbus_outbox DROP COLUMN headers", "eventbus_outbox has no column headers: it is of another"),
        ("ALTER TABLE eventbus_outbox ADD tenant TEXT NOT NULL DEFAULT ''", ""),
        ("DELETE FROM eventbus_outbox_meta WHERE name = 'id'", "eventbus_outbox_meta has no row id: outbox.create"),
        ("DELETE FROM eventbus_outbox_shards WHERE shard >= 2", "no row for shard 2, 3, 4, 5, 6 and 57 more"),
        (
            "UPDATE eventbus_outbox_meta SET value = '0' WHERE name = 'version'",
            "version 0, and this program works with",
        ),
    ],
)
def test_what_is_wrong_and_how_to_mend_it(database: Database, statement: str, problem: str) -> None:
    outbox = made(database)
    with database.plain.begin() as connection:
        connection.execute(text(statement))
    found = check(database, outbox)
    if problem:
        (one,) = found
        assert problem in one
    else:
        assert found == []
    if "outbox.create_tables()" in problem or "shard" in problem:
        outbox.create_tables()
        assert check(database, outbox) == []


def test_a_table_that_another_made(database: Database) -> None:
    outbox = Outbox(database.engine)
    ours = [Column(one.name, one.type, primary_key=one.primary_key) for one in outbox.tables.events.c]
    Table("eventbus_outbox", MetaData(), Column("tenant", Integer, nullable=False), *ours).create(database.plain)
    outbox.create_tables()
    unfilled, reused = check(database, outbox)
    assert "a column that no event fills, and that must not be NULL: tenant; give it a default" in unfilled
    assert "gives ids again that were deleted: its id must be INTEGER PRIMARY KEY AUTOINCREMENT" in reused


@pytest.mark.parametrize("database", ["psycopg", "mariadb"], indirect=True)
def test_what_a_server_does_not_do_by_itself(database: Database) -> None:
    outbox = made(database)
    with database.plain.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE eventbus_outbox RESET (autovacuum_vacuum_threshold)"))
        else:
            connection.execute(text("ALTER TABLE eventbus_outbox ENGINE = MyISAM"))
    (problem,) = check(database, outbox)
    cure = problem[problem.index("ALTER TABLE") :]
    with database.plain.begin() as connection:
        connection.execute(text(cure))
    assert check(database, outbox) == []


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_many_processes_make_them_at_once(database: Database) -> None:
    start = threading.Barrier(4)
    errors: list[BaseException] = []

    def run() -> None:
        engine = database.new_plain()
        start.wait()
        try:
            Outbox(engine).create_tables()
        except Exception as error:  # shown by the assertion
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert check(database, Outbox(database.engine)) == []


def test_each_database_has_an_id_of_its_own(new_database: NewDatabase) -> None:
    ids: set[str] = set()
    for _ in range(2):
        database = new_database("sqlite")
        for _ in range(2):
            outbox = made(database)
            with database.plain.connect() as connection:
                ids.add(read_meta(connection, outbox.tables)["id"])
    assert len(ids) == 2


def test_ddl_of_an_unknown_dialect() -> None:
    with pytest.raises(
        ConfigError, match=r"'postgres': sqlite, postgresql, mysql, mariadb; did you mean 'postgresql'\?"
    ):
        Outbox(MetaData()).ddl("postgres")
    assert "InnoDB" not in Outbox(MetaData()).ddl("mysql")
    assert 'CREATE TABLE "Own".eventbus_outbox' in Outbox(MetaData(), schema="Own").ddl("postgresql")


def test_tables_in_the_users_metadata(database: Database) -> None:
    metadata = MetaData()
    mine = Table("orders", metadata, Column("id", Integer, primary_key=True))
    outbox = Outbox(metadata)
    assert outbox.tables.events is metadata.tables["eventbus_outbox"]
    metadata.create_all(database.plain)
    outbox.create_tables(database.plain)
    with database.plain.begin() as connection:
        connection.execute(mine.insert().values(id=1))
        outbox.publish(connection, "orders", b"1")
    assert len(events(database, outbox)) == 1


def migrate(connection: Connection, change: Callable[[], None]) -> None:
    """Run a migration's function, as Alembic does."""
    with Operations.context(MigrationContext.configure(connection)):
        change()


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_a_migration(database: Database) -> None:
    options: dict[str, Any] = {"name": "events", "shards": 4, "columns": "debezium", "archive": True}
    op: Any = alembic.op
    outbox = Outbox(database.engine, **options)
    with database.plain.begin() as connection:
        migrate(connection, lambda: op.create_outbox(**options))
        assert outbox.check(connection) == []
        migrate(connection, lambda: op.drop_outbox(**options))
        assert inspect(connection).get_table_names() == []


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_autogenerate_sees_them_as_any_other_table(database: Database) -> None:
    metadata = MetaData()
    outbox = Outbox(metadata, archive=True)
    op: Any = alembic.op
    with database.plain.begin() as connection:
        context = MigrationContext.configure(connection)
        assert {table.name for kind, table in compare_metadata(context, metadata) if kind == "add_table"} == {
            table.name for table in outbox.tables.all
        }
        metadata.create_all(connection)
        assert compare_metadata(context, metadata) == []
        migrate(connection, lambda: op.fill_outbox())
        assert outbox.check(connection) == []


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_autogenerate_sees_the_tables_of_an_inbox_as_any_other_table(database: Database) -> None:
    metadata, engine = MetaData(), database.engine
    op: Any = alembic.op
    Inbox(engine, metadata=metadata)
    Inbox(engine, metadata=metadata)  # of another handler
    SqlOffsets(engine, "group", metadata=metadata)
    with database.plain.begin() as connection:
        context = MigrationContext.configure(connection)
        migrate(connection, lambda: op.create_inbox())
        assert compare_metadata(context, metadata) == []
        migrate(connection, lambda: op.drop_inbox())
        added = {found[1].name for found in compare_metadata(context, metadata) if found[0] == "add_table"}
        assert added == {"eventbus_offsets", "eventbus_offsets_ids"}
        metadata.create_all(connection)
        assert compare_metadata(context, metadata) == []


@pytest.mark.parametrize("database", THREE, indirect=True)
def test_the_ddl_of_an_inbox_makes_the_same_tables(database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    metadata = MetaData()
    Inbox(database.engine, table="seen", metadata=metadata)
    dialect = database.plain.dialect.name.replace("mysql", "mariadb")
    assert run(["outbox", "ddl", "--inbox", "--table", "seen", "--dialect", dialect]) == 0
    with database.plain.begin() as connection:
        for statement in capsys.readouterr().out.split(";\n"):
            if statement.strip():
                connection.exec_driver_sql(statement)
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_a_migration_as_text() -> None:
    written = io.StringIO()
    options = {"as_sql": True, "output_buffer": written}
    op: Any = alembic.op
    with Operations.context(MigrationContext.configure(dialect_name="postgresql", opts=options)):
        op.create_outbox("orders", shards=2)
    sql = written.getvalue()
    assert "CREATE TABLE orders (" in sql
    assert "autovacuum_vacuum_threshold" in sql
    assert "CREATE INDEX ix_orders_later_due_ms" in sql
    assert "INSERT INTO orders_meta (name, value) VALUES ('shards', '2')" in sql
    assert "INSERT INTO orders_shards (shard, slot) VALUES (1, NULL)" in sql
