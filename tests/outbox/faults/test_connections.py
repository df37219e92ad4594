"""The database cuts connections, or is gone for a while, at each step of a relay: events are late, and that is all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError

from outbox.relay.relay import Relay
from tests.database_servers import MariaDB, PostgreSQL, Server
from tests.databases import KINDS, ON_SERVERS, Database, Databases
from tests.outbox.faults.scenes import Sleep, scene
from tests.support import until
from tests.tiers import quick

pytestmark = pytest.mark.system

STEPS = ("entered", "fenced", "renewed", "looked", "taken", "begun", "sent", "receipt", "committed", "deleting")
OTHERS = {
    "postgresql": "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT id FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


def cut(database: Database) -> None:
    """All connections to the database but the one that does it."""
    engine = database.new_plain()
    with engine.connect() as connection:
        found = connection.execute(text(OTHERS[engine.dialect.name])).scalars().all()
        if engine.dialect.name == "mysql":
            for number in found:
                with suppress(DBAPIError):  # it may have ended by itself
                    connection.execute(text(f"KILL {number}"))
    engine.dispose()


def is_known(caplog: pytest.LogCaptureFixture) -> None:
    """A database that is away is told in a line: a traceback is for what nobody expected."""
    assert [record.getMessage() for record in caplog.records if record.exc_info and record.name == "outbox"] == []


FEW = quick(ON_SERVERS, ["psycopg", "mariadb"])


class Cuts:
    """At each step once."""

    def __init__(self, database: Database, relay: Relay) -> None:
        self._database = database
        self.left = list(STEPS)
        relay._at = self._at

    async def _at(self, step: str) -> None:
        if step in self.left:
            self.left.remove(step)
            cut(self._database)


@pytest.mark.parametrize("database", FEW, indirect=True)
async def test_connections_that_are_cut_at_each_step(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with scene(database) as here:
        here.shop.trade(10)
        relay = here.relay()
        cuts = Cuts(database, relay)
        await relay.start(here.bus)
        await here.settled(relay)
        assert cuts.left == []
        assert relay.metrics().failures >= 1  # a pool finds some cuts before a statement does
        assert relay.health().status == "ok"
        await relay.aclose()
    is_known(caplog)


# the server itself ----------------------------------------------------------------------------------------------------


SERVERS: dict[str, tuple[type[Server], str]] = {
    "psycopg": (PostgreSQL, "postgres"),
    "asyncpg": (PostgreSQL, "postgres"),
    "mariadb": (MariaDB, "mysql"),
    "mariadb-async": (MariaDB, "mysql"),
}
"""By kind: its server, and the database it has from the beginning."""


@pytest.fixture(scope="module", params=quick(SERVERS, ["asyncpg"]))
def own_server(request: pytest.FixtureRequest, databases: Databases) -> Iterator[tuple[str, Server]]:
    """A kind, and a server that the tests of this module may kill."""
    databases.check(request.param)
    server_of, _ = SERVERS[request.param]
    with server_of() as server:
        yield request.param, server


@pytest.fixture
async def own(own_server: tuple[str, Server]) -> AsyncIterator[tuple[Server, Database]]:
    """The server, running, and a database on it."""
    kind, server = own_server
    url = make_url(f"{KINDS[kind].plain_driver}://{server.address}/{SERVERS[kind][1]}")
    admin = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with admin.connect() as connection:
        connection.execute(text("CREATE DATABASE shop"))
    database = Database(kind, url.set(database="shop"))
    yield server, database
    await database.aclose()
    with admin.connect() as connection:
        connection.execute(text("DROP DATABASE shop"))


async def test_a_server_that_is_away_at_any_step(
    own: tuple[Server, Database], caplog: pytest.LogCaptureFixture
) -> None:
    """It crashes, and comes back when the relay has found out. The wait is short: the relay does not know how long."""
    server, database = own
    async with scene(database) as here:
        relay = here.relay()
        await relay.start(here.bus)
        for step in ("taken", "sent", "committed", "deleting"):
            sleep = Sleep(relay, step)
            here.shop.trade(3)
            await sleep.fallen()
            server.kill()
            sleep.wake()
            await until(lambda: relay.health().status == "degraded", poll_seconds=0.01)
            server.start()
            await here.settled(relay)
            assert relay.health().status == "ok"
        await relay.aclose()
    is_known(caplog)


async def test_a_relay_that_starts_before_its_database(own: tuple[Server, Database]) -> None:
    server, database = own
    async with scene(database) as here:
        here.shop.trade(3)
        server.stop()
        relay = here.relay()
        await relay.start(here.bus)
        await until(lambda: relay.health().status == "degraded", poll_seconds=0.01)
        server.start()
        await here.settled(relay)
        server.stop()
        await relay.aclose()  # what it cannot let go of, its successor takes
        server.start()
        here.shop.trade(3)
        heir = here.relay()
        await heir.start(here.bus)
        await here.settled(heir)
        await heir.aclose()
