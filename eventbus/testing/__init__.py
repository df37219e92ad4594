"""What tests stand on: the real engine in memory under a clock they move, and storages that go wrong."""

from eventbus.testing.clock import FakeClock

__all__ = ["FakeClock"]
