"""A service ends when its handlers have stopped, so that a supervisor notices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SERVICE = """
from eventbus import EventBus

bus = EventBus("memory://")
bus.topic("t", partitions=1)

@bus.consumer("t", name="fragile")
async def fragile(text: str) -> None:
    raise ValueError("no such customer")

@bus.on_startup
async def send():
    await bus.send("t", "x")
"""


def test_when_every_handler_has_stopped_run_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    done = subprocess.run(
        [sys.executable, "-m", "eventbus", "run", "app:bus"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "handler 'fragile': t-0 offset 0" in done.stderr and "no such customer" in done.stderr
    assert "every handler has stopped, so the bus stops" in done.stderr
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert files == [str(tmp_path / "app.py")], "the traceback has no frames of ours"
