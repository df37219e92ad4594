"""The index of a topic against a plain list of its letters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq import index as index_module
from dlq.headers import ERROR_CLASS, GROUP, HANDLER, LAST_FAILED, REASON, TOP_FRAME
from dlq.index import OPEN, PARKED, TopicIndex
from dlq.index_queries import groups_of, offsets_of, topics_of
from dlq.letters import dead_letter
from dlq.reading import Scanner
from dlq.selection import OVERFLOW, STATUSES, CaseKey, LetterId, Selection, key_of
from eventbus import ConsumerRecord, TimestampType, TopicPartition

CASES = [CaseKey(f"c{n}", f"handler{n % 3}", f"group{n % 2}", f"app.Error{n}", f"a.py:f{n}:1") for n in range(4)]

letters = st.tuples(
    st.integers(0, 1), st.integers(1, 4), st.integers(0, 3), st.integers(0, 50), st.sampled_from([OPEN, PARKED])
)
"""Partition, step to the next offset, case, time, status."""
changes = st.tuples(st.integers(0, 1), st.integers(0, 60), st.sampled_from(STATUSES))
selections = st.builds(
    Selection,
    case=st.none() | st.sampled_from(["c0", "c1"]),
    handler=st.none() | st.just("handler0"),
    error_class=st.none() | st.sampled_from(["Error1", "app.Error2"]),
    since_ms=st.none() | st.integers(0, 50),
    until_ms=st.none() | st.integers(0, 50),
    status=st.none() | st.sets(st.sampled_from(STATUSES), min_size=1),
)


class Model:
    """The letters as a list."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], tuple[int, int, str]] = {}

    def selected(self, selection: Selection) -> dict[tuple[int, int], tuple[int, int, str]]:
        return {
            where: (case, time_ms, status)
            for where, (case, time_ms, status) in self.rows.items()
            if selection.takes_case(CASES[case])
            and (selection.since_ms is None or selection.since_ms <= time_ms)
            and (selection.until_ms is None or time_ms < selection.until_ms)
            and (selection.status is None or status in selection.status)
        }


def build(added: list[tuple[int, int, int, int, int]]) -> tuple[TopicIndex, Model]:
    index, model = TopicIndex("t", "id-of-the-topic-0"), Model()
    for key in CASES:
        index.number_of(key)
    ends = [0, 0]
    for partition, step, case, time_ms, status in added:
        offset = ends[partition] + step - 1
        index.partition(partition).add(offset, case, status, time_ms)
        model.rows[partition, offset] = case, time_ms, STATUSES[status]
        ends[partition] = offset + 1
    return index, model


def check(index: TopicIndex, model: Model, selection: Selection) -> None:
    expected = model.selected(selection)
    indexes = {"t": index}
    offsets: dict[TopicPartition, list[int]] = {}
    for partition, offset in sorted(expected):
        offsets.setdefault(TopicPartition("t", partition), []).append(offset)
    assert {where: list(found) for where, found in offsets_of(indexes, selection).items()} == offsets
    groups = {one.case: one for one in groups_of(indexes, selection)}
    counted = Counter(CASES[case].case for case, _, _ in expected.values())
    assert {case: one.count for case, one in groups.items()} == counted
    for case, one in groups.items():
        mine = {where: row for where, row in expected.items() if CASES[row[0]].case == case}
        assert one.statuses == Counter(status for _, _, status in mine.values())
        assert (one.first_ms, one.last_ms) == (min(r[1] for r in mine.values()), max(r[1] for r in mine.values()))
        samples = [LetterId.of(id) for id in one.sample_ids]
        assert len(set(samples)) == min(len(mine), 5)
        assert {(letter.partition, letter.offset) for letter in samples} <= mine.keys()


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_ROWS", 4)


@pytest.mark.system
@given(st.lists(letters, max_size=30), st.lists(changes, max_size=10), selections, st.integers(0, 70))
def test_index_is_what_a_list_says(
    added: list[tuple[int, int, int, int, int]],
    changed: list[tuple[int, int, str]],
    selection: Selection,
    begin: int,
) -> None:
    index, model = build(added)
    check(index, model, selection)
    for at, (partition, offset, status) in enumerate(changed):
        index.set_state(LetterId("t", partition, offset), status, at)
        row = model.rows.get((partition, offset))
        if row is not None:
            model.rows[partition, offset] = *row[:2], status
    check(index, model, selection)
    removed = index.partition(0).trim(begin)
    gone = [where for where in model.rows if where[0] == 0 and where[1] < begin]
    assert removed == len(gone)
    for where in gone:
        del model.rows[where]
    check(index, model, selection)
    assert len(index) == len(model.rows)


def test_letter_that_is_read_twice_counts_once() -> None:
    index, _ = build([(0, 1, 0, 5, OPEN)])
    index.partition(0).add(0, 0, OPEN, 5)
    assert len(index) == 1
    assert index.row(LetterId("t", 0, 1)) is None
    assert index.row(LetterId("t", 7, 0)) is None


def test_state_that_is_read_late_does_not_undo_a_newer_one() -> None:
    index, _ = build([(0, 1, 0, 5, OPEN)])
    letter = LetterId("t", 0, 0)
    index.set_state(letter, "redriven", 7)
    index.set_state(letter, "parked", 3)
    row = index.row(letter)
    assert row is not None
    assert (STATUSES[row.status], row.state_at) == ("redriven", 7)


def test_topic_is_summed_up() -> None:
    index, _ = build([(0, 1, 0, 50, OPEN), (1, 1, 1, 40, OPEN), (0, 1, 1, 10, PARKED)])
    (topic,) = topics_of({"t": index})
    assert (topic.name, topic.count, topic.statuses) == ("t", 3, {"open": 2, "parked": 1})
    assert (topic.oldest_open_ms, topic.newest_ms, topic.groups, topic.cases) == (40, 50, ("group0", "group1"), 2)
    (empty,) = topics_of({"e": TopicIndex("e", "")})
    assert (empty.count, empty.oldest_open_ms, empty.newest_ms) == (0, None, None)


def test_cases_without_number_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "_MOST_CASES", 4)
    index, _ = build([])
    more = [index.number_of(CaseKey(f"new{n}", "h", "g", "E", "")) for n in range(3)]
    assert set(more) == {4}
    assert index.cases[4] == OVERFLOW
    assert index.number_of(CASES[2]) == 2
    index.partition(0).add(0, 4, OPEN, 1)
    # The case is unknown until the record is read, so it may be the selected case.
    found = offsets_of({"t": index}, Selection(case="new1"))
    assert {where: list(offsets) for where, offsets in found.items()} == {TopicPartition("t", 0): [0]}


# from records --------------------------------------------------------------------------------------------------------

names = st.sampled_from(
    [ERROR_CLASS, GROUP, HANDLER, LAST_FAILED, REASON, TOP_FRAME, "own", "__connect.errors.exception.class.name",
     "__connect.errors.connector.name", "__streams.errors.exception", "eb-dlq-stack", "__dlq.errors.message"]
)  # fmt: skip
headers = st.lists(
    st.tuples(names, st.none() | st.sampled_from([b"", b"a", b"parked", b"17", b"9" * 18, b"x.py:f:3", b"\xff"])),
    max_size=10,
)


@pytest.mark.system
@given(st.lists(headers, min_size=1, max_size=8))
def test_index_says_what_the_letters_say(letters: list[list[tuple[str, bytes | None]]]) -> None:
    """Also where the index has worked it out for the letter before."""
    records = [
        ConsumerRecord("t", 0, offset, 5, TimestampType.CREATE_TIME, None, b"", tuple(one))
        for offset, one in enumerate(letters)
    ]
    index = TopicIndex("t", "")
    Scanner(index).take(0, records)
    for record in records:
        row, letter = index.row(LetterId("t", 0, record.offset)), dead_letter(record)
        assert row is not None
        assert index.cases[row.case] == key_of(letter)._replace(top_frame=index.cases[row.case].top_frame)
        assert STATUSES[row.status] == ("parked" if letter.reason == "parked" else "open")
        failed_ms = letter.last_failed_ms
        assert row.time_ms == (5 if failed_ms is None or failed_ms >= 10**15 else failed_ms)


# as bytes ------------------------------------------------------------------------------------------------------------
