"""Filter out rows that must not be published now: expired rows, refused rows, and rows that wait for a refused one.

Only the holder of the lease may change them (see `ShardLeases.guard`). These rows appear in no topic, so a relay that
has lost its lease could otherwise remove rows that its successor has already taken, and nothing would show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from outbox.relay.lease_keeper import LeaseKeeper
from outbox.relay.metrics import RelayMetrics
from outbox.relay.rows import Row, Rows
from outbox.relay.shard_leases import ShardLeases
from outbox.relay.transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

T = TypeVar("T")


class RowFilters:
    """The filters of one relay, applied to each batch between SELECT and publish."""

    def __init__(
        self,
        transactions: Transactions,
        rows: Rows,
        slots: ShardLeases,
        keeper: LeaseKeeper,
        metrics: RelayMetrics,
        at: Callable[[str], Any],
    ) -> None:
        self._run = transactions.run
        self._rows = rows
        self._leases = slots
        self._keeper = keeper
        self._metrics = metrics
        self._at = at

    async def apply(self, rows: list[Row]) -> list[Row] | None:
        """Return the rows that may be published now. Expired rows are deleted, blocked rows are quarantined.

        Returns None if a blocking row has left the quarantine meanwhile. The caller must then look again and select the
        batch again, because the released row comes first.
        """
        rows = await self._without_expired(rows)
        behind = self._behind(rows)
        if not behind:
            return rows
        if not await self._guarded(partial(self._move_behind, behind=behind)):
            return None
        moved = frozenset(id_ for ids in behind.values() for id_ in ids)
        self._metrics.moved_behind += len(moved)
        await self._at("moved")
        return [row for row in rows if row[0] not in moved]

    async def quarantine_refused(self, ids: Sequence[int], reason: str) -> int:
        """Quarantine rows that the log refuses. Return how many there were."""
        count = await self._guarded(partial(self._quarantine, ids=ids, reason=reason))
        self._metrics.quarantined += count
        await self._at("quarantined")
        return count

    async def promote(self, most: int) -> None:
        """Move scheduled events that are due to the events."""
        shards, now_ms = self._keeper.shards, int(self._keeper.now_ms())
        promote = partial(self._rows.promote, shards=shards, now_ms=now_ms, limit=most)
        self._metrics.promoted += await self._guarded(promote)
        await self._at("promoted")

    async def _without_expired(self, rows: list[Row]) -> list[Row]:
        now_ms = self._keeper.now_ms()
        expired = {row[0]: row[1] for row in rows if row[8] is not None and row[8] <= now_ms}
        if not expired:
            return rows
        event_ids = (min(expired.values()), max(expired.values()))
        drop = partial(self._rows.drop, ids=list(expired), event_ids=event_ids)
        self._metrics.expired += await self._guarded(drop)
        await self._at("expired")
        dropped = expired.keys()
        return [row for row in rows if row[0] not in dropped]

    def _behind(self, rows: list[Row]) -> dict[int, list[int]]:
        """Map the id of each blocking row to the ids of the rows that wait for it."""
        behind: dict[int, list[int]] = {}
        blocked = self._keeper.blocked
        for row in rows if blocked else ():
            head = blocked.get((row[2], row[3]))
            if head is not None and row[3] is not None and head < row[0]:
                behind.setdefault(head, []).append(row[0])
        return behind

    async def _guarded(self, change: Callable[[Connection], T]) -> T:
        def run(connection: Connection) -> T:
            self._leases.guard(connection, self._keeper.held())
            return change(connection)

        return await self._run(run)

    def _move_behind(self, connection: Connection, behind: dict[int, list[int]]) -> bool:
        heads = sorted(behind)
        if not all([self._rows.still_blocks(connection, head) for head in heads]):
            return False
        for head in heads:
            reason = f"waits behind {head}"
            self._rows.quarantine(connection, behind[head], reason, self._leases.now, is_behind=True)
        return True

    def _quarantine(self, connection: Connection, ids: Sequence[int], reason: str) -> int:
        return self._rows.quarantine(connection, ids, reason, self._leases.now, is_behind=False)
