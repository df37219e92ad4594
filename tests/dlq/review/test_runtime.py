"""Interleavings in which a record could wait for ever, be called out of its order, or twice."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import anyio
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus, OffsetAndMetadata, TopicPartition, consumer
from eventbus.backends.clock import system_clock
from eventbus.backends.embedded_consumer import EmbeddedConsumer
from eventbus.client.handling.failure_policy import RunningPolicy
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.errors import CoordinatorNotAvailable
from eventbus.testing import TestBus
from eventbus.types import FetchedRecords, TimestampType
from tests.support import until
from tests.tiers import quick

SOURCE = TopicPartition("orders", 0)


def fetched(*values: bytes) -> FetchedRecords:
    count = len(values)
    kind = TimestampType.CREATE_TIME
    return FetchedRecords("orders", 0, list(range(count)), [0] * count, [b"k"] * count, values, None, kind, count)


LATE: list[dict[str, Any]] = [{}, {"order": "key", "concurrency": 2}, {"exactly_once": True}, {"batch": 1}]
LATE_CALLS = list(itertools.product(LATE, [True, False], ["none", "key"]))


@pytest.mark.system
@pytest.mark.parametrize(("options", "raises", "order"), quick(LATE_CALLS, LATE_CALLS[::3]), ids=str)
async def test_what_is_behind_a_call_in_a_thread_that_took_too_long_is_handled(
    options: dict[str, Any], raises: bool, order: Any
) -> None:
    """The call counts as one try, whatever it comes to afterwards; real time, for threads know no other."""
    bus, calls = EventBus("memory://"), list[str]()
    bus.topic("orders", partitions=1)
    policy = Retry(immediate=0, delays=["100ms"], jitter=False, order=order)
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
        await until(lambda: calls.count("b1") == 2 and "d1" in calls, poll_seconds=0.005)
        with anyio.fail_after(5):
            await bus.drain()
        async with bus.new_consumer("dlq.billing") as letters:
            assert [letter.value async for letter in letters.until_end()] == [b"b1"]
        assert sorted(calls) == ["a1", "b1", "b1", "c1", "d1"]


async def test_a_retry_partition_that_goes_leaves_the_sources_of_others_their_keys() -> None:
    sources = [TopicPartition("orders", number) for number in (0, 1)]
    drivers = {source: PartitionDriver(source, lambda error: False) for source in sources}
    for driver in drivers.values():
        driver.blocked.held = {b"k"}
    recovery = SimpleNamespace(retry_topic="retry.billing")
    recovering = RunningPolicy(
        cast("Any", None), cast("Any", recovery), cast("Any", None), Mock(partitions={"retry.billing": 2}),
        cast("Any", None), cast("Any", None), cast("Any", None), system_clock, drivers,
    )  # fmt: skip
    recovering.gone(TopicPartition("retry.billing", 1))
    assert [drivers[source].blocked.held for source in sources] == [{b"k"}, None]


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
        await until(lambda: [b"3"] in calls, poll_seconds=0.005)
        await bus.drain()
        assert calls == [[b"1", b"2", b"3"], [b"2"], [b"3"]]


@pytest.mark.parametrize(("method", "crashes"), [("committed", None), ("end_offsets", None), ("committed", 3)])
@pytest.mark.parametrize("call", [1, 2, 3])
async def test_brokers_that_are_away_when_a_partition_is_taken_up_are_asked_again(
    method: str, crashes: int | None, call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does the bus end, nor does anything wait for ever."""
    asked, calls = 0, list[bytes]()
    ask = getattr(EmbeddedConsumer, method)

    async def answer(self: EmbeddedConsumer, *args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == call:
            raise CoordinatorNotAvailable("away")
        return await ask(self, *args)

    monkeypatch.setattr(EmbeddedConsumer, method, answer)
    bus = TestBus(auto_create_topics=True)

    @bus.consumer("orders", group="billing", retry=Retry(immediate=0, delays=["1s"], jitter=False, crashes=crashes))
    async def bill(value: bytes) -> None:
        calls.append(value)
        if calls == [b"1"]:
            raise ValueError

    async def tick() -> None:
        while True:
            await bus.clock.advance(ms=100)

    async with anyio.create_task_group() as ticking:
        ticking.start_soon(tick)  # the bus has not started before its partitions are taken up
        async with bus:
            await bus.send("orders", b"1", key=b"a")
            await bus.send("orders", b"2", key=b"a")
            await until(lambda: len(calls) == 3, poll_seconds=0.005)
            assert calls == [b"1", b"1", b"2"]
        ticking.cancel_scope.cancel()


async def test_what_a_killed_record_turns_into_commits_nothing_of_another_partitions_open_transaction() -> None:
    other, lethal = TopicPartition("orders", 0), TopicPartition("orders", 1)
    is_begun, goes_on = anyio.Event(), anyio.Event()
    bus = EventBus("memory://killed")

    @bus.consumer("orders", group="billing", exactly_once=True, retry=Retry(immediate=0, delays=["1s"], crashes=2))
    @bus.producer("bills")
    async def bill(value: bytes) -> bytes:
        if value == b"2":
            is_begun.set()
            await goes_on.wait()
        return value

    async with EventBus("memory://killed") as log:
        await log.admin.create_topic("orders", partitions=2)
        log.send_nowait("orders", b"1", partition=0)
        log.send_nowait("orders", b"2", partition=0)
        await log.flush()
        mark = OffsetAndMetadata(0, "eb-try 2 orders 1 0")
        await log.admin.alter_group_offsets("billing", {lethal: mark})
        async with bus, log.new_consumer("dlq.billing") as letters:
            with anyio.fail_after(10):
                await is_begun.wait()
                await log.send("orders", b"killer", partition=1)
                [letter] = await letters.poll(5_000)
                assert letter.value == b"killer"
                assert (await log.admin.group_offsets("billing"))[other].offset == 0
                goes_on.set()
                await bus.drain()
            assert (await log.admin.group_offsets("billing"))[other].offset == 2
