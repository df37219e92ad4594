"""A group's offsets in the user's own database, so that rows and offsets are committed together."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from eventbus import Consumer, ConsumerRecord, EventBusError, OffsetAndMetadata, TopicPartition
from eventbus.errors import ConfigError, OffsetsMoved
from eventbus.units_of_work import StoredOffset
from outbox.commit_listeners import watch
from outbox.database import trouble_of
from outbox.table_names import check_name, exists, quoted, schema_of
from outbox.threaded import ThreadedConnection

if TYPE_CHECKING:
    from sqlalchemy import MetaData
    from sqlalchemy.engine import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

logger = logging.getLogger("outbox")

P = ParamSpec("P")
T = TypeVar("T")
Listener = Callable[[list[TopicPartition]], object]
"""Called with the partitions of a rebalance: a plain function, or an ``async def``, which is awaited."""


class SqlConnection(Protocol):
    """A transaction's connection: an `AsyncConnection`, or for a plain engine its methods, run in worker threads."""

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Run a statement and fetch its rows."""
        ...

    async def scalar(self, statement: Any, parameters: Any = None) -> Any:
        """Return the first column of the first row, or None."""
        ...

    async def run_sync(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call ``fn(connection, ...)`` with the plain connection outside the event loop. Use this for a `Session`."""
        ...


class _Move(NamedTuple):
    partition: TopicPartition
    expected: int | None
    """The offset that must be stored now, or None if no row may exist."""
    next_offset: int


class SqlOffsets:
    """Offsets of one group, stored next to the rows that its records become. Each record is written once.

    ::

        from sqlalchemy import create_engine, text
        from outbox import OffsetsMoved, SqlOffsets

        offsets = SqlOffsets(create_engine("sqlite:///bills.db"), group="billing")

        async with bus.new_consumer(group="billing", value=Order) as consumer:
            await offsets.follow(consumer, "orders")
            while True:
                records = await consumer.poll()
                try:
                    async with offsets.transaction(records) as connection:
                        for record in records:
                            await connection.execute(
                                text("INSERT INTO bills (order_id, total) VALUES (:order_id, :total)"),
                                {"order_id": record.value.order_id, "total": record.value.amount * 1.2},
                            )
                except OffsetsMoved:
                    continue

    `follow` subscribes, and on every assignment seeks to the offsets in the table. `transaction` moves the offsets and
    commits them with the block's rows. An exception in the block rolls both back, and the consumer reads the records
    again. Pass it everything that `poll` returned, in order, whether or not a record becomes a row.

    Each transaction first moves the offset by compare-and-set. A zombie that has lost its partition without noticing
    raises `OffsetsMoved` and writes nothing; if the zombie was first, its successor raises it. Either way, rows are
    written once, on any database that SQLAlchemy supports, at READ COMMITTED and all higher levels.

    ``engine`` is an `Engine`, whose driver is called in worker threads, or an `AsyncEngine`. Each consumer needs its
    own object. The offsets are also committed to the log's group, so that its lag is visible there, but they are never
    read from it.
    """

    def __init__(
        self,
        engine: Engine | AsyncEngine,
        group: str,
        *,
        table: str = "eventbus_offsets",
        schema: str | None = None,
        metadata: MetaData | None = None,
        start: Literal["earliest", "latest"] = "earliest",
    ) -> None:
        """``table`` is created in ``schema`` of the database if it is missing. ``metadata`` is that of your models; the
        table is attached to it, so that migrations include it. ``start`` is where a partition without a row begins.

        Raises ConfigError.
        """
        if not group or len(group) > 255:
            raise ConfigError(f"group={group!r}: a text of 1 to 255 characters")
        check_name("table", table)
        check_name("schema", schema)
        if start not in ("earliest", "latest"):
            raise ConfigError(f'start={start!r}: "earliest" or "latest"')
        from sqlalchemy.ext.asyncio import AsyncEngine
        from sqlalchemy.pool import SingletonThreadPool

        if not isinstance(engine, AsyncEngine) and isinstance(engine.pool, SingletonThreadPool):
            raise ConfigError(
                "this engine has a connection per thread, so that a transaction over worker threads would meet several "
                'databases: create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})'
            )
        # SQLite, too, would otherwise leave the rows of a failed COMMIT to the next transaction.
        watch(engine.sync_engine.dialect if isinstance(engine, AsyncEngine) else engine.dialect)
        self.group = group
        self._engine = engine
        self._table = offsets_table(table, schema, metadata)
        self._start = start
        self._is_created = False
        self._consumer: Consumer | None = None
        self._shows_lag = False
        self._expected: dict[TopicPartition, int | None] = {}
        """Offsets expected in the table for assigned partitions. None means that a row does not exist yet."""
        self._first: dict[TopicPartition, int] = {}
        """Start offsets of partitions without a row, to return to after a failed transaction."""
        self._topic_ids: dict[str, str] = {}
        """Ids of the topics that the consumer reads. Offsets of another topic with the same name are refused.
        """
        self._failed: dict[TopicPartition, int] = {}
        """First offsets of batches that were rolled back. Later records must not be written before them."""

    # following -------------------------------------------------------------------------------------------------------

    async def follow(
        self,
        consumer: Consumer,
        *topics: str,
        pattern: str | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Subscribe ``consumer`` to ``topics`` or ``pattern``, and start each assigned partition at its stored offset.

        Without topics, it seeks in partitions that were assigned manually. The listeners are called after this object
        has handled the rebalance. Raises ConfigError for a second consumer, or for a subscription without a group, and
        what the database raises.
        """
        if self._consumer not in (None, consumer):
            raise ConfigError("these SqlOffsets follow another consumer already: one object each, the table is shared")
        self._consumer = consumer
        await self.create_table()

        async def assigned(partitions: list[TopicPartition]) -> None:
            await self._place(partitions)
            await _notify(on_assigned, partitions)

        async def revoked(partitions: list[TopicPartition]) -> None:
            self._forget(partitions)
            await _notify(on_revoked, partitions)

        async def lost(partitions: list[TopicPartition]) -> None:
            self._forget(partitions)
            await _notify(on_lost or on_revoked, partitions)

        if topics or pattern is not None:
            consumer.group_metadata()
            await consumer.subscribe(*topics, pattern=pattern, on_assigned=assigned, on_revoked=revoked, on_lost=lost)
        self._shows_lag = _has_group(consumer)
        await self._place([partition for partition in consumer.assignment() if partition not in self._expected])

    async def _place(self, partitions: Sequence[TopicPartition]) -> None:
        """Seek to the stored offsets. Without one, seek to where we began before, or to ``start``."""
        consumer = self._consumer
        assert consumer is not None
        self._forget_stored(partitions)  # not known until the database has answered
        if partitions:
            self._topic_ids.update(await consumer.topic_ids(*{partition.topic for partition in partitions}))
        found = await self._read_stored(partitions)
        self._check_topics(found)
        stored = {partition: one.next_offset for partition, one in found.items()}
        fresh = [partition for partition in partitions if partition not in stored and partition not in self._first]
        for partition in self._still_ours(fresh):
            if self._start == "latest":
                await consumer.seek_to_end(partition)
            else:
                await consumer.seek_to_beginning(partition)
        for partition in self._still_ours(partitions):
            offset = stored.get(partition)
            begin = self._first.get(partition) if offset is None else offset
            if begin is not None:
                consumer.seek(partition, begin)
            self._expected[partition] = offset

    def _check_topics(self, stored: Mapping[TopicPartition, StoredOffset]) -> None:
        """Raise ConfigError if the offset stored for an assigned partition belongs to another topic."""
        others = [
            one for one in self._still_ours(stored) if stored[one].is_of_another(self._topic_ids.get(one.topic, ""))
        ]
        if others:
            raise ConfigError(
                f"The table {self._table.name} has offsets of another topic {others[0].topic!r} for group "
                f"{self.group!r}. It was deleted and created again, or this is another log, so the stored offsets do "
                f"not refer to its records. To begin as start={self._start!r} says, delete them: "
                f"await SqlOffsets(...).forget({', '.join(map(repr, others))})"
            )

    def _assignment(self) -> list[TopicPartition]:
        assert self._consumer is not None
        try:
            return self._consumer.assignment()
        except ConfigError:  # the consumer is closed
            return []

    def _still_ours(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions still assigned. Others were revoked meanwhile, and their new owners read the table."""
        assigned = set(self._assignment())
        return [partition for partition in partitions if partition in assigned]

    def _forget_stored(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._expected.pop(partition, None)
            self._failed.pop(partition, None)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        self._forget_stored(partitions)
        for partition in partitions:
            self._first.pop(partition, None)

    # rows and offsets ------------------------------------------------------------------------------------------------

    def transaction(self, records: Iterable[ConsumerRecord]) -> AbstractAsyncContextManager[SqlConnection]:
        """Return a transaction that stores the rows written in the block, and the offsets after ``records``.

        ``async with offsets.transaction(records) as connection`` commits at the end of the block. If the block or the
        commit raises, nothing is stored, and the consumer reads the records again. Raises `OffsetsMoved` on entering,
        and what the database raises.
        """
        return self._transaction(records)

    @asynccontextmanager
    async def _transaction(self, records: Iterable[ConsumerRecord]) -> AsyncGenerator[SqlConnection]:
        from sqlalchemy.exc import DBAPIError

        consumer = self._consumer
        if consumer is None:
            raise ConfigError("these SqlOffsets follow no consumer yet: `await offsets.follow(consumer, ...)` first")
        first, behind = _span(records)
        try:
            unplaced = [partition for partition in self._assignment() if partition not in self._expected]
            # The database did not answer when they were assigned, so they started at the group's offset in the log.
            if unplaced:
                await self._place(unplaced)
            moves = self._moves(first, behind, unplaced)
            async with self._begin() as connection:
                try:
                    await connection.run_sync(self._claim, moves)
                except DBAPIError as error:
                    if trouble_of(error) != "conflict":
                        raise
                    # At REPEATABLE READ and SERIALIZABLE, PostgreSQL refuses to change a row that another transaction
                    # has changed meanwhile. The claim is there to detect that.
                    raise OffsetsMoved(
                        f"The stored offsets of {', '.join(map(str, first))} were moved by another transaction at the "
                        f"same moment, so nothing was written. Poll again. ({error.orig})"
                    ) from error
                yield connection
        except OffsetsMoved:
            # The consumer's records were read from a position other than the stored offset.
            await self._place(self._still_ours(first))
            raise
        except BaseException:
            self._go_back(first)
            raise
        self._expected.update(behind)
        for partition in behind:
            self._first.pop(partition, None)
            self._failed.pop(partition, None)
        if self._shows_lag and behind:
            consumer.commit_nowait({at: OffsetAndMetadata(offset) for at, offset in behind.items()}, _not_shown)

    def _go_back(self, first: dict[TopicPartition, int]) -> None:
        """Seek back to the start of the batch. If the commit has succeeded nevertheless, the next claim detects it."""
        assert self._consumer is not None
        for partition in self._still_ours(first):
            expected = self._expected.get(partition)
            begin = self._first.get(partition) if expected is None else expected
            if begin is not None:
                self._consumer.seek(partition, begin)
            self._failed[partition] = min(first[partition], self._failed.get(partition, first[partition]))

    def _moves(
        self, first: dict[TopicPartition, int], behind: dict[TopicPartition, int], unplaced: list[TopicPartition]
    ) -> list[_Move]:
        """Return the changes sorted by partition, so that two transactions never wait for each other's rows."""
        moves: list[_Move] = []
        for partition in sorted(first):
            if partition in unplaced:
                raise OffsetsMoved(f"{partition}: its stored offset was not known when these records were polled")
            if partition not in self._expected:
                raise OffsetsMoved(f"{partition} is not, or no longer, this consumer's: nothing was written")
            expected = self._expected[partition]
            if expected is None:
                self._first.setdefault(partition, first[partition])
            elif first[partition] < expected:
                raise OffsetsMoved(
                    f"{partition}: records from offset {first[partition]} on were given, and those below {expected} "
                    f"have been written; to write them again, `forget` the partition first"
                )
            if first[partition] > self._failed.get(partition, first[partition]):
                raise OffsetsMoved(
                    f"{partition}: records from offset {first[partition]} on were given, and those from "
                    f"{self._failed[partition]} on were rolled back before: poll them again first"
                )
            moves.append(_Move(partition, expected, behind[partition]))
        return moves

    def _claim(self, connection: Connection, moves: list[_Move]) -> None:
        """Move the offsets if they are as expected. The rows stay locked until the transaction ends."""
        from sqlalchemy import func, true
        from sqlalchemy.exc import IntegrityError

        table = self._table
        columns = table.c
        for (topic, partition), expected, next_offset in moves:
            topic_id = self._topic_ids.get(topic, "")
            if expected is None:
                values = {
                    "group": self.group, "topic": topic, "partition": partition, "next_offset": next_offset,
                    "topic_id": topic_id,
                }  # fmt: skip
                try:
                    connection.execute(table.insert().values(values))
                except IntegrityError as error:
                    raise self._moved(TopicPartition(topic, partition), expected) from error
                continue
            updated = connection.execute(
                table.update()
                .where(
                    columns.group == self.group,
                    columns.topic == topic,
                    columns.partition == partition,
                    columns.next_offset == expected,
                    columns.topic_id.in_(("", topic_id)) if topic_id else true(),
                )
                .values(next_offset=next_offset, updated_at=func.now(), topic_id=topic_id)
            )
            if updated.rowcount != 1:
                raise self._moved(TopicPartition(topic, partition), expected)

    def _moved(self, partition: TopicPartition, expected: int | None) -> OffsetsMoved:
        known = "no offset" if expected is None else f"offset {expected}"
        return OffsetsMoved(
            f"{partition}: another consumer of group {self.group!r} has moved it on from {known}; nothing was written, "
            "poll again"
        )

    @asynccontextmanager
    async def _begin(self) -> AsyncGenerator[SqlConnection]:
        """Begin a transaction with either kind of engine."""
        from sqlalchemy.ext.asyncio import AsyncEngine

        if isinstance(self._engine, AsyncEngine):
            async with self._engine.begin() as connection:
                yield cast("SqlConnection", connection)
        else:
            async with ThreadedConnection(self._engine) as connection:
                yield connection

    # the table -------------------------------------------------------------------------------------------------------

    async def create_table(self) -> None:
        """Create the table if it is missing. `follow` calls it. A database user without the right to needs an existing
        table.
        """
        from sqlalchemy.exc import DBAPIError

        if self._is_created:
            return
        try:
            async with self._begin() as connection:
                await connection.run_sync(self._create)
        except DBAPIError:
            async with self._begin() as connection:  # another process created it first
                if not await connection.run_sync(self._exists):
                    raise
        self._is_created = True

    def _create(self, connection: Connection) -> None:
        create_offsets_table(connection, self._table)

    def _exists(self, connection: Connection) -> bool:
        return exists(connection, self._table) and missing_column(connection, self._table) is None

    async def stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the next offset stored for each partition. Partitions without a row are omitted."""
        found = await self._read_stored(TopicPartition(*partition) for partition in partitions)
        return {partition: stored.next_offset for partition, stored in found.items()}

    async def _read_stored(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        wanted = set(partitions)
        if not wanted:
            return {}
        await self.create_table()
        async with self._begin() as connection:
            return await connection.run_sync(self._stored, wanted)

    def _stored(self, connection: Connection, wanted: set[TopicPartition]) -> dict[TopicPartition, StoredOffset]:
        return stored_offsets(connection, self._table, self.group, wanted)

    async def forget(self, *partitions: TopicPartition) -> None:
        """Delete the stored offsets of these partitions, for a recreated topic or to write all rows again.

        Call it while no consumer of the group runs. The next one begins at ``start``.
        """
        async with self._begin() as connection:
            await connection.run_sync(self._delete, [TopicPartition(*partition) for partition in partitions])
        self._forget(partitions)

    def _delete(self, connection: Connection, partitions: list[TopicPartition]) -> None:
        columns = self._table.c
        for topic, partition in partitions:
            connection.execute(
                self._table.delete().where(
                    columns.group == self.group, columns.topic == topic, columns.partition == partition
                )
            )


def stored_offsets(
    connection: Connection, table: Any, group: str, partitions: Collection[TopicPartition]
) -> dict[TopicPartition, StoredOffset]:
    """Return the group's rows in ``table`` for these partitions. Partitions without a row are omitted."""
    from sqlalchemy import select

    columns = table.c
    topics = sorted({partition.topic for partition in partitions})
    rows = connection.execute(
        select(columns.topic, columns.partition, columns.next_offset, columns.topic_id).where(
            columns.group == group, columns.topic.in_(topics)
        )
    )
    found = {TopicPartition(topic, partition): StoredOffset(*stored) for topic, partition, *stored in rows}
    return {partition: found[partition] for partition in partitions if partition in found}


def offsets_table(name: str, schema: str | None, metadata: MetaData | None = None) -> Any:
    """Return the table of offsets, attached to ``metadata``, which may contain it already."""
    from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, func

    def text(length: int) -> Any:
        # MySQL compares text case-insensitively by default, but topic names are case-sensitive.
        return String(length).with_variant(String(length, collation="utf8mb4_bin"), "mysql", "mariadb")

    return Table(
        name,
        MetaData() if metadata is None else metadata,
        Column("group", text(255), primary_key=True),
        Column("topic", text(249), primary_key=True),
        Column("partition", Integer, primary_key=True, autoincrement=False),
        Column("next_offset", BigInteger, nullable=False),
        Column("updated_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
        Column("topic_id", text(36), nullable=False, server_default=""),
        schema=schema,
        keep_existing=True,
    )


def create_offsets_table(connection: Connection, table: Any) -> None:
    """Create the table if it is missing, or add the column that a table of an earlier release lacks."""
    table.create(connection, checkfirst=True)
    statement = missing_column(connection, table)
    if statement is not None:
        connection.exec_driver_sql(statement)


def missing_column(connection: Connection, table: Any) -> str | None:
    """Return the statement that adds the topic's id to a table of an earlier release, or None if it exists."""
    from sqlalchemy import inspect
    from sqlalchemy.schema import CreateColumn

    column = table.c.topic_id
    schema = schema_of(connection, table)
    if any(existing["name"] == column.name for existing in inspect(connection).get_columns(table.name, schema=schema)):
        return None
    return (
        f"ALTER TABLE {quoted(connection, table)} ADD COLUMN {CreateColumn(column).compile(dialect=connection.dialect)}"
    )


def _span(records: Iterable[ConsumerRecord]) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """Return the first offset of each partition, and the offset after its last record."""
    first: dict[TopicPartition, int] = {}
    behind: dict[TopicPartition, int] = {}
    for record in records:
        partition = record.topic_partition
        first[partition] = min(first.get(partition, record.offset), record.offset)
        behind[partition] = max(behind.get(partition, 0), record.next_offset)
    return first, behind


def _has_group(consumer: Consumer) -> bool:
    try:
        consumer.group_metadata()
    except ConfigError:
        return False
    return True


def _not_shown(offsets: object, error: EventBusError | None) -> None:
    if error is not None:  # the stored offsets in the table are what counts
        logger.debug("the log's group does not show the stored offsets: %s", error)


async def _notify(listener: Listener | None, partitions: list[TopicPartition]) -> None:
    if listener is not None:
        result = listener(partitions)
        if inspect.isawaitable(result):
            await cast("Awaitable[object]", result)
