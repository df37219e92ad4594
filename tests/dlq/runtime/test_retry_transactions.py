"""The transactions of a retry partition have a single producer, which other producers of the handler never fence."""

from __future__ import annotations

from collections import Counter

import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.backends.urls import open_backend
from eventbus.testing import KafkaServer
from eventbus.types import TopicPartition
from tests.cluster_faults.load import until

pytestmark = pytest.mark.system


async def test_a_retry_fences_no_later_one() -> None:
    """The retry of each record is one transaction of the same producer, and its function is called once for it.

    The offset that passes the marker of this transaction was committed in a transaction of another producer with the
    same id, so the next retry was aborted and called again.
    """
    name = "fenced"
    retry_partition = TopicPartition(f"retry.{name}", 0)
    with KafkaServer(auto_create_topics=False) as server:
        url = f"kafka://{server.bootstrap}"
        bus = EventBus(url)
        bus.topic(name, partitions=1)
        bus.topic(f"{name}-out", partitions=1)
        calls: Counter[bytes] = Counter()

        @bus.consumer(
            name,
            group=name,
            start="earliest",
            exactly_once=True,
            retry=Retry(immediate=0, delays=["10ms"], jitter=False),
        )
        @bus.producer(f"{name}-out")
        async def work(value: bytes) -> bytes:
            calls[value] += 1
            if calls[value] == 1:
                raise ValueError("not at the first time")
            return value

        backend = open_backend(url, {})
        await backend.start()
        try:
            async with bus:

                async def is_passed() -> bool:
                    committed = (await backend.group_offsets(name)).get(retry_partition)
                    [topic] = await backend.describe_topics([retry_partition.topic])
                    return committed is not None and committed.offset == topic.partitions[0].log_end_offset

                epochs: list[int] = []
                for number in range(3):
                    await bus.send(name, b"%d" % number)
                    await bus.drain()
                    await until(is_passed)
                    [described] = await backend.describe_transactions([f"{name}.work.{retry_partition}"])
                    epochs.append(described.producer_epoch)
            assert set(calls.values()) == {2}
            assert len(set(epochs)) == 1
        finally:
            await backend.aclose()
