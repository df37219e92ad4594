"""The log fails while records fail: every record ends once, by a handled call or a dead letter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dlq import Retry
from eventbus import ConsumerRecord
from eventbus.delays.retry_records import attempts_of
from eventbus.errors import EventBusError, ProducerFenced, RebalanceInProgress, StorageFull, TransactionAborted
from eventbus.testing import TestBus
from eventbus.testing.faulty import Step

RETRY = Retry(immediate=0, delays=[2, 3], jitter=False)
VALUES = [f"{key}{number}" for number in range(4) for key in "abcdef"]
SHAPES: dict[str, dict[str, Any]] = {
    "in order": {},
    "by key": {"order": "key", "concurrency": 8},
    "exactly once": {"exactly_once": True},
}


class Story:
    """A handler whose records of keys b and c fail for ever, and of d twice; and what became of them."""

    def __init__(self, shape: str, bus: TestBus) -> None:
        self.done: list[str] = []
        self.bus = bus
        self.made: list[tuple[str, int, int]] = []
        bus.topic("orders", partitions=2)

        @bus.consumer("orders", group="billing", retry=RETRY, **SHAPES[shape])
        @bus.producer("bills")
        async def bill(record: ConsumerRecord) -> str:
            value = (record.value or b"").decode()
            await anyio.lowlevel.checkpoint()
            tried = attempts_of(record)
            self.made.append((value, tried.attempt, bus.clock()))
            if value[0] in "bc" or (value[0] == "d" and tried.attempt < 2):
                raise ValueError(value)
            self.done.append(value)
            return value

    async def send(self) -> None:
        for value in VALUES:
            self.bus.send_nowait("orders", value.encode(), key=value[0].encode())
        await self.bus.flush()

    async def until_all_ended(self) -> None:
        for _ in range(400):
            await self.bus.clock.advance(ms=500)
            if len(self.dead) + len(set(self.published)) >= len(VALUES):
                break
        await self.bus.clock.advance(seconds=60)

    @property
    def dead(self) -> list[str]:
        if "dlq.billing" not in self.bus.log.topics():
            return []
        return [(record.value or b"").decode() for record in self.bus.log.records("dlq.billing")]

    @property
    def published(self) -> list[str]:
        return self.bus.log.values("bills", str) if "bills" in self.bus.log.topics() else []

    def check(self, *, once: bool = True) -> None:
        """``once``: no call was made twice."""
        assert sorted(self.dead) == sorted(value for value in VALUES if value[0] in "bc")
        good = sorted(value for value in VALUES if value[0] not in "bc")
        assert sorted(set(self.published)) == good
        if once:
            assert sorted(self.published) == good
        for key in "abcdef":
            first = list(dict.fromkeys(value for value in self.published if value[0] == key))
            assert first == sorted(first), "the key's order"

    async def nothing_is_left(self) -> None:
        """Started again, the handler finds nothing to do."""
        before = len(self.made)
        async with self.bus:
            await self.bus.clock.advance(seconds=30)
        assert len(self.made) == before


FAULTS: dict[str, tuple[Step, EventBusError | None, bool]] = {
    "no coordinator at the begin": ("init_transactions", None, False),
    "no coordinator for the offsets": ("send_offsets", None, False),
    "the answer to the offsets is lost": ("send_offsets", None, True),
    "the commit does not arrive": ("commit_transaction", None, False),
    "the answer to the commit is lost": ("commit_transaction", None, True),
    "fenced at the offsets": ("send_offsets", ProducerFenced("a test's"), False),
    "fenced at the commit": ("commit_transaction", ProducerFenced("a test's"), False),
    "a rebalance at the offsets": ("send_offsets", RebalanceInProgress("a test's"), False),
    "aborted by its timeout": ("commit_transaction", TransactionAborted("a test's"), False),
    "no commit of offsets": ("commit", None, False),
    "the answer to a commit of offsets is lost": ("commit", None, True),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_step_fails(shape: str, fault: str) -> None:
    step, error, after = FAULTS[fault]
    bus = TestBus()
    story = Story(shape, bus)
    async with bus:
        await story.send()
        for number in range(4):
            bus.log.faults.fail_next(step, error, times=1 + number % 2, after=after)
            await bus.clock.advance(ms=1_700)
        await story.until_all_ended()
        story.check()
        assert bus.failure is None
    await story.nothing_is_left()


OUTAGES: tuple[tuple[Step, ...], ...] = (
    (), ("send_offsets",), ("send",), ("commit_transaction", "commit"), ("init_transactions",),
)  # fmt: skip
EVENTS: dict[str, Callable[[TestBus], Awaitable[None]]] = {
    "rebalances": lambda bus: bus.log.faults.rebalance("billing"),
    "sessions end": lambda bus: bus.log.faults.lose("billing"),
    "coordinators restart": lambda bus: bus.log.faults.restart_coordinator(),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("event", EVENTS)
async def test_something_happens_again_and_again(shape: str, event: str) -> None:
    bus = TestBus()
    story = Story(shape, bus)
    random = Random(shape + event)
    async with bus:
        await story.send()
        for _ in range(12):
            await EVENTS[event](bus)
            await bus.clock.advance(ms=random.randrange(900))
        await story.until_all_ended()
        story.check(once=shape == "exactly once" or event == "rebalances")
        assert bus.failure is None
    await story.nothing_is_left()


@pytest.mark.system
@pytest.mark.parametrize("shape", SHAPES)
async def test_a_log_that_is_away_stops_the_handler_and_loses_nothing(shape: str) -> None:
    bus = TestBus()
    story = Story(shape, bus)
    async with bus:
        await story.send()
        for steps in OUTAGES:
            await bus.clock.advance(ms=600)
            with bus.log.faults.outage(*steps):
                await bus.clock.advance(seconds=7)
        await story.until_all_ended()
        story.check(once=False)
        assert bus.failure is None
    await story.nothing_is_left()


async def test_a_zombie_is_fenced() -> None:
    bus = TestBus()
    story = Story("in order", bus)
    async with bus:
        await story.send()
        for _ in range(5):
            await bus.clock.advance(ms=700)
            await bus.log.faults.fence("bill")
        await story.until_all_ended()
        story.check()
    await story.nothing_is_left()


@pytest.mark.system
@pytest.mark.parametrize("topic", ["dlq.billing", "retry.billing"])
async def test_a_topic_of_the_policy_that_is_deleted_is_created_again_and_nothing_is_passed_over(topic: str) -> None:
    bus = TestBus(auto_create_topics=False)
    bus.topic("bills")
    story = Story("in order", bus)
    async with bus:
        await bus.drain()
        await bus.admin.delete_topics([topic])
        await story.send()
        for _ in range(20):
            await bus.clock.advance(seconds=1)
        await story.until_all_ended()
        story.check()
    await story.nothing_is_left()


async def test_a_full_disk_passes_over_nothing() -> None:
    bus = TestBus()
    story = Story("in order", bus)
    async with bus:
        await story.send()
        bus.log.faults.fail_next("commit_transaction", StorageFull("a test's full disk"), times=3)
        await story.until_all_ended()
        story.check()
    await story.nothing_is_left()
