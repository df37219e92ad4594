"""The choice of a database and an outbox: each is found, or a one-line error says what to do."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from sqlalchemy import inspect, text

from outbox import Outbox
from tests.cli.conftest import Cli
from tests.databases import NewDatabase
from tests.outbox.cli.conftest import OnOutbox, Shop

pytestmark = pytest.mark.system

on_sqlite = pytest.mark.parametrize("shop", ["sqlite"], indirect=True)


@pytest.fixture(autouse=True)
def no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EVENTBUS_DATABASE", raising=False)


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("", 2, "which database? Give its URL with --database, or in EVENTBUS_DATABASE"),
        ("shop.db", 2, "--database shop.db: that is not a database URL, as postgresql://me@localhost/shop"),
        ("postgres://me@localhost/shop", 2, "postgres:// is not a database that SQLAlchemy supports; say postgresql://"),
        ("oracel://localhost/shop", 2, "oracel:// is not a database that SQLAlchemy supports; as postgresql://"),
        ("sqlite://", 2, "a database in memory is its own process's"),
        ("sqlite:///no/such.db", 1, "error: there is no file"),
        ("mysql://localhost/shop", 1, 'the driver MySQLdb, which is not installed: pip install "mysqlclient", or use'),
        ("postgresql+psycopg://me:secret@127.0.0.1:1/shop", 1, "cannot be reached: connection failed"),
        ("postgresql+asyncpg://me:secret@127.0.0.1:1/shop", 1, "cannot be reached"),
        ("mysql+pymysql://me:secret@127.0.0.1:1/shop", 1, "cannot be reached"),
        ("mysql+aiomysql://me:secret@127.0.0.1:1/shop", 1, "cannot be reached"),
    ],
)  # fmt: skip
def test_a_url_that_leads_nowhere(cli: Cli, url: str, code: int, said: str) -> None:
    found = cli("outbox", "status", *(("--database", url) if url else ()))
    assert (found.code, found.out) == (code, "") and said in found.err, found.err
    assert len(found.err.splitlines()) == 1 and "secret" not in found.err
    assert not Path("no").exists()


def missing(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """Make a module appear not installed."""
    find = importlib.util.find_spec

    def found(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == module else find(name, package)

    monkeypatch.setattr("outbox.cli.database.find_spec", found)


def test_what_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    missing(monkeypatch, "greenlet")
    found = cli("outbox", "status", "--database", "postgresql+asyncpg://me@localhost/shop")
    assert found.code == 1 and found.err == (
        'error: postgresql+asyncpg:// is asynchronous, which needs greenlet: pip install "sqlalchemy[asyncio]"\n'
    )
    missing(monkeypatch, "sqlalchemy")
    found = cli("outbox", "ddl", "--dialect", "sqlite")
    assert found.code == 1 and found.err == 'error: SQLAlchemy is not installed: pip install "eventbus-log[sql]"\n'


def test_the_default_driver_that_is_not_installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver(*_: object, **__: object) -> None:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr("sqlalchemy.create_engine", no_driver)
    found = cli("outbox", "status", "--database", "postgresql://me@localhost/shop")
    assert found.err.startswith(
        "error: postgresql:// means the driver psycopg, which is not installed: "
        'pip install "psycopg[binary]", or use what is there: postgresql+'
    )


@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "asyncpg", "mariadb"])
def test_a_database_without_one(kind: str, cli: Cli, new_database: NewDatabase) -> None:
    database = new_database(kind)
    with database.plain.begin() as connection:
        connection.execute(text("CREATE TABLE shop (id INTEGER)"))
    found = cli("outbox", "status", "--database", database.url)
    assert found.code == 1 and "there is no outbox 'eventbus_outbox' in this database: create its tables" in found.err


@on_sqlite
def test_one_of_another_name(shop: Shop, on_outbox: OnOutbox) -> None:
    Outbox(shop.database.engine, "sales_outbox").create_tables()
    found = on_outbox("status", "--name", "shop_outbox")
    assert found.code == 1 and "there is eventbus_outbox, sales_outbox: name it with --name" in found.err
    assert on_outbox("status", "--name", "sales_outbox", "--json").json["name"] == "sales_outbox"


@pytest.mark.parametrize("kind", ["sqlite", "psycopg", "mariadb"])
def test_its_shape_is_read_from_the_database(kind: str, cli: Cli, new_database: NewDatabase) -> None:
    database = new_database(kind)
    shop = Shop(database, name="sales", shards=8, columns="debezium", archive=True)
    shop.publish("a")
    args = ("--database", database.url, "--name", "sales")
    found = cli("outbox", "status", *args, "--json")
    assert found.code == 0, found.err
    assert (found.json["shard_count"], found.json["archived"], found.json["waiting"]) == (8, 0, 1)
    assert cli("outbox", "check", *args).out == "outbox 'sales': no problems (7 tables, 8 shards)\n"


@pytest.mark.parametrize("shop", ["psycopg"], indirect=True)
def test_in_a_schema(shop: Shop, on_outbox: OnOutbox) -> None:
    with shop.database.plain.begin() as connection:
        connection.execute(text("CREATE SCHEMA sales"))
    Outbox(shop.database.engine, schema="sales").create_tables()
    shown = on_outbox("status", "--schema", "sales")
    assert shown.code == 0 and shown.lines[0].startswith("outbox sales.eventbus_outbox in "), shown.err
    assert "no outbox 'eventbus_outbox' in schema 'sale'" in on_outbox("status", "--schema", "sale").err


@on_sqlite
def test_check_tells_what_is_wrong(shop: Shop, on_outbox: OnOutbox) -> None:
    assert on_outbox("check").code == 0
    wrong = on_outbox("check", "--shards", "32")
    assert wrong.code == 1 and "has 64 shards, and this program says 32" in wrong.out
    shop.tables.failed.drop(shop.database.engine)
    gone = on_outbox("check", "--json")
    assert gone.code == 1 and "eventbus_outbox_failed is missing" in gone.json["problems"][0]
    status = on_outbox("status")
    assert status.code == 1 and "no such table: eventbus_outbox_failed; `eventbus outbox check`" in status.err
    assert len(status.err.splitlines()) == 1


def test_ddl_makes_an_outbox_that_is_well(cli: Cli, tmp_path: Path, new_database: NewDatabase) -> None:
    database = new_database("sqlite")
    script = cli("outbox", "ddl", "--dialect", "sqlite", "--shards", "4", "--archive")
    assert script.code == 0, script.err
    with database.plain.begin() as connection:
        for statement in script.out.split(";\n"):
            if statement.strip():
                connection.execute(text(statement))
    assert "eventbus_outbox_archive" in inspect(database.plain).get_table_names()
    assert "4 shards" in cli("outbox", "check", "--database", database.url).out
    assert cli("outbox", "ddl", "--database", "postgresql+asyncpg://nobody@nowhere/x", "--json").json["dialect"] == (
        "postgresql"
    )
    assert "aggregatetype" in cli("outbox", "ddl", "--dialect", "mysql", "--columns", "debezium").out
    assert "which database?" in cli("outbox", "ddl").err
