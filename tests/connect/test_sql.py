"""Rows become records: each once, in the order that the mode says, whatever the database calls its types."""

from __future__ import annotations

import json
import sqlite3
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from eventbus import EventBus
from eventbus.connect import Connectors
from eventbus.connect.converters import JsonConverter
from eventbus.connect.sql_source import SqlSource, sqlalchemy_url
from eventbus.errors import ConfigError
from tests.connect.conftest import Notes, Opened, all_values
from tests.databases import Database

pytestmark = pytest.mark.system

INVOICES = "CREATE TABLE invoices (id INTEGER PRIMARY KEY, who VARCHAR(20) NOT NULL, changed VARCHAR(30) NOT NULL)"
MODES: dict[str, dict[str, str]] = {
    "incrementing": {},
    "timestamp": {"timestamp.column.name": "changed"},
    "timestamp+incrementing": {"timestamp.column.name": "changed", "incrementing.column.name": "id"},
    "bulk": {},
}


class Shop:
    """A database with a table of invoices."""

    def __init__(self, folder: Path, opened: Opened) -> None:
        self.url = f"sqlite:///{folder / 'shop.db'}"
        self.engine = sa.create_engine(self.url)
        self.run("CREATE TABLE invoices (id INTEGER PRIMARY KEY, who TEXT NOT NULL, changed DATETIME NOT NULL)")
        self._opened = opened
        self._offsets: dict[str, Any] = {}
        self.source: Any = None

    def run(self, *statements: str) -> None:
        with self.engine.begin() as connection:
            for one in statements:
                connection.execute(sa.text(one))

    def add(self, number: int, who: str = "ada", changed: str = "2023-01-01 00:00:00") -> None:
        self.run(f"INSERT INTO invoices VALUES ({number}, '{who}', '{changed}')")

    def open(self, **settings: str) -> None:
        given = {"connection.url": self.url, "topic.prefix": "", **settings}
        self.source = self._opened(SqlSource, given, self._offsets)

    def come(self) -> list[int]:
        """Ids of a round."""
        found: list[int] = []
        while records := self.source.poll():
            found += [record.value["id"] for record in records]
            if records[-1].offset:
                self._offsets = {json.dumps(records[-1].partition, separators=(",", ":")): records[-1].offset}
        return found


@pytest.fixture
def shop(tmp_path: Path, opened: Opened) -> Any:
    made = Shop(tmp_path, opened)
    yield made
    made.engine.dispose()


@pytest.mark.parametrize("mode", ["incrementing", "timestamp", "timestamp+incrementing"])
@pytest.mark.parametrize("batch", ["1", "2", "1000"])
def test_each_row_comes_once_and_after_a_restart_too(shop: Shop, mode: str, batch: str) -> None:
    settings = {"mode": mode, "batch.max.rows": batch, **MODES[mode]}
    for number in range(1, 6):
        shop.add(number, changed=f"2023-01-01 00:00:0{number // 3}")
    shop.open(**settings)
    assert shop.come() == [1, 2, 3, 4, 5]
    assert shop.come() == []
    shop.add(6, changed="2023-01-02 00:00:00")
    shop.open(**settings)
    assert shop.come() == [6]


def test_numbers_that_begin_again_are_noted(shop: Shop, notes: Notes) -> None:
    for number in (1, 2, 3):
        shop.add(number)
    shop.open(mode="incrementing")
    assert shop.come() == [1, 2, 3]
    shop.open(mode="incrementing")
    assert notes == []
    shop.run("DELETE FROM invoices")
    shop.open(mode="incrementing")
    assert notes == [], "an empty table may go on"
    shop.add(1)
    shop.open(mode="incrementing")
    assert notes.has("read up to id=3, and its highest is 1") and notes.has("offsets reset source")


def test_a_changed_row_comes_again_by_its_time(shop: Shop) -> None:
    shop.add(1)
    shop.add(2)
    shop.open(mode="timestamp", **MODES["timestamp"])
    assert shop.come() == [1, 2]
    shop.run("UPDATE invoices SET changed = '2023-02-01 00:00:00' WHERE id = 1")
    assert shop.come() == [1]


def test_rows_of_one_time_stay_together_where_there_is_no_key(shop: Shop) -> None:
    """A place between two of them cannot be named."""
    shop.run("CREATE TABLE log (id INTEGER, changed DATETIME)")
    shop.run(*(f"INSERT INTO log VALUES ({number}, '2023-01-0{1 + (number > 5)}')" for number in range(9)))
    shop.open(
        mode="timestamp", **MODES["timestamp"], **{"table.whitelist": "log", "batch.max.rows": "4"},
        **{"validate.non.null": "false"},
    )  # fmt: skip
    batches = [[record.value["id"] for record in shop.source.poll()] for _ in range(3)]
    assert batches == [[0, 1, 2, 3, 4, 5], [6, 7, 8], []]


def test_bulk_brings_all_each_round_in_batches(shop: Shop) -> None:
    for number in range(1, 6):
        shop.add(number)
    shop.open(mode="bulk", **{"batch.max.rows": "2"})
    assert [len(shop.source.poll()) for _ in range(4)] == [2, 2, 1, 0]
    assert shop.come() == [1, 2, 3, 4, 5]


def test_a_row_that_is_younger_than_the_delay_waits(shop: Shop) -> None:
    """Its transaction may commit after one that began later: the clock stands at 2023-11-14 22:13:20."""
    shop.add(1, changed="2023-11-14 22:13:09")
    shop.add(2, changed="2023-11-14T22:13:11")
    shop.open(mode="timestamp", **MODES["timestamp"], **{"timestamp.delay.interval.ms": "10000"})
    assert shop.come() == [1]
    shop.open(mode="timestamp", **MODES["timestamp"])
    assert shop.come() == [2]


def test_the_first_time_that_is_there_counts(shop: Shop) -> None:
    shop.run("ALTER TABLE invoices ADD COLUMN updated DATETIME")
    shop.run("INSERT INTO invoices VALUES (1, 'a', '2023-01-01', '2023-03-01'), (2, 'b', '2023-02-01', NULL)")
    shop.open(mode="timestamp", **{"timestamp.column.name": "updated,changed"})
    assert shop.come() == [2, 1]


def test_a_query_with_colons_and_percent_signs(shop: Shop) -> None:
    for number in range(1, 4):
        shop.add(number, who=f"a:{number}%")
    query = "SELECT id, who AS name FROM invoices WHERE who LIKE 'a:%' AND id % 2 = 1;"
    shop.open(mode="incrementing", query=query, **{"incrementing.column.name": "id", "topic.prefix": "odd"})
    records = shop.source.poll()
    assert [(record.topic, record.value) for record in records] == [
        ("odd", {"id": 1, "name": "a:1%"}), ("odd", {"id": 3, "name": "a:3%"}),
    ]  # fmt: skip


def test_all_tables_but_those_left_out_and_new_ones(shop: Shop) -> None:
    shop.run("CREATE TABLE people (id INTEGER PRIMARY KEY)", "CREATE TABLE secrets (id INTEGER PRIMARY KEY)")
    shop.add(1)
    shop.run("INSERT INTO people VALUES (7)", "INSERT INTO secrets VALUES (9)")
    shop.open(mode="incrementing", **{"table.blacklist": "secr.*", "topic.prefix": "shop-"})
    found = [(record.topic, record.value["id"]) for _ in range(2) for record in shop.source.poll()]
    assert sorted(found) == [("shop-invoices", 1), ("shop-people", 7)]


def test_a_table_far_ahead_does_not_hold_up_the_others(shop: Shop) -> None:
    """A round ends, so whoever waits between rounds does, however quickly one table grows."""
    shop.run("CREATE TABLE people (id INTEGER PRIMARY KEY)", "INSERT INTO people VALUES (1)")
    shop.open(mode="incrementing", **{"batch.max.rows": "10"})
    for number in range(1, 20):
        shop.add(number)
        if not shop.source.poll():
            break
    else:
        pytest.fail("the round did not end")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"mode": "incremental"}, "mode=incremental: one of .*did you mean 'incrementing'"),
        ({"mode": "timestamp"}, "mode=timestamp needs timestamp.column.name"),
        ({"mode": "bulk", "incrementing.column.name": "id"}, "mode=bulk has no incrementing column"),
        ({"mode": "incrementing", "timestamp.column.name": "a"}, "mode=incrementing has no timestamp column"),
        (
            {"mode": "incrementing", "incrementing.column.name": "idd"},
            "'invoices' has no column 'idd'; did you mean 'id'",
        ),
        ({"mode": "incrementing", "incrementing.column.name": "who"}, "'who' of 'invoices' is TEXT, not a number"),
        ({"mode": "timestamp", "timestamp.column.name": "chnged"}, "no column 'chnged'; did you mean 'changed'"),
        ({"mode": "timestamp", "timestamp.column.name": "id"}, "is INTEGER, no date and time"),
        ({"mode": "incrementing", "table.whitelist": "invoice"}, "no table 'invoice'; did you mean 'invoices'"),
        ({"mode": "incrementing", "table.whitelist": "a", "table.blacklist": "b"}, "one of the two"),
        ({"mode": "incrementing", "query": "SELECT 1", "table.whitelist": "a"}, "exclude each other"),
        ({"mode": "bulk", "query": "SELEC 1", "topic.prefix": "q"}, "the database refuses the query: .*syntax error"),
        ({"mode": "bulk", "query": "SELECT 1"}, "topic.prefix is the topic's whole name"),
        ({"mode": "incrementing", "connection.url": "jdbc:oracle:thin:@h"}, "SQLAlchemy's URL"),
        ({"mode": "incrementing", "connection.url": "shop.db"}, "is not a URL of a database"),
        ({"mode": "incrementing", "connection.url": "sqlite:///nowhere.db"}, "no SQLite database nowhere.db"),
        ({"mode": "incrementing", "connection.url": "sqlite://"}, "in memory is empty"),
        ({"mode": "incrementing", "connection.url": "nosuch://h/d"}, "connection.url.*nosuch"),
        ({"mode": "incrementing", "db.timezone": "Mars"}, "no time zone 'Mars'"),
    ],
)
def test_what_is_wrong_is_named(shop: Shop, settings: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        shop.open(**settings)


@pytest.mark.parametrize("column", ["incrementing", "timestamp"])
def test_a_column_that_may_be_null_is_refused(shop: Shop, column: str) -> None:
    shop.run("CREATE TABLE loose (id INTEGER, at DATETIME)")
    name = {"incrementing": "id", "timestamp": "at"}[column]
    settings = {"mode": column, f"{column}.column.name": name, "table.whitelist": "loose"}
    with pytest.raises(ConfigError, match="may be null"):
        shop.open(**settings)
    shop.run("INSERT INTO loose VALUES (1, '2023-01-01'), (NULL, NULL), (2, '2023-01-02')")
    shop.open(**settings, **{"validate.non.null": "false"})
    assert shop.come() == [1, 2]


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("jdbc:sqlite:/var/shop.db", "sqlite:////var/shop.db"),
        ("jdbc:sqlite:shop.db", "sqlite:///shop.db"),
        ("jdbc:postgresql://h:5432/shop?user=a&password=b&ssl=true", "postgresql+psycopg://a:b@h:5432/shop"),
        ("jdbc:mysql://h/shop", "mysql+pymysql://h/shop"),
        ("postgresql+asyncpg://h/shop", "postgresql+psycopg://h/shop"),
        ("mssql+pyodbc://h/shop", "mssql+pyodbc://h/shop"),
    ],
)
def test_urls_of_jdbc(given: str, url: str) -> None:
    assert sqlalchemy_url(given, "here") == url


async def test_a_row_that_cannot_be_read_is_named_or_passed_over(
    make_bus: Callable[[], EventBus], shop: Shop, notes: Notes
) -> None:
    shop.run("CREATE TABLE days (id INTEGER PRIMARY KEY, day DATE)")
    shop.run("INSERT INTO days VALUES (1, '2023-01-01'), (2, 'yesterday'), (3, NULL)")
    settings = {
        "name": "days", "connector.class": "JdbcSource", "connection.url": shop.url, "mode": "incrementing",
        "table.include.list": "days", "topic.prefix": "",
    }  # fmt: skip
    bus = make_bus()
    bus.include(part := Connectors(settings, note=notes.append))
    async with bus:
        await bus.drain()
        assert await all_values(bus, "days") == ['{"id":1,"day":"2023-01-01"}'], "what came before it is stored"
    assert notes.has("column 'day' of days: 'yesterday': Invalid isoformat") and part.runs[0].state == "failed"
    bus = make_bus()
    bus.include(part := Connectors({**settings, "errors.tolerance": "all"}, note=notes.append))
    async with bus:
        await bus.drain()
        assert (await all_values(bus, "days"))[-1] == '{"id":3,"day":null}'
    assert part.runs[0].errors == 1


TYPES = {
    "sqlite": "d DECIMAL(9,2), f REAL, b BLOB, day DATE, at DATETIME, flag BOOLEAN, t TEXT",
    "psycopg": "d NUMERIC(9,2), f DOUBLE PRECISION, b BYTEA, day DATE, at TIMESTAMP, flag BOOLEAN, t TEXT",
    "mariadb": "d DECIMAL(9,2), f DOUBLE, b BLOB, day DATE, at DATETIME(6), flag TINYINT, t TEXT",
}
ROW = "'1234.50', 0.5, {bytes}, '2023-01-02', '2023-01-02 03:04:05.678', {true}, 'ü'"


@pytest.mark.parametrize("database", list(TYPES), indirect=True)
async def test_types_and_times_of_each_database(database: Database, notes: Notes) -> None:
    literals = {
        "bytes": r"'\x00ff'" if database.kind == "psycopg" else "x'00ff'",
        "true": "1" if database.kind != "psycopg" else "true",
    }
    with database.plain.begin() as connection:
        create = f"CREATE TABLE things (id INTEGER PRIMARY KEY, {TYPES[database.kind]}, changed TIMESTAMP NOT NULL)"
        connection.execute(sa.text(create))
        row = ROW.format(**literals)
        for number in (1, 2, 3):
            insert = f"INSERT INTO things VALUES ({number}, {row}, '2023-01-02 00:00:00')".replace(":0", r"\:0")
            connection.execute(sa.text(insert))
    settings = {
        "name": "things", "connector.class": "JdbcSource", "connection.url": database.url, "topic.prefix": "",
        "mode": "timestamp+incrementing", "timestamp.column.name": "changed", "batch.max.rows": 2,
        "incrementing.column.name": "id", "table.whitelist": "things",
    }  # fmt: skip
    enveloped = {**settings, "name": "enveloped", "topic.prefix": "x-", "value.converter": "JsonConverter"}
    bus = EventBus("memory://")
    bus.include(Connectors(settings, enveloped, note=notes.append))
    async with bus:
        await bus.drain()
        plain = [json.loads(text) for text in await all_values(bus, "things")]
        with_schema = [json.loads(text) for text in await all_values(bus, "x-things")]
    flag = 1 if database.kind == "mariadb" else True
    changed = "2023-01-02T00:00:00"
    expected = {
        "d": 1234.5, "f": 0.5, "b": "AP8=", "day": "2023-01-02", "at": "2023-01-02T03:04:05.678", "flag": flag,
        "t": "ü",
    }  # fmt: skip
    for number, one in enumerate(plain, 1):
        at = one.pop("at").removesuffix("000")
        assert {**one, "at": at} == {"id": number, **expected, "changed": changed}
    assert len(plain) == len(with_schema) == 3
    assert with_schema[2]["payload"] == {
        "id": 3, "d": "AeI6", "f": 0.5, "b": "AP8=", "day": 19359, "at": 1672628645678, "flag": flag, "t": "ü",
        "changed": 1672617600000,
    }  # fmt: skip


@pytest.mark.parametrize("database", ["psycopg"], indirect=True)
def test_columns_of_a_query_have_names_of_their_own(database: Database, opened: Opened) -> None:
    settings = {"connection.url": database.url, "mode": "bulk", "topic.prefix": "q", "query": "SELECT 1 AS a, 2 AS a"}
    with pytest.raises(ConfigError, match="two columns are called 'a'"):
        opened(SqlSource, settings)


async def test_a_database_that_is_away_is_waited_for(notes: Notes) -> None:
    settings = {
        "name": "away", "connector.class": "JdbcSource", "mode": "bulk", "topic.prefix": "x",
        "connection.url": "postgresql+psycopg://u:secret@127.0.0.1:1/d", "query": "SELECT 1",
    }  # fmt: skip
    bus = EventBus("memory://")
    bus.include(part := Connectors(settings, note=notes.append))
    async with bus:
        await bus.drain()
        assert part.runs[0].state == "waiting"
    assert notes.has("begins again in 1 s") and notes.has("onnection refused")
    assert not notes.has("secret")


@pytest.mark.parametrize(
    "mode",
    [
        {"mode": "bulk"},
        {"mode": "incrementing", "incrementing.column.name": "id"},
        {"mode": "timestamp", "timestamp.column.name": "changed"},
    ],
    ids=lambda mode: mode["mode"],
)
def test_a_large_table_is_never_in_memory(tmp_path: Path, opened: Opened, mode: dict[str, str]) -> None:
    """4 MB of rows, 50 at a time."""
    with sqlite3.connect(tmp_path / "large.db") as database:
        database.execute("CREATE TABLE large (id INTEGER PRIMARY KEY, changed DATETIME NOT NULL, text TEXT NOT NULL)")
        rows = ((number, f"2023-01-01 00:00:{number // 100 % 60:02}", "x" * 2_000) for number in range(2_000))
        database.executemany("INSERT INTO large VALUES (?, ?, ?)", rows)
    database.close()
    url = f"sqlite:///{tmp_path / 'large.db'}"
    source = opened(SqlSource, {"connection.url": url, "batch.max.rows": 50, **mode})
    source.poll()  # what is compiled and cached once
    tracemalloc.start()
    try:
        count = 50
        while records := source.poll():
            assert len(records) <= 50
            count += len(records)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 2_000
    assert peak_bytes < 1_000_000


def test_a_time_without_a_zone_is_one_of_the_databases_zone(shop: Shop) -> None:
    shop.add(1, changed="2023-07-01 12:00:00")
    shop.open(mode="bulk")
    assert shop.source.poll()[0].value["changed"].tzinfo is None
    shop.open(mode="bulk", **{"db.timezone": "Europe/Berlin"})
    [record] = shop.source.poll()
    schemas = JsonConverter(schemas=True, numeric_decimals=True).to_bytes("t", record.schema, record.value)
    assert json.loads(schemas or b"")["payload"]["changed"] == 1_688_205_600_000, "12:00 in Berlin is 10:00 in UTC"
    plain = JsonConverter(schemas=False, numeric_decimals=True).to_bytes("t", record.schema, record.value)
    assert json.loads(plain or b"")["changed"] == "2023-07-01T12:00:00+02:00"
