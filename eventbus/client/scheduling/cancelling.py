"""Cancel a scheduled record by a request to the process that delivers it, which writes the outcome to the log."""

from __future__ import annotations

from uuid import uuid4

from eventbus.client.host import Host
from eventbus.client.producer import Producer
from eventbus.client.scheduling.entries import OUTCOME, Cancel, encode, key_of
from eventbus.client.scheduling.partition_schedule import PartitionSchedule
from eventbus.errors import RequestTimedOut
from eventbus.records.murmur2 import murmur2, to_positive
from eventbus.types import TopicPartition

_ALL = 1 << 62
"""No limit on values kept in memory."""


def partition_for(id: str, count: int) -> int:
    """Return the partition of all records with this id."""
    return to_positive(murmur2(id.encode())) % count


async def ask_to_cancel(bus: Host, topic: str, partitions: int, id: str, timeout: float) -> bool:
    """Cancel a record. True means it is never delivered, False that it was delivered or does not exist.

    Raises RequestTimedOut without an answer; one of the two happens later.
    """
    partition = TopicPartition(topic, partition_for(id, partitions))
    async with bus.new_consumer(partitions=[partition], start="latest") as answers:
        await answers.position(partition)  # the end offset, before the request is sent
        with bus.context.backend.timers.move_on_after(timeout):
            key = await ask(bus, topic, partitions, id)
            async for record in answers:
                if record.key == key and record.value is None:
                    return record.header(OUTCOME) == b"cancelled"
    raise RequestTimedOut(
        f"cancelling the scheduled record {id!r}: no answer within {timeout:g} s; it is asked for, and counts unless "
        f"the record is delivered first. Does a bus of this service run, and is a transaction open for so long? "
        f"See: eventbus schedule show {id}"
    )


async def ask(bus: Host, topic: str, partitions: int, id: str) -> bytes:
    """Send a request to cancel. Return the key of its answer."""
    key = key_of(id, uuid4().hex[:16])
    request = encode(Cancel(bus.context.now_ms()))
    # Interceptors do not see internal records.
    partition = partition_for(id, partitions)
    await Producer.send(bus.context.main_producer(), topic, request, key=key, partition=partition, transactional=False)
    return key


async def waiting(bus: Host, topic: str) -> PartitionSchedule:
    """Return the contents of a topic of scheduled records."""
    schedule = PartitionSchedule(lambda: "", held_bytes=_ALL)
    [described] = await bus.admin.describe_topics([topic])
    partitions = [TopicPartition(topic, index) for index in range(len(described.partitions))]
    async with bus.new_consumer(partitions=partitions, start="earliest") as consumer:
        async for record in consumer.until_end():
            schedule.read(record.key, record.value, record.offset)
    schedule.settle()
    return schedule
