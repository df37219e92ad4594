"""Batches, room, order and outcomes of the producer."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.backends.accumulator import Accumulator, Identity
from eventbus.broker import Broker
from eventbus.broker.transactions import Transactions
from eventbus.errors import (
    BufferExhausted,
    ConfigError,
    ProducerClosed,
    RecordTooLarge,
    SerializationError,
    StorageFull,
    UnknownTopicOrPartition,
)
from eventbus.log.memory import MemoryStorage
from eventbus.records.sequence import MAX_SEQUENCE
from eventbus.testing.bus import bus_on
from eventbus.testing.storage import FaultyStorage, disk_full
from tests.client.reading import batches


async def values_of(bus: EventBus, topic: str, count: int) -> list[bytes]:
    async with bus.new_consumer(topic) as reader:
        found: list[bytes] = []
        while len(found) < count:
            found += [record.value for record in await reader.poll(max_records=count)]
        return found


async def test_order_is_kept_between_waiting_and_not_waiting(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        for n in range(0, 60, 3):
            bus.send_nowait("t", b"%d" % n)
            bus.send_nowait("t", b"%d" % (n + 1))
            await bus.send("t", b"%d" % (n + 2))
        assert await values_of(bus, "t", 60) == [b"%d" % n for n in range(60)]


async def test_many_tasks_each_keep_their_order(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=3)

        async def sender(name: int) -> None:
            for n in range(20):
                await bus.send("t", b"%d/%d" % (name, n), key=str(name))

        async with anyio.create_task_group() as tasks:
            for name in range(20):
                tasks.start_soon(sender, name)
        last: dict[bytes, int] = {}
        for value in await values_of(bus, "t", 400):
            name, n = value.split(b"/")
            assert int(n) == last.get(name, -1) + 1
            last[name] = int(n)
        assert len(last) == 20


async def test_linger_gathers_records_of_many_tasks_in_one_batch(make_bus: Any) -> None:
    async with make_bus(linger_ms=20) as bus:
        await bus.admin.create_topic("t")
        async with anyio.create_task_group() as tasks:
            for n in range(50):
                tasks.start_soon(bus.send, "t", b"%d" % n)
        (topic,) = await bus.admin.describe_topics(["t"])
        assert topic.partitions[0].log_end_offset == 50
        assert topic.partitions[0].size_bytes < 50 * 30  # fifty batches would be fifty headers of 61 bytes


async def test_batches_leave_when_full(make_bus: Any) -> None:
    async with make_bus(linger_ms=60_000, batch_size=1000) as bus:
        await bus.admin.create_topic("t")
        first = [bus.send_nowait("t", b"x" * 100) for _ in range(25)]
        with anyio.fail_after(10):
            assert (await first[0]).offset == 0
        assert not first[-1].done()
        await bus.flush()
        assert first[-1].result().offset == 24


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_every_codec_is_read_back(make_bus: Any, codec: str) -> None:
    async with make_bus(compression_type=codec) as bus:
        await bus.admin.create_topic("t")
        sent = [b"event number %d " % n * 10 for n in range(200)]
        for value in sent:
            bus.send_nowait("t", value)
        assert await values_of(bus, "t", 200) == sent
        (topic,) = await bus.admin.describe_topics(["t"])
        raw = sum(map(len, sent))
        assert topic.partitions[0].size_bytes > raw if codec == "none" else topic.partitions[0].size_bytes < raw / 2


async def test_acks_zero_does_not_wait(make_bus: Any) -> None:
    async with make_bus(acks=0) as bus:
        await bus.admin.create_topic("t")
        assert (await bus.send("t", b"x")).offset == -1
        assert await values_of(bus, "t", 1) == [b"x"]


async def test_the_buffer_is_bounded(file_url: str) -> None:
    async with EventBus(file_url, buffer_memory=100_000, batch_size=10_000) as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer() as producer:
            with pytest.raises(BufferExhausted, match="wait_for_room"):
                for _ in range(1000):
                    producer.send_nowait("t", b"x" * 1000)
            await producer.wait_for_room()
            producer.send_nowait("t", b"x" * 1000)


async def test_a_closed_producer_refuses(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(linger_ms=5) as producer:
            delivery = producer.send_nowait("t", b"x")
        assert delivery.result().offset == 0
        with pytest.raises(ProducerClosed):
            producer.send_nowait("t", b"y")
        with pytest.raises(ProducerClosed):
            await producer.send("t", b"y")


@pytest.mark.parametrize("size", [1, 20_000], ids=["small", "as large as a batch"])
async def test_a_callback_that_sends_the_next_record_lets_other_tasks_run(make_bus: Any, size: int) -> None:
    """The sender's task stored and sent in one turn of the event loop, for as long as each callback sent again."""
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        count = 0

        def send_next(*_: object) -> None:
            nonlocal count
            count += 1
            if count < 1_000:
                bus.send_nowait("t", b"x", on_delivery=send_next)

        bus.send_nowait("t", b"x", on_delivery=send_next)
        bus.send_nowait("t", b"y" * size)
        await anyio.lowlevel.checkpoint()
        assert count < 100


async def test_a_callback_that_raises_disturbs_nobody(make_bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    def bad(metadata: Any, error: Any) -> None:
        raise RuntimeError("callback")

    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        one = bus.send_nowait("t", b"1", on_delivery=bad)
        two = bus.send_nowait("t", b"2")
        assert (await one).offset == 0 and (await two).offset == 1
    assert "callback for t-0 raised" in caplog.text


async def test_a_cancelled_send_leaves_the_producer_usable(file_url: str) -> None:
    async with EventBus(file_url) as bus:
        await bus.admin.create_topic("t")
        for n in range(20):
            with anyio.move_on_after(0):
                await bus.send("t", b"cancelled %d" % n)
            metadata = await bus.send("t", b"kept %d" % n)
        values = await values_of(bus, "t", metadata.offset + 1)
    assert [v for v in values if v.startswith(b"kept")] == [b"kept %d" % n for n in range(20)]


async def test_headers_must_be_headers(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with pytest.raises(ConfigError, match="header 'n': bytes, text or None, not int"):
            await bus.send("t", b"x", headers={"n": 1})


@pytest.mark.parametrize("headers", ["abc", ["abc"], [("a", b"1", b"2")], [5]])
async def test_headers_are_pairs(make_bus: Any, headers: Any) -> None:
    async with make_bus(auto_create_topics=True) as bus:
        with pytest.raises(ConfigError, match="is not a pair"):
            await bus.send("t", b"x", headers=headers)


@pytest.mark.parametrize("time", [1_700_000_000_000.5, 2e12, 1 << 63, -1, "now", True])
async def test_a_time_that_is_none_fails_its_own_record_alone(make_bus: Any, time: Any) -> None:
    """A time like time.time() * 1000 made the batch unwritable, and ended the whole bus."""
    async with make_bus(auto_create_topics=True) as bus:
        first = bus.send_nowait("t", b"first")
        for send in (bus.send, bus.send_nowait):
            with pytest.raises(ConfigError, match=r"whole milliseconds since the epoch"):
                await send("t", b"x", timestamp_ms=time)
        with pytest.raises(ConfigError, match="whole milliseconds"):
            await bus.send_many("t", [b"x"], timestamp_ms=time)
        assert (await first).offset == 0 and (await bus.send("t", b"second", timestamp_ms=5)).offset == 1


async def test_what_failed_is_logged_even_if_nobody_awaits(make_bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 500})
        with caplog.at_level(logging.ERROR):
            bus.send_nowait("t", b"x" * 5000)
            await bus.flush()
    assert "1 record(s) for t-0 were not stored" in caplog.text


async def test_send_many_returns_when_all_is_stored(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=3)
        await bus.send_many("t", (b"%d" % n for n in range(5_000)), key=lambda value: value[-2:], headers={"h": "x"})
        async with bus.new_consumer("t") as reader:
            records = []
            while len(records) < 5_000:
                records += await reader.poll(timeout_ms=0, max_records=5_000)
        assert sorted(int(r.value) for r in records) == list(range(5_000))
        assert all(r.key == r.value[-2:] and r.headers == (("h", b"x"),) for r in records)
        by_partition: dict[int, list[int]] = {}
        for record in records:
            by_partition.setdefault(record.partition, []).append(int(record.value))
        assert all(numbers == sorted(numbers) for numbers in by_partition.values())


async def test_send_many_waits_for_room(file_url: str) -> None:
    async with EventBus(file_url, buffer_memory=50_000, batch_size=10_000) as bus:
        await bus.admin.create_topic("t")
        await bus.send_many("t", (b"x" * 1000 for _ in range(500)))
        (topic,) = await bus.admin.describe_topics(["t"])
        assert topic.partitions[0].high_watermark == 500


async def test_send_many_raises_what_kept_a_record_out(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 1000})
        with pytest.raises(RecordTooLarge, match=r"max\.message\.bytes"):
            await bus.send_many("t", [b"small", b"x" * 5000, b"small"])
        (topic,) = await bus.admin.describe_topics(["t"])
        assert topic.partitions[0].high_watermark == 2
        with pytest.raises(SerializationError):
            await bus.send_many("t", [object()])


# -- idempotence -------------------------------------------------------------------------------------------------------


def sequences(bus: EventBus, topic: str, partition: int = 0) -> list[tuple[int, int]]:
    """First sequence and number of records of each batch in a partition."""
    headers = [batch.header for batch in batches(bus, TopicPartition(topic, partition))]
    return [(header.base_sequence, header.records_count) for header in headers]


def producer_ids(bus: EventBus, topic: str) -> set[int]:
    return {batch.header.producer_id for batch in batches(bus, TopicPartition(topic, 0))}


async def test_batches_are_stamped_and_count_on(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        await bus.send("t", b"1", partition=0)
        for _ in range(10):
            bus.send_nowait("t", b"2", partition=0)
        await bus.flush()
        await bus.send("t", b"3", partition=0, headers={"h": "x"})
        await bus.send("t", b"other", partition=1)
        await bus.send_many("t", [b"4"] * 5)
        assert sequences(bus, "t", 0)[:3] == [(0, 1), (1, 10), (11, 1)]
        assert sequences(bus, "t", 1)[0] == (0, 1)
        for partition in range(2):
            expected = 0
            for first, count in sequences(bus, "t", partition):
                assert first == expected
                expected += count
        async with bus.new_producer() as another:
            await another.send("t", b"5", partition=0)
        assert len(producer_ids(bus, "t")) == 2 and -1 not in producer_ids(bus, "t")


async def test_idempotence_is_on_unless_acks_say_otherwise(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        for config in ({"acks": 0}, {"acks": 1}, {"enable_idempotence": False}, {"enable_idempotence": "false"}):
            async with bus.new_producer(**config) as producer:
                await producer.send("t", b"x")
                producer.send_nowait("t", b"x")
                await producer.flush()
        assert set(sequences(bus, "t")) == {(-1, 1)} and producer_ids(bus, "t") == {-1}
        async with bus.new_producer(acks="all", enable_idempotence=True) as producer:
            await producer.send("t", b"x")
        assert producer_ids(bus, "t") > {-1}
        for acks in (0, 1, "1"):
            with pytest.raises(ConfigError, match='enable_idempotence=True needs acks="all"'):
                bus.new_producer(acks=acks, enable_idempotence=True)
    with pytest.raises(ConfigError, match='needs acks="all"'):
        make_bus(acks=1, enable_idempotence="true")


async def test_what_was_not_stored_uses_up_no_sequence() -> None:
    storage = FaultyStorage(MemoryStorage(), error=disk_full, only=("append",))
    async with bus_on(storage) as bus:
        await bus.admin.create_topic("t", configs={"max.message.bytes": 1000})
        await bus.send("t", b"0")
        for _ in range(3):
            storage.calls_count, storage.fail_at = 0, 1
            with pytest.raises(StorageFull):
                await bus.send("t", b"lost")
            await bus.send("t", b"kept")
            storage.calls_count, storage.fail_at = 0, 1
            lost = [bus.send_nowait("t", b"lost") for _ in range(4)]
            await bus.flush()
            assert all(isinstance(delivery.exception(), StorageFull) for delivery in lost)
            with pytest.raises(RecordTooLarge):
                await bus.send("t", b"x" * 5000)
            await bus.send_many("t", [b"kept"] * 2)
        assert sequences(bus, "t") == [(0, 1), (1, 1), (2, 2), (4, 1), (5, 2), (7, 1), (8, 2)]


async def test_sequences_outlive_changes_of_other_topics(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        for n in range(3):
            await bus.send("t", b"x")
            await bus.admin.create_topic(f"other-{n}")
            bus.send_nowait("t", b"x")
            await bus.admin.add_partitions("t", n + 2)
            await bus.flush()
            await bus.admin.delete_topics(f"other-{n}")
        assert sequences(bus, "t") == [(n, 1) for n in range(6)]


async def test_a_topic_made_anew_is_counted_anew(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer() as late:
            for n in range(3):
                await bus.send_many("t", [b"old"] * 7)
                coroutine = late.send("t", b"given before the topic went")
                gathered = late.send_nowait("t", b"gathered before the topic went")
                await bus.admin.delete_topics("t")
                await bus.admin.create_topic("t")
                with pytest.raises(UnknownTopicOrPartition, match="send it again"):
                    await coroutine
                with pytest.raises(UnknownTopicOrPartition):
                    await gathered
                await late.send("t", b"new")
                await bus.send("t", b"new")
                await late.send("t", b"new")
                await bus.send("t", b"new")
                assert sequences(bus, "t") == [(0, 1), (0, 1), (1, 1), (1, 1)], n


async def test_sequences_wrap(make_bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    identify = Accumulator._identify

    def near_the_end(accumulator: Accumulator) -> Identity:
        identity = identify(accumulator)
        accumulator._sequence = MAX_SEQUENCE - 3
        return identity

    monkeypatch.setattr(Accumulator, "_identify", near_the_end)
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        for n in range(6):
            await bus.send("t", b"%d" % n, partition=0)
        first = [bus.send_nowait("t", b"%d" % n, partition=1) for n in range(10)]
        await bus.flush()
        second = [bus.send_nowait("t", b"%d" % n, partition=1) for n in range(10, 20)]
        await bus.flush()
        assert all(delivery.exception() is None for delivery in first + second)
        assert sequences(bus, "t", 0) == [(MAX_SEQUENCE - 3 + n, 1) for n in range(4)] + [(0, 1), (1, 1)]
        assert sequences(bus, "t", 1) == [(MAX_SEQUENCE - 3, 10), (6, 10)]
        assert len(await values_of(bus, "t", 26)) == 26


async def test_an_awaited_send_asks_the_broker_nothing_after_its_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks whether the record is durable, and a call of the coordinator after every flush, were a tenth of a send."""
    calls: Counter[str] = Counter()

    def count(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def counted(*args: Any) -> Any:
            calls[name] += 1
            return original(*args)

        monkeypatch.setattr(kind, name, counted)

    async with EventBus(f"file://{tmp_path}", service="shop") as bus:
        await bus.admin.create_topic("orders")
        await bus.send("orders", b"1")
        count(Broker, "is_durable")
        count(Transactions, "finish_prepared")
        await bus.send("orders", b"2")
    assert not calls
