"""A shop that writes orders and events together, and an account of what is committed, published, and wrong.

A key's orders are numbered in the database, in the transaction that writes the event. So the numbers show the order of
the commits, whatever ids the events have.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from datetime import timedelta
from random import Random
from typing import Any, NamedTuple

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, select
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, registry

from eventbus import ConsumerRecord
from outbox.database import trouble_of
from outbox.outbox import Outbox

PARTITIONS = 3
KEYS = 8
LARGEST_BYTES = 2_000
"""Maximum size of a record, set for the topic."""

metadata = MetaData()
counters = Table(
    "counters",
    metadata,
    Column("k", String(50), primary_key=True),
    Column("n", Integer, nullable=False),
)
orders = Table(
    "orders",
    metadata,
    Column("event_id", String(36), primary_key=True),
    Column("k", String(50), nullable=True),
    Column("n", Integer, nullable=False),
)


class Counted:
    """A row of ``counters``, mapped for sessions."""

    n: int


registry().map_imperatively(Counted, counters)


class Shop:
    """A single writer of orders."""

    def __init__(
        self, engine: Engine, outbox: Outbox, topic: str, chance: Random, *, has_sessions: bool = False
    ) -> None:
        """``has_sessions``: it writes with sessions, which flush the counter's new value when an event is published."""
        self._engine = engine
        self._has_sessions = has_sessions
        self._topic = topic
        self._outbox = outbox
        self._chance = chance
        self._slow: list[Connection] = []
        """Transactions that have written and are still open."""
        self._slow_count = 0
        self.share_of_large_events = 0.02
        """Events larger than the topic allows. A relay quarantines them and later events of their keys."""

    def open(self) -> None:
        """Create the tables of the shop and of the outbox."""
        metadata.create_all(self._engine)
        self._outbox.create_tables(self._engine)
        with self._engine.begin() as connection:
            connection.execute(counters.insert(), [{"k": f"k{number}", "n": 0} for number in range(KEYS)])

    def trade(self, transactions: int, slow: int = 0) -> None:
        """Run some transactions, up to ``slow`` of which stay open while others begin and end."""
        for _ in range(transactions):
            self._again(self._one)
            if self._slow and self._chance.random() < 0.3:
                self.end_slow()
            if len(self._slow) < slow and self._chance.random() < 0.3:
                self._begin_slow()

    def end_slow(self) -> None:
        connection = self._slow.pop(self._chance.randrange(len(self._slow)))
        with connection:
            if self._chance.random() < 0.8:
                connection.commit()

    def close(self) -> None:
        while self._slow:
            self.end_slow()

    def _begin_slow(self) -> None:
        connection = self._engine.connect()
        connection.begin()
        self._slow_count += 1
        for number in (1, 2):
            self._write(connection, f"slow-{self._slow_count}", number)
        self._slow.append(connection)

    def _again(self, work: Callable[[], None]) -> None:
        for attempt in range(20):
            try:
                return work()
            except DBAPIError as error:
                if trouble_of(error) != "conflict" or attempt == 19:
                    raise
        raise AssertionError

    def _one(self) -> None:
        chance = self._chance
        opened = Session(self._engine) if self._has_sessions else self._engine.connect()
        with opened as connection, connection.begin() as transaction:
            self.order(connection, self._key())
            if chance.random() < 0.3:
                nested = connection.begin_nested()
                self.order(connection, self._key())
                if chance.random() < 0.5:
                    nested.rollback()
                else:
                    nested.commit()
            if chance.random() < 0.15:
                transaction.rollback()

    def _key(self) -> str | None:
        return None if self._chance.random() < 0.1 else f"k{self._chance.randrange(KEYS)}"

    def order(self, connection: Connection | Session, key: str | None) -> None:
        """Write an order and its event."""
        self._write(connection, key, 0 if key is None else self._next(connection, key))

    def _write(self, connection: Connection | Session, key: str | None, number: int) -> None:
        value = f"{key}/{number}"
        options: dict[str, Any] = {}
        if key is None and self._chance.random() < 0.5:
            options["deliver_at"] = timedelta(milliseconds=self._chance.randrange(50))
        elif self._chance.random() < self.share_of_large_events:
            value = value.ljust(2 * LARGEST_BYTES)
        event_id = self._outbox.publish(connection, self._topic, value, key=key, **options)
        connection.execute(orders.insert(), {"event_id": event_id, "k": key, "n": number})

    def _next(self, connection: Connection | Session, key: str) -> int:
        if isinstance(connection, Session):
            counter = connection.get_one(Counted, key)
            counter.n += 1
            return counter.n
        mine = counters.c.k == key
        connection.execute(counters.update().where(mine).values(n=counters.c.n + 1))
        return connection.execute(select(counters.c.n).where(mine)).scalar_one()


# the account ----------------------------------------------------------------------------------------------------------


class Account(NamedTuple):
    orders: dict[str, tuple[str | None, int]]
    """All committed orders by their event's id: key and number."""
    waiting: Counter[str]
    """Ids of the unpublished events in the outbox's tables."""
    published: list[ConsumerRecord]
    """The published records, read committed."""

    @property
    def is_settled(self) -> bool:
        return not self.waiting and len(self.published) == len(self.orders)


def account(engine: Engine, outbox: Outbox, published: Sequence[ConsumerRecord]) -> Account:
    """Read the database after ``published`` was read, so that events published and deleted meanwhile are not missed."""
    tables = outbox.tables
    with engine.connect() as connection:
        written = {event_id: (key, number) for event_id, key, number in connection.execute(select(orders))}
        waiting = Counter(
            event_id
            for table in (tables.events, tables.later, tables.failed)
            for event_id in connection.scalars(select(table.c.event_id))
        )
    return Account(written, waiting, list(published))


def event_id_of(record: ConsumerRecord) -> str:
    return (dict(record.headers)["event-id"] or b"").decode()


def wrong(account: Account) -> Generator[str]:
    """Yield violations that must not occur while no process runs."""
    times = Counter(map(event_id_of, account.published))
    for event_id, (key, number) in account.orders.items():
        if times[event_id] > 1:
            yield f"{key}/{number} was published {times[event_id]} times"
        if not times[event_id] and not account.waiting[event_id]:
            yield f"{key}/{number} is lost"
        if account.waiting[event_id] > 1:
            yield f"{key}/{number} waits twice"
    yield from (f"{one} is published, and was never committed" for one in times.keys() - account.orders.keys())
    yield from (f"{one} waits, and was never committed" for one in account.waiting.keys() - account.orders.keys())
    yield from disordered(account.published)


def disordered(published: Sequence[ConsumerRecord]) -> Generator[str]:
    """Check that the published orders of each key are the first ones without gaps, in order."""
    numbers: defaultdict[bytes, list[int]] = defaultdict(list)
    for record in published:
        if record.key is not None:
            numbers[record.key].append(int(record.value.split()[0].partition(b"/")[2]))
    for key, found in numbers.items():
        if found != list(range(1, len(found) + 1)):
            yield f"{key.decode()}: {found}"
