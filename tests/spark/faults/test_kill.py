"""Whatever is killed in a landing, wherever: every record is in the table once, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.databases import NewDatabase
from tests.spark.faults.harness import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a signal of POSIX")]


def kill(directory: Path, trials: int, seed: int, tables: Sequence[str]) -> str:
    command = [sys.executable, "-m", "tests.spark.faults.kill_landing", str(directory), str(trials), str(seed), *tables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def tables_of(directory: Path, new_database: NewDatabase, *servers: str) -> list[str]:
    databases = [f"{new_database(server).plain_url}#orders" for server in servers]
    return [
        str(directory / "parquet"),
        f"delta:{directory / 'delta'}",
        f"iceberg:{directory / 'iceberg'}",
        f"sqlite:///{directory / 'shop.db'}#orders",
        *databases,
    ]


@pytest.mark.timeout(300)
async def test_a_worker_java_and_the_driver_are_killed(tmp_path: Path, new_database: NewDatabase) -> None:
    tables = tables_of(tmp_path, new_database, "psycopg")
    assert "3 kills of 5 tables" in kill(tmp_path, 3, 1, tables)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_60_kills(tmp_path: Path, new_database: NewDatabase) -> None:
    tables = tables_of(tmp_path, new_database, "psycopg", "mariadb")
    assert "60 kills of 6 tables" in kill(tmp_path, 60, 2, tables)
