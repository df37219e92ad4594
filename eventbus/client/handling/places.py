"""Where records stand while they are handled one after another: in a fetch of one lane, or in a worker's bundle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from eventbus.client.handling.call_loop import CallLoop
from eventbus.client.handling.calls import Calls
from eventbus.client.handling.lane import Lane, Outcome, Taken
from eventbus.client.handling.work_actions import Cursor
from eventbus.types import FetchedRecords

Item = tuple[Taken, int]
"""A record of a fetch that finishes in any order."""


class Worker(Protocol):
    """Who handles bundles: it can be asked to stop, and tells which record is at work."""

    stopping: bool
    call_loop: CallLoop
    calls: int
    """Records called again."""
    item: Item | None
    """The record at work; behind an early return the first one not begun."""


class Places(Protocol):
    """So many records, by number. `begin` to `call` may be called in a worker thread too."""

    first: int
    end: int
    call_loop: CallLoop
    in_order: bool
    """A failure that is not passed over is the end of them all."""

    def begin(self, place: int) -> None:
        """Say that the record is at work. First say, then look: who asks to stop does the two in the other order."""
        ...

    @property
    def stops(self) -> bool:
        """The record at work must not be begun, nor any behind it."""
        ...

    def skips(self, place: int) -> bool:
        """This one must not be begun; others may."""
        ...

    def is_held(self, place: int) -> bool:
        """It has to wait for an earlier one of its key that waits for its next try."""
        ...

    def holds(self, place: int) -> bool:
        """If it is held: it is put behind that one, and finished here."""
        ...

    def is_acknowledged(self, place: int) -> bool:
        """Its handler has said that it is finished."""
        ...

    def call(self, place: int, /) -> Any:
        """Begin the handler's call."""
        ...

    def again(self, place: int) -> None:
        """As `begin`, for a call after one that failed."""
        ...

    def record(self, place: int) -> tuple[Lane, FetchedRecords, int]: ...

    def finish(self, place: int, output: Outcome | None, failed: bool) -> None:
        """The record was handled, or has ``failed`` and is passed over."""
        ...

    def wait(self) -> None:
        """No record is at work for now."""
        ...

    def ran(self, end: int) -> None:
        """A thread has made the calls of the records before ``end``; what they returned is dealt with from here on."""
        ...

    def close(self) -> None:
        """All were handled."""
        ...


class InLane:
    """The records of a lane that are handled in order."""

    in_order = True

    def __init__(
        self,
        lane: Lane,
        cursor: Cursor,
        taken: Taken | None,
        calls: Calls,
        timed: Callable[[Callable[[int], Any]], Callable[[int], Any]],
    ) -> None:
        """``timed``: what goes around the calls."""
        self.first = cursor.at
        self.end = len(cursor)
        self.call_loop = lane.call_loop
        self._lane = lane
        self._cursor = cursor
        self._taken = taken
        self._given: set[int] = set()
        indexes, call = cursor.indexes, timed(calls.of(cursor.records, taken, self._given))
        self.call: Callable[[int], Any] = call if indexes == range(self.end) else partial(_call_at, call, indexes)

    def begin(self, place: int) -> None:
        self._cursor.at = place
        self._cursor.is_resting = False

    @property
    def stops(self) -> bool:
        return self._lane.stopping or self._lane.error is not None

    def skips(self, place: int) -> bool:
        return False

    def is_held(self, place: int) -> bool:
        return self._taken is not None and self._lane.holds(self._cursor.records.keys[self._cursor.indexes[place]])

    def holds(self, place: int) -> bool:
        if self._taken is None or not self.is_held(place):
            return False
        index = self._cursor.indexes[place]
        self._lane.hold_back(self._cursor.records, index)
        self._taken.handled(index)
        return True

    def is_acknowledged(self, place: int) -> bool:
        return self._taken is not None and self._taken.is_handled(self._cursor.indexes[place])

    def again(self, place: int) -> None:
        self._cursor.recalls += 1
        self.begin(place)

    def record(self, place: int) -> tuple[Lane, FetchedRecords, int]:
        return self._lane, self._cursor.records, self._cursor.indexes[place]

    def finish(self, place: int, output: Outcome | None, failed: bool) -> None:
        if self._taken is None:
            self._lane.handled(self._cursor.offset(place) + 1, output)
            return
        index = self._cursor.indexes[place]
        if failed or index not in self._given:
            self._taken.handled(index, output)
        self._given.discard(index)

    def wait(self) -> None:
        self._cursor.is_resting = True

    def ran(self, end: int) -> None:
        self._cursor.called = end

    def close(self) -> None:
        self._cursor.at = self.end


class InBundle:
    """Records of several fetches, which finish in any order."""

    in_order = False

    def __init__(self, worker: Worker, items: list[Item], calls: Calls, is_manual: bool) -> None:
        self.first = 0
        self.end = len(items)
        self.call_loop = worker.call_loop
        self._worker = worker
        self._items = items
        self._calls = calls
        self._is_manual = is_manual

    def begin(self, place: int) -> None:
        self._worker.item = self._items[place]

    @property
    def stops(self) -> bool:
        return self._worker.stopping

    def skips(self, place: int) -> bool:
        taken, index = self._items[place]
        return taken.lane.error is not None or taken.dropped(index)

    def is_held(self, place: int) -> bool:
        taken, index = self._items[place]
        return taken.lane.holds(taken.chunk.keys[index])

    def holds(self, place: int) -> bool:
        if not self.is_held(place):
            return False
        taken, index = self._items[place]
        taken.lane.hold_back(taken.chunk, index)
        taken.handled(index)
        return True

    def is_acknowledged(self, place: int) -> bool:
        taken, index = self._items[place]
        return self._is_manual and taken.is_handled(index)

    def again(self, place: int) -> None:
        self._worker.calls += 1
        self._worker.item = self._items[place]

    def call(self, place: int) -> Any:
        taken, index = self._items[place]
        call = taken.call
        if call is None:
            call = taken.call = self._calls.of(taken.chunk, taken if self._is_manual else None, taken.given)
        return call(index)

    def record(self, place: int) -> tuple[Lane, FetchedRecords, int]:
        taken, index = self._items[place]
        return taken.lane, taken.chunk, index

    def finish(self, place: int, output: Outcome | None, failed: bool) -> None:
        taken, index = self._items[place]
        if not self._is_manual or failed or index not in taken.given:
            taken.handled(index, output)

    def wait(self) -> None:
        self._worker.item = None

    def ran(self, end: int) -> None: ...

    def close(self) -> None:
        self._worker.item = None


def _call_at(call: Callable[[int], Any], indexes: Sequence[int], place: int) -> Any:
    return call(indexes[place])
