"""`eventbus serve` killed under clients of four kinds: they go on, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.clients import modules
from tests.clients.jars import NotAvailableError
from tests.warm import commands as warm

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).with_name("kill_server.py")
PYTHON_KINDS = ("confluent", "kafka-python", "aiokafka")


def kill(directory: Path, kills: int, seed: int, *kinds: str) -> None:
    done = subprocess.run(
        [warm.python(), str(SCRIPT), str(directory / "log"), str(kills), str(seed), *kinds],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.startswith(f"{kills} kills, ")


def kafkajs() -> str:
    """The kind, where its packages are installed."""
    try:
        modules.installed()
    except NotAvailableError as missing:
        if os.environ.get("EVENTBUS_TEST_CLIENTS") == "require":
            raise
        pytest.skip(str(missing))
    return "kafkajs"


@pytest.mark.timeout(300)
def test_kills_under_python_clients(tmp_path: Path) -> None:
    kill(tmp_path, 2, 1, *PYTHON_KINDS)


@pytest.mark.slow  # the server that is killed under three other kinds is the same
@pytest.mark.timeout(300)
def test_kills_under_kafkajs(tmp_path: Path) -> None:
    kill(tmp_path, 1, 2, kafkajs())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_60_kills_under_four_kinds_of_client(tmp_path: Path) -> None:
    kill(tmp_path, 60, 3, *PYTHON_KINDS, kafkajs())
