"""Requests: the reply of the handler finds who asked, and what happens when there is none."""

from __future__ import annotations

import logging
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from dlq import Retry
from eventbus import CallNext, ConsumerRecord, EventBus
from eventbus.errors import ConfigError, RequestFailed, RequestTimedOut, SerializationError, error_for_code
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


async def test_a_handler_leaves_what_it_filters_to_another_one(make_bus: MakeBus) -> None:
    bus = make_bus()
    bus.topic("quotes")

    async def passed_on(record: ConsumerRecord, call_next: CallNext) -> Any:
        return await call_next(record)

    for region in ("north", "south"):

        @bus.consumer(
            "quotes", group=region, name=region, replies=True, middleware=[passed_on],
            filter=lambda record, region=region: record.key == region.encode(),
        )  # fmt: skip
        async def price(ask: Ask, record: ConsumerRecord) -> str:
            return f"{record.key!r} {ask.amount}"

    async with bus:
        for _ in range(5):
            assert await bus.request("quotes", Ask(1), key="north", returns=str) == "b'north' 1"
            assert await bus.request("quotes", Ask(2), key="south", returns=str) == "b'south' 2"


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
        assert "does not answer the request quotes-" in caplog.text
        assert await bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)


@pytest.mark.parametrize(
    "reply_to",
    [b"\xff\xfe", b"__consumer_offsets", b"__transaction_state", b"ask", b"", b"a/b", b"x" * 300],
)
async def test_reply_to_that_no_reply_can_reach_is_the_callers_fault(
    reply_to: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client may write it: the work is done once, and the requests after it are answered."""
    bus, charged = EventBus("memory://"), list[int]()
    bus.topic("ask", partitions=1)

    @bus.consumer("ask", group="svc", replies=True, retry=Retry(immediate=2))
    async def charge(amount: int) -> str:
        charged.append(amount)
        return "ok"

    async with bus:
        await bus.send("ask", 7, headers={"reply_to": reply_to, "reply_errors": "1"})
        assert await bus.request("ask", 8, returns=str) == "ok"
        assert (await bus.health()).status == "ok"
    assert charged == [7, 8]
    assert [text for text in caplog.messages if "Handler 'charge'" in text and repr(reply_to)[:200] in text]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ("x" * 2_000_000, "RecordTooLarge"),
        (object(), "SerializationError"),
        ({"a": {1: object()}}, "SerializationError"),
    ],
)
async def test_result_that_cannot_be_a_reply_is_answered_with_an_error(result: object, problem: str) -> None:
    bus, calls = EventBus("memory://"), list[int]()
    bus.topic("ask", partitions=1)

    @bus.consumer("ask", group="svc", replies=True, retry=Retry(immediate=2))
    async def find(number: int) -> object:
        calls.append(number)
        return result if number == 1 else number

    async with bus:
        with pytest.raises(RequestFailed, match=f"the reply of handler 'find' cannot be sent: {problem}"):
            await bus.request("ask", 1)
        assert await bus.request("ask", 2, returns=int) == 2
    assert calls == [1, 2]


async def test_reply_topic_that_is_forbidden_does_not_stop_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    async with quoting(EventBus("memory://")) as bus:
        send = bus.send

        async def refused(topic: str, value: Any, **options: Any) -> Any:
            if topic == "theirs":
                raise error_for_code(29, "Topic authorization failed")
            return await send(topic, value, **options)

        monkeypatch.setattr(bus, "send", refused)
        await send("quotes", Ask(1), headers={"reply_to": "theirs"})
        await bus.drain()
        assert (await bus.health()).status == "ok"


async def test_handler_that_raises_answers_with_an_error() -> None:
    bus = EventBus("memory://")
    bus.topic("quotes", partitions=1)

    @bus.consumer("quotes", group="pricing", replies=True, on_error="skip")
    async def price(ask: Ask) -> Quote | None:
        raise ValueError("no price for this amount")

    async with bus:
        with pytest.raises(RequestFailed) as failed:
            await bus.request("quotes", Ask(2), returns=Quote | None)
        assert str(failed.value) == (
            "The request in 'quotes' failed: handler 'price' raised ValueError: no price for this amount. The log of "
            "the service that handles it has the details"
        )
        with pytest.raises(RequestFailed, match="raised SerializationError: the value is no Ask"):
            await bus.request("quotes", b"?")


async def test_handler_whose_partition_stops_answers_with_an_error() -> None:
    bus = EventBus("memory://")
    bus.topic("quotes", partitions=1)

    @bus.consumer("quotes", group="pricing", replies=True)
    async def price(ask: Ask) -> Quote:
        raise ValueError("no price")

    async with bus:
        with pytest.raises(RequestFailed, match="ValueError: no price"):
            await bus.request("quotes", Ask(2), returns=Quote)
        assert (await bus.health()).status == "failed"


async def test_sender_that_cannot_read_error_replies_gets_none() -> None:
    """A sender of an older version would take it for the result None."""
    bus = EventBus("memory://")
    bus.topic("quotes", partitions=1)
    bus.topic("old.replies")

    @bus.consumer("quotes", group="pricing", replies=True, on_error="skip")
    async def price(ask: Ask) -> Quote:
        raise ValueError("no price")

    async with bus:
        await bus.send("quotes", Ask(1), headers={"reply_to": "old.replies", "correlation_id": "1"})
        await bus.drain()
        async with bus.new_consumer("old.replies", start="earliest") as consumer:
            assert [record async for record in consumer.until_end()] == []


async def test_handler_with_retries_answers_when_the_record_is_a_dead_letter() -> None:
    bus, calls = EventBus("memory://"), list[int]()
    bus.topic("quotes", partitions=1)

    @bus.consumer("quotes", group="pricing", replies=True, retry=Retry(immediate=1, delays=["1ms"]))
    async def price(ask: Ask) -> Quote:
        calls.append(ask.amount)
        if ask.amount < 0 or len(calls) < 3:
            raise ValueError("no price")
        return Quote(1.0)

    async with bus:
        assert await bus.request("quotes", Ask(1), returns=Quote) == Quote(1.0)
        assert len(calls) == 3
        with pytest.raises(RequestFailed, match="ValueError: no price"):
            await bus.request("quotes", Ask(-1), returns=Quote)
    assert len(calls) == 6


async def test_only_a_middleware_that_drops_the_result_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    async def outer(record: ConsumerRecord, call_next: CallNext) -> None:
        await call_next(record)

    async def inner(record: ConsumerRecord, call_next: CallNext) -> None:
        await call_next(record)

    async with quoting(EventBus("memory://", middleware=[outer])) as bus:
        assert await bus.request("quotes", Ask(2), returns=Quote) == Quote(5.0)
    assert "returns None in place of" not in caplog.text
    bus = EventBus("memory://")
    bus.topic("quotes")

    @bus.consumer("quotes", group="pricing", replies=True, middleware=[inner])
    async def price(ask: Ask) -> Quote:
        return Quote(1.0)

    async with bus:
        assert await bus.request("quotes", Ask(2), returns=Quote | None) is None
    assert "its middleware (inner) returns None in place of" in caplog.text


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
    with pytest.raises(ConfigError, match="Remove either, and send that record"):

        @bus.consumer("quotes", replies=True)
        @bus.producer("out")
        async def handle(ask: Ask) -> Quote:
            return Quote(1.0)
