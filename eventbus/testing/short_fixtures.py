"""The fixtures ``bus`` and ``clock``, for projects that set ``eventbus_short_fixtures = true`` in pytest's ini file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eventbus.testing.clock import FakeClock
    from eventbus.testing.testbus import TestBus


@pytest.fixture
def clock(eventbus_clock: FakeClock) -> FakeClock:
    """Return the object of ``eventbus_clock``."""
    return eventbus_clock


@pytest.fixture
def bus(eventbus_bus: TestBus) -> TestBus:
    """Return the object of ``eventbus_bus``."""
    return eventbus_bus
