"""Offsets in a database: the partitions of a handler with ``tx=`` begin at the offsets stored there."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from eventbus.backends.base import Backend, BackendConsumer
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.failure_policy import RunningPolicy
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.offset_commits import OffsetCommits
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.waits import Wait
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import OffsetAndMetadata, TopicPartition
from eventbus.units_of_work import OpenUnits, StoredOffset, UnitsOfWork

logger = logging.getLogger("eventbus.runner")

_AWAY_SECONDS = 0.5
"""How long to wait before brokers that do not answer are asked again."""
_NOTE = re.compile(r"(?:.* )?db=(\d{1,19})")


class StoredPlaces:
    """The stored offsets of one handler, which take precedence over its group's offsets in the log.

    A record is handled when its database transaction is committed; the commit in the log comes later, or never. A
    partition without a stored offset begins at the group's offset, so ``tx=`` may be added to a handler at any time.

    The group's offset may be higher: records that were filtered, skipped or quarantined finish in the log only. So each
    commit in the log notes the offset that the database had then. If the database still has it, the group's offset is
    right. Otherwise this is an older copy of the database, and records after its offset are handled again.
    """

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        backend: Backend,
        consumer: BackendConsumer,
        dispatch: Dispatch,
        commits: OffsetCommits,
        failure_policy: RunningPolicy | None,
    ) -> None:
        tx: UnitsOfWork = handler.spec.tx
        signature = handler.signature
        assert signature.unit_name is not None
        self._handler = handler
        self._group = group
        self._timers = backend.timers
        self._consumer = consumer
        self._commits = commits
        self._failure_policy = failure_policy
        self.waits: dict[TopicPartition, Wait] = {}
        """Partitions whose first offset is looked up, and what they wait for."""
        self._units: OpenUnits = tx.open(handler.__name__, group, signature.unit_name, signature.unit)
        if failure_policy is not None:
            self._units.retried_from(failure_policy.recovery.topic_id_of)
        dispatch.in_units(self._units)

    async def start(self) -> None:
        """Make the tables where they are missing. Raises ConfigError, and what the database raises."""
        await self._units.start()

    def stop(self) -> None:
        """Wait for no database any more."""
        self._units.stop()

    async def passed(self, driver: PartitionDriver) -> None:
        """Note in the database how far the log has committed a source partition."""
        partition = driver.topic_partition
        if self._failure_policy is None or not self._failure_policy.is_retry(partition.topic):
            await self._units.passed(partition, driver.work.committed)

    def waiting_for(self) -> Mapping[TopicPartition, str]:
        """Return the partitions whose next record waits for the database, each with the reason."""
        return self._units.waiting_for()

    def note_of(self, partition: TopicPartition) -> Callable[[], str] | None:
        """Return a function for the note of a commit: an offset that the database has reached or passed."""
        if self._failure_policy is not None and self._failure_policy.is_retry(partition.topic):
            return None
        return partial(self._note, partition)

    def _note(self, partition: TopicPartition) -> str:
        reached = self._units.reached(partition)
        return "" if reached is None else f"db={reached}"

    async def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        """Before the first record of them is read. Raises ConfigError for an offset beyond the log's end."""
        failure_policy = self._failure_policy
        ours = [one for one in partitions if failure_policy is None or not failure_policy.is_retry(one.topic)]
        if not ours:
            return
        wait = Wait("its database has not answered where it begins", self._timers.current_time())
        self.waits = dict.fromkeys(ours, wait)
        try:
            stored = await self._units.stored(ours)
            topic_ids, ends, committed = await self._in_the_log(ours, wait)
        finally:
            self.waits = {}
        held = set(self._consumer.assignment())
        ours = [partition for partition in ours if partition in held]  # the group took the others away meanwhile
        self._check_topics(ours, stored, topic_ids)
        self._units.assigned(topic_ids)
        for partition in ours:
            offset = stored[partition].next_offset if partition in stored else None
            self._begin(partition, offset, ends, committed.get(partition))
        if self._commits.elsewhere:
            self._commits.due()

    async def _in_the_log(
        self, partitions: Sequence[TopicPartition], wait: Wait
    ) -> tuple[dict[str, str], dict[TopicPartition, int], dict[TopicPartition, OffsetAndMetadata]]:
        """Return the topics' ids, where the partitions end, and what the group has committed of them."""
        while True:
            try:
                topic_ids = await self._consumer.topic_ids({partition.topic for partition in partitions})
                ends = await self._consumer.end_offsets(partitions)
                return topic_ids, ends, await self._consumer.committed(partitions)
            except EventBusError as error:
                if not error.retriable:
                    raise
                # Without another try they would begin where the group is.
                wait.again(f"the log does not answer where it ends: {error}")
                await self._timers.sleep(_AWAY_SECONDS)

    def _check_topics(
        self,
        partitions: Sequence[TopicPartition],
        stored: Mapping[TopicPartition, StoredOffset],
        topic_ids: Mapping[str, str],
    ) -> None:
        """Raise ConfigError if an offset was stored for another topic with the name of a topic that is read."""
        others = [
            partition
            for partition in partitions
            if partition in stored and stored[partition].is_of_another(topic_ids.get(partition.topic, ""))
        ]
        if not others:
            return
        raise ConfigError(
            f"Handler {self._handler.__name__!r} does not begin, because its database has offsets of another topic "
            f"{others[0].topic!r}. The topic was deleted and created again, or this is another log, so the stored "
            "offsets do not refer to its records. To begin where the group is in this log, delete them: "
            f"await Inbox(...).forget({self._group!r}, {', '.join(map(repr, others))})"
        )

    def _begin(
        self,
        partition: TopicPartition,
        offset: int | None,
        ends: Mapping[TopicPartition, int],
        known: OffsetAndMetadata | None,
    ) -> None:
        name, found = self._handler.__name__, None if known is None else _NOTE.fullmatch(known.metadata)
        noted = None if found is None else int(found[1])
        if offset is None:
            if noted is not None:
                logger.warning(
                    "handler %r: its database has no offset of %s, and had one when its group was at %s: if this is a "
                    "new database, reset the group to where it is to begin", name, partition, known and known.offset,
                )  # fmt: skip
            return
        end = ends.get(partition, offset)
        if offset > end:
            raise ConfigError(
                f"handler {name!r}: the database says that {partition} is handled up to offset "
                f"{offset}, and the log ends at {end}: the topic was created again, or the log is an older copy. Going "
                "on would skip new records as already handled. To start over: await Inbox(...).forget("
                f"{self._group!r}, {partition!r})"
            )
        if known is not None and known.offset > offset:
            if noted is not None and noted <= offset:
                offset = known.offset
            else:
                logger.warning(
                    "handler %r: %s begins at offset %d, as its database says; the group in the log is at %d",
                    name, partition, offset, known.offset,
                )  # fmt: skip
                # What was set aside in between waits in the retry topic as well.
                self._units.doubt(partition, known.offset)
        elif known is None or known.offset < offset:
            self._commits.elsewhere[partition] = offset
        self._consumer.seek(partition, offset)


def places_of(
    handler: Handler[Any, Any],
    group: str,
    backend: Backend,
    consumer: BackendConsumer,
    dispatch: Dispatch,
    commits: OffsetCommits,
    failure_policy: RunningPolicy | None,
) -> StoredPlaces | None:
    """None for a handler without ``tx=``."""
    if handler.spec.tx is None:
        return None
    return StoredPlaces(handler, group, backend, consumer, dispatch, commits, failure_policy)
