"""What a log shows after a test, and what its assertions say when they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import ANY

import anyio
import msgspec
import pytest

from eventbus import IsolationLevel, TopicPartition, consumer
from eventbus.errors import ConfigError, GroupIdNotFound, HandlerError, SerializationError, UnknownTopicOrPartition
from eventbus.testing import TestBus


class Order(msgspec.Struct):
    order_id: str
    amount: float


@pytest.fixture
def kit() -> TestBus:
    return TestBus(auto_create_topics=True)


async def filled(bus: TestBus, *values: Any, topic: str = "orders", key: Any = None) -> None:
    for value in values:
        await bus.send(topic, value, key=key)


# records -------------------------------------------------------------------------------------------------------------


async def test_records_values_and_keys(kit: TestBus) -> None:
    async with kit:
        await kit.send("orders", Order("o-1", 1.0), key="a", headers={"trace": b"1"})
        await kit.send("orders", Order("o-2", 2.0), key=None)
        await kit.send("orders", None, key="a")
        first, second, third = kit.log.records("orders")
        assert (first.key, first.value, first.header("trace")) == (b"a", b'{"order_id":"o-1","amount":1.0}', b"1")
        assert (second.offset, second.key, third.value) == (1, None, None)
        assert kit.log.values("orders") == [
            {"order_id": "o-1", "amount": 1.0},
            {"order_id": "o-2", "amount": 2.0},
            None,
        ]
        assert kit.log.values("orders", Order, key="a") == [Order("o-1", 1.0), None]
        assert kit.log.values("orders", bytes, key=None) == [b'{"order_id":"o-2","amount":2.0}']
        assert kit.log.keys("orders") == ["a", None, "a"]
        assert kit.log.keys("orders", bytes) == [b"a", None, b"a"]
        assert kit.log.topics() == ["orders"]


async def test_partitions_one_by_one() -> None:
    bus = TestBus(auto_create_topics=True, num_partitions=2)
    async with bus:
        for n in range(4):
            await bus.send("t", n, partition=1 - n % 2)
        assert bus.log.values("t", int) == [1, 3, 0, 2]
        assert bus.log.values("t", int, partition=1) == [0, 2]
        with pytest.raises(UnknownTopicOrPartition, match="'t' has no partition 2: it has 2"):
            bus.log.records("t", partition=2)


async def test_many_records_are_all_read(kit: TestBus) -> None:
    async with kit:
        await kit.send_many("t", range(20_000))
        assert kit.log.values("t", int) == list(range(20_000))


async def test_open_and_aborted_transactions_are_not_there(kit: TestBus) -> None:
    async with kit:
        with pytest.raises(ZeroDivisionError):
            async with kit.transaction("x") as tx:
                await tx.send("t", "aborted")
                raise ZeroDivisionError
        async with kit.transaction("x") as tx:
            await tx.send("t", "open")
            kit.log.assert_nothing_published("t")
            seen = kit.log.records("t", isolation=IsolationLevel.READ_UNCOMMITTED)
            assert [record.value for record in seen] == [b"aborted", b"open"]
        kit.log.assert_published("t", "open")


async def test_serdes_of_the_bus_are_used() -> None:
    class Celsius(float): ...

    class Degrees:
        def serialize(self, topic: str, value: Any) -> bytes:
            return f"{float(value)} C".encode()

        def deserialize(self, topic: str, data: bytes) -> Any:
            return Celsius(data.decode().removesuffix(" C"))

    bus = TestBus(auto_create_topics=True, serdes={Celsius: Degrees()})
    async with bus:
        await bus.send("t", Celsius(21.5), key="kitchen")
        assert bus.log.values("t", Celsius) == [Celsius(21.5)]
        bus.log.assert_published("t", Celsius(21.5), key="kitchen")


async def test_what_cannot_be_read_says_where_and_how(kit: TestBus) -> None:
    async with kit:
        await kit.send("t", "no JSON", key="k")
        with pytest.raises(SerializationError) as caught:
            kit.log.values("t")
        assert "the value of t-0 offset 0, key k is no JSON" in str(caught.value)
        assert "it is no JSON. Name the type to read it as: log.values('t', str)" in str(caught.value)
        with pytest.raises(SerializationError, match="the key of t-0 offset 0, key k is no int"):
            kit.log.keys("t", int)


async def test_an_unknown_topic_names_the_nearest(kit: TestBus) -> None:
    async with kit:
        with pytest.raises(UnknownTopicOrPartition, match="there is no topic 'orders'; there are: none"):
            kit.log.records("orders")
        await filled(kit, "x")
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'order'; did you mean 'orders'"):
            kit.log.values("order", str)


async def test_the_log_can_be_read_before_and_after_the_bus_runs(kit: TestBus) -> None:
    assert kit.log.topics() == []
    async with kit:
        await filled(kit, "x")
    kit.log.assert_published("orders", "x")
    async with kit:
        kit.log.assert_published("orders", "x")


# what was published --------------------------------------------------------------------------------------------------


async def test_published_is_exactly_that(kit: TestBus) -> None:
    async with kit:
        await filled(kit, Order("o-1", 1.0), Order("o-2", 2.0), key="k")
        await filled(kit, Order("o-3", 3.0))
        kit.log.assert_published("orders")
        kit.log.assert_published("orders", Order("o-1", 1.0), Order("o-2", 2.0), Order("o-3", 3.0))
        kit.log.assert_published("orders", Order("o-1", 1.0), Order("o-2", 2.0), key="k")
        kit.log.assert_published("orders", {"order_id": "o-3", "amount": 3.0}, key=None)
        kit.log.assert_published("orders", {"amount": 3.0, "order_id": ANY}, key=None)
        kit.log.assert_published("orders", ANY, ANY, ANY)


async def test_the_difference_is_readable(kit: TestBus) -> None:
    async with kit:
        await filled(kit, Order("o-1", 1.0), Order("o-2", 2.5), key="k")
        with pytest.raises(AssertionError) as caught:
            kit.log.assert_published("orders", Order("o-1", 1.0), Order("o-2", 2.0))
        assert str(caught.value) == (
            "topic 'orders' does not hold what was expected\n"
            "  expected, and not there:\n"
            "    Order(order_id='o-2', amount=2.0)\n"
            "  there, and not expected:\n"
            "    orders-0 offset 1, key k: Order(order_id='o-2', amount=2.5)\n"
            "  as expected: 1"
        )


async def test_a_record_too_much_or_too_little_is_a_difference(kit: TestBus) -> None:
    async with kit:
        await filled(kit, "a", "a")
        with pytest.raises(
            AssertionError, match="there, and not expected:\n    orders-0 offset 1: 'a'\n  as expected: 1"
        ):
            kit.log.assert_published("orders", "a")
        with pytest.raises(AssertionError, match="expected, and not there:\n    'a'\n  as expected: 2"):
            kit.log.assert_published("orders", "a", "a", "a")
        with pytest.raises(AssertionError, match="topic 'orders', key 'k' does not hold"):
            kit.log.assert_published("orders", "a", key="k")


async def test_order_counts_where_there_is_one() -> None:
    bus = TestBus(auto_create_topics=True, num_partitions=2)
    bus.topic("one", partitions=1)
    async with bus:
        await filled(bus, "a", "b", topic="one", key="k")
        await filled(bus, "a", "b", topic="two", key="k")
        with pytest.raises(AssertionError) as caught:
            bus.log.assert_published("one", "b", "a")
        assert "the same values in another order, expected:\n    'b'\n    'a'\n  there:\n    one-0 offset 0" in str(
            caught.value
        )
        bus.log.assert_published("two", "b", "a")
        with pytest.raises(AssertionError, match="another order"):
            bus.log.assert_published("two", "b", "a", key="k")


async def test_values_of_another_type_are_shown_as_they_are(kit: TestBus) -> None:
    async with kit:
        await filled(kit, b"\xff\x00", "x" * 1_000, None)
        with pytest.raises(AssertionError) as caught:
            kit.log.assert_published("orders", Order("o-1", 1.0))
        message = str(caught.value)
        assert "orders-0 offset 0: b'\\xff\\x00'" in message
        assert "x... (1,000 characters)" in message
        assert "orders-0 offset 2: null" in message


async def test_long_lists_are_cut(kit: TestBus) -> None:
    async with kit:
        await filled(kit, *map(str, range(50)))
        with pytest.raises(AssertionError, match="    and 29 more\n  as expected: 1"):
            kit.log.assert_published("orders", "0")
        with pytest.raises(
            AssertionError, match=r"50 record\(s\) in 'orders', none expected:\n(.*\n){20}    and 30 more"
        ):
            kit.log.assert_nothing_published("orders")


async def test_nothing_published(kit: TestBus) -> None:
    async with kit:
        kit.log.assert_nothing_published("alerts")
        with pytest.raises(AssertionError, match="nothing was published to 'alerts'"):
            kit.log.assert_published("alerts")
        with pytest.raises(AssertionError, match="expected, and not there:\n    'x'\n  as expected: 0"):
            kit.log.assert_published("alerts", "x")
        await filled(kit, "x", key="k")
        kit.log.assert_nothing_published("orders", key="other")
        with pytest.raises(AssertionError) as caught:
            kit.log.assert_nothing_published("orders")
        assert str(caught.value) == "1 record(s) in 'orders', none expected:\n    orders-0 offset 0, key k: x"
        with pytest.raises(UnknownTopicOrPartition, match="did you mean 'orders'"):
            kit.log.assert_nothing_published("order")


# groups --------------------------------------------------------------------------------------------------------------


async def test_committed_and_lag(kit: TestBus) -> None:
    kit.topic("orders", partitions=2)
    may_go_on = anyio.Event()

    @kit.consumer("orders", group="billing")
    async def bill(order: str) -> None:
        if order == "slow":
            await may_go_on.wait()

    async with kit:
        assert kit.log.committed("billing") == {}
        kit.log.assert_no_lag("billing")
        await kit.send("orders", "quick", partition=0)
        await kit.log.drain()
        await kit.send("orders", "slow", partition=1)
        await kit.send("orders", "behind it", partition=1)
        await kit.clock.advance(seconds=1)
        assert kit.log.committed("billing") == {TopicPartition("orders", 0): 1}
        assert kit.log.lag(bill) == {TopicPartition("orders", 0): 0, TopicPartition("orders", 1): 2}
        kit.log.assert_committed(bill, "orders", 0, 1)
        with pytest.raises(AssertionError, match="'billing' has committed nothing of orders-1, expected 2"):
            kit.log.assert_committed("billing", "orders", 1, 2)
        with pytest.raises(AssertionError) as caught:
            kit.log.assert_no_lag("billing")
        assert str(caught.value) == (
            "group 'billing' is behind (did you `await log.drain()`?):\n"
            "    orders-1: 2 not committed, it stands at nothing"
        )
        may_go_on.set()
        await kit.log.drain()
        kit.log.assert_no_lag(bill)
        with pytest.raises(AssertionError, match="has committed 2 of orders-1, expected 3"):
            kit.log.assert_committed("billing", "orders", 1, 3)
        assert kit.log.committed("billing", "orders") == {TopicPartition("orders", n): n + 1 for n in range(2)}


async def test_markers_of_transactions_are_no_lag(kit: TestBus) -> None:
    @kit.consumer("t", group="g")
    async def handle(value: str) -> None: ...

    async with kit:
        async with kit.transaction("x") as tx:
            await tx.send("t", "a")
        await kit.log.drain()
        kit.log.assert_no_lag("g")
        kit.log.assert_no_lag(handle)


async def test_a_group_of_an_explicit_consumer(kit: TestBus) -> None:
    async with kit:
        await filled(kit, "a", "b", topic="t")
        async with kit.new_consumer("t", group="mine", value=str) as reader:
            assert kit.log.lag("mine") == {TopicPartition("t", 0): 2}
            await reader.poll(max_records=1)
            await reader.commit()
        assert kit.log.lag("mine") == {TopicPartition("t", 0): 1}


async def test_unknown_groups_and_handlers_are_named(kit: TestBus) -> None:
    @kit.consumer("t", group="billing")
    async def bill(value: str) -> None: ...

    @consumer("t", group="elsewhere")
    async def other(value: str) -> None: ...

    async with kit:
        with pytest.raises(GroupIdNotFound, match="no group 'biling'; did you mean 'billing'"):
            kit.log.committed("biling")
        with pytest.raises(GroupIdNotFound, match="no group 'x'; there are: billing"):
            kit.log.assert_no_lag("x")
        with pytest.raises(ConfigError, match="is not a handler of this bus"):
            kit.log.lag(other)
        with pytest.raises(UnknownTopicOrPartition, match="no topic 'tt'"):
            kit.log.committed("billing", "tt")


async def test_drain_raises_what_stopped_a_handler(kit: TestBus) -> None:
    @kit.consumer("t", group="g")
    async def handle(value: str) -> None:
        raise ValueError(value)

    with pytest.raises(HandlerError, match="t-0"):
        async with kit:
            await kit.send("t", "bad")
            await kit.log.drain()


def test_the_kit_works_on_trio_too() -> None:
    async def test(check: Callable[[TestBus], Awaitable[None]]) -> None:
        await check(TestBus(auto_create_topics=True))

    for check in (
        test_committed_and_lag,
        test_markers_of_transactions_are_no_lag,
        test_a_group_of_an_explicit_consumer,
    ):
        anyio.run(test, check, backend="trio")
