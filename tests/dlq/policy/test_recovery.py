"""A policy in use: what it writes for the next try, what it counts, and what it reports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlq import (
    Circuit,
    CircuitClosed,
    CircuitHalfOpen,
    CircuitOpened,
    DeadLettered,
    FailureEvent,
    Park,
    Reject,
    Retry,
    RetryLater,
    RetryScheduled,
    Signals,
    Skip,
)
from eventbus import recovery
from eventbus.delays.retry_records import attempts_of, entry_behind
from eventbus.errors import ProcessCrashed, SerializationError
from eventbus.recovery import Handling, Move, WaitHere
from tests.dlq.policy.failing import FAR, HANDLING, Runner, at_work, due_ms, header, record

PLAIN = Retry(immediate=1, delays=["5s", "1m"], jitter=False)


def story(policy: Retry, error: Callable[[], Exception], dead_letter: bool | str = True, most: int = 100) -> list[str]:
    return list(Runner(at_work(policy, dead_letter)).story(error, most))


# what is written ------------------------------------------------------------------------------------------------------


def test_a_record_goes_to_its_own_partition_and_keeps_what_is_its() -> None:
    runner = Runner(at_work(Retry(immediate=0, jitter=False)), record(headers=(("trace", b"1"), ("trace", b"2"))))
    verdict = runner.fails(ValueError("no such customer"))
    assert isinstance(verdict, Move)
    topic, partition, entry = verdict.outgoing
    assert (topic, partition, entry.key, entry.value) == ("retry.billing", 3, b"k", b"v")
    assert entry.headers[:2] == (("trace", b"1"), ("trace", b"2"))
    assert due_ms(verdict) == 6_000
    assert header(verdict, "eb-retry-error") == "ValueError: no such customer"


def test_tries_count_over_restarts() -> None:
    """Each go of the record is another member's, which knows nothing but its headers."""
    runner, seen = Runner(at_work(PLAIN)), list[str]()
    for _ in range(10):
        seen += runner.story(ValueError, most=1)
        if seen[-1] != "again":
            runner.recovery = at_work(PLAIN)
        if seen[-1].startswith("dead"):
            break
    assert seen == ["again", "later 5", "later 60", "dead exhausted 4"]


def test_a_dead_letter_says_who_gave_up_and_when() -> None:
    runner = Runner(at_work(PLAIN))
    assert list(runner.story(ValueError))[-1] == "dead exhausted 4"
    verdict = runner.fails(ValueError("the last one"))
    assert isinstance(verdict, Move)
    assert (verdict.kind, verdict.outgoing.topic, verdict.outgoing.partition) == ("dead-letter", "dlq.billing", 3)
    told = {name: header(verdict, name) for name, _ in verdict.outgoing.record.headers}
    assert told["__dlq.errors.topic"] == "orders"
    assert told["__dlq.errors.offset"] == "128"
    assert told["__dlq.errors.group"] == "billing"
    assert told["__dlq.errors.message"] == "the last one"
    assert (told["eb-dlq-handler"], told["eb-dlq-service"]) == ("bill", "eventbus")
    assert (told["eb-dlq-first-failed"], told["eb-dlq-last-failed"]) == ("1000", "66000")


def test_one_that_waited_behind_another_has_all_its_tries() -> None:
    behind = entry_behind(record())
    runner = Runner(at_work(PLAIN), record(headers=behind.headers))
    assert list(runner.story(ValueError)) == ["again", "later 5", "later 60", "dead exhausted 4"]


def test_behind_goes_to_the_retry_topic() -> None:
    topic, partition, entry = at_work(PLAIN).behind(record(), 0)
    assert (topic, partition, dict(entry.headers)["eb-retry-attempt"]) == ("retry.billing", 3, b"0")


def test_without_a_dead_letter_topic_on_error_decides() -> None:
    assert story(PLAIN, ValueError, dead_letter=False) == ["again", "later 5", "later 60", "stop"]
    assert story(PLAIN, Reject, dead_letter=False) == ["stop"]
    assert story(PLAIN, MemoryError) == ["stop"]


def test_what_a_handler_says() -> None:
    assert story(PLAIN, Reject) == ["dead rejected 1"]
    assert story(PLAIN, Park) == ["dead parked 1"]
    assert story(PLAIN, Skip) == ["skip"]
    verdict = Runner(at_work(PLAIN)).fails(Skip("known"))
    assert verdict == recovery.Skip("known")
    assert list(Runner(at_work(PLAIN)).story(lambda: RetryLater("2m"))) == ["later 120"] * 3 + ["dead exhausted 4"]


def test_what_cannot_be_read_is_dead_at_once() -> None:
    assert story(PLAIN, lambda: SerializationError("no schema 7")) == ["dead unreadable 1"]


# outages --------------------------------------------------------------------------------------------------------------


def test_outages_go_on_and_cost_no_tries() -> None:
    runner = Runner(at_work(PLAIN))
    assert list(runner.story(ConnectionError, most=50)) == ["again", "later 5"] + ["later 60"] * 48
    tried = attempts_of(runner.record)
    assert (tried.attempt, tried.outages) == (50, 50)
    assert list(runner.story(ValueError)) == ["later 5", "later 5", "later 60", "dead exhausted 54"]


def test_without_a_retry_topic_a_record_waits_in_its_place() -> None:
    at_once = Retry(immediate=1, delays=None, jitter=False)
    runner = Runner(at_work(at_once))
    assert list(runner.story(ConnectionError, most=5)) == ["again", "here 2", "here 4", "here 8", "here 16"]
    assert list(runner.story(ValueError)) == ["again", "dead exhausted 7"]


def test_to_try_later_in_its_place_ends_too() -> None:
    at_once = Retry(immediate=2, delays=None)
    assert story(at_once, lambda: RetryLater("5s")) == ["here 5", "here 5", "dead exhausted 3"]


def test_age_counts_in_its_place_too() -> None:
    policy = Retry(immediate=9, delays=None, max_age="12s")
    assert story(policy, lambda: RetryLater("5s")) == ["here 5", "here 5", "dead too-old 3"]


def test_an_entry_that_does_not_fit_its_topic_is_tried_in_its_place() -> None:
    working = at_work(PLAIN)
    working.created({"retry.billing": 4, "dlq.billing": 4}, {"retry.billing": 1_000, "dlq.billing": 1_000})
    large = Runner(working, record(value=b"x" * 990))
    assert list(large.story(ValueError)) == ["again", "here 5", "here 60", "dead exhausted 4"]
    assert list(Runner(working).story(ValueError)) == ["again", "later 5", "later 60", "dead exhausted 4"]


def test_a_dead_letter_that_does_not_fit_is_written_without_its_payload() -> None:
    working = at_work(Retry(immediate=0, delays=None))
    working.created({"dlq.billing": 4}, {"dlq.billing": 1_000_000})
    verdict = Runner(working, record(value=b"x" * 1_000_000)).fails(ValueError())
    assert isinstance(verdict, Move)
    assert verdict.outgoing.record.value is None
    assert header(verdict, "eb-dlq-payload") == "source"


def test_records_that_wait_in_their_place_are_told_apart_and_forgotten_in_the_end() -> None:
    working = at_work(Retry(immediate=1, delays=None, jitter=False))
    for offset in range(3_000):
        assert isinstance(Runner(working, record(offset)).fails(ConnectionError()), recovery.Again)
    first, second = Runner(working, record(1)), Runner(working, record(2))
    assert list(first.story(ConnectionError, most=3)) == ["again", "here 2", "here 4"]
    assert list(second.story(ConnectionError, most=2)) == ["again", "here 2"]
    for offset in range(10, 2_000):
        list(Runner(working, record(offset)).story(ConnectionError, most=2))
    first = Runner(working, record(1))
    assert list(first.story(ConnectionError, most=2)) == ["again", "here 2"]


# crashes --------------------------------------------------------------------------------------------------------------


def test_a_record_that_kills_the_process_is_dead_the_nth_time() -> None:
    working = at_work(Retry(crashes=3))
    verdicts = [working.decide(record(), ProcessCrashed("the process died at it"), times, 0) for times in (1, 2, 3)]
    assert verdicts[:2] == [recovery.Again(), recovery.Again()]
    assert header(verdicts[2], "eb-dlq-reason") == "crashed"
    assert working.crashes == 3
    assert at_work(Retry()).decide(record(), ProcessCrashed("the process died at it"), 99, 0) == recovery.Again()


# circuit --------------------------------------------------------------------------------------------------------------


BROKEN = Retry(immediate=0, delays=["5s"], jitter=False, circuit=Circuit(failures=0.5, of=2, open="30s"))


def test_an_open_circuit_keeps_records_in_their_place() -> None:
    working = at_work(BROKEN)
    assert list(Runner(working, record(1)).story(ValueError, most=1)) == ["later 5"]
    second = Runner(working, record(2))
    assert second.fails(ValueError()) == WaitHere(30.0, "the circuit of the handler is open")
    assert working.admit(1_000) == 30.0
    assert working.admit(31_000) == 0.0  # the probe
    assert working.admit(31_000) == 0.5
    assert list(second.story(ValueError, most=1)) == ["later 5"], "the next probe is another record's"
    assert working.admit(31_000) == 30.0
    assert working.admit(61_000) == 0.0
    working.handled(1, 61_000)
    assert working.admit(61_000) == 0.0
    assert working.admit(61_000) == 0.0


def test_while_it_is_open_nothing_becomes_a_dead_letter_because_of_it() -> None:
    working = at_work(BROKEN)
    runner = Runner(working)
    seen: list[str] = []
    for _ in range(50):
        runner.now_ms += round(working.admit(runner.now_ms) * 1000)
        seen += runner.story(ValueError, most=1)
    assert not [one for one in seen if one.startswith("dead")]
    assert list(Runner(working, record(7)).story(TypeError)) == ["dead never 1"]
    runner.now_ms += round(working.admit(runner.now_ms) * 1000)
    working.handled(1, runner.now_ms)
    assert list(runner.story(ValueError, most=3))[-1].startswith("dead exhausted")


@pytest.mark.parametrize(
    "error", [TypeError(), Reject(), Skip(), RetryLater(1), SerializationError("x"), MemoryError()]
)
def test_what_is_the_records_own_opens_no_circuit(error: Exception) -> None:
    working = at_work(BROKEN)
    for offset in range(20):
        Runner(working, record(offset)).fails(error)
    assert working.admit(FAR) == 0.0
    assert working.signals(FAR).circuit == "closed"


# signals and hooks ----------------------------------------------------------------------------------------------------


def test_hooks_are_told_what_happens() -> None:
    seen: list[FailureEvent] = []
    working = at_work(Retry(immediate=0, delays=["5s"], jitter=False, on_event=seen.append))
    list(Runner(working).story(lambda: ValueError("no such customer")))
    common: dict[str, Any] = {
        "handler": "bill", "group": "billing", "topic": "orders", "partition": 3, "offset": 128,
        "error_class": "ValueError", "message": "no such customer",
    }  # fmt: skip
    assert seen == [
        RetryScheduled(at_ms=1_000, attempts=1, due_ms=6_000, **common),
        DeadLettered(at_ms=6_000, attempts=2, reason="exhausted", dead_letter_topic="dlq.billing", **common),
    ]


def test_hooks_are_told_of_the_circuit() -> None:
    seen: list[FailureEvent] = []
    policy = Retry(immediate=0, delays=["5s"], jitter=False, circuit=BROKEN.circuit, on_event=[seen.append])
    working = at_work(policy)
    for offset in range(3):
        Runner(working, record(offset), now_ms=0).fails(ValueError())
    working.admit(30_000)
    working.admit(30_000)
    working.handled(1, 30_001)
    who = {"handler": "bill", "group": "billing"}
    circuit = [event for event in seen if not isinstance(event, RetryScheduled)]
    assert circuit == [
        CircuitOpened(at_ms=0, until_ms=30_000, **who),
        CircuitHalfOpen(at_ms=30_000, **who),
        CircuitClosed(at_ms=30_001, **who),
    ]


def test_a_hook_that_raises_is_logged_and_the_next_one_is_told(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[FailureEvent] = []

    def mistaken(event: FailureEvent) -> None:
        raise RuntimeError("a mistake in the hook")

    with caplog.at_level(logging.ERROR, "dlq"):
        assert story(Retry(immediate=0, delays=None, on_event=[mistaken, seen.append]), ValueError) == [
            "dead exhausted 1"
        ]
    assert "raised" in caplog.text
    assert len(seen) == 1


def test_nothing_secret_is_written_or_told(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[FailureEvent] = []
    policy = Retry(
        immediate=0, delays=["5s"], redact=lambda name, text: text.replace("hunter2", "***"), on_event=seen.append
    )
    with caplog.at_level(logging.DEBUG, "dlq"):
        runner = Runner(at_work(policy))
        written = [runner.fails(ValueError(f"{'x' * 1_020}hunter2")) for _ in range(2)]
    assert "hunter" not in repr(written) + repr(seen) + caplog.text
    assert "***" in repr(seen)


def blank(name: str, text: str) -> None:
    """Nothing of it may be written."""


def broken(name: str, text: str) -> str:
    raise RuntimeError("a mistake in the function")


@pytest.mark.parametrize("redact", [blank, broken])
def test_what_cannot_be_redacted_is_left_out(redact: Any) -> None:
    verdict = Runner(at_work(Retry(immediate=0, redact=redact))).fails(ValueError("hunter2"))
    assert header(verdict, "eb-retry-error") == "ValueError: "


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


@pytest.mark.parametrize("error", [Unspeakable(), ValueError("x" * 5_000_000), ValueError("\x00\ud800\x1b[2J")])
def test_hostile_errors(error: Exception) -> None:
    runner = Runner(at_work(PLAIN))
    assert list(runner.story(lambda: error)) == ["again", "later 5", "later 60", "dead exhausted 4"]


def test_signals_are_numbers_of_now() -> None:
    policy = Retry(immediate=1, delays=["5s"], jitter=False, circuit=Circuit(of=100))
    assert policy.signals(0) == []
    working = policy.open(HANDLING)
    list(Runner(at_work(policy)).story(ValueError))  # of a policy that was not opened by a bus
    other = Handling(handler="archive", group="archive", topics=("orders",))
    kept = policy.open(other)
    assert [one.handler for one in policy.signals(0)] == ["archive", "bill"]
    working.handled(100, 0)
    now_ms = 0
    for offset in range(3):
        for tries in (1, 2):
            working.decide(record(offset), ValueError(), tries, now_ms)
    working.decide(record(7), Reject(), 1, 30_000)
    working.depth(3, 4_000)
    kept.depth(0, None)
    assert policy.signals(30_000)[1] == Signals(
        handler="bill",
        group="billing",
        dead_letters=1,
        dead_letters_last_minute=1,
        retries=3,
        waiting=3,
        overdue_ms=26_000,
        circuit="closed",
    )
    assert policy.signals(120_000)[1].dead_letters_last_minute == 0
    assert policy.signals()[0].overdue_ms == 0
    del working, kept
    assert policy.signals(0) == [], "those of a bus that is gone are not told"


# any sequence ---------------------------------------------------------------------------------------------------------

failures = st.sampled_from([ValueError, ConnectionError, TypeError, RetryLater, Reject, Skip, MemoryError, KeyError])
policies = st.builds(
    Retry,
    immediate=st.integers(0, 3),
    delays=st.lists(st.integers(1, 100), min_size=1, max_size=3),
    max_age=st.none() | st.integers(1, 1_000),
    circuit=st.none() | st.builds(Circuit, of=st.integers(1, 4)),
)


@pytest.mark.system
@given(policies, st.lists(failures, min_size=1, max_size=30), st.floats(0, 1), st.lists(st.booleans(), max_size=30))
def test_whatever_happens_attempts_grow_and_no_try_is_early(
    policy: Retry, errors: list[type[Exception]], chance: float, restarts: list[bool]
) -> None:
    """Also when each go is another member's, whose circuit is its own."""
    working = at_work(policy, chance=chance)
    runner = Runner(working)
    attempts = 0
    for calls, error in enumerate(errors, 1):
        before_ms = runner.now_ms + round(working.admit(runner.now_ms) * 1000)
        runner.now_ms = before_ms
        verdict = runner.fails(error())
        if isinstance(verdict, Move):
            count = "eb-retry-attempt" if verdict.kind == "retry" else "__dlq.errors.delivery.count"
            assert int(header(verdict, count)) == calls
            if verdict.kind == "dead-letter":
                assert error is not ConnectionError
                return
            assert int(header(verdict, count)) > attempts
            attempts = int(header(verdict, count))
            assert due_ms(verdict) >= before_ms + (1 if error is RetryLater else min(policy.delays_ms or ()))
            assert runner.now_ms == due_ms(verdict)
            if restarts[calls - 1 : calls] == [True]:
                runner.recovery = working = at_work(policy, chance=chance)
        elif isinstance(verdict, (recovery.Skip, recovery.Stop)):
            assert error in (Skip, MemoryError)
            return
