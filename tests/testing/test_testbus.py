"""Buses under test: the real engine in memory, whose time the test moves."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest

from eventbus import Depends, EventBus, TopicPartition, consumer
from eventbus.errors import ConfigError, HandlerError, InvalidSessionTimeout, TransactionAborted
from eventbus.testing import FakeClock, TestBus, in_memory

Run = Callable[[Callable[[], Awaitable[None]]], None]


class Order(msgspec.Struct):
    order_id: str
    amount: float


class Invoice(msgspec.Struct):
    order_id: str
    total: float


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run(test: Callable[[], Awaitable[None]]) -> None:
        async def in_time() -> None:
            with anyio.fail_after(30):
                await test()

        anyio.run(in_time, backend=request.param)

    return run


def test_a_handler_in_six_lines(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)

        @bus.consumer("orders", group="billing")
        @bus.producer("invoices", key=lambda invoice: invoice.order_id)
        async def bill(order: Order) -> Invoice:
            return Invoice(order.order_id, order.amount * 1.2)

        async with bus:
            await bus.send("orders", Order("o-1", 10.0))
            await bus.log.drain()
            bus.log.assert_published("invoices", Invoice("o-1", 12.0), key="o-1")
            bus.log.assert_committed("billing", "orders", 0, 1)
            bus.log.assert_no_lag(bill)

    run(test)


def test_time_passes_when_the_test_says_so(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        clock = bus.clock
        begun = clock()

        @bus.consumer("jobs", group="workers")
        async def work(seconds: int) -> None:
            await clock.sleep(seconds)
            await bus.send("done", clock() - begun)

        async with bus:
            await bus.send("jobs", 60)
            await clock.advance(seconds=59)
            bus.log.assert_nothing_published("done")
            await clock.advance(seconds=1)
            bus.log.assert_published("done", 60_000)
            assert bus.log.records("jobs")[0].timestamp_ms == begun
            assert bus.log.records("done")[0].timestamp_ms == begun + 60_000

    run(test)


def test_commits_polls_and_sessions_go_by_the_clock(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)

        @bus.consumer("t", group="g")
        async def handle(value: str) -> None: ...

        async with bus:
            await bus.send("t", "x")
            await bus.clock.settle()
            assert bus.log.committed("g") == {}
            await bus.clock.advance(ms=200)
            assert bus.log.committed("g") == {TopicPartition("t", 0): 1}
            # A member that does not poll is given up by its group after max_poll_interval_ms, for another to take over.
            async with bus.new_consumer("t", group="slow", max_poll_interval_ms=20_000) as consumer:
                await consumer.poll(0)
                assert consumer.assignment() == [TopicPartition("t", 0)]
                await bus.clock.advance(seconds=20)
                assert consumer.assignment() == [TopicPartition("t", 0)]
                await bus.clock.advance(ms=10)
                assert consumer.assignment() == []

    run(test)


def test_a_consumer_that_stops_polling_is_given_up_in_time(run: Run) -> None:
    """Also when the housekeeping has last looked during its poll, and looks seldom."""

    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        async with bus:
            await bus.send("t", "x")
            async with bus.new_consumer("t", group="slow", max_poll_interval_ms=20_000) as consumer:
                await consumer.poll(0)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(consumer.poll, 100_000)
                    await bus.clock.advance(seconds=50)
                    await bus.send("t", "y")
                await bus.clock.advance(seconds=20)
                assert consumer.assignment() == [TopicPartition("t", 0)]
                await bus.clock.advance(ms=10)
                assert consumer.assignment() == []

    run(test)


def test_transactions_time_out_by_the_clock(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        bus.topic("t")
        async with bus:
            with pytest.raises(TransactionAborted):
                async with bus.transaction("importer", timeout_ms=5_000) as tx:
                    await tx.send("t", "never seen")
                    await bus.clock.advance(seconds=10)
            bus.log.assert_nothing_published("t")

    run(test)


def test_retention_goes_by_the_clock(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        bus.topic("t", configs={"retention.ms": 600_000, "segment.ms": 60_000})
        async with bus:
            await bus.send("t", "old")
            await bus.clock.advance(seconds=550)
            await bus.send("t", "new")
            bus.log.assert_published("t", "old", "new")
            await bus.clock.advance(seconds=150)
            bus.log.assert_published("t", "new")

    run(test)


def test_a_long_poll_ends_when_the_clock_says_so(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        bus.topic("t")
        async with bus, bus.new_consumer("t") as reader:
            polled: list[int] = []

            async def poll() -> None:
                polled.append(len(await reader.poll(10_000)))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(poll)
                await bus.clock.advance(ms=9_999)
                assert polled == []
                await bus.clock.advance(ms=1)
                assert polled == [0]

    run(test)


def test_lingering_producers_do_not_wait_for_a_clock_that_stands_still(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True, linger_ms=50)
        async with bus:
            await bus.send("t", "x")
            async with bus.new_producer(linger_ms=1_000) as producer:
                await producer.send("t", "y")
            bus.log.assert_published("t", "x", "y")

    run(test)


def test_a_bus_that_is_started_again_finds_its_log(run: Run) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True, num_partitions=2)
        handled: list[str] = []

        @bus.consumer("t", group="g")
        async def handle(value: str) -> None:
            if value == "poison" and handled == ["a"]:
                raise ValueError("crash")
            handled.append(value)

        with pytest.raises(HandlerError):
            async with bus:
                await bus.send("t", "a", partition=0)
                await bus.send("t", "poison", partition=0)
                await bus.log.drain()
        assert bus.log.committed("g") == {TopicPartition("t", 0): 1}
        handled.append("the service is started again")
        async with bus:
            await bus.log.drain()
        assert handled == ["a", "the service is started again", "poison"]
        bus.log.assert_no_lag("g")
        bus.log.assert_published("t", "a", "poison", partition=0)

    run(test)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kit does after some seconds of reality, it does at once."""
    monkeypatch.setattr("eventbus.testing.memory._LEAVE_SECONDS", 0)
    monkeypatch.setattr("eventbus.testing.memory._STALL_SECONDS", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("fails", [False, True])
def test_leaving_does_not_wait_for_a_clock_nobody_moves_any_more(run: Run, fails: bool) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        ended: list[str] = []

        @bus.consumer("jobs", group="workers")
        async def work(seconds: int) -> None:
            try:
                await bus.clock.sleep(seconds)
                ended.append("finished")
            finally:
                ended.append("left")

        async def with_a_job(seconds: int) -> None:
            async with bus:
                await bus.send("jobs", seconds)
                await bus.clock.settle()
                if fails:
                    raise ZeroDivisionError("the test's own failure, not to be hidden")

        for seconds, expected in ((20, ["finished", "left"]), (10_000, ["left"])):  # drain_timeout_ms is 30 s
            ended.clear()
            if fails:
                with pytest.raises(ZeroDivisionError):
                    await with_a_job(seconds)
            else:
                await with_a_job(seconds)
            assert ended == expected

    run(test)


@pytest.mark.usefixtures("impatient")
def test_closing_by_hand_and_in_memory_lets_time_pass_too(run: Run) -> None:
    async def test() -> None:
        for bus in (TestBus(auto_create_topics=True), EventBus("memory://", auto_create_topics=True)):
            clock = FakeClock() if not isinstance(bus, TestBus) else bus.clock

            @bus.consumer("jobs", group="workers")
            async def work(seconds: int, clock: FakeClock = clock) -> None:
                await clock.sleep(seconds)

            if isinstance(bus, TestBus):
                await bus.start()
                await bus.send("jobs", 10_000)
                await clock.settle()
                await bus.close()
            else:
                async with in_memory(bus, clock):
                    await bus.send("jobs", 10_000)
                    await clock.settle()
            assert clock() >= 1_700_000_030_000

    run(test)


@pytest.mark.usefixtures("impatient")
def test_a_test_that_waits_for_ever_finds_out_why(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        bus = TestBus(auto_create_topics=True)
        bus.topic("t")
        async with bus, bus.new_consumer("t") as reader:
            with anyio.CancelScope() as scope:
                told = logging.Handler()
                told.emit = lambda record: scope.cancel()
                monkeypatch.setattr(logging.getLogger("eventbus.testing"), "handlers", [told])
                await reader.poll()
        assert "ends in `await clock.advance(...)` alone" in caplog.text

    run(test)


def test_two_buses_have_nothing_in_common(run: Run) -> None:
    async def test() -> None:
        one, other = TestBus(auto_create_topics=True), TestBus()
        async with one, other:
            await one.send("t", "x")
            assert one.log.topics() == ["t"]
            assert other.log.topics() == []

    run(test)


@consumer("orders", group="billing")
async def marked(order: Order) -> None: ...


def test_an_applications_own_bus_runs_in_memory(run: Run, tmp_path: object) -> None:
    async def test() -> None:
        url = f"file://{tmp_path}/never-opened"
        app = EventBus(url, client_id="shop")
        app.topic("orders", partitions=3)
        app.include(marked)
        clock = FakeClock(1_000)
        for _ in range(2):
            async with in_memory(app, clock) as log:
                assert (log.bus, log.clock) == (app, clock)
                await app.send("orders", Order("o-1", 5.0), key="o-1")
                await log.drain()
                log.assert_published("orders", Order("o-1", 5.0))
                log.assert_no_lag(marked)
                assert sum(log.committed("billing").values()) == 1
        assert app.url == url
        assert not app.is_running
        assert await anyio.Path(f"{tmp_path}/never-opened").exists() is False

    run(test)


@pytest.mark.parametrize("run", ["asyncio"], indirect=True)
def test_a_typo_in_a_topic_name_fails_in_memory_as_in_production(run: Run) -> None:
    """A topic that the kit created on its own would hide it."""

    async def test() -> None:
        for bus in (EventBus("file://./prod"), TestBus()):
            bus.topic("orders")

            @bus.consumer("orders", group="billing")
            async def bill(order: str, bus: EventBus = Depends(lambda bus=bus: bus)) -> None:
                await bus.send("invioces", order)

            async with bus if isinstance(bus, TestBus) else in_memory(bus):
                await bus.send("orders", "o-1")
                with pytest.raises(HandlerError, match="there is no topic 'invioces'"):
                    await bus.drain()

    run(test)


@pytest.mark.parametrize("run", ["asyncio"], indirect=True)
def test_the_log_in_memory_has_the_settings_of_the_bus(run: Run) -> None:
    """They come from its keywords and its URL, whose own log is not opened; keywords of `in_memory` replace them."""

    async def test() -> None:
        limits = {"group_max_session_timeout_ms": 50_000, "log_defaults": {"retention.ms": 7}}
        bus = EventBus("file://./prod?num_partitions=3&auto_create_topics=true", **limits)
        for replaced, partitions in (dict[str, int](), 3), ({"num_partitions": 2}, 2):
            async with in_memory(bus, **replaced):
                await bus.send("orders", "o-1")
                [orders] = await bus.admin.describe_topics(["orders"])
                assert (len(orders.partitions), orders.configs["retention.ms"].value) == (partitions, "7")
                with pytest.raises(InvalidSessionTimeout, match="50000"):
                    async with bus.new_consumer("orders", group="g", session_timeout_ms=50_001):
                        pytest.fail("it must not open")

    run(test)


def test_a_bus_that_runs_is_not_taken_away_from_its_log(run: Run) -> None:
    async def test() -> None:
        async with EventBus("memory://") as app:
            with pytest.raises(ConfigError, match="running already"):
                async with in_memory(app):
                    pytest.fail("it must not start")

    run(test)


def test_settings_are_those_of_the_bus() -> None:
    assert TestBus(num_partitions=3).url == "memory://"
    with pytest.raises(ConfigError, match="did you mean 'num_partitions'"):
        TestBus(num_partition=3)


def test_pytest_does_not_take_them_for_tests() -> None:
    assert TestBus.__test__ is False
    assert type(TestBus(auto_create_topics=True).log).__test__ is False
