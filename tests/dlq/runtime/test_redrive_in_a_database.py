"""Redriven records of a handler with ``tx=``: each redrive counts once, and for no other group."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from dlq import DeadLetters, Retry, Selection
from eventbus import EventBus

pytestmark = pytest.mark.system


async def test_each_redrive_of_a_letter_is_one_row_and_other_groups_write_none(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (order_id TEXT)"))
        connection.execute(text("CREATE TABLE parcels (order_id TEXT)"))
    is_mended = False
    bus = EventBus("memory://")
    bus.topic("orders")

    @bus.consumer("orders", group="billing", tx=sessionmaker(engine), retry=Retry(immediate=0, delays=None))
    def bill(order: str, session: Session) -> None:
        if not is_mended:
            raise ValueError("no price")
        session.execute(text("INSERT INTO bills VALUES (:order)"), {"order": order})

    @bus.consumer("orders", group="shipping", tx=sessionmaker(engine))
    def ship(order: str, session: Session) -> None:
        session.execute(text("INSERT INTO parcels VALUES (:order)"), {"order": order})

    def rows(table: str) -> list[str]:
        with engine.connect() as connection:
            return list(connection.execute(text(f"SELECT order_id FROM {table}")).scalars())

    async with bus:
        await bus.send("orders", "o-1")
        await bus.drain()
        is_mended = True
        letters = DeadLetters(bus)
        assert (await letters.redrive(Selection())).redriven == 1
        await bus.drain()
        assert (rows("bills"), rows("parcels")) == (["o-1"], ["o-1"])
        # An operator has deleted the bill, and wants it once more. The place of the record is known as handled.
        assert (await letters.redrive(Selection(status={"redriven"}))).redriven == 1
        await bus.drain()
        assert (rows("bills"), rows("parcels")) == (["o-1", "o-1"], ["o-1"])
    engine.dispose()
