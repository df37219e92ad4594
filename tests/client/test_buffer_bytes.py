"""Records between the log and a slow handler take about as much memory in every order and mode, whatever their size."""

from __future__ import annotations

import tracemalloc
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord
from eventbus.testing import TestBus

RECORD_BYTES = 50_000
COUNT = 60

MODES: dict[str, tuple[dict[str, Any], int]] = {
    "in order": ({}, 4),
    "batch": ({"batch": 10}, 4),
    "at most once": ({"delivery": "at-most-once"}, 4),
    "exactly once": ({"exactly_once": True}, 4),
    "key": ({"order": "key", "concurrency": 4}, 8),
    "none": ({"order": "none", "concurrency": 4}, 8),
    "ten at once": ({"order": "none", "concurrency": 10}, 14),
    "manual ack": ({"ack": "manual"}, 20),
    "manual ack, none": ({"ack": "manual", "order": "none", "concurrency": 4}, 20),
}
"""The number of one-record fetches that each mode may hold: those ahead, and three or four on their way."""


def held_records() -> float:
    """Return how many records' worth of memory what was decoded takes."""
    decoded = tracemalloc.Filter(True, "*/eventbus/records/*")
    snapshot = tracemalloc.take_snapshot().filter_traces([decoded])
    return sum(statistic.size for statistic in snapshot.statistics("filename")) / RECORD_BYTES


@pytest.mark.parametrize("mode", MODES)
async def test_a_slow_handler_holds_a_few_fetches_whatever_its_order(mode: str) -> None:
    options, most = MODES[mode]
    bus, begun = TestBus(), 0
    bus.topic("t", partitions=1)

    async def wait() -> None:
        nonlocal begun
        begun += 1
        await anyio.sleep_forever()

    if "batch" in options:

        @bus.consumer("t", group="g", max_partition_fetch_bytes=RECORD_BYTES, **options)
        async def handle_batch(values: list[bytes]) -> None:
            await wait()
    elif "ack" in options:  # its calls return, and it acknowledges nothing

        @bus.consumer("t", group="g", max_partition_fetch_bytes=RECORD_BYTES, **options)
        async def keep(record: ConsumerRecord) -> None: ...
    else:

        @bus.consumer("t", group="g", max_partition_fetch_bytes=RECORD_BYTES, **options)
        async def handle(value: bytes) -> None:
            await wait()

    with anyio.CancelScope() as scope:
        async with bus:
            tracemalloc.start()
            try:
                for number in range(COUNT):
                    await bus.send("t", bytes(RECORD_BYTES), key=b"%d" % number)
                await bus.clock.settle()
                assert held_records() < most
            finally:
                tracemalloc.stop()
            assert "ack" in options or begun == options.get("concurrency", 1), "no worker is idle because of it"
            scope.cancel()
            await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("limit", [{"max_partition_fetch_bytes": 100}, {"max_unfinished": 30}], ids=str)
async def test_a_handler_that_acknowledges_nothing_learns_which_limit_stops_it(
    limit: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    bus, kept = TestBus(), list[ConsumerRecord]()
    bus.topic("t", partitions=1)

    @bus.consumer("t", group="g", ack="manual", **limit)
    async def keep(record: ConsumerRecord) -> None:
        kept.append(record)

    async with bus:
        for number in range(100):
            await bus.send("t", bytes(50), key=b"%d" % number)
        await bus.clock.advance(seconds=60)
        assert len(kept) < 100
        assert caplog.text.count("no further record of t-0 is begun") == 1
        while len(kept) < 100:
            for record in kept:
                record.ack()
            await bus.clock.settle()
        for record in kept:
            record.ack()
        await bus.drain()
