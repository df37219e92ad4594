"""Every reader undoes what interceptors do to values: a claim check, and an encryption with a compression."""

from __future__ import annotations

import copy
import zlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, ProducerInterceptor, ProducerRecord
from eventbus.errors import ConfigError, TableError
from eventbus.middleware import ClaimCheck, ClaimError, Directory
from eventbus.testing import TestBus

LARGE = "x" * 500


class Changed(ProducerInterceptor):
    """Changes strings by ``there``; readers change them back by ``back``."""

    def __init__(self, header: str, there: Any, back: Any) -> None:
        self.header = header
        self._there = there
        self._back = back

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        data = record.value.encode() if isinstance(record.value, str) else record.value
        if not isinstance(data, bytes):
            return record
        return msgspec.structs.replace(record, value=self._there(data), headers=(*record.headers, (self.header, b"1")))

    async def restored(self, record: ConsumerRecord) -> ConsumerRecord:
        whole = copy.copy(record)
        whole.value = self._back(record.value)
        return whole


def flipped(data: bytes) -> bytes:
    return bytes(one ^ 0x55 for one in data)


def is_whole(record: ConsumerRecord) -> bool:
    return record.value == LARGE.encode()


def bus_of(folder: Path, which: str) -> TestBus:
    if which != "claims":
        return TestBus(
            auto_create_topics=True,
            interceptors=[Changed("zip", zlib.compress, zlib.decompress), Changed("secret", flipped, flipped)],
        )
    bus = TestBus(auto_create_topics=True)
    bus.include(ClaimCheck(Directory(folder), above_bytes=100))
    return bus


@pytest.mark.parametrize("which", ["claims", "two interceptors"])
async def test_each_reader_gets_the_value_that_was_sent(tmp_path: Path, which: str) -> None:
    bus, got = bus_of(tmp_path, which), dict[str, Any]()
    table = bus.table("entries", key=str, value=str)
    lengths = bus.table("t", key=str, value=str, fold=lambda state, value: (state or 0) + len(value))

    @table.on_change
    async def changed(change: Any) -> None:
        got["on_change"] = change.after

    @bus.consumer("t", group="one")
    async def one(value: str, record: ConsumerRecord) -> None:
        got["handler"] = value, record.headers

    @bus.consumer("t", group="many", batch=True)
    async def many(values: list[str]) -> None:
        got["batch"] = values

    @bus.consumer("t", group="filtered", filter=is_whole)
    async def filtered(value: str) -> None:
        got["filter"] = value

    @bus.consumer("ask", group="g", replies=True)
    async def ask(count: int) -> str:
        return "y" * count

    bus.topic("ask")
    async with bus, bus.new_consumer("t", value=str) as consumer:
        await bus.send("t", LARGE, key="k", headers={"own": b"1"})
        await table.until(await table.put("k", LARGE))
        got["reply"] = await bus.request("ask", 500, returns=str)
        got["poll"] = [(record.value, record.headers) for record in await consumer.poll()]
        await bus.drain()
        got["table"], got["fold"] = table["k"], lengths["k"]
        [stored] = bus.log.records("t")
        assert stored.value != LARGE.encode() and len(stored.headers) > 1
    assert got == {
        "handler": (LARGE, (("own", b"1"),)),
        "batch": [LARGE],
        "filter": LARGE,
        "on_change": LARGE,
        "table": LARGE,
        "fold": 500,
        "reply": "y" * 500,
        "poll": [(LARGE, (("own", b"1"),))],
    }


async def test_a_record_that_waited_in_a_retry_topic_is_changed_once(tmp_path: Path) -> None:
    bus, got = bus_of(tmp_path, "two interceptors"), list[str]()

    @bus.consumer("t", group="g", retry=Retry(immediate=1, delays=["1s"]), dead_letter=True)
    async def handle(value: str) -> None:
        got.append(value)
        raise ValueError

    async with bus:
        await bus.send("t", LARGE)
        await bus.drain()
        await bus.clock.advance(seconds=2)
        await bus.drain()
        [dead], [sent] = bus.log.records("dlq.g"), bus.log.records("t")
        assert dead.value == sent.value
    assert got == [LARGE] * 3


async def test_a_record_that_is_sent_on_with_its_headers_is_changed_again(tmp_path: Path) -> None:
    bus, got = bus_of(tmp_path, "claims"), list[str]()

    @bus.consumer("t", group="g")
    async def forward(value: str, record: ConsumerRecord) -> None:
        await bus.send("u", value, headers=record.headers)

    @bus.consumer("u", group="g2")
    async def end(value: str) -> None:
        got.append(value)

    async with bus:
        await bus.send("t", LARGE)
        await bus.drain()
        assert [len(one.value or b"") for one in bus.log.records("u")] == [64]
    assert got == [LARGE]


async def test_a_consumer_goes_on_after_a_value_that_is_gone_and_waits_for_a_store_that_is_away(
    tmp_path: Path,
) -> None:
    class Flaky(Directory):
        is_away = False

        def get(self, name: str) -> bytes:
            if self.is_away:
                raise OSError("the store does not answer")
            return super().get(name)

    bus, store = TestBus(auto_create_topics=True), Flaky(tmp_path)
    bus.include(ClaimCheck(store, above_bytes=100))
    async with bus, bus.new_consumer("t", value=str) as consumer:
        await bus.send_many("t", ["a", LARGE, "b" * 200, "c"])
        gone = bus.log.records("t")[1].value
        assert gone is not None
        store.delete(gone.decode())
        assert [one.value for one in await consumer.poll()] == ["a"]
        Flaky.is_away = True
        with pytest.raises(ClaimError, match=r"t-0 offset 1: .* is not in"):
            await consumer.poll()
        for _ in range(2):
            with pytest.raises(OSError, match="does not answer"):
                await anext(consumer)
        Flaky.is_away = False
        assert [one.value for one in await consumer.poll()] == ["b" * 200, "c"]


@pytest.mark.parametrize(
    ("outages", "options"),
    [(0, {}), (0, {"exactly_once": True}), (0, {"delivery": "at-most-once"}), (5, {}), (5, {"exactly_once": True})],
    ids=str,
)
async def test_a_batch_loses_only_the_record_whose_value_cannot_be_restored(
    outages: int, options: dict[str, Any]
) -> None:
    left, got = [OSError("the key server does not answer")] * outages, list[str]()

    def back(data: bytes) -> bytes:
        if left:
            raise left.pop()
        if flipped(data) == b"gone":
            raise ClaimError("its key is gone")
        return flipped(data)

    bus = TestBus(auto_create_topics=True, interceptors=[Changed("secret", flipped, back)])

    @bus.consumer("t", group="g", batch=True, on_error="skip", **options)
    async def handle(values: list[str]) -> None:
        got.extend(values)

    async with bus:
        await bus.send_many("t", ["a", "gone", "b"])
        await bus.clock.advance(seconds=60)
        await bus.drain()
    assert got == ["a", "b"]


async def test_a_table_names_the_entry_whose_value_is_gone(tmp_path: Path) -> None:
    bus, store = TestBus(auto_create_topics=True), Directory(tmp_path)
    bus.include(ClaimCheck(store, above_bytes=100))
    table = bus.table("entries", key=str, value=str)
    async with bus:
        await bus.drain()
        name = "0" * 64
        await bus.send("entries", name.encode(), key="k", headers={"claim-check": "500"})
        await table.until(await table.put("other", "fine"))
        with pytest.raises(TableError, match=r"its value of 500 bytes, 0+, is not in Directory"):
            table["k"]
        await table.until(await table.put("k", LARGE))
        assert table["k"] == LARGE


async def test_an_interceptor_of_one_producer_that_no_reader_would_undo_is_refused() -> None:
    async with TestBus(auto_create_topics=True) as bus:
        with pytest.raises(ConfigError, match=r"readers of this bus would not undo .* EventBus\(interceptors="):
            bus.new_producer(interceptors=[Changed("zip", zlib.compress, zlib.decompress)])
