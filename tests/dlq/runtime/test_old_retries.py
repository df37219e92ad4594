"""A release that changes ``retry=`` still handles the records in the retry topic of the previous release."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dlq import Retry
from eventbus import EventBus
from eventbus.backends.embedded import EmbeddedBackend
from eventbus.errors import ConfigError, error_for_code
from eventbus.testing import FakeClock
from eventbus.types import TopicPartition

_NUMBERS = itertools.count()


class Releases:
    """Successive releases of a service on one log."""

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

    async def first(self, *, group: str = "billing", **options: Any) -> None:
        """Let three records of a key wait: the first has failed, and the others wait for it."""
        options.setdefault("retry", Retry(immediate=0, delays=["1s"]))
        async with self.bus(fails=True, group=group, **options) as bus:
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


async def lags(bus: EventBus, group: str) -> dict[str, int]:
    """The lag of each topic that the group has offsets of, as tools compute it."""
    offsets = await bus.admin.group_offsets(group)
    ends = await bus.admin.list_offsets(dict.fromkeys(offsets, -1))
    found: dict[str, int] = {}
    for partition, end in ends.items():
        found[partition.topic] = found.get(partition.topic, 0) + end.offset - offsets[partition].offset
    return found


async def test_records_that_wait_have_a_lag_although_nothing_of_their_topic_was_finished() -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock) as keeper:
        await releases.first()
        found = await lags(keeper, "billing")
    assert found["orders"] == 0 and found["retry.billing"] >= 3  # ends of transactions have offsets too


async def test_a_release_that_no_longer_names_its_retry_topic_handles_what_waits_there() -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first(retry=Retry(immediate=0, delays=["1s"], topic="later"))
        async with releases.bus() as bus:
            await releases.clock.advance(seconds=5)
            await bus.drain()
    assert releases.handled == ["ada-0", "ada-1", "ada-2"]


@pytest.mark.parametrize(
    ("before", "after"), [(None, "retry.billing.v2"), ("later", "later.v2"), ("later", None)], ids=str
)
async def test_a_renamed_retry_topic_is_refused_until_the_old_one_is_empty(
    before: str | None, after: str | None
) -> None:
    releases, renamed = Releases(), Retry(immediate=0, delays=["1s"], topic=after)
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first(retry=Retry(immediate=0, delays=["1s"], topic=before))
        with pytest.raises(ConfigError, match=rf"3 record\(s\) .* '{before or 'retry.billing'}'.*Retry\(delays=None\)"):
            await releases.bus(retry=renamed).start()
        async with releases.bus(retry=Retry(delays=None)) as bus:
            await releases.clock.advance(seconds=5)
            await bus.drain()
        async with releases.bus(retry=renamed) as bus:
            await bus.send("orders", "ada-3", key="ada")
            await bus.drain()
    assert releases.handled == ["ada-0", "ada-1", "ada-2", "ada-3"]


async def test_a_handler_that_may_not_call_twice_is_refused_while_records_wait() -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first()
        with pytest.raises(ConfigError, match=r"3 record\(s\) of group 'billing' wait in the retry topic"):
            await releases.bus(delivery="at-most-once").start()


async def test_records_of_another_group_in_a_shared_retry_topic_refuse_nobody() -> None:
    releases, shared = Releases(), Retry(immediate=0, delays=["1s"], topic="later")
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first(retry=shared)
        async with releases.bus(group="mailer", retry=shared):
            pass
        async with releases.bus(group="mailer", retry=Retry(delays=["1s"])) as bus:
            await bus.drain()
    assert releases.handled == ["ada-0", "ada-1", "ada-2"]  # as the mailer's records


async def test_a_topic_that_the_group_read_once_is_no_retry_topic() -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock) as keeper:
        await keeper.admin.create_topic("refunds", 1)
        await keeper.send("refunds", "r-1")
        await keeper.admin.alter_group_offsets("billing", {TopicPartition("refunds", 0): 0})
        async with releases.bus() as bus:
            await bus.send("orders", "o-1")
            await bus.drain()
    assert releases.handled == ["o-1"]


@pytest.mark.parametrize("renamed", ["shop.invoicing", "store.billing"])
async def test_records_of_a_renamed_handler_or_router_are_logged_at_the_start(
    renamed: str, caplog: pytest.LogCaptureFixture
) -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first(group="shop.billing")
        async with releases.bus(group="other"):
            assert "shop.billing" not in caplog.text
        async with releases.bus(group=renamed):
            assert "3 record(s) of group 'shop.billing' wait in the retry topic 'retry.shop.billing'" in caplog.text


@pytest.mark.parametrize("question", ["list_groups", "group_offsets"])
async def test_a_group_that_may_not_be_looked_at_refuses_no_service(
    question: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def denied(*_: Any) -> None:
        raise error_for_code(30, "the coordinator of 'shop.billing'")

    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock):
        await releases.first(group="shop.billing")
        monkeypatch.setattr(EmbeddedBackend, question, denied)
        async with releases.bus(group="shop.invoicing") as bus:
            await bus.drain()
    assert ("It is not known whether records of group 'shop.invoicing' wait" in caplog.text) == (
        question == "group_offsets"
    )


async def test_handlers_of_one_group_are_refused_while_records_of_one_of_them_wait() -> None:
    releases, retry = Releases(), Retry(immediate=0, delays=["1s"])

    def two_handlers(**options: Any) -> EventBus:
        bus = releases.bus(**options)
        bus.topic("refunds")

        @bus.consumer("refunds", group="billing")
        async def refund(order: str) -> None: ...

        return bus

    async with EventBus(releases.url, clock=releases.clock):
        async with two_handlers(fails=True, retry=retry) as bus:
            await bus.send("orders", "o-1")
            await bus.drain()
        with pytest.raises(ConfigError, match=r"'bill', 'refund': 1 record\(s\) of group 'billing' wait"):
            await two_handlers().start()
        async with two_handlers(retry=retry) as bus:
            await releases.clock.advance(seconds=5)
            await bus.drain()
        async with two_handlers():
            assert releases.handled == ["o-1"]


async def test_a_record_of_a_retry_topic_that_is_not_an_entry_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    releases = Releases()
    async with EventBus(releases.url, clock=releases.clock) as keeper:
        await releases.first()
        await keeper.send("retry.billing", b"by hand")
        async with releases.bus(retry=Retry(delays=["1s"])) as bus:
            await releases.clock.advance(seconds=5)
            await bus.drain()
    assert releases.handled == ["ada-0", "ada-1", "ada-2"]
    assert "retry.billing-0: 1 record(s) of this retry topic are not handled, the first at offset" in caplog.text
