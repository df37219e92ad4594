"""`Depends`: which values are created for a call, in which order, when they are closed, and errors."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from fastapi import Depends as FastapiDepends
from sqlalchemy import Connection, create_engine
from sqlalchemy.orm import Session, sessionmaker

from eventbus import ConsumerRecord, Depends, EventBus, Transaction, consumer, producer
from eventbus.errors import ConfigError
from tests.client.dispatching import Outputs, dispatched

pytestmark = pytest.mark.system


class Order(msgspec.Struct):
    amount: int


seen: list[Any] = []


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    seen.clear()


def noted(name: str) -> Callable[[], str]:
    def make() -> str:
        seen.append(name)
        return name

    return make


settings = noted("settings")


def database(name: str = Depends(settings)) -> Iterator[str]:
    seen.append("open")
    yield f"database of {name}"
    seen.append("close")


async def client(name: str = Depends(settings)) -> AsyncIterator[str]:
    seen.append("connect")
    yield f"client of {name}"
    seen.append("disconnect")


async def user(record: ConsumerRecord, order: Order) -> str:
    return f"user {record.offset} with {order.amount}"


class Repository:
    def __init__(self, database: Annotated[str, Depends(database)], limit: int = 7) -> None:
        self.made = (database, limit)


ORDERS = (b'{"amount":1}', b'{"amount":2}')


# what is given, and when ----------------------------------------------------------------------------------------------


async def test_each_record_has_its_own_and_what_is_shared_is_made_once() -> None:
    @consumer("t")
    async def handle(
        order: Order, db: str = Depends(database), cl: str = Depends(client), repo: Repository = Depends()
    ) -> None:
        seen.append((order.amount, db, cl, repo.made))

    driver = await dispatched(handle, *ORDERS)
    assert driver.work.finished == 2
    once = ["settings", "open", "connect"]
    both = ("database of settings", "client of settings", ("database of settings", 7))
    assert seen == [*once, (1, *both), "disconnect", "close", *once, (2, *both), "disconnect", "close"]


async def test_without_the_cache_it_is_made_for_each() -> None:
    @consumer("t")
    async def handle(order: Order, a: str = Depends(settings), b: str = Depends(settings, use_cache=False)) -> None:
        seen.append((a, b))

    await dispatched(handle, ORDERS[0])
    assert seen == ["settings", "settings", ("settings", "settings")]


async def test_plain_function_has_them_in_its_thread() -> None:
    @consumer("t")
    def handle(order: Order, db: str = Depends(database)) -> None:
        seen.append((order.amount, db))

    await dispatched(handle, *ORDERS)
    story = ["settings", "open", (1, "database of settings"), "close"]
    assert seen == [*story, *story[:2], (2, "database of settings"), "close"]


async def test_batch_has_one_for_all() -> None:
    def count(orders: list[Order]) -> int:
        return len(orders)

    @consumer("t", batch=True)
    async def handle(orders: list[Order], many: int = Depends(count), db: str = Depends(database)) -> None:
        seen.append((many, db))

    await dispatched(handle, *ORDERS)
    assert seen == ["settings", "open", (2, "database of settings"), "close"]


@pytest.mark.parametrize("takes_record", [False, True])
async def test_dependency_takes_the_record_and_the_payload(takes_record: bool) -> None:
    if takes_record:

        @consumer("t")
        async def handle(record: ConsumerRecord, order: Order, who: str = Depends(user)) -> None:
            seen.append((record.offset, order.amount, who))
    else:

        @consumer("t")
        async def handle(order: Order, who: str = Depends(user)) -> None:
            seen.append((order.amount, who))

    await dispatched(handle, *ORDERS)
    assert [one[-1] for one in seen] == ["user 0 with 1", "user 1 with 2"]


async def test_handler_of_the_record_alone() -> None:
    @consumer("t")
    async def handle(record: ConsumerRecord, name: str = Depends(settings)) -> None:
        seen.append((record.offset, name))

    await dispatched(handle, b"x")
    assert seen == ["settings", (0, "settings")]


@pytest.mark.parametrize("kind", ["async stream", "stream", "value"])
async def test_what_a_handler_publishes_is_published_before_anything_is_closed(kind: str) -> None:
    outputs = Outputs()
    publish = outputs.publish

    async def noting(value: Any) -> Any:
        seen.append(value)
        return await publish(value)

    outputs.publish = noting
    if kind == "async stream":

        @consumer("t")
        @producer("out")
        async def handle(order: Order, db: str = Depends(database)) -> AsyncIterator[str]:
            yield db
            yield "more"
    elif kind == "stream":

        @consumer("t")
        @producer("out")
        def handle(order: Order, db: str = Depends(database)) -> Iterator[str]:
            yield db
            yield "more"
    else:

        @consumer("t")
        @producer("out")
        async def handle(order: Order, db: str = Depends(database)) -> str:
            return db

    await dispatched(handle, ORDERS[0], outputs=outputs)
    assert outputs.values == ["database of settings", "more"][: 1 if kind == "value" else 2]
    if kind == "async stream":
        assert seen == ["settings", "open", *outputs.values, "close"]


async def test_behind_a_plain_decorator() -> None:
    def logged(function: Any) -> Any:
        @wraps(function)
        def call(*args: Any, **arguments: Any) -> Any:
            seen.append("called")
            return function(*args, **arguments)

        return call

    @consumer("t")
    @logged
    async def handle(order: Order, db: str = Depends(database)) -> None:
        seen.append(db)

    await dispatched(handle, ORDERS[0])
    assert seen == ["settings", "open", "called", "database of settings", "close"]


async def test_methods_partials_and_objects() -> None:
    class Shop:
        def __call__(self, order: Order) -> str:
            return f"object {order.amount}"

        async def name(self, order: Order) -> str:
            return f"method {order.amount}"

    def greet(word: str, order: Order) -> str:
        return f"{word} {order.amount}"

    shop = Shop()

    @consumer("t")
    async def handle(
        order: Order,
        a: str = Depends(shop),
        b: str = Depends(shop.name),
        c: str = Depends(partial(greet, word="hello")),
        d: dict[str, int] = Depends(dict),
    ) -> None:
        seen.append((a, b, c, d))

    await dispatched(handle, ORDERS[0])
    assert seen == [("object 1", "method 1", "hello 1", {})]


async def test_marker_of_fastapi_means_the_same() -> None:
    def opened(name: Annotated[str, FastapiDepends(settings)]) -> str:
        return f"opened {name}"

    @consumer("t")
    async def handle(order: Order, a: str = FastapiDepends(opened), b: str = Depends(settings)) -> None:
        seen.append((a, b))

    await dispatched(handle, ORDERS[0])
    assert seen == ["settings", ("opened settings", "settings")]


def traced(function: Any) -> Any:
    @wraps(function)
    def call(*args: Any, **arguments: Any) -> Any:
        return function(*args, **arguments)

    return call


async def test_decorated_dependencies_are_awaited_and_opened() -> None:
    async def awaited() -> str:
        return "awaited"

    for opened, opened_async in (
        (contextmanager(database), asynccontextmanager(client)),
        (traced(database), traced(client)),
    ):

        @consumer("t")
        async def handle(
            order: Order,
            a: str = Depends(traced(awaited)),
            b: str = Depends(opened),
            c: str = Depends(opened_async),
        ) -> None:
            seen.append((a, b, c))

        await dispatched(handle, ORDERS[0])
        values = ("awaited", "database of settings", "client of settings")
        assert seen == ["settings", "open", "connect", values, "disconnect", "close"]
        seen.clear()


async def test_called_by_hand_it_is_the_function_as_it_is_written() -> None:
    @consumer("t")
    async def handle(order: Order, db: str = Depends(database)) -> str:
        return f"{order.amount} {db}"

    assert await handle(Order(3), db="fake") == "3 fake"
    assert list(inspect.signature(handle).parameters) == ["order", "db"]
    assert seen == []


# errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_async", [True, False])
async def test_dependency_sees_what_the_handler_raised_and_cannot_hide_it(is_async: bool) -> None:
    def session() -> Iterator[str]:
        try:
            yield "session"
        except ValueError as error:
            seen.append(f"rolled back: {error}")

    async def async_session() -> AsyncIterator[str]:
        try:
            yield "session"
        except ValueError as error:
            seen.append(f"rolled back: {error}")

    if is_async:

        @consumer("t")
        async def handle(order: Order, db: str = Depends(async_session), other: str = Depends(database)) -> None:
            raise ValueError("no")
    else:

        @consumer("t")
        def handle(order: Order, db: str = Depends(session)) -> None:
            raise ValueError("no")

    driver = await dispatched(handle, *ORDERS)
    assert driver.work.finished <= 0
    assert driver.error is not None
    assert isinstance(driver.error.__cause__, ValueError)
    assert seen[-1] == "rolled back: no"


async def test_failing_dependency_fails_the_record_and_closes_what_is_open() -> None:
    def broken(db: str = Depends(database)) -> Iterator[str]:
        try:
            yield db
        finally:
            seen.append("broken closed")
            raise OSError("at the end")

    @consumer("t", on_error="skip")
    async def handle(order: Order, a: str = Depends(broken)) -> None:
        seen.append(order.amount)

    driver = await dispatched(handle, *ORDERS)
    assert driver.work.finished == 2
    assert seen[:4] == ["settings", "open", 1, "broken closed"]
    assert seen.count("close") == 0  # a generator that another error passes through closes by finally alone


# overrides ------------------------------------------------------------------------------------------------------------


async def test_override_stands_in_from_the_next_start_on() -> None:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t")
    async def handle(order: Order, repo: Repository = Depends(), name: str = Depends(settings)) -> None:
        seen.append((repo.made[0], name))

    async def fake(name: str = "fake") -> AsyncIterator[str]:
        yield name

    async with bus:
        await bus.send("t", Order(1))
        await bus.drain()
    bus.dependency_overrides[database] = fake
    async with bus:
        await bus.send("t", Order(1))
        await bus.drain()
    bus.dependency_overrides.clear()
    async with bus:
        await bus.send("t", Order(1))
        await bus.drain()
    got = [one for one in seen if isinstance(one, tuple)]
    assert got == [("database of settings", "settings"), ("fake", "settings"), ("database of settings", "settings")]


async def test_override_that_wants_more_of_the_call_is_refused() -> None:
    bus = EventBus("memory://")
    bus.topic("t")

    @bus.consumer("t")
    async def handle(order: Order, name: str = Depends(settings)) -> None: ...

    def of_record(record: ConsumerRecord) -> str:
        return record.topic

    bus.dependency_overrides[settings] = of_record
    with pytest.raises(ConfigError, match="dependency_overrides takes the record"):
        await bus.start()


# transactions ---------------------------------------------------------------------------------------------------------


async def test_dependency_takes_the_transaction() -> None:
    bus = EventBus("memory://")
    bus.topic("t")
    bus.topic("out")

    async def announce(tx: Transaction, order: Order) -> int:
        await tx.send("out", order)
        return order.amount

    @bus.consumer("t", exactly_once=True)
    async def handle(order: Order, amount: int = Depends(announce)) -> None:
        seen.append(amount)

    async with bus:
        await bus.send("t", Order(5))
        await bus.drain()
        async with bus.new_consumer(group="g", topics=["out"]) as reader:
            record = await anext(aiter(reader))
    assert (seen, record.value) == ([5], b'{"amount":5}')


async def test_dependency_takes_the_session_of_the_handlers_transaction(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE seen (amount INTEGER)")
    bus = EventBus("memory://")
    bus.topic("t")

    class Orders:
        def __init__(self, session: Session) -> None:
            self.session = session

        def add(self, order: Order) -> None:
            self.session.connection().exec_driver_sql(f"INSERT INTO seen VALUES ({order.amount})")

    @bus.consumer("t", tx=sessionmaker(engine))
    def handle(order: Order, orders: Orders = Depends()) -> None:
        orders.add(order)

    async with bus:
        await bus.send("t", Order(5))
        await bus.drain()
    with engine.connect() as connection:
        assert list(connection.exec_driver_sql("SELECT amount FROM seen")) == [(5,)]
    engine.dispose()


# what cannot be -------------------------------------------------------------------------------------------------------


def asynchronous_below_plain() -> None:
    @consumer("t")
    def handle(order: Order, cl: str = Depends(client)) -> None: ...


def called_already() -> None:
    @consumer("t")
    async def handle(order: Order, name: str = Depends(settings())) -> None: ...


def no_function_and_no_class() -> None:
    @consumer("t")
    async def handle(order: Order, name: int | str = Depends()) -> None: ...


def unknown_parameter() -> None:
    def load(path: str) -> str:
        return path

    @consumer("t")
    async def handle(order: Order, name: str = Depends(load)) -> None: ...


def by_position_only() -> None:
    def load(order: Order, /) -> str:
        return ""

    @consumer("t")
    async def handle(order: Order, name: str = Depends(load)) -> None: ...


class Loop:
    def __init__(self, loop: Annotated[Loop, Depends()]) -> None: ...


def circle() -> None:
    @consumer("t")
    async def handle(order: Order, name: Loop = Depends()) -> None: ...


def record_of_a_batch() -> None:
    @consumer("t", batch=True)
    async def handle(orders: list[Order], who: str = Depends(of_record)) -> None: ...


def of_record(record: ConsumerRecord) -> str:
    return record.topic


def transaction_without_one() -> None:
    def announce(tx: Transaction) -> None: ...

    @consumer("t")
    async def handle(order: Order, name: None = Depends(announce)) -> None: ...


def two_faces_of_a_transaction() -> None:
    def load(connection: Connection) -> None: ...

    @consumer("t", tx=sessionmaker(create_engine("sqlite:///never-opened.db")))
    def handle(order: Order, session: Session, name: None = Depends(load)) -> None: ...


def two_faces_among_dependencies() -> None:
    def load(connection: Connection) -> None: ...
    def store(session: Session) -> None: ...

    @consumer("t", tx=sessionmaker(create_engine("sqlite:///never-opened.db")))
    def handle(order: Order, a: None = Depends(load), b: None = Depends(store)) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (asynchronous_below_plain, r"parameter cl: client is asynchronous, and the handler is a plain function: make"),
        (called_already, r"Depends\('settings'\): give the function itself, without parentheses"),
        (no_function_and_no_class, r"parameter name: Depends\(int \| str\): give the function itself"),
        (unknown_parameter, r"parameter name: load takes 'path', and nothing says what that is: give it a default"),
        (by_position_only, r"leave out the '/' after 'order' of load"),
        (circle, r"parameter name -> loop: Loop depends on itself"),
        (record_of_a_batch, r"takes the ConsumerRecord, and a batch has many"),
        (transaction_without_one, r"a Transaction is there only with exactly_once=True"),
        (two_faces_of_a_transaction, r"the handler takes it as a Session, and a dependency as a Connection"),
        (two_faces_among_dependencies, r"asked for as Session and as Connection"),
    ],
)
def test_mistakes_are_told_at_decoration(mistake: Callable[[], None], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        mistake()
    assert "handler 'handle' of t" in str(raised.value)
