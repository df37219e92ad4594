"""Accepting connections while the process has no file descriptor for them."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

import pytest

from eventbus.server import acceptor
from eventbus.server.acceptor import Acceptor, bind


class Listening(socket.socket):
    """A listening socket that fails so many times to accept."""

    failures = 50

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


async def test_without_descriptors_there_is_one_warning_and_peers_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(acceptor, "_PAUSE_SECONDS", 0)
    greeted = asyncio.Event()

    async def greet(sock: socket.socket, address: object) -> None:
        sock.close()
        greeted.set()

    [bound] = await bind("127.0.0.1", 0, 5)
    listening = Listening(fileno=bound.detach())
    listening.setblocking(False)
    server = Acceptor([listening], greet, "PLAINTEXT")
    with socket.create_connection(listening.getsockname()):
        await greeted.wait()
    server.close()
    assert listening.failures == 0
    [warning] = caplog.messages
    assert warning.startswith("PLAINTEXT accepts no connections now: Too many open files.")
