"""How many dead letters there are, in a bus's metrics."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dlq import DeadLetterMetrics, DeadLetters, Reject, Retry, Selection
from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.middleware import ClaimCheck
from eventbus.testing import FakeClock


async def test_dead_letters_are_counted_by_what_was_done_about_them() -> None:
    clock = FakeClock()
    bus = EventBus("memory://", clock=clock)
    bus.topic("orders", partitions=1)
    bus.include(DeadLetterMetrics(interval_seconds=10))

    @bus.consumer("orders", group="billing", dead_letter=True)
    async def bill(value: bytes) -> None:
        raise Reject("no such account")

    def counted() -> dict[str, float]:
        found = [one for one in bus.metrics().samples() if one.name == "eventbus_dead_letters"]
        assert all(one.labels["topic"] == "dlq.billing" for one in found)
        return {one.labels["status"]: one.value for one in found if one.value}

    async with bus:
        failed_at = clock() / 1000
        for number in range(3):
            await bus.send("orders", b"%d" % number)
        await bus.drain()
        await clock.advance(seconds=11)
        assert counted() == {"open": 3}
        [oldest] = [one for one in bus.metrics().samples() if one.name.endswith("_oldest_open_timestamp_seconds")]
        assert oldest.value == failed_at
        letters = DeadLetters(bus, clock=clock)
        await letters.resolve(Selection(limit=2))
        await clock.advance(seconds=11)
        assert counted() == {"open": 1, "resolved": 2}
    assert not bus.metrics().parts


async def test_records_that_wait_are_counted_whoever_their_group_is() -> None:
    """The service of this bus has no handler of that group: it was renamed, say."""
    clock, url = FakeClock(), "memory://waiting-records"
    bus = EventBus(url, clock=clock)
    bus.include(DeadLetterMetrics(interval_seconds=10))

    def counted() -> list[tuple[str, dict[str, str], float]]:
        found = (one for one in bus.metrics().samples() if one.name.startswith("eventbus_retry_topic"))
        return [(one.name.removeprefix("eventbus_retry_topic_"), dict(one.labels), one.value) for one in found]

    service = EventBus(url, clock=clock)
    service.topic("orders")

    @service.consumer("orders", group="billing", retry=Retry(immediate=0, delays=["1h"], jitter=False))
    async def bill(value: bytes) -> None:
        raise ValueError("later")

    labels = {"topic": "retry.billing", "group": "billing"}
    async with bus:
        async with service:
            await service.send("orders", b"one")
            await service.drain()
            due = clock() / 1000 + 3600
        await clock.advance(seconds=11)
        assert counted() == [("waiting_records", labels, 1), ("next_due_timestamp_seconds", labels, due)]


@pytest.mark.parametrize("waits", [True, False])
async def test_records_are_counted_without_a_claim_checks_store(waits: bool) -> None:
    clock = FakeClock()
    kept: dict[str, bytes] = {}
    store = SimpleNamespace(put=kept.__setitem__, get=kept.__getitem__, delete=kept.pop)
    bus = EventBus("memory://", clock=clock)
    bus.include(ClaimCheck(store, above_bytes=3))
    bus.topic("orders")

    retry = Retry(immediate=0, delays=["1h"], jitter=False)

    @bus.consumer("orders", group="billing", retry=retry if waits else None, dead_letter=True)
    async def bill(value: bytes) -> None:
        raise ValueError("later")

    async with bus:
        await bus.send("orders", b"a long order")
        await bus.drain()
        assert kept
        kept.clear()
        letters = DeadLetters(bus)
        assert sum(one.count for one in await letters.waiting()) == waits
        assert sum(case.count for case in await letters.groups()) == (not waits)


def test_an_interval_of_less_than_a_second_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least"):
        DeadLetterMetrics(interval_seconds=0.1)
