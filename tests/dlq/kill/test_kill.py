"""kill -9 while records fail, wait, are tried again and die: each is done, waits, or is dead, and only one of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killed import kill

pytestmark = pytest.mark.system

PROGRAM = "tests.dlq.kill.kill_service"
FEW = pytest.mark.parametrize(
    ("kills", "promise"),
    [pytest.param(7, "", marks=pytest.mark.slow, id="at-least"), pytest.param(4, "once:", id="exactly")],
)
"""At least once, ``make test`` ends lives in one process, at every third step (test_steps.py)."""
PROMISES = pytest.mark.parametrize(("kills", "promise"), [(60, ""), (30, "once:")], ids=["at-least", "exactly"])


@FEW
@pytest.mark.timeout(240)
def test_few_kills(tmp_path: Path, kills: int, promise: str) -> None:
    assert f"{kills} kills" in kill(PROGRAM, f"{promise}{tmp_path / 'log'}", kills, seed=1)


@pytest.mark.slow
@PROMISES
@pytest.mark.timeout(3_600)
def test_many_kills(tmp_path: Path, kills: int, promise: str) -> None:
    """On three logs: none grows so long that looking through it after each kill is all that is done."""
    for seed in range(2, 5):
        assert f"{kills} kills" in kill(PROGRAM, f"{promise}{tmp_path}/log-{seed}", kills, seed)
