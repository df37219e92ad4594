"""Signatures and options: errors are raised at decoration, and show the right form. More are in tests/mistakes."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import msgspec
import pydantic
import pytest

from eventbus import ConsumerRecord, Depends, EventBus, Transaction, consumer, producer
from eventbus.errors import ConfigError, HandlerError
from serdes import Json

pytestmark = pytest.mark.system


class Order(msgspec.Struct):
    amount: float


@dataclasses.dataclass
class Shipment:
    amount: float


class Payment(TypedDict):
    amount: float


class Refund(pydantic.BaseModel):
    amount: float


def test_types_local_to_a_function_are_found() -> None:
    class Local(msgspec.Struct):
        x: int

    @consumer("orders")
    async def handle(order: Local, record: ConsumerRecord) -> None: ...

    assert handle.signature.payload is Local
    assert handle.signature.record_name == "record"


def test_a_record_alone_and_a_default_are_fine() -> None:
    @consumer("orders")
    async def handle(record: ConsumerRecord, limit: int = 5, *, flag=False) -> None: ...

    assert handle.signature.record_name == "record"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grup": "x"}, "no option 'grup'; did you mean 'group'"),
        ({"start": "first"}, "start"),
        ({"on_error": "ignore"}, "on_error"),
        ({"pattern": "x"}, "one of the two"),
        ({"order": "keys"}, r"@consumer\('orders'\): order='keys': .*; did you mean 'key'"),
        ({"delivery": "exactly_once"}, "delivery='exactly_once': the option is exactly_once=True"),
        ({"delivery": "at_most_once"}, "did you mean 'at-most-once'"),
        ({"isolation": "read_committed"}, "'isolation': the option is isolation_level"),
        ({"assignor": "range"}, "'assignor': the option is partition_assignment_strategy"),
        ({"ack": True}, "ack=True: auto or manual"),
        ({"concurency": 4}, "did you mean 'concurrency'"),
        ({"concurrency": 0}, "concurrency=0: a whole number from 1 to 2147483647, or none"),
        ({"concurrency": "four"}, "concurrency='four': a whole number from 1"),
        ({"commit_every": 0}, "commit_every=0: a whole number from 1"),
        ({"commit_interval_ms": 0}, "commit_interval_ms=0: a whole number of milliseconds, at least 1"),
        ({"max_unfinished": 0}, "max_unfinished=0: a whole number from 1"),
        ({"timeout": 0}, "timeout=0: more than 0 seconds"),
        ({"timeout": math.inf}, "timeout=inf: more than 0 seconds"),
        ({"timeout": math.nan}, "timeout=nan: seconds, a text"),
        ({"timeout": "5 s"}, "timeout='5 s': seconds, a text .*, or a timedelta; None for no limit"),
        ({"timeout": timedelta(seconds=-1)}, "more than 0 seconds"),
        ({"timeout": True}, "timeout=True: seconds"),
        ({"exactly_once": "yes"}, "exactly_once='yes': true or false"),
        ({"filter": "key"}, "filter 'key' is not a function"),
        ({"filter": lambda: True}, "filter '<lambda>' takes other arguments: it takes the record"),
        ({"retry": "5s"}, r"retry='5s': one delay is retry=Retry\(delays=\['5s'\]\)"),
        ({"retries": 3}, "no option 'retries': the option is retry: retry=Retry"),
        ({"dead_letter": 5}, "dead_letter=5"),
        ({"dlq": "dead"}, "no option 'dlq': the option is dead_letter: True, or the topic's name"),
        ({"max_poll_records": 4}, "no option 'max_poll_records': .*for a handler it is batch=N"),
        ({"group": ""}, "group='': a name"),
        ({"batch": -1}, "batch=-1: True for a whole fetch"),
        ({"batch": 0}, "batch=0: True for a whole fetch"),
        ({"isolation_level": "committed"}, "isolation_level='committed': read_committed or"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer("orders", **options)


@pytest.mark.parametrize("topics", [None, 5, b"orders", {"orders": 1}, "", ["orders", ""], [5], ["orders", "orders"]])
def test_what_is_no_topic(topics: Any) -> None:
    with pytest.raises(ConfigError, match=r"@consumer (takes the topic|names 'orders' twice)"):
        consumer(topics, group="g")


def test_a_pattern_is_checked_where_it_is_written() -> None:
    with pytest.raises(ConfigError, match=r"pattern='\('.*no regular expression"):
        consumer(pattern="(", group="g")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exactly_once": True, "delivery": "at-least-once"}, "contradict each other: leave one of the two out"),
        ({"exactly_once": False, "delivery": "exactly-once"}, "the option is exactly_once=True"),
        (
            {"exactly_once": True, "order": "key", "concurrency": 2},
            "order='key' and exactly_once=True",
        ),
        ({"exactly_once": True, "ack": "manual"}, "ack='manual' and exactly_once=True contradict"),
        ({"exactly_once": True, "commit_every": 5}, "commit_every and exactly_once=True contradict"),
        ({"exactly_once": True, "commit_interval_ms": 5}, "commit_interval_ms and exactly_once=True contradict"),
        ({"exactly_once": True, "isolation_level": "read_uncommitted"}, "leave isolation_level out"),
        ({"delivery": "at-most-once", "order": "none"}, "order='none' and delivery='at-most-once' contradict"),
        ({"delivery": "at-most-once", "ack": "manual"}, "counts as finished before it is handled"),
        ({"batch": True, "order": "none"}, "batch and order='none' contradict"),
        ({"batch": 5, "order": "key", "concurrency": 2}, "batch and order='key' contradict"),
        ({"order": "key"}, "concurrency=None has no room for two: say how many, concurrency=32"),
        ({"order": "key", "concurrency": 1}, "concurrency=1 has no room for two"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        consumer("orders", **options)


def test_options_in_other_forms() -> None:
    async def handle(order: Order) -> None: ...

    assert consumer("orders")(handle).spec.delivery == "at-least-once"
    assert not consumer("orders", exactly_once=False)(handle).spec.exactly_once
    for options in ({"exactly_once": True}, {"exactly_once": True, "timeout": None}):
        spec = consumer("orders", **options)(handle).spec
        assert (spec.exactly_once, spec.delivery) == (True, "exactly-once")
    assert consumer("orders", timeout=timedelta(minutes=1))(handle).spec.timeout == 60.0
    assert consumer("orders", timeout="1m")(handle).spec.timeout == 60.0
    assert consumer("orders", timeout=2)(handle).spec.timeout == 2.0
    assert consumer("orders", order="global")(handle).spec.is_ordered
    assert not consumer("orders", order="key", concurrency=2)(handle).spec.is_ordered


def test_manual_acks_need_the_record() -> None:
    with pytest.raises(ConfigError, match=r"'handle' of orders: ack='manual'.*so the handler takes the record"):

        @consumer("orders", ack="manual")
        async def handle(order: Order) -> None: ...

    with pytest.raises(ConfigError, match=r"its batch is one of records.*list\[ConsumerRecord\]"):

        @consumer("orders", ack="manual", batch=True)
        async def handle_batch(orders: list[Order]) -> None: ...

    with pytest.raises(ConfigError, match=r"does not wait until what @producer publishes is stored"):

        @consumer("orders", ack="manual")
        @producer("out")
        async def handle_and_publish(record: ConsumerRecord) -> None: ...

    @consumer("orders", ack="manual")
    async def right(order: Order, record: ConsumerRecord) -> None: ...

    @consumer("orders", ack="manual", batch=True)
    async def right_batch(records: list[ConsumerRecord]) -> None: ...


def test_a_filter_answers_at_once() -> None:
    async def later(record: ConsumerRecord) -> bool:
        return True

    with pytest.raises(ConfigError, match="filter 'later' is an async function"):
        consumer("orders", filter=later)


def test_a_producer_without_parentheses() -> None:
    with pytest.raises(ConfigError, match="@producer takes the topic"):

        @producer
        async def make() -> Order: ...


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        *((model, Refund(amount=1.5)) for model in (Order, Shipment, Payment, Refund, dict, Any)),
        (bytes, b"\x00\xff"), (str, "Grüße"), (int, -(2**40)),
    ],
)  # fmt: skip
async def test_payload_types(model: Any, sent: Any) -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[Any] = []

    async def handle(payload) -> None:
        seen.append(payload)

    handle.__annotations__["payload"] = model
    bus.consumer("t")(handle)
    async with bus:
        await bus.send("t", sent, key=7)
        await bus.drain()
    as_json = {"amount": 1.5} if model in (dict, Any, Payment) else None
    assert seen == [as_json or (model(amount=1.5) if isinstance(sent, Refund) else sent)]


async def test_a_serde_of_ones_own_by_type() -> None:
    class Celsius:
        def __init__(self, degrees: float) -> None:
            self.degrees = degrees

    class CelsiusSerde:
        def serialize(self, topic: str, value: Celsius) -> bytes:
            return f"{topic}:{value.degrees}".encode()

        def deserialize(self, topic: str, data: bytes) -> Celsius:
            return Celsius(float(data.decode().removeprefix(f"{topic}:")))

    bus = EventBus("memory://", serdes={Celsius: CelsiusSerde()})
    bus.topic("weather")
    seen: list[float] = []

    @bus.consumer("weather")
    async def handle(reading: Celsius) -> None:
        seen.append(reading.degrees)

    async with bus:
        await bus.send("weather", Celsius(21.5))
        await bus.drain()
        async with bus.new_consumer("weather") as reader:
            assert (await reader.poll())[0].value == b"weather:21.5"
    assert seen == [21.5]


# generators need a producer -------------------------------------------------------------------------------------------


def _async_generator(batch: bool) -> Any:
    async def with_record(order: Order, record: ConsumerRecord) -> AsyncIterator[int]:
        yield 1

    async def with_batch(orders: list[Order]) -> AsyncIterator[int]:
        yield 1

    return with_batch if batch else with_record


def _generator(batch: bool) -> Any:
    def alone(order: Order) -> Iterator[int]:
        yield 1

    def with_batch(orders: list[Order]) -> Iterator[int]:
        yield 1

    return with_batch if batch else alone


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("make", [_async_generator, _generator])
def test_a_generator_without_producer_is_refused(make: Any, batch: bool) -> None:
    @functools.wraps(make(batch))
    def decorated(*args: Any) -> Any:
        return make(batch)(*args)

    for function in (make(batch), decorated):
        with pytest.raises(ConfigError, match=r"yields values, but publishes them nowhere.*@bus\.producer"):
            consumer("orders", batch=batch)(function)
    assert consumer("orders", batch=batch)(producer("out")(make(batch))).producer is not None


# calling conventions --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync", "batch", "second"])
async def test_a_payload_that_is_not_the_first_positional_parameter(kind: str) -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[Any] = []

    if kind == "async":

        @bus.consumer("t")
        async def handle(*, payload: bytes) -> None:
            seen.append(payload)

    elif kind == "sync":

        @bus.consumer("t")
        def handle_sync(*, payload: bytes) -> None:
            seen.append(payload)

    elif kind == "batch":

        @bus.consumer("t", batch=True)
        async def handle_batch(*, payloads: list[bytes]) -> None:
            seen.extend(payloads)

    else:

        @bus.consumer("t")
        async def handle_second(limit=5, payload: bytes = b"") -> None:
            assert limit == 5
            seen.append(payload)

    async with bus:
        await bus.send("t", b"x")
        await bus.drain()
    assert seen == [b"x"]


# what else may be decorated -------------------------------------------------------------------------------------------


def test_an_object_with_call_is_a_handler() -> None:
    class Audit:
        """Notes orders."""

        async def __call__(self, order: Order) -> None: ...

    handler = consumer("orders")(Audit())
    assert handler.__name__ == "Audit"
    assert handler.signature.payload is Order
    assert handler.signature.is_async


def test_a_partial_is_a_handler() -> None:
    async def handle(order: Order, limit: int) -> None: ...

    handler = consumer("orders", name="limited")(functools.partial(handle, limit=3))
    assert handler.signature.payload is Order
    assert handler.signature.is_async


# called by hand -------------------------------------------------------------------------------------------------------


async def test_a_handler_is_called_without_a_bus() -> None:
    @consumer("orders")
    @producer("invoices")
    async def bill(order: Order) -> float:
        return order.amount * 2

    @consumer("orders")
    def plain(order: Order) -> float:
        return order.amount

    assert await bill(Order(2.0)) == 4.0
    assert plain(Order(2.0)) == 2.0


def test_a_record_that_may_be_none_is_the_record() -> None:
    @consumer("orders", exactly_once=True)
    async def handle(
        order: Order,
        record: Annotated[ConsumerRecord[bytes, bytes] | None, "the record"] = None,
        transaction: Transaction | None = None,
    ) -> None: ...

    @consumer("orders", batch=True)
    async def batch(records: list[ConsumerRecord | None]) -> None: ...

    assert (handle.signature.record_name, handle.signature.transaction_name) == ("record", "transaction")
    assert batch.signature.payload is ConsumerRecord


@pytest.mark.parametrize("rule", [msgspec.Meta(gt=5), pydantic.Field(gt=5)])
async def test_a_constraint_of_the_payload_is_checked(rule: Any) -> None:
    bus, seen = EventBus("memory://"), list[int]()
    bus.topic("numbers", partitions=1)

    def twice(number: int) -> int:
        return 2 * number

    @bus.consumer("numbers", group="g", on_error="skip")
    async def handle(number: Annotated[int, "a note", rule], double: int = Depends(twice)) -> None:
        seen.append(double)

    async with bus:
        await bus.send_many("numbers", [3, 7])
        await bus.drain()
    assert seen == [14]


def test_what_frameworks_see_of_a_decorated_function() -> None:
    async def place(amount: float) -> Order:
        """Places an order."""
        return Order(amount)

    for marked in (
        producer("orders")(place),
        consumer("amounts")(place),
        consumer("amounts")(producer("orders")(place)),
    ):
        assert (marked.__name__, marked.__doc__) == ("place", "Places an order.")
        assert inspect.signature(marked) == inspect.signature(place)
        if sys.version_info >= (3, 12):
            assert inspect.iscoroutinefunction(marked)
    assert inspect.iscoroutinefunction(producer("orders")(place).__call__)


async def test_a_key_of_an_enumeration_is_stored_as_its_text() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    bus = EventBus("memory://")
    bus.topic("t")
    seen: list[Any] = []

    @bus.consumer("t")
    async def handle(colour: Colour, record: ConsumerRecord) -> None:
        seen.append((colour, record.key))

    async with bus:
        await bus.send("t", Colour.RED, key=Colour.RED)
        await bus.drain()
    assert seen == [(Colour.RED, b"red")]


# every wrong form shows the right one ---------------------------------------------------------------------------------


class Plain:
    """A class that cannot be decoded from bytes."""

    def __init__(self, cents: int) -> None:
        self.cents = cents


@dataclasses.dataclass
class Within:
    plain: list[Plain]


class Service:
    def __call__(self, order: Order) -> None: ...


async def stars(**order: Order) -> None: ...
async def second(order: Order, rest: Shipment) -> None: ...
async def two_records(record: ConsumerRecord, other: ConsumerRecord) -> None: ...
async def bare_record(order: Order, record) -> None: ...
async def plain(order: Plain) -> None: ...
async def within(order: Within) -> None: ...
async def plains(orders: dict[str, set[Plain]]) -> None: ...


def spelt(**annotations: Any) -> Any:
    """A handler whose annotations are these, which no checker would let stand in a file."""

    async def handle(order: Any) -> None: ...

    handle.__annotations__ = annotations
    return handle


RIGHT = r"async def handle\(order: Order, record: ConsumerRecord\)"
WRONG_FORMS: dict[str, tuple[Any, str]] = {
    "unfinished": (spelt(order="list[Order"), "'handle' of orders: an annotation is not a type: .*list.Order"),
    "record of a type": (spelt(order="ConsumerRecord[Order]"), r"take both, \(order: Order, record: ConsumerRecord\)"),
    "record of types": (spelt(order="ConsumerRecord[str, Order]"), r"take both, \(order: Order, record: Consumer"),
    "a number": (spelt(order=5), f"'order' is annotated 5, no type; write e.g. {RIGHT}"),
    "keywords": (stars, rf"\*\*order says nothing about the payload; write e.g. {RIGHT}"),
    "two payloads": (second, f"'rest' is a second payload .*{RIGHT}.*by Depends: rest: Shipment = Depends"),
    "two records": (two_records, "'other' is a second ConsumerRecord .'record' is the first"),
    "a bare record": (bare_record, f"'record' has no annotation, .*goes to a ConsumerRecord: {RIGHT}"),
    "a class": (Service, r"Service is a class: .* object with __call__: @consumer\('orders'\)\(Service\(...\)\)"),
    "a property": (property(lambda self: self), "it got a property: decorate the method of an object"),
    "a text": ("app.handle", "decorates a function: it got 'app.handle'"),
    "no JSON within": (within, r"payload type Within cannot be read: nothing makes Plain .*serdes=\{Within: MySerde"),
    "no JSON deep within": (plains, r"payload type dict\[str, set\[.*Plain\]\] cannot be read: nothing makes Plain"),
}


@pytest.mark.parametrize(("function", "says"), WRONG_FORMS.values(), ids=WRONG_FORMS.keys())
def test_a_wrong_form_shows_the_right_one(function: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        EventBus("memory://").consumer("orders")(function)


def test_a_call_is_no_function() -> None:
    call = plain(Plain(1))
    with pytest.raises(ConfigError, match=r"coroutine.*which is a call: leave out the parentheses"):
        EventBus("memory://").consumer("orders")(call)
    call.close()


def test_a_producer_decorates_functions_too() -> None:
    with pytest.raises(ConfigError, match=r"@producer\('orders'\) decorates a function: Order is a class"):
        producer("orders")(Order)


async def test_a_type_that_nobody_reads_is_said_when_a_marked_handler_is_included() -> None:
    marked = consumer("orders")(plain)
    with pytest.raises(ConfigError, match="payload type Plain cannot be read"):
        EventBus("memory://").include(marked)
    EventBus("memory://", serdes={Plain: Json()}).include(marked)  # with a serde of one's own all is well


async def test_pydantic_models_within_other_types() -> None:
    got: list[Any] = []
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders")
    async def handle(refunds: list[Refund]) -> None:
        got.extend(refunds)

    async with bus:
        await bus.send("orders", [Refund(amount=1), {"amount": "2"}])
        await bus.drain()
    assert got == [Refund(amount=1), Refund(amount=2)]


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Order, r"no Order: Expected `float`, got `str` - at `\$\.amount`"),
        (Shipment, r"no Shipment: Expected `float`, got `str` - at `\$\.amount`"),
        (Payment, r"no Payment: Expected `float`, got `str` - at `\$\.amount`"),
        (Refund, r"no Refund: 1 validation error for Refund.*amount.*valid number"),
    ],
)
async def test_a_payload_that_does_not_fit_names_record_and_field(model: Any, says: str) -> None:
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders")
    async def handle(payload: model) -> None: ...

    with pytest.raises(HandlerError, match=rf"(?s)'handle': orders-0 offset 0, key b'k': the value is {says}"):
        async with bus:
            await bus.send("orders", {"amount": "much"}, key="k")
            await bus.drain()
