"""Detect a sequence of event ids that has restarted: a promoted replica, TRUNCATE ... RESTART IDENTITY, a reload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from outbox.table_names import quoted, schema_of, shown

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from outbox.tables import OutboxTables


_IDS = 500
"""Maximum number of ids in one statement."""


class _Sequence(NamedTuple):
    last_id: int
    """The highest id given to an event so far."""
    name: str
    """The name of PostgreSQL's sequence."""
    advance: str
    """The statement that makes it continue after {highest}."""


def restarted(connection: Connection, tables: OutboxTables) -> str:
    """Return a warning, with the fix, if the sequence returns ids that events had before; "" if it does not.

    Nothing is lost in that case, because rows with colliding ids are renumbered. But a new event with a lower id than a
    quarantined event of its key does not wait for it.
    """
    from sqlalchemy import func, select

    kept = [table for table in (tables.failed, tables.archive) if table is not None]
    highest = max(connection.scalar(select(func.max(table.c.id))) or 0 for table in kept)
    sequence = _sequence_of(connection, tables) if highest else None
    if sequence is None or sequence.last_id >= highest:
        return ""
    advance = sequence.advance.replace("{highest}", str(highest)).replace("{following}", str(highest + 1))
    return (
        f"The ids of the table {shown(connection, tables.events)} have restarted. The last one is {sequence.last_id}, "
        f"and an event with the id {highest} was quarantined or archived before, so later events of a quarantined key "
        f"may be published before it. Run: {advance}"
    )


def replaced_ids(connection: Connection, tables: OutboxTables, ids: Sequence[int]) -> list[int]:
    """Return new ids, in the same order, for events that are put back; empty if they can keep theirs.

    They cannot if another event has one of the ids, or will get it: the business transaction that writes it would fail.
    PostgreSQL does not advance a sequence past an id inserted explicitly, as SQLite and MySQL do.
    """
    from sqlalchemy import exists, func, select

    if not ids:
        return []
    events, sequence = tables.events.c, _sequence_of(connection, tables)
    are_taken = any(
        connection.scalar(select(exists().where(events.id.in_(ids[first : first + _IDS]))))
        for first in range(0, len(ids), _IDS)
    )
    if sequence is not None and sequence.name:
        if not are_taken and sequence.last_id >= max(ids):
            return []
        return _drawn(connection, tables, sequence.name, len(ids))
    if not are_taken:
        return []
    highest = max(connection.scalar(select(func.max(table.c.id))) or 0 for table in (tables.events, tables.failed))
    return list(range(highest + 1, highest + 1 + len(ids)))


def _drawn(connection: Connection, tables: OutboxTables, sequence: str, count: int) -> list[int]:
    """Draw rising ids from the sequence, skipping those that an event already has."""
    from sqlalchemy import select, text

    drawn: list[int] = []
    asked = text("SELECT nextval(CAST(:name AS regclass)) FROM generate_series(1, :count)")
    while len(drawn) < count:
        some = sorted(connection.scalars(asked, {"name": sequence, "count": min(count - len(drawn), _IDS)}))
        known = set(connection.scalars(select(tables.events.c.id).where(tables.events.c.id.in_(some))))
        drawn += [id for id in some if id not in known]
    return drawn


def _sequence_of(connection: Connection, tables: OutboxTables) -> _Sequence | None:
    """Return the state of the sequence. None if it cannot be read, or ids are not generated.

    MySQL's information_schema may be a day old, so it is not used.
    """
    from sqlalchemy import text

    dialect, events = connection.dialect, tables.events
    if dialect.name == "postgresql":
        names = {"table": quoted(connection, events), "column": tables.columns.id}
        name = connection.scalar(text("SELECT pg_get_serial_sequence(:table, :column)"), names)
        if name is None:
            return None
        last_id = connection.scalar(text("SELECT pg_sequence_last_value(CAST(:name AS regclass))"), {"name": name})
        return _Sequence(last_id or 0, name, f"SELECT setval({_literal(name)}, {{highest}})")
    if dialect.name == "sqlite":
        last_id = connection.scalar(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": events.name})
        advance = f"UPDATE sqlite_sequence SET seq = {{highest}} WHERE name = {_literal(events.name)}"
        return _Sequence(last_id or 0, "", advance) if last_id is not None else None
    if dialect.name in ("mysql", "mariadb") and getattr(dialect, "is_mariadb", False):
        asked = text(
            "SELECT auto_increment FROM information_schema.tables "
            "WHERE table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
        )
        following = connection.scalar(asked, {"schema": schema_of(connection, events), "name": events.name})
        advance = f"ALTER TABLE {quoted(connection, events)} AUTO_INCREMENT = {{following}}"
        return None if following is None else _Sequence(int(following) - 1, "", advance)
    return None


def _literal(text: str) -> str:
    quoted = text.replace("'", "''")
    return f"'{quoted}'"
