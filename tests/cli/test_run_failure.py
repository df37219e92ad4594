"""A service whose handler has stopped says so when it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

SERVICE = """
from eventbus import EventBus

bus = EventBus("memory://")
bus.topic("t")

@bus.consumer("t", name="fragile")
async def fragile(text: str) -> None:
    bus.stop()
    raise ValueError("no such customer")

original = bus.run

async def run():
    await bus.send("t", "x")
    await original()

bus.run = run
"""


def test_a_stopped_handler_makes_run_exit_1(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(SERVICE)
    done = subprocess.run(
        [sys.executable, "-m", "eventbus", "run", "app:bus"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "handler 'fragile': t-0 offset 0" in done.stderr and "no such customer" in done.stderr
    files = [line.split('"')[1] for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert files == [str(tmp_path / "app.py")], "the traceback has no frames of ours"
