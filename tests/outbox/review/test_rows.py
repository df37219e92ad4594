"""Rows that are large, and statements that name many of them."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from outbox.database import Database as Transactions
from outbox.relay.rows import Row, Rows, delete_rows
from tests.databases import THREE, Database
from tests.outbox.relay.test_relay import outbox_in

pytestmark = pytest.mark.system

_MB = 1_048_576


@pytest.mark.parametrize("database", THREE, indirect=True)
async def test_rows_that_are_suddenly_large_are_taken_by_their_bytes(database: Database) -> None:
    outbox = outbox_in(database)
    values = [b"small", None, b"m" * 8_192, *[b"%d" % n * (3 * _MB) for n in range(4)], b"last", b"h" * (9 * _MB)]
    with database.plain.begin() as connection:
        for value in values:
            outbox._inserter.insert(
                connection,
                [{"event_id": "e", "shard": 0, "topic": "t", "key": None, "value": value, "headers": None,
                  "partition": None, "timestamp_ms": 1, "expires_at_ms": None}],
                is_later=False, relative=(),
            )  # fmt: skip
    rows, everything = Rows(outbox.tables), frozenset(range(outbox.tables.shard_count))
    transactions = Transactions(database.engine)
    seen: list[Row] = []
    sizes: list[int] = []
    while taken := await transactions.run(rows.take, everything, 100, [row[0] for row in seen]):
        seen += taken
        sizes.append(len(taken))
    assert sizes == [5, 3, 1]
    assert [row[4] for row in seen] == values
    assert [row[0] for row in seen] == sorted(row[0] for row in seen)
    by_shard = await transactions.run(rows.take, frozenset([0]), 100, [row[0] for row in seen[::2]])
    assert [row[4] for row in by_shard] == values[1::2]


@pytest.mark.parametrize("database", ["sqlite", "asyncpg"], indirect=True)
async def test_more_rows_than_a_driver_takes_parameters_are_deleted(database: Database) -> None:
    outbox = outbox_in(database)
    events = outbox.tables.events
    with database.plain.begin() as connection:
        outbox.publish_many(connection, "t", [b""] * 20)
    ids = [2, *range(5, 90_000, 2)]
    assert await Transactions(database.engine).run(delete_rows, events, ids) == 9
    with database.plain.begin() as connection:
        assert list(connection.scalars(select(events.c.id).order_by(events.c.id))) == [1, 3, *range(4, 21, 2)]
