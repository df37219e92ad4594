"""The figures we claim, each with its peer, its floor and its target."""

from __future__ import annotations

from harness import Figure

FIGURES = [
    Figure("G6", "import eventbus", "import eventbus:ms", "import faststream.kafka:ms", 0.6, 0.4, True, "ms"),
    Figure("E1", "test", "plain file:produce", "sqlite 1000 rows:produce", 0.6, 0.4, False),
    Figure("E2", "test", "plain file:produce", "sqlite 1000 rows FULL:produce", 0.6, 0.4, False),
    Figure("E3", "test", "plain file:produce", "sqlite row by row:produce", 0.6, 0.4, False),
    Figure("E4", "test", "plain file:produce", "redis awaited XADD:produce", 0.6, 0.4, False),
    Figure("E5", "test", "raw fdatasync:p50 us", "redis stream latency:p50 us", 0.6, 0.4, True, "us"),
    Figure("E6", "test", "plain file 1 KB:produce", "faststream TestKafkaBroker:publish to handler", 0.6, 0.4, False),
    Figure("E7", "test", "cold read:B/s", None, 0.6, 0.4, False, "B/s"),
]
