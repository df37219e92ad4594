"""The SQL of the inbox: whose turn a record is, decided in the handler's own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eventbus.types import ConsumerRecord, TopicPartition
from outbox.offsets import offsets_table

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection


class LostRace(Exception):
    """Another transaction has claimed the same at the same time: run this one again, and see what it did."""


class Claims:
    """Of one group.

    The stored offset only grows, and only by the transaction that handles what is below it: a record is handled when
    the offset is not beyond it. What was set aside for a later try is beyond the offset when its time comes; for that,
    and for messages with an id of their own, there is a row each in the table of ids.
    """

    def __init__(self, group: str, *, table: str, schema: str | None) -> None:
        self.group = group
        self.offsets: Any = offsets_table(table, schema)
        self.ids: Any = _ids_table(f"{table}_ids", schema)

    def create(self, connection: Connection) -> None:
        self.offsets.create(connection, checkfirst=True)
        self.ids.create(connection, checkfirst=True)

    def missing(self, connection: Connection) -> list[str]:
        """Tables that are not there."""
        from sqlalchemy import inspect

        there = inspect(connection)
        tables = (self.offsets, self.ids)
        return [table.name for table in tables if not there.has_table(table.name, schema=table.schema)]

    def stored(self, connection: Connection, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The next offset of each partition; absent means none."""
        from sqlalchemy import select

        columns = self.offsets.c
        topics = sorted({partition.topic for partition in partitions})
        rows = connection.execute(
            select(columns.topic, columns.partition, columns.next_offset).where(
                columns.group == self.group, columns.topic.in_(topics)
            )
        )
        found = {TopicPartition(topic, partition): offset for topic, partition, offset in rows}
        return {partition: found[partition] for partition in partitions if partition in found}

    def claim(self, connection: Connection, partition: TopicPartition, first: int, next_offset: int) -> int:
        """Move the offset to ``next_offset``; the first offset from ``first`` on that is not handled yet.

        The row stays locked to the end of the transaction: another member waits, and then sees what became of it.
        ``next_offset`` itself: all is handled. Raises LostRace.
        """
        from sqlalchemy import func, select
        from sqlalchemy.exc import IntegrityError

        table, columns = self.offsets, self.offsets.c
        here = (
            columns.group == self.group,
            columns.topic == partition.topic,
            columns.partition == partition.partition,
        )
        move = table.update().where(*here).values(next_offset=next_offset, updated_at=func.now())
        if connection.execute(move.where(columns.next_offset <= first)).rowcount:
            return first
        stored: int | None = connection.execute(select(columns.next_offset).where(*here).with_for_update()).scalar()
        if stored is None:
            values = {"group": self.group, **partition._asdict(), "next_offset": next_offset}
            try:
                connection.execute(table.insert().values(values))
            except IntegrityError as error:
                raise LostRace(str(partition)) from error
            return first
        if stored < next_offset:
            connection.execute(move)
        return min(stored, next_offset)

    def passed(self, connection: Connection, partition: TopicPartition, next_offset: int) -> None:
        """Nothing below ``next_offset`` is to be handled from here on."""
        self.claim(connection, partition, next_offset, next_offset)

    def forget(self, connection: Connection, partitions: Sequence[TopicPartition]) -> None:
        """Delete the stored offsets of these partitions."""
        columns = self.offsets.c
        for topic, partition in partitions:
            connection.execute(
                self.offsets.delete().where(
                    columns.group == self.group, columns.topic == topic, columns.partition == partition
                )
            )

    def claim_id(self, connection: Connection, id: str) -> bool:
        """False: it is known. Raises LostRace."""
        from sqlalchemy import select
        from sqlalchemy.exc import IntegrityError

        from outbox.database import now_ms

        columns = self.ids.c
        if connection.execute(select(columns.id).where(columns.group == self.group, columns.id == id)).first():
            return False
        try:
            connection.execute(self.ids.insert().values(group=self.group, id=id, seen_at_ms=now_ms(connection)))
        except IntegrityError as error:
            raise LostRace(id) from error
        return True

    def forget_messages(self, connection: Connection, older_than_ms: int) -> int:
        """Delete message ids that were seen so long ago; how many."""
        from outbox.database import now_ms

        columns = self.ids.c
        return connection.execute(
            self.ids.delete().where(
                columns.group == self.group,
                columns.id.like(f"{MESSAGE}%"),
                columns.seen_at_ms < now_ms(connection) - older_than_ms,
            )
        ).rowcount


MESSAGE = "message:"
"""Begins the ids of messages; those of records are kept apart by their own beginning."""


def id_of_record(record: ConsumerRecord) -> str:
    """Names a record by its place."""
    return f"record:{record.topic}:{record.partition}:{record.offset}"


def id_of_message(text: str) -> str:
    """Names a message by what its sender calls it; one that is too long for the column by its digest."""
    from hashlib import sha256

    text = text if len(text) <= 200 else f"sha256:{sha256(text.encode()).hexdigest()}"
    return f"{MESSAGE}{text}"


def _ids_table(name: str, schema: str | None) -> Any:
    from sqlalchemy import BigInteger, Column, MetaData, String, Table

    def exact(length: int) -> Any:
        return String(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")

    return Table(
        name,
        MetaData(schema=schema),
        Column("group", exact(255), primary_key=True),
        Column("id", exact(300), primary_key=True),
        Column("seen_at_ms", BigInteger, nullable=False),
    )
