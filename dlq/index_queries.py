"""Summaries computed from the indexes of dead letters. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

from dlq.index import Row, Sum, TopicIndex, case_and_status, joined, kind_of
from dlq.selection import STATUSES, Case, DeadLetterTopic, LetterId, Selection
from eventbus.types import TopicPartition

_ALL = Selection(status=None)


def row_of(indexes: Mapping[str, TopicIndex], letter: LetterId) -> Row | None:
    index = indexes.get(letter.topic)
    return None if index is None else index.row(letter)


Offsets = dict[TopicPartition, "array[int]"]
"""Sorted offsets of letters by partition."""


def offsets_of(indexes: Mapping[str, TopicIndex], selection: Selection) -> Offsets:
    """Return the letters that may match, as far as the indexes can tell."""
    found: Offsets = {}
    for name, index in sorted(indexes.items()):
        for partition, offsets in index.rows(selection):
            if offsets:
                found.setdefault(TopicPartition(name, partition), array("q")).extend(offsets)
    return found


def topics_of(indexes: Mapping[str, TopicIndex]) -> list[DeadLetterTopic]:
    return [_topic(index) for _, index in sorted(indexes.items())]


def _topic(index: TopicIndex) -> DeadLetterTopic:
    sums = index.sums(_ALL)
    statuses: dict[str, int] = {}
    waiting: list[int] = []
    for kind, found in sums.items():
        status = STATUSES[case_and_status(kind)[1]]
        statuses[status] = statuses.get(status, 0) + found.letters
        if status == "open":
            waiting.append(found.first_ms)
    cases = {case_and_status(kind)[0] for kind in sums}
    return DeadLetterTopic(
        name=index.topic,
        count=sum(statuses.values()),
        statuses=statuses,
        oldest_open_ms=min(waiting, default=None),
        newest_ms=max((found.last_ms for found in sums.values()), default=None),
        groups=tuple(sorted({index.cases[case].group for case in cases} - {""})),
        cases=len(cases),
    )


def groups_of(indexes: Mapping[str, TopicIndex], selection: Selection) -> list[Case]:
    """Return the cases of the selection, largest first."""
    found: list[Case] = []
    for name, index in indexes.items():
        if selection.topic in (None, name):
            found += _cases(index, index.sums(selection))
    return _in_order(found)


def groups_of_ids(indexes: Mapping[str, TopicIndex], letters: Iterable[LetterId]) -> list[Case]:
    """Return the cases of these letters, counting only them."""
    sums: dict[str, dict[int, Sum]] = {}
    for letter in letters:
        row = row_of(indexes, letter)
        if row is not None:
            of_topic, kind = sums.setdefault(letter.topic, {}), kind_of(row.case, row.status)
            of_topic[kind] = joined(of_topic.get(kind), Sum(1, row.time_ms, row.time_ms, (letter,)))
    return _in_order([case for name, of_topic in sums.items() for case in _cases(indexes[name], of_topic)])


def _in_order(cases: list[Case]) -> list[Case]:
    return sorted(cases, key=lambda case: (-case.count, case.topic, case.case))


def _cases(index: TopicIndex, sums: Mapping[int, Sum]) -> Iterator[Case]:
    totals: dict[int, Sum] = {}
    statuses: dict[int, dict[str, int]] = {}
    for kind, found in sums.items():
        number, status = case_and_status(kind)
        totals[number] = joined(totals.get(number), found)
        statuses.setdefault(number, {})[STATUSES[status]] = found.letters
    for number, total in totals.items():
        yield Case(
            **index.cases[number]._asdict(),
            topic=index.topic,
            count=total.letters,
            statuses=statuses[number],
            first_ms=total.first_ms,
            last_ms=total.last_ms,
            sample_ids=tuple(map(str, total.samples)),
        )
