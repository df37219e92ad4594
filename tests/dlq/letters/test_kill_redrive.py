"""kill -9 while letters are sent back: begun again, the redrive sends the others, and none twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killed import kill

pytestmark = pytest.mark.system

PROGRAM = "tests.dlq.letters.kill_redrive"


def test_redrive_that_is_killed_is_gone_on_with(tmp_path: Path) -> None:
    assert "2 kills" in kill(PROGRAM, tmp_path / "log", 2, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_redrive_of_100_000_is_killed_forty_times(tmp_path: Path) -> None:
    assert "40 kills" in kill(PROGRAM, tmp_path / "log", 40, seed=2)
