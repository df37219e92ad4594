"""A retry partition is committed up to its end, also past markers and aborted records."""

from __future__ import annotations

import contextlib

import pytest

from dlq import Retry
from eventbus import TopicPartition
from eventbus.testing import TestBus

RETRIES = TopicPartition("retry.g", 0)


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_retry_partition_has_no_lag_once_nothing_waits_in_it(exactly_once: bool) -> None:
    bus, calls = TestBus(), list[str]()
    bus.topic("t", partitions=1)

    @bus.consumer("t", group="g", retry=Retry(immediate=0, delays=["5s"]), exactly_once=exactly_once)
    async def handle(value: str) -> None:
        calls.append(value)
        if len(calls) == 1:
            raise ValueError("not yet")

    async with bus:
        await bus.send("t", "x")
        await bus.drain()
        for _ in range(2):  # while the record waits, and afterwards
            with contextlib.suppress(LookupError):
                async with bus.transaction("id") as transaction:
                    await transaction.send("retry.g", "no")
                    raise LookupError
            await bus.clock.advance(seconds=6)
            await bus.drain()
        assert calls == ["x", "x"]
        end = (await bus.admin.list_offsets({RETRIES: -1}))[RETRIES].offset
        assert bus.log.committed("g")[RETRIES] == end
