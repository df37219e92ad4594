"""A client of a few lines that says exactly what a test wants said, in our own codec (which tests/protocol checks)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import TracebackType
from typing import Any

from eventbus.protocol import API_KEYS, decode, messages, request_header, response_header, writer
from eventbus.server import Server

PATIENCE_SECONDS = 20


def key_of(name: str) -> int:
    return next(key for key, api in API_KEYS.items() if api.name == name)


class WireClient:
    """``async with WireClient(server) as client: await client.call(m.HeartbeatRequest(...), version=4)``."""

    def __init__(self, server: Server, *, client_id: str | None = "wire", listener: int = 0, **options: Any) -> None:
        self._server = server
        self._client_id = client_id
        self._listener = listener
        self._options = options
        self._numbers = itertools.count(1)

    async def __aenter__(self) -> WireClient:
        listener = self._server.listeners[self._listener]
        host = "127.0.0.1" if listener.host in ("", "0.0.0.0") else listener.host
        self.reader, self.writer = await asyncio.open_connection(host, listener.port, **self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    def send(self, request: Any, version: int) -> tuple[str, int, int]:
        """Send a request, without waiting; what to give to `receive`."""
        name = type(request).__name__.removesuffix("Request")
        number = next(self._numbers)
        body = b"".join(writer(name + "Request", version)(request))
        self.send_raw(request_header(key_of(name), version, number, self._client_id) + body)
        return name, version, number

    def send_raw(self, frame: bytes) -> None:
        self.writer.write(len(frame).to_bytes(4, "big") + frame)

    async def receive(self, sent: tuple[str, int, int]) -> Any:
        """The answer to what was sent; answers come in the order of the requests."""
        name, version, number = sent
        frame = await self.receive_raw()
        header = response_header(key_of(name), version, number)
        assert frame.startswith(header), f"{name} v{version}: header {frame[:8]!r}, not {header!r}"
        return decode(getattr(messages, name + "Response"), version, frame[len(header) :])

    async def receive_raw(self) -> bytes:
        async with asyncio.timeout(PATIENCE_SECONDS):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)

    async def call(self, request: Any, version: int) -> Any:
        return await self.receive(self.send(request, version))

    async def is_closed(self) -> bool:
        """Wait until the server has ended the connection."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await self.reader.read(1) == b""
