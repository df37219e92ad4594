"""Landings in processes of their own, which can be killed; and what of them is to be found in ``/proc``."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 300.0
"""For anything a landing does: six landings in one session, which starts anew, take a while on a busy machine."""


class Lander:
    """A `tests.spark.faults.lander`. Ends with the ``with`` block, and so does all that it started."""

    def __init__(self, log: str, tables: Sequence[str], **options: Any) -> None:
        command = [sys.executable, "-m", "tests.spark.faults.lander", log, msgspec.json.encode(options).decode()]
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `kill`
        self._process = subprocess.Popen(
            [*command, *tables], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._complaints
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._read = b""
        self._jvms: set[int] = set()

    def __enter__(self) -> Lander:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self.kill()
        for jvm in self._jvms:  # it ends by itself, when the driver has gone
            wait_for(lambda jvm=jvm: not is_alive(jvm), f"the end of Java {jvm}")

    @property
    def pid(self) -> int:
        return self._process.pid

    def land(self) -> None:
        """Begin: `event` tells what happens."""
        self._stdin.write(b"land\n")
        self._stdin.flush()

    def event(self) -> dict[str, Any] | None:
        """The next thing it tells; None at its end."""
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" not in self._read:
            ready, _, _ = select.select([self._stdout], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"the landing has said nothing for {PATIENCE_S} s: {self._stacks()}"
            piece = os.read(self._stdout.fileno(), 1 << 16)
            if not piece:
                return None
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        told = msgspec.json.decode(line, type=dict[str, Any])
        if told["what"] in ("ready", "batch"):
            self._jvms.update(self.jvms())
        return told

    def until(self, what: str, times: int = 1) -> list[dict[str, Any]]:
        """All that is told, up to the n-th of this kind, or to the end of the round, ``done``, which waits for the next
        `land`. Raises AssertionError when the process ends before.
        """
        told: list[dict[str, Any]] = []
        while sum(each["what"] == what for each in told) < times and not (told and told[-1]["what"] == "done"):
            event = self.event()
            assert event is not None, f"the landing ended after {told}: {self._complained()}"
            told.append(event)
        return told

    def _complained(self, most: int = 2_000) -> str:
        self._complaints.seek(0)
        return self._complaints.read()[-most:].decode(errors="replace")

    def _stacks(self) -> str:
        """What each thread of the driver does, so that one that waits for ever differs from a slow one."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(2)  # the process writes them when its threads come to it
        return self._complained(16_000)

    def finish(self) -> list[dict[str, Any]]:
        """Land until nothing is left; what it told. Raises AssertionError when a table failed."""
        self.land()
        told = self.until("done")
        failed = [each for each in told if each["what"] == "failed"]
        assert not failed, failed
        assert all(each["lag"] == 0 for each in told if each["what"] == "landed")
        return told

    def kill(self) -> None:
        """The driver, by SIGKILL. What it told is lost."""
        self._process.kill()
        self._process.wait()
        self._stdin.close()
        self._stdout.close()
        self._complaints.close()

    def jvms(self) -> list[int]:
        return [pid for pid in children(self.pid) if "java" in program(pid)]

    def workers(self) -> list[int]:
        """Python processes that Spark's daemons have forked."""
        daemons = [pid for jvm in self.jvms() for pid in children(jvm) if "python" in program(pid)]
        return [pid for daemon in daemons for pid in children(daemon)]


def children(pid: int) -> list[int]:
    try:
        tasks = [*Path(f"/proc/{pid}/task").iterdir()]
        return [int(each) for task in tasks for each in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(pid: int) -> bool:
    """Kill one that may have gone by now; whether it was there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], object], what: str, seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(0.01)  # another process is waited for: there is nothing here to be woken by
