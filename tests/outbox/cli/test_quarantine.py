"""Retry or drop refused events: the order of the key is kept, and no event waits for a row that is gone."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest

from outbox import quarantine
from outbox.database import Database, now_ms
from outbox.quarantine import Choice, Content, Quarantine, Released, Row, going, lock_heads, release
from tests.databases import NewDatabase
from tests.outbox.cli.conftest import Shop, fill

pytestmark = pytest.mark.system

ALL = Choice()


def quarantine_of(shop: Shop) -> Quarantine:
    return Quarantine(Database(shop.database.engine), shop.tables)


def row(id: int, key: bytes | None = b"k", *, behind: bool = False, topic: str = "t") -> Row:
    return Row(id, topic, key, behind)


def test_what_leaves_with_a_refused_row() -> None:
    rows = [row(1), row(2, behind=True), row(3, b"other", behind=True), row(4, behind=True), row(5, None), row(6, None)]
    assert [one.id for one in going(rows, {1, 5}, heads=True)] == [1, 2, 3, 4, 5]
    assert [one.id for one in going(rows, {1, 5}, heads=False)] == [2, 3, 4]


def test_what_is_behind_another_refused_row_stays() -> None:
    rows = [row(1), row(2, behind=True), row(3), row(4, behind=True), row(5, topic="u"), row(6, behind=True, topic="u")]
    assert [one.id for one in going(rows, {1}, heads=True)] == [1, 2]
    assert [one.id for one in going(rows, {3}, heads=True)] == [3], "1 still blocks what is behind 3 as well"
    assert [one.id for one in going(rows, {5}, heads=True)] == [5, 6], "another topic is another key"
    assert [one.id for one in going(rows, {1, 3, 5}, heads=False)] == [2, 4, 6]


def test_nothing_is_published_before_a_row_of_its_key_that_waits() -> None:
    draw = random.Random(9)
    for _ in range(300):
        rows: list[Row] = []
        heads: list[int] = []
        seen: set[bytes] = set()
        for id in range(draw.randint(1, 12)):
            key = draw.choice([b"a", b"b"])
            behind = key in seen and draw.random() < 0.6
            rows.append(row(id, key, behind=behind))
            heads += [] if behind else [id]
            seen.add(key)
        chosen = {id for id in heads if draw.random() < 0.5}
        left = {one.id for one in rows} - {one.id for one in going(rows, chosen, heads=True)}
        blocked: defaultdict[bytes | str | None, bool] = defaultdict(bool)
        for one in rows:
            if not one.is_behind:
                blocked[one.key] |= one.id not in chosen
            assert (one.id in left) == (blocked[one.key] if one.is_behind else one.id not in chosen)


async def test_retry_puts_an_event_back_with_those_behind_it(shop: Shop) -> None:
    fill(shop)
    shop.publish("b")
    assert shop.refused() == {2: 0, 5: 1, 8: 1}
    told: list[int] = []
    assert await quarantine_of(shop).retry(ALL, told.append) == Released(refused=1, behind=2)
    assert (shop.waiting(), shop.refused(), told) == (list(range(1, 10)), {}, [1])


async def test_drop_lets_those_behind_go_on(shop: Shop) -> None:
    fill(shop)
    assert await quarantine_of(shop).drop(Choice(ids=(2,))) == Released(refused=1, behind=2)
    assert (shop.waiting(), shop.refused()) == ([1, 3, 4, 5, 6, 7, 8], {})


async def test_rows_come_back_as_they_were(shop: Shop) -> None:
    shop.publish("a", headers={"x": b"\x00\xff"}, timestamp_ms=5, partition=1, expires_after=60)
    with shop.database.plain.connect() as connection:
        before = connection.execute(shop.tables.events.select()).all()
    shop.put_aside(1)
    refused = quarantine_of(shop)
    assert await refused.content(1) == Content((("x", b"\x00\xff"),), b"{}")
    await refused.retry(ALL)
    with shop.database.plain.connect() as connection:
        assert connection.execute(shop.tables.events.select()).all() == before
    assert await refused.content(1) is None


async def test_which_are_chosen(shop: Shop) -> None:
    shop.publish("a", "b", "c", None)
    shop.publish("a", topic="payments")
    shop.put_aside(1, 2, reason="RecordTooLarge: 100%_x")
    shop.put_aside(4, 5, reason="InvalidTopic")
    refused = quarantine_of(shop)
    found = await refused.events(ALL)
    assert [(one.id, one.topic, one.key) for one in found] == [
        (1, "orders", b"a"), (2, "orders", b"b"), (4, "orders", None), (5, "payments", b"a"),
    ]  # fmt: skip
    for choice, ids in [
        (Choice(topic="payments"), [5]),
        (Choice(reason="100%_"), [1, 2]),
        (Choice(reason="1%_x"), []),
        (Choice(ids=(2, 4, 3)), [2, 4]),
        (Choice(ids=(2,), event_ids=(found[3].event_id,)), [2, 5]),
        (Choice(ids=(2,), topic="payments"), []),
        (Choice(ids=()), []),
    ]:
        assert [one.id for one in await refused.events(choice)] == ids
        assert await refused.count(choice) == len(ids)
    assert await refused.retry(Choice(reason="InvalidTopic")) == Released(refused=2)
    assert shop.waiting() == [3, 4, 5]
    assert await refused.drop(ALL) == Released(refused=2)
    assert await refused.drop(ALL) == Released()


async def test_more_than_a_transaction_and_a_statement_take(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "_HEADS", 20)
    monkeypatch.setattr(quarantine, "_IDS", 30)
    shop.publish(*(f"{number % 50}" for number in range(200)))
    shop.put_aside(*range(1, 51), behind=range(51, 201))
    shown = await quarantine_of(shop).events(ALL, limit=2)
    assert [(one.id, one.behind, one.value_bytes) for one in shown] == [(1, 3, 2), (2, 3, 2)]
    told: list[int] = []
    assert await quarantine_of(shop).retry(ALL, told.append) == Released(refused=50, behind=150)
    assert shop.waiting() == list(range(1, 201)) and not shop.refused() and told == [20, 40, 50]


@pytest.mark.parametrize("kind", ["asyncpg", "mariadb-async", "sqlite-async"])
async def test_on_a_loop(kind: str, new_database: NewDatabase) -> None:
    shop = Shop(new_database(kind))
    fill(shop)
    refused = quarantine_of(shop)
    assert [one.behind for one in await refused.events(ALL)] == [2]
    assert await refused.retry(ALL) == Released(refused=1, behind=2)
    assert shop.waiting() == list(range(1, 9))


@pytest.mark.parametrize("kind", ["psycopg", "mariadb"])
async def test_a_row_that_a_relay_is_moving_behind_goes_along(kind: str, new_database: NewDatabase) -> None:
    """It locks the refused row. A retry of that row waits for the lock, and then sees the events moved after it."""
    shop = Shop(new_database(kind))
    fill(shop)
    shop.publish("b")
    failed, events = shop.tables.failed, shop.tables.events
    done: list[Released] = []

    def retry() -> None:
        with shop.database.plain.begin() as connection:
            done.append(release(connection, shop.tables, [2], back=True))

    with shop.database.plain.begin() as relay:
        assert lock_heads(relay, shop.tables, [2]) == 1
        names = [column.key for column in events.columns]
        extra = {"is_behind": 1, "reason": "behind", "failed_at_ms": now_ms(relay)}
        [moved] = relay.execute(events.select().where(events.c.id == 9)).all()
        relay.execute(failed.insert().values(**dict(zip(names, moved, strict=True)), **extra))
        relay.execute(events.delete().where(events.c.id == 9))
        other = threading.Thread(target=retry)
        other.start()
        assert not done
    other.join()
    assert done == [Released(refused=1, behind=3)]
    assert shop.waiting() == list(range(1, 10)) and not shop.refused()


async def test_a_row_that_is_gone_blocks_nobody(shop: Shop) -> None:
    """This is what a relay checks before it moves a row after another one."""
    fill(shop)
    with shop.database.plain.begin() as connection:
        assert lock_heads(connection, shop.tables, [2]) == 1
        assert lock_heads(connection, shop.tables, [5]) == 0, "it is behind one itself"
    await quarantine_of(shop).drop(ALL)
    with shop.database.plain.begin() as connection:
        assert lock_heads(connection, shop.tables, [2]) == 0
        assert release(connection, shop.tables, [2], back=True) == Released()
