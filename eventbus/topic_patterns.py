"""``pattern=``: a Python regular expression that is matched against whole topic names, on every log."""

from __future__ import annotations

import re

from eventbus.errors import ConfigError

_GLOBAL_FLAGS = re.compile(r"\(\?([aiLmsux]+)\)")


def matches(pattern: str, topic: str) -> bool:
    """Return whether ``pattern=`` reads a topic. Internal topics (``__consumer_offsets``) are read by name only."""
    return not topic.startswith("__") and re.fullmatch(pattern, topic) is not None


def check_pattern(pattern: str, what: str = "") -> None:
    """Raise ConfigError if ``pattern`` cannot be compiled. ``what`` replaces its name in the message."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{what or f'pattern {pattern!r}'} is no regular expression: {error}") from None


def prefixed(prefix: str, pattern: str) -> str:
    """Return the pattern of the same topics with ``prefix``, taken literally, before their names."""
    flags = _GLOBAL_FLAGS.match(pattern)
    if flags is None:
        return f"{re.escape(prefix)}(?:{pattern})"
    # Python accepts flags of the whole expression only at its very beginning.
    return f"{re.escape(prefix)}(?{flags[1]}:{pattern[flags.end() :]})"
