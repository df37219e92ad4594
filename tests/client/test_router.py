"""Routers: the same declarations under a prefix, in a bus, in another router, in several places."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import msgspec
import pytest

from eventbus import ConsumerRecord, EventBus, Router, consumer, producer
from eventbus.errors import ConfigError
from eventbus.testing import TestBus
from tests.client.fakes import on_both


class Order(msgspec.Struct):
    number: str


class Invoice(msgspec.Struct):
    order: str


def shop(story: list[Any], **options: Any) -> tuple[Router, Any, Any]:
    """A router, its handler, and its producer function."""
    router = Router(**options)

    @router.producer("orders", key=lambda order: order.number)
    async def place(number: str) -> Order:
        return Order(number)

    @router.consumer("orders", group="billing")
    @router.producer("invoices")
    async def bill(order: Order, record: ConsumerRecord) -> Invoice:
        story.append((record.topic, order.number))
        return Invoice(order.number)

    return router, bill, place


@on_both
async def test_topics_and_groups_get_the_prefix() -> None:
    story: list[Any] = []
    router, bill, place = shop(story, prefix="shop.")
    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    async with bus:
        await place("o-1")
        await bus.log.drain()
        assert story == [("shop.orders", "o-1")]
        bus.log.assert_published("shop.invoices", Invoice("o-1"))
        bus.log.assert_committed("shop.billing", "shop.orders", 0, 1)
        assert bus.log.committed(bill) == bus.log.committed("shop.billing")  # what one holds is what runs
        assert set(bus.log.topics()) == {"shop.orders", "shop.invoices"}


async def test_without_a_prefix_all_is_as_declared() -> None:
    story: list[Any] = []
    router, _, place = shop(story)
    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    async with bus:
        await place("o-1")
        await bus.log.drain()
        bus.log.assert_committed("billing", "orders", 0, 1)


async def test_nested_prefixes_add_up_and_middleware_too() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        async def middleware(record: Any, call_next: Any) -> Any:
            order.append(name)
            return await call_next(record)

        return middleware

    inner = Router(prefix="orders.", middleware=[named("inner")])
    outer = Router(prefix="shop.", middleware=[named("outer")])

    @inner.consumer("new", middleware=[named("own")])
    async def handle(value: str) -> None:
        order.append(value)

    outer.include(inner, prefix="v2.")
    bus = TestBus(auto_create_topics=True, middleware=[named("bus")])
    bus.include(outer, prefix="test.")
    async with bus:
        await bus.send("test.shop.v2.orders.new", "handled")
        await bus.log.drain()
        assert order == ["bus", "outer", "inner", "own", "handled"]
        bus.log.assert_committed("eventbus.test.shop.v2.orders.handle", "test.shop.v2.orders.new", 0, 1)


async def test_one_router_in_two_places_has_handlers_in_each() -> None:
    story: list[Any] = []
    router, _, place = shop(story)
    bus = TestBus(auto_create_topics=True)
    bus.include(router, prefix="eu.")
    bus.include(router, prefix="us.")
    async with bus:
        await bus.send("eu.orders", Order("1"))
        await bus.send("us.orders", Order("2"))
        await bus.log.drain()
        assert sorted(story) == [("eu.orders", "1"), ("us.orders", "2")]
        bus.log.assert_published("eu.invoices", Invoice("1"))
        bus.log.assert_published("us.invoices", Invoice("2"))
        bus.log.assert_committed("us.billing", "us.orders", 0, 1)
        with pytest.raises(ConfigError, match=r"place\(\) is included in several places"):
            await place("3")


async def test_a_routers_next_bus_is_as_good_as_the_first() -> None:
    story: list[Any] = []
    router, _, _ = shop(story, prefix="shop.")
    for number in ("1", "2"):
        bus = TestBus(auto_create_topics=True)
        bus.include(router)
        async with bus:
            await bus.send("shop.orders", Order(number))
            await bus.log.drain()
            bus.log.assert_published("shop.invoices", Invoice(number))
    assert story == [("shop.orders", "1"), ("shop.orders", "2")]


async def test_twice_in_the_same_place_is_refused_at_the_start() -> None:
    router, _, _ = shop([])
    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    bus.include(router)
    with pytest.raises(ConfigError, match="both read 'orders' in the group 'billing'"):
        await bus.start()


async def test_dead_letters_and_retries_follow() -> None:
    router = Router(prefix="shop.", retry=0)

    @router.consumer("a", group="by-group", dead_letter=True)
    async def fails(value: str) -> None:
        raise ValueError(value)

    @router.consumer("a", group="by-name", dead_letter="failed")
    async def fails_too(value: str) -> None:
        raise ValueError(value)

    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    async with bus:
        await bus.send("shop.a", "x")
        await bus.log.drain()
        assert bus.log.values("dlq.shop.by-group", str) == ["x"]
        assert bus.log.values("shop.failed", str) == ["x"]


async def test_retry_topics_follow_too() -> None:
    from dlq import Retry

    router = Router(prefix="shop.")
    tries: list[str] = []

    @router.consumer("a", group="g", retry=Retry(immediate=0, delays=["5s"], topic="again"))
    async def fails_once(value: str) -> None:
        tries.append(value)
        if len(tries) == 1:
            raise ValueError(value)

    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    async with bus:
        await bus.send("shop.a", "x")
        await bus.log.drain()
        assert len(bus.log.records("shop.again")) == 1
        await bus.clock.advance(seconds=10)
        await bus.log.drain()
    assert tries == ["x", "x"]


@pytest.mark.parametrize("pattern", ["or.*", "(?i)OR.*", "orders|others"])
async def test_group_prefix_may_be_another_or_none(pattern: str) -> None:
    router = Router(prefix="shop.", group_prefix="")
    seen: list[str] = []

    @router.consumer(pattern=pattern, group="g")
    async def handle(value: str) -> None:
        seen.append(value)

    bus = TestBus(auto_create_topics=True)
    bus.include(router)
    async with bus:
        await bus.send("orders", "not here")
        await bus.send("shop.orders", "here")
        await bus.send("shopXorders", "nor here")
        await bus.log.drain()
        bus.log.assert_committed("g", "shop.orders", 0, 1)
    assert seen == ["here"]


async def test_defaults_hold_for_its_handlers_unless_they_say_otherwise() -> None:
    router = Router(on_error="skip", order="key", concurrency=4)

    @router.consumer("a")
    async def first(value: str) -> None: ...

    @router.consumer("a", order="partition")
    async def second(value: str) -> None: ...

    assert (first.spec.on_error, first.spec.order, first.spec.concurrency) == ("skip", "key", 4)
    assert (second.spec.on_error, second.spec.order) == ("skip", "partition")


async def test_topics_and_hooks_come_with_it() -> None:
    story: list[str] = []
    router = Router(prefix="shop.")
    router.topic("orders", partitions=3, temporary=True)

    @router.on_startup
    def begin() -> None:
        story.append("begin")

    @router.on_shutdown
    async def end(bus: EventBus) -> None:
        story.append("end")

    bus = EventBus("memory://")
    bus.include(router, prefix="x.")
    async with bus:
        [described] = await bus.admin.describe_topics(["x.shop.orders"])
        assert len(described.partitions) == 3
    assert story == ["begin", "end"]


async def test_a_module_brings_its_routers_and_marked_functions() -> None:
    story: list[Any] = []
    module: Any = ModuleType("shop_module")
    module.router, module.bill, module.place = shop(story, prefix="r.")

    @consumer("r.invoices", group="post")
    async def post(invoice: Invoice) -> None:
        story.append(invoice.order)

    module.post = post
    bus = TestBus(auto_create_topics=True)
    bus.include(module)
    async with bus:
        await module.place("o-1")
        await bus.log.drain()
    assert story == [("r.orders", "o-1"), "o-1"]
    assert sys.modules.get("shop_module") is None


async def test_marked_functions_under_a_prefix_stay_what_they_are() -> None:
    story: list[str] = []

    @producer("greetings")
    async def greet(name: str) -> str:
        return name

    @consumer("greetings", group="g")
    async def hear(name: str) -> None:
        story.append(name)

    bus = TestBus(auto_create_topics=True)
    bus.include(greet, hear, prefix="test.")
    async with bus:
        await greet("ada")
        await bus.log.drain()
        bus.log.assert_published("test.greetings", "ada")
        bus.log.assert_committed("test.g", "test.greetings", 0, 1)
    assert (story, hear.spec.topics, hear.spec.group) == (["ada"], ("greetings",), "g")


def test_what_belongs_to_a_router_is_included_with_it() -> None:
    router, bill, _ = shop([], prefix="shop.")
    with pytest.raises(ConfigError, match=r"is declared on <Router prefix='shop\.', 1 handler"):
        EventBus("memory://").include(bill)
    EventBus("memory://").include(router)
    with pytest.raises(ConfigError, match="would not see it: declare before"):
        router.topic("late")


def test_circles_are_refused() -> None:
    one, other = Router(prefix="a."), Router(prefix="b.")
    with pytest.raises(ConfigError, match="includes itself"):
        one.include(one)
    one.include(other)
    other.include(one)
    with pytest.raises(ConfigError, match="includes itself, by way of"):
        EventBus("memory://").include(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": "shop/"}, "prefix='shop/': letters"),
        ({"prefix": 5}, "prefix=5"),
        ({"group_prefix": "a b"}, "group_prefix='a b'"),
        ({"middleware": [print]}, "plain function"),
        ({"topics": "a"}, "said for each handler"),
        ({"retries": 3}, "the option is retry"),
        ({"ordr": "key"}, "did you mean 'order'"),
    ],
)
def test_wrong_parameters_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Router(**options)


def test_what_is_not_marked_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not marked"):
        EventBus("memory://").include(print)
    with pytest.raises(ConfigError, match="has no function marked"):
        EventBus("memory://").include(ModuleType("empty"))


async def test_not_while_the_bus_runs() -> None:
    async with EventBus("memory://") as bus:
        with pytest.raises(ConfigError, match="before the bus starts"):
            bus.include(Router())
