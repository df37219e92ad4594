"""A process killed while it writes loses nothing it was told is stored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("kill_writer.py")


def kill(directory: Path, trials: int, seed: int) -> str:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(directory / "log"), str(trials), str(seed)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.timeout(240)
def test_200_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert "200 kills" in kill(tmp_path, 200, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_2000_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert "2000 kills" in kill(tmp_path, 2000, seed=2)
