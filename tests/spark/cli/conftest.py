"""``eventbus spark`` as the shell calls it, and a table that was landed without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from eventbus.cli.app import run as run_command_line
from tests.spark.conftest import TestLog


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def spark_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run ``eventbus spark WORDS`` in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVENTBUS_URL", raising=False)

    def run(*words: str) -> Answer:
        code = run_command_line(["spark", *words])
        return Answer(code, *capsys.readouterr())

    return run


@pytest.fixture
def log(tmp_path: Path) -> TestLog:
    directory = tmp_path / "data"
    directory.mkdir()
    return TestLog(directory)
