"""Identify topics by their ids: librdkafka keeps its position when a topic is deleted and created again."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterable, Mapping
from logging import LoggerAdapter
from typing import TYPE_CHECKING, Any

from eventbus.errors import EventBusError
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.consumer")

_CHANGED_ID = re.compile(r".*Topic (\S+) changed id from \S+ to (\S+)$")
_VERIFICATIONS = 5
"""How often a missing topic is looked up before its records are returned."""
_VERIFICATION_PAUSE_SECONDS = 0.1


class ReportedIds:
    """A logger for a librdkafka consumer, which extracts the ids under which topics are fetched from the log lines.

    librdkafka logs "changed id" when it has a topic's first id, and before it fetches anything under another id. A
    consumer polls its log lines and its records from the same queue, so a line comes before the records it applies to.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        """``settings`` are the consumer's. The lines of ``metadata`` are logged only if ``debug`` includes it."""
        self._logger: LoggerAdapter[logging.Logger] = settings["logger"]
        self._contexts = settings.get("debug", "")
        self._ids: dict[str, str] = {}

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that replace the consumer's."""
        return {"logger": self, "debug": ",".join(filter(None, (self._contexts, "metadata")))}

    def log(self, level: int, message: object, *args: object) -> None:
        """Extract an id; called by confluent-kafka, in the thread that polls."""
        changed = _CHANGED_ID.match(str(args[-1])) if args else None
        if changed is not None:
            self._ids[changed[1]] = changed[2].replace("+", "-").replace("/", "_")
        if self._contexts or level > logging.DEBUG:
            self._logger.log(level, message, *args)

    def get(self, topic: str) -> str | None:
        """Return the id, or None if no line contained it: an older broker has none, an older librdkafka logs none."""
        return self._ids.get(topic)


class TopicIdentity:
    """The ids of the topics that a consumer reads, and the topics whose id may have changed."""

    def __init__(self, backend: KafkaBackend, reported: ReportedIds, start: str, silence_seconds: float) -> None:
        """``start``: as in `ConsumerConfig`. ``silence_seconds``: less than librdkafka's pause after a failed fetch."""
        self._backend = backend
        self._reported = reported
        self._start = start
        self._silence_seconds = silence_seconds
        self._ids: dict[str, str] = {}
        """The ids when the first partition of each topic was assigned."""
        self._compared: Mapping[str, str] = {}
        """The backend's ids at the last comparison."""
        self._identified_at: dict[str, float] = {}
        """When the id of a topic was looked up before it was read, in seconds of `time.monotonic`."""
        self._arrived_at: dict[TopicPartition, float] = {}
        """When something of a partition last arrived, in seconds of `time.monotonic`."""
        self._unverified: set[str] = set()
        """Topics of which something has arrived after a silence, so they may have been created again."""
        self._is_in_doubt = False
        self.recreated: set[TopicPartition] = set()
        """Partitions of topics that were created again, to be read from where ``start`` specifies."""

    def identify(self, partitions: Iterable[TopicPartition]) -> None:
        """Store the ids of topics before the start of their partitions is determined; runs in the thread.

        The order matters: a topic that is created again in between is noticed.
        """
        topics = {topic for topic, _ in partitions}
        try:
            self.look_up(topics)
        except EventBusError as error:  # the next refresh has them
            logger.debug("the ids of %s are not known: %s", sorted(topics), error)

    def look_up(self, topics: Collection[str]) -> None:
        """Look up unknown ids; runs in the thread."""
        unknown = set(topics) - self._ids.keys()
        if unknown:
            now = time.monotonic()
            self._ids.update(self._backend.identify(unknown))
            self._identified_at.update(dict.fromkeys(unknown, now))

    def known(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the known ids. Empty: the broker is older than 2.8, and returns zeros for every topic."""
        found = {topic: self._ids[topic] for topic in topics if topic in self._ids}
        return {topic: topic_id if topic_id.strip("A") else "" for topic, topic_id in found.items()}

    def forget(self, where: TopicPartition, *, is_last: bool) -> None:
        """Forget a revoked partition, which may be the last of its topic."""
        self.recreated.discard(where)
        self._arrived_at.pop(where, None)
        if is_last:
            self._ids.pop(where.topic, None)
            self._identified_at.pop(where.topic, None)

    # doubts ----------------------------------------------------------------------------------------------------------

    def arrived(self, partitions: Iterable[TopicPartition]) -> None:
        """Suspect topics that are fetched under an id that differs from theirs.

        If that is not known, suspect the topics of partitions of which nothing has arrived for a while: the fetch of a
        deleted topic fails, and librdkafka does not fetch the partition again for ``fetch.error.backoff.ms``.
        """
        now = time.monotonic()
        for where in partitions:
            reported = self._reported.get(where.topic)
            if reported is None:
                since = self._arrived_at.get(where, self._identified_at.get(where.topic, 0.0))
                if now - since >= self._silence_seconds:
                    self._unverified.add(where.topic)
            elif reported != self._ids.get(where.topic):
                self._unverified.add(where.topic)
            self._arrived_at[where] = now

    def doubt(self) -> None:
        """Suspect all topics, because a position was out of range."""
        self._is_in_doubt = True

    @property
    def is_unverified(self) -> bool:
        return bool(self._unverified)

    async def verify(self) -> None:
        """Look up the topics of which something has arrived after a silence."""
        topics, self._unverified = self._unverified, set()
        for _ in range(_VERIFICATIONS):
            try:
                is_missing = await self._backend.verify(topics)
            except EventBusError as error:  # the next refresh does it
                logger.debug("whether %s were created again is not known: %s", sorted(topics), error)
                return
            if not is_missing:
                return
            # The contacted broker does not know a new topic yet.
            await self._backend.timers.sleep(_VERIFICATION_PAUSE_SECONDS)

    async def end_doubt(self) -> None:
        """Look up all topics in use if a position was out of range."""
        if not self._is_in_doubt:
            return
        self._is_in_doubt = False
        try:
            await self._backend.refresh()
        except EventBusError as error:
            logger.debug("whether topics were created again is not known: %s", error)

    def find_recreated(self, held: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose topics were created again since the consumer took them up."""
        known = self._backend.known_ids
        if known is self._compared:
            return []
        self._compared = known
        found: list[TopicPartition] = []
        for topic in {topic for topic, _ in held}:
            before, now = self._ids.get(topic), known.get(topic)
            if now is None or now == before:
                continue
            self._ids[topic] = now
            if before is not None:
                found += [where for where in held if where.topic == topic]
                logger.warning(
                    "Topic %r was deleted and created again (its id was %s and is %s). It is read from where start=%r "
                    "specifies, whatever the group has committed", topic, before, now, self._start,
                )  # fmt: skip
        return sorted(found)
