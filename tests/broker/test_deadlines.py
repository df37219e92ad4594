"""Deadlines against a dictionary."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eventbus.coordinator.deadlines import Deadlines

keys = st.sampled_from("abc")
steps = st.one_of(
    st.tuples(st.just("set"), keys, st.integers(0, 20)),
    st.tuples(st.just("cancel"), keys, st.just(0)),
    st.tuples(st.just("due"), st.just(""), st.integers(0, 20)),
)


@pytest.mark.system
@given(st.lists(steps, max_size=30))
@example([("set", "a", 1), ("set", "c", 0), ("set", "c", 2), ("due", "", 2)])  # moved, yet due in the same call
def test_what_is_due_is_what_a_dictionary_says(given_steps: list[tuple[str, str, int]]) -> None:
    deadlines, model = Deadlines[str](), dict[str, int]()
    for name, key, at_ms in given_steps:
        if name == "set":
            deadlines.set(key, at_ms)
            model[key] = at_ms
        elif name == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            due = list(deadlines.due(at_ms))
            assert sorted(due) == sorted(key for key, when in model.items() if when <= at_ms)
            assert [model[key] for key in due] == sorted(model[key] for key in due)
            model = {key: when for key, when in model.items() if when > at_ms}
        assert len(deadlines) == len(model)
        assert all(key in deadlines for key in model)
        next_ms = deadlines.next_ms()
        assert not model or (next_ms is not None and next_ms <= min(model.values()))


def test_moving_a_deadline_away_costs_no_memory() -> None:
    deadlines = Deadlines[int]()
    for number in range(10_000):
        deadlines.set(number % 10, 100 + number)
    assert len(deadlines._heap) == 10
    assert list(deadlines.due(5_000)) == []
    assert len(deadlines._heap) == 10
    assert list(deadlines.due(20_000)) == list(range(10))
    assert deadlines.next_ms() is None


def test_a_deadline_may_be_set_while_others_are_given_out() -> None:
    deadlines = Deadlines[str]()
    deadlines.set("a", 1)
    deadlines.set("b", 1)
    found = []
    for key in deadlines.due(5):
        found.append(key)
        if key == "a":
            deadlines.cancel("b")
            deadlines.set("c", 5)
            deadlines.set("d", 6)
    assert found == ["a", "c"]
    assert "d" in deadlines
