"""The driver of one partition of a handler, which performs the actions that its `PartitionWork` decides.

Records and offsets belong to ``work``. The driver contains the events that the partition's tasks wait for. Subclasses
perform the calls: in order or by workers (`drivers`), in transactions (`exactly_once`), or when the entries of a retry
partition are due (`retry_partition`).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from itertools import compress
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from eventbus.backends.delivery import Delivery
from eventbus.backends.event_loop import EventLoop
from eventbus.backends.wake import Wake
from eventbus.client.handling.call_loop import CallLoop
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.waits import Wait
from eventbus.client.handling.work_actions import Call, Commit, Policy
from eventbus.errors import EventBusError, HandlerError, IllegalGeneration
from eventbus.recovery import Outgoing
from eventbus.types import ConsumerRecord, FetchedRecords, TimestampType, TopicPartition

if TYPE_CHECKING:
    from eventbus.client.handling.call_timeouts import Caller


class Outcome(Protocol):
    """The outcome of a published record, such as a `Delivery`."""

    def done(self) -> bool: ...

    def exception(self) -> EventBusError | None: ...

    async def wait(self) -> None: ...


def combined_outcome(outputs: Sequence[Delivery]) -> Outcome:
    """Return an outcome that is done when all deliveries are done, and has the error of the first that failed."""
    batches = {id(output.batch): output for output in outputs}
    return _AllOf(list(batches.values())) if len(batches) > 1 else outputs[-1]


class _AllOf:
    """Several deliveries as one outcome, for a handler that published to several partitions."""

    def __init__(self, outputs: list[Delivery]) -> None:
        self._outputs = outputs

    def done(self) -> bool:
        return all(output.done() for output in self._outputs)

    def exception(self) -> EventBusError | None:
        return next((output.exception() for output in self._outputs if output.exception() is not None), None)

    async def wait(self) -> None:
        for output in self._outputs:
            await output.wait()


class CommitWaiter:
    """A task that waits until a commit covers an offset."""

    __slots__ = ("done", "error", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.done = anyio.Event()
        self.error: EventBusError | None = None


class KeysInRetry:
    """The keys of a partition that wait for a later try."""

    held: Collection[bytes | None] | None = None
    """A live view; None: nothing waits."""

    def __init__(self) -> None:
        self.hold: Callable[[ConsumerRecord], object] = lambda record: None
        """Called with a record that is about to wait for its next try."""
        self.unhold: Callable[[ConsumerRecord], object] = lambda record: None
        """Called if the record is not moved to the retry topic after all."""

    def __len__(self) -> int:
        return len(self.held or ())

    def __contains__(self, key: bytes | None) -> bool:
        return bool(self.held) and key in self.held

    def block(self, records: FetchedRecords, index: int) -> None:
        self.hold(records.record(index))

    def unblock(self, records: FetchedRecords, index: int) -> None:
        self.unhold(records.record(index))


class PartitionDriver:
    """One partition of a handler. The base class takes records, and calls none."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        on_output_error: Callable[[HandlerError], bool],
        policy: Policy | None = None,
        *,
        on_commit_due: Callable[[], object] = lambda: None,
    ) -> None:
        self.topic_partition = topic_partition
        self._loop = EventLoop.running()
        self.blocked = KeysInRetry()
        self.work = PartitionWork(policy or Policy(), self.blocked)
        self._in_transactions = self.work.policy.delivery == "exactly-once"
        self.chunks: deque[FetchedRecords] = deque()
        """Fetched records that ``work`` does not have yet."""
        self.paused = False
        """True while the partition is not fetched, because enough records wait."""
        self.at_work = False
        """A retry partition has an entry that is due, or its commit."""
        self.begun_at = -1
        """The first offset that was fetched."""
        self.error: HandlerError | None = None
        """Why the partition has stopped."""
        self.unreadable: HandlerError | None = None
        """Why the log cannot be read any further; the partition stops when it has handled what was fetched before."""
        self.closing = False
        """No further record is begun at all: the partition moves away, or the handler stops."""
        self.is_queued = False
        """True if it is in the queue of partitions that may have a call for a worker."""
        self.wake = Wake(self._loop)
        self.awaited: Callable[[], bool] | None = None
        """The partition's task waits until this is true of ``work``."""
        self.scope = anyio.CancelScope()
        """Around all that the driver does; cancelled when a handler outlasts the time it has to give up a partition."""
        self.ended = anyio.Event()
        self.predecessor: PartitionDriver | None = None
        """The partition's previous driver, if its calls may still run. This driver starts after it has ended."""
        self.call_loop = CallLoop()
        """Runs the calls of records that are handled in order."""
        self.caller: Caller | None = None
        """The task that makes the calls of records in order."""
        self.moves: dict[int, Outgoing] = {}
        """The records that the entries of a retry partition turned into, by entry number."""
        self.note: Callable[[], str] | None = None
        """Returns the metadata that a commit stores with the offset."""
        self.waits = False
        """True if the next record waits on purpose: for a set time, or for an earlier record's next try. Such a
        partition is not stuck."""
        self.wait: Wait | None = None
        """Set while the partition tries something until it works, although its next record is due."""
        self.release_slot: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Entered during such a wait, so that another partition may run meanwhile under ``concurrency=``."""
        self.tried: tuple[int, int] = (-1, 0)
        """An offset whose call was made before, in a transaction that was aborted because of it, and how often."""
        self.on_commit_due = on_commit_due
        """Called when ``commit_every`` records, or a `CommitWaiter`, wait for a commit."""
        self.waiters: list[CommitWaiter] = []
        self.outputs: deque[tuple[int, Outcome]] = deque()
        """Published records that may not be stored yet, each with the offset of the record that caused it."""
        self._on_output_error = on_output_error
        self._thread = get_ident()

    @property
    def abandoned(self) -> bool:
        """True if the partition is lost: calls in flight end, and are not committed."""
        return self.work.is_lost

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first fetched record that is not finished; None if all are."""
        oldest_ms = self.work.oldest_ms
        if oldest_ms is None:
            oldest_ms = next((chunk.timestamps_ms[0] for chunk in self.chunks if chunk.offsets), None)
        return oldest_ms

    # for its task ----------------------------------------------------------------------------------------------------

    async def run(self, chunk: FetchedRecords) -> None:
        """Begin all records, or as many as may be begun; what was begun need not have ended on return."""
        self.work.fetched(chunk)

    async def advance_to(self, next_offset: int) -> None:
        """Everything fetched before has been `run`, and nothing from there to ``next_offset`` is for the handler."""
        await self.run(nothing_before(self.topic_partition, next_offset))

    def rest(self) -> Awaitable[object]:
        """Return when the partition is woken."""
        return self.wake.wait()

    async def finish(self) -> None:
        """The partition is closing, or in error: return when all that was begun has ended."""

    async def aclose(self) -> None:
        """The partition ends here, also when it was cancelled. On return nothing of it is in flight."""

    def cut_off(self) -> None:
        """The group no longer waits for the call in flight, so give it up."""

    def wake_workers(self) -> None:
        """``work`` may have a new call: wake an idle worker."""

    # what its task waits for -----------------------------------------------------------------------------------------

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return when the partition is woken, or the condition has become true of ``work``."""
        self.wake.clear()
        # Checked after `clear`: what became true before it set the event, and would be lost.
        if condition():
            return
        self.awaited = condition
        try:
            await self.wake.wait()
        finally:
            self.awaited = None

    def progressed(self) -> None:
        """Records are finished, or are not called after all."""
        # The condition is checked here, by the one who makes progress, because waking a task for each record would cost
        # more than the record.
        if self.awaited is not None and (self.outputs or self.awaited()):
            self.wake.set()
        if self.work.policy.commit_every is not None and self.work.wants_commit:
            self.on_commit_due()

    def _finished_some(self) -> None:
        """Records finished without the end of a call, so later records may begin: wake the workers if necessary."""
        if self.work.waits_for_room:
            self.wake_workers()
        self.progressed()

    def stop(self, error: HandlerError) -> None:
        """Stop the partition; what was finished before is committed."""
        self.error = self.error or error
        self.work.stop(error)
        self.wake.set()

    # outputs ---------------------------------------------------------------------------------------------------------

    def returned(self, call: Call, upto: int) -> None:
        """The records of a call up to a position are handled, unless the end of their transaction decides that."""
        if not self._in_transactions:
            self.work.returned(call, upto)

    def published(self, call: Call, after: int, output: Outcome) -> None:
        """The records in flight are handled, and finished once ``output`` is stored."""
        self.outputs.append((call.offset(after - 1), output))
        if not self._in_transactions:
            if call.at > call.done:
                self.work.returned(call, call.at)
            self.work.returned(call, after, id(output))

    def settle(self) -> None:
        """Process the outcomes of outputs in order; stop at a refused output unless ``on_error`` skips it."""
        outputs = self.outputs
        # In order, because the first refused output decides where the partition stops.
        while outputs and outputs[0][1].done():
            offset, output = outputs.popleft()
            error = output.exception()
            refused = None if error is None else self._refused(offset, error)
            self.work.refused(id(output), refused)
            if refused is not None:
                self.stop(refused)
        self._finished_some()

    def _refused(self, offset: int, error: EventBusError) -> HandlerError | None:
        """Return the error that stops the partition because an output was refused; None to continue without it."""
        stopped = HandlerError(
            f"{self.topic_partition}: what the handler published for offset {offset} was not stored: {error}"
        )
        stopped.__cause__ = error
        return None if self._on_output_error(stopped) else stopped

    async def outputs_stored(self) -> None:
        """Return when the outcome of everything published so far is known."""
        self.settle()
        while self.outputs:
            # Outputs are acknowledged in any order (two partitions, two brokers), and `wait` does not yield for one
            # that is acknowledged already. So wait for the first open output: a loop that waits for a later one would
            # keep the event loop from ever delivering the acknowledgement of the first, which is open after `settle`.
            await self.outputs[0][1].wait()
            self.settle()

    # manual acknowledgement ------------------------------------------------------------------------------------------

    def acknowledge(self, offset: int) -> None:
        """The user reports that a record is finished. From any thread; another one waits for the event loop."""
        # `PartitionWork` has no lock. All its events come from the event loop's thread.
        if get_ident() != self._thread:
            self._loop.call_from_thread(partial(self.acknowledge, offset))
            return
        self.work.acknowledged(offset)
        self._finished_some()

    async def acknowledge_now(self, offset: int) -> None:
        """Acknowledge, and return when a commit that covers the record is stored. Raises the errors of a commit."""
        self.acknowledge(offset)
        await self.committed_beyond(offset)

    # commits ---------------------------------------------------------------------------------------------------------

    async def committed_beyond(self, offset: int) -> None:
        """Return when a commit that covers the record at ``offset`` is stored. Raises the error that prevents it."""
        if self.work.committed > offset:
            return
        if self.abandoned:
            raise self._gone()
        waiter = CommitWaiter(offset + 1)
        # Added before the commit is requested, which may be stored before this task runs again.
        self.waiters.append(waiter)
        self.on_commit_due()
        try:
            await waiter.done.wait()
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        if waiter.error is not None:
            raise waiter.error

    def stored(self, commit: Commit) -> None:
        """A commit is stored."""
        self.work.commit_stored(commit)
        if self.waiters:
            self.was_committed(commit.next_offset)
        if self.work.has_calls or self.work.has_left:
            self.wake_workers()

    def was_committed(self, next_offset: int, error: EventBusError | None = None) -> None:
        """End the wait for a commit of ``next_offset``, which was stored or refused."""
        for waiter in [waiter for waiter in self.waiters if waiter.next_offset <= next_offset]:
            self.waiters.remove(waiter)
            waiter.error = error
            waiter.done.set()

    def _gone(self) -> IllegalGeneration:
        return IllegalGeneration(
            f"{self.topic_partition} went to another member of the group before the record was committed: the "
            "partition's next owner handles it again"
        )

    # life ------------------------------------------------------------------------------------------------------------

    def close(self, *, abandon: bool = False) -> None:
        """Begin no further record. With ``abandon`` nothing of the partition may be committed any more."""
        self.closing = True
        # Not begun and not committed: the next owner reads them.
        self.chunks.clear()
        (self.work.lost if abandon else self.work.revoked)()
        self.wake.set()
        # No commit follows that could end these waits.
        if abandon and self.waiters:
            self.was_committed(sys.maxsize, self._gone())

    @property
    def is_busy(self) -> bool:
        """True if records are in flight, or were taken and are not finished."""
        return self.at_work or not self.work.is_idle

    @property
    def has_moves(self) -> bool:
        """True if the next commit must write records to other topics."""
        return bool(self.moves) or self.work.has_forwards

    @property
    def is_idle(self) -> bool:
        """True if no record waits or is in flight, and every output is stored."""
        return not (self.chunks or self.outputs or self.is_busy or (self.moves and self.error is None))

    def __repr__(self) -> str:
        state = "failed" if self.error else "idle" if self.is_idle else "busy"
        return f"<partition {self.topic_partition} {state} {self.work!r}>"


def nothing_before(topic_partition: TopicPartition, next_offset: int) -> FetchedRecords:
    """Return a fetch without records: reading has moved to ``next_offset`` past what is not for readers."""
    return FetchedRecords(*topic_partition, (), (), (), (), None, TimestampType.CREATE_TIME, next_offset)


def part_of(chunk: FetchedRecords, start: int, end: int, left_out: Collection[int] = ()) -> FetchedRecords:
    """Return the records of ``chunk`` from ``start`` up to ``end``, without those left out."""
    if start == 0 and end == len(chunk) and not left_out:
        return chunk
    kept = bytearray(b"\1") * (end - start)
    for index in left_out:
        kept[index - start] = 0

    def column(values: Sequence[Any]) -> Sequence[Any]:
        return list(compress(values[start:end], kept)) if left_out else values[start:end]

    return FetchedRecords(
        chunk.topic,
        chunk.partition,
        column(chunk.offsets),
        column(chunk.timestamps_ms),
        column(chunk.keys),
        column(chunk.values),
        None if chunk.headers is None else column(chunk.headers),
        chunk.timestamp_type,
        chunk.offsets[end] if end < len(chunk) else chunk.next_offset,
    )
