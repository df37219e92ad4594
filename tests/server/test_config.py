"""Listeners, and what keeps a log from being open to everybody."""

from __future__ import annotations

import pytest

from eventbus.errors import ConfigError
from eventbus.server import Listener, Server, ServerConfig
from eventbus.server.config import Tls, split_address
from eventbus.testing import KafkaServer
from tests.server.wire import WireClient


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("PLAINTEXT://127.0.0.1:9092", ("PLAINTEXT", "127.0.0.1", 9092)),
        ("127.0.0.1", ("", "127.0.0.1", 9092)),
        ("bus.example.org:1", ("", "bus.example.org", 1)),
        ("SASL_SSL://[::1]:9093", ("SASL_SSL", "::1", 9093)),
        ("PLAINTEXT://:0", ("PLAINTEXT", "", 0)),
    ],
)
def test_addresses(text: str, parts: tuple[str, str, int]) -> None:
    assert split_address(text) == parts


@pytest.mark.parametrize("text", ["a b://x", "host:port", "host:99999", "::1", "PLAINTEXT://h:1/path", "[::1"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a listener"):
        split_address(text)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "localhost", "::1"])
def test_this_machine_alone_needs_nothing(host: str) -> None:
    ServerConfig(listeners=(Listener(host=host),)).check()


@pytest.mark.parametrize("host", ["", "0.0.0.0", "192.168.1.2", "::", "bus.example.org"])
@pytest.mark.parametrize(("protocol", "missing"), [("PLAINTEXT", "TLS and SASL"), ("SASL_PLAINTEXT", "TLS:")])
def test_other_machines_need_tls_and_sasl_unless_told_otherwise(host: str, protocol: str, missing: str) -> None:
    listener = Listener(host=host, security_protocol=protocol)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=f"can be reached from other machines, without {missing}"):
        ServerConfig(listeners=(listener,)).check()
    ServerConfig(listeners=(listener,), insecure=True).check()


def test_tls_without_a_certificate() -> None:
    with pytest.raises(ConfigError, match="name the certificate it shows"):
        ServerConfig(listeners=(Listener(name="SSL", security_protocol="SSL"),)).check()


def test_a_certificate_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"missing\.pem: .*No such file"):
        Tls(certificate_file="missing.pem").context()


def test_the_password_of_a_key_is_not_shown() -> None:
    config = ServerConfig(tls=Tls(certificate_file="server.pem", key_password="canary"))
    assert "canary" not in f"{config!r} {config.tls}"
    assert "Tls(certificate_file='server.pem', key_file='', key_password='***'" in repr(config)
    assert repr(Tls(certificate_file="s.pem")).count("''") == 3


def test_two_listeners_of_one_name() -> None:
    with pytest.raises(ConfigError, match="two listeners called 'PLAINTEXT'"):
        ServerConfig(listeners=(Listener(), Listener(port=1))).check()


async def test_a_port_in_use_is_told_and_the_log_is_let_go() -> None:
    async with KafkaServer() as first:
        taken = Listener(port=first.listeners[0].port)
        second = KafkaServer(config=ServerConfig(listeners=(taken,)))
        with pytest.raises(ConfigError, match=rf"port {taken.port} of 127\.0\.0\.1 is in use"):
            await second.start()
        async with second.bus() as bus:  # nobody holds it
            await bus.admin.list_topics()


async def test_a_port_that_is_free_is_taken_and_advertised() -> None:
    config = ServerConfig(
        listeners=(Listener(port=0), Listener(name="OTHER", port=0, advertised_host="bus.example.org"))
    )
    async with KafkaServer(config=config) as server:
        first, other = server.listeners
        assert first.port and other.port and first.port != other.port
        assert server.bootstrap == f"127.0.0.1:{first.port},bus.example.org:{other.port}"


async def test_localhost_listens_on_both_of_its_addresses() -> None:
    async with (
        KafkaServer(config=ServerConfig(listeners=(Listener(host="localhost", port=0),))) as server,
        WireClient(server) as client,
    ):
        assert client.writer.get_extra_info("peername")[1] == server.listeners[0].port
        assert server.bootstrap == f"localhost:{server.listeners[0].port}"


def test_a_cluster_is_not_served() -> None:
    with pytest.raises(ConfigError):
        Server("kafka://127.0.0.1:1")


def test_in_a_thread() -> None:
    with KafkaServer() as server:
        assert server.bootstrap.startswith("127.0.0.1:")
        taken = ServerConfig(listeners=(Listener(port=server.listeners[0].port),))
        with pytest.raises(ConfigError, match="is in use"), KafkaServer(config=taken):
            pass
    with KafkaServer(config=taken):  # the port is free again
        pass


def test_a_bus_on_a_server_in_a_thread_is_told_what_to_do() -> None:
    with KafkaServer() as server, pytest.raises(ConfigError, match=rf"async with KafkaServer.*{server.bootstrap}"):
        server.bus()


async def test_a_server_has_an_address_once_it_is_started_and_starts_once() -> None:
    server = KafkaServer()
    with pytest.raises(ConfigError, match="not started"):
        _ = server.bootstrap
    async with server:
        with pytest.raises(ConfigError, match="started already"):
            await server.start()
        assert server.bootstrap.startswith("127.0.0.1:")


def test_the_fixture(kafka_server: KafkaServer) -> None:
    assert kafka_server.node.connections == set()
