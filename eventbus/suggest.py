"""The nearest right name, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(wrong: str, known: Iterable[str]) -> str:
    """``"; did you mean 'orders'?"``, or nothing when no name comes close."""
    matches = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]!r}?" if matches else ""
