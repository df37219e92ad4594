"""What a topic of dead letters holds, without its payloads: an index that grows with the topic. Pure.

Thirty bytes a letter, in columns; they lie in segments, and each segment knows its sums. So the grouped view of a
million adds up some dozen of them, and a letter whose status changes costs one segment its sum.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from dlq.selection import OVERFLOW, STATUSES, CaseKey, LetterId, Selection

_ROWS = 16_384
"""In a segment."""
_MOST_CASES = 50_000
"""Of a topic. Whoever makes letters may make every one a case of its own; further ones are counted together."""
SAMPLES = 5
_STATUS_BITS = 3
OPEN, PARKED = STATUSES.index("open"), STATUSES.index("parked")
NO_STATE = -1


class Cell(NamedTuple):
    """Letters of one case and status."""

    letters: int
    first_ms: int
    last_ms: int
    newest: tuple[int, ...]
    """Offsets of some, the newest first."""


class Sum(NamedTuple):
    """The same over several partitions."""

    letters: int
    first_ms: int
    last_ms: int
    samples: tuple[LetterId, ...]
    """Some, of each partition the newest first."""


Sums = dict[int, Cell]
"""By kind: the number of the case, and the status below it."""


def kind_of(case: int, status: int) -> int:
    return case << _STATUS_BITS | status


def case_and_status(kind: int) -> tuple[int, int]:
    return kind >> _STATUS_BITS, kind & (1 << _STATUS_BITS) - 1


def merged(older: Cell | None, newer: Cell) -> Cell:
    """Both together."""
    if older is None:
        return newer
    return Cell(
        older.letters + newer.letters,
        min(older.first_ms, newer.first_ms),
        max(older.last_ms, newer.last_ms),
        (newer.newest + older.newest)[:SAMPLES],
    )


def joined(one: Sum | None, other: Sum) -> Sum:
    """Both together."""
    if one is None:
        return other
    return Sum(
        one.letters + other.letters,
        min(one.first_ms, other.first_ms),
        max(one.last_ms, other.last_ms),
        (one.samples + other.samples)[:SAMPLES],
    )


class Row(NamedTuple):
    """A dead letter, as far as the index knows it."""

    offset: int
    case: int
    time_ms: int
    status: int
    state_at: int
    """Offset of the record that says what became of it; -1: none does."""


class Segment:
    """Letters one after the other."""

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
        """Forget the first ``count``."""
        for column in (self.offsets, self.cases, self.times, self.statuses, self.states):
            del column[:count]
        self._sums = None

    def sums(self) -> Sums:
        if self._sums is None:
            self._sums = self.sums_of(range(len(self)))
        return self._sums

    def sums_of(self, rows: Iterable[int]) -> Sums:
        """Of some rows, in their order."""
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
    """The letters of one partition."""

    def __init__(self, next_offset: int = 0, segments: list[Segment] | None = None) -> None:
        self.next_offset = next_offset
        """Everything below it is in here."""
        self.segments = [] if segments is None else segments

    def __len__(self) -> int:
        return sum(map(len, self.segments))

    def add(self, offset: int, case: int, status: int, time_ms: int) -> None:
        """The letter that follows; one that is here already is passed over."""
        if offset < self.next_offset:
            return
        if not self.segments:
            self.segments.append(Segment())
        elif len(self.segments[-1]) >= _ROWS:
            self.segments[-1].sums()  # now, a little at a time: who asks for the view has no million to wait for
            self.segments.append(Segment())
        self.segments[-1].add(offset, case, status, time_ms)
        self.next_offset = offset + 1

    def trim(self, begin: int) -> int:
        """The log begins at ``begin`` by now: forget what was before, and say how many those were."""
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
    """The dead letters of a topic."""

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
        """What the state topic says below this offset is in here."""

    def __len__(self) -> int:
        return sum(map(len, self.partitions.values()))

    def partition(self, number: int) -> PartitionIndex:
        return self.partitions.setdefault(number, PartitionIndex())

    def number_of(self, key: CaseKey) -> int:
        """The number of a case, a new one if there is room."""
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
        """What a record at ``state_at`` says, unless a later one spoke. Of letters that are gone nothing is kept."""
        found = self._find(letter)
        if found is not None and state_at > found[0].states[found[1]]:
            found[0].set_state(found[1], STATUSES.index(status), state_at)

    def _find(self, letter: LetterId) -> tuple[Segment, int] | None:
        partition = self.partitions.get(letter.partition)
        return None if partition is None else partition.find(letter.offset)

    # looking ---------------------------------------------------------------------------------------------------------

    def sums(self, selection: Selection) -> dict[int, Sum]:
        """By kind: what is selected by topic, case, status and time."""
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
        """Partition and offsets, in order, of letters that may be selected: by topic, ids, case, status and time."""
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
        """Letters by time: in ``count`` buckets from ``since_ms`` on."""
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
        """Whether letters of a kind may be selected, remembered."""
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
