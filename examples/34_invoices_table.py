"""Copy an invoices table of SQLite to a topic: new rows by their number, changed rows by their timestamp.

Another program writes the table and does not need to change. Needs SQLAlchemy: pip install "eventbus-log[sql]"
"""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path
from typing import Any

import anyio
import msgspec

from eventbus import EventBus, log_url
from eventbus.connect import Connectors

TABLE = """CREATE TABLE invoices (
    id INTEGER PRIMARY KEY, customer TEXT NOT NULL, total DECIMAL(10, 2) NOT NULL, paid DATE,
    changed TIMESTAMP NOT NULL)"""


class Invoice(msgspec.Struct):
    id: int
    customer: str
    total: float
    paid: str | None


def source(mode: str, database: Path, **columns: str) -> dict[str, Any]:
    return {
        "name": f"34-{mode}", "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "connection.url": f"jdbc:sqlite:{database}", "table.whitelist": "invoices",
        "mode": mode, "topic.prefix": f"{mode}-", **columns,
    }  # fmt: skip


async def main(database: Path, rows: sqlite3.Connection) -> dict[str, list[Invoice]]:
    bus = EventBus(log_url("memory://"))
    for topic in ("incrementing-invoices", "timestamp-invoices"):
        bus.topic(topic, temporary=True)
    bus.topic("34-offsets", configs={"cleanup.policy": "compact"}, temporary=True)
    by_number = source("incrementing", database, **{"incrementing.column.name": "id"})
    by_time = source("timestamp", database, **{"timestamp.column.name": "changed"})
    bus.include(Connectors(by_number, by_time, worker={"offset.storage.topic": "34-offsets"}))
    found: dict[str, list[Invoice]] = {}
    async with bus:
        await bus.drain()
        with rows:  # a new invoice, and another one is paid
            rows.execute("INSERT INTO invoices VALUES (3, 'Cyd', 7, NULL, '2026-01-03 08:00:00')")
            rows.execute("UPDATE invoices SET paid = '2026-01-04', changed = '2026-01-04 08:00:00' WHERE id = 1")
        await bus.drain()
        for topic in ("incrementing-invoices", "timestamp-invoices"):
            async with bus.new_consumer(topic, value=Invoice, start="earliest") as consumer:
                found[topic] = [record.value async for record in consumer.until_end() if record.value]
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        shop = sqlite3.connect(Path(folder) / "shop.db", check_same_thread=False)
        with shop:
            shop.execute(TABLE)
            shop.execute("INSERT INTO invoices VALUES (1, 'Ada', 12.5, NULL, '2026-01-01 08:00:00')")
            shop.execute("INSERT INTO invoices VALUES (2, 'Bob', 99.95, NULL, '2026-01-02 08:00:00')")
        topics = anyio.run(main, Path(folder) / "shop.db", shop)
        shop.close()
    for name, invoices in topics.items():
        print(f"{name}: " + "; ".join(f"{one.id} {one.customer} {one.total} {one.paid or 'open'}" for one in invoices))
    assert [one.id for one in topics["incrementing-invoices"]] == [1, 2, 3]
    assert [(one.id, one.paid) for one in topics["timestamp-invoices"]][-1] == (1, "2026-01-04")
