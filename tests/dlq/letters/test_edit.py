"""Letters sent with another content, checked before and linked to the old one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from dlq.dead_letters import DeadLetters, Selection
from eventbus import TopicPartition
from eventbus.errors import ConfigError, PayloadGone, SerializationError
from eventbus.testing import FakeClock, TestBus
from serdes import Avro
from tests.dlq.letters.making import TOPIC, letter, put, topics
from tests.support import records_of


@dataclass
class Order:
    id: str
    price: float


async def test_edited_letter_is_a_new_record_that_says_so(bus: TestBus, clock: FakeClock) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await topics(bus, "orders", partitions=2)
        await put(bus, letter(0, key=b"k", value=b"bad", source=TopicPartition("orders", 1)))
        letters, id = DeadLetters(bus, clock=clock), f"{TOPIC}/0/0"
        sent = await letters.edit(id, value=b"good", whole_topic=True, by="ann", note="a comma")
        (record,) = await records_of(bus, "orders")
        assert (sent.topic, sent.partition, sent.offset) == ("orders", 1, 0)
        assert (record.partition, record.key, record.value) == (1, b"k", b"good")
        assert record.headers == (
            ("trace", b"t-1"),
            ("eb-redrive-of", b'["dlq.billing",0,0]'),
            ("eb-redrive-hops", b"1"),
            ("eb-redrive-at", b"%d" % clock()),
            ("eb-redrive-group", b"billing"),
            ("eb-redrive-by", b"ann"),
            ("eb-redrive-edited", b"1"),
        )
        (step,) = await letters.history(id)
        assert (step.status, step.by, step.note, step.to) == ("edited", "ann", "a comma", "orders")
        assert (await letters.get(id)).value == b"bad"
        with pytest.raises(ConfigError, match="edited already"):
            await letters.edit(id, value=b"better", whole_topic=True)
        assert (await letters.redrive(Selection(ids={id}))).redriven == 0
        assert len(await records_of(bus, "orders")) == 1


async def test_a_new_value_in_place_of_a_claim_is_no_claim(bus: TestBus) -> None:
    """Readers would look for the new value in the store, under itself as the name."""
    async with bus:
        await topics(bus, TOPIC)
        await topics(bus, "orders")
        source, headers = TopicPartition("orders", 0), (("claim-check", b"5000"),)
        await put(bus, letter(0, value=b"0" * 64, source=source, headers=headers))
        await DeadLetters(bus).edit(f"{TOPIC}/0/0", value=b"good", whole_topic=True)
        (record,) = await records_of(bus, "orders")
        assert (record.value, record.header("claim-check")) == (b"good", None)


async def test_what_is_not_given_stays(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC)
        await topics(bus, "orders", "other", partitions=4)
        await put(bus, *[letter(n, key=b"k", value=b"v", source=TopicPartition("orders", 3)) for n in range(3)])
        letters = DeadLetters(bus)
        await letters.edit(f"{TOPIC}/0/0", key=b"another", whole_topic=True)
        await letters.edit(f"{TOPIC}/0/1", value=None, headers=(("eb-dlq-hops", b"9"), ("own", b"1")), whole_topic=True)
        await letters.edit(f"{TOPIC}/0/2", key=None, to="other")
        by_key = {record.key: record for record in await records_of(bus, "orders")}
        assert by_key[b"another"].value == b"v"
        # Another key goes where records of that key are.
        assert by_key[b"another"].partition == (await bus.send("orders", b"", key=b"another")).partition
        tombstone = by_key[b"k"]
        assert (tombstone.partition, tombstone.value, tombstone.headers[0]) == (3, None, ("own", b"1"))
        assert [name for name, _ in tombstone.headers][1:3] == ["eb-redrive-of", "eb-redrive-hops"]
        (elsewhere,) = await records_of(bus, "other")
        assert (elsewhere.key, elsewhere.value) == (None, b"v")


async def test_edit_of_a_letter_without_payload_needs_one(bus: TestBus) -> None:
    async with bus:
        await topics(bus, TOPIC, "orders")
        gone = letter(5, key=b"k", value=b"x" * 5_000, max_bytes=4_000)
        await put(bus, gone, letter(0, source=TopicPartition("absent", 0)))
        letters = DeadLetters(bus)
        with pytest.raises(PayloadGone):
            await letters.edit(f"{TOPIC}/0/0", key=b"k2", whole_topic=True)
        assert (await letters.edit(f"{TOPIC}/0/0", value=b"made anew", whole_topic=True)).topic == "orders"
        with pytest.raises(ConfigError, match="is not there"):
            await letters.edit(f"{TOPIC}/0/1", value=b"", whole_topic=True)
        with pytest.raises(ConfigError, match="no dead letter"):
            await letters.edit(f"{TOPIC}/0/9", value=b"", whole_topic=True)


async def test_value_that_names_its_schema_has_to_fit_it(clock: FakeClock) -> None:
    avro = Avro("log")
    bus = TestBus(clock=clock, serde=avro)
    async with bus:
        await topics(bus, TOPIC, "orders")
        await bus.send("orders", Order("o-1", 1.5))
        (written,) = await records_of(bus, "orders")
        good = written.value
        assert good[:1] == b"\0"
        await put(bus, letter(0, value=good), letter(1, value=b"no frame"))
        letters = DeadLetters(bus)
        for bad in (good[:-3], b"{}", b"", b"\0\0\0\xff\xff" + good[5:]):
            with pytest.raises(SerializationError, match="Nothing was sent"):
                await letters.edit(f"{TOPIC}/0/0", value=bad, whole_topic=True)
        assert await letters.history(f"{TOPIC}/0/0") == ()
        await letters.edit(f"{TOPIC}/0/0", value=good, whole_topic=True)
        # What never named a schema is not checked.
        await letters.edit(f"{TOPIC}/0/1", value=b"still none", whole_topic=True)
        assert len(await records_of(bus, "orders")) == 3
