"""Mistakes in the declaration of handlers, producers and topics."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, cast

import msgspec
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from dlq import Retry
from eventbus import ConsumerRecord, Depends, EventBus, Transaction, consumer, producer
from eventbus.middleware import RateLimit
from tests.mistakes.kit import At, Section, heard

if TYPE_CHECKING:
    from decimal import Decimal as Money

RIGHT = "async def handle(order: Order, record: ConsumerRecord) -> None"


class Order(msgspec.Struct):
    id: str


class Basket:
    def __init__(self, items: list[str]) -> None:
        self.items = items


@dataclasses.dataclass
class Basin:
    litres: int
    full: bool = dataclasses.field(init=False)


SIGNATURES = Section("What a handler takes")


@SIGNATURES.mistake("`async def handle(order): ...`", "annotate the payload", "'handle' of orders", "'order'", RIGHT)
def without_annotation(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order) -> None: ...


@SIGNATURES.mistake(
    "`order: Ordr`", "the right name", "'Ordr' is not known", "did you mean 'Order'", "import it, or define it above"
)
def misspelt_type(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order: Ordr) -> None: ...  # noqa: F821 - it is not there: that is the mistake


@SIGNATURES.mistake(
    "`if TYPE_CHECKING: from money import Money`, then `price: Money`", "import it outside of the `if`",
    "annotation 'Money' is not known", "import it", "`if TYPE_CHECKING:`",
)  # fmt: skip
def type_that_is_not_imported(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(price: Money) -> None: ...


@SIGNATURES.mistake(
    "`basket: Basket`, a class with an `__init__` of its own", "a Struct, dataclass, TypedDict or pydantic model",
    "payload type Basket cannot be read", "msgspec.Struct", "EventBus(url, serdes={Basket: MySerde()})",
)  # fmt: skip
def type_nobody_can_make(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(basket: Basket) -> None: ...


@SIGNATURES.mistake(
    "a dataclass with `field(init=False)`, an attrs `converter`, a hand-written `__init__` in a dataclass",
    "a property, `__post_init__`, or a pydantic model", "Basin.full has init=False", "Make it a property",
)  # fmt: skip
def rule_that_does_not_run(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(basin: Basin) -> None: ...


@SIGNATURES.mistake(
    "`event: bytes | Order`",
    "a topic for each, or the bytes in a field of a class",
    "bytes",
    "no single format carries",
)
def union_without_format(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(event: bytes | Order) -> None: ...


@SIGNATURES.mistake("`async def handle(): ...`", "take the payload, or the record", "'handle' of orders", RIGHT)
def nothing_taken(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle() -> None: ...


@SIGNATURES.mistake(
    "`records: list[ConsumerRecord]` without `batch=True`", "`batch=True`", "takes a list of records, and gets one"
)
def records_without_batch(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(records: list[ConsumerRecord]) -> None: ...


@SIGNATURES.mistake("`async def handle(*args): ...`", "one parameter with its type", "*args says nothing", RIGHT)
def stars(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(*args: Order) -> None: ...


@SIGNATURES.mistake(
    "`async def handle(order: Order, /): ...`", "leave out the `/`", "passed by name", "leave out the '/' after 'order'"
)
def positional_only(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order: Order, /) -> None: ...


@SIGNATURES.mistake(
    "`async def handle(order: Order, key: str): ...`", "`record: ConsumerRecord`, then `record.key`",
    "'key' would be a second payload", "take record: ConsumerRecord, and use record.key",
)  # fmt: skip
def key_as_a_parameter(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order: Order, key: str) -> None: ...


@SIGNATURES.mistake(
    "`async def handle(bus: EventBus, order: Order): ...`", "use the bus by its name",
    "'bus' is a bus, which a handler is not given", "use the one that it is declared on", "Depends(get_bus)",
)  # fmt: skip
def bus_as_a_parameter(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(bus: EventBus, order: Order) -> None: ...


@SIGNATURES.mistake(
    "`@bus.consumer(...)` above a method, inside its class", "`bus.consumer(...)(shop.handle)`, where the object is",
    "'handle' of orders is a method", "bus.consumer('orders', group='billing')(shop.handle)",
)  # fmt: skip
def method(at: At) -> None:
    class Shop:
        @at.bus().consumer("orders")
        async def handle(self, order: Order) -> None: ...


@SIGNATURES.mistake(
    "`@bus.consumer(..., batch=True)`, and `order: Order`", "`orders: list[Order]`",
    "a batch handler takes one list", "async def handle(orders: list[Order]) -> None",
)  # fmt: skip
def batch_of_one(at: At) -> None:
    @at.bus().consumer("orders", batch=True)
    async def handle(order: Order) -> None: ...


@SIGNATURES.mistake(
    "`tx: Transaction` in a handler as any other", "`exactly_once=True`",
    "a Transaction is there only with exactly_once=True", "@bus.consumer(..., exactly_once=True)",
)  # fmt: skip
def transaction_of_none(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order: Order, tx: Transaction) -> None: ...


@SIGNATURES.mistake(
    "`async def`, and `tx=sessionmaker(engine)`", "a plain `def`, or `async_sessionmaker`",
    "tx= blocks its thread", "make the handler a plain function", "async_sessionmaker(engine)",
)  # fmt: skip
def blocking_session(at: At) -> None:
    @at.bus().consumer("orders", tx=sessionmaker(create_engine(f"sqlite:///{at.folder}/shop.db")))
    async def handle(order: Order, session: Session) -> None: ...


@SIGNATURES.mistake(
    "`session: Session` without `tx=`", "`tx=sessionmaker(engine)`",
    "parameter 'session' is a Session, which tx= gives", "tx=sessionmaker(engine)",
)  # fmt: skip
def session_of_nobody(at: At) -> None:
    @at.bus().consumer("orders")
    def handle(order: Order, session: Session) -> None: ...


@SIGNATURES.mistake(
    "`Depends(open_database())`", "`Depends(open_database)`",
    "parameter db: Depends(", "give the function itself, without parentheses",
)  # fmt: skip
def called_dependency(at: At) -> None:
    def open_database() -> str:
        return "a connection"

    opened: Any = open_database()

    @at.bus().consumer("orders")
    async def handle(order: Order, db: Any = Depends(opened)) -> None: ...


DECORATORS = Section("Decorators and their options")


@DECORATORS.mistake("`@bus.consumer` without parentheses", '`@bus.consumer("orders")`', "@consumer", '"orders"')
def no_parentheses(at: At) -> None:
    bus: Any = at.bus()

    @bus.consumer
    async def handle(order: Order) -> None: ...


@DECORATORS.mistake(
    "neither `group=` nor `service=` on `file://` or `kafka://`", '`EventBus(url, service="billing")`, or `group=`',
    "handler 'handle' (", "has no group", 'EventBus(..., service="billing")', 'group="billing"',
)  # fmt: skip
async def no_group(at: At) -> None:
    bus = EventBus("file://./data")

    @bus.consumer("orders")
    async def handle(order: Order) -> None: ...

    await bus.start()


@DECORATORS.mistake(
    "`@bus.every(...)` on `file://` or `kafka://` without `service=`", '`EventBus(url, service="billing")`',
    "@bus.every: 'tick' needs the service's name", 'EventBus(..., service="billing")', 'service="eventbus"',
)  # fmt: skip
async def no_service(at: At) -> None:
    bus = EventBus("file://./data")

    @bus.every("30s")
    async def tick() -> None: ...

    await bus.start()


@DECORATORS.mistake(
    "`send(..., delay=60)` on `file://` or `kafka://` without `service=`", '`EventBus(url, service="billing")`',
    "send('orders', ...) with a delay needs the service's name", 'EventBus(..., service="billing")',
)  # fmt: skip
async def delayed_without_a_service(at: At) -> None:
    async with EventBus("file://./data", auto_create_topics=True) as bus:
        await bus.send("orders", "o-1", delay=60)


@DECORATORS.mistake(
    '`send(..., delay="5 seconds")`', '`delay="5s"`', "delay='5 seconds'", 'a text such as "500ms", "5s", "10m"',
)  # fmt: skip
async def delayed_in_words(at: At) -> None:
    async with at.bus() as bus:
        await bus.send("orders", "o-1", delay="5 seconds")


@DECORATORS.mistake(
    '`EventBus(service="shop/eu")`', '`service="shop-eu"`',
    "service='shop/eu' is not a service's name", "Choose 1 to 100 of a-z A-Z 0-9 . _ -",
)  # fmt: skip
def service_with_a_slash(at: At) -> None:
    at.bus(service="shop/eu")


@DECORATORS.mistake(
    "a decorator of one's own between, which returns nothing", "`return function`",
    "@consumer('orders') decorates a function", "it got None", "does not return the function",
)  # fmt: skip
def decorator_returns_nothing(at: At) -> None:
    def logged(function: Any) -> Any: ...

    @at.bus().consumer("orders")
    @logged
    async def handle(order: Order) -> None: ...


@DECORATORS.mistake(
    "`@bus.producer(...)` above `@bus.consumer(...)`", "the other way round",
    "handle: put @producer below @consumer", "nearest to the function",
)  # fmt: skip
def producer_above(at: At) -> None:
    @producer("bills")
    @consumer("orders")
    async def handle(order: Order) -> str:
        return order.id


@DECORATORS.mistake(
    "`yield` in a handler without a producer", '`@bus.producer("topic")` below',
    "'handle' yields values, but publishes them nowhere", '@bus.producer("topic") below',
)  # fmt: skip
def generator(at: At) -> None:
    @at.bus().consumer("orders")
    async def handle(order: Order) -> Any:
        yield order


@DECORATORS.mistake(
    "two `@bus.consumer` above each other", "a list of topics",
    "handle() has a @consumer already", "@bus.consumer(['orders', 'returns'])",
)  # fmt: skip
def two_consumers(at: At) -> None:
    @consumer("returns")
    @consumer("orders")
    async def handle(order: Order) -> None: ...


@DECORATORS.mistake("`concurency=8`", "`concurrency=8`", "no option 'concurency'", "did you mean 'concurrency'")
def misspelt_option(at: At) -> None:
    at.bus().consumer("orders", concurency=8)


@DECORATORS.mistake('`group_id="billing"`', '`group="billing"`', "no option 'group_id'", "the option is group")
def kafkas_word(at: At) -> None:
    at.bus().consumer("orders", group_id="billing")


@DECORATORS.mistake(
    "`retries=3`", "`retry=3`, or `retry=Retry(...)`", "no option 'retries'", "retry=Retry(delays=['5s', '1m'])"
)
def retries(at: At) -> None:
    at.bus().consumer("orders", retries=3)


@DECORATORS.mistake('`Retry(delays=["5 seconds"])`', '`delays=["5s"]`', "Retry(delays=['5 seconds'])", "5s")
def delay_in_words(at: At) -> None:
    Retry(delays=["5 seconds"])


@DECORATORS.mistake(
    '`exactly_once=True, ack="manual"`',
    "one of them",
    "@consumer('orders')",
    "ack='manual' and exactly_once=True contradict each other",
    "leave one of the two out",
)
def contradiction(at: At) -> None:
    at.bus().consumer("orders", exactly_once=True, ack="manual")


@DECORATORS.mistake('`order="keys"`', '`order="key"`', "@consumer('orders')", "'keys'", "'key'")
def unknown_order(at: At) -> None:
    at.bus().consumer("orders", order="keys")


@DECORATORS.mistake(
    "two handlers on one topic and group", "a group for each",
    "handler 'count'", "handler 'bill'", "both read 'orders' in the group 'shop'", "group=...",
)  # fmt: skip
async def same_topic_and_group(at: At) -> None:
    bus = at.bus()

    @bus.consumer("orders", group="shop")
    async def count(order: Order) -> None: ...

    @bus.consumer("orders", group="shop")
    async def bill(order: Order) -> None: ...

    await bus.start()


@DECORATORS.mistake(
    "two handlers of one name, and no `group=`", "`group=` for each",
    "handler 'handle'", "both read 'orders' in the group 'eventbus.handle'", "Give each a separate group",
)  # fmt: skip
async def same_name(at: At) -> None:
    bus = at.bus()

    def declare() -> None:
        @bus.consumer("orders")
        async def handle(order: Order) -> None: ...

    declare()
    declare()
    await bus.start()


@DECORATORS.mistake(
    "`time.sleep` (or a blocking driver) in an `async def`", "a plain `def`: it runs in a thread",
    "handle", "the event loop", "plain function",
)  # fmt: skip
async def blocked_loop(at: At) -> str:
    bus = at.bus(slow_loop_ms=40)

    @bus.consumer("orders", group="billing")
    async def handle(order: Order) -> None:
        time.sleep(0.3)  # the mistake itself, longer than slow_loop_ms

    with heard() as lines:
        async with bus:
            await bus.send("orders", Order("o-1"))
            await bus.drain()
    return next(line for line in lines if "blocked for" in line and "by handler" in line).splitlines()[0]


@DECORATORS.mistake(
    "a handler declared while the bus runs", "before `async with bus:`", "declare handlers before the bus starts"
)
async def declared_late(at: At) -> None:
    async with at.bus() as bus:

        @bus.consumer("orders")
        async def handle(order: Order) -> None: ...


@DECORATORS.mistake(
    "one topic declared twice, with other partitions",
    "once",
    "'orders' is declared twice",
    "partitions=2",
    "partitions=3",
)
def topic_declared_twice(at: At) -> None:
    at.bus().topic("orders", partitions=3)


@DECORATORS.mistake('`bus.topic("orders/eu")`', "letters, digits, `.`, `_`, `-`", "orders/eu", "a-z")
async def name_of_a_topic(at: At) -> None:
    bus = EventBus("memory://")
    bus.topic("orders/eu")
    await bus.start()


@DECORATORS.mistake(
    '`configs={"retension.ms": 1000}`', "`retention.ms`", "'retension.ms'", "did you mean 'retention.ms'"
)
async def topic_setting(at: At) -> None:
    bus = EventBus("memory://")
    bus.topic("orders", configs={"retension.ms": 1000})
    await bus.start()


@DECORATORS.mistake(
    '`@bus.producer("orders", key="id")`', "`key=lambda order: order.id`", "key='id'", "a plain function of the value"
)
def key_by_name(at: At) -> None:
    at.bus().producer("orders", key=cast(Any, "id"))


@DECORATORS.mistake(
    "`bus.include(RateLimit(5))`", "`middleware=[RateLimit(5)]`", "include(", "goes around handlers where it is said to"
)
def middleware_included(at: At) -> None:
    at.bus().include(type("RateLimit", (RateLimit,), {"__repr__": lambda self: "RateLimit(5)"})(5))


@DECORATORS.mistake(
    "`await call_next(record)` without `return` in a middleware", "`return await call_next(record)`",
    "handler 'handle'", "its middleware (timed) returns None", "not published", "return await call_next(record)",
)  # fmt: skip
async def result_dropped(at: At) -> str:
    async def timed(record: ConsumerRecord, call_next: Any) -> None:
        await call_next(record)

    bus = at.bus(middleware=[timed])

    @bus.consumer("orders", group="billing")
    @bus.producer("bills")
    async def handle(order: str) -> str:
        return order

    with heard() as lines:
        async with bus:
            await bus.send("orders", "o-1")
            await bus.drain()
    return lines[0]


@DECORATORS.mistake(
    '`@bus.consumer(pattern="ord")`, and the topic is `orders`', '`pattern="ord.*"`',
    "no topic matches 'ord'", "whole names",
)  # fmt: skip
async def half_a_pattern(at: At) -> str:
    bus = at.bus()

    @bus.consumer(pattern="ord", group="billing")
    async def handle(order: str) -> None: ...

    with heard("eventbus.runner") as lines:
        async with bus:
            pass
    return lines[0]


@DECORATORS.mistake(
    '`@bus.every("0 0 31 2 *")`', "a day that the month has; `L` is its last one",
    "never fires", "No date matches", "Change one of them",
)  # fmt: skip
def a_date_that_never_comes(at: At) -> None:
    at.bus().every("0 0 31 2 *")


@DECORATORS.mistake(
    '`@bus.every("@reboot")`', "`@bus.on_startup`",
    "not a known nickname", "@daily", "@bus.on_startup",
)  # fmt: skip
def at_each_start(at: At) -> None:
    at.bus().every("@reboot")


@DECORATORS.mistake(
    "`bus.include(shop)` of a module without marked functions", "`@consumer(...)` from `eventbus` there",
    "module time has no function marked with @consumer or @producer",
)  # fmt: skip
def empty_module(at: At) -> None:
    at.bus().include(time)


SECTIONS = (SIGNATURES, DECORATORS)
