"""The promises of all modules, and the subset that the quick tier checks on a log."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from tests.dlq.runtime.promises import PROMISES, Promise

for _module in ("deleted", "ladder", "orders", "redrives", "restarts"):
    import_module(f"tests.dlq.runtime.{_module}")

__all__ = ["PROMISES", "Promise", "some"]


def some(promises: list[Promise], step: int) -> list[Any]:
    """Mark all promises as slow except one in ``step``."""
    return [
        pytest.param(one, id=repr(one), marks=() if place % step == 0 else pytest.mark.slow)
        for place, one in enumerate(promises)
    ]
