"""Mistakes that show when a handler runs: what is logged, and what ends."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Awaitable, Callable

from sqlalchemy import NullPool, create_engine, literal, select
from sqlalchemy.orm import Session, sessionmaker

from dlq import DeadLetters, Retry, Selection
from eventbus import EventBus, Transaction
from eventbus.connect import Connectors
from eventbus.errors import ConfigError, HandlerError
from outbox import Inbox, Outbox, SqlOffsets
from outbox.claims import Claims
from outbox.database import now_sql
from outbox.relay.shard_leases import ShardLeases
from tests.mistakes.kit import At, Section, heard

HANDLING = Section("When handlers run")


@HANDLING.mistake(
    "a database that a handler uses does not answer", "start it: the handler goes on by itself",
    "orders-0 offset 0 waits in its place", "ConnectionRefusedError", "until the outage is over",
)  # fmt: skip
async def database_is_away(at: At) -> str:
    bus = EventBus("memory://", drain_timeout_ms=100)
    bus.topic("orders")

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        if len(lines):
            bus.stop()
        raise ConnectionRefusedError("127.0.0.1 port 5432")

    at.patch.setattr("eventbus.client.handling.outage_policy.back_off_ms", lambda calls: 1)
    with heard("eventbus.runner") as lines:
        async with bus:
            await bus.send("orders", "o-1")
            await bus.run()
    return lines[0]


@HANDLING.mistake(
    "`sys.exit()` in a handler", "raise an error, or call `bus.stop()`",
    "handler 'bill'", "orders-0 offset 0", "SystemExit: 3", "The bus stops and raises it again",
)  # fmt: skip
async def exit_in_a_handler(at: At) -> str:
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        sys.exit(3)

    with heard() as lines:
        try:
            async with bus:
                await bus.send("orders", "o-1")
                await bus.drain()
        except SystemExit:
            return lines[0]
    raise AssertionError("the bus went on")


@HANDLING.mistake(
    "an exactly-once handler that takes longer than `transaction_timeout_ms`", "a longer one, or a faster handler",
    "orders-0 offset 0: the record takes longer than its transaction may be open", "Raise transaction_timeout_ms",
)  # fmt: skip
async def slow_in_a_transaction(at: At) -> str:
    import anyio

    bus = EventBus("memory://", transaction_abort_timed_out_transaction_cleanup_interval_ms=1)
    bus.topic("orders")
    bus.topic("bills")

    @bus.consumer("orders", group="billing", exactly_once=True, transaction_timeout_ms=100)
    async def bill(order: str, transaction: Transaction) -> None:
        await transaction.send("bills", order)
        await anyio.sleep(0.15)

    async with bus:
        await bus.send("orders", "o-1")
        try:
            await bus.drain()
        except HandlerError as error:
            return str(error)
    raise AssertionError("the record was handled")


async def _told_in_a_transaction(call: Callable[[EventBus, EventBus], Awaitable[object]]) -> str:
    """Return the error of that call in an exactly-once handler. The second bus has a log of its own."""
    bus, other = EventBus("memory://"), EventBus("memory://")
    for topic in ("orders", "bills"):
        bus.topic(topic)
        other.topic(topic)

    @bus.consumer("orders", group="billing", exactly_once=True)
    async def bill(order: str) -> None:
        await call(bus, other)

    try:
        async with other, bus:
            await bus.send("orders", "o-1")
            await bus.drain()
    except HandlerError as error:
        return str(error.__cause__)
    raise AssertionError("the record was handled")


@HANDLING.mistake(
    "`other_bus.send(...)` in an exactly-once handler", "`bus.send`, or `transactional=False`",
    "handler 'bill'", "the producer of another bus", "transactional=False",
)  # fmt: skip
async def another_bus_in_a_transaction(at: At) -> str:
    return await _told_in_a_transaction(lambda bus, other: other.send("bills", "o-1"))


@HANDLING.mistake(
    "a producer of `bus.new_producer()` in an exactly-once handler", "`bus.send`, or `transactional=False`",
    "handler 'bill'", "a producer that the bus opened for the program", "transactional=False",
)  # fmt: skip
async def own_producer_in_a_transaction(at: At) -> str:
    return await _told_in_a_transaction(lambda bus, other: bus.new_producer().send_many("bills", ["o-1"]))


@HANDLING.mistake(
    "`async with bus.transaction(id)` in an exactly-once handler", "`bus.send`, or `independent=True`",
    "handler 'bill'", "A transaction of 'billing-1' was begun", "independent=True",
)  # fmt: skip
async def transaction_in_a_transaction(at: At) -> str:
    return await _told_in_a_transaction(lambda bus, other: bus.transaction("billing-1").__aenter__())


@HANDLING.mistake(
    "`await bus.request(...)` in an exactly-once handler", "`transactional=False`",
    "handler 'bill'", "waits for a record that no consumer reads before", "transactional=False",
)  # fmt: skip
async def request_in_a_transaction(at: At) -> str:
    return await _told_in_a_transaction(lambda bus, other: bus.request("bills", "o-1"))


@HANDLING.mistake(
    "a task that an exactly-once handler starts and does not await sends later", "await it, or `transactional=False`",
    "handler 'bill' had returned", "Await them in the handler", "transactional=False",
)  # fmt: skip
async def task_behind_a_transaction(at: At) -> str:
    import asyncio

    bus = EventBus("memory://")
    for topic in ("orders", "bills"):
        bus.topic(topic)
    drained = asyncio.Event()
    tasks: list[asyncio.Task[str]] = []

    async def later(order: str) -> str:
        await drained.wait()
        try:
            await bus.send("bills", order)
        except ConfigError as error:
            return str(error)
        raise AssertionError("it was sent")

    @bus.consumer("orders", group="billing", exactly_once=True)
    async def bill(order: str) -> None:
        tasks.append(asyncio.create_task(later(order)))

    async with bus:
        await bus.send("orders", "o-1")
        await bus.drain()
        drained.set()
        return await tasks[0]


@HANDLING.mistake(
    "`bus.send` in a handler with `tx=`", "`outbox.publish(session, ...)`",
    "'bill' calls send", "inside of its database transaction (tx=)", "outbox.publish(session, ...)",
)  # fmt: skip
async def send_in_a_database_transaction(at: At) -> str:
    bus = EventBus("memory://")
    for topic in ("orders", "bills"):
        bus.topic(topic)

    @bus.consumer("orders", group="billing", tx=sessionmaker(create_engine(f"sqlite:///{at.folder}/shop.db")))
    def bill(order: str, session: Session) -> None:
        with bus.blocking() as blocking:
            blocking.send("bills", order)

    with heard("eventbus.runner") as lines:
        async with bus:
            await bus.send("orders", "o-1")
            await bus.drain()
    return lines[0]


@HANDLING.mistake(
    "a topic deleted and created again, of a handler with `tx=`", "`await Inbox(...).forget(...)`, or another database",
    "'bill' does not begin", "offsets of another topic 'orders'", "deleted and created again", "forget('billing', ",
)  # fmt: skip
async def another_topic_of_the_same_name(at: At) -> None:
    def service() -> EventBus:
        bus = EventBus("memory://")  # a new log each time
        bus.topic("orders")

        @bus.consumer("orders", group="billing", tx=sessionmaker(create_engine(f"sqlite:///{at.folder}/shop.db")))
        def bill(order: str, session: Session) -> None: ...

        return bus

    async with service() as bus:
        await bus.send("orders", "o-1")
        await bus.drain()
    async with service():
        pass


@HANDLING.mistake(
    "the same, of a loop with `SqlOffsets`", "`await offsets.forget(...)`, or another table",
    "'billing'", "offsets of another topic 'orders'", "deleted and created again", "forget(TopicPartition",
)  # fmt: skip
async def another_topic_in_a_loop(at: At) -> None:
    for _ in range(2):
        async with at.bus() as bus, bus.new_consumer(group="billing") as consumer:
            await bus.send("orders", "o-1", partition=0)
            offsets = SqlOffsets(create_engine(f"sqlite:///{at.folder}/shop.db"), "billing")
            await offsets.follow(consumer, "orders")
            async with offsets.transaction(await consumer.poll()):
                pass


@HANDLING.mistake(
    "a `FileStreamSink` of a topic that was deleted and created again", "another `file`, or delete `FILE.offsets`",
    "out.txt holds the records of another topic 'orders'", "deleted and created again", "out.txt.offsets",
)  # fmt: skip
async def another_topic_in_a_file(at: At) -> str:
    sink = {"name": "out", "connector.class": "FileStreamSink", "file": "out.txt", "topics": "orders"}
    notes: list[str] = []
    for _ in range(2):
        bus = at.bus()
        bus.include(Connectors(sink, worker={"value.converter": "StringConverter"}, note=notes.append))
        async with bus:
            await bus.send("orders", "o-1", partition=0)
            await bus.drain()
    return notes[-1]


@HANDLING.mistake(
    "a table of the inbox from an earlier release, with `create_tables=False`", "the statement of the message",
    "'bill' cannot use the table eventbus_offsets", "An earlier release made it", "ALTER TABLE eventbus_offsets ADD",
)  # fmt: skip
async def table_of_an_earlier_release(at: At) -> None:
    engine = create_engine(f"sqlite:///{at.folder}/shop.db")
    bus = at.bus()

    @bus.consumer("orders", group="billing", tx=Inbox(sessionmaker(engine), create_tables=False))
    def bill(order: str, session: Session) -> None: ...

    with engine.begin() as connection:
        Claims("billing", table="eventbus_offsets", schema=None).create(connection)
        connection.exec_driver_sql("ALTER TABLE eventbus_offsets DROP COLUMN topic_id")
    async with bus:
        pass


@HANDLING.mistake(
    "the ids of an outbox's events begin again", "the statement of the message",
    "ids of the table eventbus_outbox have restarted", "The last one is 0", "UPDATE sqlite_sequence SET seq = 7",
)  # fmt: skip
def ids_that_begin_again(at: At) -> str:
    outbox = Outbox(create_engine(f"sqlite:///{at.folder}/shop.db"), archive=True)
    outbox.create_tables()
    with outbox.engine.begin() as connection:
        outbox.publish(connection, "orders", "o-1")
        connection.exec_driver_sql("UPDATE sqlite_sequence SET seq = 0")
        events, archive = outbox.tables.events.c, outbox.tables.archive
        assert archive is not None
        copied = [literal(7), literal(1), *(column for column in events if column.key != "id")]
        connection.execute(archive.insert().from_select([column.key for column in archive.c], select(*copied)))
        return outbox.check(connection)[0]


@HANDLING.mistake(
    "an outbox's database is restored from a backup, or cloned next to the same log", "`eventbus outbox adopt`",
    "does not match the log", "batch 1 of relay slot 0", "recorded batches up to 0", "eventbus outbox adopt",
)  # fmt: skip
async def a_database_of_yesterday(at: At) -> str:
    database, backup = at.folder / "shop.db", at.folder / "backup.db"

    def new_outbox() -> Outbox:
        return Outbox(create_engine(f"sqlite:///{database}", poolclass=NullPool), notify=False)

    new_outbox().create_tables()
    shutil.copy(database, backup)
    for is_restored in (False, True):
        bus, outbox = EventBus(f"file://{at.folder}/log"), new_outbox()
        bus.topic("orders")
        relay = outbox.relay()
        bus.include(relay)
        async with bus:
            while is_restored and relay.health().status != "degraded":
                await relay._quiet.wait()
            if is_restored:
                return relay.health().reason.partition("DatabaseMismatch: ")[2]
            with outbox.engine.begin() as connection:
                outbox.publish(connection, "orders", "o-1")
            await bus.drain()
        shutil.copy(backup, database)
    raise AssertionError("the relay has published from a backup")


@HANDLING.mistake(
    "`eventbus outbox adopt` while a relay of the outbox runs", "stop the relays, and run it again",
    "publishes the outbox 'eventbus_outbox'", "Stop the relays",
)  # fmt: skip
def adopting_beside_a_relay(at: At) -> str:
    outbox = Outbox(create_engine(f"sqlite:///{at.folder}/shop.db"))
    outbox.create_tables()
    with outbox.engine.begin() as connection:
        slots = ShardLeases(outbox.tables, 9_000, "sqlite", now_sql)
        slots.enter(connection, "web-7/4711", lambda _: False)
    return at.cli("outbox", "adopt", "--yes", "--database", f"sqlite:///{at.folder}/shop.db")


SECTIONS = (HANDLING,)


def failing_bus() -> EventBus:
    """Its handler has a dead letter as soon as there is an order."""
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing", retry=Retry(immediate=0, delays=None))
    async def bill(order: str) -> None:
        raise ValueError("no price")

    return bus


@HANDLING.mistake(
    '`redrive(to="retry.billing")`', "leave `to=` out", "'retry.billing'", "is a retry topic", "Leave to= out",
)  # fmt: skip
async def redriven_to_a_retry_topic(at: At) -> None:
    async with failing_bus() as bus:
        await DeadLetters(bus).redrive(Selection(), to="retry.billing")


@HANDLING.mistake(
    "`redrive(to=..., whole_topic=True)`", "one of them", "to='orders'", "exclude each other", "Leave one of them out",
)  # fmt: skip
async def redriven_to_two_places(at: At) -> None:
    async with failing_bus() as bus:
        await DeadLetters(bus).redrive(Selection(), to="orders", whole_topic=True)


@HANDLING.mistake(
    "the retry topic is deleted, and a dead letter edited", "start the handler again: it creates the topic",
    "dlq.billing/0/0", "the group that failed has no retry topic", "Start its handler once",
)  # fmt: skip
async def edited_without_a_retry_topic(at: At) -> None:
    async with failing_bus() as bus:
        await bus.send("orders", "o-1")
        await bus.drain()
        await bus.admin.delete_topics("retry.billing")
        await DeadLetters(bus).edit("dlq.billing/0/0", value=b"o-2")
