"""Slots, which relays lease, and shards, which belong to slots. All times are those of the database.

A relay publishes the rows of its slot's shards, under the slot's transactional id. The log keeps other relays from
publishing them too: a relay that takes a slot, or reassigns its shards, first fences that id. Therefore

- **whenever a shard belongs to slot X, every earlier owner was fenced, or released it with nothing in flight;**
- a relay that has taken its transactional id (again) renews its lease before it takes a row (`renew`);
- a lease is only removed in the state it was in when its holder was fenced (`remove`): a lease renewed since then
  belongs to a live relay.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from eventbus.errors import ConfigError, EventBusError
from outbox.schema import mismatch

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection, CursorResult

    from outbox.tables import OutboxTables

logger = logging.getLogger("outbox")

MOST_LEASE_MS = 600_000
"""The longest ``lease_ms`` of any relay."""
Now = Callable[[str], str]
"""Returns the SQL for the database's clock in milliseconds since the epoch, by name of the dialect."""
Head = tuple[str, "bytes | str | None"]
"""Topic and key of a quarantined row that blocks later rows."""


class LeaseLost(EventBusError):
    """Another relay holds the slot. Drop everything, and enter again."""

    retriable = True


class Lease(msgspec.Struct, frozen=True):
    """A slot with the token that proves ownership."""

    slot: int
    token: str


class OtherRelay(msgspec.Struct, frozen=True):
    """A relay's row in the database."""

    slot: int
    token: str
    host: str
    expires_at_ms: int


class LeaseView(msgspec.Struct, frozen=True):
    """The state of all relays, as of one query."""

    now_ms: int
    relays: tuple[OtherRelay, ...]
    heads: Mapping[Head, int]
    """The lowest id of a refused row for each blocked topic and key."""


class Change(msgspec.Struct, frozen=True):
    """Shards to release, and shards to take."""

    release: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


IsGone = Callable[[OtherRelay], bool]
"""Returns whether a relay is known to be dead although its lease has not expired."""


def fair_change(mine: Collection[int], free: Iterable[int], relays: int, shards: int) -> Change:
    """Return the change that brings a relay closer to its fair share, which it never exceeds."""
    share = -(-shards // max(relays, 1))
    if len(mine) > share:
        return Change(release=tuple(sorted(mine)[share:]))
    return Change(take=tuple(sorted(free)[: share - len(mine)]))


class ShardLeases:
    """The SQL statements for slots and shards of one outbox."""

    def __init__(self, tables: OutboxTables, lease_ms: int, dialect: str, now: Now) -> None:
        self._tables = tables
        self._dialect = dialect
        self._relays = tables.relays
        self._shards = tables.shards
        self._lease_ms = lease_ms
        self._now = now

    @property
    def now(self) -> ColumnElement[int]:
        """The SQL expression for the database's clock."""
        from sqlalchemy import BigInteger, literal_column

        return literal_column(self._now(self._dialect), BigInteger)

    # entering and leaving --------------------------------------------------------------------------------------------

    def identity(self, connection: Connection, log_id: str, is_gone: IsGone) -> str:
        """Return the id of this database's outbox.

        ``log_id`` is the id of the log that this relay publishes to, or "" if it does not matter. Raises ConfigError
        for tables that do not match this program, and while another relay publishes the outbox to another log.
        """
        from sqlalchemy import select

        meta = self._tables.meta
        found = dict(connection.execute(select(meta.c.name, meta.c.value)).all())
        problem = mismatch(found, self._tables)
        if problem is not None:
            raise ConfigError(problem)
        identity = found.get("id")
        if identity is None:
            identity = secrets.token_hex(6)
            connection.execute(meta.insert(), {"name": "id", "value": identity})
        if log_id:
            self._agree_on(connection, log_id, found.get("log"), is_gone)
        return identity

    def alive(self, connection: Connection, is_gone: IsGone) -> list[OtherRelay]:
        """Return the relays that may still publish."""
        now_ms, others = self._others(connection)
        # A lease further ahead was written by a wrong clock. A live relay soon renews it with the right time.
        return [each for each in others if 0 < each.expires_at_ms - now_ms <= MOST_LEASE_MS and not is_gone(each)]

    def _agree_on(self, connection: Connection, log_id: str, earlier_log_id: str | None, is_gone: IsGone) -> None:
        """Record ``log_id`` as the log that the outbox is published to, unless a relay of the earlier log is alive.

        Two services whose outboxes have the default name in the same database share rows and shards. If their logs
        differ, each relay would publish events of the other service, and could not fence that service's relay in its
        own log.
        """
        name, meta = self._tables.name, self._tables.meta
        if earlier_log_id is None:
            connection.execute(meta.insert(), {"name": "log", "value": log_id})
            return
        # Even if nothing changes, the row stays locked until this relay has entered. A relay of another log that starts
        # at the same moment waits here, and then finds this relay alive.
        as_read = (meta.c.name == "log", meta.c.value == earlier_log_id)
        if not _count(connection, meta.update().where(*as_read).values(value=log_id)):
            raise LeaseLost(f"outbox {name!r}: a relay of another log has entered at the same moment")
        if earlier_log_id == log_id:
            return
        alive = self.alive(connection, is_gone)
        if alive:
            raise ConfigError(
                f"the outbox {name!r} is published to another log by the relay {alive[0].host}. Which log "
                "an event reaches would be chance. Give each service a separate outbox, Outbox(engine, "
                'name="billing_outbox"); to move this outbox to another log, stop its relays first'
            )
        logger.warning("outbox %r: its events were published to another log until now", name)

    def _follow(self, connection: Connection, log_id: str) -> None:
        """Record the log of a relay that holds the lease: the log was recreated, or failed over.

        Without that, relays that start later would be refused for as long as this relay lives.
        """
        meta = self._tables.meta
        other = (meta.c.name == "log", meta.c.value != log_id)
        if _count(connection, meta.update().where(*other).values(value=log_id)):
            logger.warning(
                "outbox %r: its log is another one than before: deleted and created again, perhaps", self._tables.name
            )

    def enter(self, connection: Connection, host: str, is_gone: IsGone) -> Lease | None:
        """Take the lowest free slot, or return None if all are held.

        Raises the database's IntegrityError if another relay was faster. Try again then.
        """
        from sqlalchemy import insert

        relays = self._relays
        now_ms, others = self._others(connection)
        by_slot = {one.slot: one for one in others}
        token = secrets.token_hex(16)
        now = self.now
        values: dict[str, Any] = {
            "token": token,
            "host": host,
            "expires_at_ms": now + self._lease_ms,
            "started_at_ms": now,
            "published": 0,
            "seen_at_ms": now,
        }
        for slot in range(self._tables.shard_count):
            holder = by_slot.get(slot)
            if holder is None:
                connection.execute(insert(relays).values(slot=slot, **values))
                return Lease(slot, token)
            if (holder.expires_at_ms <= now_ms or is_gone(holder)) and _count(
                connection, relays.update().where(*self._as_seen(holder)).values(**values)
            ):
                return Lease(slot, token)
        self.shorten(connection, now_ms, others)
        return None

    def leave(self, connection: Connection, lease: Lease) -> None:
        """Release the slot and its shards. Only with nothing in flight, and every published row deleted."""
        relays = self._relays
        mine = (relays.c.slot == lease.slot, relays.c.token == lease.token)
        if _count(connection, relays.delete().where(*mine)):
            self._free(connection, lease.slot)

    # while it lives --------------------------------------------------------------------------------------------------

    def renew(self, connection: Connection, lease: Lease, published: int) -> None:
        """Renew the lease. Raises LeaseLost."""
        now = self.now
        self._hold(
            connection,
            lease,
            {"expires_at_ms": now + self._lease_ms, "seen_at_ms": now, "published": published},
        )

    def renew_and_read(self, connection: Connection, lease: Lease, published: int, log_id: str) -> frozenset[int]:
        """Renew the lease and return the slot's shards, which may be published until the next call. Raises LeaseLost.

        ``log_id`` is the id of the log that the relay publishes to from now on, or "" if it does not matter.
        """
        self.renew(connection, lease, published)
        if log_id:
            self._follow(connection, log_id)
        return self._mine(connection, lease)

    def guard(self, connection: Connection, lease: Lease) -> None:
        """Verify the lease at the start of a transaction that changes unpublished rows. Raises LeaseLost."""
        now = self.now
        self._hold(connection, lease, {"seen_at_ms": now}, self._relays.c.expires_at_ms > now)

    def _hold(self, connection: Connection, lease: Lease, values: dict[str, Any], *more: Any) -> None:
        relays = self._relays
        mine = (relays.c.slot == lease.slot, relays.c.token == lease.token, *more)
        if not _count(connection, relays.update().where(*mine).values(**values)):
            raise LeaseLost(f"outbox {self._tables.name!r}: slot {lease.slot} is another relay's now")

    def look(self, connection: Connection) -> LeaseView:
        """Read the relays and the blocked keys in one query."""
        from sqlalchemy import BigInteger, cast, literal, null, select, union_all

        relays, failed = self._relays, self._tables.failed
        now = self.now
        nothing = cast(null(), failed.c.key.type)
        found = connection.execute(
            union_all(
                select(
                    relays.c.slot,
                    relays.c.expires_at_ms,
                    relays.c.token,
                    relays.c.host.label("name"),
                    nothing.label("key"),
                    now.label("now_ms"),
                ),
                select(
                    literal(-1),
                    failed.c.id,
                    literal(""),
                    failed.c.topic,
                    failed.c.key,
                    cast(literal(0), BigInteger),
                ).where(failed.c.is_behind == 0, failed.c.key.is_not(None)),
            )
        )
        others: list[OtherRelay] = []
        heads: dict[Head, int] = {}
        now_ms = 0
        for slot, number, token, name, key, at_ms in found:
            if slot >= 0:
                others.append(OtherRelay(slot, token, name, number))
                now_ms = at_ms
            else:
                head = (name, key)
                heads[head] = min(number, heads.get(head, number))
        return LeaseView(now_ms, tuple(others), heads)

    def shorten(self, connection: Connection, now_ms: int, others: Iterable[OtherRelay]) -> None:
        """Shorten leases that end later than any lease can, because they were written by a clock that was wrong.

        The database's clock was set back since then. A live relay is not affected, because it renews its lease. The
        slot and shards of a dead relay would be held for as long as the clock was ahead, perhaps for years.
        """
        for relay in others:
            if relay.expires_at_ms - now_ms <= MOST_LEASE_MS:
                continue
            until = {"expires_at_ms": self.now + self._lease_ms}
            if _count(connection, self._relays.update().where(*self._as_seen(relay)).values(**until)):
                logger.warning(
                    "outbox %r: the lease of the relay %s of slot %d was written by a clock that was wrong. It ends in "
                    "%d s, and no lease is that long. It ends in %d s instead, unless the relay renews it. Check the "
                    "clock of the database.",
                    self._tables.name, relay.host, relay.slot, (relay.expires_at_ms - now_ms) // 1000,
                    self._lease_ms // 1000,
                )  # fmt: skip

    def free_shards(self, connection: Connection) -> list[int]:
        """Return the shards without an owner.

        A slot that has shards but no relay, because its row was deleted, gets a row with an expired lease. It is then
        reaped like any other.
        """
        from sqlalchemy import insert, select

        relays, shards = self._relays, self._shards
        both = shards.outerjoin(relays, relays.c.slot == shards.c.slot)
        query = select(shards.c.shard, shards.c.slot).select_from(both).where(relays.c.slot.is_(None))
        found = list(connection.execute(query))
        for slot in sorted({slot for _, slot in found if slot is not None}):
            unknown = {"token": secrets.token_hex(16), "host": "(its row was deleted)", "expires_at_ms": 0}
            values = {"slot": slot, **unknown, "started_at_ms": 0, "published": 0, "seen_at_ms": 0}
            connection.execute(insert(relays), values)
        return [shard for shard, slot in found if slot is None]

    def take(self, connection: Connection, lease: Lease, wanted: Collection[int]) -> frozenset[int]:
        """Take shards that are still free. Return all shards of the slot. Raises LeaseLost."""
        shards = self._shards
        self.guard(connection, lease)
        free = (shards.c.slot.is_(None), shards.c.shard.in_(list(wanted)))
        connection.execute(shards.update().where(*free).values(slot=lease.slot))
        return self._mine(connection, lease)

    def release(self, connection: Connection, lease: Lease, unwanted: Collection[int]) -> None:
        """Release shards. Only with nothing in flight, and every published row deleted. Raises LeaseLost."""
        shards = self._shards
        self.guard(connection, lease)
        ours = (shards.c.slot == lease.slot, shards.c.shard.in_(list(unwanted)))
        connection.execute(shards.update().where(*ours).values(slot=None))

    # dead relays
    # --------------------------------------------------------------------------------------------------------

    def lock_gone(self, connection: Connection, gone: OtherRelay) -> bool:
        """Lock the slot of a dead relay for this transaction. Return False if it has changed since it was seen."""
        relays = self._relays
        same = {"seen_at_ms": relays.c.seen_at_ms}
        return bool(_count(connection, relays.update().where(*self._as_seen(gone)).values(**same)))

    def remove(self, connection: Connection, gone: OtherRelay) -> bool:
        """Take a slot and its shards from a relay that was fenced and whose receipt is settled.

        Returns False if the relay has renewed its lease since it was seen, so it is alive.
        """
        if not _count(connection, self._relays.delete().where(*self._as_seen(gone))):
            return False
        self._free(connection, gone.slot)
        return True

    def _as_seen(self, one: OtherRelay) -> tuple[Any, ...]:
        relays = self._relays.c
        return (relays.slot == one.slot, relays.token == one.token, relays.expires_at_ms == one.expires_at_ms)

    def _free(self, connection: Connection, slot: int) -> None:
        connection.execute(self._shards.update().where(self._shards.c.slot == slot).values(slot=None))

    def _mine(self, connection: Connection, lease: Lease) -> frozenset[int]:
        from sqlalchemy import select

        return frozenset(connection.scalars(select(self._shards.c.shard).where(self._shards.c.slot == lease.slot)))

    def _others(self, connection: Connection) -> tuple[int, list[OtherRelay]]:
        from sqlalchemy import select

        relays = self._relays.c
        now_ms: int = connection.execute(select(self.now)).scalar_one()
        found = connection.execute(select(relays.slot, relays.token, relays.host, relays.expires_at_ms))
        return now_ms, [OtherRelay(*one) for one in found]


def _count(connection: Connection, statement: Any) -> int:
    """Execute a statement and return the number of rows it changed."""
    return cast("CursorResult[Any]", connection.execute(statement)).rowcount
