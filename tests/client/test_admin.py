"""Administration of transactions and records. For groups see test_groups."""

from __future__ import annotations

from typing import Any

import pytest

from eventbus import GroupMetadata, TopicPartition
from eventbus.errors import (
    EventBusError,
    InvalidTxnState,
    OffsetOutOfRange,
    PolicyViolation,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


async def test_transactions_are_listed_and_described(make_bus: Any) -> None:
    async with make_bus(clock=lambda: 5_000) as bus:
        await bus.admin.create_topic("t", partitions=2)
        assert await bus.admin.list_transactions() == []
        async with bus.transaction("importer-1") as tx:
            await tx.send("t", b"x", partition=1)
            await tx.send_offsets({T0: 1}, GroupMetadata("g"))
            (listed,) = await bus.admin.list_transactions()
            assert (listed.transactional_id, listed.state) == ("importer-1", "Ongoing")
            (described,) = await bus.admin.describe_transactions("importer-1")
            assert described.start_ms == 5_000 and described.timeout_ms == 60_000
            assert T1 in described.partitions and len(described.partitions) == 2
            (producer,) = (await bus.admin.describe_producers([T1]))[T1]
            assert producer.producer_id == listed.producer_id and producer.transaction_start_offset == 0
        (listed,) = await bus.admin.list_transactions()
        assert listed.state == "CompleteCommit"
        (described,) = await bus.admin.describe_transactions(["importer-1"])
        assert described.start_ms == -1 and described.partitions == ()
        with pytest.raises(TransactionalIdNotFound):
            await bus.admin.describe_transactions("importer-2")


async def test_a_hanging_transaction_is_aborted_and_its_producer_fenced(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with pytest.raises(EventBusError):
            async with bus.transaction("id") as tx:
                await tx.send("t", b"hanging")
                await bus.send("t", b"behind it")
                async with bus.new_consumer("t") as reader:
                    assert await reader.poll(timeout_ms=0) == []  # read committed waits for the transaction
                    await bus.admin.abort_transaction("id")
                    assert [r.value for r in await reader.poll()] == [b"behind it"]
                (listed,) = await bus.admin.list_transactions()
                assert listed.state == "CompleteAbort"
                with pytest.raises(InvalidTxnState):
                    await bus.admin.abort_transaction("id")
                await tx.send("t", b"zombie")
        async with bus.new_consumer("t") as reader:
            assert [r.value for r in await reader.poll()] == [b"behind it"]
        with pytest.raises(TransactionalIdNotFound):
            await bus.admin.abort_transaction("nobody")


async def test_fencing_a_producer_aborts_what_it_has_open(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        with pytest.raises(EventBusError):
            async with bus.transaction("id") as tx:
                await tx.send("t", b"lost")
                (before,) = (await bus.admin.describe_producers([T0]))[T0]
                taken = await bus.admin.fence_producer("id")
                assert taken.producer_id == before.producer_id and taken.producer_epoch > before.producer_epoch
                await tx.send("t", b"zombie")
        await bus.send("t", b"kept")
        async with bus.new_consumer("t") as reader:
            assert [r.value for r in await reader.poll()] == [b"kept"]
        with pytest.raises(TransactionalIdNotFound):
            await bus.admin.fence_producer("nobody")
        assert len(await bus.admin.list_transactions()) == 1


async def test_records_are_deleted_before_an_offset(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=2)
        await bus.admin.create_topic("compacted", configs={"cleanup.policy": "compact"})
        for partition in (0, 1):
            for n in range(5):
                await bus.send("t", b"%d" % n, partition=partition)
        assert await bus.admin.delete_records({T0: 3, T1: -1}) == {T0: 3, T1: 5}
        async with bus.new_consumer("t") as reader:
            assert [(r.partition, r.offset) for r in await reader.poll()] == [(0, 3), (0, 4)]
        with pytest.raises(OffsetOutOfRange):
            await bus.admin.delete_records({T0: 6})
        with pytest.raises(PolicyViolation):
            await bus.admin.delete_records({TopicPartition("compacted", 0): 0})
        with pytest.raises(UnknownTopicOrPartition):
            await bus.admin.delete_records({TopicPartition("t", 2): 0})


async def test_a_reader_before_the_deleted_records_goes_by_its_start(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t", partitions=1)
        for n in range(5):
            await bus.send("t", b"%d" % n)
        async with bus.new_consumer("t", group="g") as reader:
            await reader.poll(max_records=1)
            await reader.commit()
        await bus.admin.delete_records({T0: 4})
        async with bus.new_consumer("t", group="g") as reader:
            assert [r.value for r in await reader.poll()] == [b"4"]
        async with bus.new_consumer("t", group="g", start="none") as reader:
            with pytest.raises(OffsetOutOfRange):
                await reader.poll()
