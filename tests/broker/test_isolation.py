"""Batches of idempotent and transactional producers from outside, and what readers of each isolation see of them."""

from __future__ import annotations

import pytest

from eventbus.errors import InvalidProducerEpoch, InvalidRecord, InvalidTxnState, OutOfOrderSequence
from eventbus.log.partition_log import AppendInfo
from eventbus.records import BatchBuilder, fetched_records
from eventbus.types import (
    AbortedTransaction,
    IsolationLevel,
    OffsetAndTimestamp,
    ProducerIdAndEpoch,
    TopicPartition,
)

ORDERS = TopicPartition("orders", 0)
FIVE = ProducerIdAndEpoch(5, 0)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@pytest.fixture
def orders(world):
    world.create("orders")
    return world


def send(world, sequence: int, *values: bytes, producer: ProducerIdAndEpoch = FIVE, transactional=False) -> AppendInfo:
    builder = BatchBuilder()
    for value in values or (b"v",):
        builder.append(b"k", value, (), world.now_ms)
    batch = builder.build(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return world.broker.produce(ORDERS, batch, world.now_ms)


class Client:
    """A transactional producer of one partition."""

    def __init__(self, world, name: str) -> None:
        self.world, self.name = world, name
        self.producer = world.broker.transactions.init_producer_id(name, 60_000, world.now_ms)
        self.sequence = 0
        world.flush()

    def begin(self) -> None:
        self.world.broker.transactions.add_partitions(self.name, self.producer, [ORDERS], self.world.now_ms)

    def send(self, *values: bytes) -> AppendInfo:
        info = send(self.world, self.sequence, *values, producer=self.producer, transactional=True)
        self.sequence += len(values)
        return info

    def end(self, *, committed: bool) -> None:
        ended = self.world.broker.transactions.end(
            self.name, self.producer, committed=committed, now_ms=self.world.now_ms
        )
        self.world.flush()
        self.producer, self.sequence = ended.next, 0


def visible(world, isolation: IsolationLevel, offset: int = 0) -> list[bytes]:
    data = world.broker.fetch(ORDERS, offset, 1 << 20, isolation)
    return list(fetched_records(data.records, *ORDERS, offset, aborted=data.aborted).values)


def test_a_duplicate_is_stored_once(orders) -> None:
    assert send(orders, 0, b"a", b"b") == AppendInfo(0, 1, -1)
    assert send(orders, 2, b"c") == AppendInfo(2, 2, -1)
    assert send(orders, 0, b"a", b"b") == AppendInfo(0, 1, -1, duplicate=True)
    orders.flush()
    assert send(orders, 2, b"c") == AppendInfo(2, 2, -1, duplicate=True)
    assert not orders.broker.needs_sync
    assert visible(orders, UNCOMMITTED) == [b"a", b"b", b"c"]


def test_a_duplicate_is_acked_when_what_it_repeats_is_on_disk(disk) -> None:
    disk.open()
    disk.create("orders")
    send(disk, 0)
    again = send(disk, 0)
    assert again.duplicate
    assert not disk.broker.is_durable(ORDERS, again.last_offset)
    disk.flush()
    assert disk.broker.is_durable(ORDERS, again.last_offset)


def test_what_does_not_come_next_is_refused(orders) -> None:
    send(orders, 0, producer=ProducerIdAndEpoch(5, 1))
    with pytest.raises(OutOfOrderSequence, match="orders-0: producer 5, epoch 1, sent sequence 2 where 1 comes next"):
        send(orders, 2, producer=ProducerIdAndEpoch(5, 1))
    with pytest.raises(InvalidProducerEpoch):
        send(orders, 1, producer=ProducerIdAndEpoch(5, 0))
    with pytest.raises(InvalidRecord, match="both start at 0"):
        send(orders, -1)
    orders.flush()
    assert visible(orders, UNCOMMITTED) == [b"v"]


def test_a_transaction_nobody_knows_is_refused_before_it_could_hang(orders) -> None:
    with pytest.raises(InvalidTxnState):
        send(orders, 0, transactional=True)
    client = Client(orders, "t")
    with pytest.raises(InvalidTxnState):
        client.send(b"a")
    client.sequence = 0
    client.begin()
    client.send(b"a")
    client.end(committed=False)
    with pytest.raises(InvalidTxnState):
        client.send(b"late")
    assert orders.broker.list_offsets(ORDERS, -1, COMMITTED) == orders.broker.list_offsets(ORDERS, -1)


def test_a_late_batch_of_an_ended_transaction_is_fenced(orders) -> None:
    client = Client(orders, "t")
    client.begin()
    old = client.producer
    client.send(b"a")
    client.end(committed=True)
    with pytest.raises(InvalidProducerEpoch):
        send(orders, 1, producer=old, transactional=True)


def test_read_committed(orders) -> None:
    first, second = Client(orders, "first"), Client(orders, "second")
    first.begin()
    second.begin()
    first.send(b"a", b"b")
    second.send(b"c")
    send(orders, 0, b"d")
    orders.flush()
    assert visible(orders, COMMITTED) == []
    assert visible(orders, UNCOMMITTED) == [b"a", b"b", b"c", b"d"]
    assert orders.broker.list_offsets(ORDERS, -1, COMMITTED) == OffsetAndTimestamp(0, -1)
    assert orders.broker.list_offsets(ORDERS, orders.now_ms, COMMITTED).offset == -1
    second.end(committed=True)
    assert visible(orders, COMMITTED) == [], "the first one is still open"
    first.end(committed=False)
    assert visible(orders, COMMITTED) == [b"c", b"d"]
    assert visible(orders, UNCOMMITTED) == [b"a", b"b", b"c", b"d"]
    data = orders.broker.fetch(ORDERS, 0, 1 << 20, COMMITTED)
    assert data.aborted == (AbortedTransaction(first.producer.producer_id, 0, 5),)
    assert data.last_stable_offset == data.high_watermark == 6
    assert orders.broker.fetch(ORDERS, 0, 1 << 20).aborted == ()
    assert orders.broker.fetch(ORDERS, 6, 1 << 20, COMMITTED).aborted == ()
    orders.restart()
    assert visible(orders, COMMITTED) == [b"c", b"d"]


def test_who_waits_for_committed_records_is_told_when_the_marker_can_be_read(orders) -> None:
    client = Client(orders, "t")
    client.begin()
    client.send(b"a")
    orders.flush()
    orders.advanced.clear()
    client.end(committed=True)
    assert ORDERS in orders.advanced
    assert visible(orders, COMMITTED) == [b"a"]


def test_producers_are_described(orders) -> None:
    send(orders, 7, b"a", b"b", producer=ProducerIdAndEpoch(900, 3))
    client = Client(orders, "t")
    client.begin()
    client.send(b"c")
    producer_id, epoch = client.producer
    assert orders.broker.describe_producers(ORDERS) == sorted(
        [(900, 3, 8, orders.now_ms, -1, -1), (producer_id, epoch, 0, orders.now_ms, -1, 2)]
    )
    client.end(committed=True)
    [ended] = [each for each in orders.broker.describe_producers(ORDERS) if each.producer_id == producer_id]
    assert (ended.producer_epoch, ended.last_sequence, ended.transaction_start_offset) == (epoch + 1, -1, -1)
    assert ended.coordinator_epoch >= 0


def test_idle_producers_are_forgotten_unless_a_transaction_is_open(orders) -> None:
    orders.restart(producer_id_expiration_ms=1000, log_retention_check_interval_ms=100)
    send(orders, 0)
    client = Client(orders, "t")
    client.begin()
    client.send(b"a")
    for wait_ms in (30_000, 900):
        orders.now_ms += wait_ms
        orders.broker.tick(orders.now_ms)
        assert len(orders.broker.describe_producers(ORDERS)) == 2
    orders.now_ms += 100
    orders.broker.tick(orders.now_ms)
    assert [each.producer_id for each in orders.broker.describe_producers(ORDERS)] == [client.producer.producer_id]
    assert send(orders, 40) == AppendInfo(2, 2, -1), "forgotten: any sequence"
