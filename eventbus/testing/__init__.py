"""Tools for tests: the production engine in memory, a clock that only the test advances, and injected faults.

::

    async def test_billing(eventbus_bus):  # a fixture of this package's pytest plugin
        bus = eventbus_bus
        bus.include(bill)
        async with bus:
            await bus.send("orders", Order("o-1", 10.0))
            await bus.log.drain()
            bus.log.assert_published("invoices", Invoice("o-1", 12.0))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from serdes.lazy import lazy_names

if TYPE_CHECKING:
    from eventbus.testing.clock import FakeClock as FakeClock
    from eventbus.testing.crash_report import CrashReport as CrashReport
    from eventbus.testing.crash_trials import crash_points as crash_points
    from eventbus.testing.faults import Faults as Faults
    from eventbus.testing.faulty import FaultyBackend as FaultyBackend
    from eventbus.testing.log import TestLog as TestLog
    from eventbus.testing.real_kafka import KafkaNode as KafkaNode
    from eventbus.testing.real_kafka import RealKafka as RealKafka
    from eventbus.testing.server import KafkaServer as KafkaServer
    from eventbus.testing.testbus import TestBus as TestBus
    from eventbus.testing.testbus import in_memory as in_memory

# Imported on first use (PEP 562): pytest's plugin is in this package, and most test runs use nothing else.
_HOMES = {
    "clock": ("FakeClock",),
    "crash_report": ("CrashReport",),
    "crash_trials": ("crash_points",),
    "faults": ("Faults",),
    "faulty": ("FaultyBackend",),
    "log": ("TestLog",),
    "real_kafka": ("KafkaNode", "RealKafka"),
    "server": ("KafkaServer",),
    "testbus": ("TestBus", "in_memory"),
}
__getattr__, __dir__ = lazy_names(globals(), _HOMES)
