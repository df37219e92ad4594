"""kill -9 during registration by eight writers: ids stay unique, are never given again, and answers hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killed import kill

pytestmark = pytest.mark.system

PROGRAM = "tests.schema_registry.core.kill_registrations"


@pytest.mark.timeout(120)
def test_4_kills(tmp_path: Path) -> None:
    assert "4 kills" in kill(PROGRAM, tmp_path / "log", 4, seed=1)


@pytest.mark.slow  # two minutes
@pytest.mark.timeout(1200)
def test_200_kills(tmp_path: Path) -> None:
    assert "200 kills" in kill(PROGRAM, tmp_path / "log", 200, seed=2)
