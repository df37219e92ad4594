"""One partition's records on their way through a handler, and how far they are finished."""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import compress
from threading import get_ident
from typing import Any, Protocol

import anyio
import anyio.from_thread
import anyio.lowlevel
from anyio.lowlevel import EventLoopToken

from eventbus.client.handling.call_loop import CallLoop
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.waits import Wait
from eventbus.client.handling.work_actions import Abort, Commit, Cursor, Mode
from eventbus.errors import EventBusError, HandlerError, IllegalGeneration
from eventbus.recovery import Outgoing
from eventbus.types import ConsumerRecord, FetchedRecords, TimestampType, TopicPartition

_TO_DO, _FINISHED, _UNSTORED = 0, 1, 2
"""A record's state in `Taken`. Unstored: handled, but what it published is on its way."""


class Outcome(Protocol):
    """Whether something published is stored; a `Delivery` is one."""

    def done(self) -> bool: ...

    def exception(self) -> EventBusError | None: ...

    async def wait(self) -> None: ...


class CommitWaiter:
    """Somebody who waits until a commit covers an offset."""

    __slots__ = ("done", "error", "next_offset")

    def __init__(self, next_offset: int) -> None:
        self.next_offset = next_offset
        self.done = anyio.Event()
        self.error: EventBusError | None = None


class Lane:
    """Records of one partition.

    ``finished`` is the next offset to read after the contiguous prefix of records whose handlers have returned and
    whose outputs are stored: the only thing a commit ever sees. Records handled in order move it with `handled`; those
    that finish in any order are taken with `take`, and each says for itself that it is finished.
    """

    __slots__ = (
        "_commit_at", "_in_flight", "_on_output_error", "_thread", "_token", "_unstored", "_wake_at", "abandoned",
        "at_hand", "at_work", "begun_at", "begun_count", "call", "call_loop", "chunks", "closing", "commit_every",
        "committed", "cut_off", "ended", "error", "finished_count", "given_up_at", "held", "hold", "hold_back",
        "known_finished", "limit", "moves", "note", "on_commit_due", "paused", "predecessor", "report", "ring_at",
        "scope", "step_aside", "stopping", "taken", "taken_bytes", "topic_partition", "tried", "unhold", "unreadable",
        "wait", "waiters", "waits", "wake", "work",
    )  # fmt: skip

    def __init__(
        self,
        topic_partition: TopicPartition,
        on_output_error: Callable[[HandlerError], bool],
        *,
        commit_every: int | None = None,
        on_commit_due: Callable[[], object] = lambda: None,
    ) -> None:
        self.topic_partition = topic_partition
        self.chunks: deque[FetchedRecords] = deque()
        """What was fetched and not begun."""
        self.at_hand: FetchedRecords | None = None
        """What is handled, or was when the lane stopped."""
        self.paused = False
        """Enough is waiting: the partition is not fetched from."""
        self.at_work = False
        self.begun_at = -1
        """The first offset that was fetched."""
        self.known_finished = -1
        """`finished`, without what the call in flight has done."""
        self.committed = -1
        self.error: HandlerError | None = None
        """Why the lane has stopped. From then on nothing moves `finished` past the record at fault."""
        self.unreadable: HandlerError | None = None
        """Why the log cannot be read any further; the lane stops when it has handled what was fetched before."""
        self.given_up_at = -1
        """The offset at fault, where its call goes on in a thread: what the thread did before it still counts."""
        self.stopping = False
        """The record at work is the last one for now: looked at before each record."""
        self.closing = False
        """No further record is begun at all: the partition moves away, or the handler stops."""
        self.abandoned = False
        """The partition is gone: what is at work ends, and is not committed."""
        self.wake = anyio.Event()
        self.scope = anyio.CancelScope()
        """Around everything the lane does; cancelled when a handler outlasts the time it has to give up a partition."""
        self.ended = anyio.Event()
        self.predecessor: Lane | None = None
        """The lane of the same partition before this one, when it may still be at work: its end comes first."""
        self.call: Cursor | None = None
        """The records that are being handled in order."""
        self.call_loop = CallLoop()
        """Runs the calls of records that are handled in order."""
        self.work: PartitionWork | None = None
        """The state of the records, for handlers in order that acknowledge them by returning."""
        self.report: Callable[[], object] = lambda: None
        """Reports to ``work`` what was handled so far."""
        self.cut_off: Callable[[], object] = lambda: None
        """Called when nobody waits any longer for the call in flight."""
        self.moves: dict[int, Outgoing] = {}
        """By offset what records turned into that are finished by being written to another topic: that, and the commit
        that says so, are one transaction."""
        self.note: Callable[[], str] = _no_note
        """What is to stand beside the offset in a commit."""
        self.held: Collection[bytes | None] | None = None
        """Keys whose records wait for an earlier one that waits for its next try: a live view; None: nothing waits."""
        self.hold: Callable[[ConsumerRecord], object] = lambda record: None
        """Says that a record goes to wait for its next try: later ones of its key are held from now on."""
        self.unhold: Callable[[ConsumerRecord], object] = lambda record: None
        """It does not go there after all."""
        self.waits = False
        """Its next record waits on purpose: for a time that was set, or for an earlier record's next try."""
        self.wait: Wait | None = None
        """Set while the lane tries something until it works, although its next record is due."""
        self.step_aside: Callable[[], AbstractAsyncContextManager[None]] = nullcontext
        """Entered for such a wait: under ``concurrency=`` another lane has its turn meanwhile."""
        self.tried: tuple[int, int] = (-1, 0)
        """An offset whose call was made before, in a transaction that was aborted because of it, and how often."""
        self.hold_back: Callable[[FetchedRecords, int], None] = lambda chunk, index: None
        """Puts a record of such a key behind the earlier one; the record is finished by that."""
        # Records that finish in any order.
        self.taken: deque[Taken] = deque()
        """In order of their offsets; the first one has an unfinished record."""
        self.begun_count = 0
        """Records taken, ever."""
        self.taken_bytes = 0
        """The size of the fetches that hold them, each counted until all of its records are finished."""
        self.finished_count = 0
        """Records taken that are in the finished prefix."""
        self.ring_at = sys.maxsize if commit_every is None else commit_every
        """`finished_count` at which the lane has something to do: see `wake_when` and ``commit_every``."""
        self._wake_at = sys.maxsize
        self.limit = sys.maxsize
        """No record from this offset on is begun."""
        # Commits.
        self.commit_every = sys.maxsize if commit_every is None else commit_every
        self.on_commit_due = on_commit_due
        """Called when ``commit_every`` records wait for a commit, or somebody does."""
        self._commit_at = self.ring_at
        self.waiters: list[CommitWaiter] = []
        self._in_flight: deque[tuple[int, Outcome]] = deque()
        self._unstored: deque[tuple[Taken, int, Outcome]] = deque()
        self._on_output_error = on_output_error
        self._thread = get_ident()
        self._token = anyio.lowlevel.current_token()

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first record that is not finished, of those that were fetched; None: all are."""
        if self.taken:
            chunks = (self.taken[0].chunk,)
        elif self.at_hand is not None:
            chunks = (self.at_hand, *self.chunks)
        else:
            chunks = tuple(self.chunks)
        for chunk in chunks:
            index = bisect_left(chunk.offsets, self.finished)
            if index < len(chunk) and chunk.next_offset > self.finished:
                return chunk.timestamps_ms[index]
        return None

    # records in order ------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> int:
        """The next offset after the finished prefix; -1: nothing has arrived."""
        call = self.call
        if call is not None and call.is_plain and call.at:
            self.known_finished = max(self.known_finished, call.offset(call.at - 1) + 1)
        return self.known_finished

    @finished.setter
    def finished(self, offset: int) -> None:
        self.known_finished = offset

    def ends(self, call: Cursor) -> None:
        """The records of ``call`` are not handled any longer."""
        if self.call is call:
            self.known_finished, self.call = self.finished, None

    def handled(self, next_offset: int, last_output: Outcome | None = None) -> None:
        """Every record below ``next_offset`` was handled; ``last_output`` is what the last of them published."""
        if self.error is not None and next_offset > self.given_up_at:
            return
        if last_output is not None:
            self._in_flight.append((next_offset, last_output))
        elif self._in_flight:
            # Without an output of its own it is finished when the outputs before it are stored.
            self._in_flight.append((next_offset, self._in_flight[-1][1]))
        else:
            self.finished = next_offset

    @property
    def reached(self) -> int:
        """The next offset to handle: as `finished`, whether or not the outputs are stored. -1: no record yet."""
        return self._in_flight[-1][0] if self._in_flight else self.finished

    def rewind(self, offset: int) -> None:
        """What was handled from ``offset`` on is undone, and may be handled again."""
        self._in_flight.clear()
        self.error = None
        self.finished = offset

    # records in any order --------------------------------------------------------------------------------------------

    def take(self, chunk: FetchedRecords) -> Taken:
        """From here on each record of ``chunk`` says for itself that it is finished. Fetches are taken in order."""
        taken = Taken(self, chunk, is_front=not self.taken)
        self.begun_count += len(chunk)
        self.taken_bytes += taken.size_bytes
        self.taken.append(taken)
        if not len(chunk):
            self.advance()
        return taken

    @property
    def unfinished(self) -> int:
        """Records taken, from the first unfinished one on."""
        return self.begun_count - self.finished_count

    def advance(self) -> None:
        """Records at the front are finished: move ``finished`` on, over as many as there are."""
        while self.taken:
            front = self.taken[0]
            moved, is_over = front.advance()
            self.finished_count += moved
            if not is_over:
                break
            self.taken.popleft().call = None  # it may refer to the fetch in a circle
            self.taken_bytes -= front.size_bytes
            if self.taken:
                self.taken[0].is_front = True
        if self.finished_count >= self.ring_at:
            self.ring()

    def wake_when(self, unfinished: int) -> None:
        """Wake the lane when no more than so many are unfinished."""
        self._wake_at = self.begun_count - unfinished
        self.ring_at = min(self._wake_at, self._commit_at)
        if self.finished_count >= self.ring_at:
            self.ring()

    def ring(self) -> None:
        """`finished_count` has come to where there is something to do."""
        if self.finished_count >= self._wake_at:
            self._wake_at = sys.maxsize
            self.wake.set()
        if self.finished_count >= self._commit_at:
            self._commit_at = sys.maxsize
            self.on_commit_due()
        self.ring_at = min(self._wake_at, self._commit_at)

    def commit_begins(self) -> None:
        """What is finished now is being committed: count ``commit_every`` from here."""
        self._commit_at = self.finished_count + self.commit_every
        self.ring_at = min(self._wake_at, self._commit_at)

    def cut(self, limit: int) -> None:
        """Let go of the records from the offset ``limit`` on: they are not begun, and will not be."""
        self.limit = limit
        for taken in self.taken:
            taken.cut(limit)
        self.begun_count = self.finished_count + sum(taken.unfinished for taken in self.taken)
        self.advance()

    def unstored(self, taken: Taken, index: int, output: Outcome) -> None:
        """A record of ``taken`` was handled, and is finished once ``output`` is stored."""
        self._unstored.append((taken, index, output))

    @property
    def token(self) -> EventLoopToken | None:
        """The event loop the lane lives on, for other threads; None in its own."""
        return None if get_ident() == self._thread else self._token

    def holds(self, key: bytes | None) -> bool:
        """A record of this key must wait."""
        return bool(self.held) and key in self.held

    # outputs ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Move `finished` past records whose outputs are stored; stop at one that was not, unless that is skipped.

        What is on its way came before the record that stopped the lane, if one did: it is finished all the same.
        """
        in_flight = self._in_flight
        work = self.work if self.work is not None and self.work.has_outputs else None
        while in_flight and in_flight[0][1].done():
            next_offset, output = in_flight.popleft()
            is_refused = self._was_refused(output, next_offset - 1)
            if work is not None:
                work.refused(id(output), self.error if is_refused else None)
            if is_refused:
                in_flight.clear()
                return
            self.finished = next_offset
        unstored = self._unstored
        while unstored and unstored[0][2].done():
            taken, index, output = unstored.popleft()
            if not self._was_refused(output, taken.chunk.offsets[index]):
                taken.stored(index)

    def _was_refused(self, output: Outcome, offset: int) -> bool:
        """The log did not take what was published, and nobody wants to go on without it."""
        error = output.exception()
        if error is None:
            return False
        stopped = HandlerError(
            f"{self.topic_partition}: what the handler published for offset {offset} was not stored: {error}"
        )
        stopped.__cause__ = error
        if self._on_output_error(stopped):
            return False
        self.error = self.error or stopped
        self.wake.set()
        return True

    async def outputs_stored(self) -> None:
        """Return when the outcome of everything published so far is known and `finished` covers it."""
        self.settle()
        while self.has_outputs:
            # Outputs are acknowledged in any order (two partitions, two brokers), and `wait` does not yield for one
            # that is acknowledged already. So wait for the first open output: a loop that waits for a later one would
            # keep the event loop from ever delivering the acknowledgement of the first. After `settle` the first of
            # each queue is open.
            await (self._in_flight[0][1] if self._in_flight else self._unstored[0][2]).wait()
            self.settle()

    @property
    def has_outputs(self) -> bool:
        """Something published is on its way."""
        return bool(self._in_flight or self._unstored)

    # commits ---------------------------------------------------------------------------------------------------------

    async def committed_beyond(self, offset: int) -> None:
        """Return when a commit that covers the record at ``offset`` is stored; raises what keeps it from being."""
        if self.committed > offset:
            return
        if self.abandoned:
            raise self._gone()
        waiter = CommitWaiter(offset + 1)
        self.waiters.append(waiter)
        self.on_commit_due()
        try:
            await waiter.done.wait()
        finally:
            if waiter in self.waiters:
                self.waiters.remove(waiter)
        if waiter.error is not None:
            raise waiter.error

    def next_commit(self) -> Commit | Abort | None:
        """Return what can be committed now."""
        if self.work is not None:
            self.report()
            is_ahead = self.work.mode is Mode.OPEN and self.work.policy.delivery == "at-most-once"
            return None if is_ahead else self.work.next_commit()
        return Commit(self.finished) if self.finished > self.committed and not self.abandoned else None

    def was_committed(self, next_offset: int, error: EventBusError | None = None) -> None:
        """A commit of ``next_offset`` was stored, or refused."""
        if error is None:
            self.committed = max(self.committed, next_offset)
        for waiter in [waiter for waiter in self.waiters if waiter.next_offset <= next_offset]:
            self.waiters.remove(waiter)
            waiter.error = error
            waiter.done.set()

    def _gone(self) -> IllegalGeneration:
        return IllegalGeneration(
            f"{self.topic_partition} went to another member of the group before the record was committed: whoever "
            "reads the partition next handles it again"
        )

    # life ------------------------------------------------------------------------------------------------------------

    def close(self, *, abandon: bool = False) -> None:
        """Begin no further record. ``abandon``: nothing of it may be committed any more either."""
        self.stopping = self.closing = True
        self.chunks.clear()
        self.wake.set()
        if self.work is not None:
            (self.work.lost if abandon else self.work.revoked)()
        if abandon and not self.abandoned:
            self.abandoned = True
            if self.waiters:
                self.was_committed(sys.maxsize, self._gone())

    @property
    def is_busy(self) -> bool:
        """Records are at work, or taken and not finished."""
        return self.at_work or bool(self.taken)

    @property
    def has_moves(self) -> bool:
        """A commit has to write records to other topics."""
        return bool(self.moves) or (self.work is not None and self.work.has_forwards)

    @property
    def in_flight(self) -> Sequence[tuple[int, Outcome]]:
        """Outputs that are not stored yet, each with the next offset after its record."""
        return self._in_flight

    @property
    def is_idle(self) -> bool:
        """Nothing waits, is at work, or is on its way to be stored."""
        waits = self.error is None and (self.taken or self.has_moves)
        return not (self.chunks or self.at_work or self._in_flight or self._unstored or waits)

    def __repr__(self) -> str:
        state = "failed" if self.error else "idle" if self.is_idle else "busy"
        return f"<lane {self.topic_partition} {state} finished={self.finished} committed={self.committed}>"


def _no_note() -> str:
    return ""


class Taken:
    """A fetch whose records finish in any order. Made by `Lane.take`."""

    __slots__ = ("_end", "_first", "_publishes", "_states", "call", "chunk", "given", "is_front", "lane", "size_bytes")

    def __init__(self, lane: Lane, chunk: FetchedRecords, is_front: bool) -> None:
        self.lane = lane
        self.chunk = chunk
        self.size_bytes = chunk.size_bytes
        self.is_front = is_front
        """No fetch before it is unfinished."""
        self.call: Callable[[int], Any] | None = None
        """How workers begin the call of a record, by its index."""
        self.given = set[int]()
        """Indexes of records acknowledged by hand that the handler got to see."""
        self._states = bytearray(len(chunk))
        self._first = 0
        """The first record that is not finished."""
        self._end = len(chunk)
        self._publishes = False

    def handled(self, index: int, output: Outcome | None = None) -> None:
        """The record is finished, or will be once ``output`` is stored. Said twice, it counts once."""
        states = self._states
        if states[index] == _FINISHED or states[index] == _UNSTORED:
            return
        if output is not None:
            states[index] = _UNSTORED
            self._publishes = True
            self.lane.unstored(self, index, output)
            return
        states[index] = _FINISHED
        if index != self._first or not self.is_front:
            return
        stop = states.find(_TO_DO, index, self._end)
        if stop < 0 or self._publishes:
            self.lane.advance()
            return
        # The same as `Lane.advance`, in one breath.
        self._first = stop
        lane = self.lane
        lane.known_finished = self.chunk.offsets[stop - 1] + 1
        lane.finished_count += stop - index
        if lane.finished_count >= lane.ring_at:
            lane.ring()

    def stored(self, index: int) -> None:
        """What the record waited for is stored."""
        self._states[index] = _FINISHED
        if index == self._first and self.is_front:
            self.lane.advance()

    def is_handled(self, index: int) -> bool:
        """Finished, or only its output is on its way."""
        return self._states[index] in (_FINISHED, _UNSTORED)

    def dropped(self, index: int) -> bool:
        """The record must not be begun any more: the partition is being given up."""
        return self.chunk.offsets[index] >= self.lane.limit

    # manual acknowledgement

    def acknowledge(self, index: int) -> None:
        """The user says that the record is finished. From any thread; from another one it waits for the event loop."""
        token = self.lane.token
        if token is None:
            self._acknowledge(index)
        else:
            anyio.from_thread.run_sync(self._acknowledge, index, token=token)

    async def acknowledge_now(self, index: int) -> None:
        """The same, and return when the commit that covers it is stored; raises what a commit raises."""
        self._acknowledge(index)
        await self.lane.committed_beyond(self.chunk.offsets[index])

    def _acknowledge(self, index: int) -> None:
        if index < self._end:  # else it was never begun: the partition has been given up
            self.handled(index)

    # for the lane

    @property
    def unfinished(self) -> int:
        """Records from the first unfinished one on."""
        return self._end - self._first

    @property
    def unfinished_offsets(self) -> list[int]:
        return [self.chunk.offsets[index] for index in range(self._first, self._end) if not self.is_handled(index)]

    def cut(self, limit: int) -> None:
        """Records from the offset ``limit`` on are none of ours any more."""
        self._end = max(self._first, bisect_left(self.chunk.offsets, limit))

    def advance(self) -> tuple[int, bool]:
        """Move the lane's ``finished`` over the records at the front: over how many, and whether that was all."""
        first, end = self._first, self._end
        # Searches at the speed of memchr; each record is passed once for good.
        found = self._states.find(_TO_DO, first, end)
        stop = end if found < 0 else found
        if self._publishes:
            found = self._states.find(_UNSTORED, first, stop)
            stop = stop if found < 0 else found
        self._first = stop
        if stop == len(self.chunk) and self.chunk.next_offset <= self.lane.limit:
            self.lane.known_finished = self.chunk.next_offset
        elif stop > first:
            self.lane.known_finished = self.chunk.offsets[stop - 1] + 1
        return stop - first, stop == end


def nothing_before(topic_partition: TopicPartition, next_offset: int) -> FetchedRecords:
    """Return a fetch without records: reading has moved to ``next_offset`` past what is not for readers."""
    return FetchedRecords(*topic_partition, (), (), (), (), None, TimestampType.CREATE_TIME, next_offset)


def part_of(chunk: FetchedRecords, start: int, end: int, left_out: Collection[int] = ()) -> FetchedRecords:
    """The records of ``chunk`` from ``start`` up to ``end``, without those left out."""
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
