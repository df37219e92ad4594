"""The embedded consumer: positions, fetches and long polls on the broker. Its group membership is a `Membership`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import anyio

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.engine import Engine
from eventbus.backends.membership import GiveUp, Membership, Sight
from eventbus.backends.reading import Reading, check_partition, no_start, no_start_again
from eventbus.backends.wake import Wake
from eventbus.errors import (
    CorruptRecord,
    EventBusError,
    KafkaError,
    OffsetOutOfRange,
    StorageError,
    UnstableOffsetCommit,
)
from eventbus.records import fetched_records
from eventbus.topic_patterns import matches
from eventbus.types import FetchedRecords, GroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("eventbus.consumer")


class EmbeddedConsumer(Reading):
    """The consumer of an embedded log, see `BackendConsumer`."""

    def __init__(self, engine: Engine, config: ConsumerConfig) -> None:
        super().__init__(config)
        self._engine = engine
        self._wanted: set[TopicPartition] = set()
        """The manually assigned partitions."""
        self._stale = True
        engine.topic_listeners.append(self._topics_changed)
        self._member: Membership | None = None
        """Its membership of the group that it subscribes with."""
        self._known: dict[str, Sight] = {}
        """The topics at the time of the subscription: later topics and partitions are read from their beginning."""
        self._held: dict[TopicPartition, str] = {}
        """The partitions being read, each with its topic's id, which changes if the topic is deleted and created
        again."""
        self._unplaced: dict[TopicPartition, None] = {}
        """Partitions whose start is not known yet: an open transaction commits an offset there."""
        self._waits_for_offsets: TopicPartition | None = None
        """The partition of committed offsets that is watched meanwhile."""
        self._paused: set[TopicPartition] = set()
        self._ready: dict[TopicPartition, None] = {}
        """Partitions that may have records past their position; a dict for its order, so that none starves."""
        self._in_hand: list[tuple[FetchedRecords, int]] = []
        """Fetched records that were not returned yet, with their size in bytes; those of revoked partitions are
        removed."""
        self._wake = Wake()

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        self._check_subscribes(pattern)
        for topic in topics:
            self._engine.partition_count(topic)
        self._topics, self._pattern = set(topics), pattern
        group = self._config.group
        if group is None:
            for topic_partition in list(self._held):
                self._drop(topic_partition)
        elif self._member is None:
            self._member = Membership(self._engine, self._config, group, self._wake.set, self._lost)
            self._engine.add_member(self._member)
        self._know(self._subscribed())
        self._refresh()
        member = self._member
        if member is not None:
            member.poll_begins()
            try:
                await self._drive(member)
            finally:
                member.poll_ends()
        self._place()

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_assigns(bool(self._topics) or self._pattern is not None)
        wanted = list(partitions)
        for partition in wanted:
            check_partition(partition, self._engine.partition_count(partition.topic))
        self._wanted = set(wanted)
        self._know({topic for topic, _ in wanted})
        self._refresh()
        self._place()

    def _know(self, topics: set[str]) -> None:
        """Remember these topics as they are now, or as they were when they were first subscribed to."""
        self._known = {topic: self._known.get(topic, self._engine.sight(topic)) for topic in topics}
        self._stale = True

    def assignment(self) -> list[TopicPartition]:
        self._refresh()
        return sorted(self._held)

    def subscription(self) -> list[str]:
        return sorted(self._subscribed())

    def _subscribed(self) -> set[str]:
        """Return the existing topics among those subscribed to."""
        broker = self._engine.broker
        topics = {topic for topic in self._topics if broker.has_topic(topic)}
        if self._pattern is not None:
            topics |= {topic for topic in broker.list_topics() if matches(self._pattern, topic)}
        return topics

    def _refresh(self) -> None:
        """Add new topics and partitions, drop topics that were deleted or created again. Cheap if nothing changed."""
        if not self._stale:
            return
        self._stale = False
        broker = self._engine.broker
        for topic_partition, topic_id in list(self._held.items()):
            if broker.topic_id(topic_partition.topic) != topic_id:
                self._drop(topic_partition)
                if self._member is not None:
                    self._member.forget(topic_partition)
        # The group decides who reads what. This member only reports its topics.
        if self._member is not None:
            self._member.subscribe(self._topics | self._subscribed())
            self._member.topics_changed()
            return  # the group decides who reads what
        if self._manual:
            wanted = {tp for tp in self._wanted if tp.partition < broker.partitions_of(tp.topic)}
        else:
            wanted = {TopicPartition(t, p) for t in self._subscribed() for p in range(broker.partitions_of(t))}
        for topic_partition in self._held.keys() - wanted:
            self._drop(topic_partition)
        for topic_partition in sorted(wanted - self._held.keys()):
            self._take(topic_partition)

    def _topics_changed(self) -> None:
        self._stale = True
        self._wake.set()

    def _take(self, topic_partition: TopicPartition) -> None:
        if topic_partition in self._held:
            return  # already done, by a poll that was cancelled before it was complete
        self._held[topic_partition] = self._engine.broker.topic_id(topic_partition.topic)
        self._unplaced[topic_partition] = None
        # Registered before the position is known. An append in between only causes one fetch too many.
        self._engine.listen(topic_partition, self._on_advance)

    def _drop(self, topic_partition: TopicPartition) -> None:
        if self._held.pop(topic_partition, None) is None:
            return
        self._positions.pop(topic_partition, None)
        self._passed.discard(topic_partition)
        self._unplaced.pop(topic_partition, None)
        self._ready.pop(topic_partition, None)
        self._paused.discard(topic_partition)
        self._in_hand = [entry for entry in self._in_hand if (entry[0].topic, entry[0].partition) != topic_partition]
        self._engine.unlisten(topic_partition, self._on_advance)
        self.on_revoked(topic_partition)
        self._wake.set()  # a call of `positions` may wait for it

    # the group -------------------------------------------------------------------------------------------------------

    async def _drive(self, member: Membership) -> None:
        """Do the group work that can be done now. If it is cancelled, the next fetch continues."""
        try:
            while (step := member.advance()) is not None:
                if isinstance(step, GiveUp):
                    await self._give_up(member, step)
                else:
                    for topic_partition in step.partitions:
                        self._take(topic_partition)
                    self._place()
                    try:
                        await self.on_assigned(step.partitions)
                    except Exception:  # raised by the listener; the partitions are taken nevertheless
                        member.taken(step)
                        raise
                    member.taken(step)
            if member.is_settled:
                self.on_settled()
        finally:
            self._engine.deadline_changed()

    async def _give_up(self, member: Membership, step: GiveUp) -> None:
        try:
            await self.on_revoking(step.partitions)
        except Exception:  # raised by the listener; the group does not wait for another try
            self._gave_up(member, step)
            raise
        self._gave_up(member, step)

    def _gave_up(self, member: Membership, step: GiveUp) -> None:
        for topic_partition in step.partitions:
            self._drop(topic_partition)
        member.given_up(step)

    def _lost(self, partitions: list[TopicPartition]) -> None:
        self._lost_place = True
        for topic_partition in partitions:
            self._drop(topic_partition)

    def group_metadata(self) -> GroupMetadata:
        if self._member is not None:
            return self._member.metadata
        return GroupMetadata(self._check_group())

    def passed(self) -> dict[TopicPartition, int]:
        if not self._passed:
            return {}
        in_hand = {TopicPartition(records.topic, records.partition) for records, _ in self._in_hand}
        # Offsets of a partition with records in hand are reported after those records were returned.
        ready = self._passed - in_hand
        self._passed &= in_hand
        return {partition: self._positions[partition] for partition in ready}

    @property
    def waiting_for(self) -> Mapping[TopicPartition, str]:
        return {}

    def polled(self) -> bool:
        member = self._member
        if member is None:
            return False
        if self._stale:
            self._refresh()
        member.polled()
        return member.is_waited_for()

    # where to begin --------------------------------------------------------------------------------------------------

    def _place(self, wanted: TopicPartition | None = None, *, is_reading: bool = False) -> None:
        """Determine the start of new partitions, or of the partition ``wanted``.

        Partitions held by an open transaction are tried again later, paused partitions when they are resumed. When all
        others are placed, raises NoCommittedOffset with ``start="none"``, until a position is set by a seek. A
        partition whose storage fails does not keep a consumer from starting: its error is raised only with
        ``is_reading``.
        """
        failed: EventBusError | None = None
        for topic_partition in list(self._unplaced) if wanted is None else [wanted]:
            if wanted is None and topic_partition in self._paused:
                continue
            try:
                self._set_position(topic_partition, self._starting_offset(topic_partition))
            except UnstableOffsetCommit:
                continue
            except EventBusError as error:
                error.topic_partition = topic_partition
                if is_reading or wanted is not None or not isinstance(error, (CorruptRecord, StorageError)):
                    failed = failed or error
        self._listen_to_offsets()
        if failed is not None:
            raise failed

    def _set_position(self, topic_partition: TopicPartition, offset: int) -> None:
        self._positions[topic_partition] = offset
        self._passed.discard(topic_partition)  # offsets before a sought position were not read
        self._unplaced.pop(topic_partition, None)
        self._on_advance(topic_partition)

    def _listen_to_offsets(self) -> None:
        """Watch the partition of the group's offsets: the marker that ends the transaction moves it."""
        listened = self._waits_for_offsets
        if self._unplaced and listened is None and self._config.group is not None:
            self._waits_for_offsets = self._engine.groups.partition_of(self._config.group)
            self._engine.listen(self._waits_for_offsets, self._on_offsets)
        elif listened is not None and not self._unplaced:
            self._waits_for_offsets = None
            self._engine.unlisten(listened, self._on_offsets)

    def _on_offsets(self, topic_partition: TopicPartition) -> None:
        self._wake.set()

    def _starting_offset(self, topic_partition: TopicPartition) -> int:
        group = self._config.group
        if group is not None:
            found = self._engine.groups.fetch_offsets(
                group, [topic_partition], require_stable=bool(self._config.isolation)
            )
            committed = found.get(topic_partition)
            if committed is not None:
                return committed.offset
        topic_id, count = self._known.get(topic_partition.topic, ("", 0))
        is_recreated = topic_id not in ("", self._held[topic_partition])
        if is_recreated and self._config.start == "none":
            raise no_start_again(topic_partition)
        is_new = topic_id != self._held[topic_partition] or topic_partition.partition >= count
        if is_new and not (is_recreated and self._config.start == "by_duration"):
            # It was created while this consumer ran: all of it is new, whatever ``start`` is for old records.
            return self._engine.broker.list_offsets(topic_partition, EARLIEST).offset
        return self._reset_offset(topic_partition)

    def _reset_offset(self, topic_partition: TopicPartition) -> int:
        start = self._config.start
        list_offsets = self._engine.broker.list_offsets
        match start:
            case "none":
                raise no_start(self._config.group, topic_partition)
            case "by_duration":
                since_ms = max(self._engine.clock() - self._config.start_duration_ms, 0)
                found = list_offsets(topic_partition, since_ms, self._config.isolation)
                if found.offset >= 0:
                    return found.offset
                at = LATEST
            case _:
                at = EARLIEST if start == "earliest" else LATEST
        return list_offsets(topic_partition, at, self._config.isolation).offset

    # reading ---------------------------------------------------------------------------------------------------------

    def _on_advance(self, topic_partition: TopicPartition) -> None:
        self._ready[topic_partition] = None
        if topic_partition not in self._paused:
            self._wake.set()
            self.on_readable(topic_partition)

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        wait_ms = self._config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
        member = self._member
        if member is not None:
            self._lost_place = False
            member.poll_begins()
        deadline = -1.0
        has_passed = False
        timers = self._engine.timers
        try:
            if self._ready:  # otherwise the event loop turns while this waits for a record
                await anyio.lowlevel.checkpoint()
            while True:
                if self._stale:
                    self._refresh()
                if member is not None and not member.is_settled:
                    await self._drive(member)
                passed = self._collect()
                if self._in_hand and sum([size for _, size in self._in_hand]) >= self._config.fetch_min_bytes:
                    break
                if passed and not self._in_hand:
                    has_passed = True
                    await anyio.lowlevel.checkpoint()
                    continue  # there may already be records after the offsets that were passed
                if has_passed and not self._in_hand:
                    break  # early, with nothing: a position has passed offsets without readable records (KAFKA-12980)
                now = timers.current_time()
                if deadline < 0:
                    deadline = now + wait_ms / 1000
                self._wake.clear()  # no await since the check: nothing that has arrived is missed
                if not await self._wake.wait(deadline - now, timers):
                    break
        except BaseException:
            for records, _ in reversed(self._in_hand):  # cancelled: the records are fetched again
                self._positions[TopicPartition(records.topic, records.partition)] = records.offsets[0]
            self._in_hand = []
            raise
        finally:
            if member is not None:
                self._engine.due_by(member.poll_ends())
        in_hand, self._in_hand = self._in_hand, []
        return [records for records, _ in in_hand]

    def _collect(self) -> bool:
        """Fetch once from each ready partition, up to about the fetch size of one partition in total.

        Return True if a partition passed only aborted or control records.
        """
        has_passed = False
        if self._unplaced:
            self._place(is_reading=True)
        budget_bytes = self._config.max_partition_fetch_bytes
        for topic_partition in list(self._ready):
            if topic_partition in self._paused:
                continue
            if topic_partition not in self._positions:
                del self._ready[topic_partition]  # it has moved, but its start is not known
                continue
            try:
                records, size_bytes, has_more = self._fetch_partition(topic_partition, budget_bytes)
            except EventBusError as error:
                # Move it to the end of the queue, so that the others are read while it fails.
                self._ready.pop(topic_partition, None)
                self._ready[topic_partition] = None
                if self._in_hand:
                    break  # return the good records first; the error occurs again
                error.topic_partition = topic_partition
                raise
            # Move it to the end of the queue: a busy partition must not starve the others.
            self._ready.pop(topic_partition, None)
            if has_more:
                self._ready[topic_partition] = None
            if records is None:
                continue
            if records.offsets:
                self._in_hand.append((records, size_bytes))
            else:
                has_passed = True
                self._passed.add(topic_partition)
            budget_bytes -= size_bytes
            if budget_bytes <= 0:
                break
        return has_passed

    def _fetch_partition(
        self, topic_partition: TopicPartition, max_bytes: int
    ) -> tuple[FetchedRecords | None, int, bool]:
        """Return the next records, their size, and whether there are more after them."""
        position = self._positions[topic_partition]
        broker = self._engine.broker
        try:
            data = broker.fetch(topic_partition, position, max_bytes, self._config.isolation)
        except OffsetOutOfRange as error:
            self._positions[topic_partition] = fresh = self._reset_after(topic_partition, position, error)
            data = broker.fetch(topic_partition, fresh, max_bytes, self._config.isolation)
            position = fresh
        if not data.records:
            return None, 0, False
        topic, partition = topic_partition
        records = fetched_records(
            data.records, topic, partition, position, check_crcs=self._config.check_crcs, aborted=data.aborted
        )
        self._positions[topic_partition] = records.next_offset
        end = data.last_stable_offset if self._config.isolation else data.high_watermark
        return records, len(data.records), records.next_offset < end

    def _reset_after(self, topic_partition: TopicPartition, position: int, error: OffsetOutOfRange) -> int:
        """Return where to go on after a position that retention passed."""
        if self._config.start == "none":
            raise error
        fresh = self._reset_offset(topic_partition)
        self._log_reset(topic_partition, position, fresh, f" ({error})")
        return fresh

    # positions and commits -------------------------------------------------------------------------------------------

    async def _placed(self, partition: TopicPartition) -> None:
        """Return when the start of the partition is known, or when it is revoked."""
        while partition in self._unplaced:
            self._place(partition)
            if partition in self._unplaced:
                self._wake.clear()
                await self._wake.wait()

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_seek(partition, offset)
        self._set_position(partition, offset)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._check_held(partition)
            self._paused.add(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._check_held(partition)
            if partition in self._paused:
                self._paused.discard(partition)
                self._on_advance(partition)

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self._check_group("commit needs a group: open the consumer")
        engine = self._engine
        group = self.group_metadata()
        if self._stale:  # otherwise the topics are those that it reads
            offsets = {partition: offset for partition, offset in offsets.items() if not self._is_recreated(partition)}
        if not offsets:
            if self._lost_place:  # the partitions were lost with it: refuse like any commit that comes too late
                engine.groups.heartbeat(group, engine.now_ms())
            return
        try:
            stored = engine.groups.commit_offsets(group, dict(offsets), engine.now_ms())
        except KafkaError as error:
            self._commit_refused(group, error)
            raise
        if engine.waits_for_flush and stored.last_offset >= 0:
            await engine.flushes.wait_flushed(stored.topic_partition, stored.last_offset)
        for error in stored.errors.values():
            self._commit_refused(group, error)
            raise error

    def _is_recreated(self, partition: TopicPartition) -> bool:
        """True if the topic was deleted and created again, and `fetch` has not noticed yet.

        The offset belongs to deleted records. If it were committed, as many records of the new topic would be skipped.
        """
        broker, topic_id = self._engine.broker, self._held.get(partition)
        return (
            topic_id is not None and broker.has_topic(partition.topic) and broker.topic_id(partition.topic) != topic_id
        )

    def _commit_refused(self, group: GroupMetadata, error: KafkaError) -> None:
        if self._member is not None:
            self._member.commit_refused(group, error)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._config.group is None:
            return {}
        return self._engine.groups.fetch_offsets(self._config.group, list(partitions))

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        broker = self._engine.broker
        return {tp: broker.list_offsets(tp, LATEST, self._config.isolation).offset for tp in partitions}

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        wanted = set(topics)
        return {held.topic: topic_id for held, topic_id in self._held.items() if held.topic in wanted}

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._engine.topic_listeners.remove(self._topics_changed)
        for topic_partition in list(self._held):
            self._drop(topic_partition)
        self._listen_to_offsets()
        member, self._member = self._member, None
        if member is not None:
            self._engine.remove_member(member)
            if self._engine.is_open:  # else all members are gone: the next process that opens the log removes them
                member.leave("the consumer was closed")
                self._engine.deadline_changed()
        self._wake.set()
