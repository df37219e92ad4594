"""What a relay looks at now and then, beside its work: how much waits, for how long, and for whose commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.client.metrics import Sample
from outbox.sequence import restarted
from outbox.status import Backlog, Stall, how_long, read_backlog, read_stall, read_status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from eventbus.backends.clock import Timers
    from outbox.database import Database
    from outbox.tables import OutboxTables

logger = logging.getLogger("outbox")

_FIRST_SECONDS = 5.0
_LOOK_SECONDS = 30.0
"""It is for alarms and plots, and costs an idle database next to nothing."""
_COUNTED = 10_000
_LATE_MS = 60_000
"""An event that has waited for longer, or a writer's transaction that is open for longer, is worth an alarm."""
_SILENT_MS = 30_000
"""A relay that is alive is seen twice in each lease, of 9 s by default."""
_GAUGES = {
    "backlog_events": "Events that wait to be published.",
    "refused_events": "Events that the log has refused, until somebody sees to them.",
    "oldest_age_seconds": "Age of the oldest event that waits.",
    "stall_seconds": "For how long the oldest open transaction has held back what it has written.",
    "oldest_transaction_seconds": "Age of the oldest open transaction of the database.",
}


class Seen(msgspec.Struct, frozen=True):
    """One look."""

    backlog: Backlog
    stall: Stall
    silent: str = ""
    """Relays that hold shards and were not seen for long, if events wait for long."""
    restarted: str = ""
    """Describes ids of events that have restarted, see `outbox.sequence`; empty if they have not."""


class Watch:
    """Of a whole outbox, whoever publishes it."""

    def __init__(self, database: Database, tables: OutboxTables, timers: Timers) -> None:
        self._database = database
        self._tables = tables
        self._timers = timers
        self.seen: Seen | None = None
        """As of the last look; None: there was none yet."""

    async def run(self) -> None:
        """Look until it is cancelled. A database that does not answer is the relay's to tell of."""
        await self._timers.sleep(_FIRST_SECONDS)
        while True:
            await self.look()
            await self._timers.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Once."""
        try:
            self.seen = await self._database.run(_see, self._tables)
        except Exception as error:  # it is only looked at, and looked at again
            logger.debug("outbox %r: its backlog is not known: %s", self._tables.name, error)

    def trouble(self) -> str:
        """What somebody should see to, in a line; "" when all is well."""
        if self.seen is None:
            return ""
        if self.seen.restarted:
            return self.seen.restarted
        backlog, writer = self.seen.backlog, self.seen.stall.writer
        if writer is not None and writer.age_ms > _LATE_MS:
            return f"what {writer.who} has written waits for its commit since {how_long(writer.age_ms)}"
        if backlog.oldest_age_ms is not None and backlog.oldest_age_ms > _LATE_MS:
            about = "" if backlog.is_exact else "about "
            waits = f"{about}{backlog.count:,} events wait, the oldest for {how_long(backlog.oldest_age_ms)}"
            return f"{waits}. {self.seen.silent}" if self.seen.silent else waits
        return ""

    def details(self) -> dict[str, Any]:
        """For the health of a part."""
        if self.seen is None:
            return {}
        backlog, stall = self.seen.backlog, self.seen.stall
        return {
            "backlog": backlog.count,
            "oldest_age_ms": backlog.oldest_age_ms,
            "stall_ms": 0 if stall.writer is None else stall.writer.age_ms,
        }

    def samples(self, outbox: str) -> Iterator[Sample]:
        """Return gauges of the outbox for the metrics of the bus, from the last look. ``outbox``: its label."""
        if self.seen is not None:
            yield from samples_of(outbox, self.seen)


def samples_of(outbox: str, seen: Seen) -> Iterator[Sample]:
    """What one look has found."""
    backlog, stall = seen.backlog, seen.stall
    values = {
        "backlog_events": backlog.count,
        "refused_events": backlog.failed,
        "oldest_age_seconds": (backlog.oldest_age_ms or 0) / 1000,
        "stall_seconds": 0 if stall.writer is None else stall.writer.age_ms / 1000,
        "oldest_transaction_seconds": 0 if stall.snapshot is None else stall.snapshot.age_ms / 1000,
    }
    for name, value in values.items():
        yield Sample(f"eventbus_outbox_{name}", {"outbox": outbox}, float(value), "gauge", _GAUGES[name])


def _see(connection: Connection, tables: OutboxTables) -> Seen:
    backlog = read_backlog(connection, tables, _COUNTED)
    is_late = backlog.oldest_age_ms is not None and backlog.oldest_age_ms > _LATE_MS
    silent = _silent(connection, tables) if is_late else ""
    return Seen(backlog, read_stall(connection, tables), silent, restarted(connection, tables))


def _silent(connection: Connection, tables: OutboxTables) -> str:
    """Describe the relays that may be dead. Other relays take their shards when the lease ends, not before."""
    relays = read_status(connection, tables).relays
    silent = [one for one in relays if one.is_live and one.shards and one.seen_age_ms > _SILENT_MS]
    return ", ".join(
        f"{len(one.shards)} shards belong to the relay {one.host}, last seen {how_long(one.seen_age_ms)} ago: others "
        "take them when its lease ends"
        for one in silent
    )
