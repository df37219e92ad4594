"""A proxy like a PgBouncer that pools transactions: a listener gets no notifications, which go to other connections."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_NOTIFICATION = b"A"


class Pooler:
    """Forwards messages of client and server, except notifications. ``with Pooler(host, port) as port:``."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listening]

    def __enter__(self) -> int:
        threading.Thread(target=self._accept, daemon=True).start()
        return self._listening.getsockname()[1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in self._open:
            with _quiet():
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with _quiet():
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._open += [client, server]
                threading.Thread(target=_pass_all, args=(client, server), daemon=True).start()
                threading.Thread(target=_pass_messages, args=(server, client), daemon=True).start()


def _quiet() -> suppress:
    """Suppress the errors of a socket that was closed."""
    return suppress(OSError, EOFError)


def _pass_all(source: socket.socket, target: socket.socket) -> None:
    with _quiet():
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def _pass_messages(source: socket.socket, target: socket.socket) -> None:
    """Forward messages. A message is its type, then its length including the four bytes of the length."""
    with _quiet():
        _pass_on(source, target)
    with _quiet():
        target.shutdown(socket.SHUT_RDWR)


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Forward messages until EOFError."""
    while True:
        head = _exactly(source, 5)
        body = _exactly(source, int.from_bytes(head[1:]) - 4)
        if head[:1] != _NOTIFICATION:
            target.sendall(head + body)


def _exactly(source: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = source.recv(count - len(data))
        if not more:
            raise EOFError
        data += more
    return data
