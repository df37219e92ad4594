"""Every example runs as it is, needs no arguments, and asserts its own outcome."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.py"))
MOST_LINES = 80


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_checks_itself(path: Path, tmp_path: Path) -> None:
    source = path.read_text("utf-8")
    tree = ast.parse(source)
    assert ast.get_docstring(tree), "an example says what it shows"
    assert any(isinstance(node, ast.Assert) for node in ast.walk(tree)), "an example asserts its outcome"
    assert len(source.splitlines()) <= MOST_LINES
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_there_are_examples() -> None:
    assert EXAMPLES
