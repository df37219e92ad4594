"""Topics of a handler that were deleted, or created again with fewer partitions, while it runs."""

from __future__ import annotations

import logging
from typing import Any

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.client.handling.failure_policy import RunningPolicy
from eventbus.client.handling.handlers import Handler
from eventbus.errors import EventBusError, UnknownTopicOrPartition

logger = logging.getLogger("eventbus.runner")


class MissingTopics:
    """Looks for the topics of one handler. Its retry and dead-letter topics are created again, others are reported."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        backend: Backend,
        consumer: BackendConsumer,
        failure_policy: RunningPolicy | None,
    ) -> None:
        self._handler = handler
        self._backend = backend
        self._consumer = consumer
        self._failure_policy = failure_policy

    async def look(self, *, is_stuck: bool) -> str:
        """Return what is missing and what to do, or "".

        ``is_stuck``: something waits, or commits fail. Else topics are described only if this member reads none of
        their partitions, so nothing is asked of the log while all is well.
        """
        assigned = {partition.topic for partition in self._consumer.assignment()}
        failure_policy = self._failure_policy
        if failure_policy is not None and (is_stuck or not assigned.issuperset(failure_policy.topics)):
            try:
                await failure_policy.restore()
            except EventBusError as error:
                return f"its retry or dead-letter topic cannot be created again: {error}"
        for topic in self._handler.spec.topics:
            if topic not in assigned:
                try:
                    await self._backend.describe_topics([topic])
                except UnknownTopicOrPartition:
                    return f"topic {topic!r}, which it reads, does not exist: eventbus topics create {topic}"
                except EventBusError as error:
                    logger.debug("handler %r: topic %r is not known: %s", self._handler.__name__, topic, error)
        return ""
