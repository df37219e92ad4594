"""Where there is no transaction that an event could be part of, it is refused, and the cure is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, insert
from sqlalchemy.exc import IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker
from sqlalchemy.pool import StaticPool

from eventbus import EventBus
from eventbus.errors import ConfigError
from outbox import Outbox
from tests.databases import Database, NewDatabase
from tests.outbox.writing.given import awaited, events, made

pytestmark = pytest.mark.system


@pytest.fixture
def database(new_database: NewDatabase) -> Database:
    return new_database("sqlite")


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return made(database)


def test_a_connection_in_no_transaction(database: Database, outbox: Outbox) -> None:
    with database.engine.connect() as connection:
        with pytest.raises(ConfigError, match=r"is in no transaction.*with engine.begin\(\) as connection"):
            outbox.publish(connection, "t", b"v")
        with connection.begin():
            outbox.publish(connection, "t", b"v")
        with pytest.raises(ConfigError, match="is in no transaction"):
            outbox.publish(connection, "t", b"v")
    with pytest.raises(ConfigError, match="the connection is closed"):
        outbox.publish(connection, "t", b"v")
    assert len(events(database, outbox)) == 1


def test_many_events_are_a_list(database: Database, outbox: Outbox) -> None:
    """A text was written letter by letter, an event each."""
    with (
        database.engine.begin() as connection,
        pytest.raises(ConfigError, match=r"publish_many\('t', 'abc'\): a list of values.*one value is publish\(\)"),
    ):
        outbox.publish_many(connection, "t", "abc")
    assert events(database, outbox) == []


def test_an_outbox_is_no_part_and_its_relay_is(outbox: Outbox) -> None:
    with pytest.raises(ConfigError, match=r"its relay is a part: include\(outbox.relay\(\)\)"):
        EventBus("memory://").include(outbox)


def test_a_session_that_may_not_begin_or_is_over(database: Database, outbox: Outbox) -> None:
    with Session(database.engine, autobegin=False) as session:
        with pytest.raises(ConfigError, match=r"autobegin=False: session.begin\(\) first"):
            outbox.publish(session, "t", b"v")
        with session.begin():
            outbox.publish(session, "t", b"v")
    closed = Session(database.engine, close_resets_only=False)
    closed.close()
    with pytest.raises(ConfigError, match=r"the session takes no event now: .*closed"):
        outbox.publish(closed, "t", b"v")
    with pytest.raises(ConfigError, match=r"no database for the table.*binds="):
        outbox.publish(Session(), "t", b"v")
    assert len(events(database, outbox)) == 1


def test_a_session_of_several_databases_goes_by_the_table(database: Database, outbox: Outbox) -> None:
    with Session(binds={outbox.tables.events: database.engine}) as session, session.begin():
        outbox.publish(session, "t", b"v")
    assert len(events(database, outbox)) == 1


class Base(DeclarativeBase): ...


class One(Base):
    __tablename__ = "one"
    id: Mapped[int] = mapped_column(primary_key=True)


def test_a_session_after_an_error_says_so_itself(database: Database, outbox: Outbox) -> None:
    Base.metadata.create_all(database.engine)
    with Session(database.engine) as session:
        session.execute(insert(One).values(id=2))
        session.add(One(id=2))
        with pytest.raises(IntegrityError):
            session.flush()
        with pytest.raises(PendingRollbackError):
            outbox.publish(session, "t", b"v")
        session.rollback()
        outbox.publish(session, "t", b"after")
        session.commit()
    assert [row["value"] for row in events(database, outbox)] == [b"after"]


@pytest.mark.parametrize("where", ["engine", "options", "connection", "driver"])
async def test_autocommit(new_database: NewDatabase, where: str) -> None:
    for kind in ("sqlite", "sqlite-async"):
        database = new_database(kind)
        outbox = Outbox(MetaData())
        outbox.create_tables(database.plain)
        engine = {
            "engine": lambda database=database: database.new_engine(isolation_level="AUTOCOMMIT"),
            "options": lambda database=database: database.engine.execution_options(isolation_level="AUTOCOMMIT"),
            "connection": lambda database=database: database.engine,
            "driver": lambda database=database: database.new_engine(connect_args={"isolation_level": None}),
        }[where]()
        opened = engine.connect()
        if hasattr(engine, "sync_engine"):
            await opened.start()
        if where == "connection":
            opened = await awaited(opened.execution_options(isolation_level="AUTOCOMMIT"))
        await awaited(opened.begin())
        with pytest.raises(ConfigError, match=r"AUTOCOMMIT.*take an engine without"):
            await awaited(outbox.publish(opened, "t", b"v"))
        await awaited(opened.close())
        if where in ("engine", "driver"):
            with pytest.raises(ConfigError, match="AUTOCOMMIT"):
                await outbox.create_tables_async(engine)
        assert events(database, outbox) == []


def test_a_begin_by_hand_is_a_transaction(database: Database) -> None:
    """SQLAlchemy's own recipe for savepoints that work with old drivers of SQLite."""
    made(database)
    engine = database.new_engine(connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    outbox = Outbox(engine)
    with engine.begin() as connection:
        outbox.publish(connection, "t", b"v")
    assert len(events(database, outbox)) == 1


@pytest.mark.parametrize(
    "wrong",
    [None, "sqlite://", Session, sessionmaker(), create_engine("sqlite:///x"), MetaData()],
    ids=lambda one: type(one).__name__,
)
def test_what_is_no_session(outbox: Outbox, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="an event is written with the Session, AsyncSession, Connection or"):
        outbox.publish(wrong, "t", b"v")
    if not isinstance(wrong, MetaData) and type(wrong).__name__ != "Engine":
        with pytest.raises(ConfigError, match="an engine, from create_engine"):
            Outbox(wrong)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"columns": "debesium"}, "columns='debesium': 'plain' or 'debezium'"),
        ({"name": ""}, "name='' is not a name.*1 to 55 bytes, because its longest table ends with _archive"),
        ({"name": "ä" * 28}, "1 to 55 bytes"),
        ({"schema": "s" * 64}, "schema='s.*1 to 63 bytes, without NUL"),
        ({"schema": "a\0"}, "without NUL"),
        ({"shards": 0}, "1 to 1024"),
        ({"max_message_bytes": 0}, "bytes, as max.message.bytes"),
    ],
)
def test_an_outbox_that_means_nothing(options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Outbox(MetaData(), **options)


def test_an_engine_whose_transactions_would_meet() -> None:
    for options in ({}, {"poolclass": StaticPool}):
        with pytest.raises(ConfigError, match=r"one connection for .* threads?.*take a file"):
            Outbox(create_engine("sqlite://", **options))
    with pytest.raises(ConfigError, match="AUTOCOMMIT"):
        Outbox(create_engine("sqlite:///x").execution_options(isolation_level="AUTOCOMMIT"))


def test_what_is_no_engine_and_no_connection(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/app.db")
    outbox = Outbox(engine)
    with pytest.raises(ConfigError, match=r"EventBus.*an engine, from create_engine"):
        outbox.relay(cast("Engine", EventBus("memory://")))
    with pytest.raises(
        ConfigError, match=r"Engine.*with engine\.connect\(\) as connection: outbox\.check\(connection\)"
    ):
        outbox.check(cast("Connection", engine))
    engine.dispose()


async def test_without_an_engine_one_is_asked_for() -> None:
    outbox = Outbox(MetaData())
    for ask in (outbox.create_tables, outbox.relay, outbox.database):
        with pytest.raises(ConfigError, match="made with a MetaData and knows no database: give it an engine"):
            ask()
    with pytest.raises(ConfigError, match="give it an engine"):
        await outbox.status()
