"""The bus for plain programs and plain threads. The test's own thread has no event loop here, or runs the bus's."""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from eventbus import EventBus, OffsetAndMetadata, TopicPartition
from eventbus.client.threads import Bridge
from eventbus.errors import (
    ConfigError,
    HandlerError,
    InvalidTxnState,
    SerializationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)

T0 = TopicPartition("t", 0)


def declared(url: str = "memory://", **config: Any) -> EventBus:
    bus = EventBus(url, **config)
    bus.topic("t", partitions=1)
    return bus


def values(bus: EventBus, topic: str) -> list[Any]:
    """Return the values of a topic of a running bus, read from a thread."""
    with bus.blocking() as b, b.new_consumer(topic) as consumer:
        return [record.value for record in consumer.poll(0)]


# plain programs ------------------------------------------------------------------------------------------------------


def test_a_plain_program_sends_reads_and_commits(file_url: str) -> None:
    with declared(file_url).blocking() as b:
        assert b.send("t", b"1", key="a").offset == 0
        assert b.send_nowait("t", b"2").result().offset == 1
        b.send_many("t", [b"3", b"4"])
        with b.new_consumer("t", group="g") as consumer:
            assert [next(consumer).value, next(consumer).value] == [b"1", b"2"]
            consumer.commit()
            assert [record.value for record in consumer.poll(max_records=1)] == [b"3"]
            consumer.seek(T0, 1)
            assert consumer.position(T0) == 1
            assert consumer.assignment() == [T0]
            told: list[Any] = []
            consumer.commit_async({T0: OffsetAndMetadata(3, "note")}, lambda offsets, error: told.append(error))
        assert told == [None]  # closing waited for it
    with declared(file_url).blocking() as b:
        assert b.admin.group_offsets("g") == {T0: (3, "note")}


def test_handlers_run_on_the_loop_beside_the_program() -> None:
    bus = declared()
    seen: list[bytes] = []

    @bus.consumer("t", group="g")
    async def handle(value: bytes) -> None:
        seen.append(value)

    with bus.blocking() as b:
        b.send_many("t", [b"%d" % n for n in range(100)])
        b.drain()
        assert seen == [b"%d" % n for n in range(100)]
        assert b.call(bus.admin.list_topics) == ["t"]
        assert b.health().is_healthy
    with pytest.raises(ConfigError, match="not running"):
        b.flush()


def test_a_bus_is_entered_again_and_again() -> None:
    bus = declared("memory://blocking-again")
    for _ in range(3):
        with bus.blocking() as b:
            b.send("t", b"x")


def test_the_last_one_to_leave_closes() -> None:
    bus = declared()
    shared = bus.blocking()
    entered, leave = threading.Event(), threading.Event()

    def beside() -> int:
        with shared as b:
            entered.set()
            assert leave.wait(30)
            return b.send("t", "beside").offset

    with ThreadPoolExecutor(1) as pool:
        with shared:
            with shared as b:
                b.send("t", "inside")
            shared.send("t", "outside")
            answer = pool.submit(beside)
            assert entered.wait(30)
        leave.set()
        assert answer.result(30) == 2
    assert not bus.is_running


def test_what_belonged_to_a_bus_that_was_closed_says_so() -> None:
    bus = declared("memory://blocking-closed")
    with bus.blocking() as b:
        producer, consumer, transaction = b.new_producer(), b.new_consumer("t"), b.transaction("one")
    with bus.blocking():  # the same bus, and another life
        for use in (producer.flush, consumer.poll, lambda: transaction.send("t", b"x"), transaction.__enter__):
            with pytest.raises(ConfigError, match="has closed"):
                use()
        for client in (producer, consumer):
            client.__exit__(None, None, None)  # it was closed with its bus: nothing to say


def test_what_a_program_raises_is_raised_and_the_bus_is_closed() -> None:
    bus = declared()
    with pytest.raises(ZeroDivisionError), bus.blocking() as b:
        b.send("t", b"x")
        raise ZeroDivisionError
    assert "stopped" in repr(bus)


def test_ctrl_c_ends_a_wait_and_closes_the_bus() -> None:
    bus = declared()
    ended: list[str] = []

    async def forever() -> None:
        os.kill(os.getpid(), signal.SIGINT)  # Python raises KeyboardInterrupt in the main thread, which waits
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("cancelled")

    heard_by = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for what runs behind them
    try:
        with pytest.raises(KeyboardInterrupt), bus.blocking() as b:
            b.call(forever)
    finally:
        signal.signal(signal.SIGINT, heard_by)
    assert ended == ["cancelled"] and "stopped" in repr(bus)


def test_a_bus_that_cannot_start_says_why_and_leaves_no_thread() -> None:
    bus = EventBus("memory://")

    @bus.consumer("nowhere")
    async def handle(value: bytes) -> None: ...

    before = threading.active_count()
    with pytest.raises(UnknownTopicOrPartition, match="nowhere"), bus.blocking():
        pass
    assert threading.active_count() == before


def test_errors_come_back_as_they_are() -> None:
    with declared().blocking() as b:
        with pytest.raises(UnknownTopicOrPartition):
            b.send("nowhere", b"x")
        with pytest.raises(UnknownTopicOrPartition):
            b.send_nowait("nowhere", b"x")
        with pytest.raises(SerializationError):
            b.send("t", object())
        with pytest.raises(TopicAlreadyExists):
            b.admin.create_topic("t")
        with pytest.raises(ConfigError, match="unknown consumer setting"):
            b.new_consumer("t", nonsense=1)
        with b.new_consumer("t") as consumer, pytest.raises(ConfigError, match="not assigned"):
            consumer.seek(TopicPartition("t", 7), 0)


def test_a_handler_that_crashes_the_bus_is_heard_of() -> None:
    bus = declared()

    @bus.consumer("t", on_error="crash")
    async def handle(value: bytes) -> None:
        raise ValueError("mine")

    with pytest.raises(HandlerError, match="mine"), bus.blocking() as b:
        b.send("t", b"x")
        with b.new_consumer("t", start="latest") as consumer:
            consumer.poll(600_000)  # the bus closes meanwhile: nobody hangs


def test_producers_and_their_settings() -> None:
    with declared().blocking() as b:
        delivered: list[Any] = []
        with b.new_producer(linger_ms=60_000) as producer:
            sent = producer.send_nowait("t", b"x", on_delivery=lambda metadata, error: delivered.append(metadata))
            producer.flush()
            assert delivered == [sent.result()]
        with pytest.raises(ConfigError, match="unknown producer setting"):
            b.new_producer(nonsense=1)


def test_send_nowait_waits_for_room() -> None:
    with declared(buffer_memory=20_000, batch_size=4_000).blocking() as b:
        futures = [b.send_nowait("t", b"x" * 1_000) for _ in range(200)]
        assert [future.result().offset for future in futures] == list(range(200))


# transactions --------------------------------------------------------------------------------------------------------


def test_transactions() -> None:
    bus = declared()
    with bus.blocking() as b:
        with b.transaction("one") as tx:
            tx.send_nowait("t", b"in")
            tx.send_offsets({T0: 5}, "g")
        assert tx.outcome == "committed"
        with pytest.raises(KeyError), b.transaction("one") as tx:
            tx.send("t", b"out")
            raise KeyError
        assert tx.outcome == "aborted"
        with pytest.raises(InvalidTxnState, match="over"):
            tx.send("t", b"late")
        with b.transaction("one") as tx:
            with pytest.raises(InvalidTxnState, match="this very thread"), b.transaction("one"):
                pass
            with b.transaction("two") as other:
                other.send("t", b"two")
            tx.send("t", b"one")
        assert values(bus, "t") == [b"in", b"two", b"one"]
        assert b.admin.group_offsets("g") == {T0: (5, "")}


def test_threads_take_turns_in_a_transactional_id() -> None:
    bus = declared()
    with bus.blocking() as b:

        def write(n: int) -> None:
            with b.transaction("shared") as tx:
                tx.send_many("t", [b"%d" % n] * 3)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(write, range(40)))
        found = values(bus, "t")
        assert [found[at] for at in range(0, 120, 3)] == [found[at + 2] for at in range(0, 120, 3)]  # none mixed
        assert sorted(set(found)) == sorted(b"%d" % n for n in range(40))


def test_a_transaction_that_is_open_when_the_bus_crashes_is_aborted() -> None:
    bus = declared()

    @bus.consumer("t", on_error="crash", isolation_level="read_uncommitted")
    async def handle(value: bytes) -> None:
        raise ValueError("mine")

    with pytest.raises(HandlerError, match="mine"), bus.blocking() as b:
        with pytest.raises(ConfigError, match="has closed"), b.transaction("one") as tx:
            tx.send("t", b"x")
            b.call(anyio.sleep_forever)
        assert tx.outcome == "aborted"


# threads beside a bus that runs --------------------------------------------------------------------------------------


async def test_threads_join_a_bus_that_runs(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t", partitions=4)
    async with bus:

        def write(n: int) -> None:
            with bus.blocking() as b:  # leaving closes nothing
                for m in range(20):
                    if m % 2:
                        b.send("t", f"{n}.{m}", key=n)
                    else:
                        b.send_nowait("t", f"{n}.{m}", key=n)
                b.flush()

        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(anyio.to_thread.run_sync, write, n)
        async with bus.new_consumer("t", value=str) as consumer:
            seen: dict[str, list[int]] = {}
            while sum(map(len, seen.values())) < 200:
                for record in await consumer.poll():
                    n, m = record.value.split(".")
                    seen.setdefault(n, []).append(int(m))
        assert seen == {str(n): list(range(20)) for n in range(10)}


def test_threads_join_a_bus_on_trio() -> None:
    bus = declared()

    def work() -> list[Any]:
        with bus.blocking() as b:
            b.send("t", b"1")
            with b.transaction("one") as tx:
                tx.send_nowait("t", b"2")
            with b.new_consumer("t", group="g") as consumer:
                return [next(consumer).value, *(record.value for record in consumer.poll(0))]

    async def main() -> None:
        async with bus:
            assert await anyio.to_thread.run_sync(work) == [b"1", b"2"]

    anyio.run(main, backend="trio")


async def test_a_plain_handler_publishes_from_its_thread(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    bus.topic("out")

    @bus.consumer("t")
    def handle(value: bytes) -> None:
        bus.blocking().send("out", value + b"!")

    async with bus:
        await bus.send("t", b"hello")
        await bus.drain()
        async with bus.new_consumer("out") as consumer:
            assert [record.value for record in await consumer.poll()] == [b"hello!"]


async def test_a_plain_handler_that_drains_is_told_that_it_waits_for_itself(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")

    @bus.consumer("t")
    def handle(value: bytes) -> None:
        bus.blocking().drain()

    async with bus:
        await bus.send("t", b"x")
        with pytest.raises(HandlerError, match="waits for itself"):
            await bus.drain()


async def test_on_the_loops_own_thread_it_would_wait_for_itself(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    with pytest.raises(ConfigError, match=r"async with bus"), bus.blocking():
        pass
    async with bus:
        with pytest.raises(ConfigError, match=r"async with bus"), bus.blocking():
            pass
        b = bus.blocking()
        uses: list[Callable[[], object]] = [
            b.flush,
            lambda: b.send("t", b"x"),
            lambda: b.send_nowait("t", b"x"),
            lambda: b.transaction("one"),
            lambda: b.new_consumer("t"),
            lambda: b.admin.list_topics(),
            lambda: b.call(bus.flush),
        ]
        for use in uses:
            with pytest.raises(ConfigError, match="would wait for the event loop it is called in"):
                use()


async def test_a_bus_that_closes_answers_everybody(make_bus: Any) -> None:
    """Threads that poll, iterate and hold transactions while the bus goes: each of them ends."""
    bus = make_bus()
    bus.topic("t")
    waiting = threading.Barrier(4)

    def polls() -> None:
        with bus.blocking() as b, b.new_consumer("t", group="g") as consumer:
            waiting.wait()
            while not consumer.poll(600_000):
                pass  # a poll may return early, with nothing: past the marker of the transaction that is aborted

    def iterates() -> None:
        with bus.blocking() as b, b.new_consumer("t") as consumer:
            waiting.wait()
            for _ in consumer:
                pass

    def holds() -> None:
        with bus.blocking() as b, b.transaction("one") as tx:
            tx.send("t", b"x", partition=0)
            waiting.wait()
            b.call(anyio.sleep_forever)

    with ThreadPoolExecutor(4) as threads:
        async with bus:
            asked = [threads.submit(one) for one in (polls, iterates, holds)]
            await anyio.to_thread.run_sync(waiting.wait)
        for one in asked:
            with pytest.raises(ConfigError, match=r"has closed|not running"):
                await anyio.to_thread.run_sync(one.result)


# the bridge ----------------------------------------------------------------------------------------------------------


@contextmanager
def bridge_in_a_thread() -> Iterator[tuple[Bridge, Callable[[], None]]]:
    """A bridge on a loop of another thread, and what ends that loop without asking anybody."""
    made: Future[Bridge] = Future()
    stop: Future[anyio.Event] = Future()

    async def run() -> None:
        async with anyio.create_task_group() as tasks:
            bridge = Bridge(tasks)
            tasks.start_soon(bridge.serve)
            event = anyio.Event()
            stop.set_result(event)
            made.set_result(bridge)
            await event.wait()
            tasks.cancel_scope.cancel()

    thread = threading.Thread(target=anyio.run, args=(run,))
    thread.start()
    bridge = made.result()

    def end() -> None:
        bridge.home.call_soon(stop.result().set)
        thread.join()

    try:
        yield bridge, end
    finally:
        if thread.is_alive():
            end()


def test_a_loop_that_is_gone_is_an_error_not_a_wait() -> None:
    with bridge_in_a_thread() as (bridge, end):
        assert bridge.ask(lambda: 5, "five") == 5
        end()
        with pytest.raises(ConfigError, match="the bus has closed"):
            bridge.ask(lambda: 5, "five")
        with pytest.raises(ConfigError, match="five: the bus has closed"):
            bridge.call(anyio.sleep_forever, "five")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_call_to_a_bus_that_was_cancelled_is_answered(backend: str) -> None:
    """The bus waits for the threads of its handlers; one that asks for something then must not wait for the bus."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            bridge = Bridge(tasks)
            tasks.start_soon(bridge.serve)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.fail_after(20), pytest.raises(ConfigError, match="has closed"):
                await anyio.to_thread.run_sync(bridge.call, anyio.lowlevel.checkpoint, "send", abandon_on_cancel=True)

    anyio.run(main, backend=backend)


def test_a_promise_nobody_keeps_ends_with_the_bus() -> None:
    with bridge_in_a_thread() as (bridge, _):
        promised = bridge.promise("waiting")
        bridge.close()
        with pytest.raises(ConfigError, match="has closed"):
            promised.result()
        with pytest.raises(ConfigError, match="waiting: the bus has closed"):
            bridge.promise("waiting")


def test_a_wait_that_is_given_up_cancels_what_it_waited_for() -> None:
    ended: Future[str] = Future()

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set_result("cancelled")

    with bridge_in_a_thread() as (bridge, _):
        begun = bridge.start(wait, "waiting")
        bridge.ask(lambda: None, "look")  # by now the task is there
        assert begun.cancel()
        assert ended.result() == "cancelled"


def test_calls_see_the_context_of_their_thread() -> None:
    user = contextvars.ContextVar("user", default="nobody")
    with bridge_in_a_thread() as (bridge, _):
        user.set("ann")

        async def who() -> str:
            return user.get()

        assert bridge.call(who, "who") == "ann"
