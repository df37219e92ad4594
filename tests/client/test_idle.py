"""The answer to "is all done?" is never yes while something waits. It is asked at every turn."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from eventbus import ConsumerRecord, EventBus, GroupMetadata
from eventbus.client.handling.revocation import Handovers
from eventbus.coordinator.requests import GroupDescription
from eventbus.testing import TestBus
from eventbus.testing.clock import FakeClock
from tests.client.trials import run_the_same

LOGS = itertools.count()

WAYS: dict[str, dict[str, Any]] = {
    "partition": {},
    "none": {"order": "none", "concurrency": 2, "max_unfinished": 2},
    "key": {"order": "key", "concurrency": 2, "max_unfinished": 2},
    "manual": {"ack": "manual", "max_unfinished": 2},
    "exactly once": {"exactly_once": True, "transaction_records": 2},
}


@pytest.mark.parametrize("options", WAYS.values(), ids=WAYS)
async def test_a_runner_is_not_idle_before_everything_is_handled(bus: TestBus, options: dict[str, Any]) -> None:
    """Found by the trials: records that waited for room (``max_unfinished``) were nowhere, and drain() ended early."""
    handled: list[int] = []

    @bus.consumer("t", group="g", **options)
    async def handle(record: ConsumerRecord) -> None:
        await anyio.lowlevel.checkpoint()
        handled.append(record.offset)
        if options.get("ack") == "manual":
            record.ack()

    async with bus:
        await bus.send("t", b"0")
        await bus.drain()
        await bus.send_many("t", [b"%d" % number for number in range(1, 10)])
        with anyio.fail_after(20):
            while not await bus.context.runners[0].is_idle():
                await anyio.lowlevel.checkpoint()
        assert sorted(set(handled)) == list(range(10))


async def test_what_waits_for_room_is_not_done(bus: TestBus) -> None:
    """The same, at the very moment at which all that was begun is finished."""
    begun: list[ConsumerRecord] = []

    @bus.consumer("t", group="g", ack="manual", max_unfinished=2)
    async def handle(record: ConsumerRecord) -> None:
        begun.append(record)

    async with bus:
        await bus.send_many("t", [b"%d" % number for number in range(4)])
        await bus.clock.settle()
        assert len(begun) == 2
        for record in begun[:]:
            record.ack()
        [driver] = bus.context.runners[0].drivers.values()
        assert not driver.is_idle
        await bus.clock.settle()
        for record in begun[2:]:
            record.ack()
        await bus.log.drain()
        assert len(begun) == 4


async def ask_in_a_rebalance(partitions: int) -> None:
    clock = FakeClock()
    url = f"memory://settled-{next(LOGS)}"
    first, second, third = buses = [EventBus(url, client_id=name, clock=clock) for name in "abc"]
    for bus in buses:

        @bus.consumer("t", group="g", partition_assignment_strategy="cooperative-sticky")
        async def handle(value: bytes) -> None: ...

    async def ask(bus: EventBus) -> None:
        while await bus.context.runners[0].is_idle():
            await anyio.lowlevel.checkpoint()
        await bus.drain()

    async with EventBus(url, clock=clock) as keeper:
        await keeper.admin.create_topic("t", partitions)
        async with first, second:
            await clock.settle()
            with anyio.fail_after(20):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(ask, first)
                    tasks.start_soon(ask, second)
                    async with third:
                        await third.drain()


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_rebalance_that_moves_nothing_ends_for_who_waits(backend: str, partitions: int) -> None:
    """By a fake clock drain() hung: asked while the group rebalanced, and told of its end by the next poll only.

    Two members, each asked at the first turn at which the group is not settled, while a third joins. The two keep what
    they have (of one partition, one of them has none): nothing is taken from them or assigned, and no fetch returns.
    """
    run_the_same(backend, ask_in_a_rebalance, partitions)


@pytest.mark.parametrize(("here", "there", "settled"), [(3, 3, True), (2, 3, False), (-1, -1, False)])
async def test_a_generation_that_nobody_knows_is_not_agreed_about(here: int, there: int, settled: bool) -> None:
    """On a Kafka: the group is stable, and its member has not heard of its partitions yet. drain() ended early."""
    log: Any = SimpleNamespace(timers=None)
    consumer: Any = SimpleNamespace(polled=lambda: False, group_metadata=lambda: GroupMetadata("g", here))

    async def describe_groups(_: object) -> list[GroupDescription]:
        return [GroupDescription("g", "Stable", "consumer", "range", there, ())]

    log.describe_groups = describe_groups
    nothing: Any = None
    handler: Any = SimpleNamespace(spec=SimpleNamespace(pattern=None))
    handovers = Handovers(handler, "g", log, consumer, {}, nothing, nothing, 1.0, nothing, nothing, nothing)
    assert await handovers.is_settled() is settled
