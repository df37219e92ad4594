"""The state of one partition's records in one handler: a pure state machine.

Nothing here awaits, reads a clock or calls a user's function. A driver reports events and pulls actions:

=============================================  ======================================================================
event                                          meaning
=============================================  ======================================================================
``fetched(records, size_bytes)``               records arrived, in offset order; none where only offsets have passed
``done_below(offset)``                         a database or a committed transaction reports that these are done
``returned(call, upto, outputs)``              the call has handled its first ``upto`` records; see also ``ended``
``raised(call, at, verdict, ...)``             a record failed, or those of a batch, and the policy has chosen
``ended(call, cut_off)``                       the driver works at the call no longer. What it has called before
                                               ``call.at`` is handled, the rest is not
``stored(outputs)``, ``refused(outputs, ...)``  the log has stored what records published, or has not
``acknowledged(offset)``                       manual acknowledgement
``commit_stored(commit)``, ``commit_failed``   the outcome of a `Commit`
``aborted(singly)``                            the outcome of an `Abort`, or of a transaction that others have ended
``end_slice()``, ``cut(call)``                 begin no further record: a turn is over, a transaction grows old, or a
                                               record takes too long
``revoked()``, ``lost()``, ``stop(error)``     the group takes the partition, has taken it, or the handler ends here
=============================================  ======================================================================

=============================================  ======================================================================
action                                         the driver then
=============================================  ======================================================================
``next_call(now_ms)``: `Call`                  calls the handler for these records, one after the other, or as a batch
``next_commit()``: `Commit` or `Abort`         stores the offset and the forwarded records together, or aborts
``is_paused``                                  fetches no more of the partition while it is True
``waits_until_ms``                             pulls again then
``is_over``                                    releases the partition
=============================================  ======================================================================

Calls and commits are pulled separately, because a handler's workers pull from all its partitions, and one task commits
for all of them. How many calls are open at once is the number of workers: a bound of the handler, not of a partition.

Each record has a state: ``PENDING -> RUNNING -> HANDLED -> DONE``. A record is HANDLED while its acknowledgement or
its outputs are missing. RUNNING goes back to PENDING when the record is called again, and to FORWARDED when the policy
moves it to another topic. A skipped record is DONE.

Rules, which tests verify after every event:

1. ``finished`` is the end of the longest prefix of records that are DONE or FORWARDED. ``committed <= finished``. At
   most once is different: every record that was begun is below ``committed``.
2. A commit covers no record that is neither DONE nor written by the commit itself.
3. A record is in at most one open call, and a queue (a partition in order, the keys of one hash) has at most one open
   call. The records of a queue are called in the order of their offsets.
4. After ``lost()`` nothing is committed and no call begins. After ``revoked()`` and ``stop()`` no call begins either.
   There are two exceptions. Where records run in any order, a revoked partition still calls those below the highest one
   begun, because the next owner would repeat all above the first gap. At most once, a lost partition still calls the
   records that are committed, because the next owner begins after them.
5. While a key is blocked no record of it is called: it is forwarded after the earlier one. With
   ``retry_order="partition"`` every key is blocked, and a partition in order waits in its place instead.
6. Cancellation and shutdown finish no record: it stays PENDING for the next owner. At most once is different, because
   the commit came first: a record that was cut off is counted in ``lost_count``, and a commit gives back those that
   were not begun.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from eventbus.client.handling.ordering import DONE, FORWARDED, HANDLED, PENDING, RUNNING, Fetch, Ordering, Queue
from eventbus.client.handling.progress import Progress
from eventbus.client.handling.work_actions import Abort, BlockedKeys, Call, Commit, Mode, Policy, Singly
from eventbus.recovery import Move, Skip, Stop, Verdict, WaitHere
from eventbus.types import FetchedRecords

_MOST_FORWARDS = 2_000
_MOST_FORWARD_BYTES = 16 << 20
"""No record is called while as many records, or bytes, are forwarded and not committed."""
_MOST_WHILE_BLOCKED = 256
"""The most records of a call while a key is blocked."""


class _Slice:
    """The records of a transaction."""

    __slots__ = ("base", "end", "fetch", "has_call", "is_ended", "must_abort", "start")

    def __init__(self, fetch: Fetch, start: int, end: int, base: int) -> None:
        self.fetch = fetch
        self.start = start
        self.end = end
        self.base = base
        """`PartitionWork.finished` when it began."""
        self.has_call = False
        """The driver has opened the transaction."""
        self.is_ended = False
        """No further record of it is called."""
        self.must_abort = False


class _TakenBack(NamedTuple):
    """Records that failed after they had published something, so that their transaction was aborted."""

    first: int
    last: int
    """Offsets."""
    verdict: Verdict | Singly
    error: Exception | None


class PartitionWork:
    """The state of a partition in a handler. The module docstring lists its events, actions and rules."""

    def __init__(self, policy: Policy, blocked_keys: BlockedKeys | None = None) -> None:
        self.policy = policy
        self.mode = Mode.OPEN
        self.error: Exception | None = None
        """Why the partition has stopped."""
        self.lost_count = 0
        """At most once: records whose call was cut off."""
        self.tries: dict[int, int] = {}
        """How often a record was called that must be called again, by offset."""
        self.waits_until_ms: int | None = None
        """A record waits in its place, and all of the partition with it."""
        self._is_exactly_once = policy.delivery == "exactly-once"
        self._is_at_most_once = policy.delivery == "at-most-once"
        self._may_wait = policy.retry_order == policy.order == "partition"
        """It waits as a whole while an earlier record waits for a later try."""
        # The common case, at least once and in order without manual acknowledgement, never needs a queue: one call at a
        # time takes the records as they arrived.
        is_in_order = policy.order == "partition" and policy.delivery == "at-least-once"
        self._needs_no_queue = is_in_order and policy.max_unfinished == sys.maxsize
        self._blocked = None if policy.retry_order == "none" else blocked_keys
        self._progress = Progress(self._blocked, keeps_uncommitted=self._is_exactly_once)
        self._queues = Ordering(policy.order, policy.key_queues)
        self._calls: set[Call] = set()
        self._commit: Commit | Abort | None = None
        """The action that the driver performs now."""
        self._counted_at = 0
        """`Progress.finished_count` when the last commit began."""
        self._limit = sys.maxsize
        """No record from this offset on is begun any more."""
        # Transactions.
        self._slice: _Slice | None = None
        self._singly_below = -1
        """Records below this offset have a transaction each, so that the one at fault shows."""
        self._taken_back: _TakenBack | None = None

    @property
    def finished(self) -> int:
        """The next offset after the finished prefix; -1: nothing has arrived."""
        if self._calls:
            self._look()
        return self._progress.finished

    @property
    def committed(self) -> int:
        """The offset that is committed, as far as was reported."""
        return self._progress.committed

    @property
    def unfinished(self) -> int:
        """Records that may have been begun, from the first unfinished one on."""
        self._look()
        return self._progress.unfinished

    def _look(self) -> None:
        """Take up how far the open calls have got since the last report."""
        if not self._is_exactly_once:
            # An open call only moves its own position, because a report per record would cost as much as an empty call.
            # The state is brought up to date when it is read.
            for call in tuple(self._calls):
                if call.is_live and call.at > call.done:
                    self.returned(call, call.at)

    # records arrive --------------------------------------------------------------------------------------------------

    def fetched(self, records: FetchedRecords, size_bytes: int = 0) -> None:
        """Records arrived; those fetched before have smaller offsets."""
        if self.mode is Mode.OPEN:
            self._progress.add(records, size_bytes)

    def done_below(self, offset: int) -> None:
        """Records below ``offset`` are done, although they were not handled here. No call of them is open."""
        self._progress.done_below(offset)

    def not_called(self, records: FetchedRecords, verdict: Move | Skip) -> None:
        """Records arrived after all others were called, and the policy has chosen what becomes of them."""
        self.fetched(records)
        fetch = self._progress.arrived[0]
        self._progress.take(fetch, len(records))
        fetch.mark(range(len(records)), RUNNING)
        self._decide(fetch, range(len(records)), verdict)
        self._progress.advance()

    @property
    def is_paused(self) -> bool:
        """True if enough records are here: a fetch whose records are being called, and the next fetch."""
        arrived = self._progress.arrived
        # One fetch in use and one in reserve: the next fetch is requested while records of the reserve are still there,
        # so the handler never waits for the network.
        whole = len(arrived) - (1 if arrived and arrived[0].end else 0)
        is_large = self._progress.size_bytes >= self.policy.max_bytes
        is_full = whole >= 2 or (is_large and self.unfinished >= self.policy.least_unfinished)
        return is_full or self.mode is not Mode.OPEN

    # calls -----------------------------------------------------------------------------------------------------------

    def next_call(self, now_ms: int = 0, workers: int = 0) -> Call | None:
        """Return records to be called now, or None.

        ``workers``: put records of several queues into the call, a fair part of all for one of so many workers.
        """
        if self.waits_until_ms is not None:
            if now_ms < self.waits_until_ms:
                return None
            self.waits_until_ms = None
        # Records after a forwarded one must not be called before it is stored: a crash would lose its place, and its
        # retry would come after them.
        if (self._progress.forwards and self.waits_for_commit) or (self._may_wait and self._blocked):
            return None
        if self._needs_no_queue and self._progress.arrived and not (self._calls or self._queues.ready or self._blocked):
            return self._next_in_order(self._progress.arrived[0])
        most = 0
        while self._queues.ready or self._fill_queues():
            if not self._queues.ready:
                continue  # what was put into queues stands after a call that is open, or was done before
            is_blocked = bool(self._blocked)
            # Read once per call: `_most` depends on what is finished, which a call of ours cannot change.
            most = most or self._most(is_blocked)
            if workers:
                # A fair part, or the first worker would take all records and the others would have none.
                most = min(most, max(self._queues.count // workers, 1))
            queue, fetch, indexes = self._queues.take(most)
            if self.tries:
                indexes = self._not_acknowledged(fetch, indexes)
            if self._blocked is not None and is_blocked:
                indexes = self._behind(queue, fetch, indexes, self._blocked)
            if indexes and workers and not is_blocked:
                return self._begin_several(fetch, indexes, queue, most)
            if indexes:
                self._queues.begun(queue)
                return self._begin_call(fetch, indexes, queue)
            self._queues.ended(queue)
            if self.waits_for_commit:
                break
        return None

    @property
    def has_more(self) -> bool:
        """True while a record has not been called yet."""
        return bool(self._queues.ready or self._progress.arrived)

    def _most(self, is_blocked: bool) -> int:
        """Return how many records of a queue a call may have."""
        policy = self.policy
        most = policy.batch or policy.call_records
        if is_blocked:  # a record that fails blocks its key, and the records after it are checked again
            most = min(most, _MOST_WHILE_BLOCKED)
        if policy.commit_every is not None and not policy.manual_ack:
            most = min(most, max(policy.commit_every - self._progress.finished_count + self._counted_at, 1))
        return most

    def _not_acknowledged(self, fetch: Fetch, indexes: Sequence[int]) -> Sequence[int]:
        """Leave out records that were acknowledged while they waited to be called again."""
        left = fetch.in_state(indexes)
        if len(left) < len(indexes):
            for index in set(indexes).difference(left):
                self.tries.pop(fetch.records.offsets[index], None)
        return left

    @property
    def waits_as_a_whole(self) -> bool:
        """True while no record is called because an earlier one waits for a later try."""
        return self._may_wait and bool(self._blocked)

    def _next_in_order(self, fetch: Fetch) -> Call | None:
        """Return a call without a way through the queues: what most partitions have, most of the time."""
        start = fetch.end
        end = min(start + self._most(is_blocked=False), len(fetch.states))
        self._progress.take(fetch, end)
        indexes = range(start, end) if self._progress.skip_below < 0 else fetch.in_state(range(start, end))
        if not indexes:
            return self.next_call()
        queue = self._queues.of_partition
        queue.is_busy = True
        return self._begin_call(fetch, indexes, queue)

    def _begin_several(self, fetch: Fetch, indexes: Sequence[int], queue: Queue, most: int) -> Call:
        parts, room = [(queue, indexes)], most - len(indexes)
        self._queues.begun(queue)
        while room > 0 and (part := self._queues.take_of(fetch, room)) is not None:
            self._queues.begun(part[0])
            parts.append(part)
            room -= len(part[1])
        if len(parts) > 1:
            indexes = [index for _, of_queue in parts for index in of_queue]
        return self._begin_call(fetch, indexes, queue, parts if len(parts) > 1 else ())

    def _begin_call(
        self, fetch: Fetch, indexes: Sequence[int], queue: Queue, parts: Sequence[tuple[Queue, Sequence[int]]] = ()
    ) -> Call:
        if len(indexes) == 1:
            fetch.states[indexes[0]] = RUNNING
        else:
            fetch.mark(indexes, RUNNING)
        opens_transaction = False
        # The first call of a slice opens its transaction. A slice of which nothing is called needs none.
        if self._slice is not None:
            opens_transaction, self._slice.has_call = not self._slice.has_call, True
        call = Call(fetch, indexes, queue, parts, opens_transaction)
        self._calls.add(call)
        return call

    @property
    def has_forwards(self) -> bool:
        """True while a commit has to write records to other topics."""
        return bool(self._progress.forwards)

    @property
    def waits_for_commit(self) -> bool:
        """True while the next call must wait until forwarded records are committed."""
        count = len(self._progress.forwards)
        if not count:
            return False
        is_full = count >= _MOST_FORWARDS or self._progress.forward_bytes >= _MOST_FORWARD_BYTES
        return is_full or self.policy.store_forwards_first

    def _fill_queues(self) -> bool:
        """Put records that arrived into queues, as many as may be begun. False: none may be begun now."""
        arrived = self._progress.arrived
        # A lost partition at most once still handles what it has committed: the next owner begins after those records.
        is_ended = self.mode is not Mode.OPEN and not (self._is_at_most_once and self.mode is Mode.LOST)
        if not arrived or is_ended or (self._calls and self.policy.order == "partition"):
            return False
        fetch = arrived[0]
        offsets, left = fetch.records.offsets, len(fetch.states) - fetch.end
        if self._is_exactly_once:
            return self._slice is None and self._commit is None and self._open_slice(fetch)
        if self._is_at_most_once:
            # At most once, only committed records may be called.
            count = bisect_left(offsets, self.committed) - fetch.end
        else:
            count = self._room_for(left) if self.policy.max_unfinished < sys.maxsize else left
        if count <= 0:
            return False
        self._put_in_queues(fetch, fetch.end, fetch.end + count)
        return True

    def _put_in_queues(self, fetch: Fetch, start: int, end: int) -> None:
        self._progress.take(fetch, end)
        self._queues.add(fetch, start, end)

    def _behind(self, queue: Queue, fetch: Fetch, indexes: Sequence[int], blocked: BlockedKeys) -> Sequence[int]:
        """Forward records of blocked keys after the earlier ones; return the others."""
        keys = fetch.records.keys
        waiting = [index for index in indexes if keys[index] in blocked]
        if not waiting:
            return indexes
        if self.policy.store_forwards_first:  # up to where the one kind ends: the other may not come before a commit
            is_waiting = indexes[0] == waiting[0]
            end = next((at for at, index in enumerate(indexes) if (keys[index] in blocked) is not is_waiting), None)
            if end is not None:
                self._queues.put_back(queue, fetch, indexes[end:], False)
                indexes = indexes[:end]
            if not is_waiting:
                return indexes
            waiting = indexes
        for index in waiting:
            # Without a record to send: the entry is built at the commit.
            self._progress.forward(fetch, index, None, blocks=True)
        self._progress.advance()
        return fetch.in_state(list(indexes))

    def returned(self, call: Call, upto: int, outputs: object | None = None) -> None:
        """The first ``upto`` records of the call are handled. ``outputs``: what the newly handled ones published."""
        if not call.is_open:
            return
        done = call.done
        if upto > done:
            call.done = upto
            indexes = call.indexes[done:upto] if done or upto < len(call.indexes) else call.indexes
            # HANDLED and not DONE: the record is finished when its outputs are stored or it is acknowledged.
            is_open = outputs is not None or self.policy.manual_ack
            call.fetch.mark_running(indexes, HANDLED if is_open else DONE)
            if outputs is not None and not self.policy.manual_ack:
                self._progress.publish(outputs, call.fetch, indexes)
            if self.tries:
                for index in indexes:
                    self.tries.pop(call.records.offsets[index], None)
        if upto >= len(call.indexes):
            self._close(call)
        self._progress.advance()

    def raised(
        self,
        call: Call,
        at: int,
        verdict: Verdict | Singly,
        *,
        count: int = 1,
        now_ms: int = 0,
        error: Exception | None = None,
        is_clean: bool = True,
        is_last: bool = True,
    ) -> bool:
        """The records from the position ``at`` on failed, and ``verdict`` is what becomes of them.

        ``error``: of a `Stop`. ``is_clean``: nothing was published for them; otherwise their transaction is aborted.
        ``is_last``: no other failure of the same batch follows, so the call may end here.
        Return True if the call goes on with the next record; False: it has ended.
        """
        if not call.is_open:
            return False
        # The records before the failed one have returned. They count even if the verdict stops the partition.
        if at > call.done:
            self.returned(call, min(at, call.at))
        indexes = call.indexes[at : at + count]
        if self._slice is not None and not is_clean:
            self._take_back(self._slice, call, indexes, verdict, error)
            if isinstance(verdict, WaitHere):
                self._wait(verdict, now_ms)
        elif isinstance(verdict, (Move, Skip)):
            self._decide(call.fetch, indexes, verdict)
            if at <= call.done:
                call.done = max(call.done, at + count)
            if isinstance(verdict, Move):
                self._cut_for(call, verdict, is_last)
            if call.is_open and call.done >= len(call.indexes):
                self._close(call)
        else:
            self._stays(call, at, indexes, verdict, now_ms, error)
        self._progress.advance()
        return call.is_open

    def _decide(self, fetch: Fetch, indexes: Sequence[int], verdict: Move | Skip) -> None:
        for index in indexes:
            self.tries.pop(fetch.records.offsets[index], None)
            # The user acknowledged the record before its call raised. Moving it too would handle it twice.
            if fetch.states[index] != RUNNING:
                continue  # it is acknowledged
            if isinstance(verdict, Move):
                self._progress.forward(fetch, index, verdict.outgoing, self.blocks(verdict))
            else:
                fetch.states[index] = DONE

    def blocks(self, verdict: Move) -> bool:
        """Return True if later records of the key wait after the record that moves."""
        return verdict.kind == "retry" and self.policy.retry_order != "none"

    def _cut_for(self, call: Call, verdict: Move, is_last: bool) -> None:
        """The next record may have to wait for the one that moves: calls that may hold such a record end."""
        if self.blocks(verdict):
            # With order by key, all records of the key are in the queue of this call. Otherwise any open call may hold
            # a record that must wait now.
            is_alone = call.queue.is_serial and self.policy.retry_order == "key"  # all records of its key are in there
            for one in (call,) if is_alone else self._calls:
                self.cut(one)
        elif self.policy.store_forwards_first:
            self.cut(call)
        else:
            return
        if self._slice is not None and self.waits_as_a_whole:
            self._end_slice_here(self._slice)  # nothing of it is called before that record is stored
        if is_last and call.done < len(call.indexes):
            self._close(call)

    def _stays(
        self,
        call: Call,
        at: int,
        indexes: Sequence[int],
        verdict: Verdict | Singly,
        now_ms: int,
        error: Exception | None,
    ) -> None:
        """The records stay PENDING, to be called again, or by the next owner."""
        if isinstance(verdict, Stop):
            if self._is_at_most_once:  # it is committed, and was called
                call.fetch.mark_running(indexes, DONE)
                call.done = at + len(indexes)
            self.stop(error or RuntimeError("the handler has stopped"))
        elif not isinstance(verdict, Singly):
            for index in indexes:
                if call.fetch.states[index] == RUNNING:  # else it is acknowledged
                    offset = call.records.offsets[index]
                    self.tries[offset] = self.tries.get(offset, 0) + 1
        self._close(call, singly=isinstance(verdict, Singly))
        if isinstance(verdict, WaitHere):
            self._wait(verdict, now_ms)

    def _wait(self, verdict: WaitHere, now_ms: int) -> None:
        """Nothing is begun for a while; what is handled is committed meanwhile."""
        self.waits_until_ms = now_ms + round(verdict.seconds * 1000)
        self.end_slice()
        if self.mode is not Mode.OPEN:
            self.begin_none_from(-1)

    def ended(self, call: Call, cut_off: int = 0) -> None:
        """The driver works at the call no longer; the records before ``call.at`` are handled if it is live.

        ``cut_off``: so many records after those were called, and what comes of that is ignored. The rest was not begun.
        """
        if call.is_live and not self._is_exactly_once:
            self.returned(call, call.at)
        if not call.is_open:
            return
        if cut_off and self._is_at_most_once:
            begun = call.indexes[call.done : call.done + cut_off]
            call.fetch.mark_running(begun, DONE)
            call.done += len(begun)
            self.lost_count += len(begun)
        self._close(call)
        self._progress.advance()

    def _close(self, call: Call, singly: bool = False) -> None:
        """Those of its records that are still RUNNING come first in their queue again.

        All that ends a call ends it here, and ``end`` ends the loop over it too. If that loop went on, the partition
        would call records that it has given back, maybe before a commit that has to come first.
        """
        # First, because the loop over the call may run in a thread: it must not begin another record of it.
        call.is_open = False
        call.end = 0
        self._calls.discard(call)
        if call.done < len(call.indexes):
            left = call.fetch.in_state(call.indexes[call.done :], RUNNING)
            call.fetch.mark(left, PENDING)
            if self._slice is not None and self._slice.is_ended:
                left = ()
            # The partition is closing. Records beyond the limit belong to the next owner.
            elif self._limit < sys.maxsize:
                left = [index for index in left if call.records.offsets[index] < self._limit]
            if left:
                self._put_back(call, left, singly)
        if call.queue is self._queues.of_partition and not (call.parts or call.queue.runs):
            call.queue.is_busy = False
            return
        for queue, _ in call.parts or ((call.queue, ()),):
            self._queues.ended(queue)

    def _put_back(self, call: Call, left: Sequence[int], singly: bool) -> None:
        for queue, indexes in call.parts:
            of_queue = [index for index in indexes if index in left]
            if of_queue:
                self._queues.put_back(queue, call.fetch, of_queue, singly)
        if not call.parts:
            self._queues.put_back(call.queue, call.fetch, left, singly)

    def cut(self, call: Call) -> None:
        """Let the call begin no further record."""
        # A thread may begin another record while `end` is lowered. Repeating until the count stays the same finds that
        # record, without a lock.
        begun = -1
        while begun != _begun(call):  # a thread may begin another record in between
            begun = _begun(call)
            several = 1 if call.is_resting or call.is_alone or not begun else self.policy.batch or 1
            call.end = min(call.end, begun - 1 + several)

    # outputs and acknowledgements ------------------------------------------------------------------------------------

    def stored(self, outputs: object) -> None:
        """The log has stored ``outputs``, which `returned` was given."""
        self._progress.stored(outputs)

    def refused(self, outputs: object, error: Exception | None) -> None:
        """The log has not stored them. Without an error their records are skipped, else the partition stops there."""
        if error is None:
            self._progress.stored(outputs)
        else:
            # Its records stay HANDLED, so nothing from the first of them on is ever committed.
            self._progress.outputs.pop(outputs, None)
            self.stop(error)

    def acknowledged(self, offset: int) -> None:
        """The user reports that a record is finished. Without effect on one that was not called."""
        self._progress.acknowledged(offset, self.tries)

    @property
    def has_outputs(self) -> bool:
        """True while outputs are in flight."""
        return bool(self._progress.outputs)

    # commits ---------------------------------------------------------------------------------------------------------

    @property
    def wants_commit(self) -> bool:
        """A commit is due now. Otherwise it waits for the end of an interval, which belongs to the driver."""
        every = self.policy.commit_every
        if every is not None and self._progress.finished_count - self._counted_at >= every:
            return True
        return self.mode is not Mode.OPEN or self.policy.delivery != "at-least-once" or self.waits_for_commit

    @property
    def commits_ahead(self) -> bool:
        """True while commits precede the calls of their records, so that those who call them commit."""
        return self._is_at_most_once and self.mode is Mode.OPEN

    @property
    def has_uncommitted(self) -> bool:
        """True while something is finished that no commit covers."""
        return self.finished > self.committed

    def next_commit(self) -> Commit | Abort | None:
        """Return what can be committed now; its outcome has to be reported before the next one."""
        # One commit at a time: two in flight may be stored in either order, and the older one would take the offset
        # back.
        if self._commit is not None or self.mode is Mode.LOST:
            return None
        if self._calls:
            self._look()
        if self._slice is not None:
            self._commit = self._end_of_slice(self._slice)
        elif self._is_at_most_once:
            self._commit = self._commit_ahead() if self.mode is Mode.OPEN else self._give_back()
        elif (progress := self._progress).finished > progress.committed:
            self._commit = Commit(progress.finished, progress.finished_forwards() if progress.forwards else ())
        if self._commit is not None:
            # Counted when it begins, so that records finished during the commit count for the next one.
            self._counted_at = self._progress.finished_count
        return self._commit

    def commit_stored(self, commit: Commit) -> None:
        """The commit is stored."""
        if self._commit is not commit:  # the partition was lost meanwhile
            return
        self._commit = None
        if commit.gives_back:
            self._progress.committed = commit.next_offset
            return
        self._progress.commit(commit.next_offset, commit.forwards)
        # The commit was in flight when the partition was lost. Now it is known which records the next owner skips.
        if self.mode is Mode.LOST:
            self._keep_committed()
        if self._slice is not None and not self._slice.must_abort:
            self._close_slice(self._slice)
        if self._is_exactly_once:
            self._progress.advance()

    def commit_failed(self, commit: Commit) -> None:
        """The commit is not stored; the next one covers as much, or more. A transaction is `aborted` instead."""
        if self._commit is commit:
            self._commit = None
            if self.mode is Mode.LOST:
                self._progress.arrived.clear()

    def _commit_ahead(self) -> Commit | None:
        """At most once: commit the records that are called next."""
        # The next commit would also cover the records that are in flight now, and a crash would lose more than a slice.
        if self.has_calls or self.has_outputs:
            return None
        if not self._progress.arrived:
            return Commit(self.finished) if self.finished > self.committed else None
        fetch = self._progress.arrived[0]
        offsets, most = fetch.records.offsets, self.policy.commit_every or self.policy.slice_records
        if bisect_left(offsets, self.committed) > fetch.end:
            return None
        end = fetch.end + most
        return Commit(offsets[end] if end < len(offsets) else fetch.records.next_offset)

    def _give_back(self) -> Commit | None:
        """At most once: records that are committed and were not begun."""
        if self._calls:
            return None
        not_begun = self._progress.not_begun()
        return Commit(not_begun[0], gives_back=len(not_begun)) if not_begun else None

    def drop_not_begun(self) -> Sequence[int]:
        """At most once: return the offsets of the records that are committed and will not be called, and drop them."""
        not_begun = self._progress.not_begun() if self.is_over else ()
        if not_begun:
            self._progress.done_below(not_begun[-1] + 1)
        return not_begun

    # transactions ----------------------------------------------------------------------------------------------------

    def _open_slice(self, fetch: Fetch) -> bool:
        """The next records share a transaction: ``slice_records`` of them, or fewer where one of them goes apart."""
        offsets, start = fetch.records.offsets, fetch.first
        if start >= len(offsets):
            return False
        end = min(start + self.policy.slice_records, len(offsets))
        # A slice failed and no record was to blame. With a transaction per record, the record at fault shows.
        if offsets[start] < self._singly_below:
            end = start + 1
        if self._taken_back is not None:
            end = min(end, self._end_at(self._taken_back, fetch))
        if end <= start:
            return False
        self._slice = _Slice(fetch, start, end, self.finished)
        self._put_in_queues(fetch, start, end)
        return True

    def _end_at(self, taken_back: _TakenBack, fetch: Fetch) -> int:
        """Return where a slice ends because of records whose transaction was aborted.

        Those before them are committed first: their calls are not repeated again, and none of them has to wait for a
        later record. Then the verdict counts, or they are called again in a transaction of their own.
        """
        offsets, start = fetch.records.offsets, fetch.first
        at, after = bisect_left(offsets, taken_back.first), bisect_left(offsets, taken_back.last + 1)
        if start < at:
            return at
        if start >= after:
            self._taken_back = None
            return len(offsets)
        verdict = taken_back.verdict
        if isinstance(verdict, Stop):
            self.stop(taken_back.error or RuntimeError("the handler has stopped"))
            return start
        if isinstance(verdict, (Move, Skip)):
            fetch.mark(range(start, after), RUNNING)
            self._decide(fetch, range(start, after), verdict)
            self._progress.advance()
            return start  # pulled again when they are committed
        return after

    @property
    def slice_count(self) -> int:
        """How many records share the open transaction; 0: it holds no call."""
        piece = self._slice
        return piece.end - piece.start if piece is not None and piece.has_call else 0

    def end_slice(self) -> None:
        """Commit what is handled: no further record is begun in the open transaction, or in this turn of a call."""
        for call in self._calls:
            self.cut(call)
        if self._slice is not None:
            self._end_slice_here(self._slice)

    def _end_slice_here(self, piece: _Slice) -> None:
        piece.is_ended = True
        self._queues.keep_below(-1)

    def _end_of_slice(self, piece: _Slice) -> Commit | Abort | None:
        if self.has_calls:
            return None
        if piece.must_abort or self.finished <= self.committed:
            if piece.has_call:
                return Abort()
            self._close_slice(piece)
            return None
        return Commit(self.finished, self._progress.finished_forwards(), in_transaction=piece.has_call)

    def _close_slice(self, piece: _Slice) -> None:
        """The transaction is over; records of it that were not called are in the next one."""
        self._slice = None
        self._progress.put_aside(piece.fetch)

    def _take_back(
        self, piece: _Slice, call: Call, indexes: Sequence[int], verdict: Verdict | Singly, error: Exception | None
    ) -> None:
        """Abort the transaction, because of what the records published; the verdict counts in the next transaction."""
        offsets = call.records.offsets
        piece.must_abort = True
        self._end_slice_here(piece)
        self._taken_back = _TakenBack(offsets[indexes[0]], offsets[indexes[-1]], verdict, error)
        if not isinstance(verdict, (Move, Skip, Stop)):
            first = offsets[indexes[0]]
            self.tries[first] = self.tries.get(first, 0) + 1
            if len(indexes) > 1:
                # The batch is retried record by record.
                self._singly_below = offsets[indexes[-1]] + 1
        self._close(call)

    def aborted(
        self, *, singly: bool = False, verdict: Skip | Stop | None = None, error: Exception | None = None
    ) -> None:
        """Nothing of the transaction is visible: its records are handled again.

        ``singly``: no record is known to be at fault, so each has a separate transaction. ``verdict``, and the
        ``error`` of a `Stop`: what becomes of the record of a transaction with only one.
        """
        piece, self._commit, self._slice = self._slice, None, None
        if piece is None:
            return
        if verdict is not None:
            offset = piece.fetch.records.offsets[piece.start]
            self._taken_back = _TakenBack(offset, offset, verdict, error)
        for call in list(self._calls):
            self._close(call)
        # What the slice had in queues is handled again with the next slice, in the same order.
        self._queues.keep_below(-1)
        if singly:
            self._singly_below = piece.fetch.records.offsets[piece.end - 1] + 1
        self._progress.undo(piece.fetch, piece.start, piece.end, piece.base)

    # the end ---------------------------------------------------------------------------------------------------------

    def revoked(self) -> None:
        """Begin no record, but for those that fill gaps; commit what is finished."""
        if self.mode is Mode.OPEN:
            self._drain(Mode.DRAINING)
        elif self.mode is Mode.LOST:
            self.begin_none_from(-1)

    def stop(self, error: Exception) -> None:
        """The partition ends here, because of ``error``."""
        if self.mode in (Mode.OPEN, Mode.DRAINING):
            self.error = error
            self._drain(Mode.STOPPED)

    def lost(self) -> None:
        """Another member has the partition, or it is gone: nothing may be committed any more."""
        if self.mode is Mode.LOST:
            return
        if self._is_at_most_once and self.mode is Mode.OPEN:
            self.mode = Mode.LOST
            if self._commit is None:  # else its outcome says which records are called
                self._keep_committed()
        else:
            self._drain(Mode.LOST)
            self._commit = None
        self._progress.forwards.clear()

    def _keep_committed(self) -> None:
        """At most once: only records that are committed are called, because the next owner begins after them."""
        if not self._queues.ready:
            self._fill_queues()
        self._progress.arrived.clear()

    def _drain(self, mode: Mode) -> None:
        self.mode = mode
        self._progress.arrived.clear()
        # Finishing records below the highest one begun lets the commit cover more, so fewer records are handled twice.
        fills_gaps = mode is Mode.DRAINING and self.policy.order != "partition"
        for call in self._calls:  # first: then no thread begins a record that the limit does not count
            self.cut(call)
        # A record that waits may do so for hours, and the group waits for this partition.
        waits = self.waits_until_ms is not None or self.waits_as_a_whole
        self.begin_none_from(self._begun_below() if fills_gaps and not waits else -1)

    def begin_none_from(self, offset: int) -> None:
        """Begin no record from ``offset`` on, because one there is left to the next owner, or all are."""
        self._limit = min(self._limit, offset)
        self._queues.keep_below(self._limit)
        for call in self._calls:
            self.cut(call)
        if self._slice is not None:
            self._slice.is_ended = True

    def _begun_below(self) -> int:
        """Return the offset after the highest record begun."""
        below = self._progress.ended_below()
        for call in self._calls:
            if begun := _begun(call):
                below = max(below, max(call.offset(position) for position in range(begun)) + 1)
        return below

    def begun(self, count_of: Callable[[Call], int]) -> list[int]:
        """Return the offsets of the records that reached the handler and are not finished.

        ``count_of``: how many records of a call are in flight together.
        """
        self._look()
        offsets = self._progress.in_states((HANDLED,))
        if self._slice is not None:  # its transaction is aborted, with all that was handled in it
            offsets = self._progress.in_states((HANDLED, FORWARDED, DONE))
            offsets = [offset for offset in offsets if offset >= self.committed]
        for call in self._calls:
            first = call.at if self._slice is None else call.done
            end = call.at if call.is_resting else call.at + count_of(call)
            offsets += [call.offset(position) for position in range(first, min(end, len(call)))]
        return sorted(set(offsets))

    @property
    def is_lost(self) -> bool:
        """Nothing of the partition may be committed any more."""
        return self.mode is Mode.LOST

    @property
    def has_calls(self) -> bool:
        """True while a call is open, or may follow without further events."""
        return bool(self._calls or self._queues.ready)

    @property
    def has_room(self) -> bool:
        """True while records that have arrived may be put into queues."""
        arrived = self._progress.arrived
        return bool(arrived) and self._room_for(len(arrived[0].records) - arrived[0].end) > 0

    @property
    def waits_for_room(self) -> bool:
        """True while records have arrived and no queue has a call: other records may have to be finished first."""
        return bool(self._progress.arrived) and not self._queues.ready

    def _room_for(self, left: int) -> int:
        # Not record by record as they finish: a quarter of the bound at a time.
        count = min(self.policy.max_unfinished - self.unfinished, left)
        return 0 if count < min(left, max(self.policy.max_unfinished // 4, 1)) else count

    @property
    def size_bytes(self) -> int:
        """The size of the fetches with a record that is not finished."""
        return self._progress.size_bytes

    @property
    def has_unacknowledged(self) -> bool:
        """True while called records wait for their acknowledgement, or for their outputs."""
        return self._progress.holds(HANDLED)

    @property
    def has_left(self) -> bool:
        """True while records have arrived that wait until earlier ones are finished."""
        return bool(self._progress.arrived)

    @property
    def is_over(self) -> bool:
        """The partition has ended: nothing of it runs, and nothing that is not finished will be without its next owner.

        A last commit may be left; with manual acknowledgement they may come later than the driver waits.
        """
        if self.mode is Mode.OPEN or self._calls or self._commit is not None:
            return False
        if self.mode is Mode.LOST:
            return not self._queues.ready
        acks_left = self.mode is Mode.DRAINING and self.policy.manual_ack
        return not (self._queues.ready or self.has_outputs or (acks_left and self.has_unacknowledged))

    @property
    def is_idle(self) -> bool:
        """Everything that arrived is finished, and what was forwarded is stored; or the partition has stopped."""
        if self._calls:
            return False
        if self.mode in (Mode.STOPPED, Mode.LOST):
            return not self.has_outputs
        return not (self._progress.fetches or self._progress.forwards)

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first record that is not finished, or None."""
        return self._progress.oldest_ms

    def __repr__(self) -> str:
        calls = ", ".join(sorted(map(repr, self._calls)))
        return f"<partition work {self.mode.value} finished={self.finished} committed={self.committed} [{calls}]>"


def _begun(call: Call) -> int:
    """Return how many records of the call have been begun."""
    return min(max(call.at + (not call.is_resting), call.called), len(call.indexes))
