"""`decide`: what becomes of a record, from what is known of it alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq import Park, Reject, Retry, RetryLater, Skip
from dlq.decisions import MOST_HOPS, Again, Decision, Failed, RetryAt, Skipped, Stopped, ToDeadLetters, decide
from eventbus.errors import SerializationError

NOW = 1_000_000
LADDER = Retry(immediate=1, delays=["5s", "1m"], jitter=False)


def asked(policy: Retry, error: Exception, chance: float = 0.0, **failed: Any) -> Decision:
    return decide(policy, error, Failed(**failed), now_ms=NOW, chance=chance)


def later(decision: Decision) -> float:
    """Return the seconds until the retry."""
    assert isinstance(decision, RetryAt)
    return (decision.due_ms - NOW) / 1000


# what handlers say ----------------------------------------------------------------------------------------------------


def test_what_the_handler_says_goes_before_everything_else() -> None:
    for failed in ({"tries": 1}, {"tries": 1, "before": 50, "hops": 99, "circuit_open": True}):
        assert asked(LADDER, Reject("bad"), **failed) == ToDeadLetters("rejected")
        assert asked(LADDER, Park("look"), **failed) == ToDeadLetters("parked")
        assert asked(LADDER, Skip("known"), **failed) == Skipped("known")


def test_retry_later_is_at_that_time_and_counts_as_a_try() -> None:
    spread = Retry(immediate=1, delays=["5s", "1m"], jitter=1.0)
    assert [later(asked(spread, RetryLater("7m"), tries=1, before=n, chance=0.9)) for n in range(3)] == [420] * 3
    assert asked(spread, RetryLater("7m"), tries=1, before=3) == ToDeadLetters("exhausted")


def test_retry_later_without_a_time_is_after_the_policys_next_delay() -> None:
    assert [later(asked(LADDER, RetryLater(), tries=1, before=n)) for n in range(3)] == [5, 5, 60]


def test_retry_later_where_there_are_no_delays_ends_too() -> None:
    three = Retry(immediate=2, delays=None)
    assert [later(asked(three, RetryLater("9s"), tries=n)) for n in (1, 2)] == [9, 9]
    assert asked(three, RetryLater("9s"), tries=3) == ToDeadLetters("exhausted")


# kinds ----------------------------------------------------------------------------------------------------------------


def test_what_trying_again_does_not_mend_is_dead_at_once() -> None:
    assert asked(LADDER, TypeError()) == ToDeadLetters("never")
    assert asked(LADDER, SerializationError("x")) == ToDeadLetters("unreadable")
    assert asked(Retry(never=[ValueError]), ValueError()) == ToDeadLetters("never")
    assert asked(Retry(on=[TypeError]), TypeError()) == Again()


def test_a_broken_process_blames_no_record() -> None:
    assert asked(LADDER, MemoryError(), before=50, hops=99) == Stopped()


def test_an_outage_goes_on_with_the_last_delay() -> None:
    assert asked(LADDER, ConnectionError()) == Again()
    assert [later(asked(LADDER, ConnectionError(), tries=1, before=n)) for n in (1, 2, 3, 1000)] == [5, 60, 60, 60]
    assert asked(LADDER, ConnectionError(), tries=1, before=9) == RetryAt(NOW + 60_000, is_outage=True)


def test_an_outage_without_delays_backs_off_up_to_a_minute() -> None:
    at_once = Retry(immediate=0, delays=None, jitter=False)
    assert [later(asked(at_once, ConnectionError(), tries=n)) for n in (1, 2, 3, 6, 7, 10**6)] == [1, 2, 4, 32, 60, 60]


def test_calls_that_ended_in_an_outage_are_not_held_against_the_record() -> None:
    assert later(asked(LADDER, ValueError(), tries=1, before=40, outages=40)) == 5
    assert later(asked(LADDER, ValueError(), tries=1, before=42, outages=40)) == 60
    assert asked(LADDER, ValueError(), tries=1, before=43, outages=40) == ToDeadLetters("exhausted")


def test_no_dead_letters_while_the_circuit_is_open() -> None:
    assert asked(LADDER, ValueError(), tries=1, before=9, circuit_open=True) == RetryAt(NOW + 60_000, is_outage=True)
    assert later(asked(LADDER, ValueError(), tries=1, circuit_open=True)) == 5  # not at once
    assert asked(LADDER, TypeError(), tries=1, circuit_open=True) == ToDeadLetters("never")


def test_what_goes_round_and_round_is_not_tried_again() -> None:
    assert asked(LADDER, ValueError(), hops=MOST_HOPS - 1) == Again()
    assert asked(LADDER, ValueError(), hops=MOST_HOPS) == ToDeadLetters("loop")
    assert asked(LADDER, ConnectionError(), hops=MOST_HOPS) == Again()


# delays ---------------------------------------------------------------------------------------------------------------


def test_jitter_only_lengthens() -> None:
    for jitter, most in ((True, 7.5), (False, 5), (1.0, 10), (0.1, 5.5)):
        policy = Retry(immediate=0, delays=["5s"], jitter=jitter)
        assert later(asked(policy, ValueError(), chance=0.0)) == 5
        assert later(asked(policy, ValueError(), chance=1.0)) == most


def test_a_try_that_would_be_too_late_is_not_made() -> None:
    policy = Retry(immediate=0, delays=["5s", "1m"], jitter=False, max_age="1m")
    assert later(asked(policy, ValueError())) == 5
    assert asked(policy, ValueError(), before=1, first_failed_ms=NOW - 5_000) == ToDeadLetters("too-old")
    assert later(asked(policy, ValueError(), before=1, first_failed_ms=NOW)) == 60  # just so
    assert asked(policy, RetryLater("61s")) == ToDeadLetters("too-old")
    spread = Retry(immediate=0, delays=["5s"], jitter=1.0, max_age="6s")
    assert later(asked(spread, ValueError(), chance=0.9)) == 6
    assert later(asked(policy, ConnectionError(), before=1, first_failed_ms=0)) == 60


def test_a_clock_that_was_set_back_makes_nothing_old() -> None:
    policy = Retry(immediate=0, delays=["5s"], jitter=False, max_age="1m")
    assert later(asked(policy, ValueError(), first_failed_ms=NOW + 10**9)) == 5


# functions ------------------------------------------------------------------------------------------------------------


def test_a_function_says_how_long_or_what_else() -> None:
    answers: dict[int, Any] = {
        1: 5, 2: "1m", 3: None, 4: Reject, 5: Park("look"), 6: Skip, 7: RetryLater("1h"), 8: 0,
    }  # fmt: skip
    policy = Retry(immediate=0, delays=lambda attempt, error: answers[attempt], jitter=False)
    assert [asked(policy, ValueError(), before=before) for before in range(8)] == [
        RetryAt(NOW + 5_000),
        RetryAt(NOW + 60_000),
        ToDeadLetters("exhausted"),
        ToDeadLetters("rejected"),
        ToDeadLetters("parked"),
        Skipped(""),
        RetryAt(NOW + 3_600_000),
        RetryAt(NOW),
    ]


def test_a_function_cannot_give_up_in_an_outage_but_can_refuse() -> None:
    gives_up = Retry(immediate=0, delays=lambda attempt, error: None, jitter=False)
    assert later(asked(gives_up, ConnectionError(), before=3)) == 8
    refuses = Retry(immediate=0, delays=lambda attempt, error: Reject("never"), jitter=False)
    assert asked(refuses, ConnectionError()) == ToDeadLetters("rejected")


def test_a_function_is_asked_about_retry_later_too() -> None:
    policy = Retry(immediate=0, delays=lambda attempt, error: None if attempt > 1 else 1)
    assert later(asked(policy, RetryLater("7m"))) == 420
    assert asked(policy, RetryLater("7m"), before=1) == ToDeadLetters("exhausted")


@pytest.mark.parametrize("answer", ["5 s", -1, True, [5], float("nan"), object, "boom"])
def test_a_function_that_is_wrong_loses_nothing(answer: Any, caplog: pytest.LogCaptureFixture) -> None:
    def wrong(attempt: int, error: Exception) -> Any:
        if answer == "boom":
            raise RuntimeError("a mistake in the function")
        return answer

    policy = Retry(immediate=0, delays=wrong)
    with caplog.at_level(logging.ERROR, "dlq"):
        assert asked(policy, ValueError()) == ToDeadLetters("exhausted")
        assert isinstance(asked(policy, ConnectionError()), RetryAt)
    assert "no answer to call 1, which failed with ValueError" in caplog.text


# any sequence ---------------------------------------------------------------------------------------------------------

ERRORS = [ValueError, ConnectionError, TypeError, MemoryError, RetryLater, Reject, Park, Skip, KeyError]
delays = st.one_of(st.none(), st.lists(st.integers(1, 1000), min_size=1, max_size=4))
policies = st.builds(
    Retry,
    immediate=st.integers(0, 3),
    delays=delays,
    jitter=st.one_of(st.booleans(), st.floats(0, 1)),
    max_age=st.one_of(st.none(), st.integers(1, 10_000)),
)
steps = st.tuples(st.sampled_from(ERRORS), st.floats(0, 1, exclude_max=True), st.booleans())


@pytest.mark.system
@given(policies, st.lists(steps, min_size=1, max_size=40))
def test_any_sequence_ends_or_is_an_outage(policy: Retry, sequence: list[tuple[type[Exception], float, bool]]) -> None:
    """Attempts only grow, no try is earlier than its delay, and only outages go on for ever."""
    now_ms, before, tries, outages, attempts = NOW, 0, 0, 0, 0
    delays_ms = policy.delays_ms or ()
    calls_that_count = 0
    for cls, chance, circuit_open in sequence:
        tries += 1
        failed = Failed(
            tries=tries,
            before=before,
            outages=outages,
            first_failed_ms=NOW,
            circuit_open=circuit_open,
        )
        assert failed.attempts == attempts + 1
        attempts = failed.attempts
        decision = decide(policy, cls(), failed, now_ms=now_ms, chance=chance)
        if not isinstance(decision, (Again, RetryAt)):
            is_final = isinstance(decision, (Skipped, Stopped))
            assert is_final or cls is not ConnectionError, "an outage is no reason for a dead letter"
            return
        assert cls not in (TypeError, MemoryError, Reject, Park, Skip)
        if isinstance(decision, Again):
            assert before == 0 and tries <= policy.immediate
            continue
        if decision.is_outage:
            assert cls is ConnectionError or circuit_open
        else:
            calls_that_count += tries
            assert calls_that_count <= policy.immediate + len(delays_ms)
            assert policy.max_age_ms is None or decision.due_ms - NOW <= policy.max_age_ms
        least = min(delays_ms, default=1000)
        assert decision.due_ms >= now_ms + least
        most = max(delays_ms, default=60_000) * (1 + policy.jitter) + 2
        assert decision.due_ms <= now_ms + most
        outages += tries if decision.is_outage else 0
        before, tries, now_ms = before + tries, 0, decision.due_ms
