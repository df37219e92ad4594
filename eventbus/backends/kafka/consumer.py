"""The event-loop side of the Kafka consumer: assignment, positions, and `fetch`. Its thread is in `poll_thread`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.lowlevel

from eventbus.backends.base import EARLIEST, LATEST, ConsumerConfig
from eventbus.backends.kafka.assignors import librdkafka_assignors
from eventbus.backends.kafka.columns import part_from
from eventbus.backends.kafka.poll_thread import Arrival, PollRequest, PollThread, Step
from eventbus.backends.kafka.prefetch_buffer import PrefetchBuffer
from eventbus.backends.kafka.start_positions import StartOffsets, StartPositions
from eventbus.backends.kafka.threads import Job, Loop
from eventbus.backends.kafka.topic_identity import ReportedIds, TopicIdentity
from eventbus.backends.reading import Reading, check_partition
from eventbus.errors import (
    EventBusError,
    KafkaError,
    UnknownMemberId,
)
from eventbus.topic_patterns import matches
from eventbus.types import FetchedRecords, GroupMetadata, IsolationLevel, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.kafka.backend import KafkaBackend

logger = logging.getLogger("eventbus.consumer")
_T = TypeVar("_T")

_MOST_IDLE_SECONDS = 1.0
"""The interval of polls while the owner has records in hand: librdkafka reports rebalances only in polls."""
_PAUSED_SECONDS = 0.05
"""How long to wait for a partition to be resumed before librdkafka is polled again while all are paused."""
_MOVING = (14, 16)
"""Errors of a broker that is becoming, or no longer is, the group's coordinator: librdkafka passes them on."""
_MOVING_SECONDS = 30.0
_NO_TOPIC = "the topic does not exist, or this user may not describe it; it is read again when it is there"
_NO_LEADER = "no broker leads the partition, because all its replicas are down; it is read again when one is back"
_KEPT_SECONDS = 1.0
"""How long after a new KIP-848 epoch librdkafka would have called back if partitions of this member moved."""
_FETCH_PAUSE_MS = 500
"""librdkafka's default for ``fetch.error.backoff.ms``, the pause after a failed fetch."""
_STABLE_SECONDS = 0.1
"""How long to wait before requesting offsets again that an open transaction holds."""


class KafkaConsumer(Reading):
    """The consumer of a Kafka cluster, see `BackendConsumer`."""

    def __init__(self, backend: KafkaBackend, config: ConsumerConfig) -> None:
        super().__init__(config)
        self._backend = backend
        self._timers = backend.timers
        settings = backend.settings
        assignors, is_cooperative = librdkafka_assignors(config.assignors)
        client_settings = settings.consumer(config, assignors)
        reported = ReportedIds(client_settings)
        client_settings |= reported.settings
        self._matched: set[str] = set()
        self._matched_in: Mapping[str, int] | None = None
        """The known topics from which `_matched` was computed: a large cluster has many, and each fetch needs it."""
        self._named: frozenset[str] = frozenset()
        """The topics that librdkafka has subscribed to for the group."""
        self._named_in: int | None = None
        """The generation in which a topic was added to them, until another begins; None: no topic was added."""
        self._is_subscribed = False
        self._start_positions = StartPositions(backend, config)
        self._held: dict[TopicPartition, None] = {}
        self._unplaced: dict[TopicPartition, str] = {}
        """Partitions held whose start is not known yet, each with the error of the last attempt."""
        pause_ms = int(client_settings.get("fetch.error.backoff.ms", _FETCH_PAUSE_MS))
        self._identity = TopicIdentity(backend, reported, config.start, 0.0009 * pause_ms)
        self._place_at = 0.0
        """When to determine their start again, in seconds of the timers."""
        self._assigned_to_client: set[TopicPartition] = set()
        """The partitions that librdkafka reads."""
        self._sought: dict[TopicPartition, int] = {}
        """New positions of these partitions that were not passed to librdkafka yet."""
        self._unchecked: set[TopicPartition] = set()
        """Positions set by the user that may be out of range."""
        self._errors: deque[EventBusError] = deque()
        self._steps: deque[Step] = deque()
        self._poll_job: Job[None] | None = None
        self._request = PollRequest()
        self._polled_at = 0.0
        self._owner_is_busy = False
        """True if the owner still has earlier records, and fetches only because `polled` requested it: more would
        pile up."""
        self._has_passed = False
        """True if a position has moved past offsets, and `fetch` has not returned because of it."""
        self._event = anyio.Event()
        self._buffer = PrefetchBuffer(
            1024 * int(client_settings["queued.max.messages.kbytes"]), config.max_partition_fetch_bytes
        )
        self._group = GroupMetadata(config.group or "")
        self._group_at = 0.0
        """When its generation changed last, in seconds of `time.monotonic`."""
        self._is_of_new_protocol = settings.has_new_protocol(config)
        self._settled_in = -1
        """The generation whose assignment is complete: librdkafka is in a new generation before it notices that."""
        self._thread = member = PollThread(
            client_settings,
            config,
            Loop(),
            self._place_at_once,
            is_cooperative=is_cooperative or self._is_of_new_protocol,
        )
        member.on_step, member.on_lost, member.on_arrival = self._on_step, self._on_lost, self._on_arrival
        member.on_group = self._on_group
        backend.topic_listeners.append(self._wake)
        backend.consumers.append(self)

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(self, topics: Sequence[str] = (), pattern: str | None = None) -> None:
        self._check_subscribes(pattern)
        counts = await self._backend.partition_counts(topics if pattern is None else None)
        for topic in topics:
            if topic not in counts:
                self._backend.partition_count(topic)  # raises if the broker has no such topic either
        self._topics, self._pattern, self._is_subscribed = set(topics), pattern, True
        self._matched_in = None
        counts = self._backend.known_counts
        self._start_positions.set_partition_counts({topic: counts.get(topic, 0) for topic in self._matching()})
        if self._config.group is None:
            await self._read_all()
        else:
            await self._name_topics()

    def _to_name(self) -> frozenset[str]:
        """Return the topics to subscribe to: named topics even if they do not exist."""
        return frozenset(self._topics | self._matching())

    async def _name_topics(self) -> None:
        r"""Subscribe by name to the topics that the pattern matches now.

        librdkafka's own patterns are POSIX expressions in the classic protocol and RE2 expressions with KIP-848, where
        ``\d`` is the letter d, or a lookahead is an error.
        """
        wanted = self._to_name()
        if wanted - self._named:
            self._named_in = self._group.generation_id
        else:
            self._named_in = None
        await self._in_thread(lambda: self._thread.subscribe(sorted(wanted)))
        self._named = wanted

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_assigns(self._is_subscribed)
        wanted = list(partitions)
        counts = self._backend.known_counts
        if any(partition >= counts.get(topic, 0) for topic, partition in wanted):
            await self._backend.refresh()  # others may have added topics since the last lookup
        for partition in wanted:
            check_partition(partition, self._backend.partition_count(partition.topic))
        counts = self._backend.known_counts
        self._start_positions.set_partition_counts({topic: counts[topic] for topic, _ in wanted})
        await self._read(wanted)

    async def _read_all(self) -> None:
        """Read every partition of the subscribed topics, because the consumer has no group."""
        counts = self._backend.known_counts
        await self._read([TopicPartition(topic, n) for topic in self._matching() for n in range(counts[topic])])

    async def _read(self, wanted: Iterable[TopicPartition]) -> None:
        """Hold exactly these partitions. Raises NoCommittedOffset with ``start="none"``, until a position is set by a
        seek.

        A partition without a leader is held, and read once it has one.
        """
        kept = set(wanted)
        for where in [where for where in self._held if where not in kept]:
            self._drop(where)
        for where in sorted(kept - self._held.keys()):
            self._held[where] = None
            self._unplaced[where] = ""
        try:
            await self._place_again()
        finally:
            offsets = self._positions.copy()
            self._assigned_to_client = set(offsets)
            self._sought.clear()
            await self._in_thread(lambda: self._thread.read(offsets))
            await self._keep_back_again()

    async def _keep_back_again(self) -> None:
        paused_in_client = list(self._buffer.paused_in_client)
        if paused_in_client:
            await self._in_thread(lambda: self._thread.pause(paused_in_client))

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._held)

    def subscription(self) -> list[str]:
        return sorted(self._matching())

    def _matching(self) -> set[str]:
        """Return the existing topics among those subscribed to."""
        counts = self._backend.known_counts
        if counts is not self._matched_in:
            topics = {topic for topic in self._topics if topic in counts}
            if self._pattern is not None:
                topics |= {topic for topic in counts if matches(self._pattern, topic)}
            self._matched, self._matched_in = topics, counts
        return self._matched

    def _drop(self, where: TopicPartition) -> None:
        if where not in self._held:
            return
        del self._held[where]
        self._positions.pop(where, None)
        self._passed.discard(where)
        self._sought.pop(where, None)
        self._assigned_to_client.discard(where)
        self._unplaced.pop(where, None)
        self._unchecked.discard(where)
        self._identity.forget(where, is_last=not any(topic == where.topic for topic, _ in self._held))
        self._buffer.drop(where)
        self.on_revoked(where)

    # from the thread -------------------------------------------------------------------------------------------------

    def _on_step(self, step: Step) -> None:
        self._steps.append(step)
        self._wake()

    def _on_lost(self, partitions: list[TopicPartition]) -> None:
        self._lost_place = True
        for where in partitions:
            self._drop(where)
        self._wake()

    def _on_group(self, metadata: GroupMetadata) -> None:
        self._group, self._group_at = metadata, time.monotonic()

    def _on_arrival(self, arrival: Arrival) -> None:
        self._identity.arrived([*(TopicPartition(one.topic, one.partition) for one in arrival.records), *arrival.ends])
        for records in arrival.records:
            where = TopicPartition(records.topic, records.partition)
            position = self._positions.get(where)
            # Records in flight during a seek, or when the partition was revoked, are dropped.
            if position is None or where in self._sought or records.next_offset <= position:
                continue
            # While librdkafka was changing its position it returned more: it may fetch that again, and what follows.
            self._buffer.add(part_from(records, position))
            self._positions[where] = records.next_offset
        for where, end in arrival.ends.items():
            position = self._positions.get(where)
            if position is not None and where not in self._sought and position < end:
                self._positions[where] = end
                self._has_passed = True
                self._passed.add(where)
        for where in arrival.out_of_range:
            if where in self._positions and where not in self._sought:
                self._unplaced[where] = ""
                self._identity.doubt()
        self._errors.extend(arrival.errors)
        self._keep_back(arrival)
        self._wake()

    def _keep_back(self, arrival: Arrival) -> None:
        """Pause the partitions in librdkafka that are paused here and have too many buffered records."""
        arrived = [TopicPartition(records.topic, records.partition) for records in arrival.records]
        overfull = self._buffer.overfull(arrived)
        for where, offset in overfull.items():
            if offset is not None:
                self._read_from(where, offset)
        if overfull:
            self._thread.worker.do(lambda: self._thread.pause(overfull))

    def _wake(self) -> None:
        event, self._event = self._event, anyio.Event()
        event.set()

    async def _take(self, step: Step) -> None:
        """Do the event loop's part of a rebalance. If it is cancelled, the next fetch starts it again."""
        if step.kind == "revoke":
            try:
                await self.on_revoking(step.partitions)
            except Exception:  # raised by the listener; the group does not wait for another try
                self._gave_up(step)
                raise
            self._gave_up(step)
            return
        self._group = step.metadata or self._group
        self._lost_place = False
        self._place_at = 0.0
        for where in step.partitions:
            if where not in self._held:
                self._held[where] = None
                if where in step.offsets:
                    self._positions[where] = step.offsets[where]
                else:
                    self._unplaced[where] = ""
        try:
            if step.partitions:
                await self.on_assigned(step.partitions)
        except Exception:  # raised by the listener; the partitions are taken nevertheless
            self._taken(step)
            raise
        self._taken(step)

    def _taken(self, step: Step) -> None:
        # The listener may have sought other positions than the committed ones.
        step.offsets = {where: self._positions[where] for where in step.partitions if where in self._positions}
        self._assigned_to_client |= set(step.offsets)
        for where in step.offsets:
            self._sought.pop(where, None)
        self._settled_in = self._group.generation_id
        paused_in_client = [where for where in step.partitions if where in self._buffer.paused_in_client]
        self._release(step)
        if paused_in_client:
            self._thread.worker.do(lambda: self._thread.pause(paused_in_client))
        self.on_settled()

    def _gave_up(self, step: Step) -> None:
        for where in step.partitions:
            self._drop(where)
        # Only now may librdkafka's callback return: it reports to the group that this member has released the
        # partitions.
        self._release(step)

    def _release(self, step: Step) -> None:
        self._steps.remove(step)
        self._thread.worker.do(lambda: self._thread.release(step))

    # where to begin --------------------------------------------------------------------------------------------------

    def _to_place(self) -> list[TopicPartition]:
        return sorted(where for where in self._unplaced if not self._buffer.is_paused(where))

    async def _place(self, partition: TopicPartition | None = None) -> None:
        """Determine the start of the new partitions, or of one of them.

        The start of paused partitions is determined when they are resumed. When the start of all others is known,
        raises the error of a failed one: NoCommittedOffset with ``start="none"``, OffsetOutOfRange for a position that
        retention passed, or the error of its leader. A temporary error is raised only if there is no other.
        """
        wanted = self._to_place() if partition is None else [partition]
        passed = {where: self._positions[where] for where in wanted if where in self._positions}
        fresh = [where for where in wanted if where not in passed]
        recreated = self._identity.recreated & set(fresh)
        found = await self._in_thread(lambda: self._find_start_offsets(fresh, passed, recreated))
        for where, offset in found.offsets.items():
            if where not in self._unplaced:
                continue  # a position was set by a seek meanwhile
            del self._unplaced[where]
            if where in passed:
                self._log_reset(where, passed[where], offset)
                self._assigned_to_client.discard(where)
            self._positions[where] = offset
            if where in recreated:
                self._identity.recreated.discard(where)
                self._read_from(where, offset)
        errors = {where: error for where, error in found.errors.items() if where in self._unplaced}
        self._unplaced.update({where: str(error) for where, error in errors.items()})
        for error in sorted(errors.values(), key=lambda error: error.retriable):
            raise error

    def _find_start_offsets(
        self, fresh: list[TopicPartition], passed: Mapping[TopicPartition, int], recreated: Collection[TopicPartition]
    ) -> StartOffsets:
        """Return where to begin; runs in the thread. Committed offsets do not apply to a topic that was created
        since."""
        self._identity.identify(fresh)
        found = self._start_positions.offsets(self._thread, [one for one in fresh if one not in recreated], passed)
        again = self._start_positions.offsets_after_recreation(sorted(recreated))
        found.offsets.update(again.offsets)
        found.errors.update(again.errors)
        return found

    def _place_at_once(self, member: PollThread, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        self._identity.identify(partitions)
        return self._start_positions.known_offsets(member, partitions)

    async def _take_recreated(self) -> None:
        """Restart topics that were deleted and created again since this consumer began to read them."""
        recreated = self._identity.find_recreated(self._held)
        if recreated:
            await self._read_recreated(recreated)

    async def _read_recreated(self, partitions: list[TopicPartition]) -> None:
        for where in partitions:
            is_assigned = where in self._assigned_to_client
            self._drop(where)  # nothing of the old topic is committed or returned any more
            self._held[where] = None
            self._unplaced[where] = ""
            self._identity.recreated.add(where)
            if is_assigned:
                self._assigned_to_client.add(where)
        await self._place_again()
        if self._config.group is None:
            return
        begin = {one: OffsetAndMetadata(self._positions[one]) for one in partitions if one in self._positions}
        try:  # a member that takes over now must not continue at an offset of the old topic
            await self._in_thread(lambda: self._thread.commit(begin))
        except EventBusError as error:
            logger.warning("group %r: the beginning of %s was not committed: %s", self._config.group, begin, error)
        await self.on_assigned(partitions)

    # reading ---------------------------------------------------------------------------------------------------------

    async def fetch(self, max_wait_ms: int | None = None) -> list[FetchedRecords]:
        wait_seconds = (self._config.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms) / 1000
        deadline = self._timers.current_time() + wait_seconds
        has_polled = False
        await anyio.lowlevel.checkpoint()
        while True:
            while self._steps:
                await self._take(self._steps[0])
            # A topic that was deleted and created again has other records at the same offsets. Nothing is returned
            # before its id is compared.
            if self._identity.is_unverified and (self._buffer or self._has_passed):
                await self._identity.verify()
                await self._take_recreated()
            if self._buffer and self._has_enough():
                break
            if self._errors:
                if self._buffer:
                    break  # return the good records first; the error occurs again
                raise self._errors.popleft()
            if self._has_passed and not self._buffer:
                self._has_passed = False
                break
            left = deadline - self._timers.current_time()
            if has_polled and left <= 0:
                break
            await self._prepare()
            if self._steps:
                # The step began while `_prepare` waited, and the event was set then: `_poll` would wait for the next
                # event, and the thread, inside librdkafka's callback, for this step.
                continue
            if self._buffer.are_paused(self._held) and await self._is_resumed(max(left, 0)):
                continue
            if self._unplaced and self._to_place():
                left = min(left, self._place_at - self._timers.current_time())
            if await self._poll(max(left, 0)):
                has_polled = True
        self._owner_is_busy = False
        return self._buffer.take()

    def _has_enough(self) -> bool:
        return self._config.fetch_min_bytes <= 1 or self._buffer.ready_bytes >= self._config.fetch_min_bytes

    async def _prepare(self) -> None:
        """Pass changes since the last poll to librdkafka."""
        await self._identity.end_doubt()
        await self._take_recreated()
        if self._is_subscribed and self._config.group is None:
            counts = self._backend.known_counts
            wanted = {TopicPartition(topic, n) for topic in self._matching() for n in range(counts[topic])}
            # Without a group, this consumer reads all partitions of its topics, also those that are added.
            if wanted != self._held.keys():
                await self._read_all()
        elif self._is_subscribed and self._to_name() != self._named:
            await self._name_topics()
        if self._unchecked:
            await self._check_bounds()
        if self._unplaced and self._timers.current_time() >= self._place_at and self._to_place():
            await self._place_again()
        if self._sought:
            sought = self._sought.copy()
            self._assigned_to_client -= await self._in_thread(lambda: self._thread.seek(sought))
            for where, offset in sought.items():
                if self._sought.get(where) == offset:
                    del self._sought[where]
        late = {where: self._positions[where] for where in self._positions.keys() - self._assigned_to_client}
        if late:
            positions = self._positions.copy()
            self._assigned_to_client |= set(late)
            await self._in_thread(lambda: self._thread.read_too(late, positions))
            await self._keep_back_again()

    async def _check_bounds(self) -> None:
        """Check the positions that the user set: librdkafka would report an invalid position late."""
        where = {partition: self._positions[partition] for partition in self._unchecked}
        self._unchecked.clear()
        try:
            firsts = await self._backend.list_offsets(dict.fromkeys(where, EARLIEST), IsolationLevel.READ_UNCOMMITTED)
            ends = await self._backend.list_offsets(dict.fromkeys(where, LATEST), IsolationLevel.READ_UNCOMMITTED)
        except EventBusError as error:
            logger.debug("whether %s are within their partitions cannot be said: %s", where, error)
            return
        for partition, offset in where.items():
            inside = firsts[partition].offset <= offset <= ends[partition].offset
            if not inside and self._positions.get(partition) == offset:
                self._unplaced[partition] = ""

    async def _place_again(self, partition: TopicPartition | None = None) -> None:
        """Determine the start of partitions whose start is unknown, or no longer exists.

        Temporary errors are retried later, and the other partitions are read meanwhile.
        """
        try:
            await self._place(partition)
        except EventBusError as error:
            if not error.retriable:
                raise
            logger.debug("where to begin is not known yet: %s", error)
            self._place_at = self._timers.current_time() + _STABLE_SECONDS

    async def _is_resumed(self, wait_seconds: float) -> bool:
        """Wait while all partitions are paused; return True if something happened before the next poll."""
        event = self._event
        with self._timers.move_on_after(min(wait_seconds, _PAUSED_SECONDS)):
            await event.wait()
        return event.is_set()

    async def _poll(self, wait_seconds: float) -> bool:
        """Poll librdkafka once; return False if something else came first, or the poll was begun for another fetch."""
        event, request, job = self._event, self._request, self._poll_job
        is_sign_of_life = self._owner_is_busy or self._buffer.are_paused(self._held)
        request.want(wait_seconds, is_sign_of_life=is_sign_of_life)
        is_new = job is None or job.is_done
        if job is None or is_new:
            self._poll_job = job = self._thread.worker.do(lambda: self._thread.poll(request), self._wake)
        self._polled_at = self._timers.current_time()
        try:
            await event.wait()
        finally:
            request.is_wanted = False
            self._polled_at = self._timers.current_time()
        return is_new and job.is_done

    def passed(self) -> dict[TopicPartition, int]:
        if not self._passed:
            return {}
        # Records that librdkafka returned before the end of the partition may still wait here, if it is paused.
        ready = [where for where in self._passed if self._buffer.first_offset(where) is None]
        self._passed.difference_update(ready)
        return {where: self._positions[where] for where in ready}

    @property
    def waiting_for(self) -> dict[TopicPartition, str]:
        counts = self._backend.known_counts
        missing = {TopicPartition(topic, 0): _NO_TOPIC for topic in self._topics if topic not in counts}
        leaderless = dict.fromkeys(self._backend.leaderless & self._held.keys(), _NO_LEADER)
        return {**missing, **leaderless, **{where: reason for where, reason in self._unplaced.items() if reason}}

    def polled(self) -> bool:
        if self._config.group is None:
            return False
        idle = self._timers.current_time() - self._polled_at
        due = not self._request.is_wanted and idle >= min(_MOST_IDLE_SECONDS, self._config.heartbeat_interval_ms / 1000)
        self._owner_is_busy = due or bool(self._steps)
        return self._owner_is_busy

    # positions and commits -------------------------------------------------------------------------------------------

    async def _placed(self, partition: TopicPartition) -> None:
        """Return when the start of the partition is known, or when it is revoked."""
        while partition in self._unplaced:
            await self._place_again(partition)
            if partition in self._unplaced:
                await self._timers.sleep(_STABLE_SECONDS)

    def _position(self, partition: TopicPartition) -> int:
        first = self._buffer.first_offset(partition)
        return self._positions[partition] if first is None else first

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._check_seek(partition, offset)
        self._unplaced.pop(partition, None)
        self._unchecked.add(partition)
        self._passed.discard(partition)  # offsets before a sought position were not read
        self._buffer.forget(partition)
        self._read_from(partition, offset)

    def _read_from(self, partition: TopicPartition, offset: int) -> None:
        self._positions[partition] = offset
        if partition in self._assigned_to_client:
            self._sought[partition] = offset

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._check_held(partition)
            self._buffer.pause(partition)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        paused_in_client: list[TopicPartition] = []
        for partition in partitions:
            self._check_held(partition)
            if self._buffer.resume(partition):
                paused_in_client.append(partition)
                if partition in self._positions:
                    # librdkafka drops what it had prefetched; the position is ours to set.
                    self._read_from(partition, self._positions[partition])
        if paused_in_client:
            self._thread.worker.do(lambda: self._thread.resume(paused_in_client))
        self._wake()

    @property
    def known_group(self) -> GroupMetadata:
        """Return the group metadata of this member; empty while its assignment in the group is not known."""
        generation = self._group.generation_id
        # The group needs another generation to assign a topic that the pattern has begun to match.
        is_behind = self._named_in == generation or self._to_name() != self._named
        # With KIP-848, librdkafka does not call back for an epoch that leaves this member's partitions unchanged.
        is_kept = self._is_of_new_protocol and time.monotonic() - self._group_at >= _KEPT_SECONDS
        is_settled = generation == self._settled_in or (is_kept and not self._steps)
        return self._group if is_settled and not is_behind else GroupMetadata(self._group.group)

    def group_metadata(self) -> GroupMetadata:
        self._check_group()
        return self._group

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        group = self._check_group("commit needs a group: open the consumer")
        wanted = dict(offsets)
        held = wanted.keys() & self._held.keys()
        deadline = self._timers.current_time() + _MOVING_SECONDS
        while True:
            try:
                return await self._in_thread(lambda: self._thread.commit(wanted))
            except KafkaError as error:
                if error.code not in _MOVING or self._timers.current_time() > deadline:
                    raise
            await self._timers.sleep(_STABLE_SECONDS)
            gone = sorted(held - self._held.keys())
            if gone:  # another member may have committed more by now
                raise UnknownMemberId(
                    f"group {group!r} has taken {', '.join(map(str, gone))} away before its offset was "
                    "committed: the member that reads there now reads again what was not"
                )

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        if self._config.group is None:
            return {}
        wanted = list(partitions)
        found = await self._backend.group_offsets(self._config.group, wanted)
        return {where: found[where] for where in wanted if where in found}

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        found = await self._backend.list_offsets(dict.fromkeys(partitions, LATEST), self._config.isolation)
        return {where: at.offset for where, at in found.items()}

    async def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        wanted = set(topics)
        if wanted - self._identity.known(wanted).keys():
            await self._in_thread(lambda: self._identity.look_up(wanted))
        return self._identity.known(wanted)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await self._thread.worker.do(call).wait()

    async def aclose(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._backend.topic_listeners.remove(self._wake)
        self._backend.consumers.remove(self)
        for where in list(self._held):
            self._drop(where)
        self._steps.clear()
        # Shielded: otherwise, after a Ctrl-C, the group would wait for the session timeout.
        with self._timers.move_on_after(self._backend.close_seconds, shield=True):
            await self._thread.shut().wait()
