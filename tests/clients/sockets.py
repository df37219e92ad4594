"""A blocking connection to a broker that says exactly what a test wants said, in our own codec."""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any

from eventbus.protocol import API_KEYS, decode, messages, request_header, response_header, writer

PATIENCE_SECONDS = 30
_APIS = {schema.name: schema for schema in API_KEYS.values()}


class Socket:
    """``with Socket("127.0.0.1:9092") as broker: broker.call(m.MetadataRequest(topics=None))``."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self._number = 0

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()

    def call(self, request: Any, version: int | None = None) -> Any:
        """The answer, in the highest version there is a schema of, or in ``version``."""
        name = type(request).__name__.removesuffix("Request")
        schema = _APIS[name]
        version = schema.max_version if version is None else version
        self._number += 1
        frame = request_header(schema.key, version, self._number, "test")
        frame += b"".join(bytes(part) for part in writer(name + "Request", version)(request))
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)
        answer = self._receive(int.from_bytes(self._receive(4), "big"))
        header = response_header(schema.key, version, self._number)
        return decode(getattr(messages, name + "Response"), version, answer[len(header) :])

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            part = self._socket.recv(size - len(received))
            if not part:
                raise EOFError("the broker closed the connection")
            received += part
        return bytes(received)
