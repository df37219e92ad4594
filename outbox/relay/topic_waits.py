"""Topics that the log refuses now and may accept later: they do not exist yet, or their ACL is missing.

Events for such a topic stay in the outbox. Batches are taken without them, so the events of other topics are published.
The whole topic waits, so that no event overtakes another of its key, and is tried again with its first event. After
``patience_ms`` the events are quarantined, because each batch would have to read past more and more of them. The relay
puts them back when the topic exists.

An explicit partition that does not exist waits alone: the other events of its topic are published. Kafka orders events
within a partition only, so no event overtakes another of its partition.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from eventbus.client.handling.waits import Wait
from eventbus.errors import KafkaError

if TYPE_CHECKING:
    from outbox.relay.rows import Row

Place = tuple[str, "int | None"]
"""A topic and one of its partitions. None means the whole topic."""

_MAY_END = frozenset((3, 29))
"""Codes of: unknown topic or partition, topic authorization failed."""
_FIRST_SECONDS, _LONGEST_SECONDS = 0.25, 10.0
"""Shortest and longest pause between attempts. A topic is often created within a second of its first event."""


def may_end(error: BaseException) -> bool:
    """Return True if the log refuses a topic for a reason that ends without a change of the event."""
    return isinstance(error, KafkaError) and error.code in _MAY_END


def place_of(row: Row, places: Collection[Place]) -> Place | None:
    """Return which of the places the row goes to, if it goes to one of them."""
    topic, partition = row[2], row[6]
    for place in ((topic, None), (topic, partition)):
        if place in places:
            return place
    return None


def shown(place: Place) -> str:
    topic, partition = place
    return f"topic {topic!r}" if partition is None else f"partition {partition} of topic {topic!r}"


class TopicWaits:
    """The places that one relay cannot publish to now."""

    def __init__(self, patience_ms: int) -> None:
        self._patience_seconds = patience_ms / 1000
        self._waits: dict[Place, Wait] = {}
        self._pauses: dict[Place, float] = {}
        self._next: dict[Place, float] = {}
        """When to try each place again. All times are in seconds on the relay's timers."""

    @property
    def places(self) -> Collection[Place]:
        return self._waits.keys()

    def refused(self, place: Place, reason: str, now: float) -> bool:
        """Count a try that failed. Return True if the place has waited for longer than the relay's patience."""
        wait = self._waits.get(place)
        self._waits[place] = Wait(reason, now) if wait is None else wait.again(reason)
        pause = self._pauses.get(place, 0.0)
        self._pauses[place] = pause = min(2 * pause, _LONGEST_SECONDS) or _FIRST_SECONDS
        self._next[place] = now + pause
        return self.is_late(place, now)

    def is_late(self, place: Place, now: float) -> bool:
        """Return True if the place has waited for longer than the relay's patience."""
        wait = self._waits.get(place)
        return wait is not None and now - wait.since >= self._patience_seconds

    def published(self, rows: Iterable[Row]) -> None:
        """Record that the log has stored these rows, so that their places no longer wait."""
        for place in {place for row in rows if (place := place_of(row, self.places)) is not None}:
            self.over(place)

    def over(self, place: Place) -> None:
        """Remove a place that no longer waits, or has no more rows."""
        for of_places in (self._waits, self._pauses, self._next):
            of_places.pop(place, None)

    def due(self, now: float) -> Place | None:
        """Return the place that has to be tried again now, if there is one."""
        place = min(self._next, key=lambda place: self._next[place], default=None)
        return place if place is not None and self._next[place] <= now else None

    def again_at_once(self, place: Place) -> None:
        """Try the place again in the next step, because more of its rows have waited too long."""
        if place in self._next:
            self._next[place] = 0.0

    def next_at(self) -> float | None:
        return min(self._next.values(), default=None)

    def text(self, now: float) -> str:
        """Return what is waited for, since when and how often it was tried, or ""."""
        if not self._waits:
            return ""
        first = next(iter(self._waits.values())).text(now)
        others = len(self._waits) - 1
        return first + (f", and {others} more {'topics' if others > 1 else 'topic'}" if others else "")
