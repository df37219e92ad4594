"""Bugs that a hostile user found in handlers, consumers and the end of a bus, each by what holds now."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import anyio
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.client import transaction
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.partition_work import PartitionWork
from eventbus.client.handling.work_actions import Call, Policy
from eventbus.errors import ConfigError, EventBusError, HandlerError, UnknownMemberId
from eventbus.recovery import Move, Outgoing
from eventbus.types import Record
from tests.client import fakes

T0 = TopicPartition("t", 0)


async def numbers(bus: EventBus, topic: str) -> list[int]:
    async with bus.new_consumer(topic, value=int) as reader:
        found: list[int] = []
        while records := await reader.poll(timeout_ms=0, max_records=10_000):
            found += [record.value for record in records]
        return found


async def committed(bus: EventBus, group: str = "g") -> dict[TopicPartition, int]:
    return {partition: at.offset for partition, at in (await bus.admin.group_offsets(group)).items()}


# outputs on their way when a handler raises ---------------------------------------------------------------------------


class _Stored:
    def done(self) -> bool:
        return True

    def exception(self) -> EventBusError | None:
        return None

    async def wait(self) -> None: ...


async def test_what_came_before_the_record_that_stopped_a_lane_is_settled() -> None:
    """It was not, and who waited for that never slept: the whole event loop stood still."""
    driver = PartitionDriver(T0, lambda error: False)
    driver.work.fetched(fakes.records(T0, range(4)))
    call = driver.work.next_call()
    assert call is not None
    driver.published(call, 3, _Stored())
    driver.stop(HandlerError("offset 3 made it raise"))
    driver.work.ended(call)
    assert not driver.is_idle
    driver.settle()
    assert driver.work.finished == 3
    assert driver.is_idle


async def test_workers_look_again_when_stored_outputs_make_room() -> None:
    """The last call had ended, so no worker looked for the records that waited: the handler stood still."""
    pulled: list[Call | None] = []

    class Waking(PartitionDriver):
        def wake_workers(self) -> None:
            pulled.append(self.work.next_call())

    driver = Waking(T0, lambda error: False, Policy(order="none", call_records=1, max_unfinished=1))
    driver.work.fetched(fakes.records(T0, range(2)))
    call = driver.work.next_call()
    assert call is not None
    driver.published(call, 1, _Stored())
    driver.work.ended(call)
    assert driver.work.next_call() is None
    driver.settle()
    assert [call.offset(0) for call in pulled if call] == [1]


def test_a_call_ends_at_a_record_that_moves_before_the_rest_is_committed() -> None:
    """The loop over the call went on. With ``tx=`` the later records committed past the one that moved: it was lost."""
    work = PartitionWork(Policy(store_forwards_first=True))
    work.fetched(fakes.records(T0, range(3)))
    call = work.next_call()
    assert call is not None and call.end == 3
    move = Move(Outgoing("retry.g", 0, Record(key=None, value=None)), "retry")
    assert not work.raised(call, 0, move)
    assert call.end == 0
    assert work.next_call() is None


@pytest.mark.parametrize("on_error", ["stop", "skip", "crash"])
async def test_a_handler_that_publishes_and_raises(make_bus: Any, on_error: str) -> None:
    bus: EventBus = make_bus()
    bus.topic("t")

    @bus.consumer("t", group="g", on_error=on_error)
    @bus.producer("o")
    async def handle(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    try:
        async with bus:
            await bus.send_many("t", range(6))
            await bus.drain()
            assert on_error == "skip"
    except HandlerError as error:
        assert on_error != "skip"
        assert "offset 3" in str(error)
    if bus.url.startswith("file"):
        async with EventBus(bus.url) as reader:
            assert await committed(reader) == {T0: 6 if on_error == "skip" else 3}
            assert await numbers(reader, "o") == ([0, 1, 2, 4, 5] if on_error == "skip" else [0, 1, 2])


async def test_drain_tells_of_a_handler_that_has_stopped_with_outputs_on_their_way() -> None:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t", group="g")
    @bus.producer("o")
    async def handle(number: int) -> int:
        if number == 3:
            raise ValueError("three")
        return number

    async with bus:
        await bus.send_many("t", range(6))
        with pytest.raises(HandlerError, match="offset 3"):
            await bus.drain()
        assert await numbers(bus, "o") == [0, 1, 2]


# cancellation ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_cancelled_task_that_a_handler_waits_for_is_its_failure(batch: bool, exactly_once: bool) -> None:
    """It ended the lane without a word, and drain() said that all was done."""
    bus = EventBus("memory://")
    bus.topic("t")

    async def stray() -> None:
        task = asyncio.ensure_future(asyncio.sleep(3_600))
        await asyncio.sleep(0)
        task.cancel()
        await task

    if batch:

        @bus.consumer("t", group="g", batch=True, exactly_once=exactly_once)
        async def handle_batch(numbers: list[int]) -> None:
            await stray()
    else:

        @bus.consumer("t", group="g", exactly_once=exactly_once)
        async def handle(number: int) -> None:
            await stray()

    async with bus:
        await bus.send_many("t", range(3))
        with anyio.fail_after(20), pytest.raises(HandlerError, match="was cancelled"):
            await bus.drain()


@pytest.mark.parametrize("exactly_once", [False, True])
async def test_a_cancelled_bus_publishes_what_a_thread_is_still_at(exactly_once: bool) -> None:
    """Its producers were closed first, so that the output failed, was skipped, and the record was committed: lost."""
    url = f"memory://cancelled-{exactly_once}"
    bus = EventBus(url)
    bus.topic("t")
    at_work, go_on = threading.Event(), threading.Event()

    @bus.consumer("t", group="g", on_error="skip", exactly_once=exactly_once)
    @bus.producer("o")
    def handle(number: int) -> int:
        at_work.set()
        assert go_on.wait(20)
        return number

    async with EventBus(url) as keeper:
        with anyio.CancelScope() as scope:
            async with bus:
                await bus.send_many("t", [7])
                while not at_work.is_set():
                    await anyio.lowlevel.checkpoint()
                asyncio.get_running_loop().call_soon(go_on.set)
                scope.cancel()
        again = EventBus(url)

        @again.consumer("t", group="g")
        @again.producer("o")
        async def handle_again(number: int) -> int:
            return number

        async with again:
            with anyio.fail_after(20):
                await again.drain()
        assert await numbers(keeper, "o") == [7]


# the end of a bus -----------------------------------------------------------------------------------------------------


async def test_drain_does_not_say_done_of_a_bus_that_is_closed() -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    with pytest.raises(ConfigError, match="not running"):
        await bus.drain()
    go_on = anyio.Event()

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None:
        await go_on.wait()

    async with bus:
        await bus.send_many("t", [b"1", b"2"])
        draining = asyncio.ensure_future(bus.drain())
        await anyio.sleep(0.01)
        asyncio.get_running_loop().call_soon(go_on.set)
    with anyio.fail_after(20), pytest.raises(ConfigError, match="not running"):
        await draining


async def test_a_handler_cannot_close_its_bus() -> None:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None:
        await bus.close()

    async with bus:
        await bus.send("t", b"1")
        with pytest.raises(HandlerError, match=r"bus\.stop\(\)"):
            await bus.drain()


# consumers ------------------------------------------------------------------------------------------------------------


async def test_a_listener_that_raises_loses_no_records() -> None:
    async with EventBus("memory://") as bus:
        for topic in ("t", "u"):
            await bus.admin.create_topic(topic)

        def lost(partitions: list[TopicPartition]) -> None:
            raise RuntimeError("the listener's own")

        async with bus.new_consumer("t", "u", group="g", on_lost=lost) as consumer:
            await bus.send("t", b"1")
            await bus.admin.delete_topics("u")
            with pytest.raises(RuntimeError, match="the listener's own"):
                await consumer.poll()
            assert [record.value for record in await consumer.poll()] == [b"1"]


async def test_a_commit_after_the_place_was_lost_is_refused() -> None:
    """There was nothing left to commit, and so nothing to refuse: it returned as if all were well."""
    now_ms = [1_800_000_000_000]
    async with EventBus("memory://", clock=lambda: now_ms[0]) as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"1")
        async with bus.new_consumer("t", group="g", max_poll_interval_ms=1_000) as consumer:
            assert len(await consumer.poll()) == 1
            now_ms[0] += 5_000
            bus.context.backend.engine.tick()
            with pytest.raises(UnknownMemberId):
                await consumer.commit()
            assert len(await consumer.poll()) == 1
            await consumer.commit()
        assert await committed(bus) == {T0: 1}


async def test_one_consumer_one_opening_one_thread() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        async with bus.new_consumer("t", group="g") as consumer:
            with pytest.raises(ConfigError, match="open already"):
                await consumer.__aenter__()
            with pytest.raises(ConfigError, match=r"bus\.blocking\(\)"):
                await anyio.to_thread.run_sync(lambda: asyncio.run(_poll(consumer)))
            assert await consumer.poll(timeout_ms=0) == []


async def test_a_poll_of_nothing_is_an_error() -> None:
    async with EventBus("memory://") as bus, bus.new_consumer(group="g") as consumer:
        for wait in (consumer.poll, consumer.assigned):
            with anyio.fail_after(20), pytest.raises(ConfigError, match="nothing to read"):
                await wait()


async def _poll(consumer: Any) -> None:
    await consumer.poll(timeout_ms=0)


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
async def test_a_poll_that_passes_what_is_not_for_readers_returns(isolation: str) -> None:
    """KAFKA-12980: who waits for a position need not wait for the next record."""
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        async with bus.new_consumer("t", group="g", isolation_level=isolation) as consumer:
            with pytest.raises(ValueError, match="no"):
                async with bus.transaction("x") as tx:
                    await tx.send("t", b"aborted")
                    raise ValueError("no")
            found: list[bytes] = []
            with anyio.fail_after(20):
                while await consumer.position(T0) < 2:
                    found += [record.value for record in await consumer.poll(timeout_ms=3_600_000)]
            assert found == ([] if isolation == "read_committed" else [b"aborted"])


async def test_records_behind_an_aborted_stretch_come_with_the_same_poll() -> None:
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")
        for _ in range(4):
            with pytest.raises(ValueError, match="no"):
                async with bus.transaction("x") as tx:
                    await tx.send("t", bytes(900))
                    raise ValueError("no")
        await bus.send("t", b"behind")
        async with bus.new_consumer("t", group="g", max_partition_fetch_bytes=1_000) as consumer:
            assert [record.value for record in await consumer.poll(timeout_ms=0)] == [b"behind"]


# transactions ---------------------------------------------------------------------------------------------------------


async def test_transactions_that_wait_for_each_other_say_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transaction, "_PATIENCE_SECONDS", 0.01)
    caplog.set_level(logging.WARNING)
    order: list[str] = []
    async with EventBus("memory://") as bus:
        await bus.admin.create_topic("t")

        async def second() -> None:
            async with bus.transaction("x"):
                order.append("second")

        async with anyio.create_task_group() as tasks, bus.transaction("x"):
            tasks.start_soon(second)
            with anyio.fail_after(20):
                while "'x' has waited" not in caplog.text:
                    await anyio.lowlevel.checkpoint()
            order.append("first")
    assert order == ["first", "second"]


async def test_an_output_that_cannot_be_written_is_no_record_that_cannot_be_read(make_bus: Any) -> None:
    """The error of a value without a byte form spoke of reading."""
    bus = make_bus()
    bus.topic("t")

    @bus.consumer("t", group="g")
    @bus.producer("out")
    async def handle(value: bytes) -> object:
        return object()

    async with bus:
        await bus.send("t", b"x")
        with pytest.raises(HandlerError, match=r"t-0 offset 0, key None: the value of a .* 'out' cannot be written"):
            await bus.drain()
