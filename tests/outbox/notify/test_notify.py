"""NOTIFY and LISTEN on a real PostgreSQL: what is heard, what breaks, and what polls instead."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.ext.asyncio import create_async_engine

from outbox import Outbox, notify
from outbox.notify import Listener, Notifier
from outbox.table_names import channel_of
from tests.databases import Database, NewDatabase
from tests.outbox.notify.pooler import Pooler
from tests.tiers import quick

pytestmark = pytest.mark.system

PATIENCE_SECONDS = 20
CHANNEL = channel_of("eventbus_outbox")
DRIVERS = ["psycopg", "asyncpg", "psycopg-async"]
on_each_driver = pytest.mark.parametrize("database", quick(DRIVERS, 2), indirect=True)
on_one = pytest.mark.parametrize("database", ["psycopg"], indirect=True)


class CommitListeners:
    """Counts them, and waits for one."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for_more_than(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count > count, PATIENCE_SECONDS)


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


Hear = Callable[..., tuple[Listener, CommitListeners]]


@pytest.fixture
def hear(closing: ExitStack) -> Hear:
    """Listens on an engine, and has begun to."""

    def start(engine: Any, state: notify.State = "listening") -> tuple[Listener, CommitListeners]:
        wakes = CommitListeners()
        listener = Listener(engine, CHANNEL, wakes)
        closing.callback(listener.close)
        listener.start()
        assert listener.wait_for(state, PATIENCE_SECONDS), listener.reason
        return listener, wakes

    return start


@pytest.fixture
def notifier(closing: ExitStack) -> Notifier:
    made = Notifier(CHANNEL)
    closing.callback(made.close)
    return made


def plain(database: Database) -> Engine:
    return getattr(database.engine, "sync_engine", database.engine)


def end_connections(database: Database) -> None:
    """Of all others to the database."""
    with database.plain.connect() as connection:
        connection.execute(
            text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        )


@on_each_driver
async def test_what_is_said_is_heard(database: Database, hear: Hear, notifier: Notifier) -> None:
    listener, wakes = hear(database.engine)
    assert wakes.count == 1, "for what was said before it listened"
    notifier.notify(plain(database))
    assert wakes.wait_for_more_than(1)
    assert (listener.state, listener.reason) == ("listening", "")
    await listener.aclose()
    assert listener.state == "off"


@on_each_driver
async def test_connections_that_break_are_made_anew(
    database: Database, hear: Hear, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_BACK_OFF_SECONDS", (0.01,))
    listener, wakes = hear(database.engine)
    notifier.notify(plain(database))
    assert wakes.wait_for_more_than(1)
    before = wakes.count
    end_connections(database)
    assert wakes.wait_for_more_than(before), "something may have been said meanwhile"
    assert listener.wait_for("listening", PATIENCE_SECONDS)
    before = wakes.count
    notifier.notify(plain(database))
    assert wakes.wait_for_more_than(before)


@pytest.mark.parametrize(("kind", "options"), [("psycopg", {"sslmode": "disable"}), ("asyncpg", {"ssl": "disable"})])
async def test_behind_a_pooler_of_transactions_it_polls(
    kind: str, options: dict[str, str], new_database: NewDatabase, hear: Hear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A LISTEN is taken there; only who listens to himself finds out that nothing comes."""
    monkeypatch.setattr(notify, "_ECHO_SECONDS", 0.2)
    url = make_url(new_database(kind).url)
    assert url.host is not None and url.port is not None
    with Pooler(url.host, url.port) as port:
        pooled = url.set(host="127.0.0.1", port=port).update_query_dict(options)
        engine: Any = create_async_engine(pooled) if kind == "asyncpg" else create_engine(pooled)
        listener, wakes = hear(engine, "polling")
        assert "no NOTIFY arrives" in listener.reason and "PgBouncer" in listener.reason
        assert wakes.count == 0
        listener.close()


@on_one
async def test_a_burst_is_said_once(
    database: Database, hear: Hear, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_DEBOUNCE_SECONDS", 3_600)
    _, wakes = hear(database.engine)
    notifier.notify(database.engine)
    assert wakes.wait_for_more_than(1)
    for _ in range(1_000):
        notifier.notify(database.engine)
    notifier.close()
    assert wakes.wait_for_more_than(2) and wakes.count == 3


@on_one
async def test_an_idle_writer_has_no_connection(
    database: Database, hear: Hear, notifier: Notifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "_IDLE_SECONDS", 0.0)
    _, wakes = hear(database.engine)
    before = set(threading.enumerate())
    for count in (1, 2):
        notifier.notify(database.engine)
        assert wakes.wait_for_more_than(count)
        for thread in set(threading.enumerate()) - before:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


@on_one
async def test_a_fork_begins_anew(database: Database, hear: Hear, notifier: Notifier) -> None:
    """Its parent's thread is not there, and its parent's lock may be held for ever."""
    _, wakes = hear(database.engine)
    notifier.notify(database.engine)
    assert wakes.wait_for_more_than(1)
    before, lock = wakes.count, notifier._lock  # pyright: ignore[reportPrivateUsage] - what a fork may hold
    with lock:
        notifier.after_fork_in_child()
        notifier.notify(database.engine)
        assert wakes.wait_for_more_than(before)
        notifier.close()


async def test_nobody_there_is_nobodys_trouble(
    hear: Hear, notifier: Notifier, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outbox")
    engine = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    listener, wakes = hear(engine, "polling")
    notifier.notify(engine)
    notifier.close()
    assert "127.0.0.1" in listener.reason and "\n" not in listener.reason and wakes.count == 0
    assert any("not listening on" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("database", ["sqlite", "mariadb"], indirect=True)
async def test_other_databases_have_no_such_thing(database: Database, hear: Hear, notifier: Notifier) -> None:
    before = set(threading.enumerate())
    listener, _ = hear(database.engine, "off")
    notifier.notify(plain(database))
    assert not set(threading.enumerate()) - before
    await listener.aclose()
    listener.close()


@on_one
async def test_a_driver_that_is_not_known_polls(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database.engine.dialect, "driver", "pg8000")
    listener = Listener(database.engine, CHANNEL, CommitListeners())
    listener.start()
    assert (listener.state, "pg8000" in listener.reason) == ("off", True)


# through an outbox ----------------------------------------------------------------------------------------------------


@on_each_driver
async def test_after_the_commit_and_never_before(database: Database, hear: Hear) -> None:
    outbox = Outbox(database.engine)
    await outbox.create_tables_async()
    sync = Outbox(database.plain)
    _, wakes = hear(database.engine)
    with database.plain.connect() as connection:
        with connection.begin() as transaction:
            sync.publish(connection, "t", b"rolled back")
            transaction.rollback()
        transaction = connection.begin()
        sync.publish(connection, "t", b"v")
        assert wakes.count == 1
        transaction.commit()
    assert wakes.wait_for_more_than(1)


PROGRAM = """
import sys
from sqlalchemy import create_engine
from outbox import Outbox
engine = create_engine(sys.argv[1])
with engine.begin() as connection:
    Outbox(engine).publish(connection, "t", b"v")
"""


@on_one
async def test_a_program_that_commits_and_ends_has_said_so(database: Database, hear: Hear) -> None:
    Outbox(database.engine).create_tables()
    _, wakes = hear(database.engine)
    subprocess.run([sys.executable, "-c", PROGRAM, database.url], check=True, timeout=PATIENCE_SECONDS)
    assert wakes.wait_for_more_than(1)


def test_channels_fit() -> None:
    assert channel_of("shop_outbox") == "shop_outbox"
    assert channel_of("shop_outbox", "sales") == "sales.shop_outbox"
    long = channel_of("o" * 48, "s" * 48)
    assert len(long) == 63 and long != channel_of("o" * 47, "s" * 48) and long.startswith("sss")
