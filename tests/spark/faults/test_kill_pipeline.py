"""Spark's pipeline back to the bus is killed at every step, and writes each batch once. See `kill_pipeline`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[3]


def killed(folder: Path, how: str, seconds: float) -> str:
    command = [sys.executable, "-m", "tests.spark.faults.kill_pipeline", str(folder), how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.splitlines()[-1]


def test_what_is_written_back_is_there_once_wherever_the_driver_is_killed(tmp_path: Path) -> None:
    assert killed(tmp_path, "plain", 100) == "16 records"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_pipeline_that_is_killed_at_every_step_ends_as_one_that_lives(tmp_path: Path) -> None:
    assert int(killed(tmp_path, "spark", 1_100).split()[0]) > 100
