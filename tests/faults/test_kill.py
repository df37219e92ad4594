"""A process killed while it writes loses nothing it was told is stored."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killed import kill

pytestmark = pytest.mark.system

PROGRAM = "tests.faults.kill_writer"


@pytest.mark.timeout(240)
def test_12_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert "12 kills" in kill(PROGRAM, tmp_path / "log", 12, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_300_kills_lose_and_repeat_nothing(tmp_path: Path) -> None:
    assert "300 kills" in kill(PROGRAM, tmp_path / "log", 300, seed=2)
