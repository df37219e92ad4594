"""A ledger in a database, and services whose handler writes each record into it, to test the inbox."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from eventbus import ConsumerRecord, EventBus, TopicPartition
from outbox import Inbox
from tests.databases import Database

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
_logs = itertools.count()
_ROW = text("INSERT INTO ledger (part, off, value) VALUES (:part, :off, :value)")

Hook = Callable[[ConsumerRecord, Any], Any]
"""Called with the record and the session, after the row is written. For an asynchronous service it returns an
awaitable.
"""


def new_log() -> str:
    """Return the URL of a log in memory that several buses may open. It vanishes with the last one."""
    return f"memory://inbox-{next(_logs)}"


class Ledger:
    """A table with a row for each effect of a record. Nothing prevents duplicates."""

    def __init__(self, database: Database) -> None:
        self.database = database
        with database.plain.begin() as connection:
            connection.execute(text("CREATE TABLE ledger (part INTEGER, off BIGINT, value VARCHAR(100))"))

    @property
    def sessions(self) -> Any:
        """Return a session factory on a separate engine, like that of another process."""
        return sessions_of(self.database.new_engine())

    def rows(self) -> list[tuple[int, int]]:
        return rows_of(self.database.plain)

    def stored(self, group: str = "g") -> dict[TopicPartition, int]:
        with self.database.plain.connect() as connection:
            found = connection.execute(
                text(
                    f"SELECT topic, {self._quoted('partition')}, next_offset FROM eventbus_offsets "
                    f"WHERE {self._quoted('group')} = :group"
                ),
                {"group": group},
            )
            return {TopicPartition(topic, partition): offset for topic, partition, offset in found}

    def store(self, partition: TopicPartition, offset: int, group: str = "g") -> None:
        """Overwrite a stored offset, as if the database were a backup, or the topic a new one."""
        with self.database.plain.begin() as connection:
            connection.execute(
                text(
                    f"UPDATE eventbus_offsets SET next_offset = :offset WHERE {self._quoted('group')} = :group "
                    f"AND {self._quoted('partition')} = :part"
                ),
                {"offset": offset, "group": group, "part": partition.partition},
            )

    def ids(self) -> list[str]:
        with self.database.plain.connect() as connection:
            return sorted(connection.execute(text("SELECT id FROM eventbus_offsets_ids")).scalars())

    def _quoted(self, name: str) -> str:
        return self.database.plain.dialect.identifier_preparer.quote_identifier(name)


def rows_of(engine: Engine) -> list[tuple[int, int]]:
    with engine.connect() as connection:
        found = connection.execute(text("SELECT part, off FROM ledger ORDER BY part, off"))
        return [(partition, offset) for partition, offset in found]


def sessions_of(engine: Any) -> Any:
    return sessionmaker(engine) if isinstance(engine, Engine) else async_sessionmaker(engine)


def row_of(record: ConsumerRecord) -> dict[str, Any]:
    return {"part": record.partition, "off": record.offset, "value": (record.value or b"").decode()}


def handler_of(is_async: bool, hook: Hook | None = None) -> Callable[..., Any]:
    """Return a handler that writes a row for its record."""

    def plain(record: ConsumerRecord, session: Session) -> None:
        session.execute(_ROW, row_of(record))
        if hook is not None:
            hook(record, session)

    async def asynchronous(record: ConsumerRecord, session: AsyncSession) -> None:
        await session.execute(_ROW, row_of(record))
        if hook is not None and (waiting := hook(record, session)) is not None:
            await waiting

    return asynchronous if is_async else plain


def batch_handler_of(is_async: bool, calls: list[list[int]]) -> Callable[..., Any]:
    """Return a handler that writes a row for each record of a batch."""

    def plain(records: list[ConsumerRecord], session: Session) -> None:
        calls.append([record.offset for record in records])
        session.execute(_ROW, [row_of(record) for record in records])

    async def asynchronous(records: list[ConsumerRecord], session: AsyncSession) -> None:
        calls.append([record.offset for record in records])
        await session.execute(_ROW, [row_of(record) for record in records])

    return asynchronous if is_async else plain


def service(
    url: str, ledger: Ledger, hook: Hook | None = None, *, handler: Callable[..., Any] | None = None, **options: Any
) -> EventBus:
    """A bus with one handler of the topic "t" in the group "g"; ``options`` are those of its @consumer."""
    bus_options = {name: options.pop(name) for name in ("clock", "middleware", "client_id") if name in options}
    bus = EventBus(url, **bus_options)
    bus.topic("t", partitions=2)
    options = {"group": "g", "tx": None, "commit_interval_ms": 10, **options}
    options["tx"] = options["tx"] or ledger.sessions
    if isinstance(options["tx"], dict):
        options["tx"] = Inbox(ledger.sessions, **options["tx"])
    bus.consumer("t", name="handle", **options)(handler or handler_of(ledger.database.is_async, hook))
    return bus


@asynccontextmanager
async def log_of(count: int = 10, partitions: int = 2, url: str | None = None) -> AsyncGenerator[EventBus]:
    """Create a log with ``count`` records in each partition of "t", and keep a bus open."""
    async with EventBus(url or new_log()) as bus:
        await bus.admin.create_topic("t", partitions=partitions)
        for partition in range(partitions):
            await fill(bus, partition, range(count))
        yield bus


async def fill(bus: EventBus, partition: int, values: Iterable[int | str], **options: Any) -> None:
    for value in values:
        bus.send_nowait("t", str(value).encode(), partition=partition, **options)
    await bus.flush()


def all_rows(count: int = 10, partitions: int = 2) -> list[tuple[int, int]]:
    return [(partition, offset) for partition in range(partitions) for offset in range(count)]


async def group_of(bus: EventBus, group: str = "g") -> dict[TopicPartition, int]:
    return {partition: at.offset for partition, at in (await bus.admin.group_offsets(group)).items()}


async def records_of(bus: EventBus, topic: str) -> list[ConsumerRecord]:
    if topic not in await bus.admin.list_topics():
        return []
    async with bus.new_consumer(topic, start="earliest") as reader:
        return [record async for record in reader.until_end()]


async def dead_letters(bus: EventBus, group: str = "g") -> list[str]:
    return values(await records_of(bus, f"dlq.{group}"))


def values(records: Sequence[ConsumerRecord]) -> list[str]:
    return [(record.value or b"").decode() for record in records]
