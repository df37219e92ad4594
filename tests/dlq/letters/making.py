"""Make dead letters, and read topics."""

from __future__ import annotations

from dlq.headers import Cause, dead_letter_record
from eventbus import ConsumerRecord, EventBus, Record, TimestampType, TopicPartition
from tests.support import records_of

NOW_MS = 1_700_000_000_000
TOPIC = "dlq.billing"
ORDERS = TopicPartition("orders", 0)


def letter(
    number: int,
    *,
    handler: str = "bill",
    group: str = "billing",
    error: Exception | None = None,
    source: TopicPartition = ORDERS,
    key: bytes | None = None,
    value: bytes | None = b"{}",
    reason: str = "exhausted",
    headers: tuple[tuple[str, bytes | None], ...] = (("trace", b"t-1"),),
    max_bytes: int = 1_000_000,
) -> Record:
    """Return the dead letter of record ``number`` of ``source``, which failed ``number`` ms after `NOW_MS`."""
    record = ConsumerRecord(
        source.topic, source.partition, number, NOW_MS, TimestampType.CREATE_TIME, key, value, headers
    )
    cause = Cause(
        error=ValueError("no price") if error is None else error,
        reason=reason, group=group, handler=handler, service="test", attempts=3, first_failed_ms=NOW_MS,
        now_ms=NOW_MS + number, retry_topic=f"retry.{group}",
    )  # fmt: skip
    return dead_letter_record(record, cause, max_bytes=max_bytes)


async def put(bus: EventBus, *letters: Record, topic: str = TOPIC, partition: int = 0) -> None:
    """Write dead letters. The first offset in a new topic is 0."""
    for one in letters:
        bus.send_nowait(topic, one.value, key=one.key, headers=one.headers, partition=partition)
    await bus.flush()


async def topics(bus: EventBus, *names: str, partitions: int = 1) -> None:
    for name in names:
        await bus.admin.create_topic(name, partitions)


async def linked(bus: EventBus, topic: str = "orders") -> list[bytes | None]:
    """Return for each record of a topic the dead letter that it was redriven from."""
    return [record.header("eb-redrive-of") for record in await records_of(bus, topic)]
