"""A worker notices that its supervisor has died, however the connection between them ends."""

from __future__ import annotations

import socket
import threading

import pytest

from eventbus.cli.running.control_channel import WorkerChannel


class WatchedWorker(WorkerChannel):
    def __init__(self, line: socket.socket) -> None:
        self.is_orphaned = threading.Event()
        super().__init__(line)

    def _stop_orphan(self) -> None:
        self.is_orphaned.set()


@pytest.mark.parametrize("ending", ["closed", "in the middle of a message", "with a message unread"])
def test_a_worker_whose_supervisor_dies_ends(ending: str) -> None:
    supervisor, line = socket.socketpair()
    with line:
        worker = WatchedWorker(line)
        if ending == "in the middle of a message":
            supervisor.sendall(b'{"type":"A')
        elif ending == "with a message unread":
            line.sendall(b"unread\n")
        supervisor.close()
        assert worker.is_orphaned.wait(10)
