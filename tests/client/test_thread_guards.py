"""A bus belongs to a thread and an event loop; calls from elsewhere get an error with a solution, without harm."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
import pytest

from eventbus import EventBus, TopicPartition
from eventbus.errors import ConfigError

T0 = TopicPartition("t", 0)


async def elsewhere(function: Callable[[], Any]) -> BaseException | None:
    """Return the error of a call in another thread, in an event loop of that thread if it needs one."""

    async def awaited() -> None:
        asked = function()
        if inspect.isawaitable(asked):
            await asked

    def run() -> BaseException | None:
        try:
            anyio.run(awaited)
        except Exception as error:  # handed over, to be looked at
            return error
        return None

    return await anyio.to_thread.run_sync(run)


@pytest.fixture(params=[False, True], ids=["plain", "intercepted"])
def interceptors(request: pytest.FixtureRequest) -> list[Any]:
    from eventbus.client.interceptors import ProducerInterceptor

    return [ProducerInterceptor()] if request.param else []


async def test_a_producer_in_another_thread(make_bus: Any, interceptors: list[Any]) -> None:
    async with make_bus(interceptors=interceptors) as bus:
        await bus.admin.create_topic("t")
        async with bus.new_producer() as producer, bus.new_producer(transactional_id="one") as transactional:
            uses = [
                lambda: producer.send("t", b"x"),
                lambda: producer.send_nowait("t", b"x"),
                lambda: producer.send_many("t", [b"x"]),
                producer.flush,
                producer.wait_for_room,
                producer.aclose,
                transactional.init,
                transactional.begin,
                transactional.commit,
                transactional.abort,
                lambda: transactional.send_offsets({T0: 1}, "g"),
                lambda: bus.send("t", b"x"),
                lambda: bus.send_nowait("t", b"x"),
                lambda: bus.send_many("t", [b"x"]),
                bus.flush,
                bus.drain,
                bus.new_producer,
                lambda: bus.new_consumer("t"),
                lambda: bus.transaction("two"),
                bus.admin.list_topics,
                lambda: bus.admin.create_topic("u"),
                lambda: bus.admin.delete_group("g"),
            ]
            for use in uses:
                error = await elsewhere(use)
                assert isinstance(error, ConfigError) and "bus.blocking()" in str(error), use
            assert (await producer.send("t", b"the first")).offset == 0


async def test_a_consumer_in_another_thread(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.send("t", b"x")
        async with bus.new_consumer("t", group="g") as consumer:
            uses = [
                consumer.poll,
                consumer.__anext__,
                consumer.commit,
                consumer.commit_nowait,
                lambda: consumer.seek(T0, 0),
                lambda: consumer.pause(T0),
                lambda: consumer.resume(T0),
                consumer.paused,
                consumer.assignment,
                consumer.subscription,
                consumer.unsubscribe,
                lambda: consumer.subscribe("t"),
                lambda: consumer.position(T0),
                consumer.committed,
                consumer.seek_to_beginning,
                consumer.end_offsets,
                consumer.group_metadata,
                consumer.aclose,
            ]
            for use in uses:
                error = await elsewhere(use)
                assert isinstance(error, ConfigError) and "bus.blocking()" in str(error), use
            assert len(await consumer.poll()) == 1
        unopened = bus.new_consumer("t")
        error = await elsewhere(unopened.__aenter__)
        assert isinstance(error, ConfigError) and "bus.blocking()" in str(error)


def test_another_event_loop_of_the_same_thread() -> None:
    """A bus of a test session, used on a test's own loop."""
    bus = EventBus("memory://")
    bus.topic("t")
    ready: list[Any] = []

    async def session() -> None:
        lingering = {"linger_ms": 3_600_000}
        async with bus, bus.new_consumer("t") as consumer, bus.new_producer(**lingering) as producer:
            ready.append((consumer, producer.send_nowait("t", b"x")))
            await stop.wait()

    async def awaited(handle: Any) -> Any:
        return await handle

    async def test() -> None:
        [(consumer, handle)] = ready
        for use in (
            lambda: awaited(handle),
            lambda: bus.send_many("t", [b"x"]),
            bus.flush,
            bus.drain,
            bus.new_producer,
            consumer.poll,
            consumer.aclose,
        ):
            with pytest.raises(ConfigError, match=r"another event loop.*(loop that started the bus|await it there)"):
                await use()

    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    task = loop.create_task(session())
    while not ready:
        loop.run_until_complete(asyncio.sleep(0))
    asyncio.run(test())
    loop.call_soon(stop.set)
    loop.run_until_complete(task)
    loop.close()
    [(_, handle)] = ready
    assert asyncio.run(awaited(handle)).offset == 0  # what is known is told anywhere


async def test_who_may_close_a_bus(make_bus: Any) -> None:
    """Closing it elsewhere would cancel the task that started it."""
    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        refused: list[BaseException | None] = [await elsewhere(bus.close)]

        async def in_another_task() -> None:
            with pytest.raises(ConfigError) as raised:
                await bus.close()
            refused.append(raised.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(in_another_task)
        assert all(isinstance(error, ConfigError) and "bus.stop()" in str(error) for error in refused)
        assert (await bus.send("t", b"x")).offset == 0, "it runs as before"
    assert not bus.is_running


async def test_any_thread_may_stop_a_bus(make_bus: Any) -> None:
    async with make_bus() as bus:
        for stop in (bus.stop, lambda: anyio.run(stop_in_a_task, bus)):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bus.run)
                await anyio.to_thread.run_sync(stop)
    bus.stop()


async def stop_in_a_task(bus: EventBus) -> None:
    bus.stop()
