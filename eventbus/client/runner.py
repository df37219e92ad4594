"""Hops 5 to 7: records to a handler, its outputs to their topics, and then, only then, the offset.

One poll loop per handler puts what it fetches into a lane per partition; each lane runs its records in order. A lane
with enough to do pauses its partition, so polling never waits for a handler. Commits run beside both, and see nothing
but each lane's finished prefix.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
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
        self._consumer = consumer
        self._dispatch = Dispatch(handler, publish, serdes)
        self._flush = flush
        self._on_progress = on_progress
        self._poll_scope = anyio.CancelScope()
        self._commit_now = anyio.Event()
        self._lane_tasks: anyio.abc.TaskGroup | None = None

    @property
    def error(self) -> HandlerError | None:
        """Why a partition has stopped; None while all run."""
        return next((lane.error for lane in self.lanes.values() if lane.error is not None), None)

    async def start(self) -> None:
        """Subscribe; from here on nothing that arrives is missed. Raises UnknownTopicOrPartition, GroupInUse."""
        await self._consumer.subscribe(self.handler.spec.topics, self.handler.spec.pattern)

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
            lane = self.lanes[topic_partition] = Lane(topic_partition)
            assert self._lane_tasks is not None
            self._lane_tasks.start_soon(self._run_lane, lane)
        if lane.error is not None:
            return
        lane.chunks.append(chunk)
        if len(lane.chunks) >= _CHUNKS_PER_LANE:
            self._consumer.pause([topic_partition])
        lane.wake.set()

    # lanes -----------------------------------------------------------------------------------------------------------

    async def _run_lane(self, lane: Lane) -> None:
        stopping = self._dispatch
        while not stopping.stopping:
            if not lane.chunks:
                lane.wake = anyio.Event()
                self._on_progress()
                await lane.wake.wait()
                continue
            chunk = lane.chunks.popleft()
            if len(lane.chunks) == _CHUNKS_PER_LANE - 1 and lane.topic_partition in self._consumer.assignment():
                self._consumer.resume([lane.topic_partition])
            lane.at_work = True
            try:
                await self._dispatch.run(lane, chunk)
                await lane.outputs_stored()
            finally:
                lane.at_work = False
            if lane.error is not None:
                self._stop_partition(lane)
                return
            self._commit_now.set()
            # Handlers that never suspend must not keep other tasks from running for longer than one fetch.
            await anyio.lowlevel.checkpoint()

    def _stop_partition(self, lane: Lane) -> None:
        lane.chunks.clear()
        if lane.topic_partition in self._consumer.assignment():
            self._consumer.pause([lane.topic_partition])
        if self.handler.spec.on_error == "crash" and lane.error is not None:
            raise lane.error
        self._on_progress()

    def _wake_lanes(self) -> None:
        for lane in self.lanes.values():
            lane.wake.set()

    # commits ---------------------------------------------------------------------------------------------------------

    async def _commit_regularly(self) -> None:
        while True:
            await self._commit_now.wait()
            self._commit_now = anyio.Event()
            await self._commit()
            await anyio.sleep(_COMMIT_INTERVAL_SECONDS)
            if any(lane.at_work for lane in self.lanes.values()):
                self._commit_now.set()  # slow handlers: what is finished inside a fetch is committed too

    async def _commit(self) -> None:
        offsets: dict[TopicPartition, OffsetAndMetadata] = {}
        for topic_partition, lane in self.lanes.items():
            lane.settle()
            if lane.finished > lane.committed:
                offsets[topic_partition] = OffsetAndMetadata(lane.finished)
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except EventBusError as error:
            logger.error("handler %r: offsets are not committed: %s", self.handler.__name__, error)
            return
        for topic_partition, committed in offsets.items():
            self.lanes[topic_partition].committed = committed.offset

    async def _leave(self) -> None:
        # The flush drives the outputs itself: when everything is cancelled at once, the sender's task is gone.
        await self._flush()
        await self._commit()
        await self._consumer.aclose()
        self.has_left = True
        self._on_progress()

    def __repr__(self) -> str:
        return f"<runner {self.handler.__name__} group={self.group} lanes={len(self.lanes)}>"
