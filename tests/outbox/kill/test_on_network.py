"""Relays in processes of their own on `eventbus serve`: killed, and stopped for longer than their leases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.serving import Served
from tests.databases import THREE, Database
from tests.killed import kill
from tests.tiers import quick

pytestmark = pytest.mark.system
FEW = quick(THREE, ["psycopg"])


@pytest.mark.slow  # tests/outbox/faults/test_sleepers.py stops relays at each step, in one process
@pytest.mark.parametrize("stops", [2, 70])
@pytest.mark.parametrize("database", FEW, indirect=True)
@pytest.mark.timeout(900)
def test_a_process_that_is_stopped_past_its_lease(database: Database, stops: int, tmp_path: Path) -> None:
    with Served(tmp_path / "log") as server:
        where = f"{database.kind}|{database.plain_url}|kafka://{server.bootstrap}"
        assert f"{stops} stops" in kill("tests.outbox.kill.stop_relay", where, stops, seed=1)


@pytest.mark.slow  # in the system tier on Apache Kafka
@pytest.mark.parametrize("kills", [5, 60])
@pytest.mark.parametrize("database", THREE, indirect=True)
@pytest.mark.timeout(1_800)
def test_up_to_four_processes(database: Database, kills: int, tmp_path: Path) -> None:
    with Served(tmp_path / "log") as server:
        where = f"{database.kind}|{database.plain_url}|kafka://{server.bootstrap}"
        assert f"{kills} kills" in kill("tests.outbox.kill.kill_relay", where, kills, seed=1)
