"""Hops 5 to 7: records to a handler, its outputs to their topics, and then, only then, the offset.

One poll loop per handler puts what it fetches into a lane per partition; each lane runs its records in order. A lane
with enough to do pauses its partition, so polling never waits for a handler. Commits run beside both, and see nothing
but each lane's finished prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.abc
import anyio.lowlevel

from eventbus.backends.base import BackendConsumer
from eventbus.client.dispatch import Dispatch, Publish
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
    """Runs one handler for one group."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        group: str,
        consumer: BackendConsumer,
        publish: Publish | None,
        flush: Callable[[], Awaitable[None]],
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
        self._consumer = consumer
        consumer.on_revoked = self._abandon
        self._dispatch = Dispatch(handler, publish, serdes)
        self._flush = flush
        self._on_progress = on_progress
        self._poll_scope = anyio.CancelScope()
        self._commit_now = anyio.Event()
        self._commit_error = ""
        self._lane_tasks: anyio.abc.TaskGroup | None = None

    async def start(self) -> None:
        """Subscribe; from here on nothing that arrives is missed. Raises UnknownTopicOrPartition, GroupInUse."""
        try:
            await self._consumer.subscribe(self.handler.spec.topics, self.handler.spec.pattern)
        except BaseException:
            await self._consumer.aclose()
            raise

    async def run(self) -> None:
        """Poll, handle and commit until `stop`; then finish the records at work, commit, and leave."""
        try:
            async with anyio.create_task_group() as background:
                background.start_soon(self._commit_regularly)
                async with anyio.create_task_group() as self._lane_tasks:
                    with self._poll_scope:
                        await self._poll()
                    self._wake_lanes()
                background.cancel_scope.cancel()
        finally:
            # Also when cancelled: what is finished is committed, what is not is not.
            with anyio.CancelScope(shield=True):
                await self._leave()

    def stop(self) -> None:
        """Take no further record; those at work are finished."""
        self._dispatch.stopping = True
        self._poll_scope.cancel()
        self._wake_lanes()

    async def is_idle(self) -> bool:
        """Everything now in the topics has been handled and its outputs are stored."""
        if not all(lane.is_idle for lane in self.lanes.values()):
            return False
        for topic_partition, end in (await self._consumer.end_offsets(self._consumer.assignment())).items():
            lane = self.lanes.get(topic_partition)
            if lane is not None and lane.error is not None:
                continue
            if await self._consumer.position(topic_partition) < end:
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
            await anyio.lowlevel.checkpoint()

    def _hand_over(self, chunk: FetchedRecords) -> None:
        topic_partition = TopicPartition(chunk.topic, chunk.partition)
        lane = self.lanes.get(topic_partition)
        if lane is None:
            lane = self.lanes[topic_partition] = Lane(topic_partition, self._output_failed)
            assert self._lane_tasks is not None
            self._lane_tasks.start_soon(self._run_lane, lane)
        if lane.error is not None:
            return
        lane.chunks.append(chunk)
        if len(lane.chunks) >= _CHUNKS_PER_LANE:
            self._consumer.pause([topic_partition])
        lane.wake.set()

    def _abandon(self, topic_partition: TopicPartition) -> None:
        """The partition is gone, or is another one of the same name: a new lane begins where that begins."""
        lane = self.lanes.pop(topic_partition, None)
        if lane is not None:
            lane.abandoned = True
            lane.chunks.clear()
            lane.wake.set()
            self._on_progress()

    # lanes -----------------------------------------------------------------------------------------------------------

    async def _run_lane(self, lane: Lane) -> None:
        inside_handler.set(self.handler.__name__)
        dispatch = self._dispatch
        while not (dispatch.stopping or lane.abandoned):
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
                await dispatch.run(lane, chunk)
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
        self._consumer.pause([lane.topic_partition])
        self.error = self.error or error
        if self.handler.spec.on_error == "crash":
            raise error
        self._on_progress()

    def _wake_lanes(self) -> None:
        for lane in self.lanes.values():
            lane.wake.set()

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
        assigned = set(self._consumer.assignment())  # those gone meanwhile are abandoned here
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic_partition, lane in self.lanes.items():
            lane.settle()
            if lane.finished > lane.committed and topic_partition in assigned:
                offsets[topic_partition] = OffsetAndMetadata(lane.finished)
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except EventBusError as error:
            if str(error) != self._commit_error:  # it is tried ten times a second: say it once
                self._commit_error = str(error)
                logger.error("handler %r: offsets are not committed: %s", self.handler.__name__, error)
            return
        self._commit_error = ""
        for topic_partition, committed in offsets.items():
            lane = self.lanes.get(topic_partition)
            if lane is not None:
                lane.committed = committed.offset

    async def _leave(self) -> None:
        try:
            # The flush drives the outputs itself: when everything is cancelled at once, the sender's task is gone.
            await self._flush()
            await self._commit()
        finally:
            await self._consumer.aclose()
            self.has_left = True
            self._on_progress()

    def __repr__(self) -> str:
        return f"<runner {self.handler.__name__} group={self.group} lanes={len(self.lanes)}>"
