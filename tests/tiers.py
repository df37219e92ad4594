"""Which of many like trials the quick tier runs. The long tier runs them all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def quick(values: Iterable[Any], chosen: int | Collection[Any]) -> list[Any]:
    """All values, to be parametrized with: the first so many are quick, or the ``chosen`` ones; the others are slow.

    A tuple is the values of several names.
    """
    every = list(values)
    kept = every[:chosen] if isinstance(chosen, int) else list(chosen)
    assert all(one in every for one in kept), f"the quick tier would miss some of {kept}"
    rows = [(one, one if type(one) is tuple else (one,)) for one in every]  # a named tuple is one value
    return [pytest.param(*row, marks=() if one in kept else pytest.mark.slow) for one, row in rows]
