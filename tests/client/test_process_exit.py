"""SystemExit and KeyboardInterrupt from user code end the bus in its usual order, and the record is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, EventBus
from eventbus.backends.process_exit import ContainedTasks, ends_process
from eventbus.client.running.single_error import SingleError
from eventbus.testing import TestBus
from tests.client.fakes import T0, on_both


class Killed(BaseException):
    """An application's own exception that ends the process."""


def leave(value: int, error: Callable[[], BaseException]) -> None:
    if value == 3:
        raise error()


Error = Callable[[], BaseException]


def an_async_def(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g")
    async def handle(value: int) -> None:
        leave(value, error)


def a_def(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g")
    def handle(value: int) -> None:
        leave(value, error)


def a_batch(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", batch=1)
    async def handle(values: list[int]) -> None:
        leave(values[0], error)


def a_batch_in_a_thread(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", batch=1)
    def handle(values: list[int]) -> None:
        leave(values[0], error)


def workers(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", order="key", concurrency=2)
    async def handle(value: int) -> None:
        leave(value, error)


def acknowledging(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", ack="manual")
    async def handle(value: int, record: ConsumerRecord) -> None:
        leave(value, error)
        record.ack()


def exactly_once(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", exactly_once=True)
    @bus.producer("out")
    async def handle(value: int) -> int:
        leave(value, error)
        return value


def with_a_policy(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", retry=Retry(delays=None), dead_letter=True, on_error="skip")
    async def handle(value: int) -> None:
        leave(value, error)


def called_again(bus: EventBus, error: Error) -> None:
    calls: list[int] = []

    @bus.consumer("t", group="g")
    async def handle(value: int) -> None:
        calls.append(value)
        if calls.count(3) == 1:
            raise ConnectionError("away")
        leave(value, error)


def with_a_limit(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", timeout=5)
    async def handle(value: int) -> None:
        leave(value, error)


def cancelled_at_its_limit(bus: EventBus, error: Error) -> None:
    @bus.consumer("t", group="g", timeout=5)
    async def handle(value: int) -> None:
        try:
            await anyio.sleep_forever() if value == 3 else None
        finally:
            leave(value, error)


HANDLERS = [
    an_async_def, a_def, a_batch, a_batch_in_a_thread, workers, acknowledging, exactly_once, with_a_policy,
    called_again, with_a_limit, cancelled_at_its_limit,
]  # fmt: skip
ERRORS: list[Error] = [lambda: SystemExit(3), lambda: KeyboardInterrupt(), lambda: Killed("enough")]


@pytest.mark.parametrize("error", ERRORS, ids=["exit", "interrupt", "killed"])
@pytest.mark.parametrize("declare", HANDLERS, ids=lambda one: one.__name__)
@on_both
async def test_it_ends_the_bus_and_the_record_is_named(
    declare: Callable[[EventBus, Error], None], error: Error, caplog: pytest.LogCaptureFixture
) -> None:
    bus = TestBus()
    bus.topic("t", partitions=1)
    bus.topic("out")
    declare(bus, error)
    raised = error()
    with pytest.raises(type(raised)) as caught:
        async with bus:
            await bus.send_many("t", range(6), key=lambda value: "k")
            await bus.clock.advance(seconds=10)
            await bus.drain()
    assert str(caught.value) == str(raised)
    assert any("t-0 offset 3" in note for note in caught.value.__notes__)
    assert "t-0 offset 3" in caplog.text
    committed = bus.log.committed("g").get(T0, 0)
    # What was handled before is committed, and the record is not; a transaction is aborted as a whole.
    assert committed == (0 if declare is exactly_once else 3)


@on_both
async def test_in_one_handler_it_lets_the_others_finish() -> None:
    bus, ended = TestBus(), list[str]()
    bus.topic("t", partitions=1)
    bus.topic("other", partitions=1)

    @bus.consumer("other", group="o")
    async def wait(value: int) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    an_async_def(bus, lambda: SystemExit(3))
    with pytest.raises(SystemExit):
        async with bus:
            await bus.send("other", 1)
            await bus.send_many("t", range(6))
            await bus.drain()
    assert ended == ["cancelled"]


@on_both
async def test_in_a_function_that_a_table_calls() -> None:
    bus = TestBus()
    table = bus.table("prices", key=str, value=int)

    @table.on_change
    async def change(change: Any) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        async with bus:
            await bus.send("prices", 1, key="apple")
            await bus.drain()
    assert caught.value.__notes__ == ["table 'prices': change, called with a change of 'apple', raised SystemExit: 3"]


@on_both
async def test_a_task_that_is_being_started() -> None:
    """asyncio's task groups wait, shielded, for a task to start: a loop that is stopped meanwhile hung there."""

    async def task(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        async with SingleError(), ContainedTasks() as tasks:
            await tasks.start(task)


def test_what_ends_a_process() -> None:
    async def check() -> None:
        group = BaseExceptionGroup("", [asyncio.CancelledError(), SystemExit(3)])
        assert all(map(ends_process, (SystemExit(), KeyboardInterrupt(), Killed(), group)))
        no_exit = BaseExceptionGroup("", [asyncio.CancelledError(), GeneratorExit()])
        assert not any(map(ends_process, (ValueError(), asyncio.CancelledError(), GeneratorExit(), no_exit)))

    anyio.run(check)


def test_in_a_plain_program() -> None:
    """The loop of `bus.blocking()` runs in another thread: it was stopped, and leaving the block failed."""
    for _ in range(5):
        bus = EventBus("memory://")
        bus.topic("t", partitions=1)
        a_def(bus, lambda: SystemExit(3))
        with pytest.raises(SystemExit) as caught, bus.blocking() as b:
            for value in range(6):
                b.send("t", value)
            b.drain()
        assert "t-0 offset 3" in caught.value.__notes__[0]
