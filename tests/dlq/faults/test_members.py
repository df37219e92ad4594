"""Members of a group come, go and stand still while records fail, wait and die."""

from __future__ import annotations

import itertools
from random import Random

import anyio
import pytest
from anyio.abc import TaskGroup

from eventbus import EventBus
from eventbus.testing import FakeClock
from eventbus.testing.faulty import Call as Hooked
from eventbus.testing.faulty import Step, Wait
from tests.dlq.faults.failing import Breaking, letters, retry
from tests.dlq.kill.account import Account, account, disordered, unsettled, wrong
from tests.dlq.kill.service import Call, Names, send_some, service
from tests.tiers import of_today, quick

pytestmark = pytest.mark.system

_numbers = itertools.count()
PROMISES = pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])


# one that stands still ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "exactly_once"),
    quick(
        [
            ("commit_transaction", False),
            ("commit_transaction", True),
            ("send_offsets", True),
            ("send_offsets", False),
            ("init_transactions", False),
        ],
        3,
    ),
)
async def test_who_was_given_up_writes_no_second_dead_letter(log: Breaking, step: Step, exactly_once: bool) -> None:
    """A member stands still while it writes one down, and goes on when another has handled the record."""
    goes_on, called = anyio.Event(), list[str]()
    held: list[object] = []

    def hold(call: Hooked) -> Wait | None:
        if call.step != step or call.when != "before" or held or not called:
            return None
        held.append(call.client)
        return goes_on.wait

    def member(name: str) -> EventBus:
        bus = log.bus()

        @bus.consumer(
            log.topic,
            group=log.group,
            exactly_once=exactly_once,
            group_instance_id=name,  # of two, the partition is given to the first by name
            max_poll_interval_ms=60_000,
            drain_timeout_ms=1_000,
            retry=retry(delays=None),
        )
        async def bill(order: bytes) -> None:
            called.append(name)
            raise LookupError(order)

        return bus

    log.hooks.append(hold)
    async with log.opened(), member("slow") as slow:
        await slow.send(log.topic, b"bad", key=b"k")
        await log.until(lambda: held)
        async with member("quick") as quick:
            await log.passes(200)
            goes_on.set()
            await log.passes(200)
            await log.drain(quick)
            assert [letter.value for letter in await letters(log, quick)] == [b"bad"]
            assert called.count("slow") == 1 and ("quick" in called or step != "commit_transaction")


# many that come and go ------------------------------------------------------------------------------------------------


class Storm:
    """A group whose members begin and end by chance, in order or all of a sudden."""

    def __init__(self, seed: int, *, exactly_once: bool) -> None:
        self._chance = Random(seed)
        self._exactly_once = exactly_once
        self._url = f"memory://dlq-storm-{next(_numbers)}"
        self._clock = FakeClock()
        self._names = Names()
        self._members: list[tuple[anyio.Event, anyio.CancelScope]] = []
        self._calls: list[Call] = []

    async def run(self) -> list[str]:
        """Return what is wrong after everything is settled."""
        async with EventBus(self._url, clock=self._clock) as keeper, anyio.create_task_group() as tasks:
            self._begin(tasks)
            await self._clock.advance(ms=1_000)
            for _ in range(40):
                self._one_thing(tasks, keeper)
                await self._clock.advance(ms=self._chance.choice([1, 50, 400, 3_000]))
            self._begin(tasks)
            found = await self._settled(keeper)
            for end, _ in self._members:
                end.set()
            for _ in range(100):
                await self._clock.advance(ms=1_000)
            tasks.cancel_scope.cancel()
        # Members work concurrently, so each call is checked separately, in the order in which calls began.
        lives = [[call] for call in self._calls]
        return [*wrong(found, exactly_once=self._exactly_once), *unsettled(found, 5), *disordered(found, lives)]

    def _one_thing(self, tasks: TaskGroup, bus: EventBus) -> None:
        dice = self._chance.random()
        if dice < 0.2 and len(self._members) < 4:
            self._begin(tasks)
        elif dice < 0.35 and self._members:
            end, scope = self._members.pop(self._chance.randrange(len(self._members)))
            if self._chance.random() < 0.5:
                end.set()
            else:
                scope.cancel()
        else:
            send_some(bus, self._names.orders, self._chance, self._chance.randint(1, 10))

    def _begin(self, tasks: TaskGroup) -> None:
        end, scope = anyio.Event(), anyio.CancelScope()
        self._members.append((end, scope))
        tasks.start_soon(self._member, end, scope)

    async def _member(self, end: anyio.Event, scope: anyio.CancelScope) -> None:
        bus = EventBus(self._url, clock=self._clock)
        service(bus, self._names, self._calls.append, exactly_once=self._exactly_once, delays=(0.5, 1.0, 2.0))
        with scope:
            async with bus:
                await end.wait()

    async def _settled(self, bus: EventBus) -> Account:
        for _ in range(300):
            found = await account(bus, self._names)
            if found.is_settled:
                break
            await self._clock.advance(ms=1_000)
        return found


@PROMISES
@pytest.mark.parametrize("seed", quick(range(4), 1))
async def test_members_come_and_go(seed: int, exactly_once: bool) -> None:
    assert await Storm(seed, exactly_once=exactly_once).run() == []


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@PROMISES
async def test_members_come_and_go_often(exactly_once: bool) -> None:
    for seed in of_today(range(100, 300)):
        assert await Storm(seed, exactly_once=exactly_once).run() == [], seed
