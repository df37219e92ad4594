"""The relay's SQL for event rows: take, delete, settle by a receipt, promote, and quarantine them.

Each function runs in a transaction that its caller begins and commits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import msgspec

from outbox.relay.batches import (
    DatabaseMismatch,
    check_batch,
    identity_and_batches,
    lock_batch,
    record_batch,
    recording,
    set_batch,
)
from outbox.relay.cleaning import Published
from outbox.relay.receipts import Part, Receipt, checksum, spans
from outbox.relay.topic_waits import Place
from outbox.table_names import quoted

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Table
    from sqlalchemy.engine import Connection, CursorResult

    from outbox.tables import OutboxTables

Row = tuple[
    int,  # id
    str,  # event_id
    str,  # topic
    "bytes | str | None",  # key
    "bytes | None",  # value
    "bytes | None",  # headers, packed
    "int | None",  # partition
    int,  # timestamp_ms
    "int | None",  # expires_at_ms
    "int | None",  # bytes of a value that is large: None for the others
]
"""An event as read from the table. A plain tuple, because there are many of them."""

_FEW_SPANS = 8
"""Up to this many ranges are excluded in SQL, more are filtered in Python."""
_LONG_SPAN = 16
_MOST_SPANS = 32
"""Maximum number of ranges in a statement. The other ids are listed."""
_MOST_IDS = 10_000
"""Maximum number of ids in a statement. Drivers accept 32,767 parameters."""
_MYSQL = ("mysql", "mariadb")
_BY_KEY = "FORCE INDEX (PRIMARY)"
"""MySQL would otherwise scan and lock a small table as a whole, and wait for concurrent writers. For a range it also
locks the row after it, so ids are listed individually there.
"""
_LARGE_BYTES = 8_192
"""Larger values are read separately, so that unexpectedly large rows do not fill the memory."""
_MOST_LARGE_BYTES = 8 * 1_048_576
"""Maximum total size of large values read at once, but always at least one value."""


class Peek(msgspec.Struct, frozen=True):
    """The result of a check for work, now or later."""

    has_rows: bool
    due_ms: int | None
    """When the next scheduled event is due."""


class Rows:
    """The SQL statements for the rows of one outbox."""

    def __init__(self, tables: OutboxTables) -> None:
        from sqlalchemy import bindparam, case, func, select

        self._tables = tables
        self._all = frozenset(range(tables.shard_count))
        events = self._events = tables.events
        columns = events.c
        size = func.length(columns.value)
        every = select(
            columns.id,
            columns.event_id,
            columns.topic,
            columns.key,
            case((size <= _LARGE_BYTES, columns.value)).label("value"),
            columns.headers,
            columns.partition,
            columns.timestamp_ms,
            columns.expires_at_ms,
            case((size > _LARGE_BYTES, size)).label("large_bytes"),
        )
        in_order = every.order_by(columns.id).limit(bindparam("limit"))
        self._record_batch = recording(tables)
        self._take_all = in_order
        self._take_some = in_order.where(columns.shard.in_(bindparam("shards", expanding=True)))

    def take(
        self,
        connection: Connection,
        shards: frozenset[int],
        limit: int,
        published: Sequence[int] = (),
        without: Collection[Place] = (),
        only: Place | None = None,
    ) -> list[Row]:
        """Return the first committed rows of these shards in order of id.

        ``published`` are ids (ascending) of rows that may still be in the table and are skipped. Fewer rows are
        returned if they are large. ``without`` are places whose rows are skipped; ``only`` restricts the result to one
        place.
        """
        if not shards:
            return []
        asked, values = self._take_all, {}
        if shards != self._all:
            asked, values = self._take_some, {"shards": list(shards)}
        asked = asked.where(*self._of_places(without, only))
        known = spans(published)
        if len(known) > _FEW_SPANS:
            held = frozenset(published)
            found = connection.execute(asked, {"limit": limit + len(held), **values})
            rows = [row for row in cast("list[Row]", found.fetchall()) if row[0] not in held][:limit]
            return self._whole(connection, rows)
        # Exact ranges: a single range around all of them could hide a row whose transaction was committed late.
        for first, last in known:
            asked = asked.where(~self._events.c.id.between(first, last))
        found = connection.execute(asked, {"limit": limit, **values})
        return self._whole(connection, cast("list[Row]", found.fetchall()))

    def _whole(self, connection: Connection, rows: list[Row]) -> list[Row]:
        """Return the first of the rows, with their large values."""
        from sqlalchemy import select

        large: list[int] = []
        left_bytes = _MOST_LARGE_BYTES
        for at, row in enumerate(rows):
            if row[9] is not None:
                left_bytes -= row[9]
                if large and left_bytes < 0:
                    rows = rows[:at]
                    break
                large.append(row[0])
        if not large:
            return rows
        columns = self._events.c
        found = connection.execute(select(columns.id, columns.value).where(among(columns.id, large)))
        values: dict[int, bytes] = {id_: value for id_, value in found}
        # A row that has disappeared meanwhile belonged to another relay.
        return [
            row if row[9] is None else (*row[:4], values[row[0]], *row[5:])
            for row in rows
            if row[9] is None or row[0] in values
        ]

    def record_batch(self, connection: Connection, slot: int, number: int) -> None:
        """Record that the rows of all batches of a slot up to this one are deleted."""
        record_batch(connection, self._record_batch, slot, number)

    def delete_published(
        self,
        connection: Connection,
        batches: Sequence[Published],
        slot: int | None,
        number: int,
        now: ColumnElement[int],
    ) -> None:
        """Delete rows that were just published, or move them into the archive. Record the batch for the slot.

        A row with one of the ids but an event id outside the batches is kept: it was written after the sequence was
        restarted, and is not published yet.
        """
        if slot is not None:
            self.record_batch(connection, slot, number)
        ids = sorted(chain.from_iterable(batch.part.ids for batch in batches))
        first, last = (min(batch.event_ids[0] for batch in batches), max(batch.event_ids[1] for batch in batches))
        self._delete(connection, ids, now, (first, last))

    def _delete(
        self, connection: Connection, ids: Sequence[int], now: ColumnElement[int], event_ids: tuple[str, str]
    ) -> None:
        if self._tables.archive is not None:
            for some in _slices(ids):
                self._copy(connection, self._tables.archive, some, {"published_at_ms": now}, event_ids)
        delete_rows(connection, self._events, ids, event_ids)

    def drop(self, connection: Connection, ids: Sequence[int], event_ids: tuple[str, str]) -> int:
        """Delete rows without archiving them. Return how many there were."""
        return delete_rows(connection, self._events, ids, event_ids)

    def settle(self, connection: Connection, slot: int, receipt: Receipt, now: ColumnElement[int]) -> int:
        """Delete the rows that a slot has published, and return how many there were. Raises DatabaseMismatch.

        The batch is recorded in the transaction that deletes its rows. The rows of all batches after the recorded one
        must therefore exist. They do not if the database was restored, or if a clone has published these batches.
        """
        recorded = lock_batch(connection, self._tables, slot)
        check_batch(self._tables, slot, receipt, recorded)
        count = 0
        for number, part in enumerate(receipt.parts, receipt.deleted + 1):
            if number > recorded:
                # Locked, because a relay that lost the slot may be about to delete all of them.
                event_ids = self._find(connection, part, locks=True)
                if event_ids is None:
                    raise DatabaseMismatch(self._tables.name, slot, receipt, recorded)
                self._delete(connection, part.ids, now, event_ids)
                count += len(part.ids)
        set_batch(connection, self._tables, slot, receipt.number)
        return count

    def check(self, connection: Connection, receipts: Mapping[int, Receipt]) -> None:
        """Raise DatabaseMismatch for receipts that `settle` would refuse. The receipts may be outdated.

        The rows are read before the recorded batches, because a relay that deletes rows in between has then recorded
        them.
        """
        complete = {
            (slot, number): self._find(connection, part) is not None
            for slot, receipt in receipts.items()
            for number, part in enumerate(receipt.parts, receipt.deleted + 1)
        }
        _, recorded = identity_and_batches(connection, self._tables)
        for slot, receipt in receipts.items():
            last = recorded.get(slot, 0)
            check_batch(self._tables, slot, receipt, last)
            if not all(complete[slot, number] for number in range(max(last, receipt.deleted) + 1, receipt.number + 1)):
                raise DatabaseMismatch(self._tables.name, slot, receipt, last)

    def _find(self, connection: Connection, part: Part, *, locks: bool = False) -> tuple[str, str] | None:
        """Return the lowest and highest event id of a batch, or None unless all of its rows exist."""
        from sqlalchemy import select

        columns = self._events.c
        is_mysql = connection.dialect.name in _MYSQL
        wanted = columns.id.in_(part.ids) if is_mysql else among(columns.id, part.ids)
        asked = select(columns.event_id).where(wanted).order_by(columns.id)
        for dialect in _MYSQL:
            asked = asked.with_hint(self._events, _BY_KEY, dialect)
        event_ids = list(connection.scalars(asked.with_for_update() if locks else asked))
        is_same = len(event_ids) == len(part.ids) and checksum(event_ids) == part.crc
        return (min(event_ids), max(event_ids)) if is_same else None

    def _of_places(self, without: Collection[Place], only: Place | None = None) -> list[ColumnElement[bool]]:
        from sqlalchemy import or_

        columns = self._events.c
        if only is not None:
            topic, partition = only
            return [columns.topic == topic, *(() if partition is None else (columns.partition == partition,))]
        whole = sorted(topic for topic, partition in without if partition is None)
        conditions: list[ColumnElement[bool]] = [columns.topic.not_in(whole)] if whole else []
        for topic, partition in without:
            if partition is not None:
                elsewhere = (columns.topic != topic, columns.partition.is_(None), columns.partition != partition)
                conditions.append(or_(*elsewhere))
        return conditions

    def peek(self, connection: Connection, shards: frozenset[int], without: Collection[Place] = ()) -> Peek:
        """Return whether there are rows, and when the next scheduled event is due, in one query for idle relays."""
        from sqlalchemy import exists, func, select

        if not shards:
            return Peek(False, None)
        events, later = self._events, self._tables.later
        rows, due = select(events.c.id).where(*self._of_places(without)), select(func.min(later.c.due_ms))
        if shards != self._all:
            rows = rows.where(events.c.shard.in_(shards))
            due = due.where(later.c.shard.in_(shards))
        has_rows, due_ms = connection.execute(select(exists(rows), due.scalar_subquery())).one()
        return Peek(bool(has_rows), due_ms)

    def promote(self, connection: Connection, shards: frozenset[int], now_ms: int, limit: int) -> int:
        """Move scheduled events that are due to the events, in the order of their times. Return how many."""
        from sqlalchemy import select

        later = self._tables.later
        due = select(later.c.id).where(later.c.due_ms <= now_ms)
        if shards != self._all:
            due = due.where(later.c.shard.in_(shards))
        in_order = due.order_by(later.c.due_ms, later.c.id).limit(limit)
        # Rows locked by their writers are found by the next check.
        ids = list(connection.scalars(in_order.with_for_update(skip_locked=True)))
        if ids:
            names = event_columns(self._tables)
            rows = select(*(later.c[name] for name in names)).where(among(later.c.id, ids))
            in_order = rows.order_by(later.c.due_ms, later.c.id)
            connection.execute(self._events.insert().from_select(names, in_order))
            delete_rows(connection, later, ids)
        return len(ids)

    def quarantine(
        self, connection: Connection, ids: Sequence[int], reason: str, now: ColumnElement[int], *, is_behind: bool
    ) -> int:
        """Move events to the quarantine. Return how many there were."""
        extra = {"is_behind": int(is_behind), "reason": reason, "failed_at_ms": now}
        self._copy(connection, self._tables.failed, ids, extra)
        return delete_rows(connection, self._events, ids)

    def still_blocks(self, connection: Connection, head: int) -> bool:
        """Lock the row that blocks a key. Return False if it has left the quarantine."""
        failed = self._tables.failed
        locked = failed.update().where(failed.c.id == head, failed.c.is_behind == 0)
        found = connection.execute(locked.values(is_behind=failed.c.is_behind))
        return cast("CursorResult[Any]", found).rowcount > 0

    def _copy(
        self,
        connection: Connection,
        target: Table,
        ids: Sequence[int],
        extra: Mapping[str, Any],
        event_ids: tuple[str, str] | None = None,
    ) -> None:
        """Copy events with their ids. If the target already uses any of them, all get new ids in their order."""
        from sqlalchemy import exists, func, insert, literal, select

        events = self._events
        names = event_columns(self._tables)
        added = [literal(value) if isinstance(value, (int, str)) else value for value in extra.values()]
        number: Any = events.c.id
        if connection.scalar(select(exists().where(among(target.c.id, ids)))):
            highest = connection.scalar(select(func.max(target.c.id))) or 0
            number = literal(highest) + func.row_number().over(order_by=events.c.id)
        which = (among(events.c.id, ids), *_between(events, event_ids, connection))
        rows = select(number, *(events.c[name] for name in names), *added).where(*which)
        in_order = rows.order_by(events.c.id)
        connection.execute(insert(target).from_select(["id", *names, *extra], in_order))


def event_columns(tables: OutboxTables) -> list[str]:
    """Return the names of the columns that every table of events has, without the id."""
    return [column.key for column in tables.events.columns if column.key != "id"]


def delete_rows(
    connection: Connection, table: Table, ids: Sequence[int], event_ids: tuple[str, str] | None = None
) -> int:
    """Delete exactly the rows with these ids. Return how many there were.

    ``event_ids`` are the lowest and the highest event id of the rows.
    """
    return sum([_delete_some(connection, table, some, event_ids) for some in _slices(ids)])


def _delete_some(connection: Connection, table: Table, ids: Sequence[int], event_ids: tuple[str, str] | None) -> int:
    from sqlalchemy import text

    if connection.dialect.name in _MYSQL:
        # Driven by the ids, row by row. Any other DELETE may scan a small table, and wait for rows of other writers.
        preparer = connection.dialect.identifier_preparer
        column = preparer.format_column(table.c.id)
        listed = "JSON_TABLE(:ids, '$[*]' COLUMNS (id BIGINT PATH '$')) AS listed"
        e = f"{quoted(connection, table)} AS e {_BY_KEY} ON e.{column} = listed.id".replace(":", r"\:")
        values: dict[str, Any] = {"ids": str(list(ids))}
        if event_ids is not None:
            e += f" WHERE e.{preparer.format_column(table.c.event_id)} BETWEEN :least AND :greatest"
            values |= {"least": event_ids[0], "greatest": event_ids[1]}
        found = connection.execute(text(f"DELETE e FROM {listed} STRAIGHT_JOIN {e}"), values)
    else:
        found = connection.execute(
            table.delete().where(among(table.c.id, ids), *_between(table, event_ids, connection))
        )
    return cast("CursorResult[Any]", found).rowcount


def _between(table: Table, event_ids: tuple[str, str] | None, connection: Connection) -> list[ColumnElement[bool]]:
    from sqlalchemy import collate

    if event_ids is None:
        return []
    column: Any = table.c.event_id
    # A PostgreSQL locale may order texts differently from Python.
    column = collate(column, "C") if connection.dialect.name == "postgresql" else column
    return [column.between(*event_ids)]


def _slices(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[at : at + _MOST_IDS] for at in range(0, len(ids), _MOST_IDS)]


def among(column: ColumnElement[int], ids: Collection[int]) -> ColumnElement[bool]:
    """Match exactly the rows with these ids. Long runs of ids become ranges."""
    from sqlalchemy import or_

    ranges, listed = _ranges(ids)
    parts = [column.between(first, last) for first, last in ranges]
    return or_(*parts, column.in_(listed)) if listed or not parts else or_(*parts)


def _ranges(ids: Collection[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """Split ids into long runs, and the rest."""
    ranges = [span for span in spans(sorted(ids)) if span[1] - span[0] >= _LONG_SPAN][:_MOST_SPANS]
    return ranges, sorted(set(ids).difference(*(range(first, last + 1) for first, last in ranges)))
