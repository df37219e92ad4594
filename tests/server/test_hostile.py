"""Requests of every kind with bytes changed, cut, and lengthened: a reason and a closed connection, or an answer.

Never a traceback, never somebody else disturbed, never memory beyond what has come. The frames are those of
`tests.protocol.instances`: every field of every version of every API that is served, and the real topics and groups of
the server in some of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from eventbus.protocol import encode, request_header
from eventbus.protocol import messages as m
from eventbus.protocol.structs import struct_class
from eventbus.server import Listener, Server, ServerConfig
from eventbus.server.call import Api
from eventbus.server.security.config import SecurityConfig
from tests.protocol.instances import instance
from tests.server.batches import batch, make, produce, produce_request
from tests.server.wire import PATIENCE_SECONDS, WireClient

FRAMES = int(os.environ.get("EVENTBUS_HOSTILE_FRAMES", "4000"))
SEED = int(os.environ.get("EVENTBUS_HOSTILE_SEED", "0"))
VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")
TOPICS, GROUPS = ("t", "u", "__consumer_offsets"), ("g", "h")


@asynccontextmanager
async def serving(**config: Any) -> AsyncGenerator[Server]:
    config.setdefault("listeners", (Listener(port=0),))
    settings = {"auto_create_topics": True, "fsync": "os"}
    async with Server("memory://hostile", ServerConfig(**config), settings) as server:
        async with WireClient(server) as client:
            if not config.get("security"):
                for topic in TOPICS[:2]:
                    await make(client, topic)
                    assert (await produce(client, topic, 0, batch(b"one", b"two"))).error_code == 0
        yield server


def seeded(value: Any, chance: random.Random) -> None:
    """Names the server knows, in some places: a request that is refused for its topic tests nothing behind that."""
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, msgspec.Struct):
            seeded(field, chance)
        elif isinstance(field, list):
            for at, one in enumerate(field):
                if isinstance(one, msgspec.Struct):
                    seeded(one, chance)
                elif isinstance(one, int) and chance.random() < 0.7:
                    field[at] = chance.choice((0, 0, 1, -1))
                elif isinstance(one, str) and chance.random() < 0.7:
                    field[at] = chance.choice(TOPICS + GROUPS)
        elif isinstance(field, str) and chance.random() < 0.7:
            setattr(value, name, chance.choice(TOPICS if "topic" in name or name == "name" else GROUPS))
        elif name in ("partition", "partition_index", "index") and chance.random() < 0.8:
            setattr(value, name, 0)
        elif name.endswith("_ms"):
            setattr(value, name, chance.choice((0, 1, 6_000, -1, 1 << 30)))
        elif name == "records" and chance.random() < 0.8:
            setattr(value, name, batch(b"value", key=chance.choice((None, b"k"))))


def changed(data: bytes, chance: random.Random) -> bytes:
    """With a few bytes changed, a length made a lie, a piece cut out or put in; or as it was."""
    frame = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 1, 2, 8))):
        at = chance.randrange(len(frame))
        match chance.randrange(6):
            case 0 | 1:
                frame[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2:
                frame[at] ^= 1 << chance.randrange(8)
            case 3:
                frame[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\0\0\0", bytes(4)))
            case 4:
                del frame[at : at + chance.choice((1, 4, 100))]
            case _:
                frame[at:at] = chance.randbytes(chance.choice((1, 4, 40)))
        if not frame:
            return data
    return bytes(frame)


def frame_of(api: Api, chance: random.Random) -> bytes:
    version = chance.randint(api.min_version, api.max_version)
    request = instance(f"{api.name}Request", version, chance, tame=True)
    if chance.random() < 0.8:
        seeded(request, chance)
    head = request_header(api.key, version, 7, "wire")
    body = encode(request, version)
    if chance.random() < 0.1:
        return changed(head + body, chance)
    return head + changed(body or b"\0", chance)


class Peer:
    """A connection that is made anew whenever the server has ended it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client: WireClient | None = None
        self.closed = self.answered = 0

    async def send(self, frame: bytes) -> None:
        """Send it, and a request of which the answer is known: one or the other comes back, or the end does."""
        if self._client is None:
            self._client = WireClient(self._server)
            await self._client.__aenter__()
        client = self._client
        client.send_raw(frame)
        client.send_raw(request_header(18, 0, 4_711, None))
        try:
            while (await client.receive_raw())[:4] != (4_711).to_bytes(4, "big"):
                self.answered += 1
        except (asyncio.IncompleteReadError, OSError):
            self.closed += 1
            await self.leave()

    async def leave(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError):
                await client.__aexit__(None, None, None)


def parks(api: Api) -> bool:
    """Whether an answer may take its time: those are asked for without waiting."""
    return api.name in ("Fetch", "JoinGroup", "SyncGroup", "Produce")


async def attack(server: Server, count: int, seed: int) -> tuple[int, int]:
    """``count`` frames; how many were answered, and how many ended their connection."""
    chance = random.Random(seed)
    apis = list(server.node.apis.values())
    peer = Peer(server)
    for number in range(count):
        api = apis[number % len(apis)]
        frame = frame_of(api, chance)
        if parks(api):
            async with WireClient(server) as client:
                client.send_raw(frame)
                with contextlib.suppress(OSError):
                    await client.writer.drain()
        else:
            await peer.send(frame)
    await peer.leave()
    return peer.answered, peer.closed


async def storm(caplog: pytest.LogCaptureFixture, frames: int, first_seed: int) -> None:
    """``frames`` mutated requests; a round that leaves a bug behind is named by its seed."""
    caplog.set_level(logging.WARNING)
    per_round = min(500, frames)
    async with serving() as server, WireClient(server) as other:
        answered = closed = 0
        for seed in range(first_seed, first_seed + frames // per_round):
            more = await attack(server, per_round, seed)
            answered, closed = answered + more[0], closed + more[1]
            assert (await other.call(VERSIONS, 3)).error_code == 0
            bugs = [record for record in caplog.records if record.levelno >= logging.ERROR]
            assert not bugs, f"seed {seed}: {bugs[0].getMessage()}\n{bugs[0].exc_text or bugs[0].exc_info}"
        assert answered > frames // 4
        assert closed > frames // 20


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_mutated_requests(caplog: pytest.LogCaptureFixture) -> None:
    await storm(caplog, FRAMES, SEED)


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_many_more_mutated_requests(caplog: pytest.LogCaptureFixture) -> None:
    await storm(caplog, 50 * FRAMES, SEED + 1_000_000)


async def test_mutated_requests_before_authentication(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"alice": "secret"})
    async with serving(listeners=(listener,), security=security) as server:
        chance = random.Random(3)
        early = [api for api in server.node.apis.values() if api.before_authentication]
        assert {api.name for api in early} == {"ApiVersions", "SaslHandshake", "SaslAuthenticate"}
        peer = Peer(server)
        for number in range(FRAMES // 20):
            await peer.send(frame_of(early[number % len(early)], chance))
        await peer.leave()
        assert not any(connection.is_authenticated for connection in server.node.connections)
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.system
async def test_random_bytes_are_no_request() -> None:
    chance = random.Random(4)
    async with serving() as server, WireClient(server) as other:
        for _ in range(300):
            async with WireClient(server) as client:
                client.writer.write(chance.randbytes(chance.choice((1, 4, 8, 100, 70_000))))
                client.writer.write_eof()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    with contextlib.suppress(OSError):
                        await client.reader.read()
        assert (await other.call(VERSIONS, 3)).error_code == 0


async def test_every_record_batch_that_lies_is_refused() -> None:
    """Changed batches: an error for that partition, the log as it was."""
    chance = random.Random(5)
    whole = bytes(batch(b"value", b"another", producer_id=-1))
    async with serving() as server, WireClient(server) as client:
        taken = 0
        for _ in range(FRAMES // 10):
            data = changed(whole, chance)
            response = await client.call(produce_request({("t", 0): data}), 9)
            (answer,) = response.responses[0].partition_responses
            taken += answer.error_code == 0
            if answer.error_code == 0:  # only what the checksum does not cover may have changed
                assert data[16:17] == whole[16:17]
                assert data[21:] == whole[21:]
        assert taken > 0


def test_every_request_of_a_served_api_can_be_made_up() -> None:
    """So that the tests above leave none out."""
    from eventbus.server.node import load_apis

    for api in load_apis().values():
        assert struct_class(f"{api.name}Request")
        assert frame_of(api, random.Random(1))
