"""The nearest right name, for error messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args, get_type_hints


def nearest(wrong: str, known: Iterable[str]) -> str:
    """``"; did you mean 'orders'?"``, or nothing when no name comes close."""
    from difflib import get_close_matches  # only for who has made a mistake

    matches = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_setting(wrong: str, known: Iterable[str]) -> str:
    """The same for settings, which may be written with dots or with underscores: spelt as ``wrong`` is."""
    mark = "." if "." in wrong else "_"
    return nearest(wrong, {name.replace("_", mark).replace(".", mark) for name in known})


def wrong_value(error: Exception, given: Mapping[str, Any], kind: type | None = None) -> str:
    """What msgspec says of a value that does not fit, with its name and the value before it.

    ``kind``: the Struct it should have become, which knows the words that msgspec does not list.
    """
    text, _, path = str(error).partition(" - at `$.")
    name = path.rstrip("`")
    if kind is not None and text.startswith("Invalid enum value") and name in given:
        *words, last = map(str, get_args(get_type_hints(kind)[name]))
        return f"{name}={given[name]!r}: {', '.join(words)} or {last}{nearest(str(given[name]), (*words, last))}"
    return f"{name}={given[name]!r}: {text[0].lower()}{text[1:]}" if name in given else str(error)
