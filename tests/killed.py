"""Processes that are killed at work, again and again: what they told before their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def kill(program: str, log: Path, trials: int, seed: int) -> str:
    """What ``python -m PROGRAM LOG TRIALS SEED`` prints. Raises AssertionError when it found something wrong."""
    done = subprocess.run(
        [sys.executable, "-m", program, str(log), str(trials), str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def told_by_killed(work: Callable[[int], object], lifetime_seconds: float) -> bytes:
    """Fork, have the child do ``work`` with a pipe to write to, kill it after a while; what came through the pipe."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        work(writable)
        os._exit(1)
    os.close(writable)
    os.set_blocking(readable, False)
    received = bytearray()
    deadline = time.monotonic() + lifetime_seconds
    while time.monotonic() < deadline:
        received += _available(readable)
        time.sleep(0.002)  # the child's lifetime is real time: this is a process under test, not a test's wait
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    received += _available(readable)
    os.close(readable)
    return bytes(received)


def _available(readable: int) -> bytes:
    received = b""
    while True:
        try:
            piece = os.read(readable, 1 << 20)
        except BlockingIOError:
            return received
        if not piece:
            return received
        received += piece
