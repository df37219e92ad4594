"""A request that came before is answered without being parsed: never with what does not hold any more."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from schema_registry import Registry
from schema_registry.entities import SchemaRequest
from schema_registry.http import Access, Credentials, HttpServer, RegistryApp, create_app, kept
from schema_registry.http.guard import Gate
from tests.schema_registry.http.opening import opened

pytestmark = pytest.mark.system

GET = b"GET /schemas/ids/1 HTTP/1.1\r\nHost: x\r\n\r\n"


def get(authorization: str = "", more: str = "") -> bytes:
    named = f"Authorization: {authorization}\r\n" if authorization else ""
    return f"GET /schemas/ids/1 HTTP/1.1\r\nHost: x\r\n{named}{more}\r\n".encode()


def basic(user: str, password: str) -> str:
    return "Basic " + b64encode(f"{user}:{password}".encode()).decode()


class Peer:
    def __init__(self, app: RegistryApp, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.app = app
        self.gate = app.gate or Gate(app)
        self.reader = reader
        self.writer = writer

    async def answers(self, data: bytes, number: int = 1) -> list[tuple[bytes, bytes, bytes]]:
        """Status, headers but the date, body of so many answers to what is sent."""
        self.writer.write(data)
        found: list[tuple[bytes, bytes, bytes]] = []
        for _ in range(number):
            head, *lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
            headers = b"\n".join(line for line in lines if line and not line.startswith(b"date"))
            assert any(line.startswith(b"date: ") for line in lines)
            length = int(headers.partition(b"content-length: ")[2].partition(b"\n")[0])
            found.append((head.split(b" ")[1], headers, await self.reader.readexactly(length)))
        return found

    async def answer(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        return (await self.answers(data))[0]

    async def warm(self, data: bytes) -> tuple[bytes, bytes, bytes]:
        """Three times: to keep the body, to keep the reply, to use it."""
        first, second, third = [await self.answer(data) for _ in range(3)]
        assert first == second == third
        return third


@asynccontextmanager
async def serving(**options: Any) -> AsyncGenerator[tuple[Registry, Peer]]:
    async with opened() as registry:
        await registry.register("s", SchemaRequest(schema='"int"'))
        app = create_app(registry, **options)
        async with HttpServer(app, port=0) as server:
            peer = Peer(app, *await asyncio.open_connection("127.0.0.1", server.port))
            try:
                yield registry, peer
            finally:
                peer.writer.close()
                await peer.writer.wait_closed()


async def test_it_is_used_and_counted() -> None:
    async with serving() as (_, peer):
        status, headers, body = await peer.warm(GET)
        assert (status, body.endswith(b'"schema":"\\"int\\""}')) == (b"200", True)
        assert b"content-type: application/vnd.schemaregistry.v1+json" in headers
        assert peer.app.repeated(GET)
        assert peer.app.answered["GET", "/schemas/ids/{id}", 200] == 4


async def test_what_is_deleted_is_gone() -> None:
    async with serving() as (registry, peer):
        await peer.warm(GET)
        await registry.delete_subject("s")
        await registry.delete_subject("s", permanent=True)
        assert (await peer.answer(GET))[0] == b"404"


async def test_a_registry_that_stops_answers_nothing() -> None:
    async with serving() as (registry, peer):
        await peer.warm(GET)
        await registry.aclose()
        assert (await peer.answer(GET))[0] == b"500"


async def test_another_header_is_another_request() -> None:
    async with serving() as (_, peer):
        await peer.warm(GET)
        status, headers, _ = await peer.warm(get(more="Accept: application/json\r\n"))
        assert (status, headers.splitlines()[0]) == (b"200", b"content-type: application/json")
        assert (await peer.answer(get(more="Accept: text/html\r\n")))[0] == b"406"


async def test_only_who_may_read_reads() -> None:
    async with serving(auth={"alice": "secret"}) as (_, peer):
        assert (await peer.warm(get(basic("alice", "secret"))))[0] == b"200"
        for stranger in (GET, get(basic("alice", "wrong")), get(basic("bob", "secret"))):
            for _ in range(3):
                assert (await peer.answer(stranger))[0] == b"401"


async def test_a_function_is_asked_every_time() -> None:
    allowed = [Access.READ, Access.READ, Access.READ, Access.NONE]

    def decide(credentials: Credentials) -> Access:
        return allowed.pop(0)

    async with serving(auth=decide) as (_, peer):
        answers = [(await peer.answer(get("Bearer token")))[0] for _ in range(4)]
        assert answers == [b"200", b"200", b"200", b"401"]


@pytest.mark.parametrize("number", [2, 5])
async def test_requests_sent_together(number: int) -> None:
    async with serving() as (_, peer):
        known = await peer.warm(GET)
        assert await peer.answers(GET * number, number) == [known] * number


async def test_a_request_in_two_pieces_after_one_that_is_kept() -> None:
    async with serving() as (_, peer):
        known = await peer.warm(GET)
        peer.writer.write(GET[:20])
        await peer.writer.drain()
        assert await peer.answers(GET[20:] + GET, 2) == [known, known]


async def test_a_kept_request_behind_one_that_is_not_answered_yet() -> None:
    """Answers come in the order of their requests."""
    async with serving() as (_, peer):
        known = await peer.warm(GET)
        body = b'{"schema": "\\"long\\""}'
        post = b"POST /subjects/t/versions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        peer.writer.write(post)
        first, second = await peer.answers(GET, 2)
        assert b'"id":2' in first[2] and second == known


class Slow:
    """Registrations wait until they are let."""

    def __init__(self, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: asyncio.Queue[None] = asyncio.Queue()
        self.waiting = asyncio.Semaphore(0)
        register = registry.register

        async def later(*arguments: Any, **options: Any) -> Any:
            self.waiting.release()
            await self.turns.get()
            return await register(*arguments, **options)

        monkeypatch.setattr(registry, "register", later)


async def test_a_kept_request_behind_two_that_are_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the two has been answered when it comes. They register what is there, so that what is kept still holds."""
    async with serving() as (registry, peer):
        known = await peer.warm(GET)
        slow = Slow(registry, monkeypatch)
        body = b'{"schema": "\\"int\\""}'
        post = b"POST /subjects/s/versions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        peer.writer.write(post)
        await slow.waiting.acquire()
        (connection,) = peer.gate.connections
        connection.data_received(post)
        slow.turns.put_nowait(None)
        first = await peer.answer(b"")
        await slow.waiting.acquire()  # the second is at work
        connection.data_received(GET)
        slow.turns.put_nowait(None)
        second, third = await peer.answers(b"", 2)
        assert first == second != known == third


async def test_bytes_inside_of_another_request_are_no_request() -> None:
    """Half a header, then what would be a kept request if it stood alone."""
    async with serving() as (_, peer):
        known = await peer.warm(GET)
        (connection,) = peer.gate.connections
        connection.data_received(GET + b"GET /schemas/ids/2 HTTP/1.1\r\nHost: x\r\nX-Note: ")
        connection.data_received(GET)
        first, second = await peer.answers(b"", 2)
        assert first == known and second[0] == b"404"


async def test_a_connection_that_closes_is_closed() -> None:
    async with serving() as (_, peer):
        await peer.warm(GET)
        assert (await peer.answer(get(more="Connection: close\r\n")))[0] == b"200"
        assert await peer.reader.read() == b""


async def test_long_answers_are_not_kept() -> None:
    async with serving() as (registry, peer):
        text = '{"type":"record","name":"A","doc":"' + "x" * 70_000 + '","fields":[]}'
        await registry.register("long", SchemaRequest(schema=text))
        request = GET.replace(b"ids/1", b"ids/2")
        assert len((await peer.warm(request))[2]) > 70_000
        assert peer.app.repeated(request) is None


async def test_requests_without_end_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_BYTES", 10_000)
    async with serving() as (_, peer):
        many = [get(more=f"X-Request: {number}\r\n") for number in range(8)]
        for request in many:
            await peer.warm(request)
        assert 0 < sum(peer.app.repeated(request) is not None for request in many) < len(many)
        long = get(more=f"X-Long: {'y' * 4000}\r\n")
        await peer.warm(long)
        assert peer.app.repeated(long) is None
