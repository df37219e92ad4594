"""Stands between a program and its database, and counts how often the program waits for an answer."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType


class Proxy:
    """One port of 127.0.0.1 that leads to a server. A *round trip*: the client speaks after the server did."""

    def __init__(self, host: str, port: int) -> None:
        self.trips = 0
        self._target = host, port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for each in (self._listener, *self._sockets):
            with suppress(OSError):  # it is closed
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for each in (client, server):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [client, server]
                spoke = _Spoke()
                threading.Thread(target=self._pump, args=(client, server, spoke, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(server, client, spoke, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, spoke: _Spoke, is_client: bool) -> None:
        with suppress(OSError):  # one of them is closed
            while data := source.recv(262_144):
                if is_client and not spoke.was_client:
                    self.trips += 1
                spoke.was_client = is_client
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class _Spoke:
    """Who was the last to say something."""

    was_client = False
