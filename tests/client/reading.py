"""Helpers for tests of producers: what readers see, and the stored batches."""

from __future__ import annotations

from typing import Any

from eventbus import EventBus, TopicPartition
from eventbus.backends.engine import Engine
from eventbus.records import RecordBatch, iter_batches


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


def engine_of(bus: EventBus) -> Engine:
    backend: Any = bus.context.backend
    return backend.engine


async def values(bus: EventBus, topic: str, isolation: str = "read_committed") -> list[bytes]:
    """Return the values that a reader sees at present, partition by partition."""
    found: dict[int, list[bytes]] = {}
    async with bus.new_consumer(topic, isolation_level=isolation) as consumer:
        while any([await consumer.lag(partition) for partition in consumer.assignment()]):
            for record in await consumer.poll(timeout_ms=0, max_records=10_000):
                found.setdefault(record.partition, []).append(record.value)
    return [value for _, values in sorted(found.items()) for value in values]


def batches(bus: EventBus, topic_partition: TopicPartition) -> list[RecordBatch]:
    """Return the batches of a partition as they are stored."""
    data = engine_of(bus).broker.fetch(topic_partition, 0, 1 << 30).records
    return list(iter_batches(data))
