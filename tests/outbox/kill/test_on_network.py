"""Relays in processes of their own on `eventbus serve`: killed, and stopped for longer than their leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.serving import Served
from tests.databases import THREE, Database
from tests.killed import kill

pytestmark = pytest.mark.system
FEW = ["psycopg", *(pytest.param(kind, marks=pytest.mark.slow) for kind in THREE if kind != "psycopg")]


@pytest.mark.parametrize("rounds", [1, pytest.param(10, marks=pytest.mark.slow)])
@pytest.mark.parametrize("database", FEW, indirect=True)
@pytest.mark.timeout(900)
def test_a_process_that_is_stopped_past_its_lease(database: Database, rounds: int, tmp_path: Path) -> None:
    with Served(tmp_path / "log") as server:
        where = f"{database.kind}|{database.plain_url}|kafka://{server.bootstrap}"
        assert f"{7 * rounds} stops" in kill("tests.outbox.kill.stop_relay", where, rounds, seed=1)


@pytest.mark.parametrize("kills", [5, pytest.param(200, marks=pytest.mark.slow)])
@pytest.mark.parametrize("database", FEW, indirect=True)
@pytest.mark.timeout(1_800)
def test_up_to_four_processes(database: Database, kills: int, tmp_path: Path) -> None:
    with Served(tmp_path / "log") as server:
        where = f"{database.kind}|{database.plain_url}|kafka://{server.bootstrap}"
        assert f"{kills} kills" in kill("tests.outbox.kill.kill_relay", where, kills, seed=1)
