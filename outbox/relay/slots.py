"""Who publishes what: slots, which are leased, and shards, which belong to slots. All times are the database's.

A relay publishes the rows of the shards of its slot, under the slot's transactional id. What keeps others from
publishing them too is the log: whoever takes a slot, or gives its shards away, fences that id first. So

- **whenever a shard's slot is X, every earlier owner was fenced, or released it with nothing in flight;**
- a relay that has taken its transactional id (again) renews its lease before it takes a row (`renew`);
- a lease is taken away only as it was when its holder was fenced (`remove`): one renewed meanwhile is alive.
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
"""By the dialect's name: SQL for the database's clock, in milliseconds since the epoch."""
Head = tuple[str, "bytes | str | None"]
"""Topic and key of a row that blocks those behind it."""


class LeaseLost(EventBusError):
    """Another relay has the slot: drop everything, and enter anew."""

    retriable = True


class Lease(msgspec.Struct, frozen=True):
    """A slot, and the proof that it is ours."""

    slot: int
    token: str


class Other(msgspec.Struct, frozen=True):
    """A relay as the database has it."""

    slot: int
    token: str
    host: str
    expires_at_ms: int


class View(msgspec.Struct, frozen=True):
    """What a relay sees when it looks."""

    now_ms: int
    relays: tuple[Other, ...]
    heads: Mapping[Head, int]
    """Of blocked keys, the lowest id of a row that failed."""


class Change(msgspec.Struct, frozen=True):
    """Shards to let go of, and shards to take."""

    release: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


IsGone = Callable[[Other], bool]
"""Whether a relay is known to be dead although its lease is not over."""


def fair_change(mine: Collection[int], free: Iterable[int], relays: int, shards: int) -> Change:
    """What brings one of ``relays`` to its fair share: at most that, whatever the others have."""
    share = -(-shards // max(relays, 1))
    if len(mine) > share:
        return Change(release=tuple(sorted(mine)[share:]))
    return Change(take=tuple(sorted(free)[: share - len(mine)]))


class Slots:
    """The SQL of it, for one outbox."""

    def __init__(self, tables: OutboxTables, lease_ms: int, dialect: str, now: Now) -> None:
        self._tables = tables
        self._dialect = dialect
        self._relays = tables.relays
        self._shards = tables.shards
        self._lease_ms = lease_ms
        self._now = now

    @property
    def now(self) -> ColumnElement[int]:
        """The database's clock, as SQL."""
        from sqlalchemy import BigInteger, literal_column

        return literal_column(self._now(self._dialect), BigInteger)

    # entering and leaving --------------------------------------------------------------------------------------------

    def identity(self, connection: Connection, log_id: str, is_gone: IsGone) -> str:
        """Return the id of this database's outbox.

        ``log_id``: of the log that this relay publishes to; empty if it does not matter. Raises ConfigError for tables
        that are not those this program means, and while another relay publishes the outbox to another log.
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

    def alive(self, connection: Connection, is_gone: IsGone) -> list[Other]:
        """Return the relays that may still publish."""
        now_ms, others = self._others(connection)
        # A lease further ahead comes from a clock that was wrong; a living relay soon renews it with a right one.
        return [one for one in others if 0 < one.expires_at_ms - now_ms <= MOST_LEASE_MS and not is_gone(one)]

    def _agree_on(self, connection: Connection, log_id: str, earlier_log_id: str | None, is_gone: IsGone) -> None:
        """Record ``log_id`` as the log that the outbox is published to, unless a relay of the earlier log is alive.

        Two services whose outboxes have the default name in one database share rows and shards. If their logs differ,
        each relay would publish events of the other service, and could not fence the other relay in its own log.
        """
        name, meta = self._tables.name, self._tables.meta
        if earlier_log_id is None:
            connection.execute(meta.insert(), {"name": "log", "value": log_id})
            return
        # Also where nothing changes: the row stays locked until this relay has entered. A relay of another log that
        # starts at the same moment waits here, and then finds this one alive.
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
        """Record the log of a relay that has the lease already: its log was deleted and created again, or failed over.

        Without that, relays that start later would be refused for as long as this one lives.
        """
        meta = self._tables.meta
        other = (meta.c.name == "log", meta.c.value != log_id)
        if _count(connection, meta.update().where(*other).values(value=log_id)):
            logger.warning(
                "outbox %r: its log is another one than before: deleted and created again, perhaps", self._tables.name
            )

    def enter(self, connection: Connection, host: str, is_gone: IsGone) -> Lease | None:
        """Take the lowest slot that nobody holds; None when all are held.

        Raises the database's IntegrityError when another relay was faster: try again.
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
        """Let go of the slot and its shards. Only with nothing in flight, and every published row deleted."""
        relays = self._relays
        mine = (relays.c.slot == lease.slot, relays.c.token == lease.token)
        if _count(connection, relays.delete().where(*mine)):
            self._free(connection, lease.slot)

    # while it lives --------------------------------------------------------------------------------------------------

    def renew(self, connection: Connection, lease: Lease, published: int) -> None:
        """The lease begins anew. Raises LeaseLost."""
        now = self.now
        self._hold(
            connection,
            lease,
            {"expires_at_ms": now + self._lease_ms, "seen_at_ms": now, "published": published},
        )

    def renew_and_read(self, connection: Connection, lease: Lease, published: int, log_id: str) -> frozenset[int]:
        """The same, and the slot's shards: what may be published from here on, until the next one. Raises LeaseLost.

        ``log_id``: of the log that the relay publishes to from now on; empty if it does not matter.
        """
        self.renew(connection, lease, published)
        if log_id:
            self._follow(connection, log_id)
        return self._mine(connection, lease)

    def guard(self, connection: Connection, lease: Lease) -> None:
        """Begin a transaction that changes rows which are not published. Raises LeaseLost where they are another's."""
        now = self.now
        self._hold(connection, lease, {"seen_at_ms": now}, self._relays.c.expires_at_ms > now)

    def _hold(self, connection: Connection, lease: Lease, values: dict[str, Any], *more: Any) -> None:
        relays = self._relays
        mine = (relays.c.slot == lease.slot, relays.c.token == lease.token, *more)
        if not _count(connection, relays.update().where(*mine).values(**values)):
            raise LeaseLost(f"outbox {self._tables.name!r}: slot {lease.slot} is another relay's now")

    def look(self, connection: Connection) -> View:
        """The relays, and the keys that are blocked: one question."""
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
        others: list[Other] = []
        heads: dict[Head, int] = {}
        now_ms = 0
        for slot, number, token, name, key, at_ms in found:
            if slot >= 0:
                others.append(Other(slot, token, name, number))
                now_ms = at_ms
            else:
                head = (name, key)
                heads[head] = min(number, heads.get(head, number))
        return View(now_ms, tuple(others), heads)

    def shorten(self, connection: Connection, now_ms: int, others: Iterable[Other]) -> None:
        """Let leases that end later than any lease may end a lease from now: the database's clock was wrong.

        Its clock was set back since they were written. Of a relay that lives nothing changes, it renews its lease. The
        slot and the shards of one that died would be held for as long as the clock was ahead, for years perhaps.
        """
        for one in others:
            if one.expires_at_ms - now_ms <= MOST_LEASE_MS:
                continue
            until = {"expires_at_ms": self.now + self._lease_ms}
            if _count(connection, self._relays.update().where(*self._as_seen(one)).values(**until)):
                logger.warning(
                    "outbox %r: the lease of the relay %s of slot %d was written by a clock that was wrong. It ends in "
                    "%d s, and no lease is that long. It ends in %d s instead, unless the relay renews it. Check the "
                    "clock of the database.",
                    self._tables.name, one.host, one.slot, (one.expires_at_ms - now_ms) // 1000,
                    self._lease_ms // 1000,
                )  # fmt: skip

    def free_shards(self, connection: Connection) -> list[int]:
        """Those of nobody.

        A slot that has shards and no relay, for somebody has deleted its row, gets one whose lease is over: then it is
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
        """Take shards that are free, as far as they still are; all that the slot has then. Raises LeaseLost."""
        shards = self._shards
        self.guard(connection, lease)
        free = (shards.c.slot.is_(None), shards.c.shard.in_(list(wanted)))
        connection.execute(shards.update().where(*free).values(slot=lease.slot))
        return self._mine(connection, lease)

    def release(self, connection: Connection, lease: Lease, unwanted: Collection[int]) -> None:
        """Let go of shards. Only with nothing in flight, and every published row deleted. Raises LeaseLost."""
        shards = self._shards
        self.guard(connection, lease)
        ours = (shards.c.slot == lease.slot, shards.c.shard.in_(list(unwanted)))
        connection.execute(shards.update().where(*ours).values(slot=None))

    # those who are gone ----------------------------------------------------------------------------------------------

    def lock_gone(self, connection: Connection, gone: Other) -> bool:
        """Keep others from taking the slot in this transaction. Return False if it is not as it was seen any more."""
        relays = self._relays
        same = {"seen_at_ms": relays.c.seen_at_ms}
        return bool(_count(connection, relays.update().where(*self._as_seen(gone)).values(**same)))

    def remove(self, connection: Connection, gone: Other) -> bool:
        """Take a slot and its shards from a relay that was fenced, and whose receipt is settled.

        False: it has renewed its lease since it was seen, and is alive.
        """
        if not _count(connection, self._relays.delete().where(*self._as_seen(gone))):
            return False
        self._free(connection, gone.slot)
        return True

    def _as_seen(self, one: Other) -> tuple[Any, ...]:
        relays = self._relays.c
        return (relays.slot == one.slot, relays.token == one.token, relays.expires_at_ms == one.expires_at_ms)

    def _free(self, connection: Connection, slot: int) -> None:
        connection.execute(self._shards.update().where(self._shards.c.slot == slot).values(slot=None))

    def _mine(self, connection: Connection, lease: Lease) -> frozenset[int]:
        from sqlalchemy import select

        return frozenset(connection.scalars(select(self._shards.c.shard).where(self._shards.c.slot == lease.slot)))

    def _others(self, connection: Connection) -> tuple[int, list[Other]]:
        from sqlalchemy import select

        relays = self._relays.c
        now_ms: int = connection.execute(select(self.now)).scalar_one()
        found = connection.execute(select(relays.slot, relays.token, relays.host, relays.expires_at_ms))
        return now_ms, [Other(*one) for one in found]


def _count(connection: Connection, statement: Any) -> int:
    """Rows that a statement has changed."""
    return cast("CursorResult[Any]", connection.execute(statement)).rowcount
