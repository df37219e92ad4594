"""Leases that the database's clock has written while it was wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine

from outbox import Outbox
from outbox.relay.shard_leases import ShardLeases

pytestmark = pytest.mark.system

NOW_MS = 1_700_000_000_000
YEARS_MS = 315_360_000_000


def test_the_slot_of_a_relay_that_died_while_the_clock_was_ahead_is_free_after_a_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease ends in ten years. Until then no other relay would publish the rows of its shards."""
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    outbox, clock = Outbox(engine, shards=1), [NOW_MS + YEARS_MS]
    outbox.create_tables()
    slots = ShardLeases(outbox.tables, 9_000, "sqlite", lambda dialect: str(clock[0]))
    with engine.begin() as connection:
        assert slots.enter(connection, "elsewhere", lambda other: False) is not None
        clock[0] = NOW_MS
        for _ in range(2):
            assert slots.enter(connection, "here", lambda other: False) is None
        clock[0] += 9_000
        assert slots.enter(connection, "here", lambda other: False) is not None
    engine.dispose()
    assert len(caplog.records) == 1 and "slot 0 was written by a clock that was wrong" in caplog.text
