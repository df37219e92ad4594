"""Find the open transaction that a handler waits for, because it has read up to the last stable offset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime

from eventbus.backends.base import Backend
from eventbus.coordinator.requests import TransactionDescription
from eventbus.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

_LONG_SECONDS = 10.0
"""A transaction that blocks a partition for longer is reported. Most take less than a second."""
_END = -1


class OpenTransactions:
    """Finds transactions that block a handler, which reads up to the last stable offset and waits there."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._seen: dict[TopicPartition, tuple[int, float]] = {}
        """The last stable offset of each blocked partition, and since when it has not moved."""
        self.reasons: Mapping[TopicPartition, str] = {}
        """Partitions that have been blocked for long, each with a description of the transaction."""

    async def look(self, read: Collection[TopicPartition], now: float) -> None:
        """Update `reasons`. ``read`` are partitions without readable records left. Raises the log's errors."""
        stable = {
            partition: found.offset
            for partition, found in (await self._offsets(read, IsolationLevel.READ_COMMITTED)).items()
        }
        ends = await self._offsets(read, IsolationLevel.READ_UNCOMMITTED)
        seen: dict[TopicPartition, tuple[int, float]] = {}
        for partition, offset in stable.items():
            if partition in ends and offset < ends[partition].offset:
                before = self._seen.get(partition)
                seen[partition] = before if before is not None and before[0] == offset else (offset, now)
        self._seen = seen
        late = [partition for partition, (_, since) in seen.items() if now - since >= _LONG_SECONDS]
        owners = await self._owners(late) if late else {}
        self.reasons = {
            partition: (
                f"{ends[partition].offset - seen[partition][0]:,} offsets from {seen[partition][0]} on are not "
                f"readable (for {now - seen[partition][1]:.0f} s), because {owners.get(partition) or _UNKNOWN}"
            )
            for partition in late
        }

    async def _offsets(
        self, partitions: Collection[TopicPartition], isolation: IsolationLevel
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await self._backend.list_offsets(dict.fromkeys(partitions, _END), isolation) if partitions else {}

    async def _owners(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, str]:
        ids = [one.transactional_id for one in await self._backend.list_transactions()]
        found = await self._backend.describe_transactions(ids) if ids else []
        opened = [one for one in found if one.start_ms >= 0]
        oldest: dict[TopicPartition, TransactionDescription] = {}
        for one in sorted(opened, key=lambda transaction: transaction.start_ms, reverse=True):
            oldest.update(dict.fromkeys(one.partitions, one))
        return {partition: _shown(oldest[partition]) for partition in partitions if partition in oldest}


_UNKNOWN = "a transaction is open there that has no known id: eventbus transactions find-hanging"


def _shown(transaction: TransactionDescription) -> str:
    since = datetime.fromtimestamp(transaction.start_ms / 1000, UTC).isoformat(timespec="seconds")
    name, seconds = transaction.transactional_id, transaction.timeout_ms / 1000
    return (
        f"the transaction of {name!r} is open since {since}. It is aborted after {seconds:g} s in all, or with: "
        f"eventbus transactions abort {name}"
    )
