"""The bank of examples/25_bank_transfer.py: over HTTP, and killed again and again on each database."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tests.databases import THREE, Database, NewDatabase
from tests.killed import kill
from tests.outbox.bank.books import bank
from tests.tiers import quick

pytestmark = pytest.mark.system

PROGRAM = "tests.outbox.bank.kill_bank"
KILLS = {"sqlite": 8, "psycopg": 3, "mariadb": 4}


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_transfers_over_http(database: Database) -> None:
    bus, sessions = bank.bank(database.engine, "memory://")
    with TestClient(bank.app(bus, sessions)) as client:
        ask = "/transfers?source={}&target={}&cents={}"
        asked = [client.post(ask.format("ada", "bob", cents)) for cents in (1, 2, 3)]
        assert [answer.status_code for answer in asked] == [202] * 3
        for source, cents in (("ada", 1_000_000), ("ada", 0), ("ada", -5), ("nobody", 1)):
            refused = client.post(ask.format(source, "bob", cents))
            assert refused.status_code == 409 and "has not" in refused.json()["detail"]
        assert client.portal is not None
        client.portal.call(bus.drain)
        cents = bank.CENTS
        assert client.get("/accounts").json() == {"ada": cents - 6, "bob": cents + 6, "cyd": cents}


@pytest.mark.parametrize("kind", quick(THREE, ["psycopg"]))
@pytest.mark.timeout(240)
def test_no_money_is_lost_or_made_when_the_bank_is_killed(kind: str, new_database: NewDatabase, tmp_path: Path) -> None:
    where = f"{tmp_path / 'log'}#{new_database(kind).plain_url}"
    assert f"{KILLS[kind]} kills" in kill(PROGRAM, where, KILLS[kind], seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", THREE)
@pytest.mark.timeout(3_600)
def test_150_kills(kind: str, new_database: NewDatabase, tmp_path: Path) -> None:
    """On several banks: none grows so old that looking through its books after each kill is all that is done."""
    for seed in range(2, 5):
        where = f"{tmp_path}/log-{seed}#{new_database(kind).plain_url}"
        assert "50 kills" in kill(PROGRAM, where, 50, seed)


@pytest.mark.slow
@pytest.mark.parametrize("kind", THREE)
@pytest.mark.timeout(600)
def test_two_services_on_one_log_that_are_killed_and_stopped(
    kind: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    where = f"{tmp_path}#{new_database(kind).plain_url}"
    assert "15 times trouble" in kill("tests.outbox.bank.two_services", where, 15, seed=1)
