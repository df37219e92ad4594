"""Measure handlers: a warning for slow calls, and a histogram in the bus's metrics."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from eventbus.client.handling.middleware import CallNext
from eventbus.client.metrics import Sample
from eventbus.durations import Milliseconds, setting_ms
from eventbus.errors import ConfigError
from eventbus.middleware.base import Timed, place_of, positive, records_of

logger = logging.getLogger("eventbus.timing")

_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)


class Timing(Timed):
    """Warns of each call that took ``slow_ms`` or longer, failed ones too, and counts all by topic.

    ``buckets``: upper bounds in seconds, ascending. The counts are `EventBus.metrics`' ``eventbus_timing_seconds_*``.
    """

    def __init__(self, *, slow_ms: Milliseconds = 1_000, buckets: Sequence[float] = _BUCKETS) -> None:
        """Check the arguments. Raises ConfigError."""
        super().__init__()
        self._slow_seconds = positive("Timing(slow_ms", setting_ms(slow_ms)) / 1000
        if not buckets or list(buckets) != sorted(set(buckets)) or buckets[0] <= 0:
            raise ConfigError(f"Timing(buckets={buckets!r}): seconds above 0, ascending: buckets=(0.01, 0.1, 1)")
        self._buckets = tuple(buckets)
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}

    async def __call__(self, record: Any, call_next: CallNext) -> Any:
        began = self._timers.current_time()
        try:
            return await call_next(record)
        finally:
            self._took(record, self._timers.current_time() - began)

    def _took(self, record: Any, seconds: float) -> None:
        records = records_of(record)
        topic = records[0].topic
        counts = self._counts.setdefault(topic, [0] * (len(self._buckets) + 1))
        counts[bisect.bisect_left(self._buckets, seconds)] += 1
        self._sums[topic] = self._sums.get(topic, 0.0) + seconds
        if seconds >= self._slow_seconds:
            logger.warning("%s took %.0f ms", place_of(records), seconds * 1000)

    def samples(self) -> Iterator[Sample]:
        """Yield a histogram for each topic, as in Prometheus: each bucket includes the counts of lower ones."""
        for topic, counts in self._counts.items():
            total = 0
            for bound, count in zip((*map(str, self._buckets), "+Inf"), counts, strict=True):
                total += count
                yield Sample("eventbus_timing_seconds_bucket", {"topic": topic, "le": bound}, total, "counter")
            yield Sample("eventbus_timing_seconds_sum", {"topic": topic}, self._sums[topic], "counter")
            yield Sample("eventbus_timing_seconds_count", {"topic": topic}, total, "counter")
