"""Topic patterns that consumers send to the coordinator (KIP-848), in RE2's syntax, matched in linear time. Pure.

Python's `re` backtracks: one pattern from a client could block the server indefinitely. Here a pattern is compiled to
an automaton over the characters that topic names are made of, and each name is read once. Features that RE2 lacks (back
references, lookaround) are refused here too.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Callable
from typing import NamedTuple

from eventbus.errors import InvalidRegularExpression

ALPHABET = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of which topic names are made."""
MAX_STEPS = 2_000
"""The largest automaton; counted repetitions are expanded."""
MAX_REPEAT = 1_000
"""RE2's limit of a counted repetition."""
MAX_DEPTH = 100
"""The deepest nesting of groups."""
_MAX_CACHED = 10_000

_DIGITS = frozenset(string.digits)
_WORD = frozenset(string.ascii_letters + string.digits + "_")
_ESCAPED_SETS = {
    "d": _DIGITS, "D": ALPHABET - _DIGITS, "w": _WORD, "W": ALPHABET - _WORD, "s": frozenset[str](), "S": ALPHABET,
}  # fmt: skip
_POSIX: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum, "alpha": str.isalpha, "ascii": str.isascii, "digit": str.isdigit, "graph": str.isprintable,
    "lower": str.islower, "print": str.isprintable, "punct": lambda char: not char.isalnum(), "upper": str.isupper,
    "word": lambda char: char in _WORD, "xdigit": lambda char: char in string.hexdigits,
    "blank": str.isspace, "cntrl": str.isspace, "space": str.isspace,
}  # fmt: skip
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_COUNTED = re.compile(r"\{(\d+)(,(\d*))?\}")
_GROUP = re.compile(r"\?(?:P?<(\w+)>|([imsU]*)(?:-([imsU]*))?([:)]))")


class _Step(NamedTuple):
    """One state of the automaton: reads a character of ``chars``, or (None) continues without reading if ``holds`` is
    true."""

    chars: frozenset[str] | None
    to: tuple[int, ...]
    holds: str = ""
    """An assertion, one of ``^ $ b B``; empty if there is none."""


class _Node(NamedTuple):
    """A piece of a pattern: characters, an assertion, a sequence, alternatives, or a repetition of one piece."""

    kind: str
    chars: frozenset[str] = frozenset()
    parts: tuple[_Node, ...] = ()
    least: int = 0
    most: int | None = None


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._fold = False

    def parse(self) -> _Node:
        node = self._alternatives()
        if self._at < len(self._text):
            raise self._refuse("a ) without its (")
        return node

    def _refuse(self, what: str) -> InvalidRegularExpression:
        return InvalidRegularExpression(f"topic pattern {self._text[:200]!r}: {what}, at {self._at}")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise self._refuse("it ends early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> _Node:
        fold = self._fold
        found = [self._sequence()]
        while self._peek() == "|":
            self._at += 1
            found.append(self._sequence())
        self._fold = fold  # flags apply until the end of their group
        return found[0] if len(found) == 1 else _Node("or", parts=tuple(found))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            if self._text.startswith("\\Q", self._at):
                end = self._text.find("\\E", self._at + 2)
                quoted = self._text[self._at + 2 : len(self._text) if end < 0 else end]
                self._at = len(self._text) if end < 0 else end + 2
                parts += [self._chars(char) for char in quoted]
                continue
            node = self._atom()
            if node is not None:
                parts.append(self._repeated(node))
        return _Node("seq", parts=tuple(parts))

    def _repeated(self, node: _Node) -> _Node:
        bounds = self._bounds()
        if bounds is None:
            return node
        if self._peek() == "?":  # non-greedy: makes no difference to whether the name matches
            self._at += 1
        if self._bounds() is not None:
            raise self._refuse("a repetition of a repetition")
        return _Node("repeat", parts=(node,), least=bounds[0], most=bounds[1])

    def _bounds(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char in ("*", "+", "?") and char:
            self._at += 1
            return (1 if char == "+" else 0), (1 if char == "?" else None)
        counted = _COUNTED.match(self._text, self._at)
        if counted is None:
            return None
        self._at = counted.end()
        least = int(counted[1])
        most = least if counted[2] is None else int(counted[3]) if counted[3] else None
        if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
            raise self._refuse(f"a repetition outside of 0 to {MAX_REPEAT:,}")
        return least, most

    def _atom(self) -> _Node | None:
        """Parse one atom. Returns None for flags, which match nothing."""
        char = self._take()
        if char == "(":
            return self._group()
        if char == "[":
            return _Node("chars", self._class())
        if char == ".":
            return _Node("chars", ALPHABET)
        if char in "^$":
            return _Node(char)
        if char in "*+?":
            raise self._refuse("a repetition of nothing")
        if char == "\\":
            escaped = self._take()
            if escaped in ("A", "z", "b", "B"):
                return _Node({"A": "^", "z": "$"}.get(escaped, escaped))
            return _Node("chars", self._escaped(escaped))
        return self._chars(char)

    def _chars(self, char: str) -> _Node:
        return _Node("chars", self._folded(frozenset(char)) & ALPHABET)

    def _folded(self, chars: frozenset[str]) -> frozenset[str]:
        return frozenset(other for char in chars for other in (char.lower(), char.upper())) if self._fold else chars

    def _group(self) -> _Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._refuse(f"more than {MAX_DEPTH} groups in one another")
        fold = self._fold
        if self._peek() == "?":
            found = _GROUP.match(self._text, self._at)
            if found is None:
                raise self._refuse("a group of a kind that is not known")
            self._at = found.end()
            if found[4]:
                self._fold = (self._fold or "i" in found[2]) and "i" not in (found[3] or "")
            if found[4] == ")":
                self._depth -= 1
                return None
        node = self._alternatives()
        if self._peek() != ")":
            raise self._refuse("a ( without its )")
        self._at += 1
        self._fold = fold
        self._depth -= 1
        return node

    def _class(self) -> frozenset[str]:
        negated = self._peek() == "^"
        self._at += negated
        chars: frozenset[str] = frozenset()
        first = True
        while first or self._peek() != "]":
            first = False
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(self._text, self._at)
            if posix is not None and posix[2] in _POSIX:
                self._at = posix.end()
                named = frozenset(char for char in ALPHABET if _POSIX[posix[2]](char))
                chars |= ALPHABET - named if posix[1] else named
                continue
            chars |= self._range()
        self._at += 1
        chars = self._folded(chars)
        return ALPHABET - chars if negated else chars & ALPHABET

    def _range(self) -> frozenset[str]:
        low = self._take()
        if low == "\\":
            escaped = self._escaped(self._take(), whole=True)
            if len(escaped) != 1:
                return escaped
            low = next(iter(escaped))
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("]", ""):
            return frozenset(low)
        self._at += 1
        high = self._take()
        if high == "\\":
            escaped = self._escaped(self._take(), whole=True)
            if len(escaped) != 1:
                raise self._refuse("a range that ends in a class")
            high = next(iter(escaped))
        if high < low:
            raise self._refuse("a range that runs backwards")
        return frozenset(char for char in ALPHABET if low <= char <= high)

    def _escaped(self, char: str, *, whole: bool = False) -> frozenset[str]:
        """Return the characters of an escape. ``whole`` also allows characters that no topic name has, for ends of
        ranges."""
        if char in _ESCAPED_SETS:
            return _ESCAPED_SETS[char]
        if char in "pP":
            return self._category(negated=char == "P")
        if char == "x":
            found = re.compile(r"\{([0-9a-fA-F]{1,6})\}|([0-9a-fA-F]{2})").match(self._text, self._at)
            code = -1 if found is None else int(found[1] or found[2], 16)
            if found is None or code > 0x10FFFF:
                raise self._refuse("an \\x without its number")
            self._at = found.end()
            char = chr(code)
        elif char in _CONTROLS:
            char = _CONTROLS[char]
        elif char.isalnum():
            raise self._refuse(f"\\{char} is not known in RE2")
        return frozenset(char) if whole else self._folded(frozenset(char)) & ALPHABET

    def _category(self, *, negated: bool) -> frozenset[str]:
        found = re.compile(r"\{(\^?)(\w+)\}|()([A-Z])").match(self._text, self._at)
        name = "" if found is None else found[2] or found[4]
        if found is None or not re.fullmatch("[CLMNPSZ][a-z]?|Latin|Common", name):
            raise self._refuse("an unknown class of characters")
        self._at = found.end()
        if name in ("Latin", "Common"):
            chars = frozenset(char for char in ALPHABET if char.isalpha() == (name == "Latin"))
        else:
            chars = frozenset(char for char in ALPHABET if unicodedata.category(char).startswith(name))
        return ALPHABET - chars if negated != bool(found[1]) else chars


class TopicPattern:
    """A pattern that is matched against whole names."""

    __slots__ = ("_cache", "_start", "_steps", "text")

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raises InvalidRegularExpression."""
        self.text = text
        self._steps: list[_Step] = [_Step(None, ())]  # the last state: matched
        self._cache: dict[tuple[frozenset[int], str, str, str], frozenset[int]] = {}
        self._start = self._compile(_Parser(text).parse(), 0)

    def matches(self, name: str) -> bool:
        """True if the whole name matches. It must contain only characters that topic names may have."""
        states = frozenset((self._start,))
        before = ""
        for char in name:
            key = states, before if before == "" or before not in _WORD else "a", char, ""
            found = self._cache.get(key)
            if found is None:
                found = self._cache_step(key, self._read(states, before, char))
            states, before = found, char
            if not states:
                return False
        return 0 in self._without_reading(states, before, "")

    def _cache_step(self, key: tuple[frozenset[int], str, str, str], found: frozenset[int]) -> frozenset[int]:
        if len(self._cache) >= _MAX_CACHED:
            self._cache.clear()
        self._cache[key] = found
        return found

    def _read(self, states: frozenset[int], before: str, char: str) -> frozenset[int]:
        steps = self._steps
        return frozenset(
            to
            for state in self._without_reading(states, before, char)
            if (chars := steps[state].chars) is not None and char in chars
            for to in steps[state].to
        )

    def _without_reading(self, states: frozenset[int], before: str, after: str) -> set[int]:
        """Return all states that are reached between two characters; an empty character is an end of the name."""
        edge = (before in _WORD) != (after in _WORD)
        holds = {"": True, "^": before == "", "$": after == "", "b": edge, "B": not edge}
        found: set[int] = set()
        line = list(states)
        while line:
            state = line.pop()
            if state not in found:
                found.add(state)
                step = self._steps[state]
                if step.chars is None and holds[step.holds]:
                    line += step.to
        return found

    def _add(self, step: _Step) -> int:
        if len(self._steps) >= MAX_STEPS:
            raise InvalidRegularExpression(
                f"topic pattern {self.text[:200]!r} takes more than {MAX_STEPS:,} steps: write a shorter one"
            )
        self._steps.append(step)
        return len(self._steps) - 1

    def _compile(self, node: _Node, to: int) -> int:
        """Add the states of the piece; return the state from which it leads to ``to``."""
        match node.kind:
            case "chars":
                return self._add(_Step(node.chars, (to,)))
            case "seq":
                for part in reversed(node.parts):
                    to = self._compile(part, to)
                return to
            case "or":
                return self._add(_Step(None, tuple(self._compile(part, to) for part in node.parts)))
            case "repeat":
                return self._compile_repeat(node, to)
            case _:
                return self._add(_Step(None, (to,), node.kind))

    def _compile_repeat(self, node: _Node, to: int) -> int:
        (part,) = node.parts
        if node.most is None:
            loop = self._add(_Step(None, (to,)))
            again = self._compile(part, loop)
            self._steps[loop] = _Step(None, (again, to))
            to = loop
        else:
            end = to
            for _ in range(node.most - node.least):
                to = self._add(_Step(None, (self._compile(part, to), end)))
        for _ in range(node.least):
            to = self._compile(part, to)
        return to
