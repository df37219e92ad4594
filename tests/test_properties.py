"""Java's properties files; expectations are what java.util.Properties reads (checked against OpenJDK 17)."""

from __future__ import annotations

import pytest

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
