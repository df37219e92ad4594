"""Hooks into every record: where Kafka's clients have them, and never in their way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from eventbus import EventBus, OffsetAndMetadata, RecordMetadata, TopicPartition
from eventbus.client.consuming.fetch_buffer import ConsumerRecords
from eventbus.client.intercepted import InterceptedProducer
from eventbus.client.interceptors import ConsumerInterceptor, ProducerInterceptor, ProducerRecord
from eventbus.client.producer import Producer
from eventbus.errors import BufferExhausted, ConfigError, EventBusError, UnknownTopicOrPartition

T0 = TopicPartition("t", 0)


class Stamp(ProducerInterceptor):
    """Adds a header, and writes everything down."""

    def __init__(self, name: str = "stamp") -> None:
        self.name = name
        self.outcomes: list[tuple[int | None, EventBusError | None]] = []
        self.closed = 0

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        return msgspec.structs.replace(record, headers=[*record.headers, ("by", self.name)])

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        self.outcomes.append((None if metadata is None else metadata.offset, error))

    def close(self) -> None:
        self.closed += 1


class Broken(ProducerInterceptor, ConsumerInterceptor):
    """Raises wherever it is called."""

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        raise ValueError("on_send")

    def on_acknowledgement(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
        raise ValueError("on_acknowledgement")

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        raise ValueError("on_consume")

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        raise ValueError("on_commit")

    def close(self) -> None:
        raise ValueError("close")


class CallTimeouts(ConsumerInterceptor):
    """Keeps what is even, and writes down what is committed."""

    def __init__(self) -> None:
        self.commits: list[Mapping[TopicPartition, OffsetAndMetadata]] = []
        self.closed = 0

    def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
        return ConsumerRecords(record for record in records if record.offset % 2 == 0)

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append(offsets)

    def close(self) -> None:
        self.closed += 1


async def read(bus: EventBus, topic: str = "t") -> list[Any]:
    async with bus.new_consumer(topic) as consumer:
        return list(await consumer.poll(0))


async def test_every_way_to_send_passes_through(make_bus: Any) -> None:
    stamp, second = Stamp(), Stamp("second")
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(interceptors=[stamp, second]) as producer:
            assert (await producer.send("t", b"0", headers={"mine": b"1"})).offset == 0
            told: list[Any] = []
            handle = producer.send_nowait("t", b"1", on_delivery=lambda metadata, error: told.append(metadata.offset))
            assert (await handle).offset == 1 and told == [1]
            await producer.send_many("t", [b"2", b"3"], key=lambda value: value, partition=0)
        records = await read(bus)
    by = (("by", b"stamp"), ("by", b"second"))  # in their order, and behind what was there
    assert [record.headers for record in records] == [(("mine", b"1"), *by), by, by, by]
    assert [record.key for record in records] == [None, None, b"2", b"3"]
    assert stamp.outcomes == second.outcomes == [(n, None) for n in range(4)]
    assert (stamp.closed, second.closed) == (1, 1)


async def test_a_record_may_become_another(make_bus: Any) -> None:
    class Reroute(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return ProducerRecord(topic="other", value=record.value + b"!", key=b"k", partition=1, timestamp_ms=7)

    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.admin.create_topic("other", partitions=2)
        async with bus.new_producer(interceptors=[Reroute()]) as producer:
            assert (await producer.send("t", b"x"))[:2] == ("other", 1)
        (record,) = await read(bus, "other")
        assert (record.value, record.key, record.timestamp_ms) == (b"x!", b"k", 7)


async def test_failures_are_told_once_whenever_they_come(make_bus: Any) -> None:
    stamp = Stamp()
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(interceptors=[stamp], transactional_id="one") as producer:
            await producer.begin()
            producer.send_nowait("t", b"aborted")
            await producer.abort()
            for send in (producer.send, producer.send_nowait):
                with pytest.raises(UnknownTopicOrPartition):
                    sent = send("nowhere", b"x")
                    await sent
        first, *others = [error for _, error in stamp.outcomes]
        assert isinstance(first, EventBusError) and not isinstance(first, UnknownTopicOrPartition)
        assert len(others) == 2 and all(isinstance(error, UnknownTopicOrPartition) for error in others)


async def test_a_full_buffer_is_waited_for_or_told(file_url: str) -> None:
    stamp = Stamp()
    async with EventBus(file_url) as bus:  # its batches wait for a flush
        await bus.admin.create_topic("t")
        config = {"buffer_memory": 10_000, "batch_size": 2_000}
        async with bus.new_producer(interceptors=[stamp], **config) as producer:
            await producer.send_many("t", [b"x" * 1_000] * 100)
            with pytest.raises(BufferExhausted):
                for _ in range(100):
                    producer.send_nowait("t", b"x" * 1_000)
        errors = [error for _, error in stamp.outcomes]
        assert errors.count(None) == len(errors) - 1 > 100


async def test_one_that_raises_or_answers_nothing_is_passed_over(
    make_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Forgetful(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return None  # a forgotten return is the point

    stamp, watch = Stamp(), CallTimeouts()
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(interceptors=[Broken(), Forgetful(), stamp]) as producer:
            await producer.send("t", b"x")
        async with bus.new_consumer("t", group="g", interceptors=[Broken(), watch]) as consumer:
            (record,) = await consumer.poll()
            assert record.headers == (("by", b"stamp"),)
            await consumer.commit()
        assert watch.commits == [{T0: (1, "")}] and watch.closed == 1 and stamp.closed == 1
    for hook in ("on_send", "on_acknowledgement", "on_consume", "on_commit", "close"):
        assert f"ValueError: {hook}" in caplog.text
    assert "returned None" in caplog.text


async def test_async_hooks_and_callbacks_are_reported_and_change_nothing(
    make_bus: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Awaited(ProducerInterceptor, ConsumerInterceptor):
        async def on_send(self, record: ProducerRecord) -> ProducerRecord:  # type: ignore[override]
            return record

        async def on_acknowledgement(self, metadata: Any, error: Any) -> None:  # type: ignore[override]
            ...

        async def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:  # type: ignore[override]
            return records

    async def delivered(metadata: Any, error: Any) -> None: ...

    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer(interceptors=[Awaited()]) as producer:
            await producer.send("t", b"x")
        await bus.send_nowait("t", b"y", on_delivery=delivered)
        async with bus.new_consumer("t", interceptors=[Awaited()]) as consumer:
            assert [record.value async for record in consumer.until_end()] == [b"x", b"y"]
    for name in ("on_send", "on_acknowledgement", "on_consume", "delivered"):
        assert any(name in line and "returned a coroutine" in line for line in caplog.text.splitlines())


async def test_consumers_show_what_they_read_and_commit(make_bus: Any) -> None:
    watch = CallTimeouts()
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.send_many("t", [b"%d" % n for n in range(10)])
        config = {"group": "g", "enable_auto_commit": True, "auto_commit_interval_ms": 0}
        async with bus.new_consumer("t", interceptors=[watch], **config) as consumer:
            assert [record.offset for record in await consumer.poll(0, 5)] == [0, 2, 4]
            assert await consumer.position(T0) == 5  # what was left out counts as returned
            assert (await anext(consumer)).offset == 6
            consumer.commit_nowait({T0: OffsetAndMetadata(7, "note")})
        assert watch.closed == 1
    assert watch.commits[0] == {T0: (5, "")} and {T0: (7, "note")} in watch.commits


async def test_the_buss_interceptors_are_those_of_all_its_producers(make_bus: Any) -> None:
    stamp, own = Stamp(), Stamp("own")
    bus = make_bus(interceptors=[stamp])
    bus.topic("t")

    @bus.producer("t")
    async def publish() -> bytes:
        return b"function"

    async with bus:
        await bus.send("t", b"bus")
        await publish()
        async with bus.transaction("one") as tx:
            await tx.send("t", b"transaction")
        async with bus.new_producer(interceptors=[own]) as producer:
            await producer.send("t", b"producer")
        records = await read(bus)
    assert [[value for _, value in record.headers] for record in records] == [[b"stamp"]] * 3 + [[b"stamp", b"own"]]
    assert len(stamp.outcomes) == 4 and len(own.outcomes) == 1


async def test_without_any_there_is_nothing_to_pay(make_bus: Any) -> None:
    async with make_bus() as bus:
        async with bus.new_producer() as producer:
            assert type(producer) is Producer
        async with bus.new_producer(interceptors=[Stamp()]) as producer:
            assert type(producer) is InterceptedProducer
        with pytest.raises(ConfigError, match=r"interceptors=\["):
            bus.new_producer(interceptor_classes="a.B")
        with pytest.raises(ConfigError, match=r"interceptors=\["):
            bus.new_consumer("t", **{"interceptor.classes": "a.B"})
