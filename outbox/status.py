"""The state of an outbox: what waits and for how long, which relays publish it, and what delays events."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.format import format_count, format_duration
from outbox.database import now_ms, now_sql
from outbox.table_names import quoted

if TYPE_CHECKING:
    from sqlalchemy import Table
    from sqlalchemy.engine import Connection

    from outbox.tables import OutboxTables

_LONG_MS = 10_000
"""Transactions open for longer than this are mentioned in `remarks`."""
_LONG_SNAPSHOT_MS = 300_000


class TopicStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The events of one topic."""

    topic: str
    waiting: int = 0
    """Events that may be published now."""
    oldest_age_ms: int | None = None
    """Time since the oldest waiting event was written."""
    later: int = 0
    """Events scheduled for later, including those that became due a moment ago."""
    failed: int = 0
    """Events that the log refused."""
    behind: int = 0
    """Events that wait because an earlier event with their key was refused."""


class RelayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One relay, as of its last heartbeat."""

    slot: int
    host: str
    is_live: bool
    """True if its lease has not expired."""
    shards: tuple[int, ...]
    published: int
    """Events published since it started."""
    started_age_ms: int
    seen_age_ms: int
    """Time since its last heartbeat."""

    @property
    def rate(self) -> float:
        """Average number of events a second since it started."""
        return self.published * 1000 / max(1, self.started_age_ms - self.seen_age_ms)


class OpenTransaction(msgspec.Struct, frozen=True):
    """A transaction that has not ended."""

    age_ms: int
    who: str
    """The client as reported by the database, such as ``pid 4711 (psql, idle in transaction)``."""


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """Open transactions that delay events, or keep deleted rows from being cleaned up."""

    writer: OpenTransaction | None = None
    """The oldest open transaction that wrote to the outbox (on MySQL: to the database). Its events wait for it.
    """
    snapshot: OpenTransaction | None = None
    """The oldest open transaction of all. Rows deleted since it began cannot be cleaned up, and slow relays down."""
    unknown: str = ""
    """Why this could not be read, if so."""


class Backlog(msgspec.Struct, frozen=True):
    """The number of waiting events, counted up to a limit."""

    count: int
    is_exact: bool
    """False if the count was estimated from the ids, which is too high where rows in between are gone."""
    oldest_age_ms: int | None
    """Time since the first waiting event was written, according to its id. None if none waits."""
    failed: int = 0
    """Events that the log refused."""


class OutboxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an outbox. ``msgspec.json.encode(status)`` makes it JSON. Ages are as of `now_ms`, the database's
    clock.
    """

    name: str
    schema: str | None
    now_ms: int
    waiting: int
    oldest_age_ms: int | None
    later: int
    next_due_in_ms: int | None
    """Time until the first scheduled event is due. Negative if it is overdue."""
    failed: int
    behind: int
    archived: int | None
    """Rows in the archive. None without an archive."""
    topics: tuple[TopicStatus, ...]
    relays: tuple[RelayStatus, ...]
    shard_count: int
    free_shards: int
    """Shards without an owner."""
    stall: Stall

    @property
    def live_relays(self) -> int:
        return sum(relay.is_live for relay in self.relays)


def written_at_ms(event_id: str, timestamp_ms: int) -> int:
    """Return when an event was written. A record's timestamp may be any time, for example in an import of old data."""
    if len(event_id) == 36 and event_id[14] == "7":  # a UUIDv7 begins with its time
        try:
            return int(event_id[:8] + event_id[9:13], 16)
        except ValueError:  # an id that only looks like a UUIDv7
            return timestamp_ms
    return timestamp_ms


# reading --------------------------------------------------------------------------------------------------------------


def read_status(connection: Connection, tables: OutboxTables) -> OutboxStatus:
    """Read the complete state. It counts exactly, so it scans every row. Raises what the database raises."""
    from sqlalchemy import func, select

    now = now_ms(connection)
    topics = _read_topics(connection, tables, now)
    relays, free = _read_relays(connection, tables, now)
    due = connection.execute(select(func.min(tables.later.c.due_ms))).scalar()
    archived = None
    if tables.archive is not None:
        archived = connection.execute(select(func.count()).select_from(tables.archive)).scalar_one()
    return OutboxStatus(
        name=tables.name,
        schema=tables.schema,
        now_ms=now,
        waiting=sum(one.waiting for one in topics),
        oldest_age_ms=max((one.oldest_age_ms for one in topics if one.oldest_age_ms is not None), default=None),
        later=sum(one.later for one in topics),
        next_due_in_ms=None if due is None else due - now,
        failed=sum(one.failed for one in topics),
        behind=sum(one.behind for one in topics),
        archived=archived,
        topics=topics,
        relays=relays,
        shard_count=tables.shard_count,
        free_shards=free,
        stall=read_stall(connection, tables),
    )


def read_backlog(connection: Connection, tables: OutboxTables, at_most: int = 100_000) -> Backlog:
    """Count waiting events up to ``at_most``, in one query that is cheap enough for a gauge."""
    from sqlalchemy import BigInteger, func, literal, literal_column, select

    events, failed = tables.events.c, tables.failed
    some = select(literal(1)).select_from(tables.events).limit(at_most + 1).subquery()
    first = select(events.event_id, events.timestamp_ms, events.id).order_by(events.id).limit(1).subquery()
    row = connection.execute(
        select(
            literal_column(now_sql(connection.dialect.name), BigInteger).label("now_ms"),
            select(func.count()).select_from(some).scalar_subquery().label("counted"),
            select(func.max(events.id)).scalar_subquery().label("last"),
            select(func.count()).select_from(failed).where(failed.c.is_behind == 0).scalar_subquery().label("failed"),
            first.c.id.label("first"),
            first.c.event_id,
            first.c.timestamp_ms,
        ).select_from(select(literal(1).label("one")).subquery().outerjoin(first, literal(True)))
    ).one()
    if row.first is None:
        return Backlog(0, True, None, row.failed)
    age = max(0, int(row.now_ms) - written_at_ms(row.event_id, row.timestamp_ms))
    if row.counted <= at_most:
        return Backlog(row.counted, True, age, row.failed)
    return Backlog(max(row.counted, row.last - row.first + 1), False, age, row.failed)


def _read_topics(connection: Connection, tables: OutboxTables, now: int) -> tuple[TopicStatus, ...]:
    from sqlalchemy import func, select

    def counted(table: Table, *others: Any) -> Any:
        return connection.execute(select(table.c.topic, func.count().label("rows"), *others).group_by(table.c.topic))

    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    events = tables.events.c
    for row in counted(tables.events, func.min(events.event_id).label("id"), func.min(events.timestamp_ms).label("ms")):
        age = max(0, now - written_at_ms(row.id, row.ms))
        found[row.topic] = {"waiting": row.rows, "oldest_age_ms": age}
    for row in counted(tables.later):
        found[row.topic]["later"] = row.rows
    for row in counted(tables.failed, func.sum(tables.failed.c.is_behind).label("behind")):
        behind = int(row.behind)  # MySQL's sums are decimals
        found[row.topic] |= {"failed": row.rows - behind, "behind": behind}
    return tuple(TopicStatus(topic=topic, **found[topic]) for topic in sorted(found))


def _read_relays(connection: Connection, tables: OutboxTables, now: int) -> tuple[tuple[RelayStatus, ...], int]:
    """Return the relays, and the number of shards without an owner."""
    from sqlalchemy import select

    shards: defaultdict[int | None, list[int]] = defaultdict(list)
    table = tables.shards
    for row in connection.execute(select(table.c.shard, table.c.slot).order_by(table.c.shard)):
        shards[row.slot].append(row.shard)
    relays = [
        RelayStatus(
            slot=row.slot,
            host=row.host,
            is_live=row.expires_at_ms > now,
            shards=tuple(shards.pop(row.slot, ())),
            published=row.published,
            started_age_ms=max(0, now - row.started_at_ms),
            seen_age_ms=max(0, now - row.seen_at_ms),
        )
        for row in connection.execute(select(tables.relays).order_by(tables.relays.c.slot))
    ]
    return tuple(relays), sum(map(len, shards.values()))


# what keeps events back -----------------------------------------------------------------------------------------------

_PG_WHO = (
    "'pid ' || a.pid || ' (' || coalesce(nullif(a.application_name, '') || ', ', '') || coalesce(a.state, '?') || ')'"
)
_PG_AGE = "CAST(extract(epoch FROM clock_timestamp() - {}) * 1000 AS BIGINT)"
_PG_WRITER = f"""
SELECT {_PG_AGE.format("a.xact_start")} AS age, {_PG_WHO} AS who
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.relation = to_regclass(:table) AND l.mode = 'RowExclusiveLock' AND l.granted AND a.datname = current_database()
  AND l.pid <> pg_backend_pid() AND a.xact_start IS NOT NULL
UNION ALL
SELECT {_PG_AGE.format("p.prepared")}, 'prepared transaction ' || p.gid
FROM pg_locks l JOIN pg_prepared_xacts p ON l.virtualtransaction = '-1/' || CAST(p.transaction AS text)
WHERE l.relation = to_regclass(:table) AND p.database = current_database()
ORDER BY age DESC LIMIT 1
"""
_PG_SNAPSHOT = f"""
SELECT {_PG_AGE.format("a.xact_start")} AS age, {_PG_WHO} AS who
FROM pg_stat_activity a
WHERE (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL) AND a.backend_type = 'client backend'
  AND a.pid <> pg_backend_pid() AND a.datname = current_database() AND a.xact_start IS NOT NULL
UNION ALL
SELECT {_PG_AGE.format("p.prepared")}, 'prepared transaction ' || p.gid
FROM pg_prepared_xacts p WHERE p.database = current_database()
ORDER BY age DESC LIMIT 1
"""
# InnoDB reports times in the server's system time zone, NOW() uses the session's.
_MYSQL_SNAPSHOT = """
SELECT GREATEST(0, TIMESTAMPDIFF(MICROSECOND, t.trx_started,
           COALESCE(CONVERT_TZ(NOW(6), @@session.time_zone, 'SYSTEM'), NOW(6))) DIV 1000) AS age,
       CONCAT('connection ', t.trx_mysql_thread_id, COALESCE(CONCAT(' (', p.user, ', ', p.command, ')'), '')) AS who
FROM information_schema.innodb_trx t LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE t.trx_mysql_thread_id NOT IN (0, CONNECTION_ID()) {}
ORDER BY t.trx_started LIMIT 1
"""
_MYSQL_WRITER = _MYSQL_SNAPSHOT.format("AND t.trx_rows_modified > 0 AND p.db = DATABASE()")


def read_stall(connection: Connection, tables: OutboxTables) -> Stall:
    """Return the oldest open transactions. SQLite cannot list them, but allows only one writer anyway."""
    from sqlalchemy.exc import DBAPIError

    dialect = connection.dialect
    if dialect.name == "postgresql":
        table = quoted(connection, tables.events)
        return Stall(writer=_oldest(connection, _PG_WRITER, table=table), snapshot=_oldest(connection, _PG_SNAPSHOT))
    if dialect.name in ("mysql", "mariadb"):
        try:
            return Stall(
                writer=_oldest(connection, _MYSQL_WRITER), snapshot=_oldest(connection, _MYSQL_SNAPSHOT.format(""))
            )
        except DBAPIError as error:
            return Stall(unknown=f"information_schema.innodb_trx cannot be read (GRANT PROCESS): {error.orig}")
    return Stall()


def _oldest(connection: Connection, query: str, **values: Any) -> OpenTransaction | None:
    from sqlalchemy import text

    row = connection.execute(text(query), values).first()
    return None if row is None else OpenTransaction(int(row.age), str(row.who))


# in words -------------------------------------------------------------------------------------------------------------


def remarks(status: OutboxStatus) -> list[str]:
    """Return remarks that an operator should read, one per line; empty if all is well."""
    said: list[str] = []
    if status.waiting and not status.live_relays:
        said.append(
            "no relay publishes what waits: `eventbus outbox relay`, or bus.include(outbox.relay()) in a service"
        )
    dead = [relay for relay in status.relays if not relay.is_live]
    if status.live_relays:
        said += [
            f"relay {relay.slot} on {relay.host} has not been seen for {format_duration(relay.seen_age_ms)}; "
            "others take over"
            for relay in dead
        ]
    if status.free_shards and status.live_relays and not dead:
        said.append(
            f"{status.free_shards} of {status.shard_count} shards have no owner; relays take them within seconds"
        )
    if status.failed:
        behind = f", and {status.behind:,} wait behind them" if status.behind else ""
        said.append(f"the log refused {format_count(status.failed, 'event')}{behind}: see `eventbus outbox list`")
    writer, snapshot = status.stall.writer, status.stall.snapshot
    if writer is not None and writer.age_ms >= _LONG_MS:
        said.append(f"what {writer.who} has written waits for its commit since {format_duration(writer.age_ms)}")
    if snapshot is not None and snapshot != writer and snapshot.age_ms >= _LONG_SNAPSHOT_MS:
        said.append(
            f"a transaction of {snapshot.who} is open since {format_duration(snapshot.age_ms)}: rows deleted since "
            "then are not cleaned away, and the outbox gets slower"
        )
    if status.stall.unknown:
        said.append(f"long transactions are not known: {status.stall.unknown}")
    return said
