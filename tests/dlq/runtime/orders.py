"""The order of retries: later records wait for a failed record, or do not."""

from __future__ import annotations

from tests.dlq.runtime.ladder import letters, policy
from tests.dlq.runtime.logs import Log
from tests.dlq.runtime.promises import promise
from tests.dlq.runtime.shapes import (
    BATCH,
    BATCH_ONCE,
    BY_HAND_BY_KEY,
    BY_KEY,
    FEW,
    IN_ORDER,
    KEEP_ORDER,
    ONCE,
    PLAIN,
    PLAIN_BY_KEY,
    SHAPES,
    UNORDERED,
    Calls,
    Shape,
    failing,
    handle,
)


@promise(KEEP_ORDER, on_kafka=(*FEW, PLAIN_BY_KEY, BATCH_ONCE))
async def records_of_a_key_stay_in_order_and_others_go_on(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, failing(b1=2, b2=1, c2=1))
    handle(bus, log, shape, calls, retry=policy(log, 10, 1, immediate=0))
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1") == 1)
        await log.send(bus, "a1 b2 c1 c2 a2 b3 c3")
        await log.until(lambda: {"a1", "c1", "a2"} <= set(calls.done))
        waited = calls.count("b1") > 1
        assert not waited or not log.stands_still  # on a loaded machine the real delay may pass first
        await log.until(lambda: len(calls.done) == 8)
        await log.send(bus, "b4")
        await log.drain(bus)
        assert [value for value in calls.done if value[0] == "b"] == ["b1", "b2", "b3", "b4"]
        assert [value for value in calls.done if value[0] == "c"] == ["c1", "c2", "c3"]
        assert sorted(calls.done) == ["a1", "a2", "b1", "b2", "b3", "b4", "c1", "c2", "c3"]
        assert (calls.count("b1"), calls.count("b2"), calls.count("b3"), calls.count("b4")) == (3, 2, 1, 1)
        assert await letters(log, bus) == []


@promise(KEEP_ORDER, on_kafka=FEW)
async def a_key_goes_on_behind_its_dead_letter(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, failing(b1=9, b2=9))
    handle(bus, log, shape, calls, retry=policy(log, 1, immediate=0))
    async with bus:
        await log.send(bus, "b1 b2 b3")
        await log.until(lambda: calls.done)
        await log.drain(bus)
        assert calls.done == ["b3"]
        assert [letter.value for letter in await letters(log, bus)] == [b"b1", b"b2"]


@promise((IN_ORDER, PLAIN, BATCH, BY_KEY, BY_HAND_BY_KEY, ONCE), on_kafka=(IN_ORDER, ONCE))
async def a_partition_waits_as_a_whole(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(partitions=2), Calls(log, failing(b1=2, c1=1))
    handle(bus, log, shape, calls, retry=policy(log, 2, 2, immediate=0, order="partition"))
    async with bus:
        await log.send(bus, "b1", partition=0)
        await log.until(lambda: calls.count("b1") == 1)
        await log.send(bus, "a1 c1 c2 a2", partition=0)
        await log.send(bus, "d1", partition=1)
        await log.until(lambda: len(calls.done) == 6)
        assert calls.done[0] == "d1" or not log.stands_still  # on a loaded machine real delays may pass first
        there = [value for value in calls.values if value != "d1"]
        assert there == ["b1", "b1", "b1", "a1", "c1", "c1", "c2", "a2"]


@promise(SHAPES, on_kafka=(IN_ORDER, UNORDERED, ONCE))
async def nothing_waits_where_no_order_is_kept(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, failing(b1=1))
    handle(bus, log, shape, calls, retry=policy(log, 2, immediate=0, order="none"))
    async with bus:
        await log.send(bus, "b1")
        await log.until(lambda: calls.count("b1") == 1)
        await log.send(bus, "b2 b3")
        await log.until(lambda: {"b2", "b3"} <= set(calls.done))
        assert calls.count("b1") == 1 or not log.stands_still  # on a loaded machine real delays may pass first
        await log.until(lambda: "b1" in calls.done)
        assert calls.done.index("b1") >= 2 or not log.stands_still


@promise(SHAPES, on_kafka=FEW)
async def records_without_a_key_wait_for_nobody(log: Log, shape: Shape) -> None:
    bus, calls = log.bus(), Calls(log, failing(b1=1))
    handle(bus, log, shape, calls, retry=policy(log, 2, immediate=0))
    async with bus:
        await log.send(bus, "b1", key=None)
        await log.until(lambda: calls.count("b1") == 1)
        await log.send(bus, "b2 b3", key=None)
        await log.until(lambda: {"b1", "b2", "b3"} <= set(calls.done))
        assert calls.done.index("b1") >= 2 or not log.stands_still  # a transaction that was aborted is handled again


@promise((BATCH, BATCH_ONCE, IN_ORDER, PLAIN, ONCE), on_kafka=(BATCH_ONCE,))
async def order_holds_in_the_middle_of_a_fetch(log: Log, shape: Shape) -> None:
    """All records are in one fetch, so the runner has them before the failed record is read back."""
    bus, calls = log.bus(), Calls(log, failing(b1=1, b3=1, c1=1))
    handle(bus, log, shape, calls, retry=policy(log, 1, immediate=0))
    async with bus:
        async with bus.transaction(log.name("writer")) as transaction:
            for value in ["a1", "b1", "b2", "c1", "a2", "b3", "c2", "b4", "a3", "c3"]:
                transaction.send_nowait(log.topic, value.encode(), key=value[0].encode())
        await log.until(lambda: len(set(calls.done)) == 10)
        await log.drain(bus)
        for key in "abc":
            of_key = [value for value in calls.done if value[0] == key]
            assert list(dict.fromkeys(of_key)) == sorted(set(of_key)), calls.values
