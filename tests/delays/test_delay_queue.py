"""The queue against a list that is sorted each time: entries are taken at their times, in order, and once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from eventbus.delays.delay_queue import BLOCKED, READY, TAKEN, DelayQueue, Due, rank_of


class Entry(Due):
    @property
    def size(self) -> int:
        return 1


NUMBERS = st.integers(0, 9)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["block", "unblock", "put back", "remove"]), NUMBERS, st.just(0)),
        st.tuples(st.sampled_from(["move", "take"]), NUMBERS, st.integers(-5, 40)),
        st.tuples(st.just("add"), st.just(0), st.integers(-5, 40)),
    ),
    max_size=80,
)


@given(STEPS)
def test_it_equals_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    queue, count, taken = DelayQueue[Entry](), 0, list[Entry]()
    for step, number, ms in steps:
        entry = queue.entries.get(number)
        match step:
            case "add":
                queue.add(Entry(rank_of(ms, count), BLOCKED, None))
                count += 1
            case "take":
                ready = sorted(one.rank for one in queue.entries.values() if one.state == READY and one.due_ms <= ms)
                taken = queue.take(ms, number)
                assert [one.rank for one in taken] == ready[:number]
            case _ if entry is None:
                continue
            case "block":
                queue.block(entry)
            case "unblock" if entry.state == BLOCKED:
                queue.unblock(entry)
            case "put back":
                queue.put_back(entry)
            case "move" if entry.state != READY:  # the time of a ready entry is changed by `correct` alone
                entry.due_ms = ms
            case "remove":
                queue.remove(entry)
                queue.put_back(entry)
        states: list[Any] = [one.state for one in queue.entries.values()]
        assert queue.taken == states.count(TAKEN)
        dues = [one.due_ms for one in queue.entries.values() if one.state == READY]
        assert queue.next_due_ms() == min(dues, default=None)


def test_ranks_that_are_of_no_use_do_not_pile_up() -> None:
    queue, entry = DelayQueue[Entry](), Entry(rank_of(0, 0), BLOCKED, None)
    queue.add(entry)
    for due_ms in range(5_000, 0, -1):
        entry.due_ms = due_ms
        queue.unblock(entry)
        queue.block(entry)
    assert len(queue._heap) < 1_100
