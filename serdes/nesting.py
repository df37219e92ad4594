"""Limit how deeply JSON is nested, before it is parsed.

A parser ends at the interpreter's recursion limit, which is 1,000 calls of any kind in Python 3.11 and about 10,000
calls of C code in Python 3.13. Programs on different interpreters would then disagree on which records of a topic they
can read, and thereby on the state that the topic stores.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

import msgspec

MAX_NESTING: Final = 256
"""The maximum number of brackets inside brackets."""

_STRING: Final = rb'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)'  # one without an end goes on to the end: no text is read twice
_TOKENS: Final = re.compile(rb"%s|[\[{]|[\]}]" % _STRING, re.DOTALL)


def is_too_deep(text: bytes, limit: int = MAX_NESTING) -> bool:
    """True if brackets of a JSON text are nested deeper than ``limit``."""
    if text.count(b"{") + text.count(b"[") <= limit:
        return False
    depth = 0
    for token in _TOKENS.finditer(text):
        bracket = token[0]
        if bracket in b"{[":
            depth += 1
            if depth > limit:
                return True
        elif bracket in b"]}":
            depth -= 1
    return False


Text = TypeVar("Text", bound=bytes | str)


def shallow(text: Text) -> Text:
    """Return a JSON text that may be parsed. Raises msgspec.DecodeError if it is nested deeper than `MAX_NESTING`."""
    if is_too_deep(text.encode(errors="replace") if isinstance(text, str) else text):
        raise msgspec.DecodeError(f"JSON is nested deeper than {MAX_NESTING} levels")
    return text
