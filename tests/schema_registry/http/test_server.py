"""The registry's own server, against raw sockets."""

from __future__ import annotations

import asyncio
import logging
import signal
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import msgspec
import pytest

from eventbus.errors import ConfigError
from schema_registry.http import HttpServer, create_app
from schema_registry.http.wire import Receive, Scope, Send, read_body
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


class Echo:
    """An app that returns the size of the body. ``GET /wait`` is answered when it is released."""

    asks_who = False

    def __init__(self) -> None:
        self.released = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wait":
            self.waiting.set()
            await self.released.wait()
        size = b"%d" % len(await read_body(receive, 200_000))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(size))]})
        await send({"type": "http.response.body", "body": size})


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self, *, is_head: bool = False) -> tuple[int, dict[bytes, bytes], bytes]:
        """Read the next response: status, headers and body."""
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        headers = dict(line.split(b": ", 1) for line in lines if line)
        length = 0 if is_head else int(headers.get(b"content-length", b"0"))
        return int(status.split(b" ")[1]), headers, await self.reader.readexactly(length)

    async def has_ended(self) -> bool:
        try:
            return not await asyncio.wait_for(self.reader.read(1), 10)
        except ConnectionError:
            return True


Connect = Callable[[], Awaitable[Peer]]


@asynccontextmanager
async def serving(app: Any = None, **options: Any) -> AsyncGenerator[tuple[HttpServer, Connect]]:
    peers: list[Peer] = []
    async with HttpServer(app or Echo(), port=0, **options) as server:

        async def connect() -> Peer:
            peers.append(Peer(*await asyncio.open_connection("127.0.0.1", server.port)))
            return peers[-1]

        yield server, connect
        for peer in peers:
            peer.writer.transport.abort()


async def test_requests_on_one_connection() -> None:
    async with serving() as (_, connect):
        peer = await connect()
        for _ in range(3):
            await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            status, headers, body = await peer.response()
            assert (status, body) == (200, b"5")
            assert b"date" in headers and b"server" not in headers
        await peer.send(GET * 5)
        assert [(await peer.response())[0] for _ in range(5)] == [200] * 5
        await peer.send(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await peer.response())[0] == 200
        assert await peer.has_ended()


async def test_a_head_request_gets_the_length_and_no_body() -> None:
    async with opened() as registry, serving(create_app(registry)) as (_, connect):
        peer = await connect()
        for _ in range(2):
            await peer.send(b"HEAD /subjects HTTP/1.1\r\nHost: x\r\n\r\n")
            status, headers, _ = await peer.response(is_head=True)
            assert (status, headers[b"content-length"]) == (200, b"2")


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_the_rest_of_a_body_that_is_too_long_is_not_read(is_chunked: bool) -> None:
    async with opened() as registry, serving(create_app(registry, max_body_bytes=1_000)) as (_, connect):
        peer = await connect()
        await peer.send(b"POST /subjects/s HTTP/1.1\r\nHost: x\r\n")
        if is_chunked:
            await peer.send(b"Transfer-Encoding: chunked\r\n\r\n" + b"3e9\r\n" + b"x" * 1_001 + b"\r\n")
        else:
            await peer.send(b"Content-Length: 900000000\r\n\r\n" + b"x" * 1_001)
        status, headers, body = await peer.response()
        assert (status, headers[b"connection"], msgspec.json.decode(body)["error_code"]) == (413, b"close", 413)
        assert await peer.has_ended()


async def test_a_connection_without_requests_is_closed() -> None:
    async with serving(timeout_keep_alive=0) as (_, connect):
        peer = await connect()
        await peer.send(GET)
        assert (await peer.response())[0] == 200
        assert await peer.has_ended()


async def test_a_connection_too_many_is_refused() -> None:
    async with serving(limit_concurrency=2) as (_, connect):
        first, second = await connect(), await connect()
        await first.send(GET)
        await second.send(GET)
        answers = [(await peer.response())[0] for peer in (first, second)]
        assert 503 in answers


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x00\xa5\x01", b"hello\r\n\r\n", b"\x00" * 64, b"GET  HTTP/9\r\n\r\n"]
)
async def test_other_protocols_are_refused_and_not_logged(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as (_, connect):
        peer = await connect()
        await peer.send(garbage)
        assert (await peer.response())[0] == 400
        assert await peer.has_ended()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []


async def test_it_stops_while_a_request_is_answered() -> None:
    app = Echo()
    async with serving(app) as (server, connect):
        idle, busy = await connect(), await connect()
        await idle.send(GET)
        assert (await idle.response())[0] == 200
        await busy.send(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await app.waiting.wait()
        closing = asyncio.ensure_future(server.aclose())
        assert await idle.has_ended()
        app.released.set()
        assert (await busy.response())[0] == 200
        assert await busy.has_ended()
        await closing
        with pytest.raises(ConnectionError):
            await connect()


async def test_a_cancelled_program_closes_the_port() -> None:
    server = HttpServer(Echo(), port=0)
    with anyio.CancelScope() as scope:  # it also cancels what is awaited on the way out
        async with server:
            peer = Peer(*await asyncio.open_connection("127.0.0.1", server.port))
            await peer.send(GET)
            assert (await peer.response())[0] == 200
            peer.writer.close()
            scope.cancel()
            await anyio.sleep_forever()
    with anyio.fail_after(10), pytest.raises(ConnectionError):
        while True:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.close()
            await asyncio.sleep(0.05)


async def test_signals_belong_to_the_program() -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with serving() as (_, connect):
        peer = await connect()
        await peer.send(GET)
        assert (await peer.response())[0] == 200
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@pytest.mark.parametrize(
    ("host", "tls", "asks", "insecure", "missing"),
    [
        ("127.0.0.1", False, False, False, None),
        ("::1", False, False, False, None),
        ("localhost", False, False, False, None),
        ("0.0.0.0", False, False, False, "TLS and users"),
        ("", False, True, False, "TLS"),
        ("10.0.0.1", True, False, False, "users"),
        ("registry.example.org", True, True, False, None),
        ("0.0.0.0", False, False, True, None),
    ],
)
def test_other_machines_are_let_in_by_intention(
    host: str, tls: bool, asks: bool, insecure: bool, missing: str | None
) -> None:
    app = Echo.__new__(Echo)
    app.asks_who = asks
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None

    def make() -> HttpServer:
        return HttpServer(app, host=host, tls=context, insecure=insecure)

    if missing is None:
        make()
        return
    with pytest.raises(ConfigError, match=f"without {missing}: .*--insecure"):
        make()


async def test_a_port_in_use_is_reported() -> None:
    async with serving() as (server, _):
        with pytest.raises(ConfigError, match=r"port \d+ .* is in use.*stop it, or choose another"):
            await HttpServer(Echo(), port=server.port).start()
