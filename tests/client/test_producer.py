"""Batches, room, order and outcomes of the producer."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.errors import BufferExhausted, ConfigError, ProducerClosed, RecordTooLarge, SerializationError


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
