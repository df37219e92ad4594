"""Features of Kafka's producer that users ask for, and that no other test shows."""

from __future__ import annotations

import pytest

from eventbus import EventBus, ProducerInterceptor, ProducerRecord, RecordMetadata
from eventbus.errors import (
    BufferExhausted,
    EventBusError,
    KafkaError,
    LogPoisoned,
    ProducerFenced,
    RecordTooLarge,
    RequestTimedOut,
    StorageFull,
    UnknownTopicOrPartition,
)
from eventbus.testing import TestBus


async def test_every_awaited_send_tells_topic_partition_offset_and_time() -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("orders", partitions=3)
        await bus.send("orders", b"first", partition=2)
        told = await bus.send("orders", b"x", partition=2, timestamp_ms=1_359_655_200_000)
        assert told == RecordMetadata("orders", 2, 1, 1_359_655_200_000)
        assert (await bus.send("orders", b"x", partition=2)).timestamp_ms == bus.clock()


async def test_records_of_a_batch_share_its_outcome() -> None:
    async with EventBus("memory://", linger_ms=60_000) as bus:
        await bus.admin.create_topic("kept")
        await bus.admin.create_topic("gone")
        kept = [bus.send_nowait("kept", b"%d" % number) for number in range(3)]
        gone = [bus.send_nowait("gone", b"%d" % number) for number in range(3)]
        await bus.admin.delete_topics("gone")
        await bus.flush()
        assert [handle.result().offset for handle in kept] == [0, 1, 2]
        errors = [handle.exception() for handle in gone]
        assert isinstance(errors[0], UnknownTopicOrPartition) and all(error is errors[0] for error in errors)


async def test_a_partition_that_is_not_there_is_refused_before_anything_is_sent() -> None:
    async with EventBus("memory://", linger_ms=60_000) as bus:
        await bus.admin.create_topic("orders", partitions=2)
        with pytest.raises(UnknownTopicOrPartition, match=r"partitions 0 to 1; there is no partition 7"):
            bus.send_nowait("orders", b"x", partition=7)


def test_errors_say_whether_the_same_call_may_succeed_later() -> None:
    assert all(kind.retriable for kind in (RequestTimedOut, StorageFull, UnknownTopicOrPartition, BufferExhausted))
    assert not any(kind.retriable for kind in (RecordTooLarge, ProducerFenced, LogPoisoned))
    assert issubclass(RecordTooLarge, KafkaError) and issubclass(KafkaError, EventBusError)
    assert RecordTooLarge("x").code == 10 and RecordTooLarge("x").name == "MESSAGE_TOO_LARGE"
    assert ProducerFenced.fatal and not RecordTooLarge.fatal


async def test_one_topic_takes_values_of_many_types_and_headers_in_order() -> None:
    async with TestBus(auto_create_topics=True) as bus:
        await bus.send("t", "text", key=7, headers=[("a", b"1"), ("b", None), ("a", "2")])
        await bus.send("t", None, key="gone")
        await bus.send("t", b"", key=b"")
        text, tombstone, empty = bus.log.records("t")
        assert text.key == (7).to_bytes(8, "big") and text.value == b"text"
        assert list(text.headers) == [("a", b"1"), ("b", None), ("a", b"2")]
        assert tombstone.value is None and empty.value == b"" and empty.key == b""


async def test_an_interceptor_changes_what_is_sent_and_hears_what_became_of_it() -> None:
    class Stamp(ProducerInterceptor):
        def __init__(self) -> None:
            self.heard: list[object] = []

        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            record.headers = {"by": "billing"}
            return record

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: EventBusError | None) -> None:
            self.heard.append(metadata.offset if metadata else type(error))

    stamp = Stamp()
    async with TestBus(auto_create_topics=True) as bus:
        await bus.admin.create_topic("orders")
        async with bus.new_producer(interceptors=[stamp]) as producer:
            await producer.send("orders", b"x")
            with pytest.raises(RecordTooLarge):
                await producer.send("orders", bytes(2_000_000))
        [stored] = bus.log.records("orders")
    assert stored.headers == (("by", b"billing"),) and stamp.heard == [0, RecordTooLarge]
