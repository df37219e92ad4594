"""A saga: two other services pay and pack an order, or every step of it is undone.

Orders, payments and stock have separate databases, so no transaction spans them. Each step is a transaction in one
database: an inbox receives the message, an outbox sends the next ones. The table `STEPS` defines what happens next. A
timeout is an event, published with the order and delivered when it is due. Messages of an order have one key, so they
arrive in order.

    orders                    payments          stock
    placed  -- pay -->        money is taken
    paid    <-- paid --
            -- reserve -->                      an item is taken
    packed  <-- reserved --

Needs SQLAlchemy: pip install "eventbus-log[sql]"
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from datetime import timedelta
from typing import Any, cast

import anyio
import msgspec
from sqlalchemy import Column, CursorResult, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import Session, sessionmaker

from dlq import Retry
from eventbus import EventBus, log_url
from outbox import Outbox


class Order(msgspec.Struct):
    id: int
    customer: str
    item: str
    price: int
    patience: timedelta = timedelta(hours=1)


class Message(msgspec.Struct):
    what: str
    order: Order


STEPS = {
    ("placed", "paid"): ("paid", "reserve"),
    ("placed", "refused"): ("cancelled: no money", None),
    ("placed", "timed out"): ("cancelled: too late", None),
    ("paid", "reserved"): ("packed", None),
    ("paid", "sold out"): ("cancelled: sold out", "refund"),
    ("paid", "timed out"): ("cancelled: too late", "refund"),
}
"""(state of the order, event) -> (next state, next step). This table is the whole saga."""
TOO_LATE = {"paid": "refund", "reserved": "release"}
"""Undoes a step that finished after the order was cancelled."""
TOPICS = {"pay": "payments", "refund": "payments", "reserve": "stock", "release": "stock"}

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("state", String(40)))
accounts = Table("accounts", metadata, Column("name", String(40), primary_key=True), Column("count", Integer))
stock = Table("stock", metadata, Column("name", String(40), primary_key=True), Column("count", Integer))
outbox = Outbox(metadata)  # the same tables in each of the databases


def tell(session: Session, what: str, order: Order, **options: Any) -> None:
    outbox.publish(session, TOPICS.get(what, "orders"), Message(what, order), key=str(order.id), **options)


def place(session: Session, order: Order) -> None:
    """Place an order, as a request does."""
    session.execute(insert(orders).values(id=order.id, state="placed"))
    tell(session, "pay", order)
    tell(session, "timed out", order, deliver_at=order.patience)


def take(session: Session, table: Table, name: str, count: int) -> bool:
    """Take a count from stock, or return a negative count to it. Return False if there is not enough."""
    found = table.update().where(table.c.name == name, table.c.count >= count)
    result = cast("CursorResult[Any]", session.execute(found.values(count=table.c.count - count)))
    return bool(result.rowcount)


class Bank:
    """The bank of customer cyd, which is unavailable at first."""

    is_away = False


def shop(bus: EventBus, order_db: Engine, payment_db: Engine, stock_db: Engine, retry: Retry, **relay: Any) -> None:
    """Build the three services. In production, each is a separate program."""
    for engine in (order_db, payment_db, stock_db):
        metadata.create_all(engine)
        bus.include(outbox.relay(engine, **relay))

    @bus.consumer("orders", group="orders", tx=order_db)
    def coordinate(event: Message, session: Session) -> None:
        is_this = orders.c.id == event.order.id
        state = session.scalars(select(orders.c.state).where(is_this)).one()
        state, command = STEPS.get((state, event.what), (state, TOO_LATE.get(event.what)))
        session.execute(orders.update().where(is_this).values(state=state))
        if command is not None:
            tell(session, command, event.order)

    @bus.consumer("payments", group="payments", tx=payment_db, retry=retry)
    def pay(command: Message, session: Session) -> None:
        order = command.order
        if order.customer == "cyd" and Bank.is_away:
            raise ConnectionError("cyd's bank does not answer")
        if command.what == "refund":
            take(session, accounts, order.customer, -order.price)
        else:
            tell(session, "paid" if take(session, accounts, order.customer, order.price) else "refused", order)

    @bus.consumer("stock", group="stock", tx=stock_db)
    def pack(command: Message, session: Session) -> None:
        order = command.order
        if command.what == "release":
            take(session, stock, order.item, -1)
        else:
            tell(session, "reserved" if take(session, stock, order.item, 1) else "sold out", order)


def rows(engine: Engine, table: Table) -> dict[Any, Any]:
    with engine.connect() as connection:
        return dict(connection.execute(select(table).order_by(*table.primary_key)).all())


async def until(condition: Callable[[], bool]) -> None:
    while True:
        if condition():
            return
        await anyio.sleep(0.01)


async def main(order_db: Engine, payment_db: Engine, stock_db: Engine) -> None:
    bus, retry = EventBus(log_url("memory://")), Retry(immediate=0, delays=["50ms"])
    for topic in ("orders", "payments", "stock", "retry.payments", "dlq.payments"):
        bus.topic(topic, temporary=True)
    shop(bus, order_db, payment_db, stock_db, retry)
    with payment_db.begin() as connection:
        connection.execute(insert(accounts), [{"name": name, "count": 100} for name in ("ada", "bob", "cyd")])
    with stock_db.begin() as connection:
        connection.execute(insert(stock), [{"name": "bike", "count": 5}, {"name": "car", "count": 0}])

    Bank.is_away = True
    async with bus:
        with sessionmaker(order_db).begin() as session:
            place(session, Order(1, "ada", "bike", 60))
            place(session, Order(2, "bob", "bike", 600))
            place(session, Order(3, "bob", "car", 90))
            place(session, Order(4, "cyd", "bike", 60, patience=timedelta(milliseconds=200)))
        await until(lambda: rows(order_db, orders)[4] != "placed")
        Bank.is_away = False  # and takes cyd's money after the timeout
        await until(lambda: not any(signals.waiting for signals in retry.signals()))
        await bus.drain()

    print(*(f"order {number}: {state}" for number, state in rows(order_db, orders).items()), sep="\n")
    print(f"accounts: {rows(payment_db, accounts)}, stock: {rows(stock_db, stock)}")
    states = ["packed", "cancelled: no money", "cancelled: sold out", "cancelled: too late"]
    assert list(rows(order_db, orders).values()) == states
    assert rows(payment_db, accounts) == {"ada": 40, "bob": 100, "cyd": 100}, "what was taken in vain is back"
    assert rows(stock_db, stock) == {"bike": 4, "car": 0}


if __name__ == "__main__":
    logging.disable()  # each failed call of the bank is logged
    with tempfile.TemporaryDirectory() as folder:
        databases = [create_engine(f"sqlite:///{folder}/{name}.db") for name in ("orders", "payments", "stock")]
        anyio.run(lambda: main(*databases))
        for database in databases:
            database.dispose()
