"""``eventbus run --workers`` and ``--reload``, with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

pytestmark = pytest.mark.system

Spawn = Callable[..., "subprocess.Popen[bytes]"]

SERVICE = """
import os
from eventbus import ConsumerRecord, EventBus

bus = EventBus("file://./data")
bus.topic("orders", partitions=4)

@bus.on_startup
def started():
    print("pid", os.getpid(), os.environ.get("EVENTBUS_WORKER"), flush=True)

@bus.consumer("orders", group="service")
async def show(value: str, record: ConsumerRecord):
    print("handled", value, "by", os.getpid(), flush=True)
"""


def line(process: subprocess.Popen[bytes], begins: str) -> str:
    """The next line of stdout that begins so."""
    assert process.stdout is not None
    for text in process.stdout:
        if text.decode().startswith(begins):
            return text.decode().strip()
    raise AssertionError(f"it ended, and no line began with {begins!r}")


def note(process: subprocess.Popen[bytes], holds: str) -> str:
    assert process.stderr is not None
    for text in process.stderr:
        if holds in text.decode():
            return text.decode().strip()
    raise AssertionError(f"it ended, and has not said {holds!r}")


def test_workers_share_a_directory_and_one_that_dies_is_started_again(tmp_path: Path, spawn: Spawn, cli: Cli) -> None:
    pytest.importorskip("confluent_kafka", reason="needs confluent_kafka, which is no base dependency")
    (tmp_path / "app.py").write_text(SERVICE)
    cli("topics", "create", "orders", "--partitions", "4")
    cli("produce", "orders", stdin=b"".join(b"%d\n" % number for number in range(20)))
    process = spawn("run", "app:bus", "--workers", "2")
    lines: list[list[str]] = []
    while sum(one[0] == "handled" for one in lines) < 20 or sum(one[0] == "pid" for one in lines) < 2:
        lines.append(line(process, "").split())
    pids = {one[1]: one[2] for one in lines if one[0] == "pid"}
    handled = [one for one in lines if one[0] == "handled"]
    assert sorted(pids.values()) == ["0", "1"]
    assert {one[1] for one in handled} == {str(number) for number in range(20)}
    assert {one[-1] for one in handled} <= pids.keys()
    time.sleep(1)  # ten commit intervals: killed before its first commit, a worker would have committed nothing
    os.kill(int(min(pids)), signal.SIGKILL)
    assert re.match(r"worker \d has ended \(SIGKILL\); it is started again in 0.5 s", note(process, "has ended"))
    assert line(process, "pid").split()[2] == pids[min(pids)]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 0
    [*rows] = cli("offsets", "orders", "--group", "service", "--json").json
    assert sum(row["committed"] or 0 for row in rows) == 20


def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path, spawn: Spawn) -> None:
    """Its end of the line closes, whatever has killed it: the pipes below close once nobody is left."""
    pytest.importorskip("confluent_kafka", reason="needs confluent_kafka, which is no base dependency")
    (tmp_path / "app.py").write_text(SERVICE)
    process = spawn("run", "app:bus", "--workers", "2")
    note(process, "running app:bus")
    note(process, "running app:bus")
    process.kill()
    process.communicate(timeout=60)  # their ends of the pipes, too, are closed: nobody is left


@pytest.mark.parametrize(
    ("source", "code", "told"),
    [
        (SERVICE.replace("file://./data", "memory://"), 2, "each worker would have a memory:// of its own"),
        ("import nothing_of_this_name", 1, "No module named 'nothing_of_this_name'"),
    ],
)
def test_what_workers_cannot_run_is_told_once(tmp_path: Path, spawn: Spawn, source: str, code: int, told: str) -> None:
    (tmp_path / "app.py").write_text(source)
    process = spawn("run", "app:bus", "--workers", "3")
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.decode().count(told)) == (code, 1), err


def test_new_code_is_run_and_broken_code_is_waited_out(tmp_path: Path, spawn: Spawn) -> None:
    pytest.importorskip("watchfiles", reason="needs watchfiles, which is no base dependency")
    file = tmp_path / "app.py"

    def write(version: int) -> None:
        file.write_text(SERVICE.replace('"pid"', f'"version {version}"'))

    write(1)
    process = spawn("run", "app:bus", "--reload")
    line(process, "version 1")
    note(process, "running app:bus")
    write(2)
    assert note(process, "changed: ") == "changed: app.py; starting again"
    line(process, "version 2")
    note(process, "runs again")
    file.write_text("def f(:\n")
    note(process, "SyntaxError: invalid syntax")
    note(process, "waiting for a change of its files")
    write(3)
    line(process, "version 3")
    note(process, "running app:bus")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
