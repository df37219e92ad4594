"""Topic patterns: RE2's syntax and meaning, with google-re2 or under a bound without it."""

from __future__ import annotations

import re
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventbus.coordinator.consumer_group_regex import MAX_DEPTH, MAX_LENGTH, TopicPattern
from eventbus.errors import InvalidRegularExpression
from tests.support import examples

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


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)


@pytest.mark.usefixtures("without_re2")
@pytest.mark.parametrize(
    "text",
    [
        "orders", "orders.*", ".*", "a|b", "(ab)+", "a{2,3}", "a{2,}", "a{4}", "[a-c]+", "[^a]", r"\w+", r"\d", r"\D+",
        "(?i)ORDERS", "(?i:o)rders", "^orders$", r"\bb\b.*", r".*\B.*", r"a\.b", "a?b*?", "(?P<x>a)(b)?", "", "()",
        "a||b", r"[\w.-]+", r"orders-\d{1,3}", r"[a\-c]+", "(?:a{2}){2}", "[]a]+", "[a-]+", r"[^\d]+", "(?s:.+)",
        r"\x61b?", "(a|ab)(b|)", r"[\x41-\x5a]_b", "o(?-i:r)ders", r"\Aorders", r"a[^\w].", "(^orders.*)|(^a.*)",
        "(?:orders|payments)-.*-.*", "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", r"(-[a-z]+)?x\d",
    ],
)  # fmt: skip
def test_a_pattern_means_what_python_means_by_it(text: str) -> None:
    pattern = TopicPattern(text)
    assert [name for name in NAMES if pattern.matches(name)] == [name for name in NAMES if re.fullmatch(text, name)]


@pytest.mark.usefixtures("without_re2")
@pytest.mark.parametrize(
    ("text", "matched"), [(r"\Qa.b\E", {"a.b"}), (r"\Qa.b", {"a.b"}), (r"orders\z", {"orders"}), (r"\QA\E_b", {"A_b"})]
)
def test_syntax_of_re2_that_python_lacks_is_translated(text: str, matched: set[str]) -> None:
    assert set(filter(TopicPattern(text).matches, NAMES)) == matched


@pytest.mark.usefixtures("without_re2")
@pytest.mark.parametrize(
    "text",
    [
        "(", "a)", "[a", "[", "*a", "+", "a**", "a{2}{3}", "a++", "(?=a)", "(?!a)", "(?<=a)", r"(a)\1", "a{99999}",
        "a{3,2}", "\\", "[z-a]", r"\pX", "(?x)a", "(?P<a", r"\x", r"\x{110000}", r"[a-\d]", r"\8", r"\y", r"\Z",
        "(" * (MAX_DEPTH + 1) + ")" * (MAX_DEPTH + 1), "a{2}+", "(?>a)", "(?#a)", "(?(1)a|b)", "(?P=a)", r"[\b]",
    ],
)  # fmt: skip
def test_what_re2_refuses_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="The topic pattern '"):
        TopicPattern(text)


@pytest.mark.usefixtures("without_re2")
@pytest.mark.parametrize(
    "text",
    [
        "(a+)+b", "(a|a)*b", "(a|aa)+b", "(.*)*b", "(a?){400}a{400}", "(.*a){50}b", ".*.*.*b", "(a|a)" * 40, "a?" * 40,
        "((){1000}){1000}", "((((a|b)?)?)*)*", "(a{1,50}){1,50}", r"(x*)\Q\E*", "(a*){\u0660}(a*){\u0660}.*",
        "a" * (MAX_LENGTH + 1),
        # RE2 accepts these, and `re` would interpret them differently.
        "[[:alpha:]]+", r"\pL+", "a{,3}", "[a--b]", "x(?i)Y", "(?<a>b)", "(?U)a",
    ],
)  # fmt: skip
def test_a_pattern_that_only_re2_can_match_is_refused_without_it(text: str) -> None:
    with pytest.raises(InvalidRegularExpression, match=r"The topic pattern '.*install eventbus-log\[re2\]"):
        TopicPattern(text)


def test_another_package_named_re2_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyre2 has `compile` too, and returns to `re` for what RE2 lacks."""
    monkeypatch.setitem(sys.modules, "re2", re)
    with pytest.raises(InvalidRegularExpression):
        TopicPattern("(a+)+b")


texts = st.text(alphabet=sorted("ab.-1|()[]*+?{},\\^$dwxQEz"), max_size=12)
names = st.text(alphabet="ab.-1x", min_size=1, max_size=8)


@pytest.mark.system
@settings(max_examples=examples(300, 2_000), deadline=None)
@given(texts, st.lists(names, min_size=1, max_size=5))
def test_a_pattern_that_is_accepted_without_re2_agrees_with_re2(text: str, given_names: list[str]) -> None:
    pytest.importorskip("re2", reason="needs google-re2, which is no base dependency")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "re2", None)
        try:
            bounded = TopicPattern(text)
        except InvalidRegularExpression:
            return
    pattern = TopicPattern(text)
    assert [pattern.matches(name) for name in given_names] == [bounded.matches(name) for name in given_names]


@pytest.mark.system
def test_re2_accepts_what_python_would_match_for_ever() -> None:
    pytest.importorskip("re2", reason="needs google-re2, which is no base dependency")
    assert TopicPattern("(a+)+b").matches("a" * 200 + "b")
    assert TopicPattern(r"[[:alpha:]]+-\pL+").matches("orders-eu")
    for text in ("(?=a)", r"(a)\1", "(", "\ud800"):
        with pytest.raises(InvalidRegularExpression, match="The topic pattern '"):
            TopicPattern(text)
