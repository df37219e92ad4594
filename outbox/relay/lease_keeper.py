"""A relay's lease: enter a slot, keep it, observe other relays, and share shards among them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.backends.clock import Timers
from eventbus.types import TopicPartition
from outbox.relay import hosts
from outbox.relay.batches import identity_and_batches
from outbox.relay.metrics import RelayMetrics
from outbox.relay.publishing import (
    create_receipts_topic,
    fence,
    peek_receipts,
    read_receipt,
    receipts_topic,
    transactional_id,
)
from outbox.relay.receipts import Receipt
from outbox.relay.rows import Rows
from outbox.relay.shard_leases import Head, Lease, LeaseLost, LeaseView, OtherRelay, ShardLeases, fair_change
from outbox.relay.transactions import Transactions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy.engine import Connection

    from eventbus import EventBus
    from outbox.tables import OutboxTables

logger = logging.getLogger("outbox")

LOOKS_IN_A_LEASE = 2
"""How often a relay renews its lease, and looks for other relays, within one lease."""
_RESTLESS_LOOKS = 8
"""After relays came or went, the next looks all ask for free shards."""
_CALM_LOOKS = 16
"""Otherwise only one look out of this many does."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a relay."""

    exactly_once: bool
    blocks: bool
    """True if a refused row blocks later rows with its key."""
    batch_size: int
    lease_ms: int
    poll_ms: tuple[int, int]
    patience_ms: int
    """How long events for a missing topic wait in the outbox before they are quarantined."""


class LeaseKeeper:
    """The lease of one relay. It does not publish, but makes sure that nothing of a shard is in flight when it is
    released.
    """

    def __init__(
        self,
        bus: EventBus,
        transactions: Transactions,
        tables: OutboxTables,
        rows: Rows,
        slots: ShardLeases,
        settings: Settings,
        metrics: RelayMetrics,
        timers: Timers,
        at: Callable[[str], Any],
        settle: Callable[[Receipt, OtherRelay], Awaitable[object]],
        clean: Callable[[], Awaitable[object]],
    ) -> None:
        """``settle`` deletes rows that a dead relay has published, ``clean`` those that this relay has published."""
        self._bus = bus
        self._run = transactions.run
        self._name = tables.name
        self._tables = tables
        self._shard_count = tables.shard_count
        self._rows = rows
        self._leases = slots
        self._settings = settings
        self._metrics = metrics
        self._timers = timers
        self._at = at
        self._settle = settle
        self._clean = clean
        self.identity = ""
        """Id of the database's outbox."""
        self.lease: Lease | None = None
        self.is_lost = False
        """True if a renewal failed because another relay holds the slot."""
        self.shards: frozenset[int] = frozenset()
        self.blocked: Mapping[Head, int] = {}
        """The lowest id of a refused row for each blocked topic and key."""
        self.look_at = 0.0
        """When to look for other relays next, by the timers."""
        self._renewed_at = 0.0
        self._ahead_ms = 0.0
        """The database's clock minus that of the timers."""
        self._relays_seen: frozenset[str] = frozenset()
        self._restless = 0
        self._calm = 0

    @property
    def look_seconds(self) -> float:
        """Seconds between two looks, and two renewals."""
        return self._settings.lease_ms / 1000 / LOOKS_IN_A_LEASE

    @property
    def has_to_look(self) -> bool:
        return self._timers.current_time() >= self.look_at

    def now_ms(self) -> float:
        """Return the database's clock, extrapolated from the last look. It is never ahead."""
        return self._timers.current_time() * 1000 + self._ahead_ms

    def held(self) -> Lease:
        """Return the lease, which must exist."""
        assert self.lease is not None
        return self.lease

    # the slot --------------------------------------------------------------------------------------------------------

    async def enter(self) -> bool:
        """Take a slot. Return False if all are held. Raises DatabaseMismatch, before any other relay is fenced."""
        from sqlalchemy.exc import IntegrityError

        log_id, receipts = "", {}
        if self._settings.exactly_once:
            log_id = await create_receipts_topic(self._bus, receipts_topic(self._name))
            identity, recorded = await self._run(identity_and_batches, self._tables)
            if identity is not None:
                # The receipts are read before the database that they are compared with. A relay that publishes in
                # between records each batch before a receipt omits it.
                receipts = await peek_receipts(self._bus, self._name, identity, len(recorded))
        enter = (self._enter, log_id, receipts)
        try:
            lease = await self._run(*enter)
        except IntegrityError:  # another relay took the slot first
            lease = await self._run(*enter)
        if lease is None:
            return False
        hosts.lives(lease.token)
        self.lease, self.is_lost = lease, False
        self._renewed_at = self._timers.current_time()
        self._metrics.slot = lease.slot
        await self._at("entered")
        return True

    def _enter(self, connection: Connection, log_id: str, receipts: Mapping[int, Receipt]) -> Lease | None:
        self._rows.check(connection, receipts)
        self.identity = self._leases.identity(connection, log_id, hosts.is_gone)
        return self._leases.enter(connection, hosts.this_host(), hosts.is_gone)

    async def confirm(self, log_id: str) -> None:
        """Renew the lease right after taking the transactional id, whose epoch may be used only from now on. Raises
        LeaseLost.

        The shards that the relay may publish are read in the same transaction.
        """
        self.shards = await self._run(self._leases.renew_and_read, self.held(), self._metrics.published, log_id)
        self._metrics.shards = len(self.shards)
        self._renewed_at = self.look_at = self._timers.current_time()
        await self._at("renewed")

    async def renew(self) -> None:
        """Renew the lease while a batch is in flight, unless it was renewed recently."""
        lease = self.lease
        if lease is None or self._timers.current_time() - self._renewed_at < self.look_seconds:
            return
        try:
            await self._run(self._leases.renew, lease, self._metrics.published)
        except LeaseLost:
            self.is_lost = self.lease is lease
        else:
            self._renewed_at = self._timers.current_time()

    async def leave(self) -> None:
        """Release the slot. Only with nothing in flight, and every published row deleted."""
        await self._run(self._leases.leave, self.held())
        await self._at("left")

    def forget(self) -> None:
        """Drop the lease locally: another relay holds the slot, or it was released."""
        if self.lease is not None:
            hosts.ends(self.lease.token)
        self.lease = None
        self.is_lost = False
        self.shards = frozenset()
        self._metrics.slot, self._metrics.shards = None, 0

    # other relays
    # -------------------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Renew the lease, read other relays and blocked keys, and share the shards."""
        view = await self._run(self._renew_and_look, self.held())
        self._renewed_at = at = self._timers.current_time()
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
        self.look_at = at + self._until_look(view)

    def _see(self, view: LeaseView) -> None:
        self.blocked = view.heads if self._settings.blocks else {}

    def _renew_and_look(self, connection: Connection, lease: Lease) -> LeaseView:
        self._leases.renew(connection, lease, self._metrics.published)
        view = self._leases.look(connection)
        self._leases.shorten(connection, view.now_ms, view.relays)
        return view

    def _live(self, view: LeaseView) -> frozenset[str]:
        own = self.held().token
        return frozenset(
            one.token
            for one in view.relays
            if one.token == own or (one.expires_at_ms > view.now_ms and not hosts.is_gone(one))
        )

    def _until_look(self, view: LeaseView) -> float:
        """Return the usual interval, or less if a lease may end before."""
        ends = [one.expires_at_ms - view.now_ms for one in view.relays if one.expires_at_ms > view.now_ms]
        return min(self.look_seconds, (min(ends, default=0) + 10) / 1000) if ends else self.look_seconds

    async def _share(self, relays: int) -> None:
        """Take free shards, or release shards above the fair share."""
        lease, total = self.held(), self._shard_count
        change = fair_change(self.shards, (), relays, total)
        if change.release:
            await self._clean()
            await self._run(self._leases.release, lease, change.release)
            self.shards -= frozenset(change.release)
            await self._at("released")
        elif len(self.shards) * relays < total or (self._asks_for_free() and len(self.shards) < total):
            free = await self._run(self._leases.free_shards)
            change = fair_change(self.shards, free, relays, total)
            if change.take:
                self.shards = await self._run(self._leases.take, lease, change.take)
                self._see(await self._run(self._leases.look))  # their previous owner may have quarantined rows since
                await self._at("shared")
        self._metrics.shards = len(self.shards)

    def _asks_for_free(self) -> bool:
        """Return whether to query for free shards. Not at every look, because usually nothing changes for days."""
        if self._restless:
            self._restless -= 1
            return True
        self._calm = (self._calm + 1) % _CALM_LOOKS
        return not self._calm

    async def _reap(self, gone: OtherRelay) -> None:
        """Fence a relay whose lease has expired, delete the rows that it has published, and free its shards."""
        logger.warning("outbox %r: the relay %s of slot %d is gone", self._name, gone.host, gone.slot)
        if self._settings.exactly_once:
            group = transactional_id(self._name, self.identity, gone.slot)
            await fence(self._bus, group)
            receipt = await read_receipt(self._bus, group, TopicPartition(receipts_topic(self._name), 0))
            await self._settle(receipt, gone)
        if await self._run(self._leases.remove, gone):
            self._metrics.reaped += 1
            self._restless = _RESTLESS_LOOKS
            await self._at("reaped")
