"""The circuit breaker, which gets the time as an argument."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq import Circuit
from dlq.circuit import Breaker

HALF = Circuit(failures=0.5, of=4, open="30s")


def opened(now_ms: int = 0) -> Breaker:
    breaker = Breaker(HALF)
    waits = [breaker.failed(now_ms) for _ in range(4)]
    assert waits == [0, 0, 0, 30_000]
    return breaker


def test_nothing_happens_before_so_many_calls() -> None:
    breaker = Breaker(HALF)
    assert [breaker.failed(0) for _ in range(3)] == [0, 0, 0]
    assert breaker.state == "closed"


def test_it_opens_when_the_share_of_the_last_calls_failed() -> None:
    breaker = Breaker(HALF)
    breaker.handled(1_000)
    assert breaker.failed(0) == 0
    assert breaker.failed(0) == 30_000  # two of the last four
    assert (breaker.state, breaker.until_ms) == ("open", 30_000)


def test_calls_that_went_well_push_failures_out() -> None:
    breaker = Breaker(HALF)
    for _ in range(100):
        assert breaker.failed(0) == 0
        breaker.handled(3)
    assert breaker.state == "closed"


def test_open_it_lets_nobody_through_until_the_time_is_over() -> None:
    breaker = opened()
    assert [breaker.admit(now_ms) for now_ms in (0, 10_000, 29_999)] == [30_000, 20_000, 1]
    assert breaker.failed(29_999) == 1  # of a call that had begun before


def test_half_open_one_may_try_and_the_others_ask_again_soon() -> None:
    breaker = opened()
    assert breaker.admit(30_000) == 0
    assert breaker.state == "half-open"
    assert [breaker.admit(30_000) for _ in range(3)] == [500] * 3
    breaker.handled(1)
    assert breaker.state == "closed"
    assert breaker.admit(30_001) == 0


def test_when_the_probe_fails_it_is_open_again_and_the_record_goes_its_way() -> None:
    breaker = opened()
    breaker.admit(30_000)
    assert breaker.failed(31_000) == 0
    assert breaker.state == "open"
    assert breaker.admit(31_000) == 30_000


def test_a_probe_that_never_ends_is_followed_by_another() -> None:
    breaker = opened()
    breaker.admit(30_000)
    assert breaker.admit(59_999) == 1
    assert breaker.admit(60_000) == 0
    assert breaker.admit(60_000) == 500


def test_closed_again_it_counts_from_the_beginning() -> None:
    breaker = opened()
    breaker.admit(30_000)
    breaker.handled(1)
    assert [breaker.failed(30_000) for _ in range(3)] == [0, 0, 0]
    assert breaker.failed(30_000) == 30_000


def test_what_ends_well_while_it_is_open_closes_nothing() -> None:
    breaker = opened()
    breaker.handled(100)
    assert breaker.state == "open"
    breaker.admit(30_000)
    breaker.handled(1)
    assert [breaker.failed(30_000) for _ in range(4)] == [0, 0, 0, 30_000]  # nor does it count when it is closed


def test_a_clock_that_is_set_back_keeps_it_open_no_longer_than_was_said() -> None:
    breaker = opened(now_ms=10**9)
    assert breaker.admit(0) == 30_000
    assert breaker.admit(30_000) == 0


events = st.lists(
    st.tuples(st.sampled_from(["failed", "handled", "admit"]), st.integers(1, 5), st.integers(-1_000, 40_000)),
    max_size=60,
)


@pytest.mark.system
@given(events)
def test_in_any_sequence_waits_end(sequence: list[tuple[str, int, int]]) -> None:
    """A caller in any state that waits as long as required, repeatedly, is let through."""
    breaker, now_ms = Breaker(HALF), 0
    for what, count, passed in sequence:
        now_ms += passed
        if what == "handled":
            breaker.handled(count)
        elif what == "failed":
            assert 0 <= breaker.failed(now_ms) <= 30_000
        else:
            assert 0 <= breaker.admit(now_ms) <= 30_000
        assert breaker.state in ("closed", "open", "half-open")
    waited = 0
    while (wait_ms := breaker.admit(now_ms)) > 0:
        now_ms, waited = now_ms + wait_ms, waited + wait_ms
    assert waited <= 30_000
    breaker.handled(1)
    assert breaker.state == "closed"


@given(st.integers(1, 30), st.floats(0.01, 1), st.lists(st.booleans(), max_size=200))
def test_it_opens_exactly_when_the_window_says_so(of: int, failures: float, calls: list[bool]) -> None:
    breaker = Breaker(Circuit(failures=failures, of=of))
    for made in range(1, len(calls) + 1):
        last = calls[max(made - of, 0) : made]
        is_full_of_failures = len(last) == of and sum(last) >= failures * of
        if calls[made - 1]:
            assert (breaker.failed(0) > 0) == is_full_of_failures
            if is_full_of_failures:
                return
        else:
            breaker.handled(1)
