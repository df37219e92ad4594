"""Rows that are not to be published now: too late, behind one that failed, or refused themselves.

They are changed only by the holder of the lease, see `Slots.guard`: they are in no log that would tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from outbox.relay.metrics import RelayMetrics
from outbox.relay.rows import Row, Rows
from outbox.relay.slots import Slots
from outbox.relay.tenure import Tenure
from outbox.relay.transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

T = TypeVar("T")


class Sieve:
    """Of one relay."""

    def __init__(
        self,
        transactions: Transactions,
        rows: Rows,
        slots: Slots,
        tenure: Tenure,
        metrics: RelayMetrics,
        at: Callable[[str], Any],
    ) -> None:
        self._run = transactions.run
        self._rows = rows
        self._slots = slots
        self._tenure = tenure
        self._metrics = metrics
        self._at = at

    async def sift(self, rows: list[Row]) -> list[Row] | None:
        """The rows without those that are too late, and those that have to wait for another one of their key.

        None: a key is not blocked any more; look, and take anew.
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

    async def put_aside(self, ids: Sequence[int], reason: str) -> int:
        """Rows that the log refuses; how many there were."""
        count = await self._guarded(partial(self._quarantine, ids=ids, reason=reason))
        self._metrics.quarantined += count
        await self._at("quarantined")
        return count

    async def promote(self, most: int) -> None:
        """Make events of scheduled ones whose time has come."""
        shards, now_ms = self._tenure.shards, int(self._tenure.now_ms())
        promote = partial(self._rows.promote, shards=shards, now_ms=now_ms, limit=most)
        self._metrics.promoted += await self._guarded(promote)
        await self._at("promoted")

    async def _without_expired(self, rows: list[Row]) -> list[Row]:
        now_ms = self._tenure.now_ms()
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
        """Ids of rows by that of the row they wait for."""
        behind: dict[int, list[int]] = {}
        blocked = self._tenure.blocked
        for row in rows if blocked else ():
            head = blocked.get((row[2], row[3]))
            if head is not None and row[3] is not None and head < row[0]:
                behind.setdefault(head, []).append(row[0])
        return behind

    async def _guarded(self, change: Callable[[Connection], T]) -> T:
        def run(connection: Connection) -> T:
            self._slots.guard(connection, self._tenure.held())
            return change(connection)

        return await self._run(run)

    def _move_behind(self, connection: Connection, behind: dict[int, list[int]]) -> bool:
        heads = sorted(behind)
        if not all([self._rows.still_blocks(connection, head) for head in heads]):
            return False
        for head in heads:
            reason = f"waits behind {head}"
            self._rows.put_aside(connection, behind[head], reason, self._slots.now, is_behind=True)
        return True

    def _quarantine(self, connection: Connection, ids: Sequence[int], reason: str) -> int:
        return self._rows.put_aside(connection, ids, reason, self._slots.now, is_behind=False)
