"""Bytes to requests and answers back: how they come in, in which order they leave, and who is disturbed by whom."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import ssl
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eventbus.errors import ConfigError, CoordinatorNotAvailable
from eventbus.protocol import encode, request_header
from eventbus.protocol import messages as m
from eventbus.server import Listener, Server, ServerConfig
from eventbus.server.call import Api, Call
from eventbus.server.config import Tls
from eventbus.testing import KafkaServer
from tests.server.batches import batch, fetch, fetch_request, make, produce, produce_request
from tests.server.wire import PATIENCE_SECONDS, WireClient
from tests.support import until

PEM = Path(__file__).parent / "tls"
VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")


def replace(server: KafkaServer, name: str, handle: Callable[[Call, Any], None]) -> None:
    """Handle one API another way."""
    for key, api in server.node.apis.items():
        if api.name == name:
            server.node.apis[key] = Api(key, name, api.min_version, api.max_version, handle)
            return
    raise LookupError(name)


def frame(number: int, request: Any, key: int, version: int) -> bytes:
    data = request_header(key, version, number, "wire") + encode(request, version)
    return len(data).to_bytes(4, "big") + data


def test_requests_are_cut_out_of_whatever_arrives() -> None:
    """Every way of cutting three requests into two pieces, and one byte at a time."""
    frames = b"".join(frame(number, VERSIONS, 18, 3) for number in range(3))

    async def answers(client: WireClient, pieces: list[bytes]) -> list[int]:
        for piece in pieces:
            client.writer.write(piece)
            await client.writer.drain()
            await asyncio.sleep(0)  # the socket may, or may not, hand them over one by one
        return [int.from_bytes((await client.receive_raw())[:4], "big") for _ in range(3)]

    async def run() -> None:
        async with KafkaServer() as server, WireClient(server) as client:
            client.writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for cut in range(1, len(frames)):
                assert await answers(client, [frames[:cut], frames[cut:]]) == [0, 1, 2]
            assert await answers(client, [frames[at : at + 1] for at in range(len(frames))]) == [0, 1, 2]

    asyncio.run(run())


@pytest.mark.parametrize("size", [60_000, 65_532, 65_536, 100_000, 3 << 20, 9 << 20])
async def test_large_requests_arrive_whole(size: int) -> None:
    """Through the shared buffer, through one of their size, and through one that grows."""
    settings = {"log_defaults": {"max.message.bytes": str(10 << 20)}}
    async with KafkaServer(**settings) as server, WireClient(server) as client:
        await make(client, "t")
        value = bytes(range(256)) * (size // 256)
        sent = [client.send(produce_request({("t", 0): batch(value)}), 9) for _ in range(3)]
        answers = [(await client.receive(one)).responses[0].partition_responses[0] for one in sent]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, 0), (0, 1), (0, 2)]
        for offset in range(3):
            answer = await fetch(client, "t", 0, offset, max_bytes=1 << 30, partition_max_bytes=1 << 30)
            assert value in bytes(answer.records)


async def test_answers_leave_in_the_order_of_the_requests() -> None:
    parked: list[Call] = []
    async with KafkaServer() as server, WireClient(server) as client:
        replace(server, "Heartbeat", lambda call, _: parked.append(call))
        sent = [client.send(m.HeartbeatRequest(), 4), client.send(VERSIONS, 3), client.send(m.HeartbeatRequest(), 4)]
        async with WireClient(server) as other:
            await other.call(VERSIONS, 3)
        await until(lambda: len(parked) == 2)
        parked[1].reply(m.HeartbeatResponse(error_code=2))
        parked[0].reply(m.HeartbeatResponse(error_code=1))
        codes = [(await client.receive(one)).error_code for one in sent]
        assert codes == [1, 0, 2]


async def test_a_parked_request_of_a_peer_that_has_gone_is_dropped() -> None:
    """Its wake-up must not end the connection of who wakes it (seen with a loop that raises on closed sockets)."""
    async with KafkaServer() as server, WireClient(server) as producer:
        await make(producer, "t")
        await produce(producer, "t", 0, batch(b"first"))
        async with WireClient(server) as reader:
            reader.send(fetch_request({("t", 0): 1}, max_wait_ms=60_000, min_bytes=1), 11)
            await until(lambda: any(connection._calls for connection in server.node.connections))
        await until(lambda: len(server.node.connections) == 1)
        answer = await produce(producer, "t", 0, batch(b"second"))
        assert (answer.error_code, answer.base_offset) == (0, 1)
        assert not server.node.engine._listeners


async def test_who_waits_for_a_peer_is_told_of_its_end() -> None:
    closed: list[Call] = []

    def park(call: Call, _: Any) -> None:
        def gone() -> None:
            closed.append(call)
            raise RuntimeError("even this disturbs nobody")

        call.on_close = gone

    async with KafkaServer() as server:
        replace(server, "Heartbeat", park)
        async with WireClient(server) as client:
            client.send(m.HeartbeatRequest(), 4)
            client.send(m.HeartbeatRequest(), 4)
            await client.writer.drain()
        async with WireClient(server) as other:
            while len(closed) < 2:
                await other.call(VERSIONS, 3)
        assert not closed[0].is_open
        closed[0].reply(m.HeartbeatResponse())  # too late, and no harm


async def test_a_handler_that_fails_ends_its_connection_alone(caplog: pytest.LogCaptureFixture) -> None:
    def fail(call: Call, _: Any) -> None:
        raise ZeroDivisionError("of the test")

    async with KafkaServer() as server, WireClient(server) as client, WireClient(server) as other:
        replace(server, "Heartbeat", fail)
        client.send(m.HeartbeatRequest(), 4)
        assert await client.is_closed()
        assert (await other.call(VERSIONS, 3)).error_code == 0
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert "Heartbeat v4 of PLAINTEXT connection of 127.0.0.1" in record.getMessage()


async def test_an_error_of_kafkas_is_answered_by_its_code() -> None:
    def fail(call: Call, _: Any) -> None:
        raise CoordinatorNotAvailable("not yet")

    async with KafkaServer() as server, WireClient(server) as client:
        replace(server, "Heartbeat", fail)
        replace(server, "DescribeGroups", fail)  # its answer has a code per group only
        assert (await client.call(m.HeartbeatRequest(), 4)).error_code == 15
        client.send(m.DescribeGroupsRequest(), 5)
        assert await client.is_closed()


async def test_an_answer_that_cannot_be_written_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Even when it is given later, where nobody looks at what is raised: the peer would wait for ever."""
    parked: list[Call] = []
    async with KafkaServer() as server, WireClient(server) as client:
        replace(server, "Heartbeat", lambda call, _: parked.append(call))
        client.send(m.HeartbeatRequest(), 4)
        await until(lambda: parked)
        parked[0].reply(m.HeartbeatResponse(error_code=1 << 20))
        assert await client.is_closed()
    assert "HeartbeatResponse version 4, throttle_time_ms, error_code" in caplog.text


async def test_what_is_not_served_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.server")
    async with KafkaServer() as server:
        for key, version, why in (
            (9_999, 0, "API key 9999 v0 of client 'wire' is not served here"),
            (12, 99, "Heartbeat v99 of client 'wire' is not served here, v0 to v4 are"),
            (0, 2, "Produce v2 of client 'wire' is not served here"),
            (12, -1, "Heartbeat v-1"),
        ):
            async with WireClient(server) as client:
                client.send_raw(request_header(key, version, 1, "wire"))
                assert await client.is_closed()
                assert why in caplog.text


async def test_api_versions_beyond_ours_are_answered_in_version_0() -> None:
    async with KafkaServer() as server, WireClient(server) as client:
        client.send_raw(request_header(18, 77, 5, "wire") + b"whatever it says")
        answer = await client.receive_raw()
        assert answer[:4] == b"\0\0\0\5"
        assert int.from_bytes(answer[4:6], "big") == 35
        assert (await client.call(VERSIONS, 3)).error_code == 0


async def test_a_request_that_cannot_be_read_closes_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.server")
    async with KafkaServer() as server, WireClient(server) as client:
        client.send_raw(request_header(12, 4, 1, "wire") + b"\xff\xff\xff\xff\x0f")
        assert await client.is_closed()
    assert "closed: a request that cannot be read: HeartbeatRequest version 4, group_id, at byte" in caplog.text


async def test_listeners_tell_each_client_where_it_came_from() -> None:
    config = ServerConfig(
        listeners=(
            Listener(port=0),
            Listener(name="OUTSIDE", port=0, advertised_host="bus.example.org", advertised_port=19_092),
            Listener(name="TLS", security_protocol="SSL", host="localhost", port=0),
        ),
        tls=Tls(certificate_file=str(PEM / "server.pem")),
    )
    context = ssl.create_default_context(cafile=str(PEM / "server.pem"))
    async with KafkaServer(config=config) as server:
        told: list[tuple[str, int]] = []
        for number, options in ((0, {}), (1, {}), (2, {"ssl": context, "server_hostname": "localhost"})):
            async with WireClient(server, listener=number, **options) as client:
                (broker,) = (await client.call(m.MetadataRequest(topics=[]), 9)).brokers
                told.append((broker.host, broker.port))
        ports = [listener.port for listener in server.listeners]
        assert told == [("127.0.0.1", ports[0]), ("bus.example.org", 19_092), ("localhost", ports[2])]


async def test_localhost_is_both_of_its_addresses() -> None:
    config = ServerConfig(listeners=(Listener(host="localhost", port=0),))
    async with KafkaServer(config=config) as server:
        port = server.listeners[0].port
        for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if family == socket.AF_INET6 and not _has_ipv6():
                continue
            _, writer = await asyncio.open_connection(host, port, family=family)
            writer.close()


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.system
def test_uvloop_serves_too() -> None:
    """It is used when it is installed. Its transports are none of asyncio's, and refuse to write once closed."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed (pip install uvloop)")

    async def run() -> None:
        async with KafkaServer() as server, WireClient(server) as client:
            await make(client, "t")
            async with WireClient(server) as reader:
                reader.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000), 11)
                await until(lambda: any(connection._calls for connection in server.node.connections))
            value = bytes(1_000_000)
            assert (await produce(client, "t", 0, batch(value))).error_code == 0
            answer = await fetch(client, "t", 0, 0, max_bytes=2 << 20, partition_max_bytes=2 << 20)
            assert value in bytes(answer.records)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


def tls(**how: Any) -> ServerConfig:
    return ServerConfig(
        listeners=(Listener(name="SSL", security_protocol="SSL", port=0),),
        tls=Tls(certificate_file=str(PEM / "server.pem"), **how),
    )


def test_trio_is_refused_with_what_to_do() -> None:
    trio = pytest.importorskip("trio", reason="the other event loop")

    async def main() -> None:
        async with KafkaServer():
            pass

    with pytest.raises(ConfigError, match=r"runs on asyncio: use anyio\.run"):
        trio.run(main)


async def test_large_requests_and_answers_through_tls() -> None:
    context = ssl.create_default_context(cafile=str(PEM / "server.pem"))
    settings = {"log_defaults": {"max.message.bytes": str(10 << 20)}}
    async with KafkaServer(config=tls(), **settings) as server, WireClient(server, ssl=context) as client:
        value = bytes(range(256)) * (4 << 12)
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(value))).error_code == 0
        response = await client.call(fetch_request({("t", 0): 0}, max_bytes=20 << 20), 11)
        assert value in bytes(response.responses[0].partitions[0].records)


async def test_a_peer_without_tls_disturbs_nobody() -> None:
    context = ssl.create_default_context(cafile=str(PEM / "server.pem"))
    async with KafkaServer(config=tls()) as server, WireClient(server) as plain:
        plain.send(VERSIONS, 3)
        with pytest.raises((asyncio.IncompleteReadError, OSError)):
            while True:
                await plain.receive_raw()
        async with WireClient(server, ssl=context) as client:
            assert (await client.call(VERSIONS, 3)).error_code == 0


@pytest.mark.parametrize(("certificate", "is_let_in"), [("client.pem", True), ("stranger.pem", False), (None, False)])
async def test_client_certificates(certificate: str | None, is_let_in: bool) -> None:
    context = ssl.create_default_context(cafile=str(PEM / "server.pem"))
    if certificate:
        context.load_cert_chain(PEM / certificate)
    config = tls(ca_file=str(PEM / "client.pem"), client_auth="required")
    names: list[str] = []
    async with KafkaServer(config=config) as server:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            async with WireClient(server, ssl=context) as client:
                await client.call(VERSIONS, 3)
                names = [connection.principal for connection in server.node.connections]
    assert names == (["User:CN=client of the tests"] if is_let_in else [])


@pytest.mark.system
@pytest.mark.parametrize("turns", range(6))
async def test_who_connects_in_the_moment_of_the_stop_is_closed_and_left_to_nobody(turns: int) -> None:
    """The kernel has the connection before the server's loop has looked: it is a socket, a task, then a connection."""
    server = Server(f"memory://late-{turns}", ServerConfig(listeners=(Listener(port=0),)))
    await server.start()
    host, _, port = server.bootstrap.rpartition(":")
    with warnings.catch_warnings(record=True) as said, socket.create_connection((host, int(port))) as client:
        warnings.simplefilter("always")
        for _ in range(turns):
            await asyncio.sleep(0)
        await server.aclose()
        for _ in range(3):
            await asyncio.sleep(0)
        gc.collect()
        client.settimeout(PATIENCE_SECONDS)
        with contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""
    assert [str(one.message) for one in said] == []
