"""How many dead letters there are, for the metrics of a bus."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from dlq.dead_letters import DeadLetters
from dlq.retry_topics import WaitingRecords
from dlq.selection import STATUSES, DeadLetterTopic
from eventbus.client.metrics import Sample
from eventbus.errors import ConfigError, EventBusError

if TYPE_CHECKING:
    from eventbus import EventBus

logger = logging.getLogger("eventbus.dlq")


class DeadLetterMetrics:
    """``bus.include(DeadLetterMetrics())``: dead letters by topic and by what was done about them, in `bus.metrics`,
    and the records that wait for their next try, of all groups of the log.

    A part of a bus that looks every ``interval_seconds``, and reads only what has come since: one service of a log
    needs it. ``topics`` as `DeadLetters` has them. Raises ConfigError for an interval of less than a second.
    """

    def __init__(self, topics: str | Sequence[str] | None = None, *, interval_seconds: float = 30) -> None:
        if interval_seconds < 1:
            raise ConfigError(f"DeadLetterMetrics(interval_seconds={interval_seconds}): it is 1 at least")
        self._topics = topics
        self._interval_seconds = interval_seconds
        self._seen: list[DeadLetterTopic] = []
        self._waiting: list[WaitingRecords] = []

    async def start(self, bus: EventBus) -> None:
        """As a part of a bus."""
        letters, timers = DeadLetters(bus, self._topics), bus.context.backend.timers

        async def look() -> None:
            while True:
                try:
                    self._seen = await letters.topics()
                    self._waiting = await letters.waiting()
                except EventBusError as error:  # it is looked again
                    logger.debug("how many dead letters there are is not known: %s", error)
                await timers.sleep(self._interval_seconds)

        bus.context.start_soon(look)

    async def aclose(self) -> None:
        """As a part of a bus."""
        self._seen, self._waiting = [], []

    def samples(self) -> Iterator[Sample]:
        """As of the last look."""
        yield from samples_of(self._seen, self._waiting)


def samples_of(topics: Sequence[DeadLetterTopic], waiting: Sequence[WaitingRecords] = ()) -> Iterator[Sample]:
    """Yield the metrics of what one look has found."""
    said = "Dead letters in the topic, by what was done about them, as of the last look."
    for topic in topics:
        for status in STATUSES:
            labels = {"topic": topic.name, "status": status}
            yield Sample("eventbus_dead_letters", labels, topic.statuses.get(status, 0), "gauge", said)
    said = "When the oldest dead letter failed that nobody has dealt with."
    for topic in topics:
        if topic.oldest_open_ms is not None:
            failed_at = topic.oldest_open_ms / 1000
            yield Sample(
                "eventbus_dead_letters_oldest_open_timestamp_seconds", {"topic": topic.name}, failed_at, "gauge", said
            )
    said = "Records of the group that wait in the topic for their next try, as of the last look."
    for one in waiting:
        yield Sample("eventbus_retry_topic_waiting_records", _labels(one), one.count, "gauge", said)
    said = "When the first of these records is due. Its group does not handle it if that was long ago."
    for one in waiting:
        if one.next_due_ms is not None:
            due = one.next_due_ms / 1000
            yield Sample("eventbus_retry_topic_next_due_timestamp_seconds", _labels(one), due, "gauge", said)


def _labels(one: WaitingRecords) -> dict[str, str]:
    return {"topic": one.topic, "group": one.group}
