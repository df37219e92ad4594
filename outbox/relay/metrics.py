"""Counters of a relay, and the latency of its events."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

import msgspec

from eventbus.backends.histogram import Histogram
from eventbus.client.metrics import Sample, histogram_samples

_EVENTS = {
    "published": "Events published.",
    "quarantined": "Events that the log has refused.",
    "put_back": "Quarantined events that were put back because their topic exists again.",
    "moved_behind": "Events quarantined because an earlier event with their key was.",
    "expired": "Events that were too old to be published.",
    "promoted": "Scheduled events whose time had come.",
    "settled": "Events that were found to be published by a relay before.",
}
_TIMES = {
    "batches": "Transactions that published events.",
    "fenced": "Times that another relay took over.",
    "lost_leases": "Leases that expired before they were renewed.",
    "reaped": "Dead relays whose shards were set free.",
    "failures": "Attempts that failed because of the database or the log.",
}
LAG_BOUNDS_MS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 60_000, 600_000)
"""Inclusive upper bounds of the histogram's buckets."""


class RelayMetrics(msgspec.Struct, kw_only=True):
    """Counters of one relay since it was created."""

    outbox: str
    slot: int | None = None
    """The slot it holds, or None."""
    shards: int = 0
    """Number of shards it publishes."""
    published: int = 0
    """Events whose transaction was committed."""
    batches: int = 0
    fenced: int = 0
    """How often another relay took over the transactional id."""
    lost_leases: int = 0
    reaped: int = 0
    """Relays whose lease had expired, and whose shards were freed."""
    quarantined: int = 0
    """Events that the log refused."""
    put_back: int = 0
    """Quarantined events that were put back because their topic exists again."""
    moved_behind: int = 0
    """Events quarantined because an earlier event with their key was."""
    expired: int = 0
    promoted: int = 0
    """Scheduled events that became due."""
    settled: int = 0
    """Events that a receipt listed as published, and that were then deleted."""
    failures: int = 0
    """Attempts that failed because of the database or the log."""
    lag_buckets: list[int] = msgspec.field(default_factory=lambda: [0] * (len(LAG_BOUNDS_MS) + 1))
    """Events by latency, from their timestamp to the commit, in the buckets of `LAG_BOUNDS_MS`. The last bucket has no
    bound.
    """
    lag_sum_ms: int = 0
    rate: float = 0.0
    """Recent events per second."""

    def add_lags(self, timestamps_ms: Iterable[int], now_ms: int) -> None:
        """Add the latencies of a batch that was committed now."""
        ordered = sorted(timestamps_ms)
        behind = len(ordered)
        for index, bound_ms in enumerate(LAG_BOUNDS_MS):
            at = bisect_left(ordered, now_ms - bound_ms, 0, behind)
            self.lag_buckets[index] += behind - at
            behind = at
        self.lag_buckets[-1] += behind
        ahead = bisect_right(ordered, now_ms)  # events from a clock that is ahead count as 0
        self.lag_sum_ms += ahead * now_ms - sum(ordered[:ahead])

    def lag_ms(self, share: float) -> float:
        """Return the smallest bucket bound that covers this share of the events; infinite if none does."""
        wanted, count = share * sum(self.lag_buckets), 0
        for bound_ms, bucket in zip(LAG_BOUNDS_MS, self.lag_buckets, strict=False):
            count += bucket
            if count >= wanted:
                return bound_ms
        return float("inf")

    def samples(self) -> Iterator[Sample]:
        """Yield the counters as metrics of the bus."""
        labels = {"outbox": self.outbox}
        for name, help in _EVENTS.items():
            yield Sample(f"eventbus_outbox_{name}_events_total", labels, getattr(self, name), "counter", help)
        for name, help in _TIMES.items():
            yield Sample(f"eventbus_outbox_{name}_total", labels, getattr(self, name), "counter", help)
        slot = -1 if self.slot is None else self.slot
        yield Sample("eventbus_outbox_slot", labels, slot, "gauge", "The relay's slot; -1: it waits for one.")
        yield Sample(
            "eventbus_outbox_shards", labels, self.shards, "gauge", "Number of shards that the relay publishes."
        )
        said = "Events published a second, of late."
        yield Sample("eventbus_outbox_rate_events_per_second", labels, self.rate, "gauge", said)
        bounds = tuple(bound_ms / 1000 for bound_ms in LAG_BOUNDS_MS)
        lags = Histogram(bounds, list(self.lag_buckets), self.lag_sum_ms / 1000)
        said = "From an event's timestamp to the commit that published it."
        yield from histogram_samples("eventbus_outbox_lag_seconds", labels, lags, said)
