"""Java's properties files; expectations are what java.util.Properties reads (checked against OpenJDK 17)."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from eventbus import EventBus, Router, consumer, producer
from eventbus.cli.parser import UsageError
from eventbus.cli.properties import properties_of
from eventbus.errors import ConfigError
from eventbus.properties import parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1\nb = 2\nc: 3\nd 4\n", {"a": "1", "b": "2", "c": "3", "d": "4"}),
        ("# a comment\n! another\n\n  a=1", {"a": "1"}),
        ("a=1\na=2", {"a": "2"}),
        ("empty=\nalone", {"empty": "", "alone": ""}),
        ("long=one,\\\n    two,\\\n    three", {"long": "one,two,three"}),
        ("a=ends with a backslash\\\\\nb=2", {"a": "ends with a backslash\\", "b": "2"}),
        ("key\\ with\\:signs=a=b:c", {"key with:signs": "a=b:c"}),
        ("u=\\u00e4\\t|", {"u": "ä\t|"}),
        ("a=1\r\nb=2\r\n", {"a": "1", "b": "2"}),
        ("a=# no comment", {"a": "# no comment"}),
        ('jaas=Login required username="u" password="p";', {"jaas": 'Login required username="u" password="p";'}),
        ("a=1\\\n# joined", {"a": "1# joined"}),
        ("a=\\\n\\\n", {"a": ""}),
    ],
)
def test_properties(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_is_told() -> None:
    with pytest.raises(ValueError, match=r"four hexadecimal digits"):
        parse_properties("a=\\u12")


@pytest.mark.parametrize(
    "call",
    [
        lambda: EventBus("memory://", **{"linger.ms": 5}),
        lambda: consumer("orders", **{"session.timeout.ms": 5}),
        lambda: producer("orders", **{"linger.ms": 5}),
        lambda: Router(**{"session.timeout.ms": 5}),
        lambda: EventBus("memory://").consumer("orders", **{"session.timeout.ms": 5}),
    ],
)
def test_a_keyword_with_dots_is_refused_and_the_right_one_named(call: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"does not accept '\w+\.\S+'.* Pass (linger|session_timeout)_ms="):
        call()


def test_a_property_with_underscores_is_refused_and_the_right_one_named() -> None:
    args = argparse.Namespace(command_property=["security_protocol=SSL"])
    with pytest.raises(UsageError, match=r"--command-property: 'security_protocol' .* Write security\.protocol"):
        properties_of(args)
