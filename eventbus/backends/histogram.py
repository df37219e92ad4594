"""Histograms of sizes and durations, for metrics."""

from __future__ import annotations

from bisect import bisect_left

import msgspec

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
RECORDS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)
BYTES = (256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20)


class Histogram(msgspec.Struct):
    """Counts by inclusive upper bounds. Concurrent updates from threads may lose a count, but never fail."""

    bounds: tuple[float, ...]
    counts: list[int] = []
    """A count for each bound, and a last one for larger values."""
    total: float = 0
    """The sum of all values."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def add(self, value: float, times: int = 1) -> None:
        """Add ``value``, ``times`` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> Histogram:
        """Return a copy of the present state."""
        return Histogram(self.bounds, list(self.counts), self.total)
