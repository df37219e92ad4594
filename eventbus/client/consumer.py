"""The explicit consumer, for a loop over a group or over chosen partitions."""

from __future__ import annotations

import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Generic, Self

import anyio

from eventbus.backends.base import EARLIEST, LATEST, Backend, BackendConsumer, ConsumerConfig
from eventbus.client.consuming.commits import BackgroundCommits, OnCommit, Spawn
from eventbus.client.consuming.fetch_buffer import ConsumerRecords, FetchBuffer, RecordDecoder, partition_of
from eventbus.client.consuming.restoring import NOTHING, Restoring
from eventbus.client.interceptors import ConsumerInterceptor, passed_through, tell_all
from eventbus.client.rebalance import Listener, RebalanceListener, tell
from eventbus.client.schemas import all_fetched
from eventbus.client.threads import Home
from eventbus.durations import Milliseconds, setting_ms
from eventbus.errors import ConfigError, EventBusError
from eventbus.forks import watch_forks
from eventbus.types import (
    ConsumerRecord,
    GroupMetadata,
    KeyT,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
    ValueT,
)
from serdes import Serde

logger = logging.getLogger("eventbus.consumer")

_CLOSE_SECONDS = 30
"""How long closing waits for commits and the listener; Kafka's ``close()`` has the same limit."""


OffsetsToCommit = Mapping[TopicPartition, OffsetAndMetadata | int]
"""Maps partitions to the *next* offset to read, with or without metadata."""


class Consumer(Generic[KeyT, ValueT]):
    """Reads records in a loop of the caller.

    Offsets are committed only by `commit`, unless ``enable_auto_commit`` is set; uncommitted records are read again
    after a restart. Use it in a single task: a `poll` or a change of subscription during another is refused, and so is
    any use in another thread (`EventBus.blocking` provides a consumer for threads). To stop a loop, cancel or leave it:
    a cancelled `poll` loses no records.
    """

    def __init__(
        self,
        backend: Backend,
        open_consumer: Callable[[], BackendConsumer],
        config: ConsumerConfig,
        topics: Sequence[str],
        *,
        spawn: Spawn,
        listener: RebalanceListener,
        pattern: str | None = None,
        partitions: Sequence[TopicPartition] = (),
        key: Any = bytes,
        value: Any = bytes,
        serdes: Mapping[type, Serde] | None = None,
        interceptors: Sequence[ConsumerInterceptor] = (),
        restoring: Restoring = NOTHING,
    ) -> None:
        self._backend = backend
        self._open_consumer = open_consumer
        self._opened: BackendConsumer | None = None
        self._config = config
        self._topics = topics
        self._pattern = pattern
        self._partitions = partitions
        self._timers = backend.timers
        self._home = Home()
        self._fetched = FetchBuffer(RecordDecoder(key, value, serdes), restoring)
        self._restoring = restoring
        watch_forks(self)
        self._interceptors = interceptors
        self._on_consume = [one.on_consume for one in interceptors]
        self._on_commit = [one.on_commit for one in interceptors]
        self._paused: set[TopicPartition] = set()
        self._sought: set[TopicPartition] = set()
        """Partitions to which the user has sought since the last change of subscription. Such a position takes
        precedence over ours.
        """
        self._has_subject = False
        """True once it has subscribed to topics or was assigned partitions."""
        self._is_used = False
        self._listener = listener
        self._hears_of_rebalances = False
        self._revoking: set[TopicPartition] = set()
        """Partitions being revoked in order. Any other partition that is taken away is lost."""
        self._lost: list[TopicPartition] = []
        """Partitions that were lost, before the listener is notified."""
        self._background = BackgroundCommits(self._store, spawn, backend.timers)
        self._next_auto_commit = 0.0
        self._until_assigned = anyio.CancelScope()

    def after_fork_in_child(self) -> None:
        self._fetched.clear()  # the parent returns these records; here the next poll raises

    @property
    def _consumer(self) -> BackendConsumer:
        if self._opened is None:
            raise ConfigError("this consumer is not open: use `async with bus.new_consumer(...) as consumer:`")
        self._home.check_thread("a consumer's method")
        return self._opened

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise ConfigError("this consumer is open already: create another with `bus.new_consumer(...)`")
        self._home.check("opening a consumer")
        self._open()
        try:
            if self._topics or self._pattern is not None:
                await self.subscribe(*self._topics, pattern=self._pattern)
            if self._partitions:
                await self.assign(self._partitions)
        except BaseException:
            await self.aclose()
            raise
        return self

    def _open(self) -> None:
        self._opened = opened = self._open_consumer()
        self._has_subject = False
        opened.on_revoked = self._gone
        opened.on_revoking = self._revoke
        opened.on_assigned = self._assign
        self._next_auto_commit = self._timers.current_time() + self._config.auto_commit_interval_ms / 1000

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the group at once, so that its partitions move. The assignment of a static member is kept for its
        session.

        Commits only what `commit_nowait` has started, and with ``enable_auto_commit`` what was polled. The listener's
        ``on_revoked`` is called.
        """
        opened = self._opened
        if opened is not None:
            self._home.check("closing a consumer")
            try:
                await self._leave(opened)
            finally:
                tell_all([one.close for one in self._interceptors])

    async def _leave(self, opened: BackendConsumer) -> None:
        try:
            with self._timers.move_on_after(_CLOSE_SECONDS, shield=True):
                await self._before_leaving()
        finally:
            self._opened = None
            self._hears_of_rebalances = False
            self._fetched.clear()
            self._paused.clear()
            self._lost.clear()
            await opened.aclose()

    async def _before_leaving(self) -> None:
        await self._background.finish()
        partitions = self.assignment() if self._hears_of_rebalances else []
        if partitions:
            await self._revoke(partitions)
        elif self._config.enable_auto_commit:
            await self._commit_automatically()

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        *names: str | Sequence[str],
        pattern: str | None = None,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        on_lost: Listener | None = None,
    ) -> None:
        """Read these topics, or all that match ``pattern`` as a whole (including new ones). In a group, read its share.

        The listeners replace earlier ones; see `RebalanceListener`. Partitions that were already being read and remain
        assigned continue at their positions. A sole member has its partitions when this returns; otherwise they arrive
        with later polls. Raises UnknownTopicOrPartition, InvalidSessionTimeout, InconsistentGroupProtocol (the members
        have no common assignor), FencedInstanceId, GroupMaxSizeReached.
        """
        topics = [topic for name in names for topic in ((name,) if isinstance(name, str) else name)]
        if not topics and pattern is None:
            await self.unsubscribe()  # as in Kafka, subscribing to nothing unsubscribes
            return
        if on_assigned is not None or on_revoked is not None or on_lost is not None:
            self._listener = RebalanceListener(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        self._hears_of_rebalances = self._config.group is not None
        await self._change(lambda: self._consumer.subscribe(topics, pattern))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions. Partitions added to the topic later are not read.

        Partitions that were already being read continue at their positions.
        """
        wanted = [partition_of(partition) for partition in partitions]
        await self._change(lambda: self._consumer.assign(wanted))

    async def unsubscribe(self) -> None:
        """Stop reading, and leave the group as `aclose` does. The consumer can then subscribe or assign again."""
        with self._used_alone():
            try:
                await self._leave(self._consumer)
            finally:
                self._open()

    def subscription(self) -> list[str]:
        """Return the subscribed topics; with a pattern, those that match now. Empty after `assign`."""
        return self._consumer.subscription()

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Change the partitions and keep positions: a backend may give up all partitions and start from scratch."""
        with self._used_alone():
            assigned = self.assignment()
            self._fetched.give_back(assigned, self._consumer.seek)
            positions = await self._consumer.positions()
            returned, paused = self._fetched.returned.copy(), self._paused.copy()
            self._sought.clear()
            self._has_subject = True
            await change()
            now = set(self.assignment())
            kept = positions.keys() & now - self._sought
            self._fetched.keep({partition: returned[partition] for partition in returned.keys() & kept})
            for partition in kept:
                self._consumer.seek(partition, positions[partition])
            self.pause(*(paused & now))

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions being read. With other members in the group, the first ones arrive with a poll: see
        `assigned`.
        """
        return self._consumer.assignment()

    async def assigned(self) -> list[TopicPartition]:
        """Wait until there are partitions to read, and return them. Their first records are returned by `poll`.

        A group with more members than partitions leaves some members without any, so limit the wait with a timeout.
        """
        while not (partitions := self.assignment()):
            with self._used_alone(), anyio.CancelScope() as self._until_assigned:
                await self._fetch(1_000)
        return partitions

    # rebalances: called by the backend's consumer, all but the first from within its `fetch` --------------------------

    def _gone(self, partition: TopicPartition) -> None:
        if partition in self._revoking:
            self._revoking.discard(partition)
        elif self._hears_of_rebalances:
            self._lost.append(partition)
        self._paused.discard(partition)
        self._fetched.forget(partition)
        # A pending commit is for records that are gone, too, if the topic was deleted and created again.
        self._background.number({partition: OffsetAndMetadata(0)})

    async def _revoke(self, partitions: list[TopicPartition]) -> None:
        self._revoking.update(partitions)
        try:
            await self._background.finish()
            if self._config.enable_auto_commit:
                await self._commit_automatically(partitions)
            await tell(self._listener.on_revoked, partitions)
        except anyio.get_cancelled_exc_class():
            self._revoking.difference_update(partitions)  # still assigned; the next poll revokes them again
            raise

    async def _assign(self, partitions: list[TopicPartition]) -> None:
        await self._tell_of_losses()  # these may be the same partitions, of a topic that was created again
        await tell(self._listener.on_assigned, partitions)
        self._until_assigned.cancel()  # `assigned` need not wait for records

    async def _tell_of_losses(self) -> None:
        lost, self._lost = self._lost, []
        if lost:
            await tell(self._listener.on_lost or self._listener.on_revoked, sorted(lost))

    # reading ---------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: Milliseconds = 1_000, max_records: int = 500) -> ConsumerRecords[KeyT, ValueT]:
        """Return up to ``max_records`` records as a list, which is empty if none arrive within ``timeout_ms``.

        It returns an empty list earlier if only a position has moved: past aborted records, or a transaction's marker
        (KAFKA-12980).

        Call it at least every ``max_poll_interval_ms``, or the group removes this member. Rebalances happen inside this
        call, including the calls of listeners.

        Raises CorruptRecord, OffsetOutOfRange and NoCommittedOffset (``start="none"``), FencedInstanceId, and
        SerializationError. The last is raised separately: readable records before it are returned first, the next
        `poll` raises it, and the position is past the record. SchemaUnavailable is raised if a schema registry is
        needed and does not answer; no record is skipped, so poll again.
        """
        if max_records < 1:
            raise ConfigError(f"max_records={max_records}: at least 1, or nothing is ever read")
        with self._used_alone():
            if self._config.enable_auto_commit and self._timers.current_time() >= self._next_auto_commit:
                await self._commit_automatically()
            if not self._fetched:
                await self._fetch(setting_ms(timeout_ms))
            elif self._consumer.polled():
                # A rebalance is pending, and some of the fetched records may belong to partitions that move.
                await self._fetch(0)
            if self._restoring:
                await self._fetched.restore(max_records)
            if self._fetched.unchecked:
                await all_fetched(self._fetched.needed)
                self._fetched.unchecked = False
        records = self._fetched.take(max_records)
        if self._on_consume and records:
            records = passed_through(records, self._on_consume)
        return records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[KeyT, ValueT]]:
        return self

    async def __anext__(self) -> ConsumerRecord[KeyT, ValueT]:
        ahead = self._fetched
        if (
            not ahead
            or ahead.unchecked
            or ahead.is_marked
            or self._config.enable_auto_commit
            or self._on_consume
            or self._consumer.polled()
        ):
            while not (records := await self.poll(1_000, 1)):
                pass
            return records[0]
        return ahead.take(1)[0]

    async def until_end(self) -> AsyncGenerator[ConsumerRecord[KeyT, ValueT]]:
        """Yield the records up to the current end of the partitions: ``async for record in consumer.until_end():``.

        The end is determined once, at the start. Some records that arrive meanwhile may be included.
        """
        await self.assigned()
        ends = await self.end_offsets()
        while any(at < ends.get(partition, 0) for partition, at in (await self.positions()).items()):
            for record in await self.poll():
                yield record

    @contextmanager
    def _used_alone(self) -> Generator[None]:
        if self._is_used:
            raise ConfigError(
                "this consumer is already being polled by another task (or by its own rebalance listener): "
                "one consumer, one task"
            )
        self._home.check("a consumer's method")
        self._is_used = True
        try:
            yield
        finally:
            self._is_used = False

    async def _fetch(self, timeout_ms: int) -> None:
        consumer = self._consumer
        if not self._has_subject:
            raise ConfigError("this consumer has nothing to read: subscribe() to topics or assign() partitions first")
        await self._tell_of_losses()
        self._fetched.add(await consumer.fetch(timeout_ms))
        self._fetched.passed(consumer.passed())
        # After the fetched records are stored: if a listener raises, none of them is lost.
        await self._tell_of_losses()

    # positions -------------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record that `poll` returns from this partition."""
        partition = partition_of(partition)
        ahead = self._fetched.position(partition)
        return await self._consumer.position(partition) if ahead is None else ahead

    async def positions(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the positions of assigned partitions, of all when none is named, as one snapshot.

        A partition that the group takes away meanwhile is left out; `position` raises an error for it.
        """
        found = await self._consumer.positions(self._named(partitions))
        return {
            partition: at if (ahead := self._fetched.position(partition)) is None else ahead
            for partition, at in found.items()
        }

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Continue at ``offset``. `commit` then covers what `poll` returns from now on, not what it returned before."""
        partition = partition_of(partition)
        self._consumer.seek(partition, offset if isinstance(offset, int) else offset.offset)
        self._sought.add(partition)
        self._fetched.forget(partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the log start offset of these partitions, by default of all."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of these partitions, by default of all."""
        await self._seek_to(partitions, LATEST)

    async def _seek_to(self, partitions: Sequence[TopicPartition], at: int) -> None:
        """Seek to a time, EARLIEST or LATEST. Partitions that are taken away meanwhile are omitted."""
        wanted, held = self._named(partitions), set(self.assignment())
        offsets = await self._offsets_at(dict.fromkeys(wanted, at))
        late = [partition for partition, found in offsets.items() if found.offset < 0]
        if late:
            offsets |= await self._offsets_at(dict.fromkeys(late, LATEST))
        lost = held.difference(self.assignment())
        for partition, found in offsets.items():
            if partition not in lost:
                self.seek(partition, found.offset)

    def _named(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Return the given partitions, or by default all that are assigned."""
        return [partition_of(partition) for partition in partitions] or self.assignment()

    async def _offsets_at(self, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await self._backend.list_offsets(at, self._config.isolation)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record at or after each time; None if there is none."""
        found = await self._offsets_at({partition_of(partition): time_ms for partition, time_ms in times_ms.items()})
        return {partition: at if at.offset >= 0 else None for partition, at in found.items()}

    async def seek_to_time(self, time_ms: int, *partitions: TopicPartition) -> None:
        """Continue at the first record at or after a time, or at the end, in these partitions or by default in all."""
        await self._seek_to(partitions, time_ms)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`, or until they are revoked."""
        named = [partition_of(partition) for partition in partitions]
        self._consumer.pause(named)
        self._paused.update(named)
        self._fetched.give_back(named, self._consumer.seek)

    def resume(self, *partitions: TopicPartition) -> None:
        """Continue with paused partitions."""
        named = [partition_of(partition) for partition in partitions]
        self._consumer.resume(named)
        self._paused.difference_update(named)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions stopped by `pause`."""
        return sorted(self._paused.intersection(self.assignment()))

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the log start offset of these partitions, by default of all that are assigned."""
        found = await self._offsets_at(dict.fromkeys(self._named(partitions), EARLIEST))
        return {partition: at.offset for partition, at in found.items()}

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the end of these partitions: the log end offset, or with read_committed the last stable offset."""
        return await self._consumer.end_offsets(self._named(partitions))

    async def topic_ids(self, *topics: str) -> dict[str, str]:
        """Return the ids of assigned topics, by name. A topic that is deleted and created again gets another id.

        Store the id next to offsets that you keep outside of the log: they mean other records in another topic. It is
        empty for a broker before Kafka 2.8, which has no topic ids.
        """
        return await self._consumer.topic_ids(topics or {partition.topic for partition in self.assignment()})

    async def lag(self, partition: TopicPartition) -> int:
        """Return the number of records between the position and the end of the partition."""
        partition = partition_of(partition)
        position = await self.position(partition)
        end = await self._consumer.end_offsets([partition])
        return max(end[partition] - position, 0)

    async def uncommitted(self, partition: TopicPartition) -> int:
        """Return the number of records between committed offset and position, which a crash now would repeat."""
        partition = partition_of(partition)
        position = await self.position(partition)
        committed = (await self.committed(partition)).get(partition)
        if committed is None:
            begin = (await self._backend.list_offsets({partition: EARLIEST}))[partition].offset
        else:
            begin = committed.offset
        return max(position - begin, 0)

    # commits ---------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: OffsetsToCommit | None = None) -> None:
        """Commit the *next* offset to read of each partition, by default after all records that `poll` has returned.

        Transaction markers and aborted records after them are covered too, once `poll` has passed them.

        Partitions that were revoked, or whose topic was deleted, are omitted. The offsets are durable when it returns.
        Raises RebalanceInProgress (poll, then continue from the committed offsets), and IllegalGeneration,
        UnknownMemberId and FencedInstanceId: the group has removed this member, and other members will handle its
        records again.
        """
        await self._background.now(self._chosen(offsets))

    def commit_nowait(
        self, offsets: OffsetsToCommit | OnCommit | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit without waiting. Retriable errors are retried unless a newer commit was made meanwhile.

        ``callback(offsets, error)`` receives the outcome, and may be the only argument. Without it an error is logged.
        `aclose` waits for the outcome. `commit_async` is an alias with Kafka's name.
        """
        if callable(offsets):
            offsets, callback = None, offsets
        self._background.add(self._chosen(offsets), callback)

    commit_async = commit_nowait

    def _chosen(self, offsets: OffsetsToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            polled = self._fetched.returned
            offsets = {partition: polled[partition] for partition in self.assignment() if partition in polled}
        elif not hasattr(offsets, "items"):
            raise ConfigError(
                f"commit takes {{TopicPartition: next offset}}, not {type(offsets).__name__}: what a poll returned "
                "has it as records.next_offsets()"
            )
        return {
            partition_of(partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

    async def _store(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        await self._consumer.commit(offsets)
        if self._on_commit and offsets:
            tell_all(self._on_commit, offsets)

    async def _commit_automatically(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """Commit the offsets after all records that `poll` has returned, handled or not, for ``enable_auto_commit``."""
        self._next_auto_commit = self._timers.current_time() + self._config.auto_commit_interval_ms / 1000
        polled = self._chosen(None)
        if partitions is not None:
            polled = {partition: offset for partition, offset in polled.items() if partition in partitions}
        try:
            await self.commit(polled)
        except EventBusError as error:
            logger.warning("the automatic commit failed, the next one tries again: %s", error)

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of these partitions, by default of all assigned ones. Absent means never."""
        return await self._consumer.committed(self._named(partitions))

    def group_metadata(self) -> GroupMetadata:
        """Return the member and generation of this consumer, for a transaction that commits its offsets."""
        return self._consumer.group_metadata()
