"""An index of a dead-letter topic without the payloads, extended as the topic grows. Pure.

It needs thirty bytes a letter, stored in columns. The columns are split into segments that cache their sums. Grouping a
million letters therefore adds up a few dozen sums, and a status change invalidates the sums of one segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlq.selection import OVERFLOW, STATUSES, CaseKey, LetterId, Selection

_ROWS = 16_384
"""Maximum number of rows in a segment."""
_MOST_CASES = 50_000
"""Maximum number of cases in a topic; later ones are counted together. A producer could otherwise create a case per
letter.
"""
SAMPLES = 5
_STATUS_BITS = 3
OPEN, PARKED = STATUSES.index("open"), STATUSES.index("parked")
NO_STATE = -1


class Cell(NamedTuple):
    """Sums of the letters of a partition that share case and status."""

    letters: int
    first_ms: int
    last_ms: int
    newest: tuple[int, ...]
    """Offsets of some letters, newest first."""


class Sum(NamedTuple):
    """A `Cell` summed over several partitions."""

    letters: int
    first_ms: int
    last_ms: int
    samples: tuple[LetterId, ...]
    """Ids of some letters, newest first within each partition."""


Sums = dict[int, Cell]
"""Cells by kind, which is the number of the case shifted left plus the status."""


def kind_of(case: int, status: int) -> int:
    return case << _STATUS_BITS | status


def case_and_status(kind: int) -> tuple[int, int]:
    return kind >> _STATUS_BITS, kind & (1 << _STATUS_BITS) - 1


def merged(older: Cell | None, newer: Cell) -> Cell:
    if older is None:
        return newer
    return Cell(
        older.letters + newer.letters,
        min(older.first_ms, newer.first_ms),
        max(older.last_ms, newer.last_ms),
        (newer.newest + older.newest)[:SAMPLES],
    )


def joined(one: Sum | None, other: Sum) -> Sum:
    if one is None:
        return other
    return Sum(
        one.letters + other.letters,
        min(one.first_ms, other.first_ms),
        max(one.last_ms, other.last_ms),
        (one.samples + other.samples)[:SAMPLES],
    )


class Row(NamedTuple):
    """The index entry of a dead letter."""

    offset: int
    case: int
    time_ms: int
    status: int
    state_at: int
    """Offset of the record in the state topic that set the status, or -1."""


class Segment:
    """A run of consecutive letters, stored in columns."""

    __slots__ = ("_sums", "cases", "offsets", "states", "statuses", "times")

    def __init__(
        self,
        offsets: array[int] | None = None,
        cases: array[int] | None = None,
        times: array[int] | None = None,
        statuses: bytearray | None = None,
        states: array[int] | None = None,
        sums: Sums | None = None,
    ) -> None:
        self.offsets = array("q") if offsets is None else offsets
        self.cases = array("I") if cases is None else cases
        self.times = array("q") if times is None else times
        self.statuses = bytearray() if statuses is None else statuses
        self.states = array("q") if states is None else states
        self._sums = sums

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, offset: int, case: int, status: int, time_ms: int) -> None:
        self.offsets.append(offset)
        self.cases.append(case)
        self.times.append(time_ms)
        self.statuses.append(status)
        self.states.append(NO_STATE)
        self._sums = None

    def row(self, index: int) -> Row:
        return Row(self.offsets[index], self.cases[index], self.times[index], self.statuses[index], self.states[index])

    def set_state(self, index: int, status: int, state_at: int) -> None:
        self.statuses[index] = status
        self.states[index] = state_at
        self._sums = None

    def drop(self, count: int) -> None:
        """Remove the first ``count`` rows."""
        for column in (self.offsets, self.cases, self.times, self.statuses, self.states):
            del column[:count]
        self._sums = None

    def sums(self) -> Sums:
        if self._sums is None:
            self._sums = self.sums_of(range(len(self)))
        return self._sums

    def sums_of(self, rows: Iterable[int]) -> Sums:
        """Compute the sums of these rows, which must be in ascending order."""
        counted: dict[int, list[int]] = {}
        newest: dict[int, list[int]] = {}
        offsets, cases, times, statuses = self.offsets, self.cases, self.times, self.statuses
        for index in rows:
            kind = cases[index] << _STATUS_BITS | statuses[index]
            time_ms = times[index]
            found = counted.get(kind)
            if found is None:
                counted[kind] = [1, time_ms, time_ms]
                newest[kind] = [index]
                continue
            found[0] += 1
            if time_ms < found[1]:
                found[1] = time_ms
            elif time_ms > found[2]:
                found[2] = time_ms
            newest[kind].append(index)
        return {
            kind: Cell(letters, first, last, tuple(offsets[index] for index in reversed(newest[kind][-SAMPLES:])))
            for kind, (letters, first, last) in counted.items()
        }


class PartitionIndex:
    """The index of one partition."""

    def __init__(self, next_offset: int = 0, segments: list[Segment] | None = None) -> None:
        self.next_offset = next_offset
        """The partition is indexed up to this offset, exclusively."""
        self.segments = [] if segments is None else segments

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def add(self, offset: int, case: int, status: int, time_ms: int) -> None:
        """Append a letter. A letter below `next_offset` is already indexed and ignored."""
        if offset < self.next_offset:
            return
        if not self.segments:
            self.segments.append(Segment())
        elif len(self.segments[-1]) >= _ROWS:
            # Compute the sums of a full segment now, so that the first grouped view need not sum a million rows at
            # once.
            self.segments[-1].sums()
            self.segments.append(Segment())
        self.segments[-1].add(offset, case, status, time_ms)
        self.next_offset = offset + 1

    def trim(self, begin: int) -> int:
        """Remove the letters before the log start offset ``begin``. Return how many there were."""
        before = len(self)
        while self.segments and self.segments[0].offsets[-1] < begin:
            del self.segments[0]
        if self.segments and (count := bisect_left(self.segments[0].offsets, begin)):
            self.segments[0].drop(count)
        self.next_offset = max(self.next_offset, begin)
        return before - len(self)

    def find(self, offset: int) -> tuple[Segment, int] | None:
        at = bisect_left(self.segments, offset, key=lambda one: one.offsets[-1])
        if at == len(self.segments):
            return None
        segment = self.segments[at]
        index = bisect_left(segment.offsets, offset)
        return (segment, index) if segment.offsets[index] == offset else None


class TopicIndex:
    """The index of all partitions of a topic."""

    def __init__(
        self,
        topic: str,
        topic_id: str,
        cases: Sequence[CaseKey] = (),
        partitions: Mapping[int, PartitionIndex] | None = None,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.cases = list(cases)
        self._numbers = {key.case: number for number, key in enumerate(self.cases)}
        self.partitions = dict(partitions or {})
        self.state_topic_id = ""
        self.states_until = 0
        """The state topic is applied up to this offset, exclusively."""

    def __len__(self) -> int:
        return sum(map(len, self.partitions.values()))

    def partition(self, number: int) -> PartitionIndex:
        return self.partitions.setdefault(number, PartitionIndex())

    def number_of(self, key: CaseKey) -> int:
        """Return the number of a case, assigning one while there is room. Later cases share that of `OVERFLOW`."""
        number = self._numbers.get(key.case)
        if number is None:
            if len(self.cases) >= _MOST_CASES and key != OVERFLOW:
                return self.number_of(OVERFLOW)
            number = self._numbers[key.case] = len(self.cases)
            self.cases.append(key)
        return number

    # what became of letters ------------------------------------------------------------------------------------------

    def row(self, letter: LetterId) -> Row | None:
        found = self._find(letter)
        return None if found is None else found[0].row(found[1])

    def set_state(self, letter: LetterId, status: str, state_at: int) -> None:
        """Apply the state record at offset ``state_at``, unless a later one was applied. Letters that are gone are
        ignored.
        """
        found = self._find(letter)
        if found is not None and state_at > found[0].states[found[1]]:
            found[0].set_state(found[1], STATUSES.index(status), state_at)

    def _find(self, letter: LetterId) -> tuple[Segment, int] | None:
        partition = self.partitions.get(letter.partition)
        return None if partition is None else partition.find(letter.offset)

    # looking ---------------------------------------------------------------------------------------------------------

    def sums(self, selection: Selection) -> dict[int, Sum]:
        """Sum the letters that match the selection's topic, case, status and time, by kind."""
        kinds = self._kinds(selection)
        total: dict[int, Sum] = {}
        for number, partition in sorted(self.partitions.items()):
            of_partition: Sums = {}
            for segment in partition.segments:
                for kind, cell in _sums_within(segment, selection).items():
                    if kinds(kind):
                        of_partition[kind] = merged(of_partition.get(kind), cell)
            for kind, cell in of_partition.items():
                samples = tuple(LetterId(self.topic, number, offset) for offset in cell.newest)
                total[kind] = joined(total.get(kind), Sum(cell.letters, cell.first_ms, cell.last_ms, samples))
        return total

    def rows(self, selection: Selection) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield partition and sorted offsets of letters that match topic, ids, case, status and time."""
        if selection.topic not in (None, self.topic):
            return
        kinds = self._kinds(selection)
        named = selection.letter_ids()
        for number, partition in sorted(self.partitions.items()):
            if named is None:
                for segment in partition.segments:
                    taken = [kinds(kind) for kind in segment.sums()]
                    if all(taken) and selection.is_of_all_times:
                        yield number, segment.offsets
                    elif any(taken):
                        yield number, _chosen(segment, range(len(segment)), kinds, selection)
            else:
                for letter in named:
                    if (letter.topic, letter.partition) != (self.topic, number):
                        continue
                    found = partition.find(letter.offset)
                    if found is not None:
                        yield number, _chosen(found[0], (found[1],), kinds, selection)

    def rates(self, since_ms: int, bucket_ms: int, count: int) -> list[int]:
        """Count letters by time in ``count`` buckets of ``bucket_ms``, starting at ``since_ms``."""
        buckets = [0] * count
        segments = [one for partition in self.partitions.values() for one in partition.segments]
        for segment in segments:
            if max((cell.last_ms for cell in segment.sums().values()), default=since_ms) >= since_ms:
                for time_ms in segment.times:
                    at = (time_ms - since_ms) // bucket_ms
                    if 0 <= at < count:
                        buckets[at] += 1
        return buckets

    def _kinds(self, selection: Selection) -> Callable[[int], bool]:
        """Return a cached predicate: whether letters of a kind match the selection."""
        known: dict[int, bool] = {}

        def is_taken(kind: int) -> bool:
            taken = known.get(kind)
            if taken is None:
                case, status = case_and_status(kind)
                taken = known[kind] = selection.takes_status(STATUSES[status]) and selection.takes_case(
                    self.cases[case]
                )
            return taken

        return is_taken


def _sums_within(segment: Segment, selection: Selection) -> Sums:
    if selection.is_of_all_times:
        return segment.sums()
    return segment.sums_of(index for index, time_ms in enumerate(segment.times) if selection.takes_time(time_ms))


def _chosen(segment: Segment, indexes: Sequence[int], kinds: Callable[[int], bool], selection: Selection) -> list[int]:
    offsets, cases, statuses, times = segment.offsets, segment.cases, segment.statuses, segment.times
    return [
        offsets[index]
        for index in indexes
        if kinds(cases[index] << _STATUS_BITS | statuses[index]) and selection.takes_time(times[index])
    ]
