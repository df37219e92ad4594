"""What an event is made of: bytes, shard, headers, times and ids; and what is refused where it is published."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import mmh3
import msgspec
import pytest
from opentelemetry import trace
from sqlalchemy.ext.asyncio import create_async_engine

from eventbus.errors import ConfigError, InvalidTopic, RecordTooLarge, SchemaNotReady, SerializationError
from outbox import Outbox
from outbox.headers import pack, published, unpack
from outbox.tracing import carried
from outbox.writing import new_event_id
from serdes.base import Encode, SchemaNeeded
from tests.databases import Database, NewDatabase
from tests.outbox.writing.given import Rollback, events, later, made, transaction

pytestmark = pytest.mark.system


@pytest.fixture
def database(new_database: NewDatabase) -> Database:
    return new_database("sqlite")


class Order(msgspec.Struct):
    order_id: str


def row_of(database: Database, outbox: Outbox, *arguments: Any, **options: Any) -> Any:
    """The row that a `publish` of these writes."""
    with database.engine.begin() as connection:
        connection.execute(outbox.tables.events.delete())
        outbox.publish(connection, *arguments, **options)
    (row,) = events(database, outbox)
    return row


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (b"raw", b"raw"),
        ("text", b"text"),
        (7, b"\0\0\0\0\0\0\0\7"),
        (None, None),
        (Order("o-1"), b'{"order_id":"o-1"}'),
        ({"a": [1, None]}, b'{"a":[1,null]}'),
    ],
)
def test_keys_and_values_are_bytes_as_a_producer_makes_them(database: Database, value: Any, data: bytes | None) -> None:
    row = row_of(database, made(database), "t", value, key=value)
    assert (row["key"], row["value"]) == (data, data)


def test_a_serde_of_ones_own(database: Database) -> None:
    class Shout:
        def serialize(self, topic: str, value: Any) -> bytes:
            return f"{topic} {value.order_id}!".encode()

        def deserialize(self, topic: str, data: bytes) -> Any:
            raise NotImplementedError  # an outbox only writes

    assert row_of(database, made(database, serdes={Order: Shout()}), "t", Order("o"))["value"] == b"t o!"
    assert row_of(database, made(database, serde=Shout()), "t", Order("o"))["value"] == b"t o!"


def test_shards_are_by_key_else_by_partition_else_in_turn(database: Database) -> None:
    outbox = made(database, shards=8)
    for key in ("a", "b", b"c", 9):
        row = row_of(database, outbox, "t", b"", key=key)
        assert row["shard"] == mmh3.hash(row["key"], signed=False) % 8
        assert row_of(database, outbox, "other", b"", key=key, partition=5)["shard"] == row["shard"]
    assert {row_of(database, outbox, "t", b"", partition=13)["shard"] for _ in range(3)} == {5}
    with database.engine.begin() as connection:
        outbox.publish_many(connection, "t", [b"x"] * 16)
    shards = Counter(row["shard"] for row in events(database, outbox) if row["value"] == b"x")
    assert set(shards.values()) == {2}


def test_order_without_a_key_is_none(database: Database) -> None:
    outbox = made(database, strict_order=True)
    with pytest.raises(ConfigError, match="the event has no key, and nothing to keep in order"):
        row_of(database, outbox, "t", b"")
    assert row_of(database, outbox, "t", b"", partition=7)["shard"] == 7
    assert row_of(database, outbox, "t", b"", key=b"")["key"] == b""


def test_ids_are_uuids_that_grow_with_time() -> None:
    first, second = uuid.UUID(new_event_id(1)), uuid.UUID(new_event_id(2))
    assert (first.version, first.variant) == (7, uuid.RFC_4122)
    assert first.int >> 80 == 1
    assert first < second
    assert len({new_event_id(1) for _ in range(1_000)}) == 1_000
    now_ms = time.time_ns() // 1_000_000
    assert uuid.UUID(new_event_id(now_ms)).int >> 80 == now_ms


def test_headers_as_they_were_given(database: Database) -> None:
    outbox = made(database)
    assert row_of(database, outbox, "t", b"")["headers"] is None
    given = [("a", b"\0\xff"), ("a", None), ("ü", "ü"), ("event-id", b"of another")]
    row = row_of(database, outbox, "t", b"", headers=given)
    assert published(row["headers"], row["event_id"]) == (
        ("a", b"\0\xff"),
        ("a", None),
        ("ü", "ü".encode()),
        ("event-id", row["event_id"].encode()),
    )
    assert (pack(()), unpack(None), published(None, "x")) == (None, (), (("event-id", b"x"),))
    for wrong, why in (({"a": 1}, "bytes, text or None"), ([("a",)], "is not a pair"), ({1: b""}, "names are text")):
        with pytest.raises(ConfigError, match=why):
            row_of(database, outbox, "t", b"", headers=wrong)


PARENT = f"00-{1:032x}-{2:016x}-01"


def test_the_trace_that_the_caller_is_in_goes_with_the_event(database: Database) -> None:
    outbox = made(database)

    def headers(**options: Any) -> dict[str, bytes | None]:
        return dict(unpack(row_of(database, outbox, "t", b"", **options)["headers"]))

    assert headers() == {}
    token = carried.set((("traceparent", b"of the record"), ("tracestate", b"s"), ("other", b"x")))
    assert headers(headers={"a": b"b"}) == {"a": b"b", "traceparent": b"of the record", "tracestate": b"s"}
    span = trace.NonRecordingSpan(trace.SpanContext(1, 2, is_remote=False, trace_flags=trace.TraceFlags(1)))
    with trace.use_span(span):
        assert headers() == {"traceparent": PARENT.encode()}
        assert headers(headers={"traceparent": b"own"}) == {"traceparent": b"own"}
    assert headers(headers={"traceparent": b"own"}) == {"traceparent": b"own"}
    carried.reset(token)
    assert headers() == {}


def test_what_the_log_would_refuse_is_refused_here(database: Database) -> None:
    outbox = made(database, max_message_bytes=1_000)
    row_of(database, outbox, "t", b"x" * 800)
    for options in (
        {"value": b"x" * 850},
        {"value": b"x" * 500, "key": b"k" * 350},
        {"value": b"x" * 500, "headers": [("h", b"h" * 15)] * 15},
    ):
        with pytest.raises(RecordTooLarge, match=r"takes 1,?\d+ bytes as a record, and the outbox was made for 1,000"):
            row_of(database, outbox, "t", **options)
    with pytest.raises(RecordTooLarge, match=r"the key .* has 16,001 bytes, and the outbox takes 16,000"):
        row_of(database, made(database), "t", b"", key=b"k" * 16_001)
    for topic, why in (("", "needs a name"), ("a b", "holds ' '"), ("__consumer_offsets", "cannot be written to")):
        with pytest.raises(InvalidTopic, match=why):
            row_of(database, outbox, topic, b"")
    with pytest.raises(SerializationError, match=r"value of an event for topic 't' cannot be written.*object"):
        row_of(database, outbox, "t", object())
    with pytest.raises(SerializationError, match="key of an event for topic 't' cannot be written"):
        row_of(database, outbox, "t", b"", key=object())
    assert [row["value"] for row in events(database, outbox)] == [b"x" * 800]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"partition": -1}, "partition=-1: the number of a partition"),
        ({"partition": "1"}, "the number of a partition"),
        ({"timestamp_ms": 1.5}, "whole milliseconds"),
        ({"timestamp_ms": -1}, "whole milliseconds"),
        ({"deliver_at": datetime(2030, 1, 1)}, "with a time zone"),
        ({"deliver_at": 5}, "with a time zone"),
        ({"expires_after": 0}, "expires_after=.*a millisecond at least"),
        ({"expires_after": timedelta(-1)}, "expires_after=.*a millisecond at least"),
        ({"expires_after": True}, "expires_after=.*a millisecond at least"),
        ({"type": "placed"}, "only Outbox"),
    ],
)
def test_options_that_mean_nothing(database: Database, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        row_of(database, made(database), "t", b"", **options)


def test_a_misspelt_option_is_named(database: Database) -> None:
    with pytest.raises(TypeError, match="deliver_in"):
        row_of(database, made(database), "t", b"", deliver_in=5)


def test_a_time_of_its_own_is_kept_by_what_waits(database: Database) -> None:
    outbox = made(database)
    with database.engine.begin() as connection:
        outbox.publish(connection, "t", b"", deliver_at=timedelta(hours=1), timestamp_ms=5)
        outbox.publish(connection, "t", b"", deliver_at=datetime.now(UTC) + timedelta(hours=1), timestamp_ms=6)
        outbox.publish(connection, "t", b"now", deliver_at=timedelta(0), expires_after=1.5, timestamp_ms=7)
    assert [row["timestamp_ms"] for row in later(database, outbox)] == [5, 6]
    (row,) = events(database, outbox)
    assert (row["value"], row["timestamp_ms"]) == (b"now", 7)
    assert row["expires_at_ms"] > 1_500


def test_debeziums_names(database: Database) -> None:
    outbox = made(database, columns="debezium")
    names = {column.name for column in outbox.tables.events.c}
    assert {"id", "aggregatetype", "aggregateid", "type", "payload"} <= names
    row = row_of(database, outbox, "orders", Order("o"), key="o")
    assert (row["topic"], row["key"], row["type"], row["value"]) == ("orders", "o", "Order", b'{"order_id":"o"}')
    assert row["shard"] == mmh3.hash(b"o", signed=False) % 64
    row = row_of(database, outbox, "orders", None, key="o", type="OrderGone")
    assert (row["type"], row["value"]) == ("OrderGone", None)
    row = row_of(database, outbox, "orders", None)
    assert (row["type"], row["key"]) == (None, None)
    for name in ("", "x" * 256, "\0"):
        with pytest.raises(ConfigError, match="1 to 255 characters"):
            row_of(database, outbox, "orders", b"", type=name)
    for key, why in ((b"o", "key=str"), (7, "key=str"), ("k" * 256, "255 characters"), ("\0", "NUL")):
        with pytest.raises(SerializationError, match=why):
            row_of(database, outbox, "orders", b"", key=key)


def test_many_are_one_statement_and_their_ids_are_in_order(database: Database) -> None:
    outbox = made(database)
    with database.engine.begin() as connection:
        assert outbox.publish_many(connection, "t", []) == []
        ids = outbox.publish_many(connection, "t", (b"%d" % n for n in range(5)), key=lambda value: value * 2)
    rows = events(database, outbox)
    assert [row["event_id"] for row in rows] == ids
    assert [(row["key"], row["value"]) for row in rows] == [(b"%d%d" % (n, n), b"%d" % n) for n in range(5)]
    with pytest.raises(SerializationError), database.engine.begin() as connection:
        outbox.publish_many(connection, "t", [b"fine", object()])
    assert len(events(database, outbox)) == 5


class Registered:
    """A serde whose schema has to be fetched."""

    header = None
    writes_header = False
    source = None

    def __init__(self) -> None:
        self.is_here = False
        self.threads: list[int] = []

    def serialize(self, topic: str, value: Any) -> bytes:
        return self.encoder(topic)(value) or b""

    def encoder(self, topic: str) -> Encode:
        def encode(value: Any) -> bytes:
            if not self.is_here:
                raise SchemaNeeded("the schema of Order is not registered", self.fetch)
            return value.order_id.encode()

        return encode

    def fetch(self) -> None:
        self.threads.append(threading.get_ident())
        self.is_here = True

    def prepare(self, topic: str | None, *, writes: bool) -> None:
        self.fetch()

    def deserialize(self, topic: str, data: bytes) -> Any:
        raise NotImplementedError  # an outbox only writes

    def decoder(self, topic: str) -> Any:
        raise NotImplementedError  # an outbox only writes

    def needed(self, topic: str, values: Any) -> None:
        return None


def test_without_a_loop_a_schema_is_waited_for(database: Database) -> None:
    serde = Registered()
    outbox = made(database, serdes={Order: serde})
    assert row_of(database, outbox, "t", Order("o"))["value"] == b"o"
    assert serde.threads == [threading.get_ident()]


async def test_on_a_loop_a_schema_is_fetched_elsewhere_or_beforehand(
    database: Database, new_database: NewDatabase
) -> None:
    serde = Registered()
    outbox = made(database, serdes={Order: serde})
    with pytest.raises(SchemaNotReady, match=r"await outbox.prepare\('t', Order\)"):
        row_of(database, outbox, "t", Order("o"))
    await outbox.prepare("t", Order)
    assert row_of(database, outbox, "t", Order("o"))["value"] == b"o"
    serde.is_here = False
    other = new_database("sqlite-async")
    outbox = made(other, serdes={Order: serde})
    async with transaction(other.engine, "session") as session:
        await outbox.publish(session, "t", Order("p"))
    assert [row["value"] for row in events(other, outbox)] == [b"p"]
    assert threading.get_ident() not in serde.threads


def test_a_registry_that_refuses(database: Database) -> None:
    class Refused(Registered):
        def fetch(self) -> None:
            raise RuntimeError("no such subject")

    with pytest.raises(SerializationError, match="no such subject"):
        row_of(database, made(database, serdes={Order: Refused()}), "t", Order("o"))


async def test_what_is_not_awaited_is_not_written_and_warned_of(new_database: NewDatabase) -> None:
    database = new_database("sqlite-async")
    outbox = made(database)
    async with transaction(database.engine, "session") as session:
        coroutine = outbox.publish(session, "t", b"v")
        assert asyncio.iscoroutine(coroutine)
        coroutine.close()
        raise Rollback
    assert events(database, outbox) == []
    engine = create_async_engine(database.url)
    with pytest.raises(ConfigError, match=r"await outbox.create_tables_async\(\)"):
        Outbox(engine).create_tables()
    await engine.dispose()
