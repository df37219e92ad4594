"""A service ends before and after each of its steps, from the first failure to the last commit, on a log in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.urls import broker_config
from eventbus.client.producer import Producer
from eventbus.delays.retry_partition import RetryPartition
from eventbus.recovery import Plan, RetryOrder
from eventbus.testing import FakeClock
from eventbus.testing.bus import bus_on
from eventbus.testing.crash_disk import Disk
from eventbus.testing.crash_process import Instant, Process, Settings, Way
from eventbus.types import GroupMetadata, OffsetAndMetadata, TopicPartition
from tests.dlq.kill.account import Account, account, disordered, unsettled, wrong
from tests.dlq.kill.service import NEVER, ONCE, REJECTED, Call, Names, service

pytestmark = pytest.mark.system

NAMES = Names()
DELAYS_S = (0.2, 0.3)
"""Shorter than the second after which a life in which nothing moves is over."""
Records = Sequence[tuple[str | None, str]]
RECORDS: Records = [("a", "2"), ("b", REJECTED), ("a", "0"), ("b", ONCE), (None, NEVER), ("a", "3"), ("b", "0")]
FEW_RECORDS: Records = [("a", "2"), (None, NEVER), ("a", "3")]
"""The effort grows with the square of their number: each record adds steps, and each life handles all of them."""


class Form(NamedTuple):
    """The form of a handler."""

    order: RetryOrder = "key"
    exactly_once: bool = False

    def __repr__(self) -> str:
        return f"{self.order}, exactly once" if self.exactly_once else self.order


FORMS = [Form(), Form("partition"), Form("none"), Form("key", exactly_once=True)]
ALL_FORMS = [*FORMS, Form("partition", exactly_once=True), Form("none", exactly_once=True)]


class Trials:
    """Lives of a service on disks that begin alike."""

    def __init__(self, form: Form, records: Records) -> None:
        self._form = form
        self._records = records
        self._clock = FakeClock()
        self._disk = Disk()
        self._config: dict[str, Any] = {"offsets_topic_num_partitions": 1, "transaction_state_log_num_partitions": 1}

    async def publish(self) -> None:
        async def send(bus: EventBus) -> None:
            for number, (key, plan) in enumerate(self._records):
                await bus.send(NAMES.orders, f"{plan}/{number}", key=key, partition=0)

        await Process(self._bus([]), self._disk, self._settings(send)).only_publish()

    async def steps(self) -> list[Instant]:
        """Those of a life that nothing ends; of several between which nothing was done, one."""
        process = await self._live([], self._disk.copy())
        return [instant for index, instant in enumerate(process.trace) if process.is_told_apart(index)]

    async def end_at(self, way: Way, *ends: Instant | int) -> list[str]:
        """Return what is wrong after lives that end at these steps, and a last life that does not."""
        lives: list[list[Call]] = []
        disk = self._disk
        at = f"{way} {', then '.join(map(str, ends))}: "
        for end in (*ends, None):
            lives.append([])
            disk = (await self._live(lives[-1], disk.copy(), end, way)).survivors
            found = [*wrong(await self._account(disk), exactly_once=self._form.exactly_once)]
            if found:
                return [at + each for each in found]
        last = await self._account(disk)
        found = [*unsettled(last, 2 + len(DELAYS_S)), *(() if self._form.order == "none" else disordered(last, lives))]
        return [at + each for each in found]

    async def _account(self, disk: Disk) -> Account:
        async with bus_on(disk.copy(), clock=lambda: self._clock(), **self._config) as bus:
            return await account(bus, NAMES)

    async def _live(
        self, calls: list[Call], disk: Disk, ends_at: Instant | int | None = None, way: Way = "kill"
    ) -> Process:
        process = Process(self._bus(calls), disk, self._settings(_idle), ends_at, way)
        await process.live()
        assert process.error is None, process.error
        return process

    def _bus(self, calls: list[Call]) -> EventBus:
        bus = EventBus("memory://")
        service(bus, NAMES, calls.append, delays=DELAYS_S, **self._form._asdict())
        return bus

    def _settings(self, run: Callable[[EventBus], Awaitable[object]]) -> Settings:
        return Settings(self._clock, broker_config(self._config), run, 60)


async def _idle(bus: EventBus) -> None:
    """Keep a life running while anything moves, not only until all records are handled."""
    await anyio.sleep_forever()


async def complaints(
    way: Way, form: Form = FORMS[0], *, records: Records = FEW_RECORDS, every: int = 1, pairs: int = 0
) -> list[str]:
    """Return the errors of the first life, ended at each step, that has any; or of two lives, ended at random steps."""
    trials = Trials(form, records)
    await trials.publish()
    steps = await trials.steps()
    assert len(steps) > 20
    ends: list[tuple[Instant | int, ...]] = [(step,) for step in steps[::every]]
    if pairs:
        chance = Random(pairs)
        ends = [(chance.choice(steps), chance.randrange(2 * len(steps))) for _ in range(pairs)]
    for each in ends:
        if found := await trials.end_at(way, *each):
            return found
    return []


@pytest.mark.parametrize("form", [Form(), Form("key", exactly_once=True)], ids=repr)
async def test_killed_at_every_third_step(form: Form) -> None:
    """The slow tier kills at every step. Not at every second one, which would all be after a write, or all before."""
    assert await complaints("kill", form, every=3) == []


@pytest.mark.slow
@pytest.mark.parametrize("form", ALL_FORMS, ids=repr)
@pytest.mark.parametrize("way", ["kill", "cancel", "stop"])
@pytest.mark.timeout(900)
async def test_ended_twice(way: Way, form: Form) -> None:
    assert await complaints(way, form, records=RECORDS) == []
    assert await complaints(way, form, records=RECORDS, pairs=500) == []


# planted bugs ---------------------------------------------------------------------------------------------------------


async def test_offsets_beside_the_transaction_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def beside(self: Producer, offsets: dict[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        engine = self._backend._backend.engine  # of the faulty producer's faulty log
        engine.broker.groups.commit_offsets(group, offsets, engine.now_ms())

    monkeypatch.setattr(Producer, "send_offsets", beside)
    assert await complaints("kill")


@pytest.mark.slow  # only one of the last steps is after a mark
async def test_marks_that_are_left_out_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = RetryPartition.plan

    def forgetful(self: RetryPartition) -> Plan | None:
        made = plan(self)
        return made and made._replace(done=None)

    monkeypatch.setattr(RetryPartition, "plan", forgetful)
    assert await complaints("kill")


async def test_keys_that_are_not_held_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPartition, "holds", lambda *_: ())
    assert "is called before" in (await complaints("kill"))[0]
