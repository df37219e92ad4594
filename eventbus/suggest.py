"""The nearest right name, for error messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """``"; did you mean 'orders'?"``, or nothing when no name comes close."""
    from difflib import get_close_matches  # only for who has made a mistake

    matches = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_setting(wrong: str, known: Iterable[str]) -> str:
    """The same for settings, which may be written with dots or with underscores: spelt as ``wrong`` is."""
    mark = "." if "." in wrong else "_"
    return nearest(wrong, {name.replace("_", mark).replace(".", mark) for name in known})
