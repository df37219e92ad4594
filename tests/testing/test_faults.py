"""What goes wrong on demand: it happens, it is over when it is said to be, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from eventbus import EventBus, Transaction
from eventbus.errors import (
    ConfigError,
    CoordinatorNotAvailable,
    IllegalGeneration,
    ProducerFenced,
    RequestTimedOut,
    UnknownMemberId,
)
from eventbus.testing import TestBus
from eventbus.types import TopicPartition

Test = Callable[[TestBus], Awaitable[None]]


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Test], None]:
    def run(test: Test) -> None:
        async def in_time() -> None:
            with anyio.fail_after(30):
                await test(TestBus(auto_create_topics=True, num_partitions=2))

        anyio.run(in_time, backend=request.param)

    return run


def handler(bus: EventBus) -> list[str]:
    handled: list[str] = []

    @bus.consumer("in", group="g")
    async def handle(value: str) -> None:
        handled.append(value)

    return handled


async def send(bus: EventBus, *values: int) -> None:
    for value in values:
        await bus.send("in", str(value), partition=value % 2)


# groups ---------------------------------------------------------------------------------------------------------------


def test_a_rebalance_takes_every_partition_and_gives_it_back(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        moves: list[tuple[str, list[TopicPartition]]] = []
        handled = handler(bus)
        both = [TopicPartition("in", 0), TopicPartition("in", 1)]
        async with bus:
            await send(bus, 1, 2)
            await bus.log.drain()
            (runner,) = bus.context.runners
            before = runner.member.generation_id
            consumer = bus.new_consumer(
                "in",
                group="watched",
                on_assigned=lambda given: moves.append(("assigned", given)),
                on_revoked=lambda gone: moves.append(("revoked", gone)),
            )
            async with consumer, anyio.create_task_group() as tasks:

                async def poll() -> None:
                    while True:
                        await consumer.poll()

                tasks.start_soon(poll)
                await bus.clock.settle()
                await bus.log.faults.rebalance("watched")
                assert moves[-1] == ("assigned", both), "all of them are back when it returns"
                tasks.cancel_scope.cancel()
            assert moves[:2] == [("assigned", both), ("revoked", both)]
            await bus.log.faults.rebalance("g")
            assert runner.member.generation_id > before
            await send(bus, 3, 4)
            await bus.log.drain()
            bus.log.assert_no_lag("g")
        assert sorted(handled) == ["1", "2", "3", "4"]

    run(test)


def test_a_rebalance_waits_for_the_record_at_work(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        events: list[str] = []

        @bus.consumer("in", group="g")
        async def handle(value: str) -> None:
            events.append("begun")
            await bus.clock.sleep(1)
            events.append("finished")

        async with bus:
            await send(bus, 1)
            await bus.clock.settle()

            async def rebalance() -> None:
                await bus.log.faults.rebalance("g")
                events.append("rebalanced")

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(rebalance)
                await bus.clock.settle()
                assert events == ["begun"]
                await bus.clock.advance(seconds=2)
            await bus.log.drain()
        assert events == ["begun", "finished", "rebalanced"]

    run(test)


def test_a_lost_session_hands_out_again_what_was_not_committed(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        handled = handler(bus)
        async with bus:
            await send(bus, 1)
            await bus.log.drain()
            with bus.log.faults.outage("commit"):
                await send(bus, 3)
                await bus.clock.settle()
                assert handled == ["1", "3"]
                await bus.log.faults.lose("g")
            await bus.log.drain()
            assert handled == ["1", "3", "3"]
            async with bus.new_consumer("in", group="mine") as consumer:
                await consumer.poll(timeout_ms=0)
                await bus.log.faults.lose("mine")
                with pytest.raises((UnknownMemberId, IllegalGeneration)):
                    await consumer.commit({TopicPartition("in", 1): 1})

    run(test)


def test_records_are_delivered_again(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        handled = handler(bus)
        async with bus:
            await send(bus, 1, 3, 5, 2)
            await bus.log.drain()
            bus.log.faults.redeliver("g", "in", partition=1, offset=1)
            await bus.log.drain()
            assert sorted(handled) == ["1", "2", "3", "3", "5", "5"]
            assert bus.log.committed("g")[TopicPartition("in", 1)] == 3

    run(test)


# transactions ---------------------------------------------------------------------------------------------------------


def test_a_producer_that_is_fenced_hears_of_it(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        async with bus, bus.new_producer(transactional_id="importer-1") as producer:
            await producer.begin()
            await producer.send("out", "zombie")
            await bus.log.faults.fence("importer-1")
            with pytest.raises(ProducerFenced):
                await producer.commit()
            bus.log.assert_nothing_published("out")

    run(test)


def test_an_exactly_once_handler_that_is_fenced_begins_again(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        calls: list[str] = []

        @bus.consumer("in", group="g", exactly_once=True)
        async def copy(value: str, tx: Transaction) -> None:
            calls.append(value)
            await tx.send("out", f"copy of {value}")
            if calls == ["1"]:
                await bus.log.faults.fence("copy")

        async with bus:
            await send(bus, 1)
            await bus.log.drain()
            assert calls == ["1", "1"]
            assert bus.log.values("out", str) == ["copy of 1"]

    run(test)


# the log --------------------------------------------------------------------------------------------------------------


def test_an_outage_is_over_when_its_block_is(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        handled = handler(bus)
        async with bus:
            await bus.clock.settle()
            with bus.log.faults.outage():
                with pytest.raises(RequestTimedOut, match=r"send: no answer in time \(a test's outage\)"):
                    await send(bus, 1)
                await bus.clock.advance(seconds=3)
            await send(bus, 1)
            await bus.log.drain()
            assert handled == ["1"]

            with bus.log.faults.outage("commit", group="g"):
                await send(bus, 2)
                await bus.clock.advance(seconds=1)
                assert handled == ["1", "2"]
                assert sum(bus.log.lag("g").values()) == 1
                assert "cannot be reached" in bus.context.runners[0].commit_error
            await bus.log.drain()
            bus.log.assert_no_lag("g")

            with bus.log.faults.outage("fetch", group="another"), bus.log.faults.outage("send", topic="another"):
                await send(bus, 3)
                await bus.log.drain()
            assert handled == ["1", "2", "3"]
            assert bus.log.faults.hooks_count == 0

    run(test)


def test_calls_that_hang_go_on_when_it_is_over(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        handled = handler(bus)
        async with bus:
            await bus.clock.settle()
            with bus.log.faults.outage(hang=True):
                delivery = bus.send_nowait("in", "1", partition=1)
                await bus.clock.advance(seconds=10)
                assert not delivery.done()
            assert (await delivery).offset == 0
            await bus.log.drain()
            assert handled == ["1"]

            with bus.log.faults.outage("fetch", hang=True):
                await send(bus, 2)  # a fetch that waited in the log when it began does not come back with it
                await bus.clock.advance(seconds=300)
                assert handled == ["1"]
            await bus.log.drain()
            assert handled == ["1", "2"]

            with bus.log.faults.outage("send", hang=True):
                delivery = bus.send_nowait("in", "never", partition=1)
                await bus.clock.advance(seconds=61)
                with pytest.raises(RequestTimedOut, match="for 60 s"):
                    await delivery

    run(test)


def test_slow_steps_take_their_time(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        async with bus:
            with bus.log.faults.slow("send", ms=200, topic="in"):
                began_ms = bus.clock()
                delivery = bus.send_nowait("in", "1")
                await bus.send("elsewhere", "at once")
                assert bus.clock() == began_ms
                await bus.clock.advance(ms=199)
                assert not delivery.done()
                await bus.clock.advance(ms=1)
                assert delivery.done()

    run(test)


def test_one_request_fails_or_its_answer_is_lost(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        faults = bus.log.faults
        async with bus, bus.new_consumer("in", group="g", value=str) as consumer:
            await send(bus, 1)
            assert len(await consumer.poll()) == 1
            faults.fail_next("commit", times=2)
            for _ in range(2):
                with pytest.raises(CoordinatorNotAvailable):
                    await consumer.commit()
            assert bus.log.committed("g") == {}
            faults.fail_next("commit", RequestTimedOut("no answer"), after=True)
            with pytest.raises(RequestTimedOut, match="no answer"):
                await consumer.commit()
            assert bus.log.committed("g") == {TopicPartition("in", 1): 1}
            await consumer.commit()
            faults.fail_next("send", times=0)
            await send(bus, 2)
            assert faults.hooks_count == 0

    run(test)


def test_the_coordinator_restarts_under_everybody(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        handled = handler(bus)
        async with bus:
            await send(bus, 1)
            await bus.log.drain()
            async with bus.transaction("x") as tx:
                await tx.send("in", "2", partition=0)
                await bus.log.faults.restart_coordinator()
            await send(bus, 3)
            await bus.log.drain()
            bus.log.assert_no_lag("g")
        assert sorted(handled) == ["1", "2", "3"]

    run(test)


# names ----------------------------------------------------------------------------------------------------------------


def test_unknown_names_are_answered_with_the_nearest(run: Callable[[Test], None]) -> None:
    async def test(bus: TestBus) -> None:
        faults = bus.log.faults

        @bus.consumer("orders", group="billing")
        async def bill(value: str) -> None: ...

        with pytest.raises(ConfigError, match="is the bus running"):
            await faults.rebalance("billing")
        async with bus:
            for call in (faults.rebalance, faults.lose):
                with pytest.raises(ConfigError, match="did you mean 'billing'"):
                    await call("biling")
            with pytest.raises(ConfigError, match=r"did you mean 'orders-1'.*they read orders-0, orders-1"):
                faults.redeliver("billing", "order", 1)
            with pytest.raises(ConfigError, match="no producer has taken the transactional id 'bil'"):
                await faults.fence("bil")
            with pytest.raises(ConfigError, match="did you mean 'commit'"), faults.outage("comit"):  # pyright: ignore
                pass
            with pytest.raises(ConfigError, match="there are fetch, send"):
                faults.fail_next("poll")  # pyright: ignore

    run(test)
