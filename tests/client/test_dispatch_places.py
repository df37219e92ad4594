"""Positions of records: fetches from any record on, bundles of workers, counts, and calls that take too long."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, consumer, producer
from eventbus.client.handling import invocation
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.handling.work_actions import Call
from eventbus.errors import HandlerError
from tests.client.dispatching import Outputs, chunk_of, dispatch_of, dispatched, driver_of, run
from tests.support import others_wait


class Order(msgspec.Struct):
    amount: int


def call_of(*values: bytes | None) -> tuple[PartitionDriver, Call]:
    driver = driver_of()
    driver.work.fetched(chunk_of(*values))
    call = driver.work.next_call()
    assert call is not None
    return driver, call


# how far it went ------------------------------------------------------------------------------------------------------

SHAPES = ["payload", "record", "sync", "batch", "manual", "manual sync", "manual batch"]


def shaped(shape: str, seen: list[Any], act: Callable[[bytes], Any] = lambda value: None, **options: Any) -> Any:
    """A handler of the wanted shape: it calls ``act`` and, if it is a manual one, acknowledges."""

    def note(value: bytes | None) -> None:
        assert value is not None
        seen.append(value)
        act(value)

    async def payload(value: bytes) -> None:
        note(value)

    async def record(value: bytes, record: ConsumerRecord) -> None:
        assert record.value == value
        note(value)

    def sync(value: bytes) -> None:
        note(value)

    async def batch(values: list[bytes]) -> None:
        for value in values:
            note(value)

    async def manual(record: ConsumerRecord) -> None:
        note(record.value)
        record.ack()

    def manual_sync(record: ConsumerRecord) -> None:
        note(record.value)
        record.ack()

    async def manual_batch(records: list[ConsumerRecord]) -> None:
        for one in records:
            note(one.value)
            one.ack()

    functions: list[Any] = [payload, record, sync, batch, manual, manual_sync, manual_batch]
    function = functions[SHAPES.index(shape)]
    if "manual" in shape:
        options["ack"] = "manual"
    return consumer("t", batch=2 if "batch" in shape else False, **options)(function)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_call_that_has_to_end_goes_on_in_the_next_one(shape: str) -> None:
    seen: list[Any] = []
    finished: list[int] = []

    def cut(value: bytes) -> None:
        if value in (b"2", b"3"):
            driver.work.end_slice()

    handler = shaped(shape, seen, cut)
    driver, dispatch = driver_of(handler), dispatch_of(handler, None, {})
    driver.work.fetched(chunk_of(b"1", b"2", b"3", b"4", b"5"))
    while (call := driver.work.next_call()) is not None:
        await dispatch.run(driver, call)
        driver.work.ended(call)
        finished.append(driver.work.finished)
    assert seen == [b"1", b"2", b"3", b"4", b"5"]
    assert finished == ([2, 4, 5] if "batch" in shape else [2, 3, 5])
    assert dispatch.counts.handled == 5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("policy", ["skip", "stop"])
async def test_counts(shape: str, policy: str) -> None:
    def fail(value: bytes) -> None:
        if value == b"3":
            raise ValueError("no")

    handler = shaped(shape, [], fail, on_error=policy)
    driver, dispatch = driver_of(handler), dispatch_of(handler, None, {})
    await run(dispatch, driver, chunk_of(b"1", b"2", b"3", b"4", b"5"))
    failed = 2 if "batch" in shape else 1
    if policy == "skip":
        assert dispatch.counts == invocation.HandlerCounts(handled=5 - failed, failed=failed, skipped=failed)
        assert driver.work.finished == 5
    else:
        assert dispatch.counts == invocation.HandlerCounts(handled=2, failed=failed)
        assert driver.work.finished == 2
        assert "offset 2" in str(driver.error)


async def test_no_call_with_a_payload_that_is_null_or_unreadable() -> None:
    for shape in ("payload", "record", "sync", "batch"):
        seen: list[Any] = []
        handler = shaped(shape, seen, on_error="skip")
        driver, chunk = driver_of(), chunk_of(b"1", None, b"3")
        dispatch = dispatch_of(handler, None, {})
        await run(dispatch, driver, chunk)
        assert (seen, driver.work.finished) == ([b"1", b"3"], 3), shape
        assert dispatch.counts == invocation.HandlerCounts(handled=2, failed=1, skipped=1), shape


@pytest.mark.parametrize("shape", ["payload", "with a default", "sync", "batch"])
async def test_whose_error_it_was(shape: str) -> None:
    """A value that cannot be decoded is distinguished from a handler that raises."""

    def fail(order: Any) -> None:
        raise ValueError("by hand")

    async def alone(order: Order) -> None:
        fail(order)

    async def with_default(order: Order, limit: int = 5) -> None:
        fail(order)

    def sync(order: Order) -> None:
        fail(order)

    async def batch(orders: list[Order]) -> None:
        fail(orders)

    functions: dict[str, Any] = {"payload": alone, "with a default": with_default, "sync": sync, "batch": batch}
    handler = consumer("t", batch=shape == "batch")(functions[shape])
    assert "offset 0, key None: the value is no Order" in str((await dispatched(handler, b"no")).error)
    assert "key None: made it raise ValueError: by hand" in str((await dispatched(handler, b'{"amount":1}')).error)


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_lane_in_error_begins_nothing(shape: str) -> None:
    seen: list[Any] = []
    handler = shaped(shape, seen)
    driver = driver_of(handler)
    driver.work.fetched(chunk_of(b"1"))
    call = driver.work.next_call()
    assert call is not None
    driver.stop(HandlerError("an output before it was not stored"))
    await dispatch_of(handler, None, {}).run(driver, call)
    driver.work.ended(call)
    assert (seen, driver.work.finished) == ([], 0)


# too long -------------------------------------------------------------------------------------------------------------


async def test_a_call_that_was_given_up_is_a_failure_for_on_error() -> None:
    for policy in ("stop", "skip"):
        driver, call = call_of(b"1", b"2", b"3")
        call.at = 1
        dispatch = dispatch_of(shaped("payload", [], on_error=policy, timeout=2.5), None, {})
        assert dispatch.timed_out(driver, call, 2.5) is (policy == "skip")
        assert dispatch.counts == invocation.HandlerCounts(failed=1, timed_out=1, skipped=int(policy == "skip"))
        if policy == "stop":
            assert isinstance(driver.error.__cause__ if driver.error else None, TimeoutError)
            assert "t-0 offset 1, key None: its call was given up: it took longer than timeout=2.5 s" in str(
                driver.error
            )


async def test_what_ended_in_a_slice_before_the_call_that_was_given_up_is_finished() -> None:
    seen, (driver, call) = list[bytes](), call_of(b"1", b"2", b"3")

    def give_up(value: bytes) -> None:
        seen.append(value)
        if value == b"2":  # as the watch does, in the midst of it
            dispatch.timed_out(driver, call, 5)

    dispatch = dispatch_of(shaped("sync", [], give_up, timeout=5), None, {})
    await dispatch.run(driver, call)
    driver.work.ended(call)
    assert (seen, driver.work.finished) == ([b"1", b"2"], 1)
    assert dispatch.counts == invocation.HandlerCounts(handled=1, failed=1, timed_out=1)


@pytest.mark.parametrize("takes_seconds", [3, 7])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("with_middleware", [False, True])
async def test_a_call_in_a_thread_that_was_given_up_is_told_once(
    with_middleware: bool, batch: bool, takes_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    driver, call = call_of(b"1")

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now

    async def passing(record: Any, call_next: Any) -> Any:
        return await call_next(record)

    def handle(payload: Any) -> None:
        nonlocal now
        now += takes_seconds
        dispatch.timed_out(driver, call, 5)  # as the watch does, in the midst of it

    handle.__annotations__["payload"] = list[bytes] if batch else bytes
    handler = consumer("t", batch=batch, timeout=5, middleware=[passing] if with_middleware else [])(handle)
    monkeypatch.setattr(invocation, "time", Time)
    dispatch = dispatch_of(handler, None, {})
    await dispatch.run(driver, call)
    driver.work.ended(call)
    assert (dispatch.counts.failed, dispatch.counts.timed_out) == (1, 1)
    assert driver.work.finished == 0
    assert "its call was given up" in str(driver.error)


async def test_a_batch_that_was_given_up_counts_as_a_whole() -> None:
    driver, call = call_of(b"1", b"2", b"3")
    dispatch = dispatch_of(shaped("batch", [], on_error="stop", timeout=1), None, {})
    assert not dispatch.timed_out(driver, call, 1)
    assert "offset 0 (a batch of 2 records)" in str(driver.error)
    assert dispatch.counts.timed_out == 2


@pytest.mark.parametrize("batch", [False, True])
async def test_a_plain_function_that_took_too_long_fails_when_it_returns(
    batch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    class Time:
        @staticmethod
        def monotonic() -> float:
            return now

    def handle(value: Any) -> bytes:
        nonlocal now
        now += 3 if b"2" in value else 1
        return value

    handle.__annotations__["value"] = list[bytes] if batch else bytes
    monkeypatch.setattr(invocation, "time", Time)
    outputs = Outputs()
    handler = consumer("t", timeout=2, on_error="skip", batch=1 if batch else False)(producer("out")(handle))
    dispatch, driver = dispatch_of(handler, outputs.publish, {}), driver_of()
    await run(dispatch, driver, chunk_of(b"1", b"2", b"3"))
    assert outputs.values == ([[b"1"], [b"3"]] if batch else [b"1", b"3"])
    assert dispatch.counts == invocation.HandlerCounts(handled=2, failed=1, skipped=1, timed_out=1)


@pytest.mark.parametrize("shape", ["payload", "record", "batch", "manual"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_cancelled_call_is_neither_success_nor_failure(backend: str, shape: str) -> None:
    async def forever(payload: bytes) -> None:
        await anyio.sleep_forever()

    async def forever_record(record: ConsumerRecord) -> None:
        await anyio.sleep_forever()

    async def forever_batch(payload: list[bytes]) -> None:
        await anyio.sleep_forever()

    functions = {"payload": forever, "batch": forever_batch}
    ack = "manual" if shape == "manual" else "auto"
    handler = consumer("t", batch=shape == "batch", ack=ack, on_error="skip")(functions.get(shape, forever_record))

    async def main() -> None:
        driver, chunk, dispatch = driver_of(handler), chunk_of(b"1"), dispatch_of(handler, None, {})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, dispatch, driver, chunk)
            await others_wait()
            tasks.cancel_scope.cancel()
        assert (dispatch.counts, driver.error, driver.work.finished) == (invocation.HandlerCounts(), None, 0)

    anyio.run(main, backend=backend)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_that_makes_its_own_error_of_our_cancellation_has_not_failed(backend: str) -> None:
    outputs = Outputs()

    @consumer("t", on_error="skip", timeout=5)
    @producer("out")
    async def handle(payload: bytes) -> AsyncIterator[bytes]:
        yield payload
        try:
            await anyio.sleep_forever()
        except BaseException:
            raise ValueError("was disturbed") from None

    async def main() -> None:
        driver, chunk = driver_of(), chunk_of(b"1", b"2")
        dispatch = dispatch_of(handle, outputs.publish, {})
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, dispatch, driver, chunk)
                await others_wait()
                scope.cancel()
        assert scope.cancelled_caught
        assert (dispatch.counts, driver.error, driver.work.finished) == (invocation.HandlerCounts(), None, 0)
        [call] = driver.work._calls
        dispatch.continue_after(driver, call)
        assert len(driver.outputs) == 1

    anyio.run(main, backend=backend)


def test_plain_functions_run_side_by_side_as_far_as_concurrency_allows() -> None:
    inside, most = 0, 0
    meet = threading.Barrier(3)
    lock = threading.Lock()

    @consumer("t", concurrency=3)
    def handle(payload: bytes) -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        meet.wait(10)
        with lock:
            inside -= 1

    async def main() -> None:
        dispatch = dispatch_of(handle, None, {})
        async with anyio.create_task_group() as tasks:
            for partition in range(6):
                tasks.start_soon(run, dispatch, driver_of(partition=partition), chunk_of(b"x"))

    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
    assert (inside, most) == (0, 3)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_record_that_waits_for_its_thread_is_not_at_work(backend: str) -> None:
    release = threading.Event()
    begun: list[bytes] = []

    @consumer("t", order="none", concurrency=1)
    def handle(payload: bytes) -> None:
        begun.append(payload)
        release.wait(10)

    async def main() -> None:
        dispatch, (first, one), (second, other) = dispatch_of(handle, None, {}), call_of(b"1"), call_of(b"2")

        async def work(driver: PartitionDriver, call: Call) -> None:
            await dispatch.run(driver, call)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work, first, one)
            while not begun:
                await anyio.lowlevel.checkpoint()
            tasks.start_soon(work, second, other)
            await others_wait()
            assert not one.is_resting and other.is_resting
            release.set()

    anyio.run(main, backend=backend)
    assert sorted(begun) == [b"1", b"2"]
