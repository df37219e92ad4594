"""Records that wait in the retry topic of an earlier release, for a handler with ``tx=``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session, sessionmaker

from dlq import Retry
from eventbus import EventBus
from eventbus.testing import FakeClock

pytestmark = pytest.mark.system


async def test_a_release_with_a_database_transaction_handles_what_waits_once(tmp_path: Path) -> None:
    clock = FakeClock()
    engine = create_engine(f"sqlite:///{tmp_path}/bills.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (number TEXT)"))
    url = f"file://{tmp_path}/log"

    def release(*, is_away: bool, **options: Any) -> EventBus:
        bus = EventBus(url, clock=clock)
        bus.topic("orders")

        @bus.consumer("orders", group="billing", tx=sessionmaker(engine), **options)
        def bill(order: str, session: Session) -> None:
            if is_away:
                raise ConnectionError("the prices are away")
            session.execute(text("INSERT INTO bills VALUES (:order)"), {"order": order})

        return bus

    async with release(is_away=True, retry=Retry(immediate=0, delays=["1s"])) as bus:
        for number in range(3):
            await bus.send("orders", f"ada-{number}", key="ada")
        await bus.drain()
    await clock.advance(seconds=5)
    async with release(is_away=False) as bus:
        await bus.drain()
    async with release(is_away=False) as bus:
        await bus.drain()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT number FROM bills")).scalars().all() == ["ada-0", "ada-1", "ada-2"]
    engine.dispose()
