"""The records of one partition on their way through one handler: a pure state machine.

Nothing here awaits, reads a clock or calls a user's function. A driver reports events and pulls actions:

=============================================  ======================================================================
event                                          meaning
=============================================  ======================================================================
``fetched(records, size_bytes)``               records arrived, in offset order; none where only offsets have passed
``done_below(offset)``                         a database or a committed transaction reports that these are done
``returned(call, upto, outputs)``              the call has handled its first ``upto`` records
``raised(call, at, verdict, ...)``             a record failed, or those of a batch, and the policy has chosen
``ended(call, cut_off)``                       the driver works at the call no longer; the rest of it is not handled
``stored(outputs)``, ``refused(outputs, ...)``  the log has stored what records published, or has not
``acknowledged(offset)``                       manual acknowledgement
``commit_stored(commit)``, ``commit_failed``   the outcome of a `Commit`
``aborted(singly)``                            the outcome of an `Abort`, or of a transaction that others have ended
``end_slice()``                                commit what is handled: a transaction grows old, or a turn is over
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

Each record has one state: ``PENDING -> RUNNING -> HANDLED -> DONE``. A record is HANDLED while its acknowledgement or
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
from collections.abc import Sequence
from typing import NamedTuple

from eventbus.client.handling.ordering import DONE, HANDLED, PENDING, RUNNING, Fetch, Ordering, Queue
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
    """Owns the state of a partition in a handler. The module describes events, actions and rules."""

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
        self._blocked = blocked_keys
        self._progress = Progress(blocked_keys, keeps_uncommitted=self._is_exactly_once)
        self._queues = Ordering(policy.order, policy.key_queues)
        self._calls: set[Call] = set()
        self._commit: Commit | Abort | None = None
        """The action that the driver performs now."""
        self._counted_at = 0
        """`Progress.finished_count` when the last commit began."""
        self._is_commit_wanted = False
        self._limit = sys.maxsize
        """No record from this offset on is begun any more."""
        self._in_doubt = 0
        """Records that are called one by one."""
        # Transactions.
        self._slice: _Slice | None = None
        self._singly_below = -1
        """Records below this offset have a transaction each, so that the one at fault shows."""
        self._taken_back: _TakenBack | None = None

    @property
    def finished(self) -> int:
        """The next offset after the finished prefix; -1: nothing has arrived."""
        return self._progress.finished

    @property
    def committed(self) -> int:
        """The offset that is committed, as far as was reported."""
        return self._progress.committed

    @property
    def unfinished(self) -> int:
        """Records that may have been begun, from the first unfinished one on."""
        return self._progress.unfinished

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

    def in_doubt(self, count: int) -> None:
        """Call the next ``count`` records one by one, each after all before it are committed: a process died here."""
        self._in_doubt = count

    @property
    def is_paused(self) -> bool:
        """Enough is here: one fetch of which records are called, and another one in reserve."""
        arrived = self._progress.arrived
        whole = len(arrived) - (1 if arrived and arrived[0].end else 0)
        is_full = whole >= 2 or self._progress.size_bytes >= self.policy.max_bytes
        return is_full or self.mode is not Mode.OPEN

    # calls -----------------------------------------------------------------------------------------------------------

    def next_call(self, now_ms: int = 0) -> Call | None:
        """Return records to be called now, or None."""
        if self.waits_until_ms is not None:
            if now_ms < self.waits_until_ms:
                return None
            self.waits_until_ms = None
        if self.waits_for_commit or self.waits_as_a_whole:
            return None
        most = self._call_records
        while self._queues or self._fill_queues():
            if not self._queues:
                continue  # what was put into queues stands after a call that is open, or was done before
            queue, fetch, indexes = self._queues.take(most)
            if self.tries:
                indexes = self._not_acknowledged(fetch, indexes)
            if self._blocked:
                indexes = self._behind(queue, fetch, indexes, self._blocked)
            if indexes:
                return self._begin_call(fetch, indexes, queue)
            self._queues.ended(queue)
            if self.waits_for_commit:
                break
        return None

    @property
    def _call_records(self) -> int:
        policy = self.policy
        most = policy.batch or policy.call_records
        if self._blocked:  # a record that fails blocks its key, and those after it are looked at again
            most = min(most, _MOST_WHILE_BLOCKED)
        if policy.commit_every is not None and policy.order == "partition":
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
        return self.policy.retry_order == self.policy.order == "partition" and bool(self._blocked)

    def _begin_call(self, fetch: Fetch, indexes: Sequence[int], queue: Queue) -> Call:
        fetch.mark(indexes, RUNNING)
        opens_transaction = False
        if self._slice is not None:
            opens_transaction, self._slice.has_call = not self._slice.has_call, True
        call = Call(fetch, indexes, queue, opens_transaction)
        self._calls.add(call)
        self._queues.begun(queue)
        return call

    @property
    def has_forwards(self) -> bool:
        """True while a commit has to write records to other topics."""
        return bool(self._progress.forwards)

    @property
    def waits_for_commit(self) -> bool:
        """True while no record is called before those that were forwarded are committed."""
        count = len(self._progress.forwards)
        if not count:
            return False
        is_full = count >= _MOST_FORWARDS or self._progress.forward_bytes >= _MOST_FORWARD_BYTES
        return is_full or self.policy.store_forwards_first

    def _fill_queues(self) -> bool:
        """Put records that arrived into queues, as many as may be begun. False: none may be begun now."""
        arrived = self._progress.arrived
        is_ended = self.mode is not Mode.OPEN and not (self._is_at_most_once and self.mode is Mode.LOST)
        if not arrived or is_ended or (self._calls and self.policy.order == "partition"):
            return False
        if self._in_doubt and (self._calls or self._commit or self.unfinished or self.finished > self.committed):
            return False
        fetch = arrived[0]
        offsets, left = fetch.records.offsets, len(fetch.records) - fetch.end
        if self._is_exactly_once:
            return self._slice is None and self._commit is None and self._open_slice(fetch)
        if self._is_at_most_once:
            count = bisect_left(offsets, self.committed) - fetch.end
        else:
            count = min(self.policy.max_unfinished - self.unfinished, left)
            # Not record by record as they finish: a quarter of the bound at a time.
            if count < min(left, max(self.policy.max_unfinished // 4, 1)):
                return False
        if count > 0 and self._in_doubt:
            count, self._in_doubt = 1, self._in_doubt - 1
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
    ) -> bool:
        """The records from the position ``at`` on failed, and ``verdict`` is what becomes of them.

        ``error``: of a `Stop`. ``is_clean``: nothing was published for them; otherwise their transaction is aborted.
        Return True if the call goes on with the next record; False: it has ended.
        """
        if not call.is_open:
            return False
        if at > call.done and not self.policy.batch:
            self.returned(call, at)
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
                self._cut_for(call, verdict)
            if call.is_open and call.done >= len(call.indexes):
                self._close(call)
        else:
            self._stays(call, at, indexes, verdict, now_ms, error)
        self._progress.advance()
        return call.is_open

    def _decide(self, fetch: Fetch, indexes: Sequence[int], verdict: Move | Skip) -> None:
        for index in indexes:
            self.tries.pop(fetch.records.offsets[index], None)
            if fetch.states[index] != RUNNING:
                continue  # it is acknowledged
            if isinstance(verdict, Move):
                self._progress.forward(fetch, index, verdict.outgoing, self._blocks(verdict))
            else:
                fetch.states[index] = DONE

    def _blocks(self, verdict: Move) -> bool:
        return verdict.kind == "retry" and self.policy.retry_order != "none"

    def _cut_for(self, call: Call, verdict: Move) -> None:
        """The next record may have to wait for the one that moves: calls that may hold such a record end."""
        if self._blocks(verdict):
            is_alone = call.queue.is_serial and self.policy.retry_order == "key"  # all records of its key are in there
            for one in () if is_alone else self._calls:
                self._cut(one)
        elif not self.policy.store_forwards_first:
            return
        if self._slice is not None and self.waits_as_a_whole:
            self._end_slice_here(self._slice)  # nothing of it is called before that record is stored
        if call.done < len(call.indexes):
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
            self._begin_none()

    def ended(self, call: Call, cut_off: int = 0) -> None:
        """The driver works at the call no longer. What has returned was reported before.

        ``cut_off``: so many records after those were called, and what comes of that is ignored. The rest was not begun.
        """
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
        """Those of its records that are still RUNNING come first in their queue again."""
        call.is_open = False
        self._calls.discard(call)
        if call.done < len(call.indexes):
            left = call.fetch.in_state(call.indexes[call.done :], RUNNING)
            call.fetch.mark(left, PENDING)
            if self._slice is not None and self._slice.is_ended:
                left = ()
            elif self._limit < sys.maxsize:
                left = [index for index in left if call.records.offsets[index] < self._limit]
            if left:
                self._queues.put_back(call.queue, call.fetch, left, singly)
        self._queues.ended(call.queue)

    def _cut(self, call: Call) -> None:
        """Let the call begin no further record, but for those that fill gaps."""
        offsets, indexes, most = call.records.offsets, call.indexes, call.end
        at = -1
        while at != call.at:  # a thread may begin another record in between
            at = call.at
            end = min(at + (self.policy.batch or 1), len(indexes))
            while end < most and self._limit < sys.maxsize and offsets[indexes[end]] < self._limit:
                end += 1
            call.end = end

    # outputs and acknowledgements ------------------------------------------------------------------------------------

    def stored(self, outputs: object) -> None:
        """The log has stored ``outputs``, which `returned` was given."""
        self._progress.stored(outputs)

    def refused(self, outputs: object, error: Exception | None) -> None:
        """The log has not stored them. Without an error their records are skipped, else the partition stops there."""
        if error is None:
            self._progress.stored(outputs)
        else:
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

    def want_commit(self) -> None:
        """Make a commit due: a caller waits for it."""
        self._is_commit_wanted = True

    @property
    def wants_commit(self) -> bool:
        """A commit is due now. Otherwise it waits for the end of an interval, which belongs to the driver."""
        if self.mode is not Mode.OPEN or self._is_commit_wanted or self.policy.delivery != "at-least-once":
            return True
        if self._in_doubt or self.waits_for_commit:
            return True
        every = self.policy.commit_every
        return every is not None and self._progress.finished_count - self._counted_at >= every

    def next_commit(self) -> Commit | Abort | None:
        """Return what can be committed now; its outcome has to be reported before the next one."""
        if self._commit is not None or self.mode is Mode.LOST:
            return None
        if self._slice is not None:
            self._commit = self._end_of_slice(self._slice)
        elif self._is_at_most_once:
            self._commit = self._commit_ahead() if self.mode is Mode.OPEN else self._give_back()
        elif self.finished > self.committed:
            self._commit = Commit(self.finished, self._progress.finished_forwards())
        if self._commit is not None:
            self._counted_at = self._progress.finished_count
            self._is_commit_wanted = False
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
        if self.mode is Mode.LOST:
            self._keep_committed()
        if self._slice is not None and not self._slice.must_abort:
            self._close_slice(self._slice)
        self._progress.advance()

    def commit_failed(self, commit: Commit) -> None:
        """The commit is not stored; the next one covers as much, or more. A transaction is `aborted` instead."""
        if self._commit is commit:
            self._commit = None
            if self.mode is Mode.LOST:
                self._progress.arrived.clear()

    def _commit_ahead(self) -> Commit | None:
        """At most once: commit the records that are called next."""
        if self._queues or self._calls or self.has_outputs:
            return None
        if not self._progress.arrived:
            return Commit(self.finished) if self.finished > self.committed else None
        fetch = self._progress.arrived[0]
        offsets, most = fetch.records.offsets, self.policy.commit_every or self.policy.slice_records
        if bisect_left(offsets, self.committed) > fetch.end:
            return None
        end = fetch.end + (1 if self._in_doubt else most)
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
        if offsets[start] < self._singly_below or self._in_doubt:
            end, self._in_doubt = start + 1, max(self._in_doubt - 1, 0)
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
            self._cut(call)
        if self._slice is not None:
            self._end_slice_here(self._slice)

    def _end_slice_here(self, piece: _Slice) -> None:
        piece.is_ended = True
        self._queues.keep_below(-1)

    def _end_of_slice(self, piece: _Slice) -> Commit | Abort | None:
        if self._calls or self._queues:
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
            self._begin_none()

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
        if not self._queues:
            self._fill_queues()
        self._progress.arrived.clear()

    def _drain(self, mode: Mode) -> None:
        self.mode = mode
        self._progress.arrived.clear()
        fills_gaps = mode is Mode.DRAINING and self.policy.order != "partition"
        if fills_gaps and self.waits_until_ms is None and not self.waits_as_a_whole:
            self._limit = self._begun_below()
            self._queues.keep_below(self._limit)
            for call in self._calls:
                self._cut(call)
        else:
            self._begin_none()

    def _begin_none(self) -> None:
        self._limit = -1
        self._queues.keep_below(-1)
        for call in self._calls:
            self._cut(call)
        if self._slice is not None:
            self._slice.is_ended = True

    def _begun_below(self) -> int:
        """The offset after the highest record begun."""
        below = self._progress.ended_below()
        for call in self._calls:
            at = min(call.at, len(call.indexes) - 1)
            below = max(below, call.records.offsets[call.indexes[at]] + 1)
        return below

    @property
    def is_over(self) -> bool:
        """The partition has ended: nothing of it runs, and nothing that is not finished will be without its next owner.

        A last commit may be left; with manual acknowledgement they may come later than the driver waits.
        """
        if self.mode is Mode.OPEN or self._calls or self._commit is not None:
            return False
        if self.mode is Mode.LOST:
            return not self._queues
        acks_left = self.mode is Mode.DRAINING and self.policy.manual_ack
        return not (self._queues or self.has_outputs or (acks_left and self._progress.holds(HANDLED)))

    @property
    def is_idle(self) -> bool:
        """Everything that arrived is finished, and what was forwarded is stored; or the partition has stopped."""
        if self.mode in (Mode.STOPPED, Mode.LOST):
            return not (self._calls or self.has_outputs)
        return not (self._progress.fetches or self._calls or self._progress.forwards)

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first record that is not finished, or None."""
        return self._progress.oldest_ms

    def __repr__(self) -> str:
        calls = ", ".join(sorted(map(repr, self._calls)))
        return f"<partition work {self.mode.value} finished={self.finished} committed={self.committed} [{calls}]>"
