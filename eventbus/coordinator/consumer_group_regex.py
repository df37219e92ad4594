r"""Topic patterns that consumers send to the coordinator (KIP-848), in RE2's syntax. Pure.

RE2 matches in linear time and is used where google-re2 is installed (``pip install eventbus-log[re2]``). Python's `re`
backtracks: one pattern from a client could block the server indefinitely. Without RE2 a pattern is therefore refused if
`re` could try to match a topic name in more than `MAX_WAYS` ways, or if RE2 and `re` interpret it differently.
"""

from __future__ import annotations

import importlib
import re
from typing import Any, Final

from eventbus.errors import InvalidRegularExpression

MAX_LENGTH: Final = 10_000
MAX_DEPTH: Final = 100
"""The deepest nesting of groups; `re` parses them recursively."""
MAX_NAME: Final = 249
"""Topic names are at most this long, so no repetition matches more characters."""
MAX_WAYS: Final = 250_000
"""Enough for two unbounded repetitions (``.*-.*``): at most 30 ms for a topic name made to be slow."""

_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|[^a-zA-Z0-9]|[dDwWsSafnrtv])"
_REPETITION = r"(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})"
_TOKEN: Final = re.compile(
    # `[` in a class would begin RE2's [:alpha:]; doubled signs are reserved for Python's future set operations.
    rf"""\\Q(?!\\E)(?P<literal>.+?)(?:\\E|\Z)
    | (?P<end>\\z) | {_ESCAPE} | \\[AbB]
    | \[\^?\]?(?:{_ESCAPE}|(?!--|&&|\|\||~~)[^\]\\\[])*\]
    | (?P<open>\((?:\?P<\w+>|\?[ims]*(?:-[ims]+)?:|(?!\?))) | \(\?[ims]+\)
    | (?P<close>\)) | (?P<or>\|)
    | (?:(?P<sign>[*+?])|\{{(?P<least>\d{{1,4}})(?P<comma>,(?P<most>\d{{0,4}}))?\}})\??(?!{_REPETITION})
    | (?!\{{[\d,]*\}})[^\\\[(*+?]""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class TopicPattern:
    """A pattern that is matched against whole names."""

    __slots__ = ("_regex",)

    def __init__(self, text: str) -> None:
        """Compile the pattern. Raises InvalidRegularExpression."""
        re2 = _re2()
        try:
            if re2 is None:
                self._regex = re.compile(_bounded(text), re.ASCII)
                return
            options = re2.Options()
            options.log_errors = False
            self._regex = re2.compile(text, options)
        except ValueError as error:  # a lone surrogate, which UTF-8 cannot represent
            raise _refused(text, f"It is not valid text: {error}.") from None
        except Exception as error:
            if not isinstance(error, re.error if re2 is None else re2.error):
                raise
            (reason, *_) = error.args
            reason = reason.decode(errors="replace") if isinstance(reason, bytes) else str(error)
            raise _refused(text, f"Its syntax is wrong: {reason}.") from None

    def matches(self, name: str) -> bool:
        """True if the whole name matches."""
        return self._regex.fullmatch(name) is not None


def _re2() -> Any:
    """Return the module of google-re2, or None. Another package of this name (pyre2) may use `re` instead of RE2."""
    try:
        module = importlib.import_module("re2")
    except ImportError:
        return None
    return module if hasattr(module, "Options") else None


def _bounded(text: str) -> str:
    """Return the pattern in Python's syntax. Raises InvalidRegularExpression if matching it with `re` has no bound.

    The number of ways to match is the product over a sequence and the sum over alternatives. A repetition of a
    character has a way for each count; a repetition of a group has the ways of the group to the power of each count.
    """
    if len(text) > MAX_LENGTH:
        raise _refused(text, f"It has {len(text):,} characters; without RE2 at most {MAX_LENGTH:,} are accepted.")
    translated: list[str] = []
    sequences = [_Ways()]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _refused(text, f"{text[at : at + 4]!r} at {at} is not supported without RE2, or by RE2 itself.")
        at = token.end()
        sequence = sequences[-1]
        if token["open"]:
            sequences.append(_Ways())
            if len(sequences) > MAX_DEPTH:
                raise _refused(text, f"It nests more than {MAX_DEPTH} groups.")
        elif token["close"] and len(sequences) > 1:  # `re` refuses a ) without its (
            sequences[-2].append(sequences.pop().total(), is_group=True)
        elif token["or"]:
            sequence.end_alternative()
        elif token["sign"] or token["least"]:
            least = int(token["least"] or token["sign"] == "+")
            most = 1 if token["sign"] == "?" else least if token["least"] and not token["comma"] else None
            sequence.repeat(least, int(token["most"]) if token["most"] else most)
        else:
            sequence.append(1, is_group=False)
        translated.append(re.escape(token["literal"]) if token["literal"] else r"\Z" if token["end"] else token[0])
    if sequences[0].total() > MAX_WAYS:
        raise _refused(text, "It repeats too much to be matched without RE2: a name could be matched in too many ways.")
    return "".join(translated)


class _Ways:
    """The number of ways in which the pattern or a group can match, while its tokens are read."""

    __slots__ = ("_alternatives", "_is_group", "_last", "_sequence")

    def __init__(self) -> None:
        self._alternatives = 0
        self._sequence = self._last = 1
        self._is_group = False

    def append(self, ways: int, *, is_group: bool) -> None:
        # More than the limit is too much, however much: numbers stay small.
        self._sequence = min(self._sequence * self._last, MAX_WAYS + 1)
        self._last, self._is_group = min(ways, MAX_WAYS + 1), is_group

    def repeat(self, least: int, most: int | None) -> None:
        most = max(least, MAX_NAME) if most is None else most
        if not self._is_group:
            self._last = max(1, most - least + 1)
        elif self._last == 1:  # `re` runs through an empty group as often as the pattern says
            self._last = max(1, most)
        else:  # 2 to the power of 20 is already too much
            self._last = sum(self._last**count for count in range(min(least, 20), min(most, 20) + 1))

    def end_alternative(self) -> None:
        self.append(1, is_group=False)
        self._alternatives += self._sequence
        self._sequence = 1

    def total(self) -> int:
        self.end_alternative()
        return self._alternatives


def _refused(text: str, why: str) -> InvalidRegularExpression:
    return InvalidRegularExpression(
        f"The topic pattern {text[:200]!r} is not accepted. {why} Correct or simplify it"
        + ("." if _re2() is not None else ", or install eventbus-log[re2] on the server.")
    )
