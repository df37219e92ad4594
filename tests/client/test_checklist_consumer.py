"""Features of Kafka's consumer that users ask for, and that no other test shows."""

from __future__ import annotations

import re
from collections.abc import Mapping

import anyio
import pytest

from eventbus import (
    ConsumerInterceptor,
    ConsumerRecord,
    ConsumerRecords,
    EventBus,
    OffsetAndMetadata,
    TopicPartition,
)
from eventbus.errors import HandlerError
from eventbus.testing import TestBus

ORDERS = [TopicPartition("orders", number) for number in range(2)]


async def test_partitions_added_later_are_not_taken_by_who_assigned_its_own() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("orders", partitions=2)
        async with bus.new_consumer() as consumer:
            await consumer.assign(ORDERS)
            await bus.admin.add_partitions("orders", 3)
            await bus.send("orders", b"old", partition=0)
            await bus.send("orders", b"new", partition=2)
            assert [record.value for record in await consumer.poll()] == [b"old"]
            assert consumer.assignment() == ORDERS


@pytest.mark.system
async def test_a_handler_that_takes_longer_than_every_timeout_keeps_its_place() -> None:
    bus = TestBus(auto_create_topics=True)
    enough = anyio.Event()
    handled: list[bytes] = []

    @bus.consumer("orders", group="billing", session_timeout_ms=6_000, max_poll_interval_ms=10_000)
    async def slow(record: ConsumerRecord) -> None:
        await enough.wait()
        handled.append(record.value)

    async with bus:
        await bus.send("orders", b"one")
        await bus.clock.settle()
        before = await bus.admin.describe_group("billing")
        await bus.clock.advance(seconds=600)
        after = await bus.admin.describe_group("billing")
        assert (after.state, after.generation_id) == ("Stable", before.generation_id) and len(after.members) == 1
        enough.set()
        await bus.log.drain()
        assert handled == [b"one"], "once"
        bus.log.assert_committed("billing", "orders", 0, 1)


@pytest.mark.parametrize("batch", [2, 100])
async def test_batches_and_polls_are_no_longer_than_asked_for(batch: int) -> None:
    bus = TestBus(auto_create_topics=True)
    sizes: list[int] = []

    @bus.consumer("orders", group="billing", batch=batch)
    async def several(values: list[bytes]) -> None:
        sizes.append(len(values))

    async with bus:
        await bus.send_many("orders", [b"x"] * 5)
        await bus.log.drain()
        async with bus.new_consumer("orders", start="earliest") as consumer:
            assert len(await consumer.poll(max_records=batch)) == min(batch, 5)
    assert sum(sizes) == 5 and max(sizes) <= batch


async def test_a_group_is_behind_by_its_own_lag_alone() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("orders", partitions=2)
        for number in range(4):
            await bus.send("orders", b"x", partition=number % 2)
        async with (
            bus.new_consumer("orders", group="fast") as fast,
            bus.new_consumer("orders", group="slow") as slow,
        ):
            await fast.poll()
            await fast.commit()
            assert [await fast.lag(partition) for partition in ORDERS] == [0, 0]
            assert [await slow.lag(partition) for partition in ORDERS] == [2, 2]
        assert {at.offset for at in (await bus.admin.group_offsets("fast")).values()} == {2}
        assert await bus.admin.group_offsets("slow") == {}


async def test_what_a_poll_returned_sorted_by_partition() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("orders", partitions=2)
        for number in range(4):
            await bus.send("orders", number, partition=number % 2)
        async with bus.new_consumer("orders", group="g", value=int) as consumer:
            records = await consumer.poll()
            assert {at: [one.value for one in some] for at, some in records.by_partition().items()} == {
                ORDERS[0]: [0, 2],
                ORDERS[1]: [1, 3],
            }
            await consumer.commit(records.next_offsets())
        assert {at.offset for at in (await bus.admin.group_offsets("g")).values()} == {2}


async def test_a_consumers_interceptor_sees_records_and_commits() -> None:
    class Audit(ConsumerInterceptor):
        def __init__(self) -> None:
            self.seen: list[object] = []

        def on_consume(self, records: ConsumerRecords) -> ConsumerRecords:
            self.seen.append(len(records))
            return records

        def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
            self.seen.append({partition: at.offset for partition, at in offsets.items()})

    audit = Audit()
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("orders")
        await bus.send("orders", b"x")
        async with bus.new_consumer("orders", group="g", interceptors=[audit]) as consumer:
            await consumer.poll()
            await consumer.commit()
    assert audit.seen == [1, {ORDERS[0]: 1}]


async def test_a_commit_every_so_many_records_does_not_wait_for_its_time() -> None:
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", commit_every=3, commit_interval_ms=3_600_000)
    async def bill(order: bytes) -> None: ...

    async with bus:
        await bus.send_many("orders", [b"1", b"2"])
        await bus.clock.settle()
        assert bus.log.committed("billing", "orders") == {}
        await bus.send("orders", b"3")
        await bus.clock.settle()
        bus.log.assert_committed("billing", "orders", 0, 3)


async def test_a_call_that_takes_too_long_has_failed() -> None:
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", timeout=5)
    async def bill(order: bytes) -> None:
        if order == b"2":
            await anyio.sleep_forever()

    with pytest.raises(HandlerError, match="orders-0 offset 1") as caught:
        async with bus:
            await bus.send_many("orders", [b"1", b"2", b"3"])
            await bus.clock.advance(seconds=10)
            await bus.log.drain()
    assert isinstance(caught.value.__cause__, TimeoutError)
    bus.log.assert_committed("billing", "orders", 0, 1)


async def test_members_log_why_they_rebalanced_and_for_how_long(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "eventbus.group")
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("orders", partitions=2)
        async with (
            bus.new_consumer("orders", group="billing", client_id="one") as first,
            bus.new_consumer("orders", group="billing", client_id="two") as second,
        ):
            while not (first.assignment() and second.assignment()):
                await first.poll(timeout_ms=0)
                await second.poll(timeout_ms=0)
    lines = [record.getMessage() for record in caplog.records if "generation 2" in record.getMessage()]
    assert len(lines) == 2
    assert all(re.search(r"owns 1 partition\(s\), by range; \d+ ms after: \w", line) for line in lines), lines
