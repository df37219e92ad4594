"""The map of one partition: whatever was copied, every offset is translated to the next unread record's."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventbus.mirror.offset_map import CHUNK_RUNS, OffsetMap, Run

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=150)
"""Of each run: the gap before it at the source, that at the destination, its length."""


def mapped(base: int, steps: list[tuple[int, int, int]]) -> tuple[OffsetMap, dict[int, int]]:
    """A map, and the same as one entry per record."""
    found, records = OffsetMap(base), dict[int, int]()
    source, destination = 0, base
    for source_gap, destination_gap, length in steps:
        source, destination = source + source_gap, destination + destination_gap
        found.add(source, destination, length)
        records |= {source + index: destination + index for index in range(length)}
        source, destination = source + length, destination + length
    return found, records


on_a_busy_machine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.system
@on_a_busy_machine
@given(st.integers(0, 5), STEPS)
def test_an_offset_is_translated_to_the_first_record_not_read(base: int, steps: list[tuple[int, int, int]]) -> None:
    found, records = mapped(base, steps)
    end = max(records.values(), default=base - 1) + 1
    assert found.end == end
    assert found.position == max(records, default=-2) + 1
    following = end
    for offset in range(max(records, default=0) + 3, -1, -1):
        following = records.get(offset, following)
        assert found.translate(offset) == following
        assert found.copy_of(offset) == records.get(offset)
    origins = {copy: offset for offset, copy in records.items()}
    for offset in range(end + 3):
        assert found.origin_of(offset) == origins.get(offset)


@pytest.mark.system
@on_a_busy_machine
@given(st.integers(0, 5), STEPS, st.data())
def test_what_is_stored_piece_by_piece_is_the_whole(
    base: int, steps: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    found, stored, saved = OffsetMap(base), dict[int, list[int]](), 0
    source, destination = 0, base
    for source_gap, destination_gap, length in steps:
        source, destination = source + source_gap, destination + destination_gap
        found.add(source, destination, length)
        source, destination = source + length, destination + length
        if data.draw(st.booleans()):
            stored |= dict(found.chunks_from(saved))
            saved = found.last_chunk
    stored |= dict(found.chunks_from(saved))
    assert all(len(content) <= 3 * CHUNK_RUNS for content in stored.values())
    again = OffsetMap.of_chunks(base, stored.items())
    assert list(again) == list(found)
    assert (again.end, again.position, again.last_chunk) == (found.end, found.position, found.last_chunk)


@pytest.mark.system
@on_a_busy_machine
@given(STEPS, st.integers(0, 900), st.integers(0, 900))
def test_what_both_sides_have_lost_is_forgotten_and_nothing_else(
    steps: list[tuple[int, int, int]], source_start: int, destination_start: int
) -> None:
    found, records = mapped(0, steps)
    stored = dict(found.chunks_from(0))
    for number in found.drop_before(source_start, destination_start):
        del stored[number]
    for offset, copy in records.items():
        if offset >= source_start or copy >= destination_start:
            assert found.translate(offset) == found.copy_of(offset) == copy
    assert list(OffsetMap.of_chunks(0, stored.items())) == list(found)
    assert OffsetMap.of_chunks(0, stored.items()).last_chunk == found.last_chunk


def test_runs_that_follow_one_another_are_one() -> None:
    found = OffsetMap()
    found.add(0, 0, 10)
    found.add(10, 10, 5)
    found.add(15, 16, 5)
    assert list(found) == [Run(0, 0, 15), Run(15, 16, 5)]


@pytest.mark.parametrize("run", [Run(4, 10, 1), Run(5, 4, 1), Run(0, 0, 5), Run(5, 5, 0)])
def test_a_record_is_not_taken_twice(run: Run) -> None:
    found = OffsetMap()
    found.add(0, 0, 5)
    with pytest.raises(ValueError, match="does not follow"):
        found.add(*run)
    assert list(found) == [Run(0, 0, 5)]


def test_an_empty_map_begins_where_the_destination_did() -> None:
    found = OffsetMap(7)
    assert (found.position, found.end, found.translate(0), found.translate(99)) == (-1, 7, 7, 7)
    assert list(found.chunks_from(0)) == []
