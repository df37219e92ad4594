"""Find every transfer in the database, in the log, or in both, by what is committed in each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator
from typing import Any, NamedTuple

from sqlalchemy import Engine, select

from eventbus import EventBus
from tests.outbox.examples import example

bank: Any = example("25_bank_transfer")

TOPICS = ("transfers", "credits", "receipts")


class Books(NamedTuple):
    """The state of all transfers."""

    money: int
    accounts: dict[str, int]
    on_its_way: set[str]
    """Ids of transfers that have left the source account and not reached the target."""
    rows: dict[str, Counter[str]]
    """Events in the outbox's table, by topic."""
    records: dict[str, list[dict[str, Any]]]
    """Committed records, by topic."""

    def ids(self, topic: str) -> Counter[str]:
        return Counter(one["id"] for one in self.records[topic])


async def books(bus: EventBus, engine: Engine) -> Books:
    records = {topic: await read(bus, topic) for topic in TOPICS}
    rows: dict[str, Counter[str]] = {topic: Counter() for topic in TOPICS}
    events = bank.outbox.tables.events.c
    with engine.connect() as connection:
        for topic, value in connection.execute(select(events.topic, events.value)):
            rows[topic][json.loads(value)["id"]] += 1
        accounts = dict(connection.execute(select(bank.accounts)).all())
        on_its_way = set(connection.scalars(select(bank.on_its_way.c.id)))
    return Books(bank.money(engine), accounts, on_its_way, rows, records)


async def read(bus: EventBus, topic: str) -> list[dict[str, Any]]:
    """Return all committed records of a topic."""
    if topic not in await bus.admin.list_topics():
        return []
    async with bus.new_consumer(topic, isolation_level="read_committed") as consumer:
        return [json.loads(record.value) async for record in consumer.until_end()]


def wrong(found: Books, asked: set[str]) -> Generator[str]:
    """Yield violations that must not occur while no process runs. The transfers ``asked`` are known to be committed."""
    if found.money != len(bank.CUSTOMERS) * bank.CENTS:
        yield f"there are {found.money} cents"
    transfers, credits, receipts = map(found.ids, TOPICS)
    for topic, ids in zip(TOPICS, (transfers, credits, receipts), strict=True):
        yield from (f"{topic}: {id} is published {count} times" for id, count in ids.items() if count > 1)
        yield from (f"{topic}: {id} stands there {count} times" for id, count in found.rows[topic].items() if count > 1)
    let_out = transfers.keys() | found.rows["transfers"].keys()
    applied = credits.keys() - found.on_its_way
    yield from (f"{id} was asked for, and is lost" for id in asked - let_out)
    yield from (f"{id} has left an account, and is lost" for id in found.on_its_way - let_out)
    yield from (f"{id} is credited, and was not asked for" for id in credits.keys() - transfers.keys())
    yield from (f"{id} has arrived without a credit" for id in transfers.keys() - found.on_its_way - credits.keys())
    yield from (f"{id} never left an account" for id in found.rows["transfers"].keys() - found.on_its_way - applied)
    confirmed = receipts.keys() | found.rows["receipts"].keys()
    yield from (f"{id}: has arrived {id in applied}, receipt {id in confirmed}" for id in applied ^ confirmed)


def unsettled(found: Books) -> Generator[str]:
    """Check after everything is settled that each transfer reached its account once."""
    yield from (f"{id} is still on its way" for id in found.on_its_way)
    yield from (f"{topic}: {len(rows)} events are not published" for topic, rows in found.rows.items() if rows)
    accounts = dict.fromkeys(bank.CUSTOMERS, bank.CENTS)
    for one in found.records["transfers"]:
        accounts[one["source"]] -= one["cents"]
        accounts[one["target"]] += one["cents"]
    if accounts != found.accounts:
        yield f"accounts are {found.accounts}, and by their transfers {accounts}"
    if not found.ids("transfers") == found.ids("credits") == found.ids("receipts"):
        yield f"{[len(records) for records in found.records.values()]} transfers, credits and receipts"
