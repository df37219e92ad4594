"""Mistakes with a bus: starting it, sending, and what comes of it."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
from sqlalchemy import Column, Integer, MetaData, Table, create_engine, event
from sqlalchemy.orm import Session, registry

from eventbus import EventBus, TopicPartition, producer
from eventbus.errors import ConfigError
from eventbus.middleware import ClaimCheck, Directory
from outbox import Inbox, Outbox
from schema_registry import Registry, SchemaRequest
from serdes import Avro
from serdes.errors import SchemaRegistryError
from serdes.registry import SchemaText
from tests.client.forked_children import in_child
from tests.mistakes.kit import At, Section, heard
from tests.serdes.avro_codec.fake_registry import FakeRegistry


class Order(msgspec.Struct):
    id: str
    cents: int


LIFE = Section("Starting, stopping, threads")


@LIFE.mistake(
    "`await bus.send(...)` before `async with bus:`", "inside of it", "send", "not running", "async with bus:"
)
async def not_started(at: At) -> None:
    await at.bus().send("orders", "o-1")


@LIFE.mistake(
    "calling a function that is marked with `@producer`, and on no bus", "`bus.include(place_order)`",
    "place_order() publishes to 'orders', but belongs to no bus", "bus.include(",
)  # fmt: skip
async def producer_of_no_bus(at: At) -> None:
    @producer("orders")
    async def place_order() -> str:
        return "o-1"

    await place_order()


@LIFE.mistake(
    "`async with bus:` in a request, though it runs already", "once, around all", "the bus is running already"
)
async def started_twice(at: At) -> None:
    async with at.bus() as bus:
        await bus.start()


@LIFE.mistake(
    "`asyncio.run(bus.send(...))` in another thread", "`with bus.blocking() as b: b.send(...)`",
    "send", "loop", "bus.blocking()",
)  # fmt: skip
async def from_another_loop(at: At) -> str:
    told: list[str] = []
    async with at.bus() as bus:

        def request() -> None:
            try:
                asyncio.run(bus.send("orders", "o-1"))
            except ConfigError as error:
                told.append(str(error))

        await anyio.to_thread.run_sync(request)
    return told[0]


@LIFE.mistake(
    "`bus.send_nowait(...)` in a plain thread",
    "`with bus.blocking() as b:`",
    "sending was called in thread",
    "bus.blocking()",
)
async def from_a_thread(at: At) -> str:
    told: list[str] = []
    async with at.bus() as bus:

        def work() -> None:
            try:
                bus.send_nowait("orders", "o-1")
            except ConfigError as error:
                told.append(str(error))

        thread = threading.Thread(target=work, name="worker")
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
    return told[0]


@LIFE.mistake(
    "`bus.blocking().send(...)` in an `async def`",
    "`await bus.send(...)`",
    "bus.blocking() was entered",
    "event loop",
    "`async with bus:`",
)
async def blocking_on_the_loop(at: At) -> None:
    async with at.bus() as bus:
        with bus.blocking() as b:
            b.send("orders", "o-1")


@LIFE.mistake(
    "`await bus.close()` in a handler", "`bus.stop()`",
    "handler 'last' closes the bus that runs it", "call bus.stop()",
)  # fmt: skip
async def closed_by_a_handler(at: At) -> None:
    bus = at.bus()

    @bus.consumer("orders", group="billing")
    async def last(order: str) -> None:
        try:
            await bus.close()
        except ConfigError as error:
            told.append(error)

    told: list[ConfigError] = []
    async with bus:
        await bus.send("orders", "o-1")
        await bus.drain()
    raise told[0]


@LIFE.mistake(
    "`await bus.close()` in another task than `await bus.start()`", "`async with bus:` in one task",
    "close", "task", "async with bus:",
)  # fmt: skip
async def closed_elsewhere(at: At) -> str:
    told: list[str] = []
    async with at.bus() as bus, anyio.create_task_group() as tasks:

        async def close() -> None:
            try:
                await bus.close()
            except ConfigError as error:
                told.append(str(error))

        tasks.start_soon(close)
    return told[0]


@LIFE.mistake(
    "a bus started before a fork (`gunicorn --preload`, Celery, `multiprocessing`), and used in the child",
    "start it in the child: `post_fork`, `worker_process_init`",
    "send was used in a forked child", "The bus was started before the fork", "post_fork", "worker_process_init",
)  # fmt: skip
def forked(at: At) -> str:
    with at.bus().blocking() as b:
        return in_child(lambda: b.send("orders", "o-1")).removeprefix("ConfigError: ")


@LIFE.mistake(
    "`outbox.publish` in a forked child, with a session of the parent", "a session of the child",
    "outbox.publish was used in a forked child", "This session's connection to the database",
)  # fmt: skip
def forked_session(at: At) -> str:
    engine = create_engine("sqlite:///shop.db")
    outbox = Outbox(engine)
    outbox.create_tables()
    with engine.begin() as session:
        outbox.publish(session, "orders", "o-1")
        outcome = in_child(lambda: outbox.publish(session, "orders", "o-2"))
    engine.dispose()
    return outcome.removeprefix("ConfigError: ")


@LIFE.mistake(
    "`outbox.publish` in a `before_flush` listener of the session", "`after_flush`, or `before_commit`",
    "A before_flush listener publishes an event", "after_flush or before_commit",
)  # fmt: skip
def published_before_the_flush(at: At) -> None:
    engine = create_engine("sqlite:///shop.db")
    outbox = Outbox(engine)
    outbox.create_tables()
    mapped = registry()
    table = Table("orders", mapped.metadata, Column("id", Integer, primary_key=True))
    order = type("Order", (), {})
    mapped.map_imperatively(order, table)
    try:
        with Session(engine) as session:
            event.listen(session, "before_flush", lambda session, *_: outbox.publish(session, "orders", "o-1"))
            session.add(order())
            session.commit()
    finally:
        mapped.dispose()
        engine.dispose()


@LIFE.mistake(
    "`outbox.publish` in a savepoint of SQLite, with `Outbox(metadata)`",
    "`Outbox(engine)`, or `outbox.database(engine)` at the start",
    "A savepoint was opened before the outbox knew this engine", "outbox.database(engine)",
)  # fmt: skip
def unseen_savepoint(at: At) -> None:
    engine = create_engine("sqlite:///shop.db")
    try:
        with engine.begin() as connection, connection.begin_nested():
            Outbox(MetaData()).publish(connection, "orders", "o-1")
    finally:
        engine.dispose()


@LIFE.mistake(
    "`Inbox(Sessions, create_tables=False)` without its tables", "`op.create_inbox()`, `eventbus outbox ddl --inbox`",
    "no table eventbus_offsets, eventbus_offsets_ids", "op.create_inbox()", "eventbus outbox ddl --inbox",
)  # fmt: skip
async def inbox_without_tables(at: At) -> None:
    engine = create_engine("sqlite:///shop.db")
    bus = at.bus()

    @bus.consumer("orders", group="billing", tx=Inbox(engine, create_tables=False))
    def bill(order: str, session: Session) -> None: ...

    try:
        await bus.start()
    finally:
        engine.dispose()


@LIFE.mistake(
    '`Outbox(engine, name="")`', "a name of 1 to 55 bytes", "name='' is not a name of a table", "Choose another name",
)  # fmt: skip
def outbox_without_a_name(at: At) -> None:
    Outbox(MetaData(), name="")


@LIFE.mistake(
    "a plain `def` as middleware", "`async def middleware(record, call_next)`", "middleware 'timing'", "async def"
)
def plain_middleware(at: At) -> None:
    def timing(record: Any, call_next: Any) -> Any: ...

    at.bus(middleware=[timing])


@LIFE.mistake(
    "`@bus.on_shutdown` above a generator", "`@bus.on_startup`",
    "@bus.on_shutdown pool yields", "decorate it with @bus.on_startup",
)  # fmt: skip
def generator_at_the_end(at: At) -> None:
    @at.bus().on_shutdown
    def pool() -> Any:
        yield


@LIFE.mistake("`with bus:`", "`async with bus:`", "'async with bus:'", "'with bus.blocking() as b:'")
def plain_with(at: At) -> None:
    with cast(Any, at.bus()):
        pass


SENDING = Section("Sending and receiving")


@SENDING.mistake(
    '`bus.send("order", ...)`, and the topic is `orders`', "its name, or `bus.topic(...)`",
    "'order'", "did you mean 'orders'", "eventbus topics create order",
)  # fmt: skip
async def misspelt_topic(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("order", "o-1")


@SENDING.mistake(
    '`@bus.consumer("order")`, and nobody declares it', "its name, or `bus.topic(...)`",
    "handler handle", "'order'", "did you mean 'orders'",
)  # fmt: skip
async def handler_of_no_topic(at: At) -> None:
    bus = at.bus()

    @bus.consumer("order", group="billing")
    async def handle(order: str) -> None: ...

    await bus.start()


@SENDING.mistake(
    "`partition=7` of a topic with two", "0 or 1, or a key", "topic 'orders'", "partitions 0 to 1", "no partition 7"
)
async def partition_out_of_range(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("orders", "o-1", partition=7)


@SENDING.mistake(
    "a value that is no data: `bus.send(topic, socket)`",
    "a Struct, dict, str, bytes, ...",
    "object",
    "orders",
    "serdes=",
)
async def value_without_form(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("orders", object())


@SENDING.mistake(
    'NaN or infinity in a value: `{"celsius": nan}`', "None, or a text", "celsius is nan", "orders", "Send None"
)
async def number_without_form(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("orders", {"celsius": float("nan")})


@SENDING.mistake(
    "`bus.send(topic, json.dumps(...))`, and the topic is declared with `value=dict`",
    "the object, or `json.dumps(...).encode()`",
    "declared as dict",
    "baskets",
    "text.encode()",
)
async def text_for_an_object(at: At) -> None:
    bus = at.bus()
    bus.topic("baskets", value=dict)
    async with bus:
        await bus.send("baskets", '{"id": "o-1"}')


@SENDING.mistake(
    "`bus.send(topic, 3)`, and the handler takes `float`", '`bus.topic("degrees", value=float)`', "8 bytes", "value="
)
async def undeclared_type(at: At) -> None:
    bus = at.bus()
    bus.topic("degrees", partitions=1)
    async with bus:
        await bus.send("degrees", 3)
        async with bus.new_consumer("degrees", start="earliest", value=float) as consumer:
            await consumer.poll()


@SENDING.mistake("a video in a record", "a claim check, or `max.message.bytes`", "orders", "max.message.bytes", "1")
async def record_too_large(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("orders", b"frame" * 1_000_000)


@SENDING.mistake(
    "a record of another kind in the topic", "`on_error=`, `retry=`, or a type that fits both",
    "handler 'handle': orders-", "offset 0", "the value is no Order", "$.cents",
)  # fmt: skip
async def payload_that_does_not_fit(at: At) -> None:
    bus = at.bus()

    @bus.consumer("orders", group="billing")
    async def handle(order: Order) -> None: ...

    async with bus:
        await bus.send("orders", {"id": "o-1", "cents": "much"})
        await bus.drain()


@SENDING.mistake(
    "an exception in a handler", "`retry=Retry(...)`, or mend it", "handler 'handle'", "offset 0", "ZeroDivisionError"
)
async def handler_that_raises(at: At) -> None:
    bus = at.bus()

    @bus.consumer("orders", group="billing")
    async def handle(order: str) -> None:
        _ = 1 // 0

    async with bus:
        await bus.send("orders", "o-1", partition=0)
        await bus.drain()


@SENDING.mistake("`bus.send(order, topic)`", "`bus.send(topic, order)`", "the topic is a text and comes first")
async def swapped(at: At) -> None:
    async with at.bus() as bus:
        await bus.send(cast(Any, {"id": "o-1"}), "orders")


@SENDING.mistake(
    '`bus.send_many("orders", "o-1")`', "a list, or `bus.send`", "'o-1'", "a list of values", "one value is send()"
)
async def one_for_many(at: At) -> None:
    async with at.bus() as bus:
        await bus.send_many("orders", "o-1")


@SENDING.mistake("`serdes={Stage: StageSerde}`", "`StageSerde()`", "serdes: str=dict", "the class; an object of it")
def class_for_serde(at: At) -> None:
    at.bus(serdes={str: dict})


@SENDING.mistake("`linger=5`", "`linger_ms=5`", "'linger'", "linger_ms")
def misspelt_setting(at: At) -> None:
    at.bus(linger=5)


@SENDING.mistake('`EventBus(url, **{"linger.ms": 5})`', "`linger_ms=5`", "'linger.ms'", "Pass linger_ms=...")
def dotted_keyword(at: At) -> None:
    at.bus(**{"linger.ms": 5})


@SENDING.mistake('`acks="two"`', "0, 1 or all", "acks", "two", "all")
def wrong_acks(at: At) -> None:
    at.bus(acks="two")


@SENDING.mistake(
    '`compression_type="zip"`', "gzip, snappy, lz4, zstd or none", "compression_type='zip'", "none", "gzip", "zstd"
)
def wrong_codec(at: At) -> None:
    at.bus(compression_type="zip")


@SENDING.mistake('`batch_size="16 kB"`', "a number of bytes", "batch_size='16 kB'", "a whole number")
def number_in_words(at: At) -> None:
    at.bus(batch_size="16 kB")


@SENDING.mistake(
    "`bus.request(...)` of a handler without `replies=True`", "`replies=True`",
    "no reply to the request in 'orders'", "replies=True",
)  # fmt: skip
async def request_without_reply(at: At) -> None:
    async with at.bus() as bus:
        await bus.request("orders", "o-1", timeout=0.05)


@SENDING.mistake(
    "a handler with `replies=True` that raises", "return what may go wrong as a type",
    "The request in 'orders' failed", "handler 'price' raised ValueError",
)  # fmt: skip
async def request_that_fails(at: At) -> None:
    bus = at.bus()

    @bus.consumer("orders", group="pricing", replies=True, on_error="skip")
    async def price(order: str) -> float:
        raise ValueError(f"{order} has no price")

    async with bus:
        await bus.request("orders", "o-1")


@SENDING.mistake(
    "a request whose `reply_to` is not a topic", "the name of a topic that the service may write",
    "Handler 'price' does not answer the request orders-", "Its reply to topic b'a/b' failed", "reply_to header",
)  # fmt: skip
async def reply_to_no_topic(at: At) -> str:
    bus = at.bus()

    @bus.consumer("orders", group="pricing", replies=True)
    async def price(order: str) -> float:
        return 1.0

    with heard() as lines:
        async with bus:
            await bus.send("orders", "o-1", headers={"reply_to": "a/b"}, partition=0)
            await bus.drain()
    return "".join(lines)


@SENDING.mistake(
    "a record in `_schemas` that reuses an id", "write there through the registry alone",
    "The record at offset 2 of topic '_schemas' is ignored", "another schema to id 1", "Register the ignored",
)  # fmt: skip
async def schema_id_used_twice(at: At) -> str:
    with heard("schema_registry") as lines:
        async with at.bus() as bus, Registry(bus) as registry:
            await registry.register("a", SchemaRequest(schema='"int"'))
            key = b'{"keytype":"SCHEMA","subject":"b","version":1,"magic":1}'
            value = b'{"subject":"b","version":1,"id":1,"schema":"\\"long\\"","deleted":false}'
            await bus.send("_schemas", value, key=key, partition=0)
            await registry.catch_up()
    return "".join(lines)


@SENDING.mistake(
    "`Avro(...)` for a schema with an ENCRYPT rule", "Confluent's serializers, or `ignore_rules=True`",
    "Rule 'enc' of type ENCRYPT cannot be executed", "executes no rules", "ignore_rules=True",
)  # fmt: skip
async def rule_that_is_not_executed(at: At) -> str:
    registry = FakeRegistry()
    rule = {"name": "enc", "type": "ENCRYPT", "mode": "WRITEREAD"}
    registry._add(SchemaText('"string"', rule_set={"domainRules": [rule]}), "people-value")
    try:
        Avro(registry, schema='"string"', use_latest=True).serialize("people", "123-45")
    except SchemaRegistryError as error:
        return str(error)
    raise AssertionError("it was written")


@SENDING.mistake('`Avro(..., engine="c")`', '`engine="fastavro"`, or leave it out', "engine='c'", "'fastavro'")
def engine_that_does_not_exist(at: At) -> str:
    try:
        Avro(FakeRegistry(), engine="c")
    except ValueError as error:
        return str(error)
    raise AssertionError("it was taken")


@SENDING.mistake(
    "`eventbus consume orders --output o.avro` without `--schema`", "`--schema log`, or the registry's URL",
    "--output o.avro", "Give TOPIC, --schema",
)  # fmt: skip
def avro_file_without_a_registry(at: At) -> str:
    return at.cli("consume", "orders", "--output", "o.avro")


@SENDING.mistake(
    "`eventbus produce orders --schema log --input o.csv`", "an Avro file",
    "--input o.csv", "not an Avro object container file",
)  # fmt: skip
def values_of_a_file_that_is_not_avro(at: At) -> str:
    at.file("o.csv", "a,b,c")
    return at.cli("produce", "orders", "--schema", "log", "--input", "o.csv")


@SENDING.mistake('`bus.send_many(..., partition="0")`', "a whole number", "partition='0'", "holds for all values")
async def partitions_in_words(at: At) -> None:
    async with at.bus() as bus:
        await bus.send_many("orders", ["o-1"], partition="0")  # pyright: ignore[reportArgumentType]


@SENDING.mistake("`consumer.commit()` of a consumer without a group", '`group="report"`', "commit", "group")
async def commit_without_group(at: At) -> None:
    async with at.bus() as bus, bus.new_consumer(partitions=[TopicPartition("orders", 0)]) as consumer:
        await consumer.commit()


@SENDING.mistake('`group_instance_id="a"` on two members at once', "an id for each process", "group_instance_id", "a")
async def static_member_twice(at: At) -> None:
    async with at.bus() as bus:
        options: dict[str, Any] = {"group": "billing", "group_instance_id": "a", "value": str}
        async with bus.new_consumer("orders", **options) as first:
            await first.poll(timeout_ms=0)
            async with bus.new_consumer("orders", **options) as second:
                with anyio.fail_after(5):
                    await second.poll(timeout_ms=10)
                    await first.poll(timeout_ms=10)
                    await first.commit()


@SENDING.mistake(
    "`bus.new_producer(interceptors=[ClaimCheck(...)])`", "`bus.include(ClaimCheck(...))`",
    "readers of this bus would not undo", "Give it to the bus",
)  # fmt: skip
async def a_claim_check_of_one_producer(at: At) -> None:
    async with at.bus() as bus:
        bus.new_producer(interceptors=[ClaimCheck(Directory("claims"))])


LOGS = Section("Where the log is")


@LOGS.mistake('`EventBus("flie://./data")`', "`file://`", "unknown scheme 'flie'", "did you mean 'file'", "memory://")
def unknown_scheme(at: At) -> None:
    EventBus("flie://./data")


@LOGS.mistake('`EventBus("./data")`', "`file://./data`", "'./data' is no URL", "write file://./data")
def path_for_url(at: At) -> None:
    EventBus("./data")


@LOGS.mistake(
    '`EventBus(os.environ.get("LOG"))`, and it is not set', "`EventBus(log_url())`", "None is not a URL", "log_url()"
)
def unset_variable(at: At) -> None:
    EventBus(cast(Any, None))


@LOGS.mistake('`EventBus("file:./data")`', "`file://./data`", "'file:./data' is no URL", "write file://./data")
def one_slash(at: At) -> None:
    EventBus("file:./data")


@LOGS.mistake("`EVENTBUS_URL=file://$HOME/data` where no shell reads it", "the path, or `~`", "$HOME", "file://~/data")
def variable_in_url(at: At) -> None:
    EventBus("file://$HOME/data")


@LOGS.mistake('`EventBus("file://")`', "a directory", "file:// needs a directory", "file://./data")
def no_directory(at: At) -> None:
    EventBus("file://")


@LOGS.mistake("a file's name for the directory", "a directory", "shop.db is a file", "name a directory")
def file_for_directory(at: At) -> None:
    at.file("shop.db", "")
    EventBus("file://./shop.db")


@LOGS.mistake('`EventBus(url, fsinc="os")`', "`fsync`", "'fsinc'", "did you mean 'fsync'")
def misspelt_log_setting(at: At) -> None:
    EventBus("file://./data", fsinc="os")


@LOGS.mistake("`file://./data?num_partitions=many`", "a number", "num_partitions='many'", "a whole number")
def log_setting_of_wrong_type(at: At) -> None:
    EventBus("file://./data?num_partitions=many")


@LOGS.mistake("two buses on one directory, with other settings", "the same settings", "file:///srv/shop/data", "fsync")
async def two_buses_that_differ(at: At) -> None:
    async with EventBus("file://./data", fsync="os"):
        await EventBus("file://./data", fsync="commit").start()


SECTIONS = (LIFE, SENDING, LOGS)
