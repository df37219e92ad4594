"""The quarantine of refused events and of later events with the same key: list, retry or drop them.

It works while relays run. Every change to the rows of a key first locks the key's refused row (`lock_heads`), as relays
do when they quarantine another row of that key. No row can therefore end up waiting for a row that is gone. A released
event keeps its id, which is lower than those of all rows written meanwhile. Relays publish in order of id, so the order
of the key is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import anyio
import msgspec

from eventbus.types import Headers
from outbox.database import Database
from outbox.headers import unpack
from outbox.relay.rows import event_columns
from outbox.sequence import replaced_ids
from outbox.status import written_at_ms
from outbox.tries import Tries

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection, CursorResult

    from outbox.tables import OutboxTables

T = TypeVar("T")
Key = bytes | str | None

_HEADS = 200
"""Maximum number of refused rows, along with the rows waiting for them, released in one transaction."""
_IDS = 500
"""Maximum number of ids in one statement."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """Selects refused events that match all given conditions; none selects all events."""

    ids: tuple[int, ...] | None = None
    event_ids: tuple[str, ...] | None = None
    """Alternatives to ``ids``: an event matches if either contains it."""
    topic: str | None = None
    reason: str | None = None
    """A part of the reason."""


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """An event that the log refused, or one that waits because an earlier event with its key was refused."""

    id: int
    event_id: str
    topic: str
    key: Key
    is_behind: bool
    reason: str
    failed_at_ms: int
    written_at_ms: int
    partition: int | None
    value_bytes: int | None
    """None for a tombstone."""
    behind: int = 0
    """How many events wait for this one."""


class Content(msgspec.Struct, frozen=True):
    """The content of an event."""

    headers: Headers
    value: bytes | None


class Released(msgspec.Struct, frozen=True):
    """The result of a retry or a drop."""

    refused: int = 0
    """Number of refused events that were released or dropped."""
    behind: int = 0
    """Number of waiting events that were released with them."""


class Row(NamedTuple):
    """The columns of a row that `going` needs."""

    id: int
    topic: str
    key: Key
    is_behind: bool


def going(rows: Iterable[Row], chosen: set[int], *, heads: bool) -> Iterator[Row]:
    """Yield the rows that leave the quarantine with the ``chosen`` refused rows.

    These are the waiting rows of keys that have no other refused row before them, and with ``heads`` also the chosen
    rows. ``rows`` must be all rows of the keys in question, in order of id.
    """
    blocked: set[tuple[str, Key]] = set()
    for row in rows:
        place = (row.topic, row.key)
        if row.is_behind:
            if place not in blocked:
                yield row
        elif row.id not in chosen:
            blocked.add(place)
        elif heads:
            yield row


class Quarantine:
    """The quarantine of one outbox."""

    def __init__(self, database: Database, tables: OutboxTables) -> None:
        self._database = database
        self._tables = tables

    async def count(self, choice: Choice) -> int:
        """Count the refused events that match, without those that wait for them."""
        return await self._database.run(count_heads, self._tables, choice)

    async def events(self, choice: Choice, *, limit: int = 50, behind: bool = False) -> list[Refused]:
        """Return the events that match, oldest first. ``behind`` includes the events that wait for a refused one."""
        return await self._database.run(read_refused, self._tables, choice, limit, behind)

    async def content(self, id: int) -> Content | None:
        """Return headers and value of an event, or None if it is not in the quarantine."""
        return await self._database.run(read_content, self._tables, id)

    async def retry(self, choice: Choice, progress: Callable[[int], object] = lambda _: None) -> Released:
        """Return the chosen events, and those waiting for them, to the outbox. ``progress`` gets the number done so
        far.
        """
        return await self._release(choice, back=True, progress=progress)

    async def drop(self, choice: Choice, progress: Callable[[int], object] = lambda _: None) -> Released:
        """Permanently delete the chosen events. Events that wait for them are released."""
        return await self._release(choice, back=False, progress=progress)

    async def _release(self, choice: Choice, *, back: bool, progress: Callable[[int], object]) -> Released:
        refused = behind = 0
        last = -1
        while heads := await self._database.run(chosen_heads, self._tables, choice, last, _HEADS):
            last = heads[-1]
            done = await self._again(
                lambda connection, heads=heads: release(connection, self._tables, heads, back=back)
            )
            refused, behind = refused + done.refused, behind + done.behind
            progress(refused)
        return Released(refused, behind)

    async def _again(self, change: Callable[[Connection], T]) -> T:
        """Run a transaction, and retry it after a conflict with a relay."""
        tries = Tries(f"outbox {self._tables.name!r}")
        while True:
            try:
                return await self._database.run(change)
            except Exception as error:  # `Tries` decides which errors are retried
                seconds = tries.pause_after(error, may_wait=False)
                if seconds is None:
                    raise
                await anyio.sleep(seconds)


# SQL ------------------------------------------------------------------------------------------------------------------


def _where(tables: OutboxTables, choice: Choice) -> list[ColumnElement[bool]]:
    from sqlalchemy import or_

    failed = tables.failed.c
    found: list[ColumnElement[bool]] = []
    if choice.ids is not None or choice.event_ids is not None:
        found.append(or_(failed.id.in_(choice.ids or ()), failed.event_id.in_(choice.event_ids or ())))
    if choice.topic is not None:
        found.append(failed.topic == choice.topic)
    if choice.reason is not None:
        found.append(failed.reason.contains(choice.reason, autoescape=True))
    return found


def chosen_heads(connection: Connection, tables: OutboxTables, choice: Choice, after: int, limit: int) -> list[int]:
    """Return ids of matching refused rows after the id ``after``, in order."""
    from sqlalchemy import select

    failed = tables.failed.c
    query = select(failed.id).where(failed.is_behind == 0, failed.id > after, *_where(tables, choice))
    return list(connection.scalars(query.order_by(failed.id).limit(limit)))


def count_heads(connection: Connection, tables: OutboxTables, choice: Choice) -> int:
    from sqlalchemy import func, select

    query = select(func.count()).where(tables.failed.c.is_behind == 0, *_where(tables, choice))
    return connection.execute(query.select_from(tables.failed)).scalar_one()


def lock_heads(connection: Connection, tables: OutboxTables, heads: Sequence[int]) -> int:
    """Lock these refused rows, and with them the rows waiting for them, until the transaction ends.

    Returns how many exist. It must be the first statement of the transaction: an UPDATE without a change takes a row
    lock everywhere, and on SQLite the write lock, which a transaction may not be able to get after it has read.
    """
    failed = tables.failed
    lock = failed.update().where(failed.c.id.in_(heads), failed.c.is_behind == 0).values(is_behind=failed.c.is_behind)
    return _count(connection, lock)


def release(connection: Connection, tables: OutboxTables, heads: Sequence[int], *, back: bool) -> Released:
    """Return refused rows to the outbox, or delete them, and release the rows waiting for them. Missing rows are
    ignored.
    """
    failed = tables.failed
    if not lock_heads(connection, tables, heads):
        return Released()
    leaving = list(going(_of_same_keys(connection, tables, heads), set(heads), heads=back))
    _move(connection, tables, [row.id for row in leaving])
    behind = sum(row.is_behind for row in leaving)
    if back:
        return Released(len(leaving) - behind, behind)
    dropped = _count(connection, failed.delete().where(failed.c.id.in_(heads), failed.c.is_behind == 0))
    return Released(dropped, behind)


def _of_same_keys(connection: Connection, tables: OutboxTables, heads: Sequence[int]) -> Iterator[Row]:
    """Yield these rows and all others with the same keys, in order of id. No row waits for a row without a key."""
    from sqlalchemy import and_, or_, select, tuple_

    failed = tables.failed.c
    keys = select(failed.topic, failed.key).where(failed.id.in_(heads), failed.key.is_not(None))
    of_keys = tuple_(failed.topic, failed.key).in_(keys)
    query = select(failed.id, failed.topic, failed.key, failed.is_behind).order_by(failed.id)
    query = query.where(or_(of_keys, and_(failed.id.in_(heads), failed.key.is_(None))))
    for id, topic, key, is_behind in connection.execute(query):
        yield Row(id, topic, key, bool(is_behind))


def _move(connection: Connection, tables: OutboxTables, ids: Sequence[int]) -> None:
    """Move rows back to the events, unchanged. Raises RuntimeError if another transaction changed them meanwhile."""
    from sqlalchemy import literal, select

    failed, names = tables.failed, event_columns(tables)
    columns = [failed.c[name] for name in names]
    new_ids = iter(replaced_ids(connection, tables, ids))
    for first in range(0, len(ids), _IDS):
        some = ids[first : first + _IDS]
        chosen = [select(failed.c.id, *columns).where(failed.c.id.in_(some))]
        if renumbered := list(zip(some, new_ids, strict=False)):
            chosen = [select(literal(new), *columns).where(failed.c.id == old) for old, new in renumbered]
        for rows in chosen:
            connection.execute(tables.events.insert().from_select(["id", *names], rows))
        taken = _count(connection, failed.delete().where(failed.c.id.in_(some)))
        if taken != len(some):
            raise RuntimeError(f"{len(some) - taken} rows of {failed.name} have left meanwhile: nothing is changed")


def read_refused(
    connection: Connection, tables: OutboxTables, choice: Choice, limit: int, behind: bool
) -> list[Refused]:
    from sqlalchemy import func, select

    failed = tables.failed.c
    columns = [column for column in failed if column.key not in ("value", "headers")]
    query = select(*columns, func.length(failed.value).label("size")).where(*_where(tables, choice))
    if not behind:
        query = query.where(failed.is_behind == 0)
    rows = connection.execute(query.order_by(failed.id).limit(limit)).all()
    waiting = _behind(connection, tables, {row.topic for row in rows})
    return [
        Refused(
            id=row.id, event_id=row.event_id, topic=row.topic, key=row.key, is_behind=bool(row.is_behind),
            reason=row.reason, failed_at_ms=row.failed_at_ms, partition=row.partition, value_bytes=row.size,
            written_at_ms=written_at_ms(row.event_id, row.timestamp_ms),
            behind=0 if row.is_behind or row.key is None else waiting.get((row.topic, row.key), 0),
        )
        for row in rows
    ]  # fmt: skip


def _behind(connection: Connection, tables: OutboxTables, topics: Iterable[str]) -> dict[tuple[str, Key], int]:
    """Count the waiting rows by topic and key."""
    from sqlalchemy import func, select

    failed = tables.failed.c
    query = select(failed.topic, failed.key, func.count()).where(failed.is_behind == 1, failed.topic.in_(list(topics)))
    found = connection.execute(query.group_by(failed.topic, failed.key))
    return {(topic, key): count for topic, key, count in found}


def read_content(connection: Connection, tables: OutboxTables, id: int) -> Content | None:
    from sqlalchemy import select

    failed = tables.failed.c
    row = connection.execute(select(failed.headers, failed.value).where(failed.id == id)).first()
    return None if row is None else Content(unpack(row.headers), row.value)


def _count(connection: Connection, statement: Any) -> int:
    return cast("CursorResult[Any]", connection.execute(statement)).rowcount
