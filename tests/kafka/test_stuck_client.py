"""librdkafka 2.16 may stay in ``send_offsets_to_transaction`` for ever: a broker was killed while it was asked."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from confluent_kafka import KafkaError as ClientError

from eventbus import EventBus
from eventbus.backends.kafka import transactions
from eventbus.errors import EventBusError, TransactionAborted
from eventbus.types import OffsetAndMetadata, TopicPartition
from tests.kafka.targets import Node, bus_url

pytestmark = pytest.mark.system


class Stuck:
    """A handle whose offsets are never sent."""

    def __init__(self, handle: Any, released: threading.Event) -> None:
        self._handle = handle
        self._released = released

    def send_offsets_to_transaction(self, *_: Any) -> None:
        self._released.wait()

    def __len__(self) -> int:
        return len(self._handle)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)


async def test_a_client_that_does_not_come_back_is_given_up(served: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "_ATTEMPT_SECONDS", 0.5)
    monkeypatch.setattr(transactions, "_OVERDUE_SECONDS", 0.5)
    released = threading.Event()
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic("stuck")
        async with bus.new_consumer("stuck", group="stuck-readers") as consumer:
            await consumer.assigned()
            group = consumer.group_metadata()
            offsets = {TopicPartition("stuck", 0): OffsetAndMetadata(1, "")}
            async with bus.new_producer(transactional_id="stuck-writer") as producer:
                backend: Any = producer._backend  # pyright: ignore[reportPrivateUsage]
                with pytest.raises(EventBusError, match="does not come back"):
                    async with producer.transaction() as tx:
                        await tx.send("stuck", "never seen")
                        backend.client.handle = Stuck(backend.client.handle, released)
                        await tx.send_offsets(offsets, group)
                async with producer.transaction() as tx:
                    await tx.send("stuck", "seen")
                    await tx.send_offsets(offsets, group)
        released.set()
        async with bus.new_consumer("stuck", value=str) as reader:
            assert [record.value async for record in reader.until_end()] == ["seen"]
        assert (await bus.admin.group_offsets("stuck-readers"))[TopicPartition("stuck", 0)].offset == 1


async def test_what_was_asked_behind_a_stuck_call_does_not_meet_the_next_client(
    served: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was given up comes back at last: the commit that waited behind it is for a client that is gone."""
    monkeypatch.setattr(transactions, "_ATTEMPT_SECONDS", 0.5)
    monkeypatch.setattr(transactions, "_OVERDUE_SECONDS", 0.5)
    released = threading.Event()
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic("behind")
        async with bus.new_producer(transactional_id="behind-writer") as producer:
            backend: Any = producer._backend  # pyright: ignore[reportPrivateUsage]
            await producer.begin()
            await producer.send("behind", "never seen")
            backend.client.handle = Stuck(backend.client.handle, released)
            with anyio.move_on_after(0.1):
                await producer.send_offsets({TopicPartition("behind", 0): 1}, "behind-readers")
            worker = backend.transactions._worker
            with pytest.raises(TransactionAborted):
                await producer.commit()
            await producer.begin()
            await producer.send("behind", "half of it")
            released.set()
            await anyio.to_thread.run_sync(worker._thread.join)
            await producer.abort()
        async with bus.new_consumer("behind", value=str) as reader:
            assert [record.value async for record in reader.until_end()] == []


async def test_what_a_client_that_was_left_says_late_does_not_spoil_the_next_transaction(served: Node) -> None:
    """It is fenced by its own successor."""
    async with EventBus(bus_url(served.bootstrap)) as bus:
        await bus.admin.create_topic("late-news")
        async with bus.new_producer(transactional_id="late-news-writer") as producer:
            backend: Any = producer._backend  # pyright: ignore[reportPrivateUsage]
            await producer.begin()
            left = producer.send_nowait("late-news", "aborted")
            await producer.abort()
            await producer.begin()
            for code in (ClientError._PURGE_INFLIGHT, ClientError._FENCED):
                left.batch.done = False
                left.batch.first_failure = ClientError(code)  # pyright: ignore[reportAttributeAccessIssue]
                backend._is_finished(left.batch)
                await anyio.lowlevel.checkpoint()
            await producer.send("late-news", "committed")
            await producer.commit()
        async with bus.new_consumer("late-news", value=str) as reader:
            assert [record.value async for record in reader.until_end()] == ["committed"]
