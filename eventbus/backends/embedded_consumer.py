"""The embedded consumer: positions, fetches and long polls over the broker.

One member reads all partitions of what its group subscribes to; groups shared by several members come with the group
coordinator, and until then a second member is refused by name instead of reading everything twice.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import anyio

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.engine import Engine
from eventbus.errors import (
    ConfigError,
    EventBusError,
    GroupInUse,
    NoCommittedOffset,
    OffsetOutOfRange,
    UnknownTopicOrPartition,
)
from eventbus.records import fetched_records
from eventbus.types import FetchedRecords, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.consumer")


class EmbeddedConsumer:
    """See `BackendConsumer`."""

    def __init__(self, engine: Engine, config: ConsumerConfig) -> None:
        self._engine = engine
        self._config = config
        self._topics: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._manual = False
        self._assigned: set[TopicPartition] = set()
        self._stale = True
        engine.topic_listeners.append(self._topics_changed)
        self.on_revoked: Callable[[TopicPartition], object] = _nothing
        self._positions: dict[TopicPartition, int] = {}
        self._topic_ids: dict[TopicPartition, str] = {}
        """Which topic of that name the position belongs to: one deleted and made anew is another one."""
        self._paused: set[TopicPartition] = set()
        self._ready: dict[TopicPartition, None] = {}
        """Partitions that may hold records past their position; a dict for its order, so that none starves."""
        self._event: anyio.Event | None = None
        self._closed = False

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        if self._manual:
            raise ConfigError("this consumer has assigned partitions: use either subscribe() or assign(), not both")
        for topic in topics:
            self._engine.partition_count(topic)
        self._leave()
        self._topics = set(topics)
        self._pattern = _compile(pattern) if pattern is not None else None
        self._stale = True
        self._refresh(started=False)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        if self._topics or self._pattern is not None:
            raise ConfigError("this consumer has subscribed: use either subscribe() or assign(), not both")
        self._manual = True
        wanted = list(partitions)
        for topic, partition in wanted:
            count = self._engine.partition_count(topic)
            if not 0 <= partition < count:
                raise UnknownTopicOrPartition(
                    f"topic {topic!r} has partitions 0 to {count - 1}; there is no partition {partition}"
                )
        self._assigned = set(wanted)
        self._stale = True
        self._refresh(started=False)

    def assignment(self) -> list[TopicPartition]:
        self._refresh()
        return sorted(self._positions)

    def _refresh(self, *, started: bool = True) -> None:
        """Take up new topics and partitions, give up those deleted or made anew. Cheap when nothing changed."""
        if not self._stale:
            return
        self._stale = False
        broker = self._engine.broker
        for topic_partition, topic_id in list(self._topic_ids.items()):
            if broker.topic_id(topic_partition.topic) != topic_id:
                self._drop(topic_partition)
        if self._manual:
            wanted = {tp for tp in self._assigned if tp.partition < broker.partitions_of(tp.topic)}
        else:
            topics = {topic for topic in self._topics if broker.has_topic(topic)}
            if self._pattern is not None:
                topics |= {t for t in broker.list_topics() if not t.startswith("__") and self._pattern.fullmatch(t)}
            for topic in topics:
                self._claim(topic)
            wanted = {TopicPartition(t, p) for t in topics for p in range(broker.partitions_of(t))}
        for topic_partition in self._positions.keys() - wanted:
            self._drop(topic_partition)
        for topic_partition in sorted(wanted - self._positions.keys()):
            self._add(topic_partition, started)

    def _topics_changed(self) -> None:
        self._stale = True
        if self._event is not None:
            self._event.set()

    def _claim(self, topic: str) -> None:
        group = self._config.group
        if group is None:
            return
        holder = self._engine.members.setdefault((group, topic), self)
        if holder is not self:
            raise GroupInUse(
                f"group {group!r} already has a consumer of topic {topic!r} in this process; "
                "groups shared by several members are not part of this version: give one of them another group"
            )

    def _add(self, topic_partition: TopicPartition, started: bool) -> None:
        self._positions[topic_partition] = self._starting_offset(topic_partition, started)
        self._topic_ids[topic_partition] = self._engine.broker.topic_id(topic_partition.topic)
        self._engine.listen(topic_partition, self._on_advance)
        self._ready[topic_partition] = None

    def _drop(self, topic_partition: TopicPartition) -> None:
        self._positions.pop(topic_partition, None)
        self._topic_ids.pop(topic_partition, None)
        self._ready.pop(topic_partition, None)
        self._paused.discard(topic_partition)
        self._engine.unlisten(topic_partition, self._on_advance)
        self.on_revoked(topic_partition)

    def _starting_offset(self, topic_partition: TopicPartition, started: bool) -> int:
        if self._config.group is not None:
            committed = self._engine.broker.groups.fetch_offsets(self._config.group, [topic_partition]).get(
                topic_partition
            )
            if committed is not None:
                return committed.offset
        if started:
            # It came into being while this consumer ran: all of it is new, whatever ``start`` says of old records.
            return self._engine.broker.list_offsets(topic_partition, EARLIEST).offset
        return self._reset_offset(topic_partition)

    def _reset_offset(self, topic_partition: TopicPartition) -> int:
        start = self._config.start
        if start == "none":
            raise NoCommittedOffset(
                f'group {self._config.group!r} has no committed offset for {topic_partition} and start="none": '
                'commit one (`bus.admin.alter_group_offsets`), or use start="earliest" or "latest"'
            )
        at = EARLIEST if start == "earliest" else LATEST
        return self._engine.broker.list_offsets(topic_partition, at, self._config.isolation).offset

    # reading ---------------------------------------------------------------------------------------------------------

    def _on_advance(self, topic_partition: TopicPartition) -> None:
        self._ready[topic_partition] = None
        if self._event is not None and topic_partition not in self._paused:
            self._event.set()

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        fetched, size_bytes = self._collect()
        if fetched and size_bytes >= self._config.fetch_min_bytes:
            return fetched
        wait_ms = self._config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
        try:
            with anyio.move_on_after(wait_ms / 1000):
                while not fetched or size_bytes < self._config.fetch_min_bytes:
                    # No await between the look and this line: what arrives from here on sets the event.
                    self._event = anyio.Event()
                    await self._event.wait()
                    more, more_bytes = self._collect()
                    fetched += more
                    size_bytes += more_bytes
        except BaseException:
            for records in reversed(fetched):  # cancelled with records in hand: they are fetched again
                self._positions[TopicPartition(records.topic, records.partition)] = records.offsets[0]
            raise
        finally:
            self._event = None
        return fetched

    def _collect(self) -> tuple[list[FetchedRecords], int]:
        """One fetch from each ready partition, up to about one partition's fetch size in all."""
        self._refresh()
        budget_bytes = most_bytes = self._config.max_partition_fetch_bytes
        found: list[FetchedRecords] = []
        for topic_partition in list(self._ready):
            if topic_partition in self._paused:
                continue
            try:
                records, size_bytes = self._fetch_partition(topic_partition, budget_bytes)
            except EventBusError:
                if found:
                    break  # hand over what is good first; this one is met again
                raise
            # To the end of the line: a busy partition must not starve the others.
            self._ready.pop(topic_partition, None)
            if records is None:
                continue
            self._ready[topic_partition] = None
            if records.offsets:
                found.append(records)
            budget_bytes -= size_bytes
            if budget_bytes <= 0:
                break
        return found, most_bytes - budget_bytes

    def _fetch_partition(self, topic_partition: TopicPartition, max_bytes: int) -> tuple[FetchedRecords | None, int]:
        position = self._positions[topic_partition]
        broker = self._engine.broker
        try:
            data = broker.fetch(topic_partition, position, max_bytes, self._config.isolation)
        except OffsetOutOfRange as error:
            self._positions[topic_partition] = fresh = self._reset_after(topic_partition, position, error)
            data = broker.fetch(topic_partition, fresh, max_bytes, self._config.isolation)
            position = fresh
        if not data.records:
            return None, 0
        records = fetched_records(
            data.records, topic_partition[0], topic_partition[1], position, check_crcs=self._config.check_crcs
        )
        self._positions[topic_partition] = records.next_offset
        return records, len(data.records)

    def _reset_after(self, topic_partition: TopicPartition, position: int, error: OffsetOutOfRange) -> int:
        """Kafka's ``auto.offset.reset`` for a position that retention passed, but never in silence."""
        if self._config.start == "none":
            raise error
        fresh = self._reset_offset(topic_partition)
        logger.warning(
            "%s: offset %d is out of range (%s); reading goes on at %d, start=%r: %d offset(s) skipped",
            topic_partition, position, error, fresh, self._config.start, max(fresh - position, 0),
        )  # fmt: skip
        return fresh

    # positions and commits -------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        return self._position_of(partition)

    def _position_of(self, partition: TopicPartition) -> int:
        try:
            return self._positions[partition]
        except KeyError:
            raise ConfigError(f"{partition} is not assigned to this consumer: {self.assignment()} are") from None

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._position_of(partition)
        if offset < 0:
            raise ConfigError(
                f"seek of {partition} to {offset}: offsets are 0 or more (see seek_to_beginning, seek_to_end)"
            )
        self._positions[partition] = offset
        self._on_advance(partition)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._position_of(partition)
            self._paused.add(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._position_of(partition)
            if partition in self._paused:
                self._paused.discard(partition)
                self._on_advance(partition)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        group = self._config.group
        if group is None:
            raise ConfigError("commit needs a group: open the consumer with group=...")
        if not offsets:
            return
        engine = self._engine
        stored = engine.broker.groups.commit_offsets(group, dict(offsets), engine.clock())
        if engine.waits_for_flush and stored.last_offset >= 0:
            await engine.wait_durable(stored.topic_partition, stored.last_offset)
        for error in stored.errors.values():
            raise error

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._config.group is None:
            return {}
        return self._engine.broker.groups.fetch_offsets(self._config.group, list(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        broker = self._engine.broker
        return {tp: broker.list_offsets(tp, LATEST, self._config.isolation).offset for tp in partitions}

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._engine.topic_listeners.remove(self._topics_changed)
            self._leave()
            if self._event is not None:
                self._event.set()

    def _leave(self) -> None:
        for topic_partition in list(self._positions):
            self._drop(topic_partition)
        for claim in [claim for claim, holder in self._engine.members.items() if holder is self]:
            del self._engine.members[claim]


def _nothing(topic_partition: TopicPartition) -> None:
    """Until somebody wants to hear of revoked partitions."""


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"pattern {pattern!r} is no regular expression: {error}") from None
