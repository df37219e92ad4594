"""Interleavings in which a record could wait for ever, be called out of its order, or twice."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus, TopicPartition, consumer
from eventbus.backends.clock import system_clock
from eventbus.client.handling.dispatch import Dispatch
from eventbus.client.handling.lane import Lane
from eventbus.client.handling.recovering import Recovering
from eventbus.client.handling.workers import Worker
from eventbus.recovery import EveryKey
from eventbus.types import FetchedRecords, TimestampType

SOURCE = TopicPartition("orders", 0)


def fetched(*values: bytes) -> FetchedRecords:
    count = len(values)
    kind = TimestampType.CREATE_TIME
    return FetchedRecords("orders", 0, list(range(count)), [0] * count, [b"k"] * count, values, None, kind, count)


async def test_a_record_is_begun_after_all_when_what_it_waited_for_ends_before_the_loop_hears_of_it() -> None:
    seen: list[bytes] = []

    @consumer("orders", group="billing", order="key", concurrency=2)
    def bill(value: bytes) -> None:
        seen.append(value)

    answers = iter([True, True])  # whether anything waits, and whether it is of this key
    lane = Lane(SOURCE, lambda error: False)
    lane.held = EveryKey(lambda: next(answers, False))
    taken = lane.take(fetched(b"1", b"2"))
    await Dispatch(bill, None, {}).work(Worker(), [(taken, 0), (taken, 1)])
    assert seen == [b"1", b"2"] and lane.finished == 2


LATE: list[dict[str, Any]] = [{}, {"order": "key", "concurrency": 2}, {"exactly_once": True}, {"batch": 1}]


@pytest.mark.parametrize("order", ["none", "key"])
@pytest.mark.parametrize("raises", [True, False])
@pytest.mark.parametrize("options", LATE, ids=str)
async def test_what_is_behind_a_call_in_a_thread_that_took_too_long_is_handled(
    options: dict[str, Any], raises: bool, order: Any
) -> None:
    """The call counts as one try, whatever it comes to afterwards; real time, for threads know no other."""
    bus, calls = EventBus("memory://"), list[str]()
    bus.topic("orders", partitions=1)
    policy = Retry(immediate=0, delays=["20ms"], jitter=False, order=order)
    late = threading.Event()

    def bill(value: str) -> None:
        calls.append(value)
        if value == "b1":
            late.wait(0.1)
            if raises:
                raise ValueError("late")

    def bill_many(values: list[str]) -> None:
        for value in values:
            bill(value)

    function: Any = bill_many if "batch" in options else bill
    bus.include(consumer("orders", group="billing", timeout=0.05, retry=policy, **options)(function))
    async with bus:
        for value in ("a1", "b1", "c1", "d1"):
            await bus.send("orders", value, key=value[0])
        await until(lambda: calls.count("b1") == 2 and "d1" in calls)
        with anyio.fail_after(5):
            await bus.drain()
        async with bus.new_consumer("dlq.billing") as letters:
            assert [letter.value async for letter in letters.until_end()] == [b"b1"]
        assert sorted(calls) == ["a1", "b1", "b1", "c1", "d1"]


async def until(condition: Callable[[], object]) -> None:
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - what is awaited happens in threads, in real time
            await anyio.sleep(0.005)


async def test_a_retry_partition_that_goes_leaves_the_sources_of_others_their_keys() -> None:
    sources = [TopicPartition("orders", number) for number in (0, 1)]
    lanes = {source: Lane(source, lambda error: False) for source in sources}
    for lane in lanes.values():
        lane.held = {b"k"}
    recovery = SimpleNamespace(retry_topic="retry.billing")
    recovering = Recovering(
        cast("Any", None), cast("Any", recovery), cast("Any", None), Mock(), cast("Any", None),
        cast("Any", None), system_clock, lanes, {"retry.billing": 2},
    )  # fmt: skip
    recovering.gone(TopicPartition("retry.billing", 1))
    assert [lanes[source].held for source in sources] == [{b"k"}, None]


async def test_records_of_a_batch_that_were_acknowledged_before_it_failed_are_not_called_again() -> None:
    bus, calls = EventBus("memory://"), list[list[bytes]]()
    bus.topic("orders", partitions=1)

    @bus.consumer("orders", group="billing", batch=3, ack="manual", retry=Retry(immediate=0, delays=None))
    async def bill(records: list[ConsumerRecord]) -> None:
        calls.append([record.value or b"" for record in records])
        for record in records:
            if record.value == b"2":
                raise ValueError
            record.ack()

    async with bus:
        bus.send_nowait("orders", b"1", key=b"a")
        bus.send_nowait("orders", b"2", key=b"b")
        bus.send_nowait("orders", b"3", key=b"c")
        await bus.flush()
        await until(lambda: [b"3"] in calls)
        await bus.drain()
        assert calls == [[b"1", b"2", b"3"], [b"2"], [b"3"]]
