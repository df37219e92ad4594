"""A send in an exactly-once handler joins the transaction, or is refused, or stays outside with `transactional=False`.

That each way to send counts once is a promise of the conformance kit: eventbus/testing/conformance/joining.py.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Annotated, Any

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import msgspec
import pytest

from dlq import Retry
from eventbus import ConsumerRecord, Depends, EventBus, ProducerInterceptor, ProducerRecord, Transaction
from eventbus.errors import ConfigError, HandlerError
from eventbus.testing import TestBus
from serdes import Avro

LOGS = itertools.count()


def opened(**options: Any) -> EventBus:
    bus = EventBus(f"memory://joining-{next(LOGS)}", **options)
    for topic in ("in", "out"):
        bus.topic(topic, partitions=1)
    return bus


async def read(bus: EventBus, topic: str = "out", kind: Any = int, **config: Any) -> list[Any]:
    async with bus.new_consumer(topic, value=kind, **config) as reader:
        return [record.value async for record in reader.until_end()]


class Failing:
    """Fails once for the value 1, after what came before: the transaction is aborted, and its records come again."""

    def __init__(self) -> None:
        self.calls = 0

    def once(self, value: int) -> None:
        self.calls += value == 1
        if value == 1 and self.calls == 1:
            raise ValueError("the first time")


def retrying(**options: Any) -> dict[str, Any]:
    return {"group": "g", "exactly_once": True, "retry": Retry(immediate=2, delays=None), **options}


async def handled(bus: EventBus, *values: int) -> list[int]:
    """Return what read-committed readers find in ``out`` when these values are handled."""
    async with bus:
        await bus.send_many("in", values)
        await bus.drain()
        return await read(bus)


# everything that runs for the record ----------------------------------------------------------------------------------


async def test_middleware_filters_and_dependencies_join() -> None:
    failing = Failing()

    async def around(record: ConsumerRecord, call_next: Callable[[ConsumerRecord], Awaitable[Any]]) -> Any:
        await bus.send("out", 10)
        result = await call_next(record)
        await bus.send("out", 50)
        return result

    def keep(record: ConsumerRecord) -> bool:
        bus.send_nowait("out", 20)
        return True

    async def session() -> AsyncIterator[int]:
        await bus.send("out", 30)
        yield 0
        await bus.send("out", 40)

    bus = opened(middleware=[around])

    @bus.consumer("in", filter=keep, **retrying())
    async def handle(value: int, given: Annotated[int, Depends(session)]) -> None:
        failing.once(value)

    assert await handled(bus, 1) == [10, 20, 30, 40, 50]
    assert failing.calls == 2


async def test_a_batch_joins_and_so_does_each_of_its_records_when_it_has_failed() -> None:
    failing, bus = Failing(), opened()

    @bus.consumer("in", batch=True, **retrying())
    async def handle(values: list[int]) -> None:
        for value in values:
            await bus.send("out", value)
        for value in values:
            failing.once(value)

    assert await handled(bus, 0, 1, 2) == [0, 1, 2]
    assert failing.calls == 2


async def test_an_entry_of_the_retry_topic_joins_the_transaction_that_finishes_it() -> None:
    bus, calls = TestBus(auto_create_topics=True), list[int]()

    @bus.consumer("in", **retrying(retry=Retry(immediate=0, delays=["1m", "1m"], jitter=False)))
    async def handle(value: int) -> None:
        calls.append(value)
        await bus.send("out", value)
        if len(calls) < 3:
            raise ValueError

    async with bus:
        await bus.send("in", 1)
        for _ in range(3):
            await bus.log.drain()
            await bus.clock.advance(seconds=60)
        await bus.log.drain()
        assert calls == [1, 1, 1]
        assert await read(bus) == [1]


async def test_a_delayed_record_is_put_by_if_the_handler_succeeds() -> None:
    bus, failing = TestBus(auto_create_topics=True, service="shop"), Failing()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await bus.send("out", value, delay=60)
        await bus.send("out", -value, delay=60, transactional=False)
        failing.once(value)

    async with bus:
        await bus.send("in", 1)
        await bus.log.drain()
        await bus.clock.advance(seconds=60)
        await bus.log.drain()
        assert sorted(await read(bus)) == [-1, -1, 1]


async def test_a_handlers_own_transaction_and_its_bus_are_one() -> None:
    bus, failing = opened(), Failing()

    @bus.consumer("in", **retrying())
    @bus.producer("out")
    async def handle(value: int, tx: Transaction) -> AsyncIterator[int]:
        yield 10
        await tx.send("out", 20)
        await bus.send("out", 30)
        failing.once(value)

    assert await handled(bus, 1) == [10, 20, 30]


async def test_threads_and_the_calls_that_they_pass_to_the_loop_join() -> None:
    bus, failing = opened(), Failing()

    def in_thread() -> None:
        anyio.from_thread.run(bus.send, "out", 10)
        with bus.blocking() as blocking:
            blocking.send_nowait("out", 20).result()
            blocking.send("out", 30)

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await anyio.to_thread.run_sync(in_thread)
        failing.once(value)

    assert await handled(bus, 1) == [10, 20, 30]


async def test_a_call_that_takes_too_long_takes_along_what_it_sent() -> None:
    bus, hangs = TestBus(auto_create_topics=True), anyio.Event()

    @bus.consumer("in", group="g", exactly_once=True, on_error="skip", timeout=5)
    async def handle(value: int) -> None:
        await bus.send("out", value)
        if value == 1:
            hangs.set()
            await anyio.sleep_forever()

    async with bus:
        await bus.send_many("in", [0, 1, 2])
        await hangs.wait()
        await bus.clock.advance(seconds=10)
        await bus.log.drain()
        assert await read(bus) == [0, 2]


async def test_what_a_skipped_record_sent_is_gone_and_what_others_sent_stays() -> None:
    bus, calls = opened(), list[int]()

    @bus.consumer("in", group="g", exactly_once=True, on_error="skip")
    async def handle(value: int) -> None:
        calls.append(value)
        if value != 3:
            await bus.send("out", value)
        if value in (1, 3):
            raise ValueError

    assert await handled(bus, 0, 1, 2, 3, 4) == [0, 2, 4]
    assert calls.count(3) == 1 + calls.count(0) - 2, "a record that has sent nothing does not cost the transaction"


async def test_calls_that_share_a_scope_are_told_apart_when_one_fails() -> None:
    """They share one after a thousand calls that sent from the handler's own task."""
    failing, bus = Failing(), opened()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await bus.send("out", value)
        failing.once(1 if value == 1_400 else 0)

    assert await handled(bus, *range(1_500)) == list(range(1_500))
    assert failing.calls == 2


async def test_a_callback_of_a_delivery_joins_too() -> None:
    bus, failing = opened(), Failing()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        sent = anyio.Event()

        def delivered(metadata: Any, error: Any) -> None:
            bus.send_nowait("out", 20)
            sent.set()

        bus.send_nowait("out", 10, on_delivery=delivered)
        await sent.wait()
        failing.once(value)

    assert await handled(bus, 1) == [10, 20]


# by which rules it is sent --------------------------------------------------------------------------------------------


async def test_a_producer_function_keeps_its_partitioner_and_serde_and_the_bus_its_own() -> None:
    bus = opened()
    bus.topic("spread", partitions=4)

    class Reversed:
        def encode(self, value: int) -> bytes:
            return str(value).encode()[::-1]

        def decode(self, data: bytes) -> int:
            return int(data[::-1])

    @bus.producer("spread", key=str, partitioner=lambda topic, key, value, count: 3)
    async def aside(value: int) -> int:
        return value

    @bus.consumer("in", group="g", exactly_once=True)
    @bus.producer("spread", key=str, partitioner=lambda topic, key, value, count: 2)
    async def handle(value: int) -> int:
        await aside(value + 1)
        await bus.send("spread", value + 2, key="a key")
        return value

    async with bus:
        expected = (await bus.send("spread", 0, key="a key")).partition
        await bus.send("in", 1)
        await bus.drain()
        async with bus.new_consumer("spread", value=int) as reader:
            placed = {record.value: record.partition async for record in reader.until_end()}
    assert placed == {0: expected, 1: 2, 2: 3, 3: expected}


async def test_interceptors_see_each_record_once() -> None:
    seen = list[tuple[str, Any]]()

    class Stamps(ProducerInterceptor):
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            seen.append((record.topic, record.value))
            return record

    bus = opened(interceptors=[Stamps()])

    @bus.consumer("in", group="g", exactly_once=True)
    async def handle(value: int) -> None:
        await bus.send("out", 10)
        bus.send_nowait("out", 20)
        await bus.send_many("out", [30])
        await bus.send("out", 40, transactional=False)

    assert sorted(await handled(bus, 1)) == [10, 20, 30, 40]
    assert seen == [("in", 1), ("out", 10), ("out", 20), ("out", 30), ("out", 40)]


async def test_a_schema_is_registered_outside_of_the_transaction_that_needs_it() -> None:
    class Order(msgspec.Struct):
        number: int

    bus, failing = opened(serdes={Order: Avro("log")}), Failing()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await bus.send("out", Order(value))
        failing.once(value)

    async with bus:
        await bus.send("in", 1)
        await bus.drain()
        assert await read(bus, kind=Order) == [Order(1)]


# what does not join ---------------------------------------------------------------------------------------------------


async def said(call: Callable[[EventBus, EventBus], Awaitable[object]]) -> str:
    """Return the error of that call in an exactly-once handler, which is not called again."""
    bus = opened()

    @bus.consumer("in", group="g", exactly_once=True)
    async def handle(value: int) -> None:
        await call(bus, other)

    with pytest.raises(HandlerError) as raised:
        async with opened() as other, bus:
            await bus.send("in", 1)
            await bus.drain()
    assert isinstance(raised.value.__cause__, ConfigError)
    return str(raised.value.__cause__)


async def of_another_bus(bus: EventBus, other: EventBus) -> None:
    await other.send("out", 1)


async def of_its_own(bus: EventBus, other: EventBus) -> None:
    async with bus.new_producer() as producer:
        producer.send_nowait("out", 1)


async def of_its_own_many(bus: EventBus, other: EventBus) -> None:
    async with bus.new_producer() as producer:
        await producer.send_many("out", [1])


@pytest.mark.parametrize(
    ("call", "who"),
    [
        (of_another_bus, "send was called in exactly-once handler 'handle' with the producer of another bus"),
        (of_its_own, "send_nowait was called in exactly-once handler 'handle' with a producer that the bus opened"),
        (of_its_own_many, "send_many was called in exactly-once handler 'handle' with a producer that the bus opened"),
    ],
)
async def test_a_producer_that_cannot_join_is_refused(call: Any, who: str) -> None:
    text = await said(call)
    assert text.startswith(who) and "cannot join the handler's transaction" in text and "transactional=False" in text


async def another_transaction(bus: EventBus, other: EventBus) -> None:
    async with bus.transaction("audit") as tx:
        await tx.send("out", 1)


async def a_transaction_of_its_own(bus: EventBus, other: EventBus) -> None:
    async with bus.new_producer(transactional_id="audit") as producer:
        await producer.begin()


@pytest.mark.parametrize("call", [another_transaction, a_transaction_of_its_own])
async def test_a_second_transaction_is_refused(call: Any) -> None:
    text = await said(call)
    assert text.startswith("A transaction of 'audit' was begun in exactly-once handler 'handle'")
    assert "independent=True" in text


@pytest.mark.parametrize(
    "call",
    [
        lambda bus, other: bus.request("out", 1, timeout=1),
        lambda bus, other: bus.cancel_scheduled("an id", timeout=1),
    ],
)
async def test_waiting_for_an_answer_is_refused(call: Any) -> None:
    text = await said(call)
    assert "waits for a record that no consumer reads before the handler's transaction is committed" in text


async def test_a_table_is_written_in_the_transaction_and_not_waited_for_in_it() -> None:
    bus, failing, told = opened(), Failing(), list[str]()
    table = bus.table("prices", key=str, value=int)

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await table.until(await table.put("coffee", value, transactional=False))
        stored = await table.put("tea", value)
        with pytest.raises(ConfigError) as raised:
            await table.until(stored)
        told.append(str(raised.value))
        failing.once(value)

    async with bus:
        await bus.send("in", 1)
        await bus.drain()
        assert table.snapshot() == {"tea": 1, "coffee": 1}
        assert await read(bus, "prices") == [1, 1, 1], "tea once, coffee twice"
    assert told[0].startswith("table 'prices': until() was called in exactly-once handler 'handle'")


async def test_transactional_false_sends_again_for_each_retry() -> None:
    bus, failing = opened(), Failing()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        await bus.send("out", 10, transactional=False)
        await bus.send_nowait("out", 20, transactional=False)
        await bus.send_many("out", [30], transactional=False)
        async with bus.new_producer() as producer:
            await producer.send("out", 40, transactional=False)
        failing.once(value)

    assert await handled(bus, 1) == [10, 20, 30, 40, 10, 20, 30, 40]


async def test_an_independent_transaction_commits_whatever_becomes_of_the_handler() -> None:
    bus, failing = opened(), Failing()

    @bus.consumer("in", **retrying())
    async def handle(value: int) -> None:
        async with bus.transaction("audit", independent=True) as tx:
            await tx.send("out", 10)
            await bus.send("out", 20)  # the handler's, as everywhere in the handler
        failing.once(value)

    assert await handled(bus, 1) == [10, 10, 20]


async def test_a_transaction_refuses_transactional_false() -> None:
    async with opened() as bus, bus.transaction("t") as tx:
        with pytest.raises(ConfigError, match="What is sent with it is part of it"):
            await tx.send("out", 1, transactional=False)


# tasks that outlive the call ------------------------------------------------------------------------------------------


async def test_a_task_that_a_handler_left_behind_can_no_longer_send() -> None:
    """Its call is over, although the transaction, which holds the next record too, is still open."""
    bus, told, goes_on = opened(), list[str](), anyio.Event()

    async def later() -> None:
        await goes_on.wait()
        for send in (bus.send("out", 1), bus.send_many("out", [2])):
            with pytest.raises(ConfigError) as raised:
                await send
            told.append(str(raised.value))
        with pytest.raises(ConfigError):
            bus.send_nowait("out", 3)
        await bus.send("out", 4, transactional=False)
        told.append("sent")

    async with anyio.create_task_group() as tasks:

        @bus.consumer("in", group="g", exactly_once=True)
        async def handle(value: int) -> None:
            if value == 1:
                tasks.start_soon(later)
                return
            goes_on.set()
            while len(told) < 3:
                await anyio.lowlevel.checkpoint()

        assert await handled(bus, 1, 2) == [4]
    assert all("after exactly-once handler 'handle' had returned" in text for text in told[:2])


async def test_a_send_that_waits_when_its_handler_returns_is_not_in_the_next_transaction() -> None:
    bus, told, goes_on = opened(), list[str](), anyio.Event()

    def values() -> Iterator[int]:
        yield from range(1_000)
        yield 1_000  # comes after the turn that a long send_many gives to other tasks

    async def left_behind() -> None:
        with pytest.raises(ConfigError, match="had returned"):
            await bus.send_many("out", values())
        told.append("refused")
        goes_on.set()

    async with anyio.create_task_group() as tasks:

        @bus.consumer("in", group="g", exactly_once=True)
        async def handle(value: int) -> None:
            if value == 1:
                tasks.start_soon(left_behind)
                await anyio.lowlevel.checkpoint()
            else:
                await goes_on.wait()

        await handled(bus, 1, 2)
    assert told == ["refused"]


async def test_tasks_of_the_bus_that_a_handler_happens_to_start_are_not_of_its_call() -> None:
    """The main producer's task is started by the first send, and calls the callbacks of all later ones."""
    bus = opened()

    @bus.consumer("in", group="g", exactly_once=True)
    async def handle(value: int) -> None:
        await bus.send("out", value, transactional=False)

    async with bus:
        async with bus.new_producer() as producer:
            await producer.send("in", 1)
        await bus.drain()
        done = anyio.Event()

        def delivered(metadata: Any, error: Any) -> None:
            bus.send_nowait("out", 3)
            done.set()

        bus.send_nowait("out", 2, on_delivery=delivered)
        await done.wait()
        await bus.flush()
        assert await read(bus) == [1, 2, 3]
