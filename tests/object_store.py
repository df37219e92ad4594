"""A server of the S3 protocol (moto's), which a test lets fail between any two requests.

It is a separate process, because some calls of deltalake keep the interpreter's lock while they wait for an answer.
"""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

Answer = Callable[..., Any]
CONTROL = "/_faults"
DROPPED = "dropped"
"""The status of a request whose connection breaks before the answer."""
SILENT = "silent"
"""The status of a request that is never answered, until the client's timeout."""


class Fault(NamedTuple):
    """A wrong answer to a request. ``applied``: the request has its effect nevertheless."""

    status: str
    applied: bool


class Faults(NamedTuple):
    """The requests that fail, by their number, and how.

    - ``stopped_at``: the client ends at this request: neither it nor a later one is answered. For the store this is a
      kill. No client repeats a request after this answer, so the test goes on in one process.
    - ``share``: so many of all requests are refused or not answered, with their effect or without it.
    - ``silent_at``: this request is not answered.
    """

    stopped_at: int | None = None
    applied: bool = False
    share: float = 0
    seed: int = 0
    silent_at: int | None = None

    def chosen(self) -> Callable[[int], Fault | None]:
        choose = random.Random(self.seed)

        def fault(number: int) -> Fault | None:
            if self.stopped_at is not None and number >= self.stopped_at:
                return Fault("403 Forbidden", self.applied and number == self.stopped_at)
            if number == self.silent_at:
                return Fault(SILENT, self.applied)
            if choose.random() >= self.share:
                return None
            status = choose.choice(["429 Too Many Requests", "500 Internal Server Error", "503 Slow Down", DROPPED])
            return Fault(status, applied=status[0] != "4" and choose.random() < 0.5)

        return fault


class ObjectStore:
    """The server, for tests."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.object_store"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        self.bucket = ""

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def make_bucket(self, name: str) -> None:
        self.bucket = name
        self._request(f"/{name}", b"")

    def options(self) -> dict[str, str]:
        """The options of a client."""
        keys = {"access_key_id": "key", "secret_access_key": "secret"}
        return {"endpoint": self.endpoint, "region": "us-east-1", "allow_http": "true", **keys}

    def url(self, path: str, **options: str) -> str:
        """The URL of a path in the bucket."""
        query = "&".join(f"{name}={value}" for name, value in {**self.options(), **options}.items())
        return f"s3://{self.bucket}/{path}?{query}"

    @contextmanager
    def failing(self, faults: Faults) -> Iterator[None]:
        """Count requests from 0, and let some fail."""
        self._request(CONTROL, json.dumps(faults).encode())
        try:
            yield
        finally:
            self.requests: list[str] = json.loads(self._request(CONTROL, json.dumps(Faults()).encode()))

    def _request(self, path: str, body: bytes) -> bytes:
        request = urllib.request.Request(f"{self.endpoint}{path}", body, method="PUT")
        with urllib.request.urlopen(request) as answer:
            return answer.read()


class _Gate:
    """The WSGI application in front of moto's."""

    def __init__(self, app: Answer) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._requests: list[str] = []
        self._fault = Faults().chosen()

    def __call__(self, environ: dict[str, Any], start: Answer) -> Iterable[bytes]:
        body = int(environ.get("CONTENT_LENGTH") or 0)
        if environ["PATH_INFO"] == CONTROL:
            with self._lock:
                self._fault = Faults(*json.loads(environ["wsgi.input"].read(body))).chosen()
                answer, self._requests = json.dumps(self._requests).encode(), []
            start("200 OK", [("Content-Length", str(len(answer)))])
            return [answer]
        with self._lock:
            fault = self._fault(len(self._requests))
            self._requests.append(f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}?{environ['QUERY_STRING']}")
        if fault is None:
            return self._app(environ, start)
        if fault.applied:
            b"".join(self._app(environ, lambda *_: None))
        else:  # what the client sends is read, or it would not look at the answer
            environ["wsgi.input"].read(body)
        if fault.status == DROPPED:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        if fault.status in (DROPPED, SILENT):
            raise ConnectionResetError
        start(fault.status, [("Content-Length", "0")])
        return [b""]


def _serve() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: Any) -> None:
            pass

    gate = _Gate(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, gate, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()
    os._exit(0)  # the test has ended; connections may be open


if __name__ == "__main__":
    _serve()
