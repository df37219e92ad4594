"""Whatever is killed in a landing, wherever: every record is in the table once, and nothing else is.

Where each fault is tried. *Live* files are in ``tests/spark/live``; *kit* is ``tests/spark/targets/kit.py``, which all
targets pass without Spark. In all of them the oracle is the log as a consumer of committed records reads it, decoded by
fastavro, and values are compared.

| fault | test |
|---|---|
| driver, Java, a worker killed at random | here: one kill meets all tables, each at another step |
| killed between every two steps of a commit | kit: `test_crash_before_every_step` |
| killed between every two steps of the recovery | kit: `test_crash_of_the_recovery` |
| power lost | ``tests/spark/targets/test_parquet_power.py`` |
| a task dies, or dies after it wrote all | live: `test_a_task_that_fails_is_done_again` |
| checkpoint deleted | live: `test_scratch_paper_that_vanishes_is_no_loss`; each new run has none |
| checkpoint restored from an old copy | live: `test_an_old_copy_of_the_scratch_paper_changes_nothing` |
| two drivers at once, processes | live: `test_a_second_driver_is_refused_or_takes_over` |
| a driver that lost its table commits | kit: `test_landing_that_lost_its_table_cannot_commit` |
| retention passes the offset | live: `test_what_retention_took_is_missed_loudly_or_passed_over` |
| aborted transactions, gaps of compaction | here |
| nothing but aborted records and markers | live: `test_batches_without_a_record_move_the_table_on` |
| a partition is added while it runs | live: `test_a_partition_is_added_while_it_runs` |
| damaged values: 1 % | here |
| damaged values: 5 %, 100 % | live: `test_transactions_compaction_...`, `test_nothing_but_damaged_values` |
| the log itself is damaged | live: `test_a_damaged_log_is_told_with_its_place` |
| disk full in stage, rename, ledger | live: `test_tasks_on_a_full_disk`, `test_disk_that_fills_up_in_the_commit` |
| disk full at every step | kit: `test_disk_full_at_every_step` |
| readers in a loop | here, through all kills: `Watch`; kit: `test_reader_in_a_loop_sees_each_record_once` |
| schemas change, alternate, do not fit | live: ``test_landing_avro.py`` |
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.databases import NewDatabase
from tests.spark.faults.harness import ROOT

pytestmark = [pytest.mark.system, pytest.mark.skipif(os.name == "nt", reason="SIGKILL is a signal of POSIX")]


def kill(directory: Path, trials: int, seed: int, tables: Sequence[str]) -> str:
    command = [sys.executable, "-m", "tests.spark.faults.kill_landing", str(directory), str(trials), str(seed), *tables]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-20_000:]
    return done.stdout


def tables_of(directory: Path, new_database: NewDatabase) -> list[str]:
    databases = [f"{new_database(kind).plain_url}#orders" for kind in ("sqlite", "psycopg", "mariadb")]
    return [str(directory / "parquet"), f"delta:{directory / 'delta'}", f"iceberg:{directory / 'iceberg'}", *databases]


@pytest.mark.slow  # two minutes; the quick tier kills tasks (tests/spark/live), and lets one landing take over another
@pytest.mark.timeout(300)
async def test_a_worker_java_and_the_driver_are_killed(tmp_path: Path, new_database: NewDatabase) -> None:
    told = kill(tmp_path, 3, 1, tables_of(tmp_path, new_database))
    assert "3 kills of 6 tables, 0 failures" in told
    assert "6 kinds of tables were looked at" in told
    assert "jvm: SparkCrashed" in told, f"Java was killed too late: {told}"
    assert "driver: killed" in told


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_60_kills(tmp_path: Path, new_database: NewDatabase) -> None:
    """20 of each."""
    assert "60 kills of 6 tables, 0 failures" in kill(tmp_path, 60, 2, tables_of(tmp_path, new_database))
