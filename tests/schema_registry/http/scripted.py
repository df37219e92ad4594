"""An HTTP server that answers what a test tells it to, on threads: what a client does when things go wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec


class Asked(msgspec.Struct, frozen=True):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


Script = Callable[[Asked], "tuple[int, Any]"]
"""Status, and what is answered: bytes as they are, a list of bytes piece by piece, else as JSON."""


class Scripted:
    def __init__(self, script: Script) -> None:
        self.asked: list[Asked] = []
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = Asked(self.command, self.path, dict(self.headers), body)
                scripted.asked.append(asked)
                status, said = script(asked)
                pieces = (
                    said if isinstance(said, list) else [said if isinstance(said, bytes) else msgspec.json.encode(said)]
                )
                self.send_response(status)
                self.send_header("Content-Length", str(sum(map(len, pieces))))
                if status == 302:
                    self.send_header("Location", "http://127.0.0.1:1/elsewhere")
                self.end_headers()
                for piece in pieces:
                    with suppress(ConnectionError):
                        self.wfile.write(piece)

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # a client that hangs up is part of the tests

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator[Scripted]:
        thread = threading.Thread(target=lambda: self._server.serve_forever(0.01), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@contextmanager
def scripted(script: Script) -> Iterator[Scripted]:
    with Scripted(script).serving() as server:
        yield server
