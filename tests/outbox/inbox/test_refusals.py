"""Arguments of ``tx=`` that are refused, and the error messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, StaticPool, create_engine, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from eventbus import ConsumerRecord, EventBus, consumer
from eventbus.errors import ConfigError, HandlerError
from outbox import Inbox
from tests.databases import Database
from tests.outbox.inbox.given import Ledger, log_of, service

pytestmark = pytest.mark.system

ENGINE = create_engine("sqlite:///never-opened.db")
ASYNC_ENGINE = create_async_engine("sqlite+aiosqlite:///never-opened.db")
SESSIONS, ASYNC_SESSIONS = sessionmaker(ENGINE), async_sessionmaker(ASYNC_ENGINE)


class Special(Session):
    pass


def refused(function: Callable[..., Any], **options: Any) -> str:
    """Return the message of the decorator's error."""
    with pytest.raises(ConfigError) as raised:
        consumer("orders", group="g", **{"tx": SESSIONS, **options})(function)
    return str(raised.value)


def plain(order: bytes, session: Session) -> None: ...


async def asynchronous(order: bytes, session: AsyncSession) -> None: ...


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"exactly_once": True}, "exactly_once=True contradict each other.*use an Outbox"),
        ({"delivery": "at-most-once"}, "delivery='at-most-once' contradict each other"),
        ({"order": "key", "concurrency": 4}, "order='key' contradict each other.*everything before it is done"),
        ({"order": "none"}, "order='none' contradict each other"),
        ({"ack": "manual"}, "ack='manual' contradict each other"),
        ({"timeout": 5}, r"timeout=5.0 contradict each other.*anyio.fail_after"),
    ],
)
def test_options_that_contradict_it(options: dict[str, Any], said: str) -> None:
    def handle(order: bytes, session: Session, record: ConsumerRecord) -> None: ...

    with pytest.raises(ConfigError, match=rf"^@consumer\('orders'\): tx= and {said}"):
        consumer("orders", group="g", tx=SESSIONS, **options)(handle)


def test_names_that_people_look_for() -> None:
    for name in ("session", "inbox", "transactional"):
        said = refused(plain, **{name: SESSIONS})
        assert f"no option '{name}': the option is tx: tx=sessionmaker(engine)" in said


@pytest.mark.parametrize(
    ("tx", "said"),
    [
        (Session, "takes what opens sessions or connections, not Session: tx=sessionmaker"),
        (Session(ENGINE), "not a Session:"),
        (scoped_session(SESSIONS), "not a scoped_session:"),
        ("sqlite:///app.db", "not a str:"),
        (sessionmaker(), "is not bound to an engine"),
        (async_sessionmaker(), "is not bound to an engine"),
        (sessionmaker(ENGINE, binds={Special: ENGINE}), "has binds=, and a transaction cannot span databases"),
        (sessionmaker(ENGINE, twophase=True), "has twophase="),
        (sessionmaker(ASYNC_ENGINE.sync_engine), r"the inside of an AsyncEngine.*tx=async_sessionmaker\(engine\)"),
        (ASYNC_ENGINE.sync_engine, "the inside of an AsyncEngine"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_is_no_database(tx: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        consumer("orders", group="g", tx=tx)(plain)


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        (lambda: create_engine("sqlite://"), "one connection for every thread"),
        (lambda: create_engine("sqlite:///x.db", poolclass=StaticPool), "one connection for all threads"),
        (lambda: create_async_engine("sqlite+aiosqlite://"), "one connection for all threads"),
        (lambda: create_engine("sqlite:///x.db", isolation_level="AUTOCOMMIT"), "AUTOCOMMIT"),
        (lambda: ENGINE.execution_options(isolation_level="AUTOCOMMIT"), "AUTOCOMMIT"),
    ],
)
async def test_engines_that_have_no_transactions_apart(
    engine: Callable[[], Engine | AsyncEngine], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some say so at once; how the driver is set shows when the bus starts."""
    monkeypatch.chdir(tmp_path)
    made = engine()
    with pytest.raises(ConfigError, match=said):
        bus = EventBus("memory://")
        bus.topic("orders")
        bus.consumer("orders", group="g", tx=made)(asynchronous if isinstance(made, AsyncEngine) else plain)
        await bus.start()
    if isinstance(made, AsyncEngine):
        await made.dispose()
    else:
        made.dispose()


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_driver_in_autocommit(database: Database) -> None:
    engine = database.new_engine()
    event.listen(engine, "connect", lambda connection, _: setattr(connection, "isolation_level", None))
    async with log_of(1) as log:
        with pytest.raises(ConfigError, match="handler 'handle': the connection is in AUTOCOMMIT"):
            await service(log.url, Ledger(database), tx=engine).start()


def test_a_handler_that_does_not_take_it() -> None:
    def none(order: bytes) -> None: ...

    async def none_async(order: bytes) -> None: ...

    assert "no parameter takes it: add one annotated as in session: Session" in refused(none)
    assert "as in session: AsyncSession" in refused(none_async, tx=ASYNC_SESSIONS)


def test_a_handler_of_the_other_kind() -> None:
    def plain_of_async(order: bytes, session: AsyncSession) -> None: ...

    async def async_of_plain(order: bytes, session: Session) -> None: ...

    assert "its handler is a plain function: make it an `async def`" in refused(plain_of_async, tx=ASYNC_SESSIONS)
    assert "tx= blocks its thread, which would be the event loop's" in refused(async_of_plain)


def test_a_parameter_of_the_other_kind() -> None:
    assert "'session' is a AsyncSession, which tx= gives" in refused(asynchronous)
    assert "'session' is a Session, which tx= gives" in refused(plain, tx=ASYNC_SESSIONS)
    assert "'session' is a Session, which tx= gives" in refused(plain, tx=None)


def test_a_class_of_sessions_that_the_factory_does_not_make() -> None:
    def special(order: bytes, session: Special) -> None: ...

    assert "'session' is a second payload" in refused(special) or "no parameter takes it" in refused(special)
    consumer("orders", group="g", tx=sessionmaker(ENGINE, class_=Special))(special)
    consumer("orders", group="g", tx=sessionmaker(ENGINE, class_=Special))(plain)


def test_two_of_them() -> None:
    def both(order: bytes, session: Session, connection: Connection) -> None: ...

    assert "'connection' is a Connection, which tx= gives" in refused(both)


def test_what_it_takes() -> None:
    def connection(record: ConsumerRecord, connection: Connection) -> None: ...

    async def async_connection(record: ConsumerRecord, connection: AsyncConnection) -> None: ...

    for tx in (ENGINE, SESSIONS, Inbox(SESSIONS), Inbox(ENGINE)):
        for handle in (plain, connection):
            consumer("orders", group="g", tx=tx)(handle)
    for tx in (ASYNC_ENGINE, ASYNC_SESSIONS, Inbox(ASYNC_SESSIONS)):
        for handle in (asynchronous, async_connection):
            assert inspect.iscoroutinefunction(consumer("orders", group="g", tx=tx)(handle).function)


def test_what_it_publishes_goes_through_an_outbox() -> None:
    bus = EventBus("memory://")

    def yields(order: bytes, session: Session) -> Iterator[bytes]:
        yield order

    def returns(order: bytes, session: Session) -> bytes:
        return order

    for function in (yields, returns):
        with pytest.raises(ConfigError, match=r"not part of the database's transaction.*publish with an Outbox"):
            bus.consumer("orders", group="g", tx=SESSIONS)(bus.producer("bills")(function))
    assert "yields values, but publishes them nowhere" in refused(yields)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"message_ids": 7}, r"message_ids=7: the name of a header, or a function"),
        ({"message_ids": ""}, r"message_ids=''"),
        ({"keep": timedelta(0)}, "keep=.*: how long message ids are remembered"),
        ({"keep": "a week"}, "keep='a week': .*: seconds, a text such as"),
    ],
)
def test_options_of_the_inbox(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Inbox(SESSIONS, **options)


@pytest.mark.parametrize("database", ["sqlite", "sqlite-async"], indirect=True)
async def test_tables_that_are_not_there(database: Database) -> None:
    async with log_of(1) as log:
        with pytest.raises(
            ConfigError,
            match=r"no table eventbus_offsets, eventbus_offsets_ids\. create_tables=False\. Create it with op",
        ):
            await service(log.url, Ledger(database), tx={"create_tables": False}).start()


class Routed(Session):
    """A session as in programs that write to one server and read from others."""

    elsewhere: Engine

    def get_bind(self, *arguments: Any, **options: Any) -> Any:
        return self.elsewhere


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
async def test_a_session_that_goes_elsewhere(database: Database) -> None:
    Routed.elsewhere = database.plain
    async with log_of(1) as log:
        with pytest.raises(HandlerError, match=r"Routed.get_bind\(\) goes elsewhere"):
            async with service(log.url, Ledger(database), tx=sessionmaker(database.new_engine(), class_=Routed)) as bus:
                await bus.drain()


class Base(DeclarativeBase):
    pass


class Guest(Base):
    __tablename__ = "guests"
    name: Mapped[str] = mapped_column(primary_key=True)


@pytest.mark.parametrize("database", ["sqlite", "psycopg"], indirect=True)
async def test_a_failed_flush_that_was_caught_is_no_rollback(database: Database) -> None:
    """Rows written before the failure are rolled back, which the handler does not intend."""
    ledger = Ledger(database)
    Base.metadata.create_all(database.plain)

    def add_twice(record: ConsumerRecord, session: Session) -> None:
        session.add(Guest(name="ada"))
        try:
            session.flush()
        except Exception:  # what a careless handler does
            assert record.offset == 1

    async with log_of(2, 1) as log:
        with pytest.raises(HandlerError, match=r"offset 1.*has been rolled back due to a previous exception"):
            async with service(log.url, ledger, add_twice) as bus:
                await bus.drain()
    assert ledger.rows() == [(0, 0)]
