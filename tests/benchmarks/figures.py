"""The figures we claim, each with its peer, its floor and its target.

Rates are wall time where the work waits for the disk or for another process, and records a CPU second where it does
not (the names that end in ``cpu``).
"""

from __future__ import annotations

from harness import Figure

FIGURES = [
    Figure("encode", "records into 64 KiB batches, 100 B", "encode:records cpu", None, None, 2e6, unit="/s"),
    Figure("decode", "batches into records, 100 B", "decode:records cpu", None, None, 0.8e6, unit="/s"),
    Figure("import", "from eventbus import EventBus", "import eventbus:cpu ms", None, None, 150, True, "ms"),
    Figure("open", "open 1 GiB after a clean stop", "open after a clean stop:s", None, None, 1, True, "s"),
    Figure("recover", "recovery, per batch", "recovery of tiny batches:cpu us per batch", None, None, 1, True, "us"),
    Figure("json", "typed JSON consumer, end to end", "typed JSON consumer:records cpu", None, None, 350e3),
    Figure("group", "64 waiting senders / one", "64 waiting senders:acks", "1 waiting sender:acks", None, 5),
    Figure(
        "spark",
        "columnar decode / record by record",
        "spark columnar:records cpu",
        "spark by record:records cpu",
        None,
        3,
    ),
    Figure("E1", "send_many, 100 B keyed", "send and consume:produce", "sqlite 1000 rows:produce", 1.5, 3),
    Figure("E1b", "send_nowait, a handle each", "send one by one:produce", "sqlite 1000 rows:produce", 1.5, 3),
    Figure("E2", "consume + async handler", "send and consume:consume", "sqlite 1000 rows:consume", 0.4, 0.8),
    Figure("E3", "CPU of send + consume", "send and consume:cpu us both", "plain file:cpu us both", 4, 2.5, True, "us"),
    Figure("E4a", "one awaited publish", "awaited publish:produce", "sqlite row by row:produce", 3, 4.5),
    Figure("E4b", "one awaited publish", "awaited publish:produce", "redis awaited XADD:produce", 15, 30),
    Figure(
        "E5", "send, 1 KB", "send and consume 1 KB:produce B/s", "plain file 1 KB:produce B/s", 0.3, 0.5, unit="B/s"
    ),
    Figure("E6", "durable every 1,000", "send, flushed every 1000:produce", "sqlite 1000 rows FULL:produce", 1, 1.8),
    Figure("E7a", "memory growth, 1 M events", "memory and disk of 1 M events:growth MiB", None, 16, 4, True, "MiB"),
    Figure("E7b", "disk bytes / payload + key", "memory and disk of 1 M events:x payload", None, 1.15, 1.1, True, "x"),
    Figure(
        "E8",
        "memory:// publish to handler",
        "memory publish to handler:publish to handler",
        "faststream TestKafkaBroker:publish to handler",
        10,
        30,
    ),
    Figure(
        "L1a",
        "p50 to the handler",
        "latency to the handler:p50 us",
        "redis stream latency:p50 us",
        0.6,
        0.3,
        True,
        "us",
    ),
    Figure(
        "L1b", "p99 to the handler", "latency to the handler:p99 us", "redis stream latency:p99 us", 1, 0.4, True, "us"
    ),
    Figure("L2a", "durable publish p50", "durable publish:p50 us", "raw fdatasync:p50 us", 4, 2.5, True, "us"),
    Figure("L2b", "slowest ack of a minute", "durable publish:worst ms", None, None, 1_000, True, "ms"),
    Figure("G1a", "open 2 GiB after SIGKILL", "open after SIGKILL:s", None, None, 1, True, "s"),
    Figure("G1b", "full verify / cold read", "full verify, cold:B/s", "cold read:B/s", None, 0.4, unit="B/s"),
    Figure("G2", "open at 10x the log", "open after SIGKILL:s", "open after SIGKILL, a tenth:s", 2, 1.2, True, "s"),
    Figure(
        "G4a",
        "durable commit, 100 partitions / 1",
        "durable commit, 100 partitions:p50 us",
        "durable commit, 1 partition:p50 us",
        10,
        4,
        True,
        "us",
    ),
    Figure(
        "G4b",
        "the same / file by file",
        "durable commit, 100 partitions:p50 us",
        "flush 100 files one by one:p50 us",
        0.3,
        0.05,
        True,
        "us",
    ),
    Figure(
        "G6",
        "import the bus / faststream",
        "import eventbus:cpu ms",
        "import faststream.kafka:cpu ms",
        0.6,
        0.4,
        True,
        "ms",
    ),
    Figure("T1", "small transactions, memory://", "small transactions:transactions", None, None, 2_000),
    Figure(
        "T2",
        "durable transactions, 64 producers / 1",
        "durable transactions, 64 producers:transactions",
        "durable transactions, 1 producer:transactions",
        None,
        10,
    ),
    Figure(
        "T3",
        "read-committed fetch / uncommitted",
        "fetch, read committed:cpu us per record",
        "fetch, read uncommitted:cpu us per record",
        None,
        1.1,
        True,
        "us",
    ),
    Figure(
        "T4",
        "exactly-once handler / at-least-once",
        "exactly-once handler:records",
        "at-least-once handler:records",
        None,
        0.5,
    ),
]
