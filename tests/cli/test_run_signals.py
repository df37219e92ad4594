"""``eventbus run`` and signals: before there is a bus, while it starts, twice, and when the time to drain is over."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.system

Spawn = Callable[..., "subprocess.Popen[bytes]"]

IMPORTING = """
import sys, threading
print("importing", file=sys.stderr, flush=True)
try:
    threading.Event().wait()
except Exception:  # a module that swallows what it can: a signal must get through all the same
    pass
"""
STARTING = """
import sys, anyio
from eventbus import EventBus
bus = EventBus("memory://")

@bus.on_startup
async def starting():
    print("starting", file=sys.stderr, flush=True)
    await anyio.sleep_forever()
"""
WORKING = """
import sys, anyio
from eventbus import EventBus
bus = EventBus("memory://")
bus.topic("t")

@bus.on_startup
async def send():
    await bus.send("t", "x")

@bus.consumer("t")
async def slow(value: str):
    print("at work", file=sys.stderr, flush=True)
    await anyio.sleep_forever()
"""


def until(process: subprocess.Popen[bytes], said: bytes) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        if said in line:
            return
    raise AssertionError(f"it ended, and has not said {said!r}")


@pytest.mark.parametrize(
    ("service", "said", "number"),
    [(IMPORTING, b"importing", signal.SIGTERM), (STARTING, b"starting", signal.SIGTERM),
     (STARTING, b"starting", signal.SIGINT)],
    ids=["import", "start", "start, Ctrl-C"],
)  # fmt: skip
def test_a_signal_before_the_bus_has_started_is_a_clean_stop(
    tmp_path: Path, spawn: Spawn, service: str, said: bytes, number: signal.Signals
) -> None:
    (tmp_path / "app.py").write_text(service)
    process = spawn("run", "app:bus")
    until(process, said)
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, f"{number.name}: stopped before the bus had started\n".encode())


def test_work_that_outlasts_the_drain_timeout_has_a_code_of_its_own(tmp_path: Path, spawn: Spawn) -> None:
    """And until all is over, the probes are answered."""
    pytest.importorskip("uvicorn", reason="needs uvicorn, which is no base dependency")
    (tmp_path / "app.py").write_text(WORKING)
    process = spawn("run", "app:bus", "--drain-timeout", "0.2", "--health-port", "0", "--log-format", "json")
    assert process.stderr is not None
    told = json.loads(process.stderr.readline())
    url = told["message"].removeprefix("health and metrics: ").partition("/health")[0]
    with urlopen(f"{url}/health/live", timeout=20) as answer:
        assert answer.status == 200
    until(process, b"at work")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    messages = [json.loads(line)["message"] for line in err.splitlines()]
    assert process.returncode == 75
    assert any("has not finished t-0 offset 0 in time: cancelled, not committed" in message for message in messages)
    assert "not finished within 0.2 s: they are handled again" in messages[-1]


def test_a_second_ctrl_c_ends_at_once(tmp_path: Path, spawn: Spawn) -> None:
    (tmp_path / "app.py").write_text(WORKING)
    process = spawn("run", "app:bus")
    until(process, b"at work")
    process.send_signal(signal.SIGINT)
    until(process, b"SIGINT: stopping")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 128 + signal.SIGINT
    assert b"SIGINT came twice: the bus was stopped at once" in err


IN_A_TRANSACTION = """
import sys, anyio
from eventbus import EventBus
bus = EventBus("kafka://127.0.0.1:{port}", drain_timeout_ms=500)
bus.topic("t")

@bus.on_startup
async def begin():
    async def work():
        async with bus.transaction("mine") as transaction:
            await transaction.send("t", b"1")
            print("in a transaction", file=sys.stderr, flush=True)
            await anyio.sleep_forever()
    bus.context.start_soon(work)
"""


def test_with_its_broker_dead_in_a_transaction_it_ends_though_that_cannot(tmp_path: Path, spawn: Spawn) -> None:
    """The transaction's end shields itself from being cancelled, and asks for minutes: closing gives it up."""
    pytest.importorskip("confluent_kafka", reason="needs confluent-kafka, which is no base dependency")
    broker = spawn("serve", "data", "--port", "0")
    assert broker.stdout is not None
    said = broker.stdout.readline().decode()
    port = said.partition("127.0.0.1:")[2].split()[0]
    (tmp_path / "app.py").write_text(IN_A_TRANSACTION.replace("{port}", port))
    process = spawn("run", "app:bus")
    until(process, b"in a transaction")
    broker.kill()
    broker.wait()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=50)  # max_block_ms, 60 s, several times over, is what it took
    assert process.returncode == 0
    assert b"its transaction is not ended" in err
