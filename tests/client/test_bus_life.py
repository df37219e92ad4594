"""A bus that starts, stops, and is asked at the wrong time; on another log for a while."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, TopicPartition
from eventbus.backends.urls import open_backend, system_clock
from eventbus.client import bus_run
from eventbus.errors import ConfigError
from eventbus.testing import TestBus
from tests.support import others_wait


async def test_a_bus_is_started_once_at_a_time(make_bus: Any) -> None:
    bus = make_bus()
    async with bus:
        with pytest.raises(ConfigError, match="running already"):
            await bus.start()


async def test_two_starts_at_once_are_one_too_many(make_bus: Any) -> None:
    bus = make_bus()
    outcomes: list[str] = []

    async def start() -> None:
        try:
            async with bus:
                outcomes.append("started")
                while len(outcomes) < 2:
                    await anyio.lowlevel.checkpoint()
        except ConfigError as error:
            outcomes.append(str(error))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        tasks.start_soon(start)
    assert sorted(outcomes) == ["started", "the bus is running already"]
    assert not bus.is_running


@pytest.mark.parametrize("when", ["before", "after"])
async def test_every_door_of_a_bus_that_does_not_run_says_so(make_bus: Any, when: str) -> None:
    bus = make_bus()
    bus.topic("t")

    @bus.producer("t")
    async def say(text: str) -> str:
        return text

    if when == "after":
        async with bus:
            await bus.send("t", "x")
    doors: dict[str, Any] = {
        "send": lambda: bus.send("t", "x"),
        "send_nowait": lambda: bus.send_nowait("t", "x"),
        "send_many": lambda: bus.send_many("t", ["x"]),
        "say": lambda: say("x"),
        "transaction": lambda: bus.transaction("id"),
        "new_producer": bus.new_producer,
        "new_consumer": lambda: bus.new_consumer("t"),
        "drain": bus.drain,
        "admin": bus.admin.list_topics,
    }
    for name, door in doors.items():
        with pytest.raises(ConfigError, match="async with bus"):
            answer = door()
            if hasattr(answer, "__await__"):
                await answer
            raise AssertionError(name)


async def test_on_backend_runs_it_elsewhere_for_a_while(make_bus: Any, file_url: str) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[str] = []

    def clock() -> int:
        return 1_234_567

    @bus.consumer("t", group="g", start="earliest")
    async def handle(text: str, record: ConsumerRecord) -> None:
        seen.append(f"{text} {record.timestamp_ms}")

    elsewhere = open_backend("memory://", {}, clock)
    own = bus.admin
    with bus.context.on_backend(elsewhere, clock):
        async with bus:
            await bus.send("t", "test")
            await bus.drain()
            with pytest.raises(ConfigError, match="running already"), bus.context.on_backend(elsewhere, clock):
                pass
    assert seen == ["test 1234567"]
    assert bus.admin is own
    async with bus:
        await bus.send("t", "real")
        await bus.drain()
    assert len(seen) == 2 and seen[1].startswith("real 1")


async def test_in_group_runs_one_handler_alone_in_another_group(make_bus: Any) -> None:
    bus = make_bus()
    bus.topic("t")
    seen: list[tuple[str, str]] = []

    @bus.consumer("t", group="g", start="latest", group_instance_id="me")
    async def one(text: str) -> None:
        seen.append(("one", text))

    @bus.consumer("t", group="h")
    async def two(text: str) -> None:
        seen.append(("two", text))

    assert bus.context.handlers == [one, two] and bus.context.group_of(one) == "g"
    with bus.context.in_group(one, "replay"):
        async with bus:
            await bus.send("t", "x")
            await bus.drain()
            assert [runner.group for runner in bus.context.runners] == ["replay"]
            with pytest.raises(ConfigError, match="running already"), bus.context.in_group(one, "again"):
                pass
            assert [row.group for row in await bus.admin.list_groups()] == ["replay"]
    assert seen == [("one", "x")] and bus.context.handlers == [one, two]
    assert one.spec.group == "g"
    other = make_bus()
    with pytest.raises(ConfigError, match="not declared on this bus"), other.context.in_group(one, "replay"):
        pass


async def test_middleware_of_the_test_of_the_bus_and_of_the_handler_nest(make_bus: Any) -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def middleware(record: Any, call_next: Any) -> Any:
            order.append(name)
            return await call_next(record)

        return middleware

    bus = make_bus(middleware=[named("bus")])
    bus.topic("t")

    @bus.consumer("t", group="g", middleware=[named("handler")])
    async def handle(text: str) -> None:
        order.append("called")

    elsewhere = open_backend("memory://", {}, system_clock)
    with bus.context.on_backend(elsewhere, system_clock, [named("test")]):
        async with bus:
            await bus.send("t", "x")
            await bus.drain()
    assert order == ["test", "bus", "handler", "called"]
    order.clear()
    async with bus:
        await bus.send("t", "x")
        await bus.drain()
    assert order == ["bus", "handler", "called"]


@pytest.mark.parametrize("config", [{"drain_timeout_ms": -1}, {"wedged_after_ms": 0}, {"slow_loop_ms": 0}])
def test_times_that_make_no_sense_are_refused(config: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(config))):
        EventBus("memory://", **config)


async def test_closing_gives_the_record_at_work_its_time_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("eventbus.testing.memory._LEAVE_SECONDS", 0.001)
    bus = TestBus(drain_timeout_ms=5_000)
    bus.topic("t", partitions=2)
    ended: list[str] = []

    @bus.consumer("t", group="g")
    async def handle(text: str) -> None:
        try:
            await bus.clock.sleep(4 if text == "short" else 6)
        except BaseException:
            ended.append(f"{text} cancelled")
            raise
        ended.append(text)

    await bus.start()
    await bus.send("t", "short", partition=0)
    await bus.send("t", "long", partition=1)
    await bus.clock.settle()
    await bus.close()
    assert ended == ["short", "long cancelled"]
    assert "t-1 offset 0" in caplog.text and "t-0 offset 0" not in caplog.text
    async with bus:
        offsets = await bus.admin.group_offsets("g")
        assert offsets[TopicPartition("t", 0)].offset == 1 and TopicPartition("t", 1) not in offsets


async def test_closing_that_takes_long_logs_what_it_waits_for(monkeypatch: Any, caplog: Any) -> None:
    monkeypatch.setattr(bus_run, "_REPORT_AFTER_SECONDS", 0.01)
    bus = EventBus("memory://", drain_timeout_ms=100)
    bus.topic("t")
    begun = anyio.Event()

    @bus.consumer("t")
    async def handle(text: str) -> None:
        begun.set()
        await anyio.sleep_forever()

    async with bus:
        await bus.send("t", "x")
        await begun.wait()
    assert "closing has waited for 0.01 s for records in flight of handle, and waits up to 0.1 s" in caplog.text


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_handler_that_blocks_the_loop_of_its_bus_is_named(backend: str, caplog: pytest.LogCaptureFixture) -> None:
    noticed = threading.Event()

    class Notices(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "has been blocked" in record.getMessage() and "handler 'stuck'" in record.getMessage():
                noticed.set()

    async def main() -> None:
        bus = EventBus("memory://", slow_loop_ms=5)
        bus.topic("t")

        @bus.consumer("t", group="g")
        async def stuck(text: str) -> None:
            assert noticed.wait(30)

        async with bus:
            await bus.send("t", "x")
            await bus.drain()

    logger, notices = logging.getLogger("eventbus.loop"), Notices()
    logger.addHandler(notices)
    try:
        anyio.run(main, backend=backend)
    finally:
        logger.removeHandler(notices)
    assert noticed.is_set()


@pytest.mark.parametrize(
    ("config", "handler"),
    [({"slow_loop_ms": None}, "async"), ({}, "plain"), ({}, "none")],
    ids=["off", "plain", "none"],
)
async def test_nobody_watches_a_loop_without_need(make_bus: Any, config: dict[str, Any], handler: str) -> None:
    bus = make_bus(**config)
    bus.topic("t")
    if handler == "async":

        @bus.consumer("t")
        async def handle(text: str) -> None: ...
    elif handler == "plain":

        @bus.consumer("t", name="plain")
        def handle_plain(text: str) -> None: ...

    before = set(threading.enumerate())
    async with bus:
        assert not [one for one in set(threading.enumerate()) - before if one.name == "eventbus-loop-watch"]


async def test_a_bus_that_uses_nothing_has_no_task_for_it() -> None:
    """One task serves other threads, one keeps the log; schedules, producers and cleaning have none."""
    before = asyncio.all_tasks()
    async with EventBus("memory://") as bus:
        await others_wait()
        assert len(asyncio.all_tasks() - before) == 2
        await bus.admin.create_topic("t")
        await bus.send("t", "x", delay=0)  # what is put by is delivered all the same
        await bus.drain()
        assert (await bus.admin.describe_topics(["t"]))[0].partitions[0].high_watermark == 2  # and its commit
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_bus_that_is_cancelled_does_not_make_an_error_its_own_context(backend: str) -> None:
    """A circle of contexts hung every function that walked it: anyio, and a stack of the caller around the bus."""
    circles: list[BaseException] = []

    def look(error: BaseException) -> None:
        seen: set[int] = set()
        one: BaseException | None = error
        while one is not None:
            if id(one) in seen:
                circles.append(error)
                return
            seen.add(id(one))
            one = one.__context__

    async def live(running: anyio.Event) -> None:
        bus = EventBus("memory://")
        bus.topic("t")

        @bus.consumer("t", group="g")
        async def handle(text: str) -> None:
            running.set()
            await anyio.sleep_forever()

        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(bus)
                await bus.send("t", "x")
                await anyio.sleep_forever()
        except BaseException as error:
            look(error)
            raise

    async def main() -> None:
        running = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live, running)
            await running.wait()
            tasks.cancel_scope.cancel()

    anyio.run(main, backend=backend)
    assert circles == []
