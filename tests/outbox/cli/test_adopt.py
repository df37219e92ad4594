"""``eventbus outbox adopt``: relays publish from a database that was restored or cloned."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from outbox.relay.batches import identity_and_batches, lock_batch
from tests.outbox.cli.conftest import OnOutbox, Shop

pytestmark = pytest.mark.system


def test_the_outbox_gets_another_id_under_which_nothing_is_published(shop: Shop, on_outbox: OnOutbox) -> None:
    shop.publish("a", "b")
    shop.relay(0, range(64), seen_ms_ago=60_000)
    with shop.database.plain.begin() as connection:
        lock_batch(connection, shop.tables, 0)
        before, recorded = identity_and_batches(connection, shop.tables)
    assert recorded == {0: 0}
    asked = on_outbox("adopt", stdin=b"n\n")
    assert asked.code == 1 and "beginning with 2 event(s)" in asked.err
    done = on_outbox("adopt", "--yes")
    assert (done.code, done.out) == (0, "outbox 'eventbus_outbox' is adopted, 2 event(s) wait\n"), done.err
    with shop.database.plain.begin() as connection:
        after, recorded = identity_and_batches(connection, shop.tables)
        assert after not in (None, before) and recorded == {}
        assert set(connection.scalars(select(shop.tables.shards.c.slot))) == {None}
        assert connection.execute(select(shop.tables.relays)).all() == []
    assert shop.waiting() == [1, 2]


def test_a_relay_that_is_alive_keeps_its_id(shop: Shop, on_outbox: OnOutbox) -> None:
    shop.relay(3)
    refused = on_outbox("adopt", "--yes")
    assert refused.code == 1 and "The relay web-3/7 publishes the outbox 'eventbus_outbox'" in refused.err
