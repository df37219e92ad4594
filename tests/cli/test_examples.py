"""Every example runs with no arguments and checks its own outcome."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.warm import commands as warm

EXAMPLES = sorted((Path(__file__).resolve().parent.parent.parent / "examples").glob("*.py"))
ALONE = [path for path in EXAMPLES if "RealKafka(" not in path.read_text("utf-8")]
"""Those that start no cluster; tests/failover runs the one that does."""
STORIES = {"25_bank_transfer": 205, "26_saga": 180, "28_spark_pipeline": 165}
"""Services of several databases and jobs of several steps, with what checks them: as many lines at most, not 80."""
WITH_SPARK = [path for path in ALONE if "from spark_sinks import" in path.read_text("utf-8")]
QUICK = [path for path in ALONE if path not in WITH_SPARK]
BY_THEMSELVES = [path for path in QUICK if path.name.startswith("01") or "log_url(" not in path.read_text("utf-8")]
"""In the quick tier; tests/three_urls runs the others, on memory too."""


def test_there_are_examples() -> None:
    assert [path.name[:2] for path in EXAMPLES] == [f"{number:02}" for number in range(1, len(EXAMPLES) + 1)]


@pytest.mark.parametrize("path", ALONE, ids=lambda path: path.stem)
def test_an_example_is_short_and_checks_itself(path: Path) -> None:
    text = path.read_text("utf-8")
    assert re.fullmatch(r"\d\d_[a-z_]+\.py", path.name)
    assert len(text.splitlines()) < STORIES.get(path.stem, 80)
    assert re.search(r"^ *assert ", text, re.M), "an example asserts its own outcome"


@pytest.mark.system
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path in BY_THEMSELVES else pytest.mark.slow) for path in QUICK],
    ids=lambda path: path.stem,
)
def test_an_example_runs(path: Path, tmp_path: Path) -> None:
    runs(path, tmp_path, 30)


@pytest.mark.slow
@pytest.mark.timeout(320)
@pytest.mark.parametrize("path", WITH_SPARK, ids=lambda path: path.stem)
def test_an_example_with_spark_runs(path: Path, tmp_path: Path) -> None:
    runs(path, tmp_path, 300)


def runs(path: Path, folder: Path, seconds: float) -> None:
    done = subprocess.run(
        [warm.python(), "-W", "error", str(path)], cwd=folder, capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(folder.iterdir()) == [], "on memory://, and in a directory for a while, nothing is left behind"


@pytest.mark.system
def test_hello_runs_on_a_file_too_and_again(tmp_path: Path) -> None:
    for _ in range(2):
        subprocess.run(
            [warm.python(), str(EXAMPLES[0]), "file://./data"],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            timeout=30,
        )
