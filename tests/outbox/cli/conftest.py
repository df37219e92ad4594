"""An outbox with events, some of them refused, and ``eventbus outbox ...`` in this process on its database."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from sqlalchemy import insert, select

from outbox import Outbox
from outbox.database import now_ms
from tests.cli.conftest import Cli, Result, Spawn, cli, spawn
from tests.databases import Database, NewDatabase

__all__ = ["Cli", "OnOutbox", "Result", "Shop", "Spawn", "cli", "fill", "spawn"]

OnOutbox = Callable[..., Result]


class Shop:
    """An outbox with access to its rows."""

    def __init__(self, database: Database, **options: Any) -> None:
        self.database = database
        self.outbox = Outbox(database.plain, **options)
        self.outbox.create_tables()
        self.tables = self.outbox.tables

    def publish(self, *keys: str | None, topic: str = "orders", **options: Any) -> None:
        """Write an event for each key, with an empty object as its value."""
        with self.database.plain.begin() as connection:
            for key in keys:
                self.outbox.publish(connection, topic, b"{}", key=key, **options)

    def put_aside(self, *ids: int, behind: Iterable[int] = (), reason: str = "RecordTooLarge: 2,000,000 bytes") -> None:
        """Move events to the quarantine, as a relay does with refused events and with those ``behind`` them."""
        events, failed = self.tables.events, self.tables.failed
        waiting = set(behind)
        names = [column.key for column in events.columns]
        chosen = events.c.id.in_({*ids, *waiting})
        with self.database.plain.begin() as connection:
            extra = {"failed_at_ms": now_ms(connection)}
            rows = [
                {**dict(zip(names, row, strict=True)), **extra, "is_behind": int(row.id in waiting)}
                for row in connection.execute(events.select().where(chosen))
            ]
            for row in rows:
                row["reason"] = f"waits behind {ids[0]}" if row["is_behind"] else reason
            connection.execute(insert(failed), rows)
            connection.execute(events.delete().where(chosen))

    def relay(self, slot: int, shards: Iterable[int] = (), *, seen_ms_ago: int = 1_000, published: int = 600) -> None:
        """Add a relay that has run for a minute, and has a lease of nine seconds."""
        with self.database.plain.begin() as connection:
            now = now_ms(connection)
            seen = now - seen_ms_ago
            connection.execute(
                insert(self.tables.relays).values(
                    slot=slot,
                    token="t",
                    host=f"web-{slot}/7",
                    expires_at_ms=seen + 9_000,
                    seen_at_ms=seen,
                    started_at_ms=seen - 60_000,
                    published=published,
                )
            )
            table = self.tables.shards
            connection.execute(table.update().where(table.c.shard.in_(list(shards))).values(slot=slot))

    def waiting(self) -> list[int]:
        with self.database.plain.connect() as connection:
            return list(connection.scalars(select(self.tables.events.c.id).order_by(self.tables.events.c.id)))

    def refused(self) -> dict[int, int]:
        """Return the ids of quarantined events, and whether each waits behind another."""
        failed = self.tables.failed.c
        with self.database.plain.connect() as connection:
            return dict(connection.execute(select(failed.id, failed.is_behind).order_by(failed.id)).all())


def fill(shop: Shop) -> None:
    """Write events 1 to 8 of three keys: 2 was refused, and 5 and 8 wait behind it; 3 has no key."""
    shop.publish("a", "b", None, "a", "b", "c", "a", "b")
    shop.put_aside(2, behind=[5, 8])


@pytest.fixture(params=["sqlite", "psycopg", "mariadb"])
def shop(request: pytest.FixtureRequest, new_database: NewDatabase) -> Shop:
    return Shop(new_database(request.param))


@pytest.fixture
def on_outbox(cli: Cli, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> OnOutbox:
    """``on_outbox("list", "--json")`` runs a command on the shop's database."""
    monkeypatch.setenv("EVENTBUS_DATABASE", shop.database.url)
    return lambda *args, stdin=b"": cli("outbox", *args, stdin=stdin)
