"""Read partitions to ends that are known before reading begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol, TypeVar

import anyio

from eventbus.backends.base import LATEST, Backend, BackendConsumer
from eventbus.types import FetchedRecords, IsolationLevel, TopicPartition

Batch = TypeVar("Batch")


class Positions(Protocol):
    """A consumer of the client or of a backend."""

    async def position(self, partition: TopicPartition) -> int: ...


async def ends_of(
    backend: Backend, partitions: Iterable[TopicPartition], isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
) -> dict[TopicPartition, int]:
    """Return the next offset of each partition.

    READ_UNCOMMITTED counts the records of transactions that are open. A reader of committed records reaches such an end
    when they have ended. So a writer that has taken over a transactional id reads all that was written before it.
    """
    found = await backend.list_offsets(dict.fromkeys(partitions, LATEST), isolation)
    return {partition: at.offset for partition, at in found.items()}


async def read_to_end(
    consumer: Positions,
    fetch: Callable[[], Awaitable[Batch]],
    ends: Mapping[TopicPartition, int],
    apply: Callable[[Batch], object],
) -> None:
    """Call ``apply`` with what ``fetch`` returns, until the consumer's positions have reached ``ends``.

    Positions count, not records: the last offsets of a partition may be transaction markers, aborted records, or gaps
    that compaction has left. ``apply`` may get records after the ends, if others write meanwhile.
    """
    while any([await consumer.position(partition) < end for partition, end in ends.items()]):
        apply(await fetch())


async def read_partitions(
    consumer: BackendConsumer,
    ends: Mapping[TopicPartition, int],
    apply: Callable[[FetchedRecords], object],
    *,
    starts: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Read partitions to ``ends`` with a consumer that serves nothing else, and close it.

    ``starts`` are the first offsets to read. Without them the consumer's ``start`` applies.
    """
    try:
        await consumer.assign(ends)
        for partition, offset in (starts or {}).items():
            consumer.seek(partition, offset)
        await read_to_end(consumer, consumer.fetch, ends, lambda fetched: [apply(records) for records in fetched])
    finally:
        with anyio.CancelScope(shield=True):
            await consumer.aclose()
