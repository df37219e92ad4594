"""Monitor an outbox for alarms: how many events wait, for how long, and for which commit."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eventbus.client.metrics import Sample
from eventbus.format import format_duration
from outbox.sequence import restarted
from outbox.status import Backlog, Stall, read_backlog, read_stall, read_status

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from eventbus.backends.clock import Timers
    from outbox.database import Database
    from outbox.tables import OutboxTables

logger = logging.getLogger("outbox")

_FIRST_SECONDS = 5.0
_LOOK_SECONDS = 30.0
"""Often enough for alarms and plots, and nearly free for an idle database."""
_COUNTED = 10_000
_LATE_MS = 60_000
"""An event that waits for longer, or a writing transaction open for longer, is worth an alarm."""
_SILENT_MS = 30_000
"""A live relay sends two heartbeats in each lease, which is 9 s by default."""
_GAUGES = {
    "backlog_events": "Events that wait to be published.",
    "refused_events": "Events that the log has refused, and that wait for an operator.",
    "oldest_age_seconds": "Age of the oldest event that waits.",
    "stall_seconds": "For how long the oldest open transaction has held back what it has written.",
    "oldest_transaction_seconds": "Age of the oldest open transaction of the database.",
}


class Seen(msgspec.Struct, frozen=True):
    """The result of one check."""

    backlog: Backlog
    stall: Stall
    silent: str = ""
    """Relays that hold shards but were not seen for long. Only filled if events wait for long."""
    restarted: str = ""
    """Warning about event ids that have restarted (see `outbox.sequence`), or ""."""


class Watch:
    """Monitors a whole outbox, whichever relays publish it."""

    def __init__(self, database: Database, tables: OutboxTables, timers: Timers) -> None:
        self._database = database
        self._tables = tables
        self._timers = timers
        self.seen: Seen | None = None
        """The result of the last check, or None."""

    async def run(self) -> None:
        """Check periodically until cancelled. A database that does not answer is reported by the relay."""
        await self._timers.sleep(_FIRST_SECONDS)
        while True:
            await self.look()
            await self._timers.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Check once and store the result in `seen`."""
        try:
            self.seen = await self._database.run(_see, self._tables)
        except Exception as error:  # the next check tries again
            logger.debug("outbox %r: its backlog is not known: %s", self._tables.name, error)

    def trouble(self) -> str:
        """Return the most urgent problem in one line, or ""."""
        if self.seen is None:
            return ""
        if self.seen.restarted:
            return self.seen.restarted
        backlog, writer = self.seen.backlog, self.seen.stall.writer
        if writer is not None and writer.age_ms > _LATE_MS:
            return f"what {writer.who} has written waits for its commit since {format_duration(writer.age_ms)}"
        if backlog.oldest_age_ms is not None and backlog.oldest_age_ms > _LATE_MS:
            about = "" if backlog.is_exact else "about "
            waits = f"{about}{backlog.count:,} events wait, the oldest for {format_duration(backlog.oldest_age_ms)}"
            return f"{waits}. {self.seen.silent}" if self.seen.silent else waits
        return ""

    def details(self) -> dict[str, Any]:
        """Return details for the health of the relay."""
        if self.seen is None:
            return {}
        backlog, stall = self.seen.backlog, self.seen.stall
        return {
            "backlog": backlog.count,
            "oldest_age_ms": backlog.oldest_age_ms,
            "stall_ms": 0 if stall.writer is None else stall.writer.age_ms,
        }

    def samples(self, outbox: str) -> Iterator[Sample]:
        """Return gauges for the metrics of the bus, from the last check. ``outbox`` is their label."""
        if self.seen is not None:
            yield from samples_of(outbox, self.seen)


def samples_of(outbox: str, seen: Seen) -> Iterator[Sample]:
    """Yield the gauges of one check."""
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
    """Describe relays that may be dead. Other relays take their shards only when the lease ends."""
    relays = read_status(connection, tables).relays
    silent = [relay for relay in relays if relay.is_live and relay.shards and relay.seen_age_ms > _SILENT_MS]
    return ", ".join(
        f"{len(relay.shards)} shards belong to the relay {relay.host}, last seen {format_duration(relay.seen_age_ms)} "
        "ago: others take them when its lease ends"
        for relay in silent
    )
