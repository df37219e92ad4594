"""kill -9 during registration by eight writers: ids stay unique, are never given again, and answers hold."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_registrations.py")


def kill(directory: Path, trials: int, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory / "log"), str(trials), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(120)
def test_12_kills(tmp_path: Path) -> None:
    assert "12 kills" in kill(tmp_path, 12, seed=1)


@pytest.mark.slow  # two minutes
@pytest.mark.timeout(1200)
def test_200_kills(tmp_path: Path) -> None:
    assert "200 kills" in kill(tmp_path, 200, seed=2)
