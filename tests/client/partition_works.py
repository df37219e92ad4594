"""A driver of `PartitionWork` for tests: it performs actions against a log that remembers what was committed."""

from __future__ import annotations

from collections import Counter

from eventbus.client.handling.ordering import DONE, FORWARDED, PENDING, RUNNING
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.work_actions import Abort, Call, Commit, Mode, Policy
from eventbus.recovery import Move, Outgoing, Skip, Stop, Verdict
from eventbus.types import FetchedRecords, Record, TimestampType


def records(first: int, keys: list[bytes | None], next_offset: int | None = None, step: int = 1) -> FetchedRecords:
    """Return a fetch of one record for each key, from the offset ``first`` on."""
    count = len(keys)
    offsets = range(first, first + count * step, step)
    end = (offsets[-1] + 1 if count else first) if next_offset is None else next_offset
    return FetchedRecords("t", 0, offsets, [0] * count, keys, [b"v"] * count, None, TimestampType.CREATE_TIME, end)


def move(kind: str) -> Move:
    """Return the verdict that forwards a record."""
    return Move(Outgoing(kind, 0, Record(key=None, value=None)), "retry" if kind == "retry" else "dead-letter")


class Blocked:
    """A delay queue, reduced to the keys that wait in it."""

    def __init__(self, policy: Policy) -> None:
        self._blocks_all = policy.retry_order == "partition"
        self.waiting: dict[int, bytes | None] = {}
        """Keys of records that were forwarded and not tried again yet, by offset."""

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, key: bytes | None) -> bool:
        return self._blocks_all or (key is not None and key in self.waiting.values())

    def block(self, records: FetchedRecords, index: int) -> None:
        self.waiting[records.offsets[index]] = records.keys[index]

    def unblock(self, records: FetchedRecords, index: int) -> None:
        del self.waiting[records.offsets[index]]


class Driver:
    """Reports to a machine, and counts what users would see."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.blocked = Blocked(policy)
        self.work = PartitionWork(policy, self.blocked)
        self.calls: list[Call] = []
        self.keys: dict[int, bytes | None] = {}
        self.begun: Counter[int] = Counter()
        """How often the handler was called with each offset."""
        self.order: list[int] = []
        """Offsets in the order in which they were called."""
        self.handled: Counter[int] = Counter()
        """How often each offset was handled, without the transactions that were aborted."""
        self.in_transaction: list[int] = []
        self.acknowledged: set[int] = set()
        self.skipped: set[int] = set()
        self.skipped_in_transaction: set[int] = set()
        self.forwarded: Counter[int] = Counter()
        self.committed = 0
        """The group's offset in the log."""
        self.outputs: dict[int, list[int]] = {}
        self.is_lost = False
        self._next_output = 0

    def fetched(self, fetch: FetchedRecords) -> None:
        self.keys.update(zip(fetch.offsets, fetch.keys, strict=True))
        self.work.fetched(fetch, sum(len(value or b"") for value in fetch.values))

    def call(self, now_ms: int = 0) -> Call | None:
        call = self.work.next_call(now_ms)
        if call is not None:
            self.calls.append(call)
            self._begins(call)
        return call

    def _begins(self, call: Call) -> None:
        """The record at ``at`` is called, or all of a batch."""
        assert call.is_open, f"{self.offset(call)} is called although its call is closed"
        call.is_resting = False
        offsets = [call.records.offsets[index] for index in call.indexes]
        for offset in offsets if self.policy.batch else offsets[call.at : call.at + 1]:
            assert not self.blocked or self.keys[offset] not in self.blocked, f"the key of {offset} is blocked"
            is_committed = self.policy.delivery == "at-most-once" and offset < self.committed
            assert not self.is_lost or is_committed, f"{offset} is called although the partition is lost"
            assert not (self.policy.store_forwards_first and self.work.has_forwards), f"{offset} comes before a commit"
            self.begun[offset] += 1
            self.order.append(offset)

    def offset(self, call: Call) -> int:
        return call.records.offsets[call.indexes[call.at]]

    def _count(self, call: Call) -> int:
        """Records that return, or fail, together."""
        return len(call.indexes) if self.policy.batch else 1

    def returns(self, call: Call, *, publishes: bool = False) -> None:
        """The record in flight returns, or the batch; the next one is called unless the call has to stop."""
        count = self._count(call)
        offsets = [call.records.offsets[index] for index in call.indexes[call.at : call.at + count]]
        if not call.is_open:
            publishes = False  # its transaction was aborted: what it returns is ignored
        elif self.policy.delivery == "exactly-once":
            self.in_transaction += offsets
        elif not self.policy.manual_ack and not publishes:
            self.handled.update(offsets)
        token = None
        if publishes:
            token = self._next_output = self._next_output + 1
            self.outputs[token] = offsets
        call.at += count
        self.work.returned(call, call.at, token)
        self._goes_on(call)

    def _goes_on(self, call: Call) -> None:
        if call.at < call.end:  # as the loops of `Dispatch`: nothing else is looked at
            self._begins(call)
            return
        self.work.ended(call)
        self.calls.remove(call)

    def raises(self, call: Call, verdict: Verdict, *, now_ms: int = 0, is_clean: bool = True) -> None:
        count = self._count(call)
        error = RuntimeError(f"at {self.offset(call)}") if isinstance(verdict, Stop) else None
        offsets = [call.records.offsets[index] for index in call.indexes[call.at : call.at + count]]
        if call.is_open and isinstance(verdict, Skip):
            is_undone = self.policy.delivery == "exactly-once" and is_clean  # by an abort
            (self.skipped_in_transaction if is_undone else self.skipped).update(offsets)
        self.work.raised(call, call.at, verdict, count=count, now_ms=now_ms, error=error, is_clean=is_clean)
        call.at += count
        self._goes_on(call)

    def cut_off(self, call: Call) -> None:
        """The call is cancelled."""
        self.work.ended(call, self._count(call))
        self.calls.remove(call)

    def stores(self, token: int, error: Exception | None = None) -> None:
        offsets = self.outputs.pop(token)
        if error is None:
            self.handled.update(offsets)
            self.work.stored(token)
        else:
            self.work.refused(token, error)

    def acknowledges(self, offset: int) -> None:
        self.acknowledged.add(offset)
        self.work.acknowledged(offset)

    def commit(self, *, fails: bool = False, singly: bool = False) -> Commit | Abort | None:
        """Perform what the machine wants, whether or not it is due."""
        action = self.work.next_commit()
        if isinstance(action, Abort) or (isinstance(action, Commit) and action.in_transaction and fails):
            self.aborts(singly=singly)
        elif isinstance(action, Commit):
            if fails:
                self.work.commit_failed(action)
            else:
                self._stores(action)
        return action

    def aborts(self, *, singly: bool = False) -> None:
        """The transaction is aborted, maybe by others and while calls are open."""
        self.in_transaction.clear()
        self.skipped_in_transaction.clear()
        self.order = [offset for offset in self.order if offset < self.committed]
        self.work.aborted(singly=singly)

    def _stores(self, commit: Commit) -> None:
        if not self.is_lost:
            assert commit.next_offset >= self.committed or commit.gives_back
            self.committed = commit.next_offset
            self.forwarded.update(forward.records.offsets[forward.at] for forward in commit.forwards)
            if commit.in_transaction:
                self.handled.update(self.in_transaction)
                self.in_transaction.clear()
            self.skipped |= self.skipped_in_transaction
        self.work.commit_stored(commit)


def check(work: PartitionWork) -> None:
    """AssertionError where a rule of `partition_work` is broken, with the states of the records as the only source."""
    states: dict[int, int] = {}
    for fetch in work._progress.fetches:
        states.update(zip(fetch.records.offsets, fetch.states, strict=True))
        assert fetch.first <= fetch.end <= len(fetch.states)
    assert list(states) == sorted(states)
    unfinished = [offset for offset, state in states.items() if state not in (FORWARDED, DONE)]
    assert work.finished <= min(unfinished, default=work.finished), "a record is not finished, and counts as finished"
    if unfinished:
        before = [offset for offset in states if offset < unfinished[0]]
        assert work.finished >= max(before, default=-1) + 1, "a record is finished, and does not count"
    if work.mode is not Mode.LOST:
        assert {offset for offset, state in states.items() if state == FORWARDED} <= {
            *work._progress.forwards,
            *range(work.committed),
        }
    if work.policy.delivery == "at-most-once":
        begun = [offset for offset, state in states.items() if state != PENDING]
        assert max(begun, default=-1) < max(work.committed, 0) or work.mode is not Mode.OPEN
    else:
        assert work.committed <= work.finished
        if isinstance(work._commit, Commit) and work._commit.next_offset > work.committed:
            _check_commit(work, work._commit)
    _check_calls(work, states)


def _check_commit(work: PartitionWork, commit: Commit) -> None:
    assert commit.next_offset <= work.finished
    written = {forward.records.offsets[forward.at] for forward in commit.forwards}
    assert written == {offset for offset in work._progress.forwards if offset < commit.next_offset}


def _check_calls(work: PartitionWork, states: dict[int, int]) -> None:
    running, queues = list[int](), list[int]()
    for call in work._calls:
        assert call.is_open
        running += [call.records.offsets[i] for i in call.indexes[call.done :] if call.fetch.states[i] == RUNNING]
        of_call = [queue for queue, _ in call.parts] or [call.queue]
        queues += [queue.number for queue in of_call if queue.is_serial]
    assert sorted(running) == sorted(offset for offset, state in states.items() if state == RUNNING), "in one call each"
    assert len(queues) == len(set(queues)), "one call of a queue"
    queued = work._queues.queued()
    assert len(queued) == len(set(queued)), "in one queue each"
    if work.mode is Mode.OPEN and (work._slice is None or not work._slice.is_ended):
        taken = [
            fetch.records.offsets[i]
            for fetch in work._progress.fetches
            for i in range(fetch.end)
            if fetch.states[i] == PENDING
        ]
        assert set(taken) <= set(queued), "a record was taken, and nothing calls it"
