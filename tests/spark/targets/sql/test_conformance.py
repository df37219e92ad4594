"""What every target promises, of databases."""

from __future__ import annotations

import pytest

from spark_sinks.targets.sql.postgresql import PostgresDialect
from tests.databases import ON_SERVERS, Database, NewDatabase
from tests.spark.targets.kit import Conformance, MakeRig, UpsertConformance
from tests.tiers import quick

pytestmark = pytest.mark.system

BLOCKING = [kind for kind in ON_SERVERS if "async" not in kind]


class TestConformanceOfFiles(Conformance):
    @pytest.mark.slow  # make test crashes at every step, which are the same places
    @pytest.mark.parametrize("long", [False, True])
    def test_disk_full_at_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_disk_full_at_every_step(rigs, long)

    @pytest.fixture
    def database(self, new_database: NewDatabase) -> Database:
        return new_database("sqlite")


class TestUpsertsOfFiles(UpsertConformance):
    @pytest.fixture
    def database(self, new_database: NewDatabase) -> Database:
        return new_database("sqlite")


@pytest.mark.parametrize("database", quick(BLOCKING, ["psycopg"]), indirect=True)
class TestConformanceOfServers(Conformance):
    @pytest.mark.slow
    @pytest.mark.parametrize("long", [True])
    def test_crash_before_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_crash_before_every_step(rigs, long)

    @pytest.mark.slow
    @pytest.mark.parametrize("long", [True])
    def test_disk_full_at_every_step(self, rigs: MakeRig, long: bool) -> None:
        super().test_disk_full_at_every_step(rigs, long)


@pytest.mark.parametrize("database", BLOCKING, indirect=True)
class TestUpsertsOfServers(UpsertConformance):
    @pytest.mark.slow
    def test_crash_before_every_step_of_an_upsert(self, rigs: MakeRig) -> None:
        super().test_crash_before_every_step_of_an_upsert(rigs)


class TestUpsertsBeforePostgres15(UpsertConformance):
    """Which has no MERGE. Only the statement is of that time, the server is not."""

    @pytest.fixture(autouse=True)
    def old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(PostgresDialect, "_merge", PostgresDialect._insert)

    @pytest.fixture
    def database(self, new_database: NewDatabase) -> Database:
        return new_database("psycopg")

    @pytest.mark.slow
    def test_crash_before_every_step_of_an_upsert(self, rigs: MakeRig) -> None:
        super().test_crash_before_every_step_of_an_upsert(rigs)
