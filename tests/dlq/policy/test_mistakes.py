"""Mistakes in a policy are reported where it is declared: what is wrong, where, and how to fix it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from dlq import Circuit, Park, Reject, Retry, RetryLater
from dlq.policy import policy_of
from eventbus import consumer
from eventbus.errors import ConfigError
from eventbus.recovery import Handling
from tests.dlq.policy.failing import HANDLING


def one_argument(attempt: int) -> float:
    return float(attempt)


async def asks(attempt: int, error: Exception) -> float:
    return float(attempt)


class Asks:
    async def __call__(self, attempt: int, error: Exception) -> float:
        return float(attempt)


OPTIONS: list[tuple[dict[str, Any], str, str]] = [
    ({"immediate": -1}, "Retry(immediate=-1)", "0 or more"),
    ({"immediate": True}, "Retry(immediate=True)", "a whole number"),
    ({"immediate": 1.5}, "Retry(immediate=1.5)", "a whole number"),
    ({"delays": "5 s"}, "Retry(delays='5 s')", 'delays=["5s", "1m", "10m"]'),
    ({"delays": "5s"}, "Retry(delays='5s')", "a list"),
    ({"delays": 5}, "Retry(delays=5)", "a list"),
    ({"delays": timedelta(seconds=5)}, "Retry(delays=datetime.timedelta(seconds=5))", "a list"),
    ({"delays": []}, "Retry(delays=[])", "delays=None means no later tries"),
    ({"delays": ["5 s"]}, "Retry(delays=['5 s']): '5 s'", '"10m"'),
    ({"delays": ["5s", "soon"]}, "'soon'", "seconds, a text such as"),
    ({"delays": ["-5s"]}, "'-5s'", "seconds, a text such as"),
    ({"delays": [-5]}, ": -5", "from 0 to 366 days"),
    ({"delays": [0]}, ": 0", "more than 0"),
    ({"delays": ["0s"]}, "'0s'", "more than 0"),
    ({"delays": [float("nan")]}, "nan", "seconds, a text such as"),
    ({"delays": [float("inf")]}, "inf", "366 days"),
    ({"delays": ["9999999999w"]}, "'9999999999w'", "366 days"),
    ({"delays": [True]}, ": True", "seconds, a text such as"),
    ({"delays": [None]}, ": None", "seconds, a text such as"),
    ({"delays": one_argument}, "Retry(delays=one_argument)", "called as (attempt, error)"),
    ({"delays": asks}, "Retry(delays=asks)", "an async function"),
    ({"delays": functools.partial(asks)}, "Retry(delays=functools.partial", "an async function"),
    ({"delays": Asks()}, "Retry(delays=", "an async function"),
    ({"delays": Reject}, "Retry(delays=Reject)", "an object of it"),
    ({"jitter": -0.1}, "Retry(jitter=-0.1)", "0 to 1"),
    ({"jitter": 2}, "Retry(jitter=2)", "0 to 1"),
    ({"jitter": "full"}, "Retry(jitter='full')", "True (a delay grows by up to a half), False"),
    ({"max_age": 0}, "Retry(max_age=0)", "more than 0"),
    ({"max_age": "a day"}, "Retry(max_age='a day')", '"10m"'),
    ({"on": ValueError}, "Retry(on=ValueError)", "[ValueError]"),
    ({"on": []}, "Retry(on=[])", "leave it out"),
    ({"on": ["ValueError"]}, "Retry(on=['ValueError'])", "classes of errors"),
    ({"never": "ValueError"}, "Retry(never='ValueError')", "a list of error classes"),
    ({"never": [ValueError("no")]}, "Retry(never=[ValueError('no')])", "classes of errors"),
    ({"never": [KeyboardInterrupt]}, "Retry(never=[KeyboardInterrupt])", "classes of errors (Exception)"),
    ({"outages": [RetryLater]}, "Retry(outages=[RetryLater])", "says itself"),
    ({"on": [ValueError, OSError], "never": [OSError]}, "OSError is in on= and in never=", "one of them"),
    ({"never": [OSError], "outages": [OSError]}, "OSError is in never= and in outages=", "one of them"),
    ({"order": "keys"}, "Retry(order='keys')", '"key", "partition" or "none"'),
    ({"order": True}, "Retry(order=True)", '"key", "partition" or "none"'),
    ({"topic": "retry/billing"}, "Retry(topic='retry/billing')", "a-z A-Z 0-9 . _ -"),
    ({"topic": "."}, "Retry(topic='.')", "a-z A-Z 0-9 . _ -"),
    ({"topic": True}, "Retry(topic=True)", "a topic's name"),
    ({"circuit": True}, "Retry(circuit=True)", "Circuit(failures=0.5"),
    ({"circuit": Circuit}, "Retry(circuit=Circuit)", "Circuit(failures=0.5"),
    ({"circuit": Circuit(), "delays": None}, "delays=None", 'delays=["5s"]'),
    ({"crashes": 0}, "Retry(crashes=0)", "1 or more"),
    ({"max_waiting": 0}, "Retry(max_waiting=0)", "1 or more"),
    ({"max_waiting_bytes": "1 GB"}, "Retry(max_waiting_bytes='1 GB')", "1 or more"),
    ({"redact": "password"}, "Retry(redact='password')", "a function (name, text)"),
    ({"redact": str.upper}, "Retry(redact=upper)", "called as (name, text)"),
    ({"on_event": asks}, "Retry(on_event=asks)", "an async function"),
    ({"on_event": [print, "log"]}, "Retry(on_event='log')", "a function (event)"),
]


@pytest.mark.parametrize(("options", "what", "mend"), OPTIONS, ids=[f"{what}" for _, what, _ in OPTIONS])
def test_an_option_that_is_none(options: dict[str, Any], what: str, mend: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Retry(**options)
    assert what in str(raised.value)
    assert mend in str(raised.value)


WRONG: list[tuple[Any, str]] = [
    ("yes", "retry='yes': one delay is retry=Retry(delays=['yes'])"),
    (-1, "retry=-1: how many tries, 0 or more"),
    (0.5, "retry=0.5: one delay is retry=Retry(delays=[0.5])"),
    (["5s"], "retry=['5s']: delays are retry=Retry(delays=['5s'])"),
    (Retry, "retry=Retry: the class; an object of it, Retry() with parentheses"),
    (one_argument, "retry=one_argument: takes other arguments; it is called as (attempt, error)"),
    (asks, "retry=asks: an async function"),
    (object(), "a number of tries at once, or a function of attempt and error"),
    ({"delays": ["5s"]}, "Retry(immediate=2"),
]


@pytest.mark.parametrize(("retry", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_no_policy(retry: Any, words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        policy_of(retry, None, "@consumer('orders')")
    assert str(raised.value).startswith("@consumer('orders'): retry=")
    assert words in str(raised.value)


@pytest.mark.parametrize("topic", ["", "a b", "x" * 250, "..", 7, ["dlq.billing"]])
def test_a_dead_letter_topic_that_is_none(topic: Any) -> None:
    with pytest.raises(ConfigError, match=r"^@consumer\('orders'\): dead_letter=.*: True, False, or a topic's name"):
        policy_of(None, topic, "@consumer('orders')")


def test_the_decorator_says_where() -> None:
    with pytest.raises(ConfigError, match=r"^@consumer\('orders'\): retry='yes'"):
        consumer("orders", retry="yes")
    with pytest.raises(ConfigError, match=r"retry= .*delivery='at-most-once' contradict each other"):
        consumer("orders", retry=Retry(), delivery="at-most-once")
    with pytest.raises(ConfigError, match="delivery='at-most-once' contradict each other"):
        consumer("orders", dead_letter=True, delivery="at-most-once")


def handling(**options: Any) -> Handling:
    return msgspec.structs.replace(HANDLING, **options)


class Own:
    def open(self, handling: Handling) -> Any:
        raise AssertionError("it is not opened")


def test_a_policy_of_ones_own_has_its_own_dead_letters() -> None:
    own = Own()
    assert policy_of(own, None, "x") is own
    with pytest.raises(ConfigError, match="leave dead_letter= out"):
        policy_of(own, True, "x")


@pytest.mark.parametrize("order", ["key", "partition"])
def test_an_order_needs_topics_by_name(order: Any) -> None:
    policy = Retry(order=order)
    with pytest.raises(ConfigError) as raised:
        policy.open(handling(topics=(), pattern="orders-.*"))
    assert f"handler 'bill': Retry(order='{order}') and pattern='orders-.*' contradict each other" in str(raised.value)
    assert 'order="none"' in str(raised.value)


def test_a_group_that_makes_no_topic() -> None:
    with pytest.raises(ConfigError, match=r"handler 'bill': of group 'a b' .* say retry=Retry\(topic=...\)"):
        Retry().open(handling(group="a b"))
    with pytest.raises(ConfigError, match=r'say dead_letter="\.\.\."'):
        Retry(topic="retry.it").open(handling(group="a b"))
    opened = policy_of(Retry(topic="retry.it"), "dlq.it", "x")
    assert opened is not None
    assert opened.open(handling(group="a b")).retry_topic == "retry.it"


def test_one_topic_for_both() -> None:
    policy = policy_of(Retry(topic="later"), "later", "x")
    assert policy is not None
    with pytest.raises(ConfigError, match="name two topics"):
        policy.open(handling())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Circuit(failures=0), "it would open without a failure"),
        (lambda: Circuit(failures=1.5), "Circuit(failures=1.5): the share of calls that fail"),
        (lambda: Circuit(of=0), "Circuit(of=0): a whole number, 1 or more"),
        (lambda: Circuit(open="half a minute"), "Circuit(open='half a minute'): seconds, a text"),
        (lambda: Circuit(open=0), "Circuit(open=0): more than 0"),
        (lambda: RetryLater("5 minutes"), "RetryLater(after='5 minutes'): seconds, a text"),
        (lambda: RetryLater(-1), "RetryLater(after=-1): from 0 to 366 days"),
    ],
)
def test_the_parts(make: Callable[[], object], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make()
    assert words in str(raised.value)


def test_what_a_handler_says_needs_no_words() -> None:
    assert (Reject().reason, Park("look").reason, RetryLater().after_ms) == ("", "look", None)
    assert RetryLater("1h30m").after_ms == 5_400_000
    assert RetryLater(timedelta(microseconds=1)).after_ms == 1  # never earlier than asked
    assert RetryLater(0).after_ms == 0
