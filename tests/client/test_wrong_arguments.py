"""Arguments of a wrong type or in a wrong order: an error says so at once, and nothing of them reaches the log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from eventbus import ConsumerRecord, Depends, EventBus
from eventbus.client.sending import Sending, check_values
from eventbus.errors import ConfigError, InvalidPartitions


class Order(msgspec.Struct):
    id: str


async def two() -> AsyncIterator[int]:
    yield 1
    yield 2


@pytest.mark.parametrize("partitions", [3.0, True, "3"])
async def test_a_number_of_partitions_that_is_none_does_not_spoil_the_log(file_url: str, partitions: Any) -> None:
    """3.0 was written to the log's own bookkeeping, which could then not be read: the log was lost."""
    async with EventBus(file_url) as bus:
        with pytest.raises(InvalidPartitions, match="a whole number"):
            await bus.admin.create_topic("t", partitions=partitions)
        await bus.admin.create_topic("t")
        with pytest.raises(InvalidPartitions, match="a whole number"):
            await bus.admin.add_partitions("t", partitions)
    async with EventBus(file_url) as bus:
        assert await bus.admin.list_topics() == ["t"]


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        (["orders", "audit"], {}, "the name of one topic"),
        (None, {}, "the name of one topic"),
        ("orders", {"partitions": "3"}, "partitions='3': a whole number"),
        ("orders", {"configs": [("retention.ms", 1)]}, r"configs=\[.*a dict"),
    ],
)
def test_a_topic_is_checked_where_it_is_declared(name: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EventBus("memory://").topic(name, **options)


@pytest.mark.parametrize("how", ["send", "send_nowait"])
@pytest.mark.parametrize(
    ("topic", "options", "told"),
    [
        (Order("o-1"), {}, "the topic is a text and comes first"),
        ({"id": 1}, {}, "the topic is a text and comes first"),
        ("orders", {"partition": "1"}, "partition='1'.*a whole number; a key is key="),
        ("orders", {"partition": 1.0}, "a whole number"),
    ],
)
async def test_what_send_is_given(make_bus: Any, how: str, topic: Any, options: dict[str, Any], told: str) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("orders", partitions=2)
        with pytest.raises(ConfigError, match=told):
            delivery = getattr(bus, how)(topic, "orders", **options)
            if how == "send":
                await delivery


@pytest.mark.parametrize(
    ("values", "key", "told"),
    [
        ("one text", None, "a list of values.*one value is send"),
        (b"bytes", None, "a list of values"),
        ({"id": 1}, None, "a list of values"),
        (Order("o-1"), None, "a list of values"),
        (two(), None, "asynchronous; gather them first"),
        (["a"], "id", "key='id': a function of the value"),
    ],
)
async def test_send_many_is_given_a_list(make_bus: Any, values: Any, key: Any, told: str) -> None:
    """A text was sent letter by letter, and a dict key by key."""
    async with make_bus() as bus:
        await bus.admin.create_topic("orders")
        with pytest.raises(ConfigError, match=told):
            await bus.send_many("orders", values, key=key)
        async with bus.new_consumer("orders") as consumer:
            assert [one async for one in consumer.until_end()] == []


async def test_what_was_sent_before_a_key_failed_is_told(make_bus: Any) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("orders")
        with pytest.raises(KeyError) as caught:
            await bus.send_many("orders", [{"id": "1"}, {"id": "2"}, {"name": "x"}], key=lambda order: order["id"])
        assert caught.value.__notes__ == ["send_many('orders', ...): the 2 value(s) before this one are sent"]
        await bus.flush()
        async with bus.new_consumer("orders") as consumer:
            assert len([one async for one in consumer.until_end()]) == 2


async def key_later(order: Order) -> str:
    return order.id


@pytest.mark.parametrize("key", ["id", 3, lambda: "id", key_later])
def test_a_producers_key_is_a_function(key: Any) -> None:
    with pytest.raises(ConfigError, match=r"@producer\('orders'\): key=.*a plain function of the value"):
        EventBus("memory://").producer("orders", key=key)


@pytest.mark.parametrize(
    ("timeout", "told"),
    [("5", "or a timedelta$"), (-1, "more than 0 seconds$"), (timedelta(0), "more than 0")],
)
async def test_a_request_that_cannot_wait_is_not_sent(make_bus: Any, timeout: Any, told: str) -> None:
    async with make_bus() as bus:
        await bus.admin.create_topic("orders")
        with pytest.raises(ConfigError, match=rf"request\('orders', ...\): timeout=.*{told}"):
            await bus.request("orders", "x", timeout=timeout)
        async with bus.new_consumer("orders") as consumer:
            assert [one async for one in consumer.until_end()] == []


def test_depends_that_is_not_called() -> None:
    bus = EventBus("memory://")
    with pytest.raises(ConfigError, match=r"'name' would be Depends itself.*name = Depends\(get_it\)"):

        @bus.consumer("orders")
        async def handle(order: Order, name: Any = Depends) -> None: ...


def test_a_list_of_records_is_a_batch() -> None:
    bus = EventBus("memory://")
    with pytest.raises(ConfigError, match=r"takes a list of records, and gets one.*batch=True"):

        @bus.consumer("orders")
        async def handle(records: list[ConsumerRecord]) -> None: ...


async def test_a_value_that_cannot_be_read_has_no_traceback_of_ours(caplog: pytest.LogCaptureFixture) -> None:
    """The line says all that is known: whose payload it is not, and why."""
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", on_error="skip")
    async def handle(order: Order) -> None: ...

    async with bus:
        await bus.send("orders", "no order")
        await bus.drain()
    [told] = [record for record in caplog.records if record.name == "eventbus.runner"]
    assert "the value is no Order: JSON is malformed" in told.message and told.exc_info is None


class Awaited:
    def serialize(self, topic: str, value: Any) -> bytes:
        return b""

    async def deserialize(self, topic: str, data: bytes) -> Any: ...


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"drain_timeout_ms": "30 sec"}, "drain_timeout_ms='30 sec': a whole number of milliseconds"),
        ({"drain_timeout_ms": None}, "drain_timeout_ms=None: a whole number"),
        ({"slow_loop_ms": 1.5}, r"slow_loop_ms=1\.5: a whole number"),
        ({"serde": "json"}, r"serde='json': a serde has serialize\(topic, value\)"),
        ({"serdes": [Order]}, "serdes=.*a dict of types and their serdes"),
        ({"serdes": {Order: dict}}, r"serdes: Order=dict: the class; an object of it, dict\(\)"),
        ({"serdes": {Order: 3}}, "serdes: Order=3: a serde has"),
        ({"serde": Awaited()}, "serialize and deserialize are plain functions, and are not awaited"),
    ],
)
def test_what_a_bus_is_given(config: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        EventBus("memory://", **config)


def test_a_bus_is_entered_with_async() -> None:
    bus: Any = EventBus("memory://")
    with pytest.raises(ConfigError, match=r"it is 'async with bus:', or 'with bus\.blocking\(\) as b:'"), bus:
        ...


def test_every_so_many_minutes_is_a_timedelta() -> None:
    with pytest.raises(ConfigError, match=r"@bus\.every\(timedelta\(minutes=5\)\)"):
        EventBus("memory://").every(minutes=5)


async def test_a_pattern_that_matches_no_topic_is_told(make_bus: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is for whole names, as in Kafka's Java client; the handler of half of one read nothing, silently."""
    bus = make_bus()
    bus.topic("orders")

    @bus.consumer(pattern="ord", group="g")
    async def handle(order: str) -> None: ...

    @bus.consumer(pattern=r"ord.*", group="h")
    async def right(order: str) -> None: ...

    async with bus:
        ...
    [told] = [one.message for one in caplog.records if one.name == "eventbus.runner"]
    assert "no topic matches 'ord'; it must match whole names, 'orders' as well" in told


async def test_one_name_is_a_list_of_one(make_bus: Any) -> None:
    """A text was read letter by letter, so that topic 'o' did not exist."""
    async with make_bus() as bus:
        await bus.admin.create_topic("orders", configs={"retention.ms": 1})
        await bus.admin.alter_configs("orders", delete="retention.ms")
        [described] = await bus.admin.describe_topics("orders")
        assert described.configs["retention.ms"].source == "default"
        assert list(await bus.admin.create_topics(["a", "b"])) == ["a", "b"]
        assert list(await bus.admin.create_topics("c")) == ["c"]


async def test_many_values_are_not_read_but_to_be_sent(make_bus: Any) -> None:
    """The text of an error that did not occur was formatted from all values, at each call."""

    class Unread(list[bytes]):
        def __repr__(self) -> str:
            raise AssertionError("read")

    async with make_bus() as bus:
        await bus.admin.create_topic("t")
        await bus.send_many("t", Unread([b"1"]))
    with pytest.raises(ConfigError, match=r"send_many\('t', 's+\.\.\.s+'\): a list of values"):
        check_values("t", "s" * 1_000_000, None)


async def test_a_type_error_that_is_not_about_the_arguments_keeps_its_cause() -> None:
    """The error is checked for swapped arguments. Otherwise it lost its cause."""

    class Producer:
        def send_nowait(self, *_: Any, **__: Any) -> None:
            raise TypeError("no number") from ValueError("the cause")

        async def send(self, *_: Any, **__: Any) -> None:
            self.send_nowait()

    class Face(Sending):
        def _sending_producer(self, transactional: bool = True) -> Any:
            return Producer()

    with pytest.raises(TypeError, match="no number") as raised:
        Face().send_nowait("t", b"1")
    assert isinstance(raised.value.__cause__, ValueError)
    with pytest.raises(TypeError, match="no number") as raised:
        await Face().send("t", b"1")
    assert isinstance(raised.value.__cause__, ValueError)
