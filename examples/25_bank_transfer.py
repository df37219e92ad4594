"""Transfer money from one SQL account to another over a log, without losing or creating any.

    POST /transfers: debit, event in the outbox --relay--> "transfers"
    "transfers" --clear, exactly once--> "credits" --book, inbox: credit, event in the outbox --relay--> "receipts"

Each step is one transaction, in the database or in the log. ``--serve`` starts a FastAPI app; otherwise simulated
customers send requests, `book` fails occasionally, an auditor sums up continuously, and at the end the books balance.
Needs SQLAlchemy: pip install "eventbus-log[sql]"; and fastapi and uvicorn for --serve.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import anyio.to_thread
import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    CursorResult,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
)
from sqlalchemy.orm import Session, sessionmaker

from eventbus import EventBus, log_url
from outbox import Outbox

metadata = MetaData()
accounts = Table("accounts", metadata, Column("name", String(36), primary_key=True), Column("cents", BigInteger))
on_its_way = Table("on_its_way", metadata, Column("id", String(36), primary_key=True), Column("cents", BigInteger))
outbox = Outbox(metadata, name="bank_outbox")  # migrations and create_all include its tables

CUSTOMERS, CENTS, TRANSFERS = ("ada", "bob", "cyd"), 10_000, 30
fails_at: set[int] = set()
"""`book` fails at transfers of so many cents, once each."""


class Transfer(msgspec.Struct):
    id: str
    source: str
    target: str
    cents: int


class Credit(msgspec.Struct):
    id: str
    account: str
    cents: int


class Refused(Exception):
    """The account does not have enough money."""


def move(session: Session, account: str, cents: int) -> None:
    """Change the balance in SQL, because a value read before may be stale. Raises Refused; roll back then."""
    found = accounts.update().where(accounts.c.name == account, accounts.c.cents + cents >= 0)
    result = cast("CursorResult[Any]", session.execute(found.values(cents=accounts.c.cents + cents)))
    if not result.rowcount:
        raise Refused


def transfer(session: Session, source: str, target: str, cents: int) -> str:
    """Debit the account and write the event, in the caller's transaction."""
    if cents <= 0:
        raise Refused
    move(session, source, -cents)
    asked = Transfer(str(uuid.uuid4()), source, target, cents)
    session.execute(insert(on_its_way).values(id=asked.id, cents=cents))
    outbox.publish(session, "transfers", asked, key=source)
    return asked.id


def bank(engine: Engine, url: str, *, temporary: bool = False, **relay: Any) -> tuple[EventBus, sessionmaker[Session]]:
    """Create the tables with some money in them, the topics, the relay and the handlers."""
    metadata.create_all(engine)
    sessions = sessionmaker(engine)
    with sessions.begin() as session:
        if not session.execute(select(accounts)).first():
            session.execute(insert(accounts), [{"name": name, "cents": CENTS} for name in CUSTOMERS])
    bus = EventBus(url)
    for topic in ("transfers", "credits", "receipts", "dlq.ledger", "retry.ledger"):
        bus.topic(topic, partitions=2, temporary=temporary)
    bus.include(outbox.relay(engine, **relay))

    @bus.consumer("transfers", group="clearing", exactly_once=True)  # offset and outputs: one transaction
    @bus.producer("credits", key=lambda credit: credit.account)
    async def clear(asked: Transfer) -> Credit:
        return Credit(asked.id, asked.target, asked.cents)

    @bus.consumer("credits", group="ledger", tx=sessions, retry=1)  # rows, event and offset: one transaction
    def book(credit: Credit, session: Session) -> None:
        move(session, credit.account, credit.cents)
        session.execute(on_its_way.delete().where(on_its_way.c.id == credit.id))
        outbox.publish(session, "receipts", credit, key=credit.account)
        if credit.cents in fails_at:
            fails_at.remove(credit.cents)
            raise ConnectionError("half way")  # everything is rolled back

    return bus, sessions


def money(engine: Engine) -> int:
    """Return the money in all accounts and in flight, from one snapshot."""
    on_accounts, between = [
        select(func.coalesce(func.sum(table.c.cents), 0)).scalar_subquery() for table in (accounts, on_its_way)
    ]
    with engine.connect() as connection:
        return int(connection.execute(select(on_accounts + between)).scalar_one())


def app(bus: EventBus, sessions: sessionmaker[Session]) -> Any:
    """Serve the bank over HTTP: curl -X POST 'localhost:8000/transfers?source=ada&target=bob&cents=5'"""
    from fastapi import FastAPI, HTTPException

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        async with bus:
            yield

    api = FastAPI(lifespan=lifespan)

    @api.post("/transfers", status_code=202)
    def ask(source: str, target: str, cents: int) -> str:
        try:
            with sessions.begin() as session:
                return transfer(session, source, target, cents)
        except Refused:
            raise HTTPException(409, f"{source} has not {cents} cents") from None

    @api.get("/accounts")
    def balances() -> dict[str, int]:
        with sessions() as session:
            return dict(session.execute(select(accounts)).all())

    return api


async def main(engine: Engine) -> None:
    bus, sessions = bank(engine, log_url("memory://"), temporary=True)
    before = money(engine)
    refused: list[int] = []

    def ask(cents: int) -> None:
        try:
            with sessions.begin() as session:
                transfer(session, CUSTOMERS[cents % 3], CUSTOMERS[(cents + 1) % 3], cents)
        except Refused:  # the transaction is rolled back, and the event with it
            refused.append(cents)

    async def audit() -> None:
        while True:
            assert await anyio.to_thread.run_sync(money, engine) == before, "at any time"
            await anyio.sleep(0.001)

    async with bus:
        async with anyio.create_task_group() as auditor:
            auditor.start_soon(audit)
            async with anyio.create_task_group() as customers:
                for cents in (*range(1, TRANSFERS + 1), 1_000_000):
                    customers.start_soon(anyio.to_thread.run_sync, ask, cents)
            await bus.drain()  # wait until outbox, relay and handlers have nothing left to do
            auditor.cancel_scope.cancel()
        async with bus.new_consumer("receipts", value=Credit) as consumer:
            receipts = sorted([record.value.cents async for record in consumer.until_end() if record.value])

    with sessions() as session:
        rows = session.execute(select(accounts.c.name, accounts.c.cents).order_by(accounts.c.name))
        balances: dict[str, int] = {name: cents for name, cents in rows}
    print(f"{len(receipts)} transfers have their receipts; refused: {refused}")
    print(f"accounts: {balances}, together {sum(balances.values())}, before it was {before}")
    assert receipts == [*range(1, TRANSFERS + 1)] and sum(balances.values()) == before and not fails_at


if __name__ == "__main__":
    if "--serve" in sys.argv:
        import uvicorn

        uvicorn.run(app(*bank(create_engine("sqlite:///bank.db"), log_url("file://./bank"))))
    else:
        fails_at.update((3, 17))
        logging.disable()  # the bus logs each failure; this example prints them instead
        with tempfile.TemporaryDirectory() as folder:
            database = create_engine(f"sqlite:///{folder}/bank.db")
            anyio.run(main, database)
            database.dispose()
