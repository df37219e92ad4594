"""FastAPI with an outbox: a request writes its row and its event in one transaction, and the bus runs in the app.

A request that fails writes neither of them: every event has its order, and every order has its event. Serve the app
with uvicorn; this script sends requests with a test client. Needs SQLAlchemy and FastAPI: pip install
"eventbus-log[sql]" fastapi httpx
"""

from __future__ import annotations

import tempfile

import msgspec
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import sessionmaker

from eventbus import EventBus, log_url
from outbox import Outbox

metadata = MetaData()
orders = Table("orders", metadata, Column("id", Integer, primary_key=True), Column("item", String(40)))
outbox = Outbox(metadata)  # its tables are in the same metadata
STOCK = {"bike", "bell"}


class Ordered(msgspec.Struct):
    id: int
    item: str


def shop(engine: Engine, mails: list[str]) -> tuple[FastAPI, EventBus]:
    bus = EventBus(log_url("memory://"))
    sessions = sessionmaker(engine)
    bus.topic("ordered", partitions=1, temporary=True)
    bus.include(outbox.relay(engine))  # publishes each committed event once

    @bus.consumer("ordered", group="mails")
    async def mail(ordered: Ordered) -> None:
        mails.append(f"order {ordered.id}: your {ordered.item} is on its way")

    app = FastAPI(lifespan=bus.lifespan)  # starts with the application, and drains when it stops

    @app.post("/orders/{item}", status_code=201)
    def order(item: str) -> dict[str, int]:  # a plain function runs in a thread, so it may wait for the database
        with sessions.begin() as session:  # commits, or rolls back if an exception is raised
            number = session.scalars(insert(orders).values(item=item).returning(orders.c.id)).one()
            outbox.publish(session, "ordered", Ordered(number, item), key=item)
            if item not in STOCK:
                raise HTTPException(409, f"no {item} in stock")  # the row and the event are rolled back
        return {"id": number}

    return app, bus


def main(engine: Engine) -> None:
    metadata.create_all(engine)
    mails: list[str] = []
    app, bus = shop(engine, mails)
    with TestClient(app) as client:
        for item in ("bike", "boat", "bell"):
            response = client.post(f"/orders/{item}")
            print(item, response.status_code, response.json())
        assert client.portal
        client.portal.call(bus.drain)  # wait until outbox, relay and handlers have finished
    with sessionmaker(engine)() as session:
        rows = session.scalars(select(orders.c.item).order_by(orders.c.id)).all()
    print(f"rows: {rows}", *mails, sep="\n")
    assert rows == ["bike", "bell"], "what was refused is not there"
    assert mails == ["order 1: your bike is on its way", "order 2: your bell is on its way"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        database = create_engine(f"sqlite:///{folder}/shop.db")
        main(database)
        database.dispose()
