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
from eventbus.client.consuming.reading import ConsumerRecords, Decoding, Prefetched, partition_of
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
"""The *next* offset to read per partition, with or without metadata."""


class Consumer(Generic[KeyT, ValueT]):
    """Reads records in a loop of the caller's.

    Offsets are committed by `commit` alone (unless ``enable_auto_commit`` is set): what is not committed is read again
    after a restart. Not for several tasks at once: a `poll` or a change of what to read beside another is refused, and
    so is any use in another thread (`EventBus.blocking` has a consumer for threads). To stop a loop, cancel it or leave
    it: a cancelled `poll` loses nothing.
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
        self._ahead = Prefetched(Decoding(key, value, serdes), restoring)
        self._restoring = restoring
        watch_forks(self)
        self._interceptors = interceptors
        self._on_consume = [one.on_consume for one in interceptors]
        self._on_commit = [one.on_commit for one in interceptors]
        self._paused: set[TopicPartition] = set()
        self._sought: set[TopicPartition] = set()
        """Where the user sought to, since the last change of what to read: a listener's word goes before ours."""
        self._has_subject = False
        """Something was subscribed to or assigned."""
        self._is_used = False
        self._listener = listener
        self._hears_of_rebalances = False
        self._revoking: set[TopicPartition] = set()
        """Being given up in good order: what else goes is lost."""
        self._lost: list[TopicPartition] = []
        """Partitions that were lost, before the listener is notified."""
        self._background = BackgroundCommits(self._store, spawn, backend.timers)
        self._next_auto_commit = 0.0
        self._until_assigned = anyio.CancelScope()

    def after_fork_in_child(self) -> None:
        self._ahead.clear()  # the parent returns these records: here, the next poll raises

    @property
    def _consumer(self) -> BackendConsumer:
        if self._opened is None:
            raise ConfigError("this consumer is not open: use `async with bus.new_consumer(...) as consumer:`")
        self._home.check_thread("a consumer's method")
        return self._opened

    async def __aenter__(self) -> Self:
        if self._opened is not None:
            raise ConfigError("this consumer is open already: give the second one a `bus.new_consumer(...)` of its own")
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
        """Leave the group at once; its partitions go to the others. A static member's place is kept for its session.

        Commits nothing but what `commit_nowait` has begun, and, with ``enable_auto_commit``, what was polled. The
        listener is told that the partitions go.
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
            self._ahead.clear()
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
        """Read these topics, or every one whose whole name matches ``pattern``, new ones too; with a group, its share.

        The listeners replace those given before, see `RebalanceListener`. Partitions that were being read already and
        stay go on where they are. A sole member has its partitions on return; beside others the next polls get them.
        Raises UnknownTopicOrPartition, InvalidSessionTimeout, InconsistentGroupProtocol (the members have no assignor
        in common), FencedInstanceId, GroupMaxSizeReached.
        """
        topics = [topic for name in names for topic in ((name,) if isinstance(name, str) else name)]
        if not topics and pattern is None:
            await self.unsubscribe()  # as in Kafka: a subscription to nothing is none
            return
        if on_assigned is not None or on_revoked is not None or on_lost is not None:
            self._listener = RebalanceListener(on_assigned=on_assigned, on_revoked=on_revoked, on_lost=on_lost)
        self._hears_of_rebalances = self._config.group is not None
        await self._change(lambda: self._consumer.subscribe(topics, pattern))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; partitions added later are not taken up.

        Partitions that were being read already go on where they are.
        """
        wanted = [partition_of(partition) for partition in partitions]
        await self._change(lambda: self._consumer.assign(wanted))

    async def unsubscribe(self) -> None:
        """Stop reading, and leave the group as `aclose` does. Then subscribe or assign again."""
        with self._used_alone():
            try:
                await self._leave(self._consumer)
            finally:
                self._open()

    def subscription(self) -> list[str]:
        """The topics subscribed to; with a pattern, those that match it now. Nothing after `assign`."""
        return self._consumer.subscription()

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Carry positions over a change of partitions: a backend may give up all of them and start anew."""
        with self._used_alone():
            assigned = self.assignment()
            self._ahead.give_back(assigned, self._consumer.seek)
            positions = await self._consumer.positions()
            returned, paused = self._ahead.returned.copy(), self._paused.copy()
            self._sought.clear()
            self._has_subject = True
            await change()
            now = set(self.assignment())
            kept = positions.keys() & now - self._sought
            self._ahead.keep({partition: returned[partition] for partition in returned.keys() & kept})
            for partition in kept:
                self._consumer.seek(partition, positions[partition])
            self.pause(*(paused & now))

    def assignment(self) -> list[TopicPartition]:
        """The partitions being read. In a group with other members the first ones come with a poll: see `assigned`."""
        return self._consumer.assignment()

    async def assigned(self) -> list[TopicPartition]:
        """Return when there are partitions to read, and which. The first records of them wait for `poll`.

        A group with more members than partitions leaves some without any: bound the wait with a timeout.
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
        self._ahead.forget(partition)
        # A commit that has not begun is of records that are gone, too: of a topic that was deleted and created again.
        self._background.number({partition: OffsetAndMetadata(0)})

    async def _revoke(self, partitions: list[TopicPartition]) -> None:
        self._revoking.update(partitions)
        try:
            await self._background.finish()
            if self._config.enable_auto_commit:
                await self._commit_automatically(partitions)
            await tell(self._listener.on_revoked, partitions)
        except anyio.get_cancelled_exc_class():
            self._revoking.difference_update(partitions)  # still ours; the next poll asks again
            raise

    async def _assign(self, partitions: list[TopicPartition]) -> None:
        await self._tell_of_losses()  # they may be the same partitions, of a topic that was created again
        await tell(self._listener.on_assigned, partitions)
        self._until_assigned.cancel()  # `assigned` need not wait for records

    async def _tell_of_losses(self) -> None:
        lost, self._lost = self._lost, []
        if lost:
            await tell(self._listener.on_lost or self._listener.on_revoked, sorted(lost))

    # reading ---------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: Milliseconds = 1_000, max_records: int = 500) -> ConsumerRecords[KeyT, ValueT]:
        """Up to ``max_records`` records, a list; an empty one when none came within ``timeout_ms``.

        Empty and earlier when only a position has moved: past aborted records, or a transaction's marker (KAFKA-12980).

        Call it at least every ``max_poll_interval_ms``, or the group gives this member up. Rebalances happen in here,
        and their listeners are called.

        Raises CorruptRecord, OffsetOutOfRange and NoCommittedOffset (``start="none"``), FencedInstanceId, and
        SerializationError. The last one comes alone: readable records before it are returned first, the next `poll`
        raises it and the position is past the record. SchemaUnavailable when a schema registry has to be asked and
        does not answer: nothing is passed over, poll again.
        """
        if max_records < 1:
            raise ConfigError(f"max_records={max_records}: at least 1, or nothing is ever read")
        with self._used_alone():
            if self._config.enable_auto_commit and self._timers.current_time() >= self._next_auto_commit:
                await self._commit_automatically()
            if not self._ahead:
                await self._fetch(setting_ms(timeout_ms))
            elif self._consumer.polled():
                await self._fetch(0)  # the group waits; of what is here some may go
            if self._restoring:
                await self._ahead.restore(max_records)
            if self._ahead.unchecked:
                await all_fetched(self._ahead.needed)
                self._ahead.unchecked = False
        records = self._ahead.take(max_records)
        if self._on_consume and records:
            records = passed_through(records, self._on_consume)
        return records

    def __aiter__(self) -> AsyncIterator[ConsumerRecord[KeyT, ValueT]]:
        return self

    async def __anext__(self) -> ConsumerRecord[KeyT, ValueT]:
        ahead = self._ahead
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
        """What is there now, from the positions on: ``async for record in consumer.until_end():`` fills a table.

        It ends where the partitions ended when it began; of what comes meanwhile some may be among the last.
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
        await anyio.lowlevel.checkpoint()
        self._ahead.add(await consumer.fetch(timeout_ms))
        self._ahead.passed(consumer.passed())
        await self._tell_of_losses()  # what was fetched is in hand: a listener that raises loses none of it

    # positions -------------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """The next offset `poll` returns of this partition."""
        partition = partition_of(partition)
        ahead = self._ahead.position(partition)
        return await self._consumer.position(partition) if ahead is None else ahead

    async def positions(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the positions of assigned partitions, of all when none is named, as one snapshot.

        A partition that the group takes away meanwhile is left out; `position` raises an error for it.
        """
        found = await self._consumer.positions(self._named(partitions))
        return {
            partition: at if (ahead := self._ahead.position(partition)) is None else ahead
            for partition, at in found.items()
        }

    def seek(self, partition: TopicPartition, offset: int | OffsetAndMetadata) -> None:
        """Read on from ``offset``. `commit` then covers what `poll` returns from here on, not what it did before."""
        partition = partition_of(partition)
        self._consumer.seek(partition, offset if isinstance(offset, int) else offset.offset)
        self._sought.add(partition)
        self._ahead.forget(partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the first offset held; all partitions when none is named."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read only what comes from now on; all partitions when none is named."""
        await self._seek_to(partitions, LATEST)

    async def _seek_to(self, partitions: Sequence[TopicPartition], at: int) -> None:
        """``at``: a time, EARLIEST or LATEST. What the group takes away meanwhile is left out."""
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
        """Those named, or all that are assigned."""
        return [partition_of(partition) for partition in partitions] or self.assignment()

    async def _offsets_at(self, at: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        return await self._backend.list_offsets(at, self._config.isolation)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where there is none."""
        found = await self._offsets_at({partition_of(partition): time_ms for partition, time_ms in times_ms.items()})
        return {partition: at if at.offset >= 0 else None for partition, at in found.items()}

    async def seek_to_time(self, time_ms: int, *partitions: TopicPartition) -> None:
        """Read on from the first record at or after a time, or from the end; all partitions when none is named."""
        await self._seek_to(partitions, time_ms)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these partitions until `resume`, or until they are given up."""
        named = [partition_of(partition) for partition in partitions]
        self._consumer.pause(named)
        self._paused.update(named)
        self._ahead.give_back(named, self._consumer.seek)

    def resume(self, *partitions: TopicPartition) -> None:
        """Take up paused partitions again."""
        named = [partition_of(partition) for partition in partitions]
        self._consumer.resume(named)
        self._paused.difference_update(named)

    def paused(self) -> list[TopicPartition]:
        """The partitions that `pause` stopped."""
        return sorted(self._paused.intersection(self.assignment()))

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offset each partition holds; of all assigned ones when none is named."""
        found = await self._offsets_at(dict.fromkeys(self._named(partitions), EARLIEST))
        return {partition: at.offset for partition, at in found.items()}

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Where each partition ends: the offset its next record gets, or, read committed, the first open one."""
        return await self._consumer.end_offsets(self._named(partitions))

    async def topic_ids(self, *topics: str) -> dict[str, str]:
        """Return the ids of assigned topics, by name. A topic that is deleted and created again gets another id.

        Store the id next to offsets that you keep outside of the log: they mean other records in another topic. It is
        empty for a broker before Kafka 2.8, which has no topic ids.
        """
        return await self._consumer.topic_ids(topics or {partition.topic for partition in self.assignment()})

    async def lag(self, partition: TopicPartition) -> int:
        """Records between the position and the end of the partition: what is still to be polled."""
        partition = partition_of(partition)
        position = await self.position(partition)
        end = await self._consumer.end_offsets([partition])
        return max(end[partition] - position, 0)

    async def uncommitted(self, partition: TopicPartition) -> int:
        """Records between the group's committed offset and the position: what is read again if this one dies now."""
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
        """Store the *next* offset to read per partition; without ``offsets``, of everything `poll` has returned.

        Transaction markers and aborted records after it are covered as well, once `poll` has passed them.

        Partitions given up since, or whose topic was deleted, are left out. On disk on return. Raises
        RebalanceInProgress (poll, then go on from the committed offsets), IllegalGeneration, UnknownMemberId and
        FencedInstanceId: the group went on without this member, and what it handled others handle again.
        """
        await self._background.now(self._chosen(offsets))

    def commit_nowait(
        self, offsets: OffsetsToCommit | OnCommit | None = None, callback: OnCommit | None = None
    ) -> None:
        """Commit without waiting. Errors that may pass are tried again, unless a newer commit has been made since.

        ``callback(offsets, error)`` is called with the outcome; without one an error is logged. It may be the only
        argument. `aclose` waits for it. `commit_async` is the same under Kafka's name.
        """
        if callable(offsets):
            offsets, callback = None, offsets
        self._background.add(self._chosen(offsets), callback)

    commit_async = commit_nowait

    def _chosen(self, offsets: OffsetsToCommit | None) -> dict[TopicPartition, OffsetAndMetadata]:
        if offsets is None:
            polled = self._ahead.returned
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
        """The offsets of all that `poll` has returned, handled or not, which ``enable_auto_commit`` commits."""
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
        """Which member of which generation this consumer is: what a transaction that commits its offsets is given."""
        return self._consumer.group_metadata()
