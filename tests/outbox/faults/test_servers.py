"""The servers that tests share: one for all processes of a run, and gone with the last of them, however it ends."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.database_servers import ROOT, shared
from tests.databases import Databases
from tests.support import until

pytestmark = pytest.mark.slow

USER = """
import sys
from pathlib import Path
from tests.database_servers import shared
with shared(sys.argv[1], Path(sys.argv[2])) as address:
    print(address, flush=True)
    sys.stdin.read()
"""


def answers(address: str) -> bool:
    host, _, port = address.rpartition("@")[2].partition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize(("name", "kind"), [("PostgreSQL", "psycopg"), ("MariaDB", "mariadb")])
async def test_the_last_one_to_leave_ends_it(name: str, kind: str, databases: Databases, tmp_path: Path) -> None:
    databases.check(kind)
    command = [sys.executable, "-c", USER, name, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        address = user.stdout.readline().strip()
        with shared(name, tmp_path) as mine:
            assert mine == address
            user.send_signal(signal.SIGKILL)
            user.wait()
            with shared(name, tmp_path) as again:
                assert again == address
            assert answers(address)
    await until(lambda: not answers(address), poll_seconds=0.01)
    with shared(name, tmp_path) as anew:
        assert answers(anew)
    await until(lambda: not answers(anew), poll_seconds=0.01)
