"""The promises of all modules, and those of them that the quick tier tries on a log."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.dlq.runtime.promises import PROMISES, Promise

for _module in ("deleted", "ladder", "orders", "redrives", "restarts"):
    import_module(f"tests.dlq.runtime.{_module}")

__all__ = ["PROMISES", "Promise", "some"]


def some(promises: list[Promise], step: int) -> list[Any]:
    """All of them, of which the quick tier tries one in ``step``: in memory it tries all."""
    return [
        pytest.param(one, id=repr(one), marks=() if place % step == 0 else pytest.mark.slow)
        for place, one in enumerate(promises)
    ]
