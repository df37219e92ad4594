"""What every target promises, of databases."""

from __future__ import annotations

import pytest

from tests.databases import ON_SERVERS, Database, NewDatabase
from tests.spark.targets.kit import Conformance, MakeRig, UpsertConformance

BLOCKING = [kind for kind in ON_SERVERS if "async" not in kind]


class TestConformanceOfFiles(Conformance):
    @pytest.fixture
    def database(self, new_database: NewDatabase) -> Database:
        return new_database("sqlite")


class TestUpsertsOfFiles(UpsertConformance):
    @pytest.fixture
    def database(self, new_database: NewDatabase) -> Database:
        return new_database("sqlite")


@pytest.mark.parametrize("database", BLOCKING, indirect=True)
class TestConformanceOfServers(Conformance):
    @pytest.mark.slow
    def test_crash_before_every_step(self, rigs: MakeRig) -> None:
        super().test_crash_before_every_step(rigs)

    @pytest.mark.slow
    def test_disk_full_at_every_step(self, rigs: MakeRig) -> None:
        super().test_disk_full_at_every_step(rigs)


@pytest.mark.parametrize("database", BLOCKING, indirect=True)
class TestUpsertsOfServers(UpsertConformance):
    @pytest.mark.slow
    def test_crash_before_every_step_of_an_upsert(self, rigs: MakeRig) -> None:
        super().test_crash_before_every_step_of_an_upsert(rigs)
