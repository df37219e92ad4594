"""Deadlines and limits of our own server, against raw sockets. Time is told to it, not waited for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

import anyio.lowlevel
import pytest

from eventbus.errors import ConfigError
from schema_registry.http import HttpServer, Limits
from schema_registry.http.guard import GuardedConnection
from schema_registry.http.wire import Receive, Scope, Send, read_body

pytestmark = pytest.mark.system

LIMITS = Limits(connections=8, connections_per_address=4, body_bytes=200_000)


class Echo:
    """An app that reads a body and says how long it is. ``GET /wait`` answers when it is let."""

    limits = LIMITS
    gate = None
    asks_who = False

    def __init__(self) -> None:
        self.let = asyncio.Event()
        self.waiting = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/wait":
            self.waiting.set()
            await self.let.wait()
        size = b"x" * 40_000_000 if scope["path"] == "/huge" else b"%d" % len(await read_body(receive, 200_000))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(size))]})
        await send({"type": "http.response.body", "body": size})

    def repeated(self, request: bytes) -> bytes | None:
        return None


class Peer:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def line(self) -> bytes:
        """The next status line's code, its answer read and dropped; b"" when the connection has ended."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")), 0
        )
        await self.reader.readexactly(length)
        return head.split(b" ")[1]

    async def has_ended(self) -> bool:
        try:
            return not await asyncio.wait_for(self.reader.read(1), 10)
        except ConnectionError:
            return True


@asynccontextmanager
async def serving(app: Echo | None = None) -> AsyncGenerator[tuple[HttpServer, Callable[[], asyncio.Future[Peer]]]]:
    peers: list[Peer] = []
    async with HttpServer(app or Echo(), port=0) as server:

        async def connect() -> Peer:
            peer = Peer(*await asyncio.open_connection("127.0.0.1", server.port))
            peers.append(peer)
            return peer

        yield server, lambda: asyncio.ensure_future(connect())
        for peer in peers:
            peer.writer.transport.abort()
            with suppress(ConnectionError):
                await peer.writer.wait_closed()


async def seen(server: HttpServer, condition: Callable[[], bool]) -> None:
    """Until the server's side has taken what was sent."""
    while not condition():  # what the loop does next is what is waited for: there is no event of it
        await anyio.lowlevel.checkpoint()


def later(server: HttpServer, seconds: float) -> None:
    server.gate.look(asyncio.get_running_loop().time() + seconds)


async def test_requests_one_after_the_other_on_one_connection() -> None:
    async with serving() as (_, connect):
        peer = await connect()
        for _ in range(3):
            await peer.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
            assert await peer.line() == b"200"


async def test_requests_sent_together_are_answered_in_turn() -> None:
    async with serving() as (_, connect):
        peer = await connect()
        await peer.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 5)
        assert [await peer.line() for _ in range(5)] == [b"200"] * 5


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\nAccept: a"])
async def test_a_header_that_does_not_come(begun: bytes) -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(begun)
        await seen(server, lambda: len(server.gate.connections) == 1)
        later(server, LIMITS.header_s - 1)
        assert len(server.gate.connections) == 1
        later(server, LIMITS.header_s + 1)
        assert await peer.line() == b"408"
        assert await peer.has_ended()
        assert server.gate.refused == {"header": 1}


async def test_the_server_looks_by_itself() -> None:
    app = Echo()
    app.limits = Limits(header_s=0.001)
    async with serving(app) as (server, connect):
        peer = await connect()
        await peer.say(b"GET / HT")
        assert await peer.line() == b"408"
        assert server.gate.refused == {"header": 1}


async def test_a_header_that_trickles_has_no_more_time() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        (connection,) = await connections(server)
        connection.data_received(b"GET / HTTP/1.1\r\n")
        for number in range(9):
            connection.data_received(b"X-%d: y\r\n" % number)
        later(server, LIMITS.header_s + 1)
        assert await peer.line() == b"408"


async def test_the_second_request_of_a_connection_has_its_own_deadline() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await peer.line() == b"200"
        later(server, LIMITS.header_s + 1)
        await peer.say(b"GET / HTTP/1.1\r\nHo")
        (connection,) = server.gate.connections
        await seen(server, lambda: connection.overdue(connection.loop.time() + LIMITS.header_s + 1) == "header")
        later(server, LIMITS.header_s + 1)
        assert await peer.line() == b"408"


async def test_a_body_that_does_not_come() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\n" + b"x" * 60_000)
        (connection,) = await connections(server)
        await seen(server, lambda: connection.overdue(connection.loop.time() + LIMITS.body_s + 1) == "body")
        assert connection.overdue(connection.loop.time() + LIMITS.body_s - 1) is None
        later(server, LIMITS.body_s + 1)
        assert await peer.line() == b"408"
        assert await peer.has_ended()


async def test_a_body_that_comes_too_slowly() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 90000\r\n\r\nhello")
        (connection,) = await connections(server)
        await seen(server, lambda: connection.overdue(connection.loop.time() + LIMITS.slow_s + 1) == "body")
        assert connection.overdue(connection.loop.time() + LIMITS.slow_s - 1) is None
        later(server, LIMITS.slow_s + 1)
        assert await peer.line() == b"408"


async def connections(server: HttpServer) -> list[GuardedConnection]:
    await seen(server, lambda: bool(server.gate.connections))
    return list(server.gate.connections)


async def test_an_answer_that_takes_long_is_waited_for() -> None:
    app = Echo()
    async with serving(app) as (server, connect):
        peer = await connect()
        await peer.say(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await app.waiting.wait()
        later(server, 3600)
        app.let.set()
        assert await peer.line() == b"200"


async def test_a_peer_that_does_not_read() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"GET /huge HTTP/1.1\r\nHost: x\r\n\r\n")
        (connection,) = await connections(server)
        await seen(server, lambda: connection.transport.get_write_buffer_size() > 0)
        now = connection.loop.time()
        server.gate.look(now)
        server.gate.look(now + LIMITS.answer_s - 1)
        assert server.gate.connections
        server.gate.look(now + LIMITS.answer_s + 1)
        await seen(server, lambda: not server.gate.connections)
        assert server.gate.refused == {"answer": 1}


async def test_an_idle_connection_ends() -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await peer.line() == b"200"
        later(server, LIMITS.idle_s + 1)
        assert await peer.line() == b"408"
        assert await peer.has_ended()


@pytest.mark.parametrize(
    "header",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Long: " + b"y" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"y" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-Many: y\r\n" * 2_000,
    ],
    ids=["one long", "path", "many, no end"],
)
async def test_a_header_too_long(header: bytes) -> None:
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(header)
        assert await peer.line() == b"431"
        assert await peer.has_ended()
        assert server.gate.refused == {"long header": 1}


async def test_a_header_of_the_longest_length() -> None:
    async with serving() as (_, connect):
        peer = await connect()
        await peer.say(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: " + b"y" * 16_000 + b"\r\n\r\n")
        assert await peer.line() == b"200"


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x00\xa5\x01", b"hello\r\n\r\n", b"\x00" * 64, b"GET  HTTP/9\r\n\r\n"]
)
async def test_what_is_no_http(garbage: bytes) -> None:
    async with serving() as (_, connect):
        peer = await connect()
        await peer.say(garbage)
        assert await peer.line() == b"400"
        assert await peer.has_ended()


async def test_too_many_connections_of_one_address() -> None:
    async with serving() as (server, connect):
        held = [await connect() for _ in range(LIMITS.connections_per_address)]
        await seen(server, lambda: len(server.gate.connections) == len(held))
        refused = await connect()
        assert await refused.line() == b"503"
        assert await refused.has_ended()
        held[0].writer.close()
        await seen(server, lambda: len(server.gate.connections) == len(held) - 1)
        again = await connect()
        await again.say(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await again.line() == b"200"


async def test_an_early_answer_leaves_no_connection_without_a_deadline() -> None:
    """The body is too long and refused before its end; what is left of it still has to come in time."""
    async with serving() as (server, connect):
        peer = await connect()
        await peer.say(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 900000\r\n\r\n" + b"x" * 300_000)
        (connection,) = await connections(server)
        await seen(server, lambda: connection.overdue(connection.loop.time() + LIMITS.body_s + 1) == "body")
        later(server, LIMITS.body_s + 1)
        await seen(server, lambda: not server.gate.connections)


async def test_it_stops_while_a_request_is_answered() -> None:
    app = Echo()
    async with serving(app) as (server, connect):
        peer = await connect()
        await peer.say(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        await app.waiting.wait()
        closing = asyncio.ensure_future(server.aclose())
        app.let.set()
        await closing
        assert await peer.line() == b"200"
        assert await peer.has_ended()


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


async def test_a_port_in_use_is_said_so() -> None:
    async with serving() as (server, _):
        with pytest.raises(ConfigError, match=r"port \d+ .* is in use.*stop it, or choose another"):
            await HttpServer(Echo(), port=server.port).start()


@pytest.mark.parametrize("name", Limits.__struct_fields__)
def test_a_limit_is_above_zero(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0"):
        Limits(**{name: 0})
