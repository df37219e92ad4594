"""Expect errors by class."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from eventbus.errors import EventBusError

E = TypeVar("E", bound=EventBusError)


async def refused(kind: type[E] | tuple[type[E], ...], call: Awaitable[Any]) -> E:
    """Return the error that ``call`` raises, which must be of ``kind`` and have a message."""
    try:
        result = await call
    except EventBusError as error:
        assert isinstance(error, kind), f"expected {kind}, got {type(error).__name__}: {error}"
        assert str(error), f"{type(error).__name__} without a word"
        return error
    raise AssertionError(f"expected {kind}, and nothing was raised: {result!r}")
