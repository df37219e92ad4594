"""A service that is killed at any moment: each record has its effect once, or is a dead letter once."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from tests.databases import KINDS, NewDatabase
from tests.killed import kill
from tests.outbox.inbox.given import Ledger

pytestmark = pytest.mark.system


def killed(new_database: NewDatabase, kind: str, folder: Path, trials: int, seed: int) -> str:
    database = new_database(kind)
    Ledger(database)
    return kill("tests.outbox.inbox.kill_inbox", f"{folder};{database.url}", trials, seed)


def test_a_service_that_is_killed_counts_each_record_once(new_database: NewDatabase, tmp_path: Path) -> None:
    assert "3 kills" in killed(new_database, "sqlite", tmp_path, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
@pytest.mark.timeout(600)
def test_kills_with_an_orm_session_in_a_schema_at_serializable_with_one_connection(
    new_database: NewDatabase, kind: str, tmp_path: Path
) -> None:
    database = new_database(kind)
    with database.plain.begin() as connection:
        connection.execute(text("CREATE SCHEMA tenant"))
    where = f"{tmp_path};{database.url};tenant"
    assert "20 kills" in kill("tests.outbox.inbox.kill_inbox", where, 20, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_it_does_so_many_times(new_database: NewDatabase, kind: str, seed: int, tmp_path: Path) -> None:
    assert "60 kills" in killed(new_database, kind, tmp_path, 60, seed + 2)
