"""`eventbus serve` killed under exactly-once processing: every record counts once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.warm import commands as warm

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).with_name("kill_transactions.py")


def kill(directory: Path, kills: int, seed: int) -> None:
    done = subprocess.run(
        [warm.python(), str(SCRIPT), str(directory / "log"), str(kills), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.startswith(f"{kills} kills, ")


@pytest.mark.timeout(300)
def test_kills_under_transactions(tmp_path: Path) -> None:
    kill(tmp_path, 2, 1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_40_kills_under_transactions(tmp_path: Path) -> None:
    kill(tmp_path, 40, 2)
