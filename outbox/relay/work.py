"""A relay's work, step by step: a slot, its shards, and batch after batch.

`Work.step` does the next thing that is to be done and says how long to wait before the next one. Each step leaves a
state from which the next follows, whatever raises in it: so errors are handled in one place, by whoever calls it.

A batch: take rows - publish them, and their receipt, in one transaction of the log - have them deleted beside what
comes next. What goes wrong once a transaction was begun is cured in one way only: take the transactional id up again,
read the receipt, delete its rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio
import msgspec

from eventbus.backends.clock import Timers
from eventbus.errors import EventBusError
from eventbus.types import TopicPartition
from outbox.relay import hosts
from outbox.relay.cleaning import Cleaner
from outbox.relay.metrics import RelayMetrics
from outbox.relay.poison import Refused, is_unknown_topic, poison_in, reason_of
from outbox.relay.polling import Pace
from outbox.relay.publishing import (
    AtLeastOnce,
    ExactlyOnce,
    Publisher,
    fence,
    read_receipt,
    receipts_topic,
    transactional_id,
)
from outbox.relay.receipts import Part, encode, fits, part_of
from outbox.relay.rows import Row, Rows
from outbox.relay.slots import Lease, LeaseLost, Now, Other, Slots, View, fair_change
from outbox.relay.transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from eventbus import EventBus
    from outbox.database import Database
    from outbox.tables import OutboxTables

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("outbox")

LOOKS_IN_A_LEASE = 2
"""So often a relay renews its lease, and looks for the others."""
_PATIENCE = 4
"""Times that a topic may be unknown before its rows are put aside: it may be just being created."""
_RESTLESS_LOOKS = 8
"""After relays came or went, their shards move for a while."""
_CALM_LOOKS = 16
"""Otherwise one look in so many asks for free shards."""
_MOST_OPEN_BATCHES = 4
"""Of rows that are published and not deleted: beyond that publishing waits."""
_PROMOTED = 1_000
"""Scheduled events in one transaction, at most."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the user chose."""

    exactly_once: bool
    blocks: bool
    """A row that failed holds back those behind it."""
    batch_size: int
    lease_ms: int
    poll_ms: tuple[int, int]


class Work:
    """Of one relay, while its bus runs."""

    def __init__(
        self,
        bus: EventBus,
        database: Database,
        tables: OutboxTables,
        settings: Settings,
        metrics: RelayMetrics,
        now: Now,
        at: Callable[[str], Any],
    ) -> None:
        self._bus = bus
        self.timers: Timers = bus.backend.timers
        self._transactions = Transactions(database, self.timers)
        self._name = tables.name
        self._tables = tables
        self._settings = settings
        self._metrics = metrics
        self._at = at
        self._rows = Rows(tables)
        self._slots = Slots(tables, settings.lease_ms, database.dialect, now)
        self.pace = Pace(settings.poll_ms, settings.batch_size)
        self._identity = ""
        self.lease: Lease | None = None
        self._publisher: Publisher | None = None
        self._is_up = False
        """The publisher is the only one of its slot, and the rows of its last receipt are deleted."""
        self.shards: frozenset[int] = frozenset()
        self.view: View | None = None
        self._blocked: dict[tuple[str, Any], int] = {}
        self.cleaner = Cleaner(self._delete, self.timers)
        self._ahead: list[Row] = []
        """Taken while the batch before was published."""
        self.is_quiet = False
        """There was nothing when it last looked."""
        self.quiet_after = 0
        """Takes that had begun when it last was quiet, see `drain`."""
        self.takes = 0
        self._due_ms: int | None = None
        """When the next scheduled event is due, as far as is known."""
        self._look_at = 0.0
        self._renewed_at = 0.0
        self._restless = 0
        self._calm = 0
        self._relays_seen: frozenset[str] = frozenset()
        self._patience = _PATIENCE
        self._ahead_ms = 0.0
        """The database's clock less that of the timers."""
        self.is_lost = False
        """The lease, as whoever renewed it was told."""

    @property
    def look_seconds(self) -> float:
        """Between two looks, and two renewals."""
        return self._settings.lease_ms / 1000 / LOOKS_IN_A_LEASE

    async def _run(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transactions.run(fn, *args, **kwargs)

    # steps -----------------------------------------------------------------------------------------------------------

    async def step(self) -> float:
        """Do what is next; seconds to wait, or until somebody wakes the relay.

        Raises LeaseLost (then `forget`), and what the log and the database raise: then call it again later.
        """
        if self.is_lost:
            raise LeaseLost(f"outbox {self._name!r}: the lease was over, and another relay has taken the slot")
        if self.lease is None and not await self._enter():
            return self.look_seconds
        if not self._is_up:
            await self._take_up()
        if self.timers.current_time() >= self._look_at:
            self._ahead = []  # taken with the blocked keys of before in mind, and perhaps of shards that go
            await self._look()
        if self._due_ms is not None and self._due_ms <= self._now_ms():
            await self._promote()
        rows, self._ahead = self._ahead, []
        rows = rows or await self._take()
        if not rows:
            return self._until_next()
        await self._publish(rows)
        return 0.0

    def woken(self) -> None:
        """Somebody says that there are rows."""
        self.is_quiet = False
        self.pace.woken()

    def _until_next(self) -> float:
        """Seconds until there may be something to do."""
        seconds = min(self.pace.idle(), max(self._look_at - self.timers.current_time(), 0.0))
        if self._due_ms is not None:
            seconds = min(seconds, max(self._due_ms - self._now_ms(), 1.0) / 1000)
        return seconds

    def _now_ms(self) -> float:
        """The database's clock, as of the last look: it is never ahead."""
        return self.timers.current_time() * 1000 + self._ahead_ms

    # the slot --------------------------------------------------------------------------------------------------------

    async def _enter(self) -> bool:
        """Get a slot. False: all are held."""
        from sqlalchemy.exc import IntegrityError

        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.aclose()
        self._identity = await self._run(self._slots.identity)
        try:
            lease = await self._run(self._slots.enter, hosts.this_host(), hosts.is_gone)
        except IntegrityError:  # another relay was faster
            lease = await self._run(self._slots.enter, hosts.this_host(), hosts.is_gone)
        if lease is None:
            return False
        hosts.lives(lease.token)
        self.lease, self.is_lost = lease, False
        self._renewed_at = self.timers.current_time()
        self._metrics.slot = lease.slot
        await self._at("entered")
        if self._settings.exactly_once:
            self._publisher = ExactlyOnce(self._bus, self._at, self._name, self._identity, lease.slot)
        else:
            self._publisher = AtLeastOnce(self._bus, self._at)
        return True

    async def _take_up(self) -> None:
        """Become the only one who publishes for the slot, and finish what was published.

        In this order: what the transactional id's epoch allows is only used after the database has said, later than
        the log, that the slot is still ours.
        """
        assert self.lease is not None and self._publisher is not None
        parts = await self._publisher.take_up()
        self.shards = await self._run(self._slots.renew_and_read, self.lease, self._metrics.published)
        self._metrics.shards = len(self.shards)
        self._renewed_at = self.timers.current_time()
        await self._at("renewed")
        await self._settle(parts)
        self.cleaner.forget()  # the receipt has named them all
        self._ahead = []
        self._is_up = True
        self._look_at = self._renewed_at
        self.is_quiet = False

    async def _settle(self, parts: Sequence[Part]) -> None:
        """Delete rows that are in the log, as a receipt says."""
        for part in parts:
            outcome = await self._run(self._rows.settle, part, self._slots.now)
            if outcome == "deleted":
                self._metrics.settled += len(part.ids)
            elif outcome == "others":
                logger.warning(
                    "outbox %r: rows %d to %d were published, says the log, but those in the table are others, or not "
                    "all of them: the database was restored from a backup, or rows were deleted by hand. Nothing is "
                    "deleted, what is there is published", self._name, part.ids[0], part.ids[-1],
                )  # fmt: skip
        await self._at("settled")

    async def renew(self) -> None:
        """Renew the lease while a batch is at work; nothing when that was done just now."""
        lease = self.lease
        if lease is None or self.timers.current_time() - self._renewed_at < self.look_seconds:
            return
        try:
            await self._run(self._slots.renew, lease, self._metrics.published)
        except LeaseLost:
            self.is_lost = self.lease is lease
        else:
            self._renewed_at = self.timers.current_time()

    def forget(self) -> None:
        """The slot is another's: begin anew."""
        if self.lease is not None:
            hosts.ends(self.lease.token)
        self.lease = None
        self.is_lost = self._is_up = False
        self.cleaner.forget()
        self._ahead = []
        self.shards = frozenset()
        self._metrics.slot, self._metrics.shards = None, 0

    def doubt(self) -> None:
        """Something went wrong while a transaction may be open: take up what is there before anything else.

        The database may be another one now, which gives the last ids again: what the receipt names is only deleted
        with its checksum.
        """
        self._is_up = False
        self.cleaner.forget()

    async def finish(self) -> None:
        """Let go of everything, as far as nothing is in doubt; what is, a successor finds out."""
        publisher, self._publisher = self._publisher, None
        lease = self.lease
        try:
            if self._is_up and lease is not None and not self.is_lost:
                await self.cleaner.clean()
                self._is_up = False
                if publisher is not None:
                    await publisher.aclose()
                await self._run(self._slots.leave, lease)
                await self._at("left")
        finally:
            self.forget()
            if publisher is not None:
                await publisher.aclose()

    # shards ----------------------------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Renew the lease, see who else is there and which keys are blocked, and share the shards."""
        lease = self.lease
        assert lease is not None
        view = await self._run(self._renew_and_look, lease)
        self._renewed_at = at = self.timers.current_time()
        self._see(view)
        self._ahead_ms = view.now_ms - at * 1000
        await self._at("looked")
        live = self._live(view)
        for gone in view.relays:
            if gone.token not in live:
                await self._reap(gone)
        if live != self._relays_seen:
            self._relays_seen, self._restless = live, _RESTLESS_LOOKS
        await self._share(len(live))
        if not self.is_quiet:
            self._due_ms = (await self._run(self._rows.peek, self.shards)).due_ms
        self._look_at = at + self._until_look(view)

    def _see(self, view: View) -> None:
        self.view = view
        self._blocked = dict(view.heads) if self._settings.blocks else {}

    def _renew_and_look(self, connection: Connection, lease: Lease) -> View:
        self._slots.renew(connection, lease, self._metrics.published)
        return self._slots.look(connection)

    def _live(self, view: View) -> frozenset[str]:
        assert self.lease is not None
        own = self.lease.token
        return frozenset(
            one.token
            for one in view.relays
            if one.token == own or (one.expires_at_ms > view.now_ms and not hosts.is_gone(one))
        )

    def _until_look(self, view: View) -> float:
        """Sooner than usual when a lease may be over before that."""
        ends = [one.expires_at_ms - view.now_ms for one in view.relays if one.expires_at_ms > view.now_ms]
        return min(self.look_seconds, (min(ends, default=0) + 10) / 1000) if ends else self.look_seconds

    async def _share(self, relays: int) -> None:
        """Take what is free, or let go of what is too much."""
        lease, total = self.lease, self._tables.shard_count
        assert lease is not None
        change = fair_change(self.shards, (), relays, total)
        if change.release:
            await self.cleaner.clean()
            await self._run(self._slots.release, lease, change.release)
            self.shards -= frozenset(change.release)
            await self._at("released")
        elif len(self.shards) * relays < total or (self._asks_for_free() and len(self.shards) < total):
            free = await self._run(self._slots.free_shards)
            change = fair_change(self.shards, free, relays, total)
            if change.take:
                self.shards = await self._run(self._slots.take, lease, change.take)
                self._see(await self._run(self._slots.look))  # whoever had them may have put rows aside since
                self.is_quiet = False
                await self._at("shared")
        self._metrics.shards = len(self.shards)

    def _asks_for_free(self) -> bool:
        """Not at every look: nothing moves for days."""
        if self._restless:
            self._restless -= 1
            return True
        self._calm = (self._calm + 1) % _CALM_LOOKS
        return not self._calm

    async def _reap(self, gone: Other) -> None:
        """A relay whose lease is over: fence it, finish what it has published, and set its shards free."""
        logger.warning("outbox %r: the relay %s of slot %d is gone", self._name, gone.host, gone.slot)
        if self._settings.exactly_once:
            group = transactional_id(self._name, self._identity, gone.slot)
            await fence(self._bus, group)
            _, parts = await read_receipt(self._bus, group, TopicPartition(receipts_topic(self._name), 0))
            await self._settle(parts)
        if await self._run(self._slots.remove, gone):
            self._metrics.reaped += 1
            self._restless = _RESTLESS_LOOKS
            await self._at("reaped")

    # rows ------------------------------------------------------------------------------------------------------------

    async def _take(self) -> list[Row]:
        """Rows to publish, if there are any. Which keys are blocked was read before, never after."""
        self.takes += 1
        takes = self.takes
        if self.is_quiet and not self.cleaner.open:
            peek = await self._run(self._rows.peek, self.shards)
            self._due_ms = peek.due_ms
            if not peek.has_rows:
                self.quiet_after = takes
                return []
        if self.cleaner.rows > _MOST_OPEN_BATCHES * self._settings.batch_size:
            await self.cleaner.clean()
        rows = await self._run(self._rows.take, self.shards, self.pace.rows, self.cleaner.ids())
        await self._at("taken")
        self.is_quiet = not rows
        if not rows:
            self.cleaner.hurry()
        if not rows and not self.cleaner.open:
            self._due_ms = (await self._run(self._rows.peek, self.shards)).due_ms
            self.quiet_after = takes
        return rows

    async def _delete(self, ids: Sequence[int]) -> None:
        await self._at("deleting")
        await self._run(self._rows.delete, ids, self._slots.now)
        await self._at("deleted")

    async def _promote(self) -> None:
        """Scheduled events whose time has come."""
        count = await self._run(self._promote_due, int(self._now_ms()))
        self._metrics.promoted += count
        self._due_ms = (await self._run(self._rows.peek, self.shards)).due_ms
        self.is_quiet = False
        await self._at("promoted")

    def _promote_due(self, connection: Connection, now_ms: int) -> int:
        assert self.lease is not None
        self._slots.guard(connection, self.lease)
        return self._rows.promote(connection, self.shards, now_ms, _PROMOTED)

    async def _publish(self, rows: list[Row]) -> None:
        """One batch, if what was taken is to be published at all."""
        assert self._publisher is not None
        rows = await self._fit_to_publish(rows)
        if not rows:
            return
        fitting = cut(rows, self.cleaner.open)
        if fitting is None:
            await self.cleaner.clean()
            fitting = cut(rows, ())
            assert fitting is not None
        rows, part, receipt = fitting
        self._is_up = False
        try:
            ahead = await self._publish_and_take(self._publisher, rows, part, receipt)
        except Refused as refused:
            await self._refused(refused.ids, refused.cause)
            return
        except EventBusError as error:
            cause = poison_in(error)
            if cause is None:
                raise
            if len(rows) > 1:  # one of them, and nobody knows which
                self.pace.refused(len(rows))
                return
            await self._refused([rows[0][0]], cause)
            return
        self._is_up = True
        self._ahead = ahead
        self.cleaner.add(part)
        self._patience = _PATIENCE
        self._count(rows)
        await self._at("committed")

    async def _publish_and_take(self, publisher: Publisher, rows: Sequence[Row], part: Part, receipt: str) -> list[Row]:
        """Where there are more rows, those behind the batch are taken while the log is busy with it."""
        if len(rows) < self.pace.rows:
            await publisher.publish(rows, receipt)
            return []
        ahead: list[Row] = []

        async def take() -> None:
            known = sorted((*self.cleaner.ids(), *part.ids))
            try:
                ahead.extend(await self._run(self._rows.take, self.shards, self.pace.rows, known))
            except Exception as error:  # the next step takes again, and meets it
                logger.debug("outbox %r: nothing was taken ahead: %s", self._name, error)

        failed: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            try:
                await publisher.publish(rows, receipt)
            except Exception as error:  # raised below, not as a group
                failed.append(error)
        if failed:
            raise failed[0]
        return ahead

    def _count(self, rows: Sequence[Row]) -> None:
        metrics = self._metrics
        metrics.published += len(rows)
        metrics.batches += 1
        metrics.add_lags([row[7] for row in rows], int(self._now_ms()))
        sample = rows[::16]
        self.pace.published(len(rows), sum([len(row[4] or b"") for row in sample]) * len(rows) // len(sample))

    # rows that are not published -------------------------------------------------------------------------------------

    async def _fit_to_publish(self, rows: list[Row]) -> list[Row]:
        """The rows without those that are too late, and those that have to wait for another one of their key."""
        now_ms = self._now_ms()
        expired = [row[0] for row in rows if row[8] is not None and row[8] <= now_ms]
        if expired:
            self._metrics.expired += await self._run(self._guarded, partial(self._rows.drop, ids=expired))
            await self._at("expired")
            dropped = frozenset(expired)
            rows = [row for row in rows if row[0] not in dropped]
        if not self._blocked:
            return rows
        behind: dict[int, list[int]] = {}
        for row in rows:
            head = self._blocked.get((row[2], row[3]))
            if head is not None and row[3] is not None and head < row[0]:
                behind.setdefault(head, []).append(row[0])
        if not behind:
            return rows
        if not await self._run(self._guarded, partial(self._move_behind, behind=behind)):
            self._look_at = self.timers.current_time()  # a key is not blocked any more: see which
            return []
        moved = frozenset(id_ for ids in behind.values() for id_ in ids)
        self._metrics.moved_behind += len(moved)
        await self._at("moved")
        return [row for row in rows if row[0] not in moved]

    def _guarded(self, connection: Connection, change: Callable[[Connection], T]) -> T:
        """What changes rows that are not published is only for the holder of the lease."""
        assert self.lease is not None
        self._slots.guard(connection, self.lease)
        return change(connection)

    def _move_behind(self, connection: Connection, behind: dict[int, list[int]]) -> bool:
        heads = sorted(behind)
        if not all([self._rows.still_blocks(connection, head) for head in heads]):
            return False
        for head in heads:
            reason = f"waits behind {head}"
            self._rows.put_aside(connection, behind[head], reason, self._slots.now, is_behind=True)
        return True

    async def _refused(self, ids: list[int], cause: EventBusError) -> None:
        """The log refuses rows: put them aside, once what is open is aborted."""
        self._patience -= 1
        if is_unknown_topic(cause) and self._patience > 0:
            raise cause
        self._patience = _PATIENCE
        await self._take_up()
        assert self._publisher is not None
        self._is_up = False
        await self._publisher.check()
        self._is_up = True
        change = partial(self._quarantine, ids=ids, reason=reason_of(cause))
        count = await self._run(self._guarded, change)
        self._metrics.quarantined += count
        logger.error("outbox %r: %d event(s) were put aside, the log refuses them: %s", self._name, count, cause)
        self._look_at = self.timers.current_time()
        await self._at("quarantined")

    def _quarantine(self, connection: Connection, ids: list[int], reason: str) -> int:
        return self._rows.put_aside(connection, ids, reason, self._slots.now, is_behind=False)


def cut(rows: list[Row], before: Sequence[Part]) -> tuple[list[Row], Part, str] | None:
    """As many of the rows as a receipt can name behind the parts ``before``, their part, and the receipt.

    None where it has no room for one more.
    """
    while True:
        part = part_of([row[0] for row in rows], [row[1] for row in rows])
        receipt = encode([*before, part])
        if fits(receipt):
            return rows, part, receipt
        if len(rows) == 1:
            return None
        rows = rows[: len(rows) // 2]
