"""Hops 5 to 7: records to a handler, its outputs to their topics, and then, only then, the offset.

One poll loop per handler puts what it fetches into a lane per partition; each lane runs its records in order. A lane
with enough to do pauses its partition, so polling never waits for a handler. Commits run beside both, and see nothing
but each lane's finished prefix.

When the group rebalances, the lanes of partitions that move finish the record at work and commit; what was fetched and
not begun is dropped, for its next owner reads it. The other lanes go on.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from eventbus.backends.base import Backend, ConsumerConfig
from eventbus.client.dispatch import Dispatch, Publish
from eventbus.client.exactly_once import LONGEST_SHARE, REBALANCED, ExactlyOnce, OpenProducer
from eventbus.client.handlers import Handler
from eventbus.client.lane import Lane
from eventbus.errors import EventBusError, HandlerError
from eventbus.types import FetchedRecords, OffsetAndMetadata, TopicPartition
from serdes import Serde

logger = logging.getLogger("eventbus.runner")

_CHUNKS_PER_LANE = 2
"""Fetches a lane holds before its partition is paused: one at work, one in reserve."""
_COMMIT_INTERVAL_SECONDS = 0.1
"""How often finished offsets are committed; a crash makes a handler see this much again."""

inside_handler: ContextVar[str] = ContextVar("eventbus_inside_handler", default="")
"""The handler whose task this is; empty elsewhere."""


class Runner:
    """Runs one handler for one group, as one member of it."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        backend: Backend,
        config: ConsumerConfig,
        publish: Publish | None,
        flush: Callable[[], Awaitable[None]],
        open_producer: OpenProducer,
        serdes: Mapping[type, Serde],
        on_progress: Callable[[], None],
    ) -> None:
        self.handler = handler
        self.group = group
        self.lanes: dict[TopicPartition, Lane] = {}
        self.has_left = False
        """Nothing runs any more, what was finished is committed."""
        self.error: HandlerError | None = None
        """Why a partition has stopped, the first that did; None while all run."""
        self._dispatch = Dispatch(handler, publish, serdes)
        self._backend = backend
        self._consumer = consumer = backend.consumer(config)
        consumer.on_assigned = self._assigned
        consumer.on_revoking = self._give_up
        consumer.on_revoked = self._abandon
        self._drain_seconds = min(handler.spec.drain_timeout_ms, config.max_poll_interval_ms // 3) / 1000
        self._flush = flush
        self._open_producer = open_producer
        self._transactions: dict[Lane, ExactlyOnce] = {}
        """Of an exactly-once handler, by lane."""
        self._on_progress = on_progress
        self._poll_scope = anyio.CancelScope()
        self._stopping = False
        self._giving_up = False
        self._ending: dict[TopicPartition, Lane] = {}
        """Lanes given up that may still be at work: a new one of the same partition waits for them."""
        self._lost: list[Lane] = []
        self._unsettled: set[Lane] = set()
        """Lanes that wait for the end of a rebalance; woken when the consumer has answered, for it may know more."""
        self._is_watched = False
        """Somebody waits for the end of a rebalance to ask `is_idle` again."""
        self._commit_now = anyio.Event()
        self._commit_error = ""
        self._lane_tasks: anyio.abc.TaskGroup | None = None

    async def start(self) -> None:
        """Subscribe; from here on nothing that arrives is missed. Raises UnknownTopicOrPartition."""
        try:
            await self._consumer.subscribe(self.handler.spec.topics, self.handler.spec.pattern)
        except BaseException:
            await self._consumer.aclose()
            raise

    async def run(self) -> None:
        """Poll, handle and commit until `stop`; then finish the records at work, commit, and leave."""
        beside = self._cut_long_slices if self.handler.spec.exactly_once else self._commit_regularly
        try:
            async with anyio.create_task_group() as background:
                background.start_soon(beside)
                async with anyio.create_task_group() as self._lane_tasks:
                    with self._poll_scope:
                        await self._poll()
                    self._close_lanes()
                background.cancel_scope.cancel()
        finally:
            # Also when cancelled: what is finished is committed, what is not is not.
            with anyio.CancelScope(shield=True):
                await self._leave()

    def stop(self) -> None:
        """Take no further record; those at work are finished."""
        self._stopping = True
        self._poll_scope.cancel()
        self._close_lanes()

    def _close_lanes(self) -> None:
        for lane in self.lanes.values():
            lane.close()

    async def is_idle(self) -> bool:
        """Everything now in this member's partitions has been handled and its outputs are stored.

        False while the group rebalances: records of a partition on its way are nobody's, and not yet handled.
        """
        if self._stopping or not all(lane.is_idle for lane in self.lanes.values()):
            return False  # what is dropped when it stops is not handled
        if not await self._is_settled():
            self._is_watched = True
            return False
        for topic_partition, end in (await self._consumer.end_offsets(self._consumer.assignment())).items():
            lane = self.lanes.get(topic_partition)
            if lane is not None and lane.error is not None:
                continue
            if await self._consumer.position(topic_partition) < end:
                self._is_watched = True  # what follows may be aborted: then no lane has anything to say when it is read
                return False
        return all(lane.is_idle for lane in self.lanes.values())

    # polling ---------------------------------------------------------------------------------------------------------

    async def _poll(self) -> None:
        while True:
            try:
                fetched = await self._consumer.fetch()
            except EventBusError as error:
                # Damaged bytes, or an offset that is gone with start="none": reading on would lose records in silence.
                raise HandlerError(f"handler {self.handler.__name__!r} cannot read on: {error}") from error
            for chunk in fetched:
                self._hand_over(chunk)
            self._say_what_was_lost()
            self._wake_those_who_wait()
            await anyio.lowlevel.checkpoint()

    def _hand_over(self, chunk: FetchedRecords) -> None:
        if self._stopping:
            return
        topic_partition = TopicPartition(chunk.topic, chunk.partition)
        lane = self.lanes.get(topic_partition)
        if lane is None:
            lane = self._open_lane(topic_partition)
        if lane.error is not None or lane.closing:
            return
        lane.chunks.append(chunk)
        if len(lane.chunks) >= _CHUNKS_PER_LANE:
            self._consumer.pause([topic_partition])
        lane.wake.set()

    def _wake_those_who_wait(self) -> None:
        for lane in self._unsettled:
            lane.wake.set()
        if self._is_watched:
            self._is_watched = False
            self._on_progress()

    # lanes -----------------------------------------------------------------------------------------------------------

    def _open_lane(self, topic_partition: TopicPartition) -> Lane:
        exactly_once = self.handler.spec.exactly_once
        lane = Lane(topic_partition, _stops if exactly_once else self._output_failed)
        lane.predecessor = self._ending.get(topic_partition)
        self.lanes[topic_partition] = lane
        if exactly_once:
            self._transactions[lane] = ExactlyOnce(
                lane,
                self.handler,
                f"{self.group}.{self.handler.__name__}.{topic_partition}",
                self._dispatch,
                self._consumer,
                self._open_producer,
                self._wait_until_settled,
            )
        assert self._lane_tasks is not None
        self._lane_tasks.start_soon(self._run_lane, lane)
        return lane

    async def _run_lane(self, lane: Lane) -> None:
        inside_handler.set(self.handler.__name__)
        transactions = self._transactions.get(lane)
        try:
            with lane.scope:
                if lane.predecessor is not None:
                    await lane.predecessor.ended.wait()
                    lane.predecessor = None
                await self._work(lane, transactions)
        finally:
            lane.ended.set()
            if self._ending.get(lane.topic_partition) is lane:
                del self._ending[lane.topic_partition]
            if transactions is not None:
                del self._transactions[lane]
                await transactions.aclose()
        self._on_progress()

    async def _work(self, lane: Lane, transactions: ExactlyOnce | None) -> None:
        dispatch = self._dispatch
        while not lane.closing:
            if not lane.chunks:
                lane.wake = anyio.Event()
                self._on_progress()
                await lane.wake.wait()
                continue
            chunk = lane.chunks.popleft()
            if len(lane.chunks) == _CHUNKS_PER_LANE - 1:
                self._consumer.resume([lane.topic_partition])
            lane.at_work = True
            self._commit_now.set()
            try:
                if transactions is not None:
                    await transactions.run(chunk)
                else:
                    await dispatch.run(lane, chunk)
                    if lane.closing:
                        await self._flush()  # somebody waits for this lane: do not let outputs linger
                    await lane.outputs_stored()
            finally:
                lane.at_work = False
            if lane.error is not None and not lane.abandoned:
                self._stop_partition(lane, lane.error)
                return
            self._commit_now.set()
            # Handlers that never suspend must not keep other tasks from running for longer than one fetch.
            await anyio.lowlevel.checkpoint()

    def _output_failed(self, error: HandlerError) -> bool:
        """What a handler published was not stored. True: go on all the same."""
        if self.handler.spec.on_error == "skip":
            logger.error("handler %r: %s; skipped (on_error='skip')", self.handler.__name__, error)
            return True
        logger.error("handler %r: %s; nothing from there on is committed", self.handler.__name__, error)
        return False

    def _stop_partition(self, lane: Lane, error: HandlerError) -> None:
        lane.chunks.clear()
        if not lane.closing:
            self._consumer.pause([lane.topic_partition])
        self.error = self.error or error
        if self.handler.spec.on_error == "crash":
            raise error
        self._on_progress()

    async def _cut_long_slices(self) -> None:
        """Let no transaction grow old because its slice is long: the log would abort it."""
        longest_seconds = self.handler.spec.transaction_timeout_ms / 1000 / LONGEST_SHARE
        while True:
            await anyio.sleep(longest_seconds / 2)
            latest = anyio.current_time() - longest_seconds
            for lane, transactions in self._transactions.items():
                if transactions.begun_at is not None and transactions.begun_at <= latest:
                    lane.stopping = True

    # rebalances ------------------------------------------------------------------------------------------------------

    async def _assigned(self, partitions: list[TopicPartition]) -> None:
        self._on_progress()

    async def _give_up(self, partitions: list[TopicPartition]) -> None:
        """Partitions are about to move: finish the records at work, commit, and let go. The other lanes go on."""
        lanes = [self.lanes[partition] for partition in partitions if partition in self.lanes]
        self._giving_up = True
        try:
            for lane in lanes:
                lane.close()
            await self._let_end(lanes)
            if not self.handler.spec.exactly_once:
                await self._settle_and_commit(lanes)
            for lane in lanes:  # not so when cancelled: then they are still ours, and `_leave` commits them
                self._forget(lane)
        finally:
            self._giving_up = False
            self._on_progress()

    async def _let_end(self, lanes: Collection[Lane]) -> None:
        """Return when they are at rest, or their time is over; a handler that takes longer is cancelled."""
        with anyio.move_on_after(self._drain_seconds):
            await self._flush()
            for lane in lanes:
                await lane.ended.wait()
        late = [lane for lane in lanes if not lane.ended.is_set()]
        if not late:
            return
        logger.warning(
            "handler %r: the group %r takes away %s, and the record at work there has not finished within "
            "drain_timeout_ms=%d: it is cancelled, and handled again by whoever reads the partition next",
            self.handler.__name__, self.group, _named(late), self.handler.spec.drain_timeout_ms,
        )  # fmt: skip
        for lane in late:
            lane.scope.cancel()
        with anyio.move_on_after(self._drain_seconds):  # a plain function in its thread cannot be cancelled
            for lane in late:
                await lane.ended.wait()

    async def _settle_and_commit(self, lanes: Collection[Lane]) -> None:
        with anyio.move_on_after(self._drain_seconds):
            if any(not lane.is_idle for lane in lanes):
                await self._flush()
        try:
            await self._commit_lanes(lanes)
        except EventBusError as error:
            logger.warning(
                "handler %r: what was finished of %s could not be committed before the group %r took it away: %s; "
                "whoever reads it next handles those records again",
                self.handler.__name__, _named(lanes), self.group, error,
            )  # fmt: skip

    def _abandon(self, topic_partition: TopicPartition) -> None:
        """The partition is lost, or gone, or is another one of the same name: nothing of it is committed any more."""
        lane = self.lanes.get(topic_partition)
        if lane is not None:
            if lane.at_work or lane.finished > lane.committed:
                self._lost.append(lane)
            lane.close(abandon=True)
            self._forget(lane)
            self._on_progress()

    def _forget(self, lane: Lane) -> None:
        lane.close(abandon=True)
        if self.lanes.get(lane.topic_partition) is lane:
            del self.lanes[lane.topic_partition]
        if not lane.ended.is_set():
            self._ending[lane.topic_partition] = lane

    def _say_what_was_lost(self) -> None:
        lanes, self._lost = self._lost, []
        if lanes:
            logger.warning(
                "handler %r: %s went to another member of the group %r (or was deleted) before everything finished was "
                "committed: whoever reads it next handles those records again",
                self.handler.__name__, _named(lanes), self.group,
            )  # fmt: skip

    async def _is_settled(self) -> bool:
        """No rebalance is under way: the group and this member agree about who reads what."""
        if self._giving_up or self._consumer.polled():
            return False
        member = self._consumer.group_metadata()
        [group] = await self._backend.describe_groups([self.group])
        return group.state == "Stable" and group.generation_id == member.generation_id

    async def _wait_until_settled(self, lane: Lane) -> None:
        """Return when the group knows whose the lane's partition is: the lane goes on, or it is closing."""
        self._unsettled.add(lane)
        try:
            while not lane.closing:
                lane.wake = anyio.Event()
                if await self._is_settled():
                    return
                await lane.wake.wait()
        finally:
            self._unsettled.discard(lane)

    # commits ---------------------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await self._commit_now.wait()
            self._commit_now = anyio.Event()
            await anyio.sleep(_COMMIT_INTERVAL_SECONDS)
            await self._commit()
            if any(lane.at_work or lane.finished > lane.committed for lane in self.lanes.values()):
                self._commit_now.set()  # slow handlers, or a commit that failed

    async def _commit(self) -> None:
        self._consumer.assignment()  # those gone meanwhile are abandoned here
        try:
            await self._commit_lanes(self.lanes.values())
        except REBALANCED as error:
            # The next fetch rejoins; then it is tried again, or the partition is given up there.
            logger.debug("handler %r: not committed yet: %s", self.handler.__name__, error)
        except EventBusError as error:
            if str(error) != self._commit_error:  # it is tried ten times a second: say it once
                self._commit_error = str(error)
                logger.error("handler %r: offsets are not committed: %s", self.handler.__name__, error)
        else:
            self._commit_error = ""

    async def _commit_lanes(self, lanes: Collection[Lane]) -> None:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        moving: list[Lane] = []
        for lane in lanes:
            lane.settle()
            if lane.finished > lane.committed and not lane.abandoned:
                offsets[lane.topic_partition] = OffsetAndMetadata(lane.finished)
                moving.append(lane)
        if offsets:
            await self._consumer.commit(offsets)
        for lane in moving:
            lane.committed = max(lane.committed, offsets[lane.topic_partition].offset)

    async def _leave(self) -> None:
        try:
            if not self.handler.spec.exactly_once:
                # The flush drives the outputs itself: when everything is cancelled at once, the sender's task is gone.
                await self._flush()
                await self._commit()
        finally:
            try:
                await self._consumer.aclose()
            finally:  # whatever went wrong: the bus waits for this
                self.has_left = True
                self._on_progress()

    def __repr__(self) -> str:
        return f"<runner {self.handler.__name__} group={self.group} lanes={len(self.lanes)}>"


def _stops(error: HandlerError) -> bool:
    """An output of a transaction that was not stored: the transaction says what comes of it."""
    return False


def _named(lanes: Collection[Lane]) -> str:
    return ", ".join(str(lane.topic_partition) for lane in lanes)
