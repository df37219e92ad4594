"""Processes that are killed at work, again and again: what they told before their end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from tests.warm import commands as warm

ROOT = Path(__file__).resolve().parents[1]
START_S = 60


def kill(program: str, log: Path | str, trials: int, seed: int) -> str:
    """What ``python -m PROGRAM LOG TRIALS SEED`` prints. Raises AssertionError when it found something wrong."""
    done = subprocess.run(
        [warm.python(), "-m", program, str(log), str(trials), str(seed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


def told_by_killed(work: Callable[[int], object], lifetime_seconds: float, after_bytes: int = 0) -> bytes:
    """Fork, have the child do ``work`` with a pipe to write to, kill it after a while; what came through the pipe.

    ``after_bytes``: its lifetime begins when it has told so much, however long a busy machine takes until then.
    Raises AssertionError when it ended with an error of its own, which is on stderr.
    """
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _work(work, writable)
    os.close(writable)
    os.set_blocking(readable, False)
    received = bytearray()
    deadline = time.monotonic() + (START_S if after_bytes else lifetime_seconds)
    while (now := time.monotonic()) < deadline:
        received += _available(readable)
        if 0 < after_bytes <= len(received):
            after_bytes, deadline = 0, now + lifetime_seconds
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, "the process ended by itself"
            break
        time.sleep(0.002)  # the child's lifetime is real time: this is a process under test, not a test's wait
    else:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    received += _available(readable)
    os.close(readable)
    return bytes(received)


def _work(work: Callable[[int], object], writable: int) -> NoReturn:
    try:
        work(writable)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


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
