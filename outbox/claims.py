"""The SQL of the inbox: decide in the handler's transaction whether a record still has to be handled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eventbus.recovery import redrive_number
from eventbus.types import ConsumerRecord, TopicPartition
from eventbus.units_of_work import StoredOffset
from outbox.offsets import create_offsets_table, missing_column, offsets_table, stored_offsets
from outbox.table_names import check_name, exists, index_name, shown

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Connection


class LostRace(Exception):
    """Another transaction claimed the records first. Run the transaction again to see the result."""


class WentBack(Exception):
    """The stored offset is lower than before, or is that of another topic: the database was restored, for example."""


_IDS_PER_STATEMENT = 500
_MOVED, _INSERTED = 1, 2
"""Values returned by `Claims._move_or_insert`."""
_PLAIN_ID = re.compile(r"[!-~]{1,200}")
"""Ids stored unchanged. Databases disagree on other text: trailing spaces, NUL, accents."""


class Claims:
    """The claims of one group.

    The stored offset only grows, and only in the transaction that handles the records below it. A record is unhandled
    if the stored offset is not beyond it. A record that waited for a retry is below the stored offset when it returns,
    so it is tracked by a row in the table of ids. Messages with ids are tracked in the same table.
    """

    def __init__(self, group: str, *, table: str, schema: str | None = None, metadata: MetaData | None = None) -> None:
        check_name("table", table, "_ids")
        check_name("schema", schema)
        self.group = group
        self.offsets: Any = offsets_table(table, schema, metadata)
        self.ids: Any = _ids_table(f"{table}_ids", schema, metadata)

    @property
    def tables(self) -> tuple[Any, Any]:
        return self.offsets, self.ids

    def create(self, connection: Connection) -> None:
        create_offsets_table(connection, self.offsets)
        self.ids.create(connection, checkfirst=True)

    def missing(self, connection: Connection) -> list[str]:
        """Return the names of tables that do not exist."""
        return [shown(connection, table) for table in self.tables if not exists(connection, table)]

    def missing_column(self, connection: Connection) -> str | None:
        """Return the statement that upgrades the table of an earlier release, or None if none is needed."""
        return missing_column(connection, self.offsets)

    def stored(
        self, connection: Connection, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, StoredOffset]:
        """Return what is stored for each partition; absent means nothing."""
        return stored_offsets(connection, self.offsets, self.group, partitions)

    def claim(
        self,
        connection: Connection,
        partition: TopicPartition,
        first: int,
        next_offset: int,
        known: int | None = None,
        topic_id: str = "",
    ) -> int:
        """Move the offset to ``next_offset``. Return the first offset from ``first`` on that is not handled yet.

        ``next_offset`` is returned if all records were handled. The row stays locked until the transaction ends, so
        that another member waits and then sees the result. ``known`` is an offset that was stored before, and
        ``topic_id`` the id of the records' topic. Raises LostRace or WentBack.
        """
        from sqlalchemy.exc import IntegrityError

        where = {"of_topic": partition.topic, "of_partition": partition.partition}
        moved = {**where, "to": next_offset, "lowest": known or 0, "highest": first, "of_id": topic_id}
        is_postgresql = connection.dialect.name == "postgresql"
        if is_postgresql:
            change = connection.execute(self._move_or_insert, moved).scalar()
            # If the row was known, it has been deleted. The new row is rolled back with the transaction.
            is_moved = change == _MOVED or (change == _INSERTED and known is None)
        else:
            change, is_moved = None, bool(connection.execute(self._move, moved).rowcount)
        if is_moved:
            return first
        row = None if change == _INSERTED else connection.execute(self._look, where).one_or_none()
        stored: int | None = None if row is None else row[0]
        if row is not None and StoredOffset(*row).is_of_another(topic_id):
            # The topic was created again while its records were in flight here, and its successor was handled.
            raise WentBack(
                f"{partition} was deleted and created again, and its database has the offset of another topic with "
                "this name. Start the handler again: it compares the ids of both before it begins"
            )
        if known is not None and (stored is None or stored < known):
            raise WentBack(
                f"{partition} was handled up to offset {known} in its database, which now says {stored}: it was "
                "restored from a backup, or another server without its last transactions took over, or the row was "
                "deleted. Start the handler again: it begins at what the database says"
            )
        if stored is None:
            values = {"group": self.group, **partition._asdict(), "next_offset": next_offset, "topic_id": topic_id}
            try:
                connection.execute(self.offsets.insert().values(values))
            except IntegrityError as error:
                raise LostRace(str(partition)) from error
            return first
        if stored < next_offset:
            connection.execute(self._move, {**moved, "highest": stored})
        return min(stored, next_offset)

    # Cached, because building a statement takes several times as long as running it.

    @cached_property
    def _here(self) -> Any:
        from sqlalchemy import and_, bindparam

        columns = self.offsets.c
        return and_(
            columns.group == self.group,
            columns.topic == bindparam("of_topic"),
            columns.partition == bindparam("of_partition"),
        )

    @cached_property
    def _is_of_topic(self) -> Any:
        """Compare topic ids. True also if one of the two is not known."""
        from sqlalchemy import String, bindparam, or_

        of_id = bindparam("of_id", type_=String)
        return or_(self.offsets.c.topic_id.in_(("", of_id)), of_id == "")

    @cached_property
    def _move(self) -> Any:
        from sqlalchemy import bindparam, func

        columns = self.offsets.c
        is_between = columns.next_offset.between(bindparam("lowest"), bindparam("highest"))
        moved = self.offsets.update().where(self._here, is_between, self._is_of_topic)
        return moved.values(next_offset=bindparam("to"), updated_at=func.now(), topic_id=bindparam("of_id"))

    @cached_property
    def _move_or_insert(self) -> Any:
        """Build PostgreSQL's `_move`, which inserts the row if it is missing.

        It reads only the unique index. An UPDATE would read the table, as a whole while it is small, and at
        SERIALIZABLE its reads conflict with rows of all other partitions and groups.
        """
        from sqlalchemy import bindparam, case, func, literal_column
        from sqlalchemy.dialects.postgresql import insert

        columns, key = self.offsets.c, list(self.offsets.primary_key)
        inserted = insert(self.offsets).values(
            {
                columns.group: self.group, columns.topic: bindparam("of_topic"),
                columns.partition: bindparam("of_partition"), columns.next_offset: bindparam("to"),
                columns.topic_id: bindparam("of_id"),
            }
        )  # fmt: skip
        moved = inserted.on_conflict_do_update(
            index_elements=key,
            set_={
                columns.next_offset: bindparam("to"),
                columns.updated_at: func.now(),
                columns.topic_id: bindparam("of_id"),
            },
            where=columns.next_offset.between(bindparam("lowest"), bindparam("highest")) & self._is_of_topic,
        )
        # xmax is 0 for a new row. An existing row was locked by this transaction, and xmax is the lock.
        return moved.returning(case((literal_column("xmax = 0"), _INSERTED), else_=_MOVED))

    @cached_property
    def _insert_new_ids(self) -> Any:
        """Build PostgreSQL's statement to store unknown ids and return them. Like `_move_or_insert` it reads only the
        index.
        """
        from sqlalchemy import literal_column
        from sqlalchemy.dialects.postgresql import insert

        from outbox.database import now_sql

        inserted = insert(self.ids).values(seen_at_ms=literal_column(now_sql("postgresql")))
        return inserted.on_conflict_do_nothing().returning(self.ids.c.id)

    @cached_property
    def _look(self) -> Any:
        from sqlalchemy import select

        columns = self.offsets.c
        return select(columns.next_offset, columns.topic_id).where(self._here).with_for_update()

    def passed(
        self, connection: Connection, partition: TopicPartition, next_offset: int, known: int | None, topic_id: str = ""
    ) -> None:
        """Mark all records below ``next_offset`` as handled. Raises LostRace or WentBack."""
        self.claim(connection, partition, next_offset, next_offset, known, topic_id)

    def forget(self, connection: Connection, partitions: Sequence[TopicPartition]) -> None:
        """Delete the stored offsets of these partitions, and the ids of their records."""
        columns, ids = self.offsets.c, self.ids.c
        stored = self.stored(connection, partitions)
        for topic_partition in partitions:
            topic, partition = topic_partition
            names = {topic, stored[topic_partition].topic_id or topic} if topic_partition in stored else {topic}
            for name in names:
                records = ids.id.startswith(f"record:{name}:{partition}:", autoescape=True)
                connection.execute(self.ids.delete().where(ids.group == self.group, records))
            connection.execute(
                self.offsets.delete().where(
                    columns.group == self.group, columns.topic == topic, columns.partition == partition
                )
            )

    def claim_ids(self, connection: Connection, ids: Mapping[int, str]) -> set[int]:
        """Store ids, given by index. Return the indexes of ids that are new; for equal ids, only the first. Raises
        LostRace.
        """
        from sqlalchemy import literal_column, select
        from sqlalchemy.exc import IntegrityError

        from outbox.database import now_sql

        columns = self.ids.c
        wanted = {id: index for index, id in reversed(list(ids.items()))}
        # Sorted, so that two transactions never wait for each other's ids.
        if connection.dialect.name == "postgresql":
            rows = [{"group": self.group, "id": id} for id in sorted(wanted)]
            return {wanted[id] for id in connection.execute(self._insert_new_ids, rows).scalars()} if rows else set()
        known = set[str]()
        for some in _pieces(list(wanted)):
            asked = select(columns.id).where(columns.group == self.group, columns.id.in_(some))
            known.update(connection.execute(asked).scalars())
        new = {id: index for id, index in wanted.items() if id not in known}
        rows = [{"group": self.group, "id": id} for id in sorted(new)]
        if rows:
            now = now_sql(connection.dialect.name)
            try:
                connection.execute(self.ids.insert().values(seen_at_ms=literal_column(now)), rows)
            except IntegrityError as error:
                raise LostRace(", ".join(list(new)[:3])) from error
        return set(new.values())

    def forget_ids(self, connection: Connection, older_than_ms: int, most: int) -> int:
        """Delete up to ``most`` ids older than ``older_than_ms``, oldest first. Return how many were deleted."""
        from sqlalchemy import select

        from outbox.database import now_ms

        columns = self.ids.c
        before_ms = now_ms(connection) - older_than_ms
        old: Any = (
            select(columns.id)
            .where(columns.group == self.group, columns.seen_at_ms < before_ms)
            .order_by(columns.seen_at_ms)
            .limit(most)
        )
        ids: list[str] = list(connection.execute(old).scalars())
        for some in _pieces(ids):
            connection.execute(self.ids.delete().where(columns.group == self.group, columns.id.in_(some)))
        return len(ids)


def _pieces(ids: Sequence[str]) -> list[Sequence[str]]:
    return [ids[start : start + _IDS_PER_STATEMENT] for start in range(0, len(ids), _IDS_PER_STATEMENT)]


def id_of_record(record: ConsumerRecord, topic_id: str) -> str:
    """Identify a record by topic, partition and offset. A redrive gets another id, because it must be handled.

    A recreated topic has another topic id, so its records are not confused with those of the deleted one.
    """
    place = f"record:{topic_id or record.topic}:{record.partition}:{record.offset}"
    number = redrive_number(dict(record.headers))
    return f"{place}:redriven:{number}" if number else place


def id_of_message(text: str) -> str:
    """Identify a message by its sender's id. Long or non-ASCII ids are replaced by their digest."""
    from hashlib import sha256

    if not _PLAIN_ID.fullmatch(text):
        text = f"sha256:{sha256(text.encode(errors='surrogatepass')).hexdigest()}"
    return f"message:{text}"


def _ids_table(name: str, schema: str | None, metadata: MetaData | None) -> Any:
    from sqlalchemy import BigInteger, Column, Index, MetaData, String, Table

    def exact(length: int) -> Any:
        return String(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")

    return Table(
        name,
        MetaData() if metadata is None else metadata,
        Column("group", exact(255), primary_key=True),
        Column("id", exact(300), primary_key=True),
        Column("seen_at_ms", BigInteger, nullable=False),
        Index(index_name(name, "seen_at_ms"), "group", "seen_at_ms"),
        schema=schema,
        keep_existing=True,
    )
