"""The outbox's tables in a database: made, filled, and checked; and what an error about them means."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from eventbus.errors import ConfigError
from outbox.tables import VERSION, OutboxTables

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection
    from sqlalchemy.exc import DBAPIError

_CREATE = "outbox.create_tables(), a migration with op.create_outbox(), or what `eventbus outbox ddl` prints"

_NO_TABLE_STATES = frozenset({"42P01", "42S02", "3F000"})
_NO_COLUMN_STATES = frozenset({"42703", "42S22"})
_READ_ONLY_STATES = frozenset({"25006"})
_NO_TABLE_NUMBERS = frozenset({1146})
_NO_COLUMN_NUMBERS = frozenset({1054})
_READ_ONLY_NUMBERS = frozenset({1290, 1792, 1836})


def lock_name(shard: int) -> str:
    """Meta's row that writers of a shard lock, one after the other, with ``strict_order``."""
    return f"lock {shard:04}"


def meta_rows(tables: OutboxTables) -> list[dict[str, str]]:
    """What meta holds from the start.

    The ``id`` is this database's: relays' names on the log go by it, so that two services with an outbox each, of the
    same name, on the same log, do not fence each other.
    """
    return [
        {"name": "version", "value": str(VERSION)},
        {"name": "shards", "value": str(tables.shard_count)},
        {"name": "id", "value": secrets.token_hex(6)},
        *({"name": lock_name(shard), "value": ""} for shard in range(tables.shard_count)),
    ]


def shard_rows(tables: OutboxTables) -> list[dict[str, Any]]:
    """All shards, and none is anybody's yet."""
    return [{"shard": shard, "slot": None} for shard in range(tables.shard_count)]


def create(connection: Connection, tables: OutboxTables) -> None:
    """Create and fill what is missing. Raises ConfigError for tables of another shard count or version."""
    from sqlalchemy import select

    for table in tables.all:
        table.create(connection, checkfirst=True)
    meta = dict(connection.execute(select(tables.meta.c.name, tables.meta.c.value)).tuples().all())
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


def mismatch(meta: dict[str, str], tables: OutboxTables) -> str | None:
    """Why these tables are not those that this program means, as far as meta tells."""
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
            f"is empty, drop its tables and create them anew"
        )
    return None


def explained(error: DBAPIError, tables: OutboxTables) -> Exception:
    """What to raise for an error of the database: ConfigError where its tables are not there, or not as they should."""
    original: Any = error.orig
    state = str(getattr(original, "sqlstate", "") or getattr(original, "pgcode", "") or "")
    arguments: tuple[Any, ...] = getattr(original, "args", ())
    number = arguments[0] if arguments and isinstance(arguments[0], int) else None
    said = str(original).lower()
    if state in _NO_TABLE_STATES or number in _NO_TABLE_NUMBERS or "no such table" in said:
        return ConfigError(
            f"this database has no table {tables.events.fullname!r} ({original}): create it with {_CREATE}; or the "
            "session is of another database than the outbox"
        )
    if state in _NO_COLUMN_STATES or number in _NO_COLUMN_NUMBERS or "has no column named" in said:
        return ConfigError(
            f"the table {tables.events.fullname!r} has other columns than this program writes ({original}): it is of "
            "another version, or was made with another columns=...; `eventbus outbox check` tells"
        )
    if state in _READ_ONLY_STATES or number in _READ_ONLY_NUMBERS or "readonly database" in said:
        error.add_note("an event is written here: the transaction is read-only, or this database is a replica; "
                       "publish with a session of the primary")  # fmt: skip
    return error
