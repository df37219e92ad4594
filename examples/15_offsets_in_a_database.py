"""Rows and offsets in one database transaction: every order becomes one bill, whenever the program crashes.

The table of offsets is in the same database as the bills, a commit stores both, and a consumer starts at the offsets in
the table. The offsets that the group committed in the log are not used.
Needs SQLAlchemy: pip install "eventbus-log[sql]"
"""

from __future__ import annotations

import anyio
from sqlalchemy import Engine, StaticPool, create_engine, text

from eventbus import EventBus, log_url
from outbox import SqlOffsets

URL, ORDERS = log_url("memory://shop"), 10


class Crash(Exception):
    """Simulate a crash of the process."""


async def bill(engine: Engine, crash_at: int | None) -> None:
    async with EventBus(URL) as bus, bus.new_consumer(group="billing", value=int) as consumer:
        offsets = SqlOffsets(engine, group="billing")
        await offsets.follow(consumer, "orders")  # subscribes, and seeks to what the table holds
        [orders] = await consumer.assigned()
        while await consumer.lag(orders):
            records = await consumer.poll(max_records=4)
            async with offsets.transaction(records) as connection:  # rows and offsets in one transaction
                for record in records:
                    await connection.execute(
                        text("INSERT INTO bills (number) VALUES (:number)"), {"number": record.value}
                    )
                    if record.value == crash_at:
                        raise Crash


def rows(engine: Engine, query: str) -> list[int]:
    with engine.connect() as connection:
        return list(connection.execute(text(query)).scalars())


async def main() -> list[int]:
    engine = create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE bills (number INTEGER)"))  # no unique key: it would hide duplicates
    async with EventBus(URL) as log:
        await log.admin.create_topic("orders", temporary=True)
        await log.send_many("orders", range(ORDERS))
        for crash_at in (5, None):
            try:
                await bill(engine, crash_at)
            except Crash:
                print(f"died in the middle of order {crash_at}; its transaction is rolled back")
            stored = rows(engine, "SELECT * FROM eventbus_offsets")
            print(f"bills: {rows(engine, 'SELECT number FROM bills')}, the table of offsets: {len(stored)} row(s)")
    bills = rows(engine, "SELECT number FROM bills")
    engine.dispose()
    return bills


if __name__ == "__main__":
    assert anyio.run(main) == list(range(ORDERS)), "each order one bill"
