"""The policies that ``retry=`` and ``dead_letter=`` are converted to."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import dlq
from dlq import Retry
from dlq.policy import Policy, policy_of
from eventbus.recovery import Handling
from eventbus.recovery import policy_of as installed_policy_of
from tests.dlq.policy.failing import HANDLING, Runner, at_work


def policy(retry: Any, dead_letter: Any = None) -> Policy:
    found = policy_of(retry, dead_letter, "@consumer('orders')")
    assert isinstance(found, Policy)
    return found


def test_nothing_asked_for_is_no_policy() -> None:
    assert policy_of(None, None, "x") is None
    assert policy_of(None, False, "x") is None


def test_it_is_found_as_the_one_that_is_installed() -> None:
    found = installed_policy_of(Retry(), "dlq.here", "x")
    assert isinstance(found, Policy)
    assert found.dead_letter == "dlq.here"


def test_dead_letters_come_with_retries_unless_they_are_not_wanted() -> None:
    opened = policy(Retry()).open(HANDLING)
    assert (opened.retry_topic, opened.dead_letter_topic) == ("retry.billing", "dlq.billing")
    opened = policy(Retry(topic="later"), "dlq.shared").open(HANDLING)
    assert (opened.retry_topic, opened.dead_letter_topic) == ("later", "dlq.shared")
    assert policy(Retry(), False).open(HANDLING).dead_letter_topic is None
    assert Retry().open(HANDLING).dead_letter_topic == "dlq.billing"


def test_dead_letters_alone_are_no_tries() -> None:
    chosen = policy(None, True)
    assert list(Runner(at_work(chosen.retry)).story(ValueError)) == ["dead exhausted 1"]
    assert chosen.open(HANDLING).retry_topic is None


def test_true_is_the_defaults_and_false_no_tries() -> None:
    chosen, default = policy(True), policy(Retry())
    assert chosen.dead_letter is default.dead_letter is True
    assert [*Runner(at_work(chosen.retry)).story(ValueError)] == [*Runner(at_work(default.retry)).story(ValueError)]
    assert policy_of(False, None, "x") is installed_policy_of(False, None, "x") is None
    assert [*Runner(at_work(policy(False, True).retry)).story(ValueError)] == ["dead exhausted 1"]
    assert policy(1).retry.immediate == 1  # a number, which equals True


def test_a_number_is_of_tries_at_once() -> None:
    chosen = policy(2)
    assert list(Runner(at_work(chosen.retry)).story(ValueError)) == ["again", "again", "dead exhausted 3"]
    assert chosen.open(HANDLING).retry_topic is None
    assert list(Runner(at_work(policy(0).retry)).story(ValueError)) == ["dead exhausted 1"]


def test_bare_it_is_two_at_once_and_three_later() -> None:
    story = list(Runner(at_work(Retry())).story(ValueError))
    assert story == ["again", "again", "later 5", "later 60", "later 600", "dead exhausted 6"]


def test_a_function_has_all_tries() -> None:
    def doubled(attempt: int, error: Exception) -> float | None:
        return 2.0**attempt if attempt < 4 and not isinstance(error, KeyError) else None

    chosen = policy(doubled).retry
    assert list(Runner(at_work(chosen)).story(ValueError)) == ["later 2", "later 4", "later 8", "dead exhausted 4"]
    assert list(Runner(at_work(chosen)).story(KeyError)) == ["dead exhausted 1"]
    behind_others = list(Runner(at_work(Retry(immediate=2, delays=doubled))).story(ValueError))
    assert behind_others == ["again", "again", "later 8", "dead exhausted 4"]


@pytest.mark.parametrize(
    ("said", "handlers", "pattern", "order"),
    [
        (None, "partition", None, "key"),
        (None, "key", None, "key"),
        (None, "none", None, "none"),
        (None, "global", None, "partition"),
        (None, "partition", "orders-.*", "none"),
        ("none", "global", None, "none"),
        ("key", "none", None, "key"),
        ("partition", "key", None, "partition"),
        ("none", "key", "orders-.*", "none"),
    ],
)
def test_order_follows_the_handlers(said: Any, handlers: str, pattern: str | None, order: str) -> None:
    handling = Handling(handler="h", group="g", topics=(), pattern=pattern, order=handlers)
    assert Retry(order=said).open(handling).order == order


def test_topics_are_kept_for_ever() -> None:
    opened = Retry().open(HANDLING)
    keep = {"cleanup.policy": "delete", "retention.ms": "-1"}
    assert opened.configs("dlq.billing") == keep
    assert opened.configs("retry.billing") == {**keep, "max.message.bytes": "8388608"}


def test_every_public_name_is_there() -> None:
    for name in dlq.__all__:
        assert getattr(dlq, name).__module__.startswith("dlq."), name
    assert set(dlq.__all__) <= set(dir(dlq))
    with pytest.raises(AttributeError, match="has no attribute 'Retries'"):
        _ = dlq.Retries


@pytest.mark.system
def test_who_only_says_what_is_to_be_pays_for_no_client() -> None:
    program = (
        "import sys; from dlq import Retry, Reject; Retry(); "
        "print([name for name in sys.modules if name in "
        "('anyio', 'urllib.request', 'eventbus.client', 'eventbus.broker', 'dlq.recovery', "
        "'eventbus.delays.retry_partition')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_it_shows_itself_as_it_is_written() -> None:
    assert repr(Retry(delays=[90, "2h", 0.25])) == "Retry(immediate=2, delays=['90s', '2h', '250ms'])"
    assert repr(Retry(delays=None)) == "Retry(immediate=2, delays=None)"
    assert repr(Retry(delays=lambda attempt, error: None)) == "Retry(immediate=2, delays=<lambda>)"


@pytest.mark.parametrize(
    ("dead_letter", "group", "is_redriven"),
    [
        (True, "billing", True),
        ("dlq.shared", "billing", True),
        (False, "billing", False),
        (True, "no topic's name", False),
        ("retry.billing", "billing", False),
    ],
)
def test_only_a_handler_with_dead_letters_is_redriven_to(
    dead_letter: bool | str, group: str, is_redriven: bool
) -> None:
    assert policy(Retry(delays=None), dead_letter).is_redriven(group) is is_redriven
