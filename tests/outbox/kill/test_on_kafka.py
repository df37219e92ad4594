"""The same on Apache Kafka: relays are killed and stopped, the broker lives on."""

from __future__ import annotations

import pytest

from eventbus.testing import RealKafka
from tests.databases import Database
from tests.killed import kill
from tests.tiers import quick

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]
ON_ONE = pytest.mark.parametrize("database", ["psycopg"], indirect=True)


@pytest.mark.parametrize("kills", quick([2, 4, 40], 1))
@ON_ONE
@pytest.mark.timeout(1_800)
def test_kills(real: RealKafka, database: Database, kills: int) -> None:
    where = f"{database.kind}|{database.plain_url}|{real.url}#{kills}"
    assert f"{kills} kills" in kill("tests.outbox.kill.kill_relay", where, kills, seed=kills)


@pytest.mark.slow
@ON_ONE
@pytest.mark.timeout(1_800)
def test_stops(real: RealKafka, database: Database) -> None:
    where = f"{database.kind}|{database.plain_url}|{real.url}#stops"
    assert "35 stops" in kill("tests.outbox.kill.stop_relay", where, 35, seed=1)
