"""What a peer cannot make the server keep: answers that nobody takes, and itself, as nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from eventbus.protocol import messages as m
from eventbus.server import Listener, Server, ServerConfig
from eventbus.server.connection import Connection
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import FakeClock, KafkaServer
from tests.server.batches import batch, fetch_request, make, produce
from tests.server.wire import WireClient
from tests.support import until

MIB = 1 << 20
VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")
LOG = {"max.message.bytes": str(100 * MIB)}


def connection_of(server: Server, client: WireClient) -> Connection:
    port = client.writer.get_extra_info("sockname")[1]
    return next(each for each in server.node.connections if each.peer_port == port)


def fetch_of(topic: str, **options: Any) -> m.FetchRequest:
    return fetch_request({(topic, 0): 0}, max_bytes=8 * MIB, partition_max_bytes=8 * MIB, **options)


def kept_bytes(connection: Connection) -> int:
    """Of answers that are made, and of those that are being made."""
    parked_fetches = [call for call in connection._calls if call.on_close is not None]
    held = [call.on_close.__self__._response for call in parked_fetches]
    parked = sum(len(part.records) for answer in held for topic in answer.responses for part in topic.partitions)
    return parked + sum(len(buffer) for call in connection._calls for buffer in call.buffers or ())


@pytest.mark.system
async def test_answers_behind_one_that_waits_are_few() -> None:
    """Answers leave in order: a first fetch that waits holds up what was found for many others."""
    async with KafkaServer(log_defaults=LOG) as server, WireClient(server) as client, WireClient(server) as greedy:
        await make(client, "full")
        await make(client, "empty")
        assert (await produce(client, "full", 0, batch(b"x" * 4 * MIB))).error_code == 0
        sent = [greedy.send(fetch_of("empty", max_wait_ms=60_000), 11)]
        sent += [greedy.send(fetch_of("full"), 11) for _ in range(80)]
        await greedy.writer.drain()
        await until(lambda: len(server.node.connections) == 2 and connection_of(server, greedy)._read_paused)
        connection = connection_of(server, greedy)
        assert 16 * MIB <= kept_bytes(connection) < 25 * MIB
        assert kept_bytes(connection) == connection._kept_bytes
        assert (await client.call(VERSIONS, 3)).error_code == 0
        await produce(client, "empty", 0, batch(b"x"))
        for one in sent:
            answer = await greedy.receive(one)
            assert answer.responses[0].partitions[0].error_code == 0
        assert connection._kept_bytes == 0


async def test_fetches_that_are_woken_together_find_no_more_than_there_is_room_for() -> None:
    async with KafkaServer(log_defaults=LOG) as server, WireClient(server) as client, WireClient(server) as greedy:
        await make(client, "t")
        await make(client, "empty")
        sent = [greedy.send(fetch_of("empty", max_wait_ms=60_000), 11)]
        sent += [greedy.send(fetch_of("t", max_wait_ms=60_000), 11) for _ in range(100)]
        await greedy.writer.drain()
        await until(lambda: len(server.node.connections) == 2 and len(connection_of(server, greedy)._calls) == 101)
        connection = connection_of(server, greedy)
        assert (await produce(client, "t", 0, batch(b"x" * 4 * MIB))).error_code == 0
        await until(lambda: connection._kept_bytes >= 16 * MIB)
        for _ in range(200):
            await asyncio.sleep(0)
        assert kept_bytes(connection) < 25 * MIB
        assert (await client.call(VERSIONS, 3)).error_code == 0


async def test_a_fetch_that_waits_for_more_keeps_nothing() -> None:
    async with KafkaServer(log_defaults=LOG) as server, WireClient(server) as client, WireClient(server) as waiting:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"x" * 4 * MIB))).error_code == 0
        sent = [waiting.send(fetch_of("t", min_bytes=7 * MIB, max_wait_ms=60_000), 11) for _ in range(50)]
        await waiting.writer.drain()
        await until(lambda: len(server.node.connections) == 2 and len(connection_of(server, waiting)._calls) == 50)
        connection = connection_of(server, waiting)
        assert kept_bytes(connection) == 0
        assert (await produce(client, "t", 0, batch(b"y" * 2 * MIB))).error_code == 0  # not enough
        for _ in range(200):
            await asyncio.sleep(0)
        assert kept_bytes(connection) == 0
        assert (await produce(client, "t", 0, batch(b"z" * MIB))).error_code == 0
        answer = await waiting.receive(sent[0])
        assert len(answer.responses[0].partitions[0].records) > 7 * MIB


@pytest.mark.parametrize("reads", [True, False])
async def test_who_is_nobody_cannot_stay_by_keeping_a_request_open(
    reads: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whole requests come now and then, but a next one has always begun when the deadlines are looked at."""
    caplog.set_level(logging.INFO, "eventbus.server")
    clock = FakeClock()
    config = ServerConfig(
        listeners=(Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0),),
        security=SecurityConfig(users={"a": "secret"}),
    )
    async with Server("memory://nobody", config, clock=clock) as server, WireClient(server) as client:
        if reads:
            await client.call(VERSIONS, 3)
        else:
            await until(lambda: server.node.connections)
        connection = connection_of(server, client)
        client.writer.write(b"\0\0\1\0")
        await until(lambda: connection.is_receiving)
        for number in range(1, 8):
            client.writer.write(b"x")
            await until(lambda number=number: connection._filled == number or connection.is_closing)
            await clock.jump(seconds=5)
            server.node.gate.look()
        assert await client.is_closed()
    assert ("closed: it does not say who it is" if reads else "closed: no request") in caplog.text


async def test_who_waits_for_as_much_as_fits_need_not_wait() -> None:
    """Whole batches seldom fill a limit: there is more than asked for, and a megabyte of it can be had."""
    async with KafkaServer() as server, WireClient(server) as client:
        await make(client, "t")
        for _ in range(12):
            await produce(client, "t", 0, batch(b"x" * 100_000))
        answer = await client.call(fetch_request({("t", 0): 0}, min_bytes=MIB, max_wait_ms=3_600_000), 11)
        assert 900_000 < len(answer.responses[0].partitions[0].records) < MIB
