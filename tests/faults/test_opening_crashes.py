"""The machine stops while a log is opened that has a transaction to finish: at any call, and then it opens whole."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from eventbus.testing.bus import bus_on
from eventbus.testing.storage import CrashStorage, SimulatedCrash

pytestmark = pytest.mark.system


async def left_open() -> CrashStorage:
    storage = CrashStorage()
    with contextlib.suppress(SimulatedCrash):
        async with bus_on(storage) as bus:
            await bus.admin.create_topic("t", partitions=2)
            async with bus.transaction("writer") as tx:
                await tx.send("t", "a", partition=0)
                await tx.send("t", "b", partition=1)
                storage.crash_at_call = storage.calls_count + 1
                await tx.send("t", "c", partition=0)
    return storage.crash(Random(1))


async def test_a_crash_at_any_call_of_the_opening() -> None:
    for at in range(1, 400):
        storage = await left_open()
        storage.crash_at_call = storage.calls_count + at
        try:
            async with bus_on(storage):
                if not storage.stopped:
                    storage.crash_at_call = storage.calls_count + 100_000
        except SimulatedCrash:  # and nothing else: not the complaint of a close that finds a flush under way
            again = storage.crash(Random(at))
            async with bus_on(again) as bus:
                assert [one.state for one in await bus.admin.list_transactions()] == ["CompleteAbort"]
                async with bus.new_consumer("t") as consumer:
                    assert await consumer.poll(timeout_ms=0) == []
        else:
            return  # every call has had its turn
    pytest.fail("the opening has more calls than were tried")
