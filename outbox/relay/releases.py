"""Put quarantined events back when the reason for which the log refused them has ended."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from eventbus.errors import EventBusError, TopicAuthorizationFailed, UnknownTopicOrPartition
from outbox.quarantine import Choice, Quarantine
from outbox.relay.topic_waits import Place, shown

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from eventbus.backends.base import Backend
    from outbox.database import Database
    from outbox.relay.metrics import RelayMetrics
    from outbox.relay.work import Work
    from outbox.tables import OutboxTables

logger = logging.getLogger("outbox")

_LOOK_SECONDS = 10.0
_PROBE_SECONDS = 60.0
"""How long to wait for the event that tests an ACL to be published."""
_MISSING, _DENIED = (f"{error.__name__}: " for error in (UnknownTopicOrPartition, TopicAuthorizationFailed))
"""Prefixes of the reasons that may end; see `outbox.relay.poison.reason_of`."""


class _Refused(NamedTuple):
    """Quarantined events with the same reason, for a topic or a partition, without the events that wait for them."""

    topic: str
    partition: int | None
    reason: str
    """The beginning of the reason; "" for a reason that does not end."""
    events: int

    @property
    def choice(self) -> Choice:
        return Choice(topic=self.topic, reason=self.reason)


class Releases:
    """Runs next to the steps of a relay. Several relays may check at once, but a row is put back only once."""

    def __init__(
        self, work: Work, backend: Backend, database: Database, tables: OutboxTables, metrics: RelayMetrics
    ) -> None:
        self._work = work
        self._backend = backend
        self._database = database
        self._tables = tables
        self._metrics = metrics
        self._quarantine = Quarantine(database, tables)
        self._probed: dict[str, float] = {}
        """When an event was put back to test a missing ACL, by topic. Only publishing an event can test an ACL."""

    async def run(self) -> None:
        """Check periodically until cancelled."""
        while True:
            try:
                await self.look()
            except Exception as error:  # a database that does not answer is reported by the relay's steps
                logger.debug("outbox %r: what is quarantined is not known: %s", self._tables.name, error)
            await self._work.timers.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Count the quarantined events, and put back those that the log may accept now."""
        refused = await self._database.run(_read, self._tables)
        self._work.refused = sum(kind.events for kind in refused)
        waiting = {topic for topic, _ in self._work.waits.places}
        for topic in [
            topic for topic in self._probed if topic in waiting or topic not in {kind.topic for kind in refused}
        ]:
            del self._probed[topic]
        for kind in refused:
            if kind.reason and kind.topic not in waiting and await self._may_be_over(kind):
                await self._put_back(kind)

    async def _may_be_over(self, refused: _Refused) -> bool:
        try:
            [topic] = await self._backend.describe_topics([refused.topic])
        except EventBusError:  # it is still missing, or the log does not answer
            return False
        return refused.partition is None or refused.partition < len(topic.partitions)

    async def _put_back(self, refused: _Refused) -> None:
        choice, topic, now = refused.choice, refused.topic, self._work.timers.current_time()
        if refused.reason == _DENIED and topic in self._probed:
            # If the event belongs to a shard of another relay, that relay publishes it and this one does not notice.
            if topic in self._work.probed_topics and now - self._probed[topic] < _PROBE_SECONDS:
                return
        elif refused.reason == _DENIED:
            self._probed[topic] = now
            self._work.probed_topics.add(topic)
            first = await self._quarantine.events(choice, limit=1)
            choice = Choice(ids=tuple(event.id for event in first))
        released = await self._quarantine.retry(choice)
        self._metrics.put_back += released.refused + released.behind
        self._work.refused -= released.refused
        self._work.look_again()
        place: Place = (topic, refused.partition)
        logger.warning(
            "outbox %r: %d quarantined event(s) for %s are put back, and %d that waited for them: the topic exists",
            self._tables.name, released.refused, shown(place), released.behind,
        )  # fmt: skip


def _read(connection: Connection, tables: OutboxTables) -> list[_Refused]:
    from sqlalchemy import case, func, literal, select

    failed = tables.failed.c
    kinds = [(failed.reason.startswith(kind, autoescape=True), literal(kind)) for kind in (_MISSING, _DENIED)]
    columns = (failed.topic, failed.partition, case(*kinds, else_=literal("")).label("kind"))
    each = select(*columns).where(failed.is_behind == 0).subquery()
    query = select(*each.c, func.count()).group_by(*each.c).order_by(each.c.topic)
    return [_Refused(*row) for row in connection.execute(query)]
