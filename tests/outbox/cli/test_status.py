"""How an outbox stands: counted, aged, and said in words; and as `status` shows it."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from datetime import timedelta

import msgspec
import pytest
from sqlalchemy import NullPool, create_engine, make_url, text

from outbox.cli.status import Rates
from outbox.database import now_ms
from outbox.status import (
    Backlog,
    OpenTransaction,
    OutboxStatus,
    RelayStatus,
    Stall,
    TopicStatus,
    read_backlog,
    read_stall,
    read_status,
    remarks,
    written_at_ms,
)
from tests.databases import before_next_look_seconds
from tests.outbox.cli.conftest import OnOutbox, Shop, Spawn, fill

pytestmark = pytest.mark.system

MINUTE_MS = 60_000


def status_of(shop: Shop) -> OutboxStatus:
    with shop.database.plain.connect() as connection:
        return read_status(connection, shop.tables)


def some(**fields: object) -> OutboxStatus:
    """Return the status of an empty outbox with these changes."""
    nothing = OutboxStatus(
        name="eventbus_outbox", schema=None, now_ms=0, waiting=0, oldest_age_ms=None, later=0, next_due_in_ms=None,
        failed=0, behind=0, archived=None, topics=(), relays=(), shard_count=64, free_shards=0, stall=Stall(),
    )  # fmt: skip
    return msgspec.structs.replace(nothing, **fields)


def relay(slot: int = 0, *, is_live: bool = True, published: int = 600, seen_age_ms: int = 1_000) -> RelayStatus:
    return RelayStatus(
        slot=slot, host="web-1/7", is_live=is_live, shards=(0, 1), published=published,
        started_age_ms=seen_age_ms + MINUTE_MS, seen_age_ms=seen_age_ms,
    )  # fmt: skip


# counted --------------------------------------------------------------------------------------------------------------


def test_an_outbox_without_events(shop: Shop) -> None:
    found = status_of(shop)
    # Transactions of other databases on this server are in `stall`; tests of stalls are below.
    assert found == some(now_ms=found.now_ms, free_shards=64, stall=found.stall)


def test_what_waits_is_counted_by_topic(shop: Shop) -> None:
    fill(shop)
    shop.publish("a", "b", topic="payments")
    shop.publish("a", topic="payments", deliver_at=timedelta(minutes=10))
    shop.relay(0, range(40))
    shop.relay(1, range(40, 60), seen_ms_ago=30_000)
    found = status_of(shop)
    assert (found.waiting, found.later, found.failed, found.behind, found.archived) == (7, 1, 1, 2, None)
    [orders, payments] = found.topics
    assert msgspec.structs.replace(orders, oldest_age_ms=0) == TopicStatus(
        topic="orders", waiting=5, oldest_age_ms=0, failed=1, behind=2
    )
    assert msgspec.structs.replace(payments, oldest_age_ms=0) == TopicStatus(
        topic="payments", waiting=2, oldest_age_ms=0, later=1
    )
    assert found.oldest_age_ms is not None and 0 <= found.oldest_age_ms < MINUTE_MS
    assert found.next_due_in_ms is not None and 9 * MINUTE_MS < found.next_due_in_ms <= 10 * MINUTE_MS
    [first, second] = found.relays
    assert (first.slot, first.is_live, first.shards, first.published) == (0, True, tuple(range(40)), 600)
    assert first.rate == pytest.approx(10, rel=0.01) and first.host == "web-0/7"
    assert (second.is_live, len(second.shards), found.free_shards, found.live_relays) == (False, 20, 4, 1)
    assert second.seen_age_ms >= 30_000
    assert msgspec.json.decode(msgspec.json.encode(found), type=OutboxStatus) == found


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_an_age_is_that_of_the_row_whatever_the_record_says(shop: Shop) -> None:
    """An import of old data has old timestamps, and has waited for a moment only."""
    shop.publish("a", timestamp_ms=1_000_000)
    age = status_of(shop).oldest_age_ms
    assert age is not None and age < MINUTE_MS
    with shop.database.plain.begin() as connection:
        table = shop.tables.events
        connection.execute(table.update().values(event_id="somebody-else's"))
        now = now_ms(connection)
    age = status_of(shop).oldest_age_ms
    assert age is not None and age >= now - 1_000_000, "there is nothing else to go by"


def test_when_an_event_was_written() -> None:
    assert written_at_ms("0192f3a0-1234-7abc-8def-0123456789ab", 5) == 0x0192F3A01234
    assert written_at_ms("0192f3a0-1234-4abc-8def-0123456789ab", 5) == 5
    assert written_at_ms("zzzzzzzz-1234-7abc-8def-0123456789ab", 5) == 5
    assert written_at_ms("7", 5) == 5


def test_a_backlog_is_counted_as_far_as_one_wants(shop: Shop) -> None:
    with shop.database.plain.connect() as connection:
        assert read_backlog(connection, shop.tables) == Backlog(0, True, None, 0)
    fill(shop)
    shop.publish("a", timestamp_ms=0)
    with shop.database.plain.connect() as connection:
        for at_most, count, is_exact in ((10, 6, True), (6, 6, True), (5, 9, False)):
            found = read_backlog(connection, shop.tables, at_most)
            assert (found.count, found.is_exact, found.failed) == (count, is_exact, 1)
            assert found.oldest_age_ms is not None and 0 <= found.oldest_age_ms < MINUTE_MS


@pytest.mark.parametrize("shop", ["psycopg", "mariadb"], indirect=True)
def test_an_open_transaction_that_has_written_shows(shop: Shop) -> None:
    with shop.database.plain.begin() as writing:
        shop.outbox.publish(writing, "orders", b"{}")
        with shop.database.plain.connect() as looking:
            found = read_stall(looking, shop.tables)
            while found.writer is None:
                time.sleep(before_next_look_seconds())
                found = read_stall(looking, shop.tables)
        assert found.writer.age_ms >= 0 and not found.unknown
        assert found.snapshot is not None, "this one, or another test's"
        assert status_of(shop).waiting == 0, "it is not committed"


@pytest.mark.parametrize("shop", ["psycopg", "sqlite"], indirect=True)
def test_without_others_nothing_keeps_events_back(shop: Shop) -> None:
    """Not on MariaDB, whose slightly outdated view would show the transactions of all tests."""
    with shop.database.plain.connect() as looking:
        assert read_stall(looking, shop.tables) == Stall()


@pytest.mark.parametrize("shop", ["psycopg"], indirect=True)
def test_an_open_transaction_that_only_reads_keeps_nothing_back_but_the_cleaning(shop: Shop) -> None:
    with shop.database.plain.connect() as reading:
        reading.execution_options(isolation_level="REPEATABLE READ")
        reading.execute(text("SELECT 1 FROM eventbus_outbox"))
        with shop.database.plain.connect() as looking:
            found = read_stall(looking, shop.tables)
    assert found.writer is None and found.snapshot is not None and "idle in transaction" in found.snapshot.who


@pytest.mark.parametrize("shop", ["mariadb"], indirect=True)
def test_who_may_not_look_at_transactions_is_told_so(shop: Shop) -> None:
    url = make_url(shop.database.plain_url)
    assert url.database is not None
    name = f"u{url.database[-20:]}"
    with shop.database.plain.begin() as root:
        root.execute(text(f"CREATE USER {name}@'%' IDENTIFIED BY 'x'"))
        root.execute(text(f"GRANT ALL ON {url.database}.* TO {name}@'%'"))
    engine = create_engine(url.set(username=name, password="x"), poolclass=NullPool)
    try:
        with engine.connect() as connection:
            found = read_status(connection, shop.tables)
    finally:
        with shop.database.plain.begin() as root:
            root.execute(text(f"DROP USER {name}@'%'"))
    assert "GRANT PROCESS" in found.stall.unknown and found.waiting == 0


# in words -------------------------------------------------------------------------------------------------------------


def test_nothing_is_remarked_when_all_is_well() -> None:
    assert remarks(some()) == []
    assert remarks(some(waiting=10_000, relays=(relay(),))) == []
    short = Stall(writer=OpenTransaction(500, "pid 1"), snapshot=OpenTransaction(20_000, "pid 2"))
    assert remarks(some(stall=short)) == []


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (some(waiting=1), "no relay publishes what waits"),
        (some(waiting=1, relays=(relay(is_live=False),)), "no relay publishes what waits"),
        (
            some(relays=(relay(), relay(1, is_live=False, seen_age_ms=20_000))),
            "relay 1 on web-1/7 has not been seen for 20 s",
        ),
        (some(free_shards=3, relays=(relay(),)), "3 of 64 shards have no owner"),
        (some(failed=1), "the log refused 1 event: see `eventbus outbox list`"),
        (some(failed=2, behind=1_000), "the log refused 2 events, and 1,000 wait behind them"),
        (
            some(stall=Stall(writer=OpenTransaction(15_000, "pid 7"))),
            "what pid 7 has written waits for its commit since 15 s",
        ),
        (
            some(stall=Stall(snapshot=OpenTransaction(10 * MINUTE_MS, "pid 7"))),
            "a transaction of pid 7 is open since 10 min",
        ),
        (some(stall=Stall(unknown="no right")), "long transactions are not known: no right"),
    ],
)
def test_what_somebody_should_know(found: OutboxStatus, said: str) -> None:
    [remark] = remarks(found)
    assert said in remark


def test_a_rate_is_that_between_two_heartbeats() -> None:
    rates = Rates()
    first = RelayStatus(
        slot=0, host="h", is_live=True, shards=(), published=1_000, started_age_ms=11_000, seen_age_ms=1_000
    )
    assert rates.of(first, 50_000) == 100, "since its start, as there is nothing else"
    later = msgspec.structs.replace(first, started_age_ms=13_000, seen_age_ms=3_000)
    assert rates.of(later, 52_000) == 100, "the same heartbeat, seen again"
    beat = msgspec.structs.replace(first, published=2_000, started_age_ms=14_000, seen_age_ms=2_000)
    assert rates.of(beat, 53_000) == 500
    restarted = msgspec.structs.replace(first, published=10, started_age_ms=1_000, seen_age_ms=0)
    assert rates.of(restarted, 60_000) == 10, "another relay of the slot"


# the command ----------------------------------------------------------------------------------------------------------


def test_for_people(shop: Shop, on_outbox: OnOutbox) -> None:
    fill(shop)
    shop.publish("a", deliver_at=timedelta(minutes=10))
    shop.relay(0, range(60))
    shown = on_outbox("status")
    assert shown.code == 0, shown.err
    assert shown.lines[0].startswith("outbox eventbus_outbox in ")
    lines = [re.sub(r"\b[\d.]+ s\b(?! ago)", "0 s", line) for line in shown.lines]
    assert [line.strip() for line in lines[1:5]] == [
        "5 waiting, the oldest for 0 s",
        "1 later, the first in 9 min",
        "1 refused by the log, 2 behind them",
        "1 relay publishes, 4 of 64 shards have no owner",
    ]
    cells = [line.split() for line in lines]
    assert ["TOPIC", "WAITING", "OLDEST", "LATER", "REFUSED", "BEHIND"] in cells
    assert ["orders", "5", "0", "s", "1", "1", "2"] in cells
    assert ["0", "web-0/7", "1", "s", "ago", "60", "600", "10"] in cells
    assert [line for line in lines if line.startswith("! ")][-1].startswith("! the log refused 1 event, and 2")


@pytest.mark.parametrize("shop", ["sqlite", "asyncpg"], indirect=True)
def test_for_programs(shop: Shop, on_outbox: OnOutbox) -> None:
    fill(shop)
    found = on_outbox("status", "--json").json
    assert (found["waiting"], found["failed"], found["shard_count"]) == (5, 1, 64)
    assert found["topics"][0]["topic"] == "orders" and found["stall"]["unknown"] == ""


@pytest.mark.parametrize("shop", ["sqlite"], indirect=True)
def test_again_and_again_until_a_signal(shop: Shop, spawn: Spawn) -> None:
    fill(shop)
    process = spawn("outbox", "status", "--database", shop.database.url, "--watch", "0.01", "--json")
    assert process.stdout is not None
    lines = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert [one["waiting"] for one in lines] == [5, 5, 5]
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(20) == 0
