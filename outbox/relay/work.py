"""A relay's work, step by step: take a slot, share shards, and publish batch after batch.

`Work.step` does what is due next and returns how long to wait afterwards. Whatever error interrupts a step, the next
one continues from the state it leaves, so errors are handled only by the caller.

A batch is taken from the table, published together with its receipt in one transaction of the log, and deleted while
the next batch is published. After any error in a transaction there is a single way to recover: take up the
transactional id again, read the receipt, and delete the rows that it lists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import anyio

from eventbus.backends.clock import Timers
from eventbus.errors import EventBusError
from outbox.relay.batches import DatabaseMismatch
from outbox.relay.cleaning import Cleaner, Published
from outbox.relay.lease_keeper import LeaseKeeper, Settings
from outbox.relay.metrics import RelayMetrics
from outbox.relay.poison import Refused, is_unknown_topic, poison_in, reason_of
from outbox.relay.polling import Pace
from outbox.relay.publishing import AtLeastOnce, ExactlyOnce, Publisher
from outbox.relay.receipts import Part, Receipt, encode, fits, part_of
from outbox.relay.row_filters import RowFilters
from outbox.relay.rows import Row, Rows
from outbox.relay.shard_leases import LeaseLost, Now, OtherRelay, ShardLeases
from outbox.relay.topic_waits import Place, TopicWaits, may_end, place_of, shown
from outbox.relay.transactions import Transactions

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from eventbus import EventBus
    from outbox.database import Database
    from outbox.tables import OutboxTables

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("outbox")

_MOST_OPEN_BATCHES = 4
"""Maximum number of published batches whose rows are not deleted yet. Beyond that, publishing waits."""
_IDLE_SECONDS = 600.0
"""Pause after a receipt before an idle relay commits the next receipt."""
_PROMOTED = 1_000
"""Maximum number of scheduled events moved in one transaction."""


class Work:
    """The work of one relay while its bus runs."""

    def __init__(
        self,
        bus: EventBus,
        database: Database,
        tables: OutboxTables,
        settings: Settings,
        metrics: RelayMetrics,
        now: Now,
        at: Callable[[str], Any],
        timers: Timers,
    ) -> None:
        """``now`` is the database's clock, ``at`` is awaited after each step, and ``timers`` are used for waiting."""
        self._bus = bus
        self.backend = bus.context.backend
        self.timers = timers
        self._name = tables.name
        self._settings = settings
        self._metrics = metrics
        self._at = at
        self._transactions = transactions = Transactions(database)
        self._rows = rows = Rows(tables)
        self._leases = slots = ShardLeases(tables, settings.lease_ms, database.dialect, now)
        self.pace = Pace(settings.poll_ms, settings.batch_size)
        self.cleaner = Cleaner(self._delete)
        self.keeper = keeper = LeaseKeeper(
            bus, transactions, tables, rows, slots, settings, metrics, timers, at, self._settle, self.cleaner.clean
        )
        self._filters = RowFilters(transactions, rows, slots, keeper, metrics, at)
        self._publisher: Publisher | None = None
        self._is_up = False
        """True if the publisher has fenced all others of its slot, and the rows in its last receipt are deleted."""
        self._receipt_at = 0.0
        """Time of the timers at which an idle relay commits a receipt."""
        self._ahead: list[Row] = []
        """Rows taken while the previous batch was published."""
        self._is_quiet = False
        """True if the last check found no rows."""
        self.takes = 0
        self.quiet_after = 0
        """Value of ``takes`` when the outbox was last found empty; see `Relay.drain`."""
        self.due_ms: int | None = None
        """When the next scheduled event is due by the database's clock, if known."""
        self.waits = TopicWaits(settings.patience_ms)
        """Places that the log refuses now."""
        self.probed_topics: set[str] = set()
        """Topics whose ACL is tested with an event from the quarantine, until the log accepts one of their events."""
        self.refused = 0
        """Number of quarantined events at the last check, without the events that wait for them."""

    async def _run(self, fn: Callable[Concatenate[Connection, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._transactions.run(fn, *args, **kwargs)

    # steps -----------------------------------------------------------------------------------------------------------

    async def step(self) -> float:
        """Do what is due next. Return the seconds to wait, unless the relay is woken before.

        Raises LeaseLost (then call `forget`), and what the log and the database raise (then call it again later).
        """
        keeper = self.keeper
        if keeper.is_lost:
            raise LeaseLost(f"outbox {self._name!r}: the lease was over, and another relay has taken the slot")
        if keeper.lease is None and not await self._enter():
            return keeper.look_seconds
        if not self._is_up:
            await self._take_up()
        if keeper.has_to_look:
            await self._look()
        if self.due_ms is not None and self.due_ms <= keeper.now_ms():
            await self._filters.promote(_PROMOTED)
            await self._ask_when_due()
            self._is_quiet = False
        if (place := self.waits.due(self.timers.current_time())) is not None:
            return await self._try_again(place)
        rows, self._ahead = self._ahead, []
        rows = rows or await self._take()
        if not rows:
            return self._until_next()
        return await self._publish(rows)

    def look_again(self) -> None:
        """Look at once, because rows were put back and blocked keys have changed."""
        self.keeper.look_at = 0.0
        self._is_quiet = False

    def woken(self) -> None:
        """Note that new rows were reported."""
        self._is_quiet = False
        self.pace.woken()

    def _until_next(self) -> float:
        """Return the seconds until there may be something to do."""
        seconds = min(self.pace.idle(), max(self.keeper.look_at - self.timers.current_time(), 0.0))
        if self.due_ms is not None:
            seconds = min(seconds, max(self.due_ms - self.keeper.now_ms(), 1.0) / 1000)
        if (next_at := self.waits.next_at()) is not None:
            seconds = min(seconds, max(next_at - self.timers.current_time(), 0.0))
        return seconds

    async def _look(self) -> None:
        """Look for other relays. Rows taken ahead are dropped: keys may have been blocked or released, and shards may
        move.
        """
        self._ahead = []
        shards = self.keeper.shards
        await self.keeper.look()
        if self.keeper.shards != shards:
            self._is_quiet = False
        if self.timers.current_time() >= self._receipt_at:
            await self._renew_receipt()
        if not self._is_quiet:
            await self._ask_when_due()

    async def _renew_receipt(self) -> None:
        """Commit a receipt although nothing was published for a while.

        Kafka would expire the last receipt after some days. In addition, clones of the database that were made before
        no longer match the log.
        """
        self._receipt_at = self.timers.current_time() + _IDLE_SECONDS
        publisher = self._publisher
        if not isinstance(publisher, ExactlyOnce):
            return
        await self.cleaner.clean()
        lease, number = self.keeper.held(), publisher.number + 1

        def record(connection: Connection) -> None:
            self._leases.guard(connection, lease)  # a successor's next batch would have the same number
            self._rows.record_batch(connection, lease.slot, number)

        await self._run(record)
        self._is_up = False
        await publisher.renew_receipt()
        self._is_up = True

    async def _ask_when_due(self) -> None:
        self.due_ms = (await self._run(self._rows.peek, self.keeper.shards)).due_ms

    # the slot --------------------------------------------------------------------------------------------------------

    async def _enter(self) -> bool:
        """Take a slot. Return False if all are held."""
        await self._drop_publisher()
        if not await self.keeper.enter():
            return False
        if self._settings.exactly_once:
            slot = self.keeper.held().slot
            self._publisher = ExactlyOnce(self._bus, self._at, self._name, self.keeper.identity, slot)
        else:
            self._publisher = AtLeastOnce(self._bus, self._at)
        return True

    async def _take_up(self) -> None:
        """Fence all other publishers of the slot, and delete what they have published.

        The order matters: the transactional id's new epoch is used only after the database has confirmed, later than
        the log, that this relay still holds the slot.
        """
        assert self._publisher is not None
        receipt = await self._publisher.take_up()
        await self.keeper.confirm(self._publisher.log_id)
        if receipt is not None:
            await self._settle(receipt)
        self.cleaner.forget()  # the receipt lists all of them
        self._ahead = []
        self._is_up = True
        self._is_quiet = False
        self._receipt_at = self.timers.current_time() + _IDLE_SECONDS

    async def _settle(self, receipt: Receipt, gone: OtherRelay | None = None) -> None:
        """Delete the rows that are in the log according to the receipt of this relay's slot, or of a dead relay's.

        The receipt is outdated if another relay has taken the slot since it was read. Then nothing changes, because the
        recorded batch would be set back. Raises LeaseLost and DatabaseMismatch.
        """
        lease = self.keeper.held()

        def settle(connection: Connection) -> int:
            if gone is None:
                self._leases.guard(connection, lease)
            elif not self._leases.lock_gone(connection, gone):
                return 0
            slot = lease.slot if gone is None else gone.slot
            return self._rows.settle(connection, slot, receipt, self._leases.now)

        try:
            self._metrics.settled += await self._run(settle)
        except DatabaseMismatch:
            # The lease ends without a release. Relays that find the slot get the same error, and publish nothing.
            self.forget()
            raise
        await self._at("settled")

    def forget(self) -> None:
        """Start again, because another relay holds the slot."""
        self.keeper.forget()
        self.doubt()

    def doubt(self) -> None:
        """After an error, assume an open transaction: take up the slot again before anything else.

        The database may have been replaced by one that reuses the last ids. What the receipt lists is therefore deleted
        only if its checksum matches.
        """
        self._is_up = False
        self._ahead = []
        self.cleaner.forget()

    async def finish(self) -> None:
        """Release everything that is in a known state. A successor recovers the rest."""
        try:
            if self._is_up and not self.keeper.is_lost:
                await self.cleaner.clean()
                self._is_up = False
                await self._drop_publisher()
                await self.keeper.leave()
        finally:
            self.forget()
            await self._drop_publisher()

    async def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await publisher.aclose()

    # rows ------------------------------------------------------------------------------------------------------------

    async def _take(self) -> list[Row]:
        """Return rows to publish, if any. The blocked keys were read before the rows, never after."""
        self.takes += 1
        takes = self.takes
        if self._is_quiet and not self.cleaner.open:
            peek = await self._run(self._rows.peek, self.keeper.shards, self.waits.places)
            self.due_ms = peek.due_ms
            if not peek.has_rows:
                self.quiet_after = takes
                return []
        if self.cleaner.rows > _MOST_OPEN_BATCHES * self.pace.rows:
            await self.cleaner.clean()
        places = self.waits.places
        rows = await self._run(self._rows.take, self.keeper.shards, self.pace.rows, self.cleaner.ids(), places)
        await self._at("taken")
        self._is_quiet = not rows
        if not rows:
            self.cleaner.hurry()
        if not rows and not self.cleaner.open:
            await self._ask_when_due()
            self.quiet_after = takes
        return rows

    async def _delete(self, batches: Sequence[Published]) -> None:
        lease, number = self.keeper.lease, batches[-1].number
        slot = lease.slot if lease is not None and self._settings.exactly_once else None
        await self._at("deleting")
        await self._run(self._rows.delete_published, batches, slot, number, self._leases.now)
        await self._at("deleted")

    async def _publish(self, rows: list[Row]) -> float:
        """Publish one batch, as far as its rows may be published. Return the seconds to wait."""
        assert self._publisher is not None
        allowed = await self._filters.apply(rows)
        if allowed is None:
            self.keeper.look_at = 0.0
        if not allowed:
            return 0.0
        fitting = cut(allowed, self.cleaner.parts)
        if fitting is None:
            await self.cleaner.clean()
            fitting = cut(allowed, ())
            assert fitting is not None
        rows, part, receipt = fitting
        self._is_up = False
        try:
            ahead = await self._publish_and_take(self._publisher, rows, part, receipt)
        except Refused as refused:
            if await self._publisher.learn_limits(rows, refused.cause):
                return 0.0
            return await self._refused(rows, refused.ids, refused.cause)
        except EventBusError as error:
            cause = poison_in(error)
            if cause is None:
                raise
            if await self._publisher.learn_limits(rows, cause):
                return 0.0
            # One of several rows is at fault, but not which. If the ACL of their only topic is missing, all rows are
            # refused.
            if len(rows) > 1 and not (may_end(cause) and len({row[2] for row in rows}) == 1):
                self.pace.refused(len(rows))
                return 0.0
            return await self._refused(rows, [row[0] for row in rows], cause)
        self._is_up = True
        self._receipt_at = self.timers.current_time() + _IDLE_SECONDS
        self._ahead = ahead
        event_ids = [row[1] for row in rows]
        self.cleaner.add(Published(part, self._publisher.number, (min(event_ids), max(event_ids))))
        if self.waits.places:
            self._topics_are_back(rows)
        if self.probed_topics:
            self.probed_topics.difference_update(row[2] for row in rows)
        self._count(rows)
        await self._at("committed")
        return 0.0

    async def _publish_and_take(self, publisher: Publisher, rows: Sequence[Row], part: Part, receipt: str) -> list[Row]:
        """Publish a batch. If there may be more rows, take the next ones meanwhile."""
        if len(rows) < self.pace.rows:
            await publisher.publish(rows, receipt)
            return []
        ahead: list[Row] = []

        async def take() -> None:
            known = sorted((*self.cleaner.ids(), *part.ids))
            try:
                places = self.waits.places
                ahead.extend(await self._run(self._rows.take, self.keeper.shards, self.pace.rows, known, places))
            except Exception as error:  # the next step takes rows again, and runs into the error
                logger.debug("outbox %r: nothing was taken ahead: %s", self._name, error)

        failed: list[Exception] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(take)
            try:
                await publisher.publish(rows, receipt)
            except Exception as error:  # raised below, not in an ExceptionGroup
                failed.append(error)
        if failed:
            raise failed[0]
        return ahead

    def _count(self, rows: Sequence[Row]) -> None:
        metrics = self._metrics
        metrics.published += len(rows)
        metrics.batches += 1
        metrics.add_lags([row[7] for row in rows], int(self.keeper.now_ms()))
        sample = rows[::16]
        self.pace.published(len(rows), sum([len(row[4] or b"") for row in sample]) * len(rows) // len(sample))

    async def _refused(self, rows: Sequence[Row], ids: list[int], cause: EventBusError) -> float:
        """Handle rows that the log refuses: wait for their topics, or quarantine them. Return the seconds to wait."""
        self._ahead = []  # taken before it was known which topics must wait
        if not is_unknown_topic(cause):
            await self._check()
        if may_end(cause) and not self._is_late([row for row in rows if row[0] in frozenset(ids)], cause):
            return 0.0
        if is_unknown_topic(cause):
            await self._check()
        count = await self._filters.quarantine_refused(ids, reason_of(cause))
        self.refused += count
        logger.error("outbox %r: %d event(s) were quarantined, the log refuses them: %s", self._name, count, cause)
        self.keeper.look_at = 0.0  # the key is blocked from here on
        return 0.0

    async def _check(self) -> None:
        """Abort the open transaction and commit a receipt without rows. If the log refuses that, no row is at fault."""
        await self._take_up()
        assert self._publisher is not None
        self._is_up = False
        await self._publisher.check()
        self._is_up = True

    # topics that wait ------------------------------------------------------------------------------------------------

    def _is_late(self, rows: Sequence[Row], cause: EventBusError) -> bool:
        """Let the topics of these rows wait. Return True if the rows have already waited too long."""
        now = self.timers.current_time()
        late: list[bool] = []
        for place in dict.fromkeys(self._place(row, cause) for row in rows):
            if place not in self.waits.places:
                logger.warning(
                    "outbox %r: events for %s wait, and all others are published. They are tried again until the log "
                    "accepts them: %s", self._name, shown(place), cause,
                )  # fmt: skip
            late.append(self.waits.refused(place, f"events for {shown(place)} wait: {cause}", now))
            if late[-1]:
                self.waits.again_at_once(place)
        return all(late)

    def _place(self, row: Row, cause: EventBusError) -> Place:
        """Return what is missing: the topic, or the partition that the row names."""
        topic, partition = row[2], row[6]
        known = place_of(row, self.waits.places)
        if known is not None:
            return known
        assert self._publisher is not None
        is_partition = is_unknown_topic(cause) and self._publisher.has_topic(topic)
        return (topic, partition) if is_partition else (topic, None)

    async def _try_again(self, place: Place) -> float:
        """Publish the first event of a waiting place. When that succeeds, all others follow as usual."""
        now = self.timers.current_time()
        limit = self._settings.batch_size if self.waits.is_late(place, now) else 1
        taken = self._run(self._rows.take, self.keeper.shards, limit, self.cleaner.ids(), (), place)
        rows = await taken
        if not rows:  # dropped or quarantined meanwhile
            self.waits.over(place)
            return 0.0
        return await self._publish(rows)

    def _topics_are_back(self, rows: Sequence[Row]) -> None:
        before = set(self.waits.places)
        self.waits.published(rows)
        for place in before.difference(self.waits.places):
            logger.warning("outbox %r: the log accepts events for %s again", self._name, shown(place))
            self._is_quiet = False


def cut(rows: list[Row], before: Sequence[Part]) -> tuple[list[Row], Part, str] | None:
    """Return as many rows as a receipt can list after the parts ``before``, with their part and the receipt.

    Returns None if not even a single row fits.
    """
    while True:
        part = part_of([row[0] for row in rows], [row[1] for row in rows])
        receipt = encode([*before, part])
        if fits(receipt):
            return rows, part, receipt
        if len(rows) == 1:
            return None
        rows = rows[: len(rows) // 2]
