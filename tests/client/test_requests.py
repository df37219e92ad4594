"""Requests: the reply of the handler finds who asked, and what happens when there is none."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus
from eventbus.errors import ConfigError, RequestTimedOut, SerializationError
from tests.client.conftest import MakeBus


class Ask(msgspec.Struct):
    amount: int


class Quote(msgspec.Struct):
    price: float


def quoting(bus: EventBus) -> EventBus:
    """The bus with handlers that answer."""
    bus.topic("quotes", partitions=2)
    bus.topic("plain")

    @bus.consumer("quotes", group="pricing", replies=True)
    async def price(ask: Ask) -> Quote | None:
        return Quote(ask.amount * 2.5) if ask.amount >= 0 else None

    @bus.consumer("plain", group="pricing", replies=True, concurrency=2)
    def blocking(ask: Ask, record: ConsumerRecord) -> str:
        return f"{record.header('tenant')!r} {ask.amount}"

    return bus


async def test_reply_finds_who_asked(make_bus: MakeBus) -> None:
    async with quoting(make_bus(client_id="shop")) as bus:
        assert await bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)
        record = await bus.request("quotes", Ask(4), key="k", timeout=30)
        assert (record.topic, record.value) == ("shop.replies", b'{"price":10.0}')
        assert await bus.request("plain", Ask(1), returns=str, headers={"tenant": "t-1"}) == "b't-1' 1"
        assert await bus.request("quotes", Ask(-1), returns=Quote | None) is None
        assert await bus.request("quotes", Ask(-1), returns=None) is None


async def test_many_at_once_get_their_own(make_bus: MakeBus) -> None:
    got: dict[int, Any] = {}
    async with quoting(make_bus()) as bus, anyio.create_task_group() as tasks:

        async def ask(amount: int) -> None:
            got[amount] = await bus.request("quotes", Ask(amount), returns=Quote)

        for amount in range(100):
            tasks.start_soon(ask, amount)
    assert got == {amount: Quote(amount * 2.5) for amount in range(100)}


async def test_two_processes_of_a_service_and_one_that_answers() -> None:
    """Both read the same topic of replies; each takes what it asked for."""
    async with (
        quoting(EventBus("memory://requests-of-two", client_id="pricing")),
        EventBus("memory://requests-of-two", client_id="web") as one,
        EventBus("memory://requests-of-two", client_id="web") as two,
    ):
        for bus, amount in ((one, 1), (two, 2), (one, 3), (two, 4)):
            assert await bus.request("quotes", Ask(amount), returns=Quote) == Quote(amount * 2.5)
        assert "web.replies" in await one.admin.list_topics()


async def test_without_a_reply_it_says_what_may_be_wrong() -> None:
    bus = EventBus("memory://")
    bus.topic("quotes")

    @bus.consumer("quotes", group="silent")
    async def handle(ask: Ask) -> None: ...

    async with bus:
        with pytest.raises(
            RequestTimedOut, match=r"no reply to the request in 'quotes' within 0.05 s: .* replies=True"
        ):
            await bus.request("quotes", Ask(1), timeout=0.05)


async def test_reply_that_comes_late_or_twice_is_nobodys() -> None:
    async with quoting(EventBus("memory://", client_id="shop")) as bus:
        await bus.request("quotes", Ask(1))
        await bus.send("shop.replies", b"?", headers={"correlation_id": "unknown"})
        await bus.send("shop.replies", b"?")
        assert await bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)


async def test_record_that_asks_for_no_reply_gets_none() -> None:
    async with quoting(EventBus("memory://", client_id="shop")) as bus:
        await bus.send("quotes", Ask(1))
        await bus.drain()
        assert "shop.replies" not in await bus.admin.list_topics()


async def test_topic_of_replies_that_is_gone_does_not_stop_the_handler(caplog: pytest.LogCaptureFixture) -> None:
    async with quoting(EventBus("memory://")) as bus:
        with caplog.at_level(logging.WARNING, "eventbus.requests"):
            await bus.send("quotes", Ask(1), headers={"reply_to": "gone", "correlation_id": "1"})
            await bus.drain()
        assert "the reply to quotes-" in caplog.text
        assert await bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)


async def test_reply_that_is_something_else() -> None:
    async with quoting(EventBus("memory://")) as bus:
        with pytest.raises(SerializationError, match="the reply is no int"):
            await bus.request("quotes", Ask(1), returns=int)
        with pytest.raises(SerializationError, match="the reply is null, and returns="):
            await bus.request("quotes", Ask(-1), returns=Quote)
        with pytest.raises(ConfigError, match="request\\(returns="):
            await bus.request("quotes", Ask(1), returns=open)


async def test_what_cannot_be_sent_is_told_at_once() -> None:
    async with quoting(EventBus("memory://")) as bus:
        with pytest.raises(SerializationError):
            await bus.request("quotes", object())
    with pytest.raises(ConfigError, match="request"):
        await bus.request("quotes", Ask(1))


async def test_bus_that_is_closed_meanwhile_leaves_nobody_waiting() -> None:
    errors: list[ConfigError] = []
    bus = EventBus("memory://")
    bus.topic("nobody")

    async def ask() -> None:
        try:
            await bus.request("nobody", b"?")
        except ConfigError as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks, bus:
        tasks.start_soon(ask)
        while "eventbus.replies" not in await bus.admin.list_topics():
            await anyio.lowlevel.checkpoint()
    assert ["closed while a request waited" in str(error) for error in errors] == [True]


def test_from_a_plain_thread() -> None:
    with quoting(EventBus("memory://")).blocking() as bus:
        assert bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)


def test_contradictions_are_told_at_decoration() -> None:
    bus = EventBus("memory://")
    for options, says in (
        ({"batch": True}, "replies=True and batch contradict"),
        ({"exactly_once": True}, "replies=True and exactly_once=True contradict"),
    ):
        with pytest.raises(ConfigError, match=says):
            bus.consumer("quotes", replies=True, **options)
    with pytest.raises(ConfigError, match="keep one, and send the other yourself"):

        @bus.consumer("quotes", replies=True)
        @bus.producer("out")
        async def handle(ask: Ask) -> Quote:
            return Quote(1.0)
