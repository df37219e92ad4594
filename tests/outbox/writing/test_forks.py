"""An outbox in a forked child: its engine connects again, and a session of the parent is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, text

from outbox import Outbox
from tests.client.forked_children import in_child

pytestmark = pytest.mark.system


def write(engine: Engine, outbox: Outbox) -> int:
    with engine.begin() as connection:
        outbox.publish(connection, "orders", "from the child")
        return count(connection)


def count(connection: Connection) -> int:
    return int(connection.execute(text("SELECT count(*) FROM eventbus_outbox")).scalar_one())


def test_the_engine_of_an_outbox_connects_again_in_the_child(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    outbox.create_tables()
    pool = engine.pool
    assert in_child(lambda: (write(engine, outbox), engine.pool is pool)) == "returned (1, False)"
    assert (write(engine, outbox), engine.pool is pool) == (2, True)
    engine.dispose()


def test_a_session_of_the_parent_is_refused_in_the_child(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    outbox = Outbox(engine)
    outbox.create_tables()
    with engine.begin() as connection:
        outbox.publish(connection, "orders", "from the parent")
        outcome = in_child(lambda: outbox.publish(connection, "orders", "over the parent's connection"))
        assert outcome.startswith("ConfigError: outbox.publish was used in a forked child. This session's connection")
        assert count(connection) == 1
    engine.dispose()
