"""Records that no handler can do anything with, and errors that are hard to write down."""

from __future__ import annotations

import msgspec
import pytest

from eventbus import ConsumerRecord
from eventbus.types import Headers
from serdes import Avro
from serdes.avro.from_types import schema_of
from serdes.avro.text import to_text
from tests.dlq.faults.failing import entries, letters, retry, settle
from tests.dlq.runtime.logs import Log
from tests.serdes.avro_codec.fake_registry import FakeRegistry

UNKNOWN = b"\0\0\0\x03\xe7order"
"""A message in Confluent's format with schema 999."""


class Order(msgspec.Struct):
    number: int


# what cannot be decoded -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"{not json", b'{"number": "seven"}', b"\xff\0"], ids=["text", "type", "bytes"])
async def test_what_cannot_be_decoded_is_dead_at_once_as_it_was(log: Log, value: bytes) -> None:
    """Keys and headers reach handlers as bytes: nothing decodes them, whatever they are."""
    bus, seen = log.bus(), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: Order) -> None:
        seen.append(order.number)

    async with bus:
        for each in (value, b'{"number": 1}'):
            await bus.send(log.topic, each, key=b"\xff", headers={"h": b"\xff\x00"})
        await log.drain(bus)
        assert seen == [1]
        (letter,) = await letters(log, bus)
        assert (letter.key, letter.value, letter.headers) == (b"\xff", value, (("h", b"\xff\x00"),))
        assert (letter.reason, letter.attempts) == ("unreadable", 1)
        assert await entries(log, bus) == []


async def test_a_key_that_its_handler_cannot_read_is_the_handlers_failure(log: Log) -> None:
    bus = log.bus()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(record: ConsumerRecord) -> None:
        (record.key or b"").decode()

    async with bus:
        await bus.send(log.topic, b"order", key=b"\xff")
        await settle(log, bus)
        (letter,) = await letters(log, bus)
        assert (letter.key, letter.reason, letter.error_class) == (b"\xff", "exhausted", "UnicodeDecodeError")


@pytest.mark.parametrize(
    "headers",
    [
        (("x", b"1"), ("x", b"2"), ("x", None)),
        (("x", b"\xff\xfe"), ("ü", b""), ("", b"no name")),
        (("eb-retry-root", b"forged"), ("eb-retry-attempt", b"99"), ("eb-retry-done", b"1")),
        (("__dlq.errors.topic", b"elsewhere"), ("eb-dlq-hops", b"nine"), ("eb-redrive-hops", b"\xff")),
    ],
    ids=["repeated", "no text", "forged entry", "forged letter"],
)
async def test_headers_of_any_kind_are_kept_and_believed_nothing(log: Log, headers: Headers) -> None:
    bus, calls = log.bus(), 0

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: bytes) -> None:
        nonlocal calls
        calls += 1
        raise LookupError(order)

    async with bus:
        await bus.send(log.topic, b"order", key=b"k", headers=headers)
        await settle(log, bus)
        (letter,) = await letters(log, bus)
        assert calls == 3
        assert (letter.attempts, letter.reason, letter.source_offset) == (3, "exhausted", 0)
        kept = tuple(header for header in headers if not header[0].startswith(("eb-retry-", "eb-dlq-", "__dlq.")))
        assert [header for header in letter.headers if not header[0].startswith("eb-redrive")] == [
            header for header in kept if not header[0].startswith("eb-redrive")
        ]


# schemas --------------------------------------------------------------------------------------------------------------


async def test_an_unknown_schema_is_final(log: Log) -> None:
    """A record with an unknown schema id, between two with a known one."""
    registry = FakeRegistry()
    bus, seen = log.bus(serde=Avro(registry)), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: Order) -> None:
        seen.append(order.number)

    async with bus:
        await bus.send(log.topic, Order(1))
        async with log.bus() as stranger:
            await stranger.send(log.topic, UNKNOWN)
        await bus.send(log.topic, Order(2))
        await log.drain(bus)
        assert seen == [1, 2]
        (letter,) = await letters(log, bus)
        assert (letter.value, letter.reason, letter.attempts) == (UNKNOWN, "unreadable", 1)


async def test_a_registry_that_is_down_is_waited_for(log: Log) -> None:
    """The outage does not count as a failure: no try is counted, nothing is moved, and order is kept."""
    registry = FakeRegistry()
    bus, seen = log.bus(serde=Avro(registry)), list[int]()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: Order) -> None:
        seen.append(order.number)

    async with bus, log.bus() as stranger:
        known = to_text(schema_of(Order))
        new = registry.add(known.replace('"fields"', '"doc": "Somebody else\'s.", "fields"'))
        registry.down = True
        for number in range(3):
            await stranger.send(log.topic, b"\0" + new.to_bytes(4) + bytes([2 * number]))
        await log.passes(60)
        assert seen == []
        registry.down = False
        await log.until(lambda: len(seen) == 3)
        await log.drain(bus)
        assert seen == [0, 1, 2]
        assert await letters(log, bus) == [] == await entries(log, bus)


# nothing in them, or too much -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cleanup", ["delete", "compact"])
async def test_a_tombstone_is_tried_again_and_dies_as_a_tombstone(log: Log, cleanup: str) -> None:
    bus, seen = log.bus(), list[bytes | None]()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(record: ConsumerRecord) -> None:
        seen.append(record.value)
        raise LookupError("no such order")

    async with bus:
        await bus.admin.alter_configs(log.topic, {"cleanup.policy": cleanup})
        await bus.send(log.topic, None, key=b"k")
        await settle(log, bus)
        assert seen == [None] * 3
        (letter,) = await letters(log, bus)
        assert (letter.key, letter.value) == (b"k", None)
        assert letter.has_payload, "it is whole: there is no payload elsewhere"


class Hostile(Exception):
    """An error that tries to stop the handling of its record."""

    def __init__(self) -> None:
        super().__init__(lambda: "cannot be pickled")
        self.trap = (one for one in ())

    def __str__(self) -> str:
        raise RuntimeError("no text either")

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize(
    "error", [ValueError("x" * 5_000_000), ValueError("\ud800 \0 \x1b[31m"), Hostile()], ids=["huge", "odd", "hostile"]
)
async def test_an_error_of_any_size_and_kind_is_written_down_in_few_bytes(log: Log, error: Exception) -> None:
    bus = log.bus()

    @bus.consumer(log.topic, group=log.group, retry=retry())
    async def bill(order: bytes) -> None:
        raise error

    async with bus:
        await bus.send(log.topic, b"order")
        await settle(log, bus)
        (letter,) = await letters(log, bus)
        assert letter.value == b"order"
        assert letter.error_class.endswith(type(error).__name__)
        for record in (*await entries(log, bus), *await log.read(bus, log.dead_letter_topic)):
            assert sum(len(name) + len(value or b"") for name, value in record.headers) < 16_384


async def test_records_without_a_key_wait_for_nobody_though_order_is_asked_for(log: Log) -> None:
    bus, done = log.bus(), list[bytes]()
    bad = {b"1", b"3"}

    @bus.consumer(log.topic, group=log.group, retry=retry(order="key"))
    async def bill(order: bytes) -> None:
        if order in bad:
            bad.discard(order)
            raise LookupError(order)
        done.append(order)

    async with bus:
        for number in range(5):
            await bus.send(log.topic, b"%d" % number)
        await log.drain(bus)
        assert done == [b"0", b"2", b"4"]
        await settle(log, bus)
        assert done == [b"0", b"2", b"4", b"1", b"3"]
