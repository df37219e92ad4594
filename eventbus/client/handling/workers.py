"""Records side by side: at most so many workers, shared by all partitions of a handler.

Where keys keep an order, each record's key is hashed into one of a bounded number of key lanes, and a key lane is at
work in at most one worker; any free worker takes the next key lane that has something to do. So a call that does not
end holds one worker, and the few keys that share its lane, and not its share of all keys.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import copy_context

import anyio
import mmh3

from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.handling.call_loop import CallLoop, fresh_context
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.here import Member, begin_here
from eventbus.client.handling.lane import Lane, Taken
from eventbus.client.handling.places import Item
from eventbus.client.handling.watch import Watch
from eventbus.types import FetchedRecords, TopicPartition

_KEY_LANES_PER_WORKER = 64
_MOST_ITEMS = 8
"""What a worker takes at a time, at most: the others of the partition and other partitions have their turns."""
_MOST_ITEMS_IN_THREADS = 32
"""They share a change of threads."""


class KeyLane:
    """Records whose keys have the same hash, in order: handled one after the other."""

    __slots__ = ("items", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.items: list[Item] = []


class Worker:
    """One task that calls the handler: one record after the other."""

    __slots__ = (
        "backlog", "call_loop", "calls", "held", "item", "items", "late", "member", "scope", "stopping", "task_id",
        "wake",
    )  # fmt: skip

    def __init__(self) -> None:
        self.member: Member | None = None
        self.task_id = 0
        self.stopping = False
        """The record at work is the last one for now."""
        self.call_loop = CallLoop()
        self.calls = 0
        """Records called again after they failed."""
        self.item: Item | None = None
        """The record at work; behind an early return the first one not begun."""
        self.items: list[Item] = []
        """What it has taken."""
        self.held: list[KeyLane] = []
        """The key lanes they are of."""
        self.backlog: Backlog | None = None
        """The partition they are of; None: nothing is in hand."""
        self.scope = anyio.CancelScope()
        """Around many calls: to make one costs as much as a call."""
        self.late = False
        """The call at work is being cancelled because it takes too long."""
        self.wake = anyio.Event()

    # for the watch

    @property
    def marker(self) -> object | None:
        return None if self.item is None or self.call_loop.is_over else (self.item, self.calls)

    @property
    def at(self) -> tuple[FetchedRecords, int] | None:
        return None if (item := self.item) is None else (item[0].chunk, item[1])

    @property
    def where(self) -> tuple[TopicPartition, int] | None:
        if (item := self.item) is None:
            return None
        taken, index = item
        return taken.lane.topic_partition, taken.chunk.offsets[index]

    def is_too_late(self) -> None:
        """Cancel the call at work; the next one is begun in another scope."""
        self.late = self.stopping = True
        self.scope.cancel()

    def give_up(self, dispatch: Dispatch, seconds: float) -> Lane | None:
        """The call at work, in a thread, takes too long and cannot be cancelled: what it comes to is ignored."""
        if self.item is None:
            return None
        taken, index = self.item
        dispatch.timed_out(taken.lane, taken.chunk, (index,), seconds)
        taken.lane.wake.set()
        return taken.lane


class Backlog:
    """One partition's records that are taken and not begun."""

    __slots__ = (
        "_begun_below", "_by_number", "_key_lanes", "_keyed_turn", "_loose", "_ready", "by_key", "is_ending",
        "is_queued", "lane", "size", "workers",
    )  # fmt: skip

    def __init__(self, lane: Lane, by_key: bool, key_lanes: int) -> None:
        self.lane = lane
        self.by_key = by_key
        self.size = 0
        """Records that no worker has taken."""
        self.workers: list[Worker] = []
        """Those with records of this partition in hand."""
        self.is_ending = False
        """The lane waits for the workers to leave."""
        self.is_queued = False
        """It stands in the line of partitions that have something to do."""
        self._key_lanes = key_lanes
        self._by_number: dict[int, KeyLane] = {}
        """Those with records waiting or at work."""
        self._ready: deque[KeyLane] = deque()
        """Those with records waiting and none at work."""
        self._loose: deque[Item] = deque()
        """Records that need no order: all of them, or those without a key."""
        self._keyed_turn = False
        self._begun_below = 0
        """Behind the highest offset of the records that workers are through with."""

    @property
    def ready(self) -> int:
        """How many workers could find something to do."""
        return len(self._ready) + len(self._loose)

    def add(self, taken: Taken) -> None:
        """Records to be handled, behind those added before."""
        chunk = taken.chunk
        self.size += len(chunk)
        if not self.by_key:
            self._loose.extend([(taken, index) for index in range(len(chunk))])
            return
        by_number, ready, loose, count, hash_of = self._by_number, self._ready, self._loose, self._key_lanes, mmh3.hash
        for index, key in enumerate(chunk.keys):
            if key is None:
                loose.append((taken, index))
                continue
            number = hash_of(key, 0, False) % count  # `_number_of`, at half its cost
            key_lane = by_number.get(number)
            if key_lane is None:
                key_lane = by_number[number] = KeyLane(number)
                ready.append(key_lane)
            key_lane.items.append((taken, index))

    def give(self, share: int, several: bool) -> tuple[list[Item], list[KeyLane]]:
        """Something to do for one worker. ``several``: of more than one key lane, up to ``share`` records."""
        items: list[Item] = []
        held: list[KeyLane] = []
        most = _MOST_ITEMS_IN_THREADS if several else _MOST_ITEMS
        self._keyed_turn = not self._keyed_turn
        if self._ready and (self._keyed_turn or not self._loose):
            while self._ready and len(items) < share:
                key_lane = self._ready.popleft()
                held.append(key_lane)
                items += key_lane.items[:most]
                del key_lane.items[:most]
                if not several:
                    break
        else:
            # A record that needs no order shall not wait for one beside it, unless that saves changes of threads.
            for _ in range(min(share if several else 1, len(self._loose))):
                items.append(self._loose.popleft())
        self.size -= len(items)
        return items, held

    def give_back(self, worker: Worker, left: list[Item]) -> None:
        """The worker is through with what it took, but for those ``left``, which it has not begun."""
        for taken, index in worker.items[: len(worker.items) - len(left)]:
            if taken.chunk.offsets[index] >= self._begun_below:
                self._begun_below = taken.chunk.offsets[index] + 1
        for item in reversed(left):
            if not item[0].dropped(item[1]):
                self._put_back(item, worker.held)
        for key_lane in worker.held:
            if key_lane.items:
                self._ready.append(key_lane)
            else:
                del self._by_number[key_lane.number]

    def _put_back(self, item: Item, held: list[KeyLane]) -> None:
        """In front of what has come since."""
        self.size += 1
        key = item[0].chunk.keys[item[1]]
        if not held or key is None:
            self._loose.appendleft(item)
        else:
            self._by_number[self._number_of(key)].items.insert(0, item)

    def _number_of(self, key: bytes) -> int:
        return mmh3.hash(key, 0, False) % self._key_lanes

    # the end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Begin nothing beyond the highest record begun, so that with those below it the prefix has no gaps."""
        lane = self.lane
        self.is_ending = True
        given = lane.limit  # set by a record that waited for the end of an outage: later records wait for it
        while True:
            begun = self._begun()
            lane.limit = min(given, begun)
            # A thread says what it begins before it looks at the limit: what it begins meanwhile shows here.
            if self._begun() <= begun:
                break
        limit = lane.limit
        lane.cut(limit)
        self._keep(lambda item: item[0].chunk.offsets[item[1]] < limit)

    def drop(self) -> None:
        """Begin nothing any more."""
        self.is_ending = True
        self.lane.limit = -1
        self._keep(lambda item: False)

    def _begun(self) -> int:
        """Behind the highest offset begun."""
        below = self._begun_below
        for worker in self.workers:
            for item in worker.items:
                below = max(below, item[0].chunk.offsets[item[1]] + 1)
                if item is worker.item:
                    break
        return below

    def _keep(self, wanted: Callable[[Item], bool]) -> None:
        self._loose = deque(item for item in self._loose if wanted(item))
        for key_lane in self._by_number.values():
            key_lane.items = [item for item in key_lane.items if wanted(item)]
        for key_lane in [key_lane for key_lane in self._ready if not key_lane.items]:
            self._ready.remove(key_lane)
            del self._by_number[key_lane.number]
        self.size = len(self._loose) + sum(len(key_lane.items) for key_lane in self._by_number.values())

    @property
    def is_over(self) -> bool:
        """Nothing is at work or waits."""
        return not (self.size or self.workers)


class Workers:
    """All workers of one handler."""

    def __init__(self, dispatch: Dispatch, watch: Watch, concurrency: int, *, by_key: bool, in_threads: bool) -> None:
        self._dispatch = dispatch
        self._watch = watch
        self.concurrency = concurrency
        """How many records are at work at most."""
        self._by_key = by_key
        self._in_threads = in_threads
        """Plain functions: several key lanes share a change of threads."""
        self._line: deque[Backlog] = deque()
        """Partitions with something to do: each gives to one worker, and goes to the end of the line."""
        self._idle: list[Worker] = []
        self._count = 0
        self._tasks: ContainedTasks | None = None
        self._closing = False

    def start(self, tasks: ContainedTasks) -> None:
        """Workers are begun in ``tasks`` when there is something to do, and stay."""
        self._tasks = tasks

    def close(self) -> None:
        """No partition has anything to do any more: the workers end."""
        self._closing = True
        for worker in self._idle:
            worker.wake.set()

    def open(self, lane: Lane) -> Backlog:
        """A partition's part."""
        return Backlog(lane, self._by_key, _KEY_LANES_PER_WORKER * self.concurrency)

    def add(self, backlog: Backlog, taken: Taken) -> None:
        """Records to be handled."""
        backlog.add(taken)
        self._queue(backlog)
        self._call(backlog.ready)

    def cancel(self, backlog: Backlog) -> None:
        """Cancel what is at work of a partition, and begin nothing of it any more."""
        backlog.drop()
        for worker in backlog.workers:
            worker.stopping = True
            worker.scope.cancel()

    def _queue(self, backlog: Backlog) -> None:
        if backlog.ready and not backlog.is_queued:
            backlog.is_queued = True
            self._line.append(backlog)

    def _call(self, wanted: int) -> None:
        """Have up to so many idle workers look for something to do, and begin others as long as there may be."""
        for _ in range(min(wanted, len(self._idle))):
            self._idle.pop().wake.set()
            wanted -= 1
        assert self._tasks is not None
        while wanted > 0 and self._count < self.concurrency:
            self._count += 1
            wanted -= 1
            self._tasks.start_soon(self._run)

    # a worker --------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        worker = Worker()
        begin_here(self._watch, worker)
        try:
            while not self._closing:
                worker.stopping = worker.late = False
                with anyio.CancelScope() as worker.scope:
                    await worker.call_loop.run(self._dispatch.slices, self._work(worker))
                if worker.backlog is not None:
                    self._interrupted(worker, worker.backlog)
        finally:
            if worker.backlog is not None:
                self._leave(worker, worker.backlog, [])
            self._count -= 1
            self._watch.ends(worker)

    async def _work(self, worker: Worker) -> None:
        """Until the worker's scope is cancelled, or there is nothing to do and will not be."""
        times, loop = self._dispatch.times, worker.call_loop
        self._watch.begins(worker)
        while not (self._closing or worker.stopping):
            backlog = self._next()
            if backlog is None:
                await self._wait(worker)
                continue
            share = min(max(backlog.size // self.concurrency, 1), _MOST_ITEMS_IN_THREADS)
            worker.items, worker.held = items, _ = backlog.give(share, self._in_threads)
            self._queue(backlog)
            worker.backlog = backlog
            backlog.workers.append(worker)
            began = times.now()
            await self._dispatch.work(worker, items)
            times.ran(began, len(items), False)
            if copy_context() != loop.clean:
                await fresh_context()  # `_leave` may begin another worker, whose task inherits the context
            self._leave(worker, backlog, self._not_begun(worker))

    async def _wait(self, worker: Worker) -> None:
        self._watch.ends(worker)
        worker.wake = anyio.Event()
        self._idle.append(worker)
        try:
            with worker.call_loop.paused():
                await worker.wake.wait()
        finally:
            if worker in self._idle:
                self._idle.remove(worker)
        self._watch.begins(worker)

    def _next(self) -> Backlog | None:
        while self._line:
            backlog = self._line.popleft()
            backlog.is_queued = False
            if backlog.ready:
                return backlog
        return None

    def _not_begun(self, worker: Worker) -> list[Item]:
        """What a worker that returned early has left."""
        items, item = worker.items, worker.item
        if item is not None:
            return items[_place(items, item) :]
        if self._in_threads and worker.backlog is not None and worker.backlog.lane.closing:
            # The thread may have looked at a limit that was raised then, see `Backlog.close`.
            return [item for item in items if not item[0].is_handled(item[1])]
        return []

    def _interrupted(self, worker: Worker, backlog: Backlog) -> None:
        """The call at work was cancelled: it took too long, or nobody waits for it any longer.

        A call that ends in the very turn in which it is cancelled never comes here: it returned to `Dispatch.work`,
        which looked at ``stopping`` and returned as well. So what comes here has not finished.
        """
        if worker.item is None:  # a thread that had not begun, or was through with all of it
            self._leave(worker, backlog, [item for item in worker.items if not item[0].is_handled(item[1])])
            return
        taken, index = worker.item
        left = worker.items[_place(worker.items, worker.item) + 1 :]
        try:
            if worker.late and self._watch.timed_out(self._dispatch, taken.lane, taken.chunk, (index,)):
                taken.handled(index, self._dispatch.left_behind(taken.chunk, index))
        finally:
            self._leave(worker, backlog, left)

    def _leave(self, worker: Worker, backlog: Backlog, left: list[Item]) -> None:
        backlog.workers.remove(worker)
        backlog.give_back(worker, left)
        worker.backlog = worker.item = None
        lane = backlog.lane
        if backlog.is_ending or lane.error is not None or lane.has_outputs:
            lane.wake.set()
        self._queue(backlog)
        if left:
            self._call(backlog.ready)


def _place(items: list[Item], item: Item) -> int:
    return next(place for place, one in enumerate(items) if one is item)
