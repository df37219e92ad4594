"""What a peer cannot make the server do: take memory for promises, wait for ever, keep others waiting."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from eventbus.protocol import messages as m
from eventbus.protocol import request_header
from eventbus.server import Listener, Server, ServerConfig
from eventbus.server.call import Api, Call
from eventbus.server.connection import Connection
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import FakeClock
from tests.server.batches import batch, fetch_request, make, produce, produce_request
from tests.server.wire import WireClient
from tests.support import until

VERSIONS = m.ApiVersionsRequest(client_software_name="wire", client_software_version="1")
MIB = 1 << 20


@asynccontextmanager
async def serving(clock: Any = None, **config: Any) -> AsyncGenerator[Server]:
    config.setdefault("listeners", (Listener(port=0),))
    settings = {"auto_create_topics": True, "log_defaults": {"max.message.bytes": str(100 * MIB)}}
    options = {"clock": clock} if clock else {}
    server = Server("memory://limits", ServerConfig(**config), settings, **options)
    async with server:
        yield server


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "eventbus.server")


async def connected(server: Server, count: int = 1) -> list[Connection]:
    """The server's connections, once there are so many, in the order they were made."""
    await until(lambda: len(server.node.connections) == count)
    return sorted(server.node.connections, key=lambda connection: connection.peer_port)


# sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [-1, 0, -(1 << 31), (1 << 31) - 1, 104_857_601])
async def test_a_size_that_cannot_be_closes_the_connection(size: int, caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as server, WireClient(server) as other:
        async with WireClient(server) as client:
            client.writer.write(size.to_bytes(4, "big", signed=True) + b"GET / HTTP/1.1\r\n")
            assert await client.is_closed()
        assert (await other.call(VERSIONS, 3)).error_code == 0
    assert f"closed: a request of {size:,} bytes; at most 104,857,600 are taken here" in caplog.text


async def test_memory_is_taken_for_what_has_come_and_not_for_what_is_promised() -> None:
    async with serving() as server, WireClient(server) as client:
        (connection,) = await connected(server)
        client.writer.write((100 * MIB).to_bytes(4, "big") + bytes(10))
        await until(lambda: connection.is_receiving)
        assert len(connection._frame or b"") == server.node.gate._held_bytes == 2 * MIB
        client.writer.write(bytes(3 * MIB))
        await client.writer.drain()
        await until(lambda: connection._filled == 3 * MIB + 10)
        assert len(connection._frame or b"") == server.node.gate._held_bytes == 4 * MIB


async def test_what_a_peer_held_is_let_go_when_it_goes() -> None:
    async with serving() as server:
        async with WireClient(server) as client:
            await make(client, "t")
            await produce(client, "t", 0, batch(b"x"))
            client.send(fetch_request({("t", 0): 1}, max_wait_ms=60_000), 11)
            client.writer.write((50 * MIB).to_bytes(4, "big") + bytes(10))
            await until(lambda: server.node.gate._held_bytes > 2 * MIB)
        await connected(server, 0)
        assert server.node.gate._held_bytes == 0


async def test_before_authentication_requests_are_small(caplog: pytest.LogCaptureFixture) -> None:
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"alice": "secret"})
    async with serving(listeners=(listener,), security=security) as server:
        for data, why in (
            ((65_537).to_bytes(4, "big"), "a request of 65,537 bytes; at most 65,536 are taken here"),
            (b"\0\0\0\x0e" + request_header(3, 4, 1, "wire"), "Metadata before authentication"),
        ):
            async with WireClient(server) as client:
                client.writer.write(data)
                assert await client.is_closed()
                assert why in caplog.text


async def test_only_produce_may_be_as_large_as_records_are(caplog: pytest.LogCaptureFixture) -> None:
    """What other requests say becomes objects of many times its size."""
    async with serving() as server, WireClient(server) as client:
        client.send_raw(request_header(3, 4, 1, "wire") + bytes(17 * MIB))
        assert await client.is_closed()
    assert "Metadata of 17,825,806 bytes; at most 16,777,216 are taken here" in caplog.text


# all together --------------------------------------------------------------------------------------------------------


async def test_requests_beyond_the_budget_wait_and_none_for_ever() -> None:
    """Ten peers with 3 MiB each, half of it sent: together they may hold 8. One after the other they come through."""
    value = b"x" * (3 * MIB)
    async with serving(in_flight_max_bytes=8 * MIB) as server:
        clients = [WireClient(server) for _ in range(10)]
        for client in clients:
            await client.__aenter__()
        await make(clients[0], "t")
        request = produce_request({("t", 0): batch(value)})
        body = b"".join(_wire(request))
        for client in clients:
            client.writer.write(body[: len(body) // 2])
        gate = server.node.gate
        await until(lambda: len(gate._waiting) >= 5)
        assert gate._held_bytes <= 8 * MIB + 4 * MIB
        for client in clients:
            client.writer.write(body[len(body) // 2 :])
        answers = [await client.receive(("Produce", 9, 1)) for client in clients]
        offsets = [answer.responses[0].partition_responses[0].base_offset for answer in answers]
        assert sorted(offsets) == list(range(10))
        assert gate._held_bytes == 0
        assert not gate._waiting
        for client in clients:
            await client.__aexit__(None, None, None)


def _wire(request: Any) -> list[bytes]:
    from eventbus.protocol import encode

    data = request_header(0, 9, 1, "wire") + encode(request, 9)
    return [len(data).to_bytes(4, "big"), data]


async def test_a_peer_that_does_not_go_on_gives_its_turn_up() -> None:
    clock = FakeClock()
    value = b"x" * (3 * MIB)
    async with (
        serving(clock, in_flight_max_bytes=2 * MIB, request_timeout_ms=60_000) as server,
        WireClient(server) as stuck,
        WireClient(server) as client,
    ):
        await make(client, "t")
        stuck.writer.write((50 * MIB).to_bytes(4, "big") + bytes(5 * MIB))
        await until(lambda: server.node.gate._goes_on is not None)
        waits = client.send(produce_request({("t", 0): batch(value)}), 9)
        await until(lambda: server.node.gate._waiting)
        server.node.gate.look()
        for _ in range(3):
            await clock.jump(seconds=1_200)  # 50 MiB have 3,277 s and a minute
            server.node.gate.look()
        assert await stuck.is_closed()
        assert (await client.receive(waits)).responses[0].partition_responses[0].error_code == 0


@pytest.mark.system
async def test_requests_of_one_connection_wait_when_too_many_are_under_way() -> None:
    parked: list[Call] = []
    async with serving(connection_in_flight_max=10) as server, WireClient(server) as client:
        server.node.apis[12] = Api(12, "Heartbeat", 0, 4, lambda call, _: parked.append(call))
        sent = [client.send(m.HeartbeatRequest(), 4) for _ in range(2_000)]
        await client.writer.drain()
        await until(lambda: len(parked) >= 10)
        async with WireClient(server) as other:
            for _ in range(5):
                await other.call(VERSIONS, 3)
        assert len(parked) == 11
        for number, one in enumerate(sent):
            await until(lambda number=number: len(parked) > number)
            parked[number].reply(m.HeartbeatResponse(error_code=number))
            assert (await client.receive(one)).error_code == number


async def test_requests_of_one_connection_wait_when_they_take_too_many_bytes() -> None:
    parked: list[Call] = []
    async with serving(connection_in_flight_max_bytes=MIB) as server, WireClient(server) as client:
        server.node.apis[0] = Api(0, "Produce", 3, 11, lambda call, _: parked.append(call))
        request = produce_request({("t", 0): batch(b"x" * (MIB // 2))})
        sent = [client.send(request, 9) for _ in range(12)]
        await until(lambda: len(parked) >= 2)
        async with WireClient(server) as other:
            for _ in range(20):
                assert (await other.call(VERSIONS, 3)).error_code == 0, "others are not kept waiting"
        assert len(parked) == 2, "two are more than a MiB"
        for number, one in enumerate(sent):
            await until(lambda number=number: len(parked) > number)
            assert len(parked) <= number + 2
            parked[number].reply(m.ProduceResponse(throttle_time_ms=number))
            assert (await client.receive(one)).throttle_time_ms == number


async def test_a_peer_that_takes_no_answers_gets_no_more_of_them_made() -> None:
    """A thousand fetches of a megabyte are asked for at once, and nothing is read: others are served meanwhile."""
    async with serving() as server, WireClient(server) as client, WireClient(server) as slow:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"x" * MIB))).error_code == 0
        slow.writer.transport.pause_reading()
        sent = [slow.send(fetch_request({("t", 0): 0}, max_bytes=2 * MIB), 11) for _ in range(1_000)]
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(slow)]
        await until(lambda: connection._write_paused)
        for _ in range(20):
            assert (await client.call(VERSIONS, 3)).error_code == 0
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 8 * MIB
        slow.writer.transport.resume_reading()
        for one in sent[:40]:
            (partition,) = (await slow.receive(one)).responses[0].partitions
            assert len(partition.records) > MIB


async def test_answers_that_come_all_at_once_wait_for_a_peer_that_takes_none() -> None:
    """Sixty parked fetches are answered by one record: what is not taken is not copied into buffers."""
    async with serving() as server, WireClient(server) as client, WireClient(server) as slow:
        await make(client, "t")
        slow.writer.transport.pause_reading()
        sent = [slow.send(fetch_request({("t", 0): 0}, max_wait_ms=60_000, max_bytes=4 * MIB), 11) for _ in range(60)]
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(slow)]
        await until(lambda: len(connection._calls) == 60)
        assert (await produce(client, "t", 0, batch(b"x" * MIB))).error_code == 0
        await until(lambda: connection._write_paused)
        assert connection._transport is not None
        assert connection._transport.get_write_buffer_size() < 8 * MIB
        slow.writer.transport.resume_reading()
        for one in sent:
            (partition,) = (await slow.receive(one)).responses[0].partitions
            assert len(partition.records) > MIB


def _port(client: WireClient) -> int:
    return client.writer.get_extra_info("sockname")[1]


async def test_a_throttled_peer_is_not_listened_to() -> None:
    """Not to the requests that came in the same segment either."""
    seen: list[Call] = []

    def heartbeat(call: Call, _: Any) -> None:
        seen.append(call)
        call.reply(m.HeartbeatResponse(), throttle_ms=60_000 if len(seen) == 1 else 0)

    async with serving() as server, WireClient(server) as client, WireClient(server) as other:
        server.node.apis[12] = Api(12, "Heartbeat", 0, 4, heartbeat)
        sent = [client.send(m.HeartbeatRequest(), 4), client.send(m.HeartbeatRequest(), 4)]
        assert (await client.receive(sent[0])).throttle_time_ms == 60_000
        client.send(m.HeartbeatRequest(), 4)
        for _ in range(5):
            await other.call(VERSIONS, 3)
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(client)]
        held_back = len(seen)
        assert connection._muted is not None
        connection._muted.cancel()
        connection._unmute()
        await client.receive(sent[1])
        assert (held_back, len(seen) >= 2) == (1, True)


# numbers of connections ----------------------------------------------------------------------------------------------


async def test_connections_beyond_the_limit_are_sent_away(caplog: pytest.LogCaptureFixture) -> None:
    for limit, why in (
        (("max_connections", 3), "4 connections; at most"),
        (("max_connections_per_ip", 3), "of one address"),
    ):
        async with serving(**dict([limit])) as server:
            async with WireClient(server) as one, WireClient(server) as two, WireClient(server):
                assert (await one.call(VERSIONS, 3)).error_code == 0
                async with WireClient(server) as fourth:
                    assert await fourth.is_closed()
                assert (await two.call(VERSIONS, 3)).error_code == 0
            await connected(server, 0)
            async with WireClient(server) as again:
                assert (await again.call(VERSIONS, 3)).error_code == 0
        assert why in caplog.text


async def test_the_files_of_the_log_are_not_taken_by_connections(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    async with serving() as server, contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(WireClient(server)) for _ in range(8)]
        assert await clients[7].is_closed()
        assert (await clients[6].call(VERSIONS, 3)).error_code == 0
    assert "8 connections; at most 7, because of how many files this process may open (ulimit -n)" in caplog.text


# deadlines -----------------------------------------------------------------------------------------------------------


async def look_after(server: Server, clock: FakeClock, seconds: float) -> None:
    server.node.gate.look()
    await clock.advance(seconds=seconds)
    server.node.gate.look()


@pytest.mark.parametrize(
    ("sent", "seconds", "why"),
    [
        (b"", 31, "no request"),
        (b"\0\0", 121, "a request that does not come to its end"),
        (b"\0\0\1\0" + bytes(100), 121, "a request that does not come to its end"),
    ],
)
async def test_a_peer_that_keeps_the_server_waiting(
    sent: bytes, seconds: float, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as client:
        (connection,) = await connected(server)
        client.writer.write(sent)
        if sent:
            await until(lambda: connection._rest or connection.is_receiving)
        await look_after(server, clock, seconds - 2)
        assert not connection.is_closing
        await look_after(server, clock, 2)
        assert await client.is_closed()
    assert f"closed: {why}" in caplog.text


async def test_a_byte_now_and_then_is_not_enough(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as client:
        (connection,) = await connected(server)
        client.writer.write(b"\0\0\1\0")
        await until(lambda: connection.is_receiving)
        for number in range(1, 200):
            client.writer.write(b"x")
            await until(lambda number=number: connection._filled == number or connection.is_closing)
            await look_after(server, clock, 1)
            if connection.is_closing:
                break
        assert 110 < number < 130
        assert await client.is_closed()


@pytest.mark.system
async def test_a_large_request_has_time_by_its_size() -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as client:
        await make(client, "t")
        (connection,) = await connected(server)
        body = b"".join(_wire(produce_request({("t", 0): batch(b"x" * (32 * MIB))})))
        client.writer.write(body[:100])
        await until(lambda: connection.is_receiving)
        await look_after(server, clock, 1_000)  # 32 MiB at 16 bytes a millisecond: 2,097 s
        client.writer.write(body[100:])
        answer = await client.receive(("Produce", 9, 1))
        assert answer.responses[0].partition_responses[0].error_code == 0


@pytest.mark.system
async def test_an_idle_peer_is_sent_away_but_not_one_that_waits(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as waiting, WireClient(server) as idle:
        server.node.apis[12] = Api(12, "Heartbeat", 0, 4, lambda call, _: None)
        await idle.call(VERSIONS, 3)
        waiting.send(m.HeartbeatRequest(), 4)
        await until(lambda: any(connection._calls for connection in server.node.connections))
        await look_after(server, clock, 590)
        assert len(server.node.connections) == 2
        await look_after(server, clock, 20)
        assert await idle.is_closed()
        (left,) = await connected(server, 1)
        assert left.peer_port == _port(waiting)
    assert "closed: idle" in caplog.text


async def test_who_does_not_say_who_it_is(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    listener = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
    security = SecurityConfig(users={"a": "secret"})
    async with serving(clock, listeners=(listener,), security=security) as server, WireClient(server) as client:
        for _ in range(4):
            await client.call(VERSIONS, 3)  # it speaks, and speaks
            await look_after(server, clock, 10)
        assert await client.is_closed()
    assert "closed: it does not say who it is" in caplog.text


@pytest.mark.system
async def test_a_peer_that_takes_no_answers_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as client, WireClient(server) as slow:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"x" * (40 * MIB)))).error_code == 0
        slow.writer.transport.pause_reading()
        slow.send(fetch_request({("t", 0): 0}, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 11)
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(slow)]
        await until(lambda: connection._write_paused)
        await settled(connection)
        await look_after(server, clock, 119)
        assert not connection.is_closing
        while not connection.is_closing:  # what the system still takes by itself gives it more time, but not for ever
            await look_after(server, clock, 121)
        await connected(server, 1)
        assert (await client.call(VERSIONS, 3)).error_code == 0
    assert "cut off: it does not take its answers" in caplog.text


async def settled(connection: Connection) -> None:
    """What the system's buffers take has gone there."""
    assert connection._transport is not None
    unsent, same = -1, 0
    while same < 200:
        await asyncio.sleep(0)
        now = connection._transport.get_write_buffer_size()
        unsent, same = now, same + 1 if now == unsent else 0


@pytest.mark.system
async def test_a_peer_that_takes_a_little_now_and_then_is_kept() -> None:
    clock = FakeClock()
    async with serving(clock) as server, WireClient(server) as client, WireClient(server) as slow:
        await make(client, "t")
        assert (await produce(client, "t", 0, batch(b"x" * (40 * MIB)))).error_code == 0
        slow.send(fetch_request({("t", 0): 0}, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 11)
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(slow)]
        await until(lambda: connection._write_paused)
        assert connection._transport is not None
        data = b""
        for _ in range(3):
            data += await slow.reader.readexactly(4 * MIB)
            await look_after(server, clock, 100)
        assert not connection.is_closing
        size = int.from_bytes(data[:4], "big")
        data += await slow.reader.readexactly(4 + size - len(data))
        assert b"x" * (40 * MIB) in data


async def test_the_system_looks_after_peers_that_went_without_a_word() -> None:
    async with serving() as server, WireClient(server):
        (connection,) = await connected(server)
        assert connection._transport is not None
        sock = connection._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


@pytest.mark.system
async def test_stopping_does_not_wait_for_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eventbus.server.server._CLOSING_SECONDS", 0.05)
    async with serving() as server, WireClient(server) as client, WireClient(server) as slow:
        await make(client, "t")
        await produce(client, "t", 0, batch(b"x" * (40 * MIB)))
        slow.writer.transport.pause_reading()
        slow.send(fetch_request({("t", 0): 0}, max_bytes=50 * MIB, partition_max_bytes=50 * MIB), 11)
        (connection,) = [each for each in server.node.connections if each.peer_port == _port(slow)]
        await until(lambda: connection._write_paused)
        await server.aclose()
        assert connection.is_closing
