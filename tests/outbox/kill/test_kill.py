"""kill -9 of relays at each of their steps: no event is lost or doubled; those of a key keep their order."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.databases import KINDS, THREE, Database
from tests.killed import kill
from tests.outbox.kill.kill_relay import STEPS
from tests.tiers import quick

PROGRAM = "tests.outbox.kill.kill_relay"
pytestmark = pytest.mark.system


@pytest.mark.parametrize("database", quick(THREE, ["psycopg"]), indirect=True)
@pytest.mark.timeout(240)
def test_a_kill_at_each_step(database: Database, tmp_path: Path) -> None:
    where = f"{database.kind}|{database.plain_url}|{tmp_path / 'log'}"
    assert f"{len(STEPS)} kills" in kill(PROGRAM, where, len(STEPS), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["psycopg", "asyncpg"], indirect=True)
@pytest.mark.timeout(600)
def test_kills_with_sessions_in_a_schema_at_serializable_with_one_connection(
    database: Database, tmp_path: Path
) -> None:
    with database.plain.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
    where = f"{database.kind}|{database.plain_url}|{tmp_path / 'log'}|tenant"
    assert "100 kills" in kill(PROGRAM, where, 100, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("database", KINDS, indirect=True)
@pytest.mark.parametrize("seed", range(2, 4))
@pytest.mark.timeout(900)
def test_many_kills(database: Database, seed: int, tmp_path: Path) -> None:
    """On two logs, with each driver of each database."""
    where = f"{database.kind}|{database.plain_url}|{tmp_path / 'log'}"
    assert "50 kills" in kill(PROGRAM, where, 50, seed)
