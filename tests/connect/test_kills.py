"""A kill at any moment loses nothing and doubles nothing: not in topics, and not in the file of a sink."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.killed import kill

pytestmark = pytest.mark.system


@pytest.mark.parametrize(
    ("trials", "seed"), [(5, 1), *(pytest.param(20, seed, marks=pytest.mark.slow) for seed in range(2, 8))]
)
def test_each_line_and_each_row_is_there_once_after_kills(tmp_path: Path, trials: int, seed: int) -> None:
    assert "each once" in kill("tests.connect.killed_connectors", tmp_path / "killed", trials, seed)
