"""Calls of a handler: in order, one at a time; what a call publishes decides whether its offset is committed."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, consumer, producer
from eventbus.backends.delivery import Delivery
from eventbus.client.handling.handlers import Handler
from eventbus.errors import StorageError
from tests.client.dispatching import Outputs, chunk_of, dispatch_of, dispatched, driver_of, run


class Order(msgspec.Struct):
    amount: int


def plain(function: Callable[..., Any]) -> Any:
    """The usual decorator of one who does not think of ``async``."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def hidden(function: Callable[..., Any]) -> Any:
    """The same, and it does not say what it wraps."""
    wrapper = plain(function)
    wrapper.__signature__ = inspect.signature(function)
    del wrapper.__wrapped__
    return wrapper


# a body always runs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decorate", [plain, hidden])
@pytest.mark.parametrize("batch", [False, True])
async def test_an_async_handler_behind_a_plain_decorator_runs_on_the_loop(decorate: Any, batch: bool) -> None:
    seen: list[Any] = []
    if batch:

        async def handle(payload: list[bytes]) -> None:
            await anyio.lowlevel.checkpoint()
            seen.append((payload, threading.current_thread()))

    else:

        async def handle(payload: bytes) -> None:  # type: ignore[misc]
            await anyio.lowlevel.checkpoint()
            seen.append(([payload], threading.current_thread()))

    driver = await dispatched(consumer("t", batch=batch)(decorate(handle)), b"1", b"2")
    assert [value for payload, _ in seen for value in payload] == [b"1", b"2"]
    assert {thread for _, thread in seen} == {threading.current_thread()}
    assert driver.work.finished == 2


async def test_a_decorator_that_sometimes_does_not_call() -> None:
    seen: list[bytes] = []

    def once(function: Callable[..., Any]) -> Any:
        @functools.wraps(function)
        def wrapper(payload: bytes) -> Any:
            return None if payload in seen else function(payload)

        return wrapper

    @consumer("t")
    @once
    async def handle(payload: bytes) -> None:
        seen.append(payload)

    assert (await dispatched(handle, b"1", b"1", b"2")).work.finished == 3
    assert seen == [b"1", b"2"]


async def test_an_object_with_an_async_call_runs() -> None:
    class Audit:
        def __init__(self) -> None:
            self.seen: list[bytes] = []

        async def __call__(self, payload: bytes) -> None:
            self.seen.append(payload)

    audit = Audit()
    assert (await dispatched(consumer("t")(audit), b"1", b"2")).work.finished == 2
    assert audit.seen == [b"1", b"2"]


async def test_what_a_plain_function_leaves_to_await_is_awaited_before_the_next_record() -> None:
    steps: list[str] = []

    async def later(payload: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        steps.append(f"awaited {payload!r}")

    @consumer("t")
    def handle(payload: bytes) -> Any:
        steps.append(f"called {payload!r}")
        return later(payload)

    assert (await dispatched(handle, b"1", b"2")).work.finished == 2
    assert steps == ["called b'1'", "awaited b'1'", "called b'2'", "awaited b'2'"]


async def test_an_awaited_error_stops_at_its_record() -> None:
    async def later(payload: bytes) -> None:
        raise ValueError("late")

    @consumer("t")
    def handle(payload: bytes) -> Any:
        return later(payload) if payload == b"2" else None

    driver = await dispatched(handle, b"1", b"2", b"3")
    assert driver.work.finished == 1
    assert "offset 1, key None: made it raise ValueError: late" in str(driver.error)


def _yields(payload: bytes) -> Iterator[int]:
    yield 1


async def _yields_later(payload: bytes) -> AsyncIterator[int]:
    yield 1


def _yields_of_many(payload: list[bytes]) -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("function", [_yields, _yields_later, _yields_of_many])
async def test_a_generator_that_nobody_takes_from_stops_the_lane(function: Any) -> None:
    driver = await dispatched(consumer("t", batch=function is _yields_of_many)(hidden(function)), b"1")
    assert driver.work.finished == 0
    assert "yields values, but publishes them nowhere" in str(driver.error)


@pytest.mark.parametrize("batch", [False, True])
async def test_the_body_of_a_plain_generator_runs_in_the_thread(batch: bool) -> None:
    threads: list[threading.Thread] = []
    if batch:

        def handle(payload: list[bytes]) -> Iterator[bytes]:
            threads.append(threading.current_thread())
            yield from payload

    else:

        def handle(payload: bytes) -> Iterator[bytes]:  # type: ignore[misc]
            threads.append(threading.current_thread())
            yield payload

    outputs = Outputs()
    await dispatched(consumer("t", batch=batch)(producer("out")(handle)), b"1", b"2", outputs=outputs)
    assert outputs.values == [b"1", b"2"]
    assert threading.current_thread() not in threads


# outputs and offsets --------------------------------------------------------------------------------------------------


def _publishing(kind: str, on_error: str) -> Handler[..., Any]:
    """A handler that passes on what it gets."""
    function: Any
    if kind == "sync":

        def function(payload: bytes) -> bytes:
            return payload

    elif kind == "async":

        async def function(payload: bytes) -> bytes:
            return payload

    elif kind == "generator":

        async def function(payload: bytes) -> AsyncIterator[bytes]:
            yield payload

    else:

        async def function(payload: list[bytes]) -> bytes:
            return payload[0]

    return consumer("t", batch=1 if kind == "batch" else False, on_error=on_error)(producer("out")(function))


KINDS = ["sync", "async", "generator", "batch"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_output_that_cannot_be_sent_is_the_handlers_error(kind: str) -> None:
    outputs = Outputs()
    driver = await dispatched(_publishing(kind, "stop"), b"1", b"bad", b"3", outputs=outputs)
    assert outputs.values == [b"1"]
    assert "offset 1, key None: made it raise ValueError: cannot be sent" in str(driver.error)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_skipped_record_is_not_finished_before_the_outputs_ahead_of_it(kind: str) -> None:
    outputs = Outputs()
    driver = await dispatched(_publishing(kind, "skip"), b"1", b"bad", b"3", outputs=outputs)
    driver.settle()
    assert (outputs.values, driver.work.finished, driver.error) == ([b"1", b"3"], 0, None)
    outputs.batches[0].resolve(0, -1)
    driver.settle()
    assert driver.work.finished == 2
    outputs.batches[1].resolve(0, -1)
    driver.settle()
    assert driver.work.finished == 3


async def test_outputs_sent_before_the_error_count() -> None:
    outputs = Outputs()

    @consumer("t", on_error="skip")
    @producer("out")
    async def handle(payload: bytes) -> AsyncIterator[bytes]:
        yield payload
        raise ValueError("after the first")

    driver = await dispatched(handle, b"1", outputs=outputs)
    assert (outputs.values, driver.work.finished) == ([b"1"], 0)
    outputs.batches[0].fail(StorageError("disk full"))
    driver.settle()
    assert driver.work.finished == 0
    assert "disk full" in str(driver.error)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_record_whose_handler_raises_publishes_nothing(is_async: bool) -> None:
    outputs = Outputs()

    def double(number: int) -> int:
        return 2 // (number - 1)

    async def double_later(number: int) -> int:
        return double(number)

    handler = consumer("t", on_error="skip")(producer("out")(double_later if is_async else double))
    await dispatched(handler, *(number.to_bytes(8, "big") for number in (0, 1, 2)), outputs=outputs)
    assert outputs.values == [-2, 2]


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_more_is_published_once_the_lane_has_failed(kind: str) -> None:
    driver = driver_of()
    outputs = Outputs()

    async def publish(value: bytes) -> Delivery | None:
        delivery = await outputs.publish(value)
        if value == b"2":  # meanwhile the commit loop finds that the first output was not stored
            outputs.batches[0].fail(StorageError("disk full"))
            driver.settle()
        return delivery

    await run(dispatch_of(_publishing(kind, "stop"), publish, {}), driver, chunk_of(b"1", b"2", b"3", b"4"))
    assert outputs.values == [b"1", b"2"]
    assert driver.work.finished == 0
    assert "disk full" in str(driver.error)


# batches --------------------------------------------------------------------------------------------------------------


async def test_a_batch_of_which_nothing_can_be_read_is_not_handed_over() -> None:
    calls: list[list[Order]] = []

    @consumer("t", batch=2, on_error="skip")
    async def handle(orders: list[Order]) -> None:
        calls.append(orders)

    driver = await dispatched(handle, b"no json", b"nor this", b"{", b'{"amount":3}')
    assert calls == [[Order(3)]]
    assert driver.work.finished == 4


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_batch_of_records(is_async: bool) -> None:
    calls: list[list[tuple[int, bytes | None]]] = []

    def note(records: list[ConsumerRecord]) -> None:
        calls.append([(record.offset, record.value) for record in records])

    async def note_later(records: list[ConsumerRecord]) -> None:
        note(records)

    driver = await dispatched(consumer("t", batch=2)(note_later if is_async else note), b"1", None, b"3")
    assert calls == [[(0, b"1"), (1, None)], [(2, b"3")]]
    assert driver.work.finished == 3


# threads --------------------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("batch", [False, True])
def test_a_plain_handler_runs_once_at_a_time_on_every_loop(batch: bool) -> None:
    partitions = 4
    bus = EventBus("memory://")
    bus.topic("t", partitions=partitions)
    inside: list[int] = []
    most = 0
    handled = 0
    overlap = threading.Event()

    def handle(payload: Any) -> None:
        nonlocal most, handled
        inside.append(1)
        most = max(most, len(inside))
        if len(inside) > 1:
            overlap.set()
        overlap.wait(0.02)  # the others' chance to come in
        inside.pop()
        handled += 1

    handle.__annotations__["payload"] = list[bytes] if batch else bytes
    bus.consumer("t", batch=batch)(handle)

    async def main() -> None:
        async with bus:
            for partition in range(partitions):
                await bus.send("t", b"x", partition=partition)
            await bus.drain()

    for number, backend in enumerate(("asyncio", "trio", "asyncio"), 1):
        anyio.run(main, backend=backend)
        assert handled >= number
    assert handled >= partitions
    assert most == 1


async def test_a_bus_survives_what_cannot_be_published_from_a_thread() -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    bus.topic("out")
    passed: list[str] = []

    @bus.consumer("t", on_error="skip")
    @bus.producer("out")
    def handle(payload: str) -> Any:
        return object() if payload == "bad" else payload

    @bus.consumer("out")
    async def out(payload: str) -> None:
        passed.append(payload)

    async with bus:
        for value in ("bad", "good"):
            await bus.send("t", value)
        with anyio.fail_after(5):
            await bus.drain()
    assert passed == ["good"]
