"""Where a table is: URLs with a table, drivers, what may not be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventbus.errors import ConfigError
from spark_sinks.targets.choose import TargetOptions, open_target
from spark_sinks.targets.sql.address import parse_address, table_of, with_topic
from spark_sinks.targets.target import NewTable

pytestmark = pytest.mark.system

OPTIONS = TargetOptions()


@pytest.mark.parametrize(
    ("to", "driver", "schema", "table", "name"),
    [
        ("postgresql://me@h/shop#orders", "postgresql+psycopg", None, "orders", "postgresql://me@h/shop#orders"),
        ("postgres://me@h/shop#a.orders", "postgresql+psycopg", "a", "orders", "postgresql://me@h/shop#a.orders"),
        ("postgresql+psycopg://h/shop", "postgresql+psycopg", None, None, "postgresql://h/shop"),
        ("mysql://me@h:3307/shop#ORDER", "mysql+pymysql", None, "ORDER", "mysql://me@h:3307/shop#ORDER"),
        ("mariadb+pymysql://h/shop#x y", "mariadb+pymysql", None, "x y", "mariadb://h/shop#x y"),
        ("sqlite:///shop.db#orders", "sqlite+pysqlite", None, "orders", "sqlite:///shop.db#orders"),
        ("postgresql://me:a#b@h/shop", "postgresql+psycopg", None, None, "postgresql://me@h/shop"),
    ],
)
def test_address(to: str, driver: str, schema: str | None, table: str | None, name: str) -> None:
    address = parse_address(to)
    assert (address.url.drivername, address.schema, address.table, address.name) == (driver, schema, table, name)


@pytest.mark.parametrize(
    ("to", "says"),
    [
        ("postgresql+asyncpg://me:secret@h/shop#orders", r"cannot use the driver asyncpg; say postgresql://"),
        ("postgresql+psycopg2://me:secret@h/shop#orders", r"cannot use the driver psycopg2; say postgresql://"),
        ("mysql+aiomysql://me:secret@h/shop#orders", r"cannot use the driver aiomysql; say mysql://"),
        ("sqlite+aiosqlite:///shop.db#orders", r"cannot use the driver aiosqlite; say sqlite://"),
        ("oracle://me:secret@h/shop#orders", r"oracle://...: a landing writes PostgreSQL, MySQL, MariaDB and SQLite"),
        ("postgresql://me:secret@h/shop?table=orders", r"postgresql://me@h/shop: write the table after a #"),
        ("postgresql://me:secret@h#orders", r"postgresql://me@h#orders names no database"),
        ("postgresql://me:secret@h:port/shop", r"postgresql://... is not a URL of a database"),
        ("postgresql://me:secret@h/shop#a.b.c", r"#a.b.c does not name a table"),
        ("sqlite://#orders", "in memory"),
        ("sqlite:///:memory:#orders", "in memory"),
        ("sqlite:////nowhere/shop.db#orders", "there is no directory /nowhere: make it first"),
    ],
)
def test_what_is_no_address(to: str, says: str) -> None:
    with pytest.raises(ConfigError) as raised:
        open_target(to, options=OPTIONS)
    assert says in str(raised.value)
    chain = [raised.value, raised.value.__cause__]
    assert not any("secret" in str(each) for each in chain)


def test_passwords_and_options_are_not_shown(tmp_path: Path) -> None:
    to = "postgresql://me:secret@127.0.0.1:1/shop?sslpassword=secret&connect_timeout=5#orders"
    target = open_target(to, options=OPTIONS)
    assert target.name == "postgresql://me@127.0.0.1:1/shop#orders"
    with pytest.raises(Exception, match="the database is away") as raised:
        target.state()
    error: BaseException | None = raised.value
    while error is not None:
        assert "secret" not in str(error)
        error = error.__cause__


@pytest.mark.parametrize(
    ("topic", "table"),
    [("orders", "orders"), ("Shop.Orders-v2", "shop_orders_v2"), ("2024", "_2024"), ("...", "_"), ("_x", "_x")],
)
def test_table_of_a_topic(topic: str, table: str) -> None:
    assert table_of(topic) == table


def test_topic_in_an_address() -> None:
    assert with_topic("postgresql://h/shop#{topic}", "a.b") == "postgresql://h/shop#a_b"
    assert with_topic("postgresql://h/shop#sales.x_{topic}", "a.b") == "postgresql://h/shop#sales.x_a_b"
    assert with_topic("postgresql://h/shop", "a.b") == "postgresql://h/shop#a_b"
    assert with_topic("postgresql://h/shop#", "a.b") == "postgresql://h/shop#a_b"
    assert with_topic("postgresql://h/shop#orders", "a.b") == "postgresql://h/shop#orders"
    assert with_topic("postgresql://me:x#y@h/shop", "a") == "postgresql://me:x#y@h/shop#a"


def test_topic_names_the_table_where_nothing_else_does(tmp_path: Path) -> None:
    target = open_target(f"sqlite:///{tmp_path}/shop.db", options=OPTIONS)
    with pytest.raises(ConfigError, match=r"names no table: say it after a #"):
        target.state()
    target.open(NewTable("Shop.Orders"), 1)
    assert target.name == f"sqlite:///{tmp_path}/shop.db#shop_orders"
    assert target.state() is not None
    target.close()


def test_looking_makes_no_file(tmp_path: Path) -> None:
    target = open_target(f"sqlite:///{tmp_path}/shop.db#orders", options=OPTIONS)
    assert target.state() is None
    assert list(target.read(["_offset"])) == []
    assert not (tmp_path / "shop.db").exists()
