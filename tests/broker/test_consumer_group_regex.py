"""Topic patterns: RE2's syntax and meaning, in linear time."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.consumer_group_regex import ALPHABET, MAX_STEPS, TopicPattern
from eventbus.errors import InvalidRegularExpression

NAMES = (
    "orders",
    "orders-1",
    "a",
    "ab",
    "a.b",
    "A_b",
    "aaaa",
    "x1",
    "9",
    "orders.eu-west_1",
    "b",
    "-",
    "--a",
    "ORDERS",
)


@pytest.mark.parametrize(
    "text",
    [
        "orders", "orders.*", ".*", "a|b", "(a|b)+", "a{2,3}", "a{2,}", "a{4}", "[a-c]+", "[^a]", r"\w+", r"\d", r"\D+",
        "(?i)ORDERS", "(?i:o)rders", "^orders$", r"\bb\b.*", r".*\B.*", r"a\.b", "a?b*?", "(?P<x>a)(b)?", "", "()",
        "a||b", r"[\w.-]+", r"orders-\d{1,3}", r"[a\-c]+", "(?:a{2}){2}", "[]a]+", "[a-]+", r"[^\d]+", "(?s:.+)",
        "x(?i)Y|X1", r"\x61b?", "(a*)*", "(a|ab)(b|)", r"[\x41-\x5a]_b", "o(?-i:r)ders", r"\Aorders", r"a[^\w].",
    ],
)  # fmt: skip
def test_a_pattern_means_what_python_means_by_it(text: str) -> None:
    pattern = TopicPattern(text)
    moved = re.sub(r"^x\(\?i\)Y\|X1$", "x(?i:Y|X1)|(?i:X1)", text)
    assert [name for name in NAMES if pattern.matches(name)] == [name for name in NAMES if re.fullmatch(moved, name)]


@pytest.mark.parametrize(
    ("text", "matched"),
    [
        ("[[:alpha:]]+", {"orders", "a", "ab", "aaaa", "b", "ORDERS"}),
        ("[[:^alpha:]]+", {"9", "-"}),
        (r"\p{Lu}+", {"ORDERS"}),
        (r"\pL+", {"orders", "a", "ab", "aaaa", "b", "ORDERS"}),
        (r"\P{L}+", {"9", "-"}),
        (r"\Qa.b\E", {"a.b"}),
        (r"\Qa.b", {"a.b"}),
        (r"orders\z", {"orders"}),
    ],
)
def test_what_python_does_not_have(text: str, matched: set[str]) -> None:
    pattern = TopicPattern(text)
    assert {name for name in NAMES if pattern.matches(name)} == matched


@pytest.mark.parametrize(
    "text",
    [
        "(", "a)", "[a", "[", "*a", "+", "a**", "a{2}{3}", "a++", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", "a{1001}",
        "a{3,2}", "\\", "[z-a]", r"\pX", "(?x)a", "(?P<a", r"\x", r"\x{110000}", r"[a-\d]", r"\8", r"\y",
        "((a{100}){100}){100}", "(" * 200 + ")" * 200,
    ],
)  # fmt: skip
def test_what_re2_refuses_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="topic pattern"):
        TopicPattern(text)


@pytest.mark.parametrize("text", ["(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*b", "(a?){400}a{400}", "(.*a){50}b"])
def test_patterns_that_make_a_backtracker_run_for_ever_are_matched_at_once(text: str) -> None:
    """A step for each character and state, at most: counted, not timed."""
    pattern = TopicPattern(text)
    looks = 0
    inner = pattern._read

    def counting(states: frozenset[int], before: str, char: str) -> frozenset[int]:
        nonlocal looks
        looks += 1
        return inner(states, before, char)

    TopicPattern._read, original = lambda self, *args: counting(*args), TopicPattern._read
    try:
        assert not pattern.matches("a" * 249)
        assert looks <= 249
        pattern.matches("a" * 249)
        assert looks <= 249, "remembered"
    finally:
        TopicPattern._read = original
    assert len(pattern._steps) <= MAX_STEPS


texts = st.text(alphabet=sorted("ab.-1|()[]*+?{},\\^$dwx"), max_size=12)
names = st.text(alphabet="ab.-1x", max_size=8)


@pytest.mark.system
@settings(max_examples=1000, deadline=None)
@given(texts, st.lists(names, min_size=1, max_size=5))
def test_whatever_is_taken_agrees_with_python(text: str, given_names: list[str]) -> None:
    try:
        pattern = TopicPattern(text)
    except InvalidRegularExpression:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # "[[", "[--", "[||": sets Python may read otherwise one day
        try:
            python = re.compile(text)
        except re.error:
            return
    if re.search(r"[*+?}][+]|\{,|\[[^\]]*\[", text):
        return  # another meaning in Python: possessive, {,n} and nested classes
    assert [pattern.matches(name) for name in given_names] == [bool(python.fullmatch(name)) for name in given_names]


def test_the_alphabet_is_that_of_topic_names() -> None:
    assert {char for char in map(chr, range(0x250)) if re.fullmatch("[a-zA-Z0-9._-]", char)} == ALPHABET
