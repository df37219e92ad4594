"""Every example runs with no arguments and checks its own outcome."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent.parent / "examples").glob("*.py"))
ALONE = [path for path in EXAMPLES if "RealKafka(" not in path.read_text("utf-8")]
"""Those that start no cluster; tests/failover runs the one that does."""
STORIES = {"25_bank_transfer": 200, "26_saga": 180}
"""Services of several databases, with what checks them: as many lines at most, where others have 80."""


def test_there_are_examples() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, len(EXAMPLES) + 1)]


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_an_example_runs_and_is_short(path: Path, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text("utf-8")
    if "from sqlalchemy import" in text and pytestconfig.getoption("--base-dependencies"):
        pytest.importorskip("sqlalchemy", reason="no base dependency")
    assert re.fullmatch(r"\d\d_[a-z_]+\.py", path.name)
    assert len(text.splitlines()) < STORIES.get(path.stem, 80)
    assert re.search(r"^ *assert ", text, re.M), "an example asserts its own outcome"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == [], "on memory:// nothing is left behind"


def test_hello_runs_on_a_file_too_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(
            [sys.executable, str(EXAMPLES[0]), "file://./data"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=30,
        )
