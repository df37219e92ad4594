"""Pytest's fixtures ``clock``, ``bus`` and ``kafka_server``, found by itself where the distribution is installed.

Nothing of the client is loaded before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from eventbus.testing.fixtures import setting_up

if TYPE_CHECKING:
    from eventbus.testing.clock import FakeClock
    from eventbus.testing.server import KafkaServer
    from eventbus.testing.testbus import TestBus


@pytest.fixture
def clock() -> FakeClock:
    """A clock that stands still until the test moves it: ``await clock.advance(seconds=5)``."""
    from eventbus.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def bus(clock: Any) -> TestBus:
    """A bus in memory under ``clock``, not started: declare handlers, then ``async with bus:``."""
    from eventbus.testing.clock import FakeClock
    from eventbus.testing.testbus import TestBus

    # A project may have a fixture called clock of its own, which goes before this plugin's.
    return TestBus(clock=clock if isinstance(clock, FakeClock) else None)


@pytest.fixture
def kafka_server() -> Generator[KafkaServer]:
    """A Kafka of this test's own, in memory, in a thread: give clients ``kafka_server.bootstrap``."""
    from eventbus.testing.server import KafkaServer

    with KafkaServer() as server:
        yield server


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, Any, Any]:
    """A bus that starts in here is closed by another task than this one, as pytest-asyncio does it."""
    with setting_up():
        return (yield)
