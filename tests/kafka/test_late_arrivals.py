"""Records that arrive late at the consumer of kafka://, commits that come late, and what takes memory meanwhile."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus
from eventbus.backends.base import ConsumerConfig
from eventbus.backends.clock import system_clock
from eventbus.backends.kafka.backend import KafkaBackend, open_kafka
from eventbus.backends.kafka.consumer import KafkaConsumer
from eventbus.backends.kafka.poll_thread import Arrival
from eventbus.backends.kafka.prefetch_buffer import PrefetchBuffer
from eventbus.errors import UnknownMemberId, error_for_code
from eventbus.testing import KafkaServer
from eventbus.types import FetchedRecords, GroupMetadata, OffsetAndMetadata, TimestampType, TopicPartition
from tests.kafka.targets import QUICK, bus_url

pytestmark = pytest.mark.system

WHERE = TopicPartition("t", 0)


def records(first: int, count: int, value: bytes | None = b"x") -> FetchedRecords:
    offsets = range(first, first + count)
    return FetchedRecords(
        *WHERE, offsets, [0] * count, [b"key"] * count, [value] * count, [(("n", b"%d" % n),) for n in offsets],
        TimestampType.CREATE_TIME, first + count,
    )  # fmt: skip


async def closed(backend: KafkaBackend, consumer: KafkaConsumer) -> None:
    await consumer.aclose()
    await backend.aclose()


async def test_what_is_fetched_twice_is_handed_over_once_and_nothing_is_left_out() -> None:
    """A poll brought more while librdkafka was about to be told from where to read: it fetches some again."""
    backend = open_kafka("kafka://", "127.0.0.1:1", QUICK, system_clock)
    consumer: Any = backend.consumer(ConsumerConfig())
    try:
        consumer._held[WHERE], consumer._positions[WHERE] = None, 20
        consumer._on_arrival(Arrival(records=[records(20, 10)]))
        consumer._on_arrival(Arrival(records=[records(20, 20)]))
        consumer._on_arrival(Arrival(records=[records(20, 20)]))
        consumer._on_arrival(Arrival(records=[records(40, 5)]))
        found = [(record.offset, record.headers) for chunk in consumer._buffer.take() for record in chunk]
        assert found == [(n, (("n", b"%d" % n),)) for n in range(20, 45)]
    finally:
        await closed(backend, consumer)


def test_small_records_take_room_too() -> None:
    """Deletions have no values: a million of them that are put by is not nothing."""
    box = PrefetchBuffer(room_bytes=100_000, fetch_bytes=1)
    box.pause(WHERE)
    box.add(records(0, 5_000, value=None))
    assert box.overfull([WHERE]) == {WHERE: None}


class Fetched:
    """A message of librdkafka's."""

    def __init__(self, offset: int, value: bytes) -> None:
        self._offset, self._value = offset, value

    def __len__(self) -> int:
        return len(self._value)

    def __getattr__(self, name: str) -> Any:
        answers = {"topic": "t", "partition": 0, "offset": self._offset, "value": self._value, "timestamp": (1, 0)}
        return lambda: answers.get(name)


async def test_a_poll_that_librdkafka_never_runs_out_of_has_a_size() -> None:
    """It fetches more while its queue is emptied: 2,000 records of any size would come at once."""
    backend = open_kafka("kafka://", "127.0.0.1:1", QUICK, system_clock)
    consumer: Any = backend.consumer(ConsumerConfig(max_partition_fetch_bytes=1_000))  # 16 of them are in its queue
    member, client = consumer._thread, consumer._thread.client
    offsets = iter(range(1_000))

    class NeverEmpty:
        def poll(self, wait_seconds: float) -> Fetched:
            return Fetched(next(offsets), bytes(5_000))

        def consume(self, count: int, wait_seconds: float) -> list[Fetched]:
            return [self.poll(0)]

    try:
        member._placed = {WHERE}
        member.client = NeverEmpty()
        [found] = member._poll_once(0, 2_000).records
        assert len(found) == 4
    finally:
        member.client = client
        await closed(backend, consumer)


async def test_a_commit_is_not_asked_for_again_once_its_partition_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else reads there by now, and has committed more."""
    backend = open_kafka("kafka://", "127.0.0.1:1", QUICK, system_clock)
    consumer: Any = backend.consumer(ConsumerConfig(group="g"))
    asked = threading.Event()

    def commit(_: object) -> None:
        asked.set()
        raise error_for_code(16, "moving")

    monkeypatch.setattr(consumer._thread, "commit", commit)
    try:
        consumer._held[WHERE], consumer._positions[WHERE] = None, 20
        async with anyio.create_task_group() as tasks:

            async def lose() -> None:
                await anyio.to_thread.run_sync(asked.wait)
                consumer._drop(WHERE)

            tasks.start_soon(lose)
            with anyio.fail_after(10), pytest.raises(UnknownMemberId, match="t-0"):
                await consumer.commit({WHERE: OffsetAndMetadata(20)})
    finally:
        await closed(backend, consumer)


async def test_where_a_group_goes_on_is_asked_of_transactions_too() -> None:
    """What is about to be committed in a transaction is waited for: the old offset would have records handled twice."""
    async with KafkaServer() as server, EventBus(bus_url(server.bootstrap)) as bus:
        await bus.admin.create_topic("t")
        backend = open_kafka("kafka://", server.bootstrap, QUICK, system_clock)
        await backend.start()
        consumer: Any = backend.consumer(ConsumerConfig(group="g"))
        try:
            found: list[int] = []

            async def ask() -> None:
                found.append((await consumer.committed([WHERE]))[WHERE].offset)

            async with bus.transaction("before") as before:
                await before.send_offsets({WHERE: 3}, GroupMetadata("g"))
            async with anyio.create_task_group() as tasks, bus.transaction("id") as tx:
                await tx.send_offsets({WHERE: 7}, GroupMetadata("g"))
                tasks.start_soon(ask)
                for _ in range(3):
                    assert (await backend.group_offsets("g"))[WHERE].offset == 3
                assert found == []
            assert found == [7]
        finally:
            await closed(backend, consumer)
