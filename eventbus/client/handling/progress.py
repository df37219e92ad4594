"""The outcome of each record of a partition, and how far the partition is finished: a part of `PartitionWork`."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Container, Sequence

from eventbus.client.handling.ordering import DONE, FORWARDED, HANDLED, PENDING, RUNNING, Fetch
from eventbus.client.handling.work_actions import BlockedKeys, Forward
from eventbus.recovery import Outgoing
from eventbus.types import FetchedRecords

_FINISHED = re.compile(b"[%c%c]*" % (FORWARDED, DONE))
"""Finds the end of the finished prefix at the speed of a loop in C."""


class Progress:
    """The records that arrived and are not finished, in the order of their offsets."""

    def __init__(self, blocked_keys: BlockedKeys | None, *, keeps_uncommitted: bool) -> None:
        """``keeps_uncommitted``: a fetch is kept until it is committed, because its records may be handled again."""
        self._blocked = blocked_keys
        self._keeps_uncommitted = keeps_uncommitted
        self.finished = -1
        """The next offset after the finished prefix; -1: nothing has arrived."""
        self.committed = -1
        self.fetches: deque[Fetch] = deque()
        """Those with a record that is not finished."""
        self.arrived: deque[Fetch] = deque()
        """The last of them, with records that are in no queue yet."""
        self.size_bytes = 0
        self.outputs: dict[object, list[tuple[Fetch, Sequence[int]]]] = {}
        """Records whose outputs are not stored yet."""
        self.forwards: dict[int, Forward] = {}
        """Records that the next commits write to other topics, by offset."""
        self.forward_bytes = 0
        self.skip_below = -1
        """Records below this offset are done, although they were not handled here."""
        self._taken_count = 0
        self.finished_count = 0
        """Records that were in a queue and are in the finished prefix now, ever."""

    def add(self, records: FetchedRecords, size_bytes: int) -> None:
        """Records arrived; those that arrived before have smaller offsets."""
        fetch = Fetch(records, size_bytes)
        if self.finished < 0 and records.offsets:  # otherwise the offset that was passed is committed
            self.finished = self.committed = records.offsets[0]
        self.fetches.append(fetch)
        if records.offsets:
            self.arrived.append(fetch)
        self.size_bytes += size_bytes
        if not records.offsets or records.offsets[0] < self.skip_below:
            self._skip(fetch)
            self.advance()

    def done_below(self, offset: int) -> None:
        """Records below ``offset`` are done, although they were not handled here."""
        self.skip_below = offset
        for fetch in self.fetches:
            self._skip(fetch)
        for forwarded in [forwarded for forwarded in self.forwards if forwarded < offset]:
            self._forget_forward(forwarded)
        self.finished, self.committed = max(self.finished, offset), max(self.committed, offset)
        self.advance()

    def _skip(self, fetch: Fetch) -> None:
        stop = bisect_left(fetch.records.offsets, self.skip_below)
        # A transaction of the previous owner was committed after all. Its records must not be called again.
        fetch.mark(range(fetch.first, max(fetch.first, stop)), DONE)

    def take(self, fetch: Fetch, end: int) -> None:
        """The records up to ``end`` are put into queues."""
        self._taken_count += end - fetch.end
        fetch.end = end
        if end == len(fetch.states) and not self._keeps_uncommitted:
            self.arrived.popleft()

    @property
    def unfinished(self) -> int:
        """Records that may have been begun, from the first unfinished one on."""
        return self._taken_count - self.finished_count

    def advance(self) -> None:
        """Move ``finished`` over the records at the front that are."""
        fetches = self.fetches
        while fetches:
            fetch = fetches[0]
            states, first = fetch.states, fetch.first
            # The usual case of a record that is not finished, before the search below.
            if first < len(states) and states[first] < FORWARDED:
                return
            # A regular expression over the bytes of the states finds the end of the finished run at the speed of C.
            match = _FINISHED.match(states, first)
            stop = first if match is None else match.end()
            self.finished_count += max(min(stop, fetch.end) - first, 0)
            fetch.first, fetch.end = stop, max(fetch.end, stop)
            if stop < len(states):
                if stop > first:
                    self.finished = max(self.finished, fetch.records.offsets[stop - 1] + 1)
                return
            self.finished = max(self.finished, fetch.records.next_offset)
            # An aborted transaction brings these records back, so they are kept until it is committed.
            if self._keeps_uncommitted and len(states) and self.committed < fetch.records.next_offset:
                return
            fetches.popleft()
            if self.arrived and self.arrived[0] is fetch:
                self.arrived.popleft()
            self.size_bytes -= fetch.size_bytes

    # outputs and acknowledgements ------------------------------------------------------------------------------------

    def publish(self, outputs: object, fetch: Fetch, indexes: Sequence[int]) -> None:
        """The outputs of these records are in flight."""
        self.outputs.setdefault(outputs, []).append((fetch, indexes))

    def stored(self, outputs: object) -> None:
        """The log has stored ``outputs``: their records are done."""
        for fetch, indexes in self.outputs.pop(outputs, ()):
            for index in indexes:
                if fetch.states[index] == HANDLED:
                    fetch.states[index] = DONE
        self.advance()

    def acknowledged(self, offset: int, called_before: Container[int]) -> None:
        """A record is acknowledged. That counts if its call is open, or it was called and will be called again."""
        for fetch in self.fetches:
            if offset < fetch.records.next_offset:
                index = bisect_left(fetch.records.offsets, offset)
                if fetch.records.offsets[index] != offset:
                    return  # it was acknowledged before
                state = fetch.states[index]
                # An acknowledgement of a record that the handler never got is a bug of the program, and must not skip
                # the record.
                if state in (RUNNING, HANDLED) or (state == PENDING and offset in called_before):
                    fetch.states[index] = DONE
                    self.advance()
                return

    # commits ---------------------------------------------------------------------------------------------------------

    def forward(self, fetch: Fetch, index: int, outgoing: Outgoing | None, blocks: bool) -> None:
        """A record is finished by being written to another topic."""
        fetch.states[index] = FORWARDED
        self.forwards[fetch.records.offsets[index]] = Forward(fetch.records, index, outgoing, blocks)
        self.forward_bytes += _size_of(fetch.records, index)
        if blocks and self._blocked is not None:
            self._blocked.block(fetch.records, index)

    def finished_forwards(self) -> tuple[Forward, ...]:
        """Return the records that a commit of ``finished`` has to write."""
        return (
            ()
            if not self.forwards
            else tuple(self.forwards[offset] for offset in sorted(self.forwards) if offset < self.finished)
        )

    def commit(self, next_offset: int, forwards: Sequence[Forward]) -> None:
        """A commit is stored."""
        self.committed = max(self.committed, next_offset)
        for forward in forwards:
            self._forget_forward(forward.records.offsets[forward.at])

    def _forget_forward(self, offset: int) -> Forward | None:
        forward = self.forwards.pop(offset, None)
        if forward is not None:
            self.forward_bytes -= _size_of(forward.records, forward.at)
        return forward

    def put_aside(self, fetch: Fetch) -> None:
        """Records of ``fetch`` that were put into queues and are not finished count as arrived again."""
        self._taken_count -= fetch.end - fetch.first
        fetch.end = fetch.first

    def undo(self, fetch: Fetch, start: int, end: int, finished: int) -> None:
        """Undo the outcome of these records: their transaction was aborted."""
        offsets = fetch.records.offsets
        for index in range(start, end):
            if offsets[index] < self.skip_below:
                continue
            forward = self._forget_forward(offsets[index])
            # The retry that blocked the key was part of the aborted transaction.
            if forward is not None and forward.blocks and self._blocked is not None:
                self._blocked.unblock(fetch.records, index)
            fetch.states[index] = PENDING
        self.finished_count -= fetch.first - start
        self._taken_count -= fetch.end - start
        fetch.first = fetch.end = start
        self.finished = max(finished, self.skip_below)
        self.advance()

    # the end ---------------------------------------------------------------------------------------------------------

    def not_begun(self) -> Sequence[int]:
        """Return the offsets of the committed records that were not begun. Only one fetch holds such records."""
        for fetch in self.fetches:
            offsets = fetch.records.offsets
            index = fetch.states.find(PENDING)
            if index >= 0 and offsets[index] < self.committed:
                return offsets[index : bisect_left(offsets, self.committed)]
        return ()

    def ended_below(self) -> int:
        """Return the offset after the highest record whose call has ended."""
        below = self.finished
        for fetch in self.fetches:
            highest = max(fetch.states.rfind(HANDLED), fetch.states.rfind(FORWARDED), fetch.states.rfind(DONE))
            if highest >= 0:
                below = max(below, fetch.records.offsets[highest] + 1)
        return below

    def holds(self, state: int) -> bool:
        """Return True if a record is in this state."""
        return any(state in fetch.states for fetch in self.fetches)

    def in_states(self, states: Container[int]) -> list[int]:
        """Return the offsets of the records in these states."""
        return [
            offset
            for fetch in self.fetches
            for offset, state in zip(fetch.records.offsets, fetch.states, strict=True)
            if state in states
        ]

    @property
    def oldest_ms(self) -> int | None:
        """The timestamp of the first record that is not finished, or None."""
        for fetch in self.fetches:
            if fetch.first < len(fetch.states):
                return fetch.records.timestamps_ms[fetch.first]
        return None


def _size_of(records: FetchedRecords, index: int) -> int:
    return len(records.values[index] or b"")
