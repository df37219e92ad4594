"""Timers without a clock. Moving a deadline into the future, as every heartbeat does, is cheap."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Deadlines(Generic[KeyT]):
    """Keeps at most one deadline per key. Setting, moving and cancelling cost the same for any number of keys."""

    __slots__ = ("_at_ms", "_heap", "_number", "_queued_ms")

    def __init__(self) -> None:
        self._at_ms: dict[KeyT, int] = {}
        self._queued_ms: dict[KeyT, int] = {}
        """The time of the heap entry of each key. It may be earlier than the deadline, never later."""
        self._heap: list[tuple[int, int, KeyT]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._at_ms)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._at_ms

    def set(self, key: KeyT, at_ms: int) -> None:
        self._at_ms[key] = at_ms
        queued_ms = self._queued_ms.get(key)
        if queued_ms is None or at_ms < queued_ms:
            self._queue(key, at_ms)

    def cancel(self, key: KeyT) -> None:
        self._at_ms.pop(key, None)  # its heap entry is dropped when its time comes

    def next_ms(self) -> int | None:
        """Return when to call `due` again: never later than the first deadline, perhaps earlier."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ms: int) -> Iterator[KeyT]:
        """Yield the keys whose deadline has passed, earliest first; each is cancelled when it is yielded."""
        while self._heap and self._heap[0][0] <= now_ms:
            queued_ms, _, key = heapq.heappop(self._heap)
            if self._queued_ms.get(key) != queued_ms:
                continue  # an earlier entry was queued for the key since, and replaced this entry
            del self._queued_ms[key]
            at_ms = self._at_ms.get(key)
            if at_ms is None:
                continue
            if at_ms > queued_ms:  # it was moved: it becomes due later, perhaps still in this call
                self._queue(key, at_ms)
                continue
            del self._at_ms[key]
            yield key

    def _queue(self, key: KeyT, at_ms: int) -> None:
        self._queued_ms[key] = at_ms
        self._number += 1
        heapq.heappush(self._heap, (at_ms, self._number, key))
