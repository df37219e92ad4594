"""A release that changes ``retry=`` leaves no record behind in the retry topic of the release before it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.testing import FakeClock

_NUMBERS = itertools.count()


class Releases:
    """Releases of one service, one after the other, on one log that stays."""

    def __init__(self) -> None:
        self.url = f"memory://old-retries-{next(_NUMBERS)}"
        self.clock = FakeClock()
        self.handled: list[str] = []

    def bus(self, *, fails: bool = False, group: str = "billing", **options: Any) -> EventBus:
        bus = EventBus(self.url, clock=self.clock)
        bus.topic("orders")

        @bus.consumer("orders", group=group, **options)
        async def bill(order: str) -> None:
            if fails:
                raise ValueError("later")
            self.handled.append(order)

        return bus

    async def first(self, **options: Any) -> None:
        """Have three records of a key wait: the first one failed, the others are behind it."""
        async with self.bus(fails=True, **{"retry": Retry(immediate=0, delays=["1s"]), **options}) as bus:
            for number in range(3):
                await bus.send("orders", f"ada-{number}", key="ada")
            await bus.drain()


@pytest.mark.parametrize(
    "options",
    [{"retry": Retry(immediate=2, delays=None)}, {}, {"dead_letter": True}, {"exactly_once": True}, {"order": "none"}],
    ids=str,
)
async def test_records_that_wait_are_handled_by_a_release_without_delays(options: dict[str, Any]) -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first()
        async with releases.bus(**options) as bus:
            await bus.send("orders", "ada-3", key="ada")
            await releases.clock.advance(seconds=5)
            await bus.drain()
    assert sorted(releases.handled) == ["ada-0", "ada-1", "ada-2", "ada-3"]
    if options.get("order") != "none":
        assert releases.handled == sorted(releases.handled)


async def test_an_old_retry_topic_gets_no_failed_records_of_a_release_without_delays() -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock) as keeper:
        await releases.first()
        async with releases.bus(fails=True, dead_letter=True) as bus:
            await releases.clock.advance(seconds=5)
            await bus.drain()
            async with keeper.new_consumer("dlq.billing", start="earliest") as consumer:
                assert [record.value async for record in consumer.until_end()] == [b"ada-0", b"ada-1", b"ada-2"]
