"""Peers that begin a TLS handshake and say no more."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

import pytest

from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.config import Tls
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient
from tests.support import until

PEM = Path(__file__).parent / "tls"
VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")
BOTH = (Listener(name="SSL", security_protocol="SSL", port=0), Listener(name="PLAINTEXT", port=0))


def config(**more: int) -> ServerConfig:
    return ServerConfig(listeners=BOTH, tls=Tls(certificate_file=str(PEM / "server.pem")), **more)  # pyright: ignore[reportArgumentType] - each is a number


async def test_a_handshake_under_way_is_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.server")
    context = ssl.create_default_context(cafile=str(PEM / "server.pem"))
    async with KafkaServer(config=config(max_connections=3)) as server:
        gate = server.node.gate
        silent = [WireClient(server) for _ in range(3)]
        for client in silent:
            await client.__aenter__()
        await until(lambda: len(gate._greeting) == 3)
        with pytest.raises(OSError):
            async with WireClient(server, ssl=context):
                pass
        async with WireClient(server, listener=1) as plain:
            assert await plain.is_closed()
        assert caplog.text.count("4 connections; at most max_connections=3") == 2
        await silent[0].__aexit__(None, None, None)
        await until(lambda: len(gate._greeting) == 2)
        async with WireClient(server, ssl=context) as client:
            assert (await client.call(VERSIONS, 3)).error_code == 0
            assert len(gate.connections) == 1
        for client in silent[1:]:
            await client.__aexit__(None, None, None)
        await until(lambda: not gate._greeting and not gate.connections)


async def test_a_handshake_that_does_not_come_to_its_end_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.server")
    async with KafkaServer(config=config(handshake_timeout_ms=50)) as server, WireClient(server) as silent:
        assert await silent.is_closed()
        await until(lambda: not server.node.gate._greeting)
    assert "failed: SSL handshake" in caplog.text


async def test_a_server_that_stops_waits_for_no_handshake() -> None:
    server = KafkaServer(config=config())
    await server.start()
    async with WireClient(server) as silent:
        await until(lambda: server.node.gate._greeting)
        async with asyncio.timeout(20):
            await server.aclose()
        assert await silent.is_closed()
