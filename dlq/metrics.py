"""Metrics of the dead letters and waiting retries in a bus's log."""

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
    """Add dead letters by topic and status, and records that wait for a retry, to `bus.metrics`.

    Use it as ``bus.include(DeadLetterMetrics())``. It covers all groups of the log, so one service per log needs it. It
    updates every ``interval_seconds`` and reads only what is new. ``topics`` is the same as in `DeadLetters`. Raises
    ConfigError for an interval shorter than a second.
    """

    def __init__(self, topics: str | Sequence[str] | None = None, *, interval_seconds: float = 30) -> None:
        if interval_seconds < 1:
            raise ConfigError(f"DeadLetterMetrics(interval_seconds={interval_seconds}): it is 1 at least")
        self._topics = topics
        self._interval_seconds = interval_seconds
        self._seen: list[DeadLetterTopic] = []
        self._waiting: list[WaitingRecords] = []

    async def start(self, bus: EventBus) -> None:
        """Start the background task. Called by the bus."""
        letters, timers = DeadLetters(bus, self._topics), bus.context.backend.timers

        async def look() -> None:
            while True:
                try:
                    self._seen = await letters.topics()
                    self._waiting = await letters.waiting()
                except EventBusError as error:  # the next update tries again
                    logger.debug("how many dead letters there are is not known: %s", error)
                await timers.sleep(self._interval_seconds)

        bus.context.start_soon(look)

    async def aclose(self) -> None:
        """Clear the metrics. Called by the bus."""
        self._seen, self._waiting = [], []

    def samples(self) -> Iterator[Sample]:
        """Yield the metrics of the last update."""
        yield from samples_of(self._seen, self._waiting)


def samples_of(topics: Sequence[DeadLetterTopic], waiting: Sequence[WaitingRecords] = ()) -> Iterator[Sample]:
    """Yield the metrics of these topics and waiting records."""
    text = "Dead letters in the topic by status, as of the last update."
    for topic in topics:
        for status in STATUSES:
            labels = {"topic": topic.name, "status": status}
            yield Sample("eventbus_dead_letters", labels, topic.statuses.get(status, 0), "gauge", text)
    text = "Time of the failure of the oldest dead letter that is still open."
    for topic in topics:
        if topic.oldest_open_ms is not None:
            failed_at = topic.oldest_open_ms / 1000
            yield Sample(
                "eventbus_dead_letters_oldest_open_timestamp_seconds", {"topic": topic.name}, failed_at, "gauge", text
            )
    text = "Records of the group that wait in the topic for their next try, as of the last update."
    for records in waiting:
        yield Sample("eventbus_retry_topic_waiting_records", _labels(records), records.count, "gauge", text)
    text = "Due time of the first of these records. If it is long past, the group is not handling retries."
    for records in waiting:
        if records.next_due_ms is not None:
            due = records.next_due_ms / 1000
            yield Sample("eventbus_retry_topic_next_due_timestamp_seconds", _labels(records), due, "gauge", text)


def _labels(records: WaitingRecords) -> dict[str, str]:
    return {"topic": records.topic, "group": records.group}
