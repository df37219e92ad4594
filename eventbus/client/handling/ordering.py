"""The order in which the records of one partition may be called: a part of `PartitionWork`.

Records stand in queues. The records of a queue are called in the order of their offsets, and a queue has at most one
open call. ``order="partition"`` is one queue, ``order="key"`` a bounded number of them, which keys are hashed into, and
records that need no order share a queue without these rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Literal

import mmh3

from eventbus.types import FetchedRecords

PENDING, RUNNING, HANDLED, FORWARDED, DONE = range(5)
"""The states of a record, see `PartitionWork`."""
_UNORDERED = -1
"""The number of the queue whose records need no order."""


class Fetch:
    """Records that arrived together, and a state for each."""

    __slots__ = ("end", "first", "prepared", "records", "size_bytes", "states")

    def __init__(self, records: FetchedRecords, size_bytes: int) -> None:
        self.records = records
        self.states = bytearray(len(records.offsets))
        self.size_bytes = size_bytes
        self.first = 0
        """The first record that is not finished."""
        self.end = 0
        """The first record that was not put into a queue yet."""
        self.prepared: tuple[Callable[[int], Any], set[int]] | None = None
        """State of the driver that all calls of these records share. Without order each record is a call."""

    def mark(self, indexes: Sequence[int], state: int) -> None:
        states = self.states
        if isinstance(indexes, range):
            states[indexes.start : indexes.stop] = bytes((state,)) * len(indexes)
        else:
            for index in indexes:
                states[index] = state

    def mark_running(self, indexes: Sequence[int], state: int) -> None:
        """Mark those that are RUNNING. Others were acknowledged, or decided upon, while their call was open."""
        states = self.states
        if (
            len(indexes) > 1
            and isinstance(indexes, range)
            and states.count(RUNNING, indexes.start, indexes.stop) == len(indexes)
        ):
            self.mark(indexes, state)
            return
        for index in indexes:
            if states[index] == RUNNING:
                states[index] = state

    def in_state(self, indexes: Sequence[int], state: int = PENDING) -> Sequence[int]:
        """Return those that are in this state."""
        if isinstance(indexes, range) and self.states.count(state, indexes.start, indexes.stop) == len(indexes):
            return indexes
        return [index for index in indexes if self.states[index] == state]


class _Run:
    """Records of one fetch that stand in a queue."""

    __slots__ = ("fetch", "indexes", "singly", "start")

    def __init__(self, fetch: Fetch, indexes: Sequence[int], singly: bool) -> None:
        self.fetch = fetch
        self.indexes = indexes
        self.start = 0
        self.singly = singly


class Queue:
    """Records that keep an order among each other."""

    __slots__ = ("is_busy", "is_ready", "is_serial", "number", "runs")

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_serial = number != _UNORDERED
        self.runs: deque[_Run] = deque()
        self.is_busy = False
        """It has an open call."""
        self.is_ready = False
        """A call can be taken from it, and it is in the line of such queues."""


class Ordering:
    """The queues of one partition."""

    def __init__(self, order: Literal["partition", "key", "none"], key_queues: int) -> None:
        self._order = order
        self._key_queues = key_queues
        self._queues: dict[int, Queue] = {}
        self.ready: deque[Queue] = deque()
        """Queues that a call can be taken from."""
        self.count = 0
        """The number of records in all queues."""
        self.of_partition = self._queues[0] = Queue(0)
        """The queue of a partition in order."""

    def add(self, fetch: Fetch, start: int, end: int) -> None:
        """Put records into their queues, after those that were added before."""
        indexes = fetch.in_state(range(start, end))
        if self._order != "key":
            self._append(0 if self._order == "partition" else _UNORDERED, fetch, indexes)
            return
        # One pass over a fetch: the records of a queue then share a call.
        groups: dict[int, list[int]] = {}
        keys, count, hash_of = fetch.records.keys, self._key_queues, mmh3.hash
        for index in indexes:
            key = keys[index]
            # Keys are hashed into a bounded number of queues. Keys that share a queue only wait for each other.
            number = _UNORDERED if key is None else hash_of(key, 0, False) % count
            group = groups.get(number)
            if group is None:
                groups[number] = [index]
            else:
                group.append(index)
        for number, group in groups.items():
            self._append(number, fetch, group)

    def _append(self, number: int, fetch: Fetch, indexes: Sequence[int]) -> None:
        if not indexes:
            return
        queue = self._queues.get(number)
        if queue is None:
            queue = self._queues[number] = Queue(number)
        # A run has records of a single fetch, so that a call can refer to the fetch's columns instead of copying them.
        queue.runs.append(_Run(fetch, indexes, False))
        self.count += len(indexes)
        self._make_ready(queue)

    def _make_ready(self, queue: Queue) -> None:
        if queue.runs and not queue.is_ready and not queue.is_busy:
            queue.is_ready = True
            self.ready.append(queue)

    def take_of(self, fetch: Fetch, most: int) -> tuple[Queue, Sequence[int]] | None:
        """The same for a call that has records of ``fetch`` already. None: the next queue's are of another fetch."""
        run = self.ready[0].runs[0] if self.ready else None
        if run is None or run.fetch is not fetch or run.singly:
            return None
        queue, _, indexes = self.take(most, several=True)
        return queue, indexes

    def take(self, most: int, *, several: bool = False) -> tuple[Queue, Fetch, Sequence[int]]:
        """Take up to ``most`` records of the next queue. Report with `begun` or `ended` what became of the queue.

        ``several``: more than one record without a key. Such a record waits for those before it in the call.
        """
        queue = self.ready.popleft()
        queue.is_ready = False
        run = queue.runs[0]
        if run.singly or not (queue.is_serial or several or self._order == "none"):
            most = 1
        start = run.start
        indexes = run.indexes[start : start + most] if start or most < len(run.indexes) else run.indexes
        run.start = start + len(indexes)
        self.count -= len(indexes)
        if run.start >= len(run.indexes):
            queue.runs.popleft()
        if not queue.is_serial:
            self._make_ready(queue)
        return queue, run.fetch, indexes

    def begun(self, queue: Queue) -> None:
        """A call was opened with what was taken."""
        queue.is_busy = queue.is_serial

    def ended(self, queue: Queue) -> None:
        """The queue has no open call any more."""
        queue.is_busy = False
        if queue.runs:
            if not queue.is_ready:
                self._make_ready(queue)
        # An empty queue is removed, so that a partition has only as many queues as it has waiting keys. Queue 0 is used
        # by ordered partitions all the time.
        elif queue.number > 0:
            self._queues.pop(queue.number, None)

    def put_back(self, queue: Queue, fetch: Fetch, indexes: Sequence[int], singly: bool) -> None:
        """Records that were taken and are not handled come before all others of their queue."""
        queue.runs.appendleft(_Run(fetch, indexes, singly))
        self.count += len(indexes)
        self._queues[queue.number] = queue

    def keep_below(self, offset: int) -> None:
        """Remove the records from ``offset`` on."""
        self.ready.clear()
        self.count = 0
        for queue in self._queues.values():
            queue.is_ready = False
            runs, queue.runs = queue.runs, deque()
            for run in runs:
                offsets = run.fetch.records.offsets
                left = [index for index in run.indexes[run.start :] if offsets[index] < offset]
                if left:
                    queue.runs.append(_Run(run.fetch, left, run.singly))
                    self.count += len(left)
            self._make_ready(queue)

    def queued(self) -> list[int]:
        """Return the offsets of all records in queues. For tests."""
        return sorted(
            run.fetch.records.offsets[index]
            for queue in self._queues.values()
            for run in queue.runs
            for index in run.indexes[run.start :]
        )
