"""The pytest plugin: the fixtures ``eventbus_bus``, ``eventbus_clock`` and ``kafka_server``.

pytest loads this module in every environment that has the distribution installed, also for projects that never use it.
So it has no hook that runs during a test, and imports nothing of the client before a test requests a fixture.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from eventbus.testing.clock import FakeClock
    from eventbus.testing.server import KafkaServer
    from eventbus.testing.testbus import TestBus

_SHORT_FIXTURES = "eventbus_short_fixtures"


@pytest.fixture
def eventbus_clock() -> FakeClock:
    """Return a clock that only the test moves: ``await eventbus_clock.advance(seconds=5)``."""
    from eventbus.testing.clock import FakeClock

    return FakeClock()


@pytest.fixture
def eventbus_bus(eventbus_clock: FakeClock) -> TestBus:
    """A bus in memory with ``eventbus_clock``, not started: declare handlers, then ``async with eventbus_bus:``."""
    from eventbus.testing.testbus import TestBus

    return TestBus(clock=eventbus_clock)


@pytest.fixture
def kafka_server() -> Generator[KafkaServer]:
    """A Kafka server for this test, in memory, in a thread: pass ``kafka_server.bootstrap`` to clients."""
    from eventbus.testing.server import KafkaServer

    with KafkaServer() as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini(_SHORT_FIXTURES, "also name eventbus's fixtures bus and clock (default: false)", type="bool")


def pytest_configure(config: pytest.Config) -> None:
    if config.getini(_SHORT_FIXTURES):
        config.pluginmanager.import_plugin("eventbus.testing.short_fixtures")
