"""Suggest the nearest valid name in error messages."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'orders'?"``, or an empty string if no name is close."""
    from difflib import get_close_matches  # only after a mistake

    matches = get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""


def nearest_setting(wrong: str, known: Iterable[str]) -> str:
    """Return a suggestion for a setting, with dots or underscores as in ``wrong``."""
    mark = "." if "." in wrong else "_"
    return nearest(wrong, {name.replace("_", mark).replace(".", mark) for name in known})
