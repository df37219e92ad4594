"""Who connects: SASL over the wire, by PLAIN and SCRAM, once and again, and what is refused before it."""

from __future__ import annotations

import base64
import logging
from collections.abc import AsyncIterator

import pytest

from eventbus.coordinator.credentials import ScramMechanism, salt_password
from eventbus.errors import ConfigError
from eventbus.protocol import messages as m
from eventbus.server import Listener, ServerConfig
from eventbus.server.security.config import SecurityConfig, is_security_key
from eventbus.testing import KafkaServer
from tests.server.test_scram import prove
from tests.server.wire import WireClient

ILLEGAL_SASL_STATE, UNSUPPORTED_SASL_MECHANISM, SASL_AUTHENTICATION_FAILED = 34, 33, 58
SASL = Listener(name="SASL_PLAINTEXT", security_protocol="SASL_PLAINTEXT", port=0)
PLAINTEXT = Listener(port=0)
USERS = {"alice": "alice-secret", "bob": "bob-secret"}


def server(**settings: object) -> KafkaServer:
    security = SecurityConfig(**{"users": USERS, "connection_failed_authentication_delay_ms": 0, **settings})
    return KafkaServer(config=ServerConfig(listeners=(SASL, PLAINTEXT), security=security))


@pytest.fixture
async def served() -> AsyncIterator[KafkaServer]:
    async with server() as running:
        yield running


async def handshake(client: WireClient, mechanism: str) -> m.SaslHandshakeResponse:
    return await client.call(m.SaslHandshakeRequest(mechanism=mechanism), 1)


async def authenticate(client: WireClient, token: bytes, version: int = 2) -> m.SaslAuthenticateResponse:
    return await client.call(m.SaslAuthenticateRequest(auth_bytes=token), version)


async def plain(client: WireClient, user: str, password: str) -> m.SaslAuthenticateResponse:
    assert (await handshake(client, "PLAIN")).error_code == 0
    return await authenticate(client, f"\0{user}\0{password}".encode())


async def scram(client: WireClient, kind: ScramMechanism, user: str, password: str) -> m.SaslAuthenticateResponse:
    assert (await handshake(client, kind.title)).error_code == 0
    first = f"n,,n={user},r=abcdefgh".encode()
    challenge = await authenticate(client, first)
    assert challenge.error_code == 0
    return await authenticate(client, prove(kind, password, first, challenge.auth_bytes))


async def is_in(client: WireClient) -> bool:
    """Whether the server answers what only somebody known may ask."""
    client.send(m.MetadataRequest(topics=[]), 9)
    return not await client.is_closed()


def principals(running: KafkaServer) -> list[str]:
    return [connection.principal for connection in running.node.connections]


async def test_plain(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        assert (await plain(client, "alice", "alice-secret")).error_code == 0
        assert principals(served) == ["User:alice"]
        assert await is_in(client)


@pytest.mark.parametrize("kind", [ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512])
async def test_scram_with_a_user_of_the_settings(served: KafkaServer, kind: ScramMechanism) -> None:
    async with WireClient(served) as client:
        answer = await scram(client, kind, "alice", "alice-secret")
        assert answer.error_code == 0
        assert answer.auth_bytes.startswith(b"v=")
        assert principals(served) == ["User:alice"]
        assert await is_in(client)


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0wrong",
        b"\0alice\0",
        b"\0nobody\0",
        b"\0\0",
        b"",
        b"alice\0alice-secret",
        b"bob\0alice\0alice-secret",
        b"\0alice\0alice-secret\0",
        b"\0\xff\0alice-secret",
    ],
)
async def test_plain_tokens_that_are_refused(served: KafkaServer, token: bytes) -> None:
    async with WireClient(served) as client:
        await handshake(client, "PLAIN")
        answer = await authenticate(client, token)
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert "secret" not in (answer.error_message or "")
        assert await client.is_closed()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
async def test_long_messages_are_not_looked_at(served: KafkaServer, mechanism: str) -> None:
    async with WireClient(served) as client:
        await handshake(client, mechanism)
        answer = await authenticate(client, b"n,,n=" + b"a" * 8_192)
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert "8,197 bytes" in (answer.error_message or "")


async def test_a_wrong_proof_is_refused(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        answer = await scram(client, ScramMechanism.SCRAM_SHA_256, "alice", "wrong")
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


async def test_finished_is_not_authenticated(served: KafkaServer) -> None:
    """Half of an exchange, then a request as if all were done."""
    async with WireClient(served) as client:
        await handshake(client, "SCRAM-SHA-256")
        assert (await authenticate(client, b"n,,n=alice,r=abc")).error_code == 0
        assert principals(served) == ["User:ANONYMOUS"]
        assert not await is_in(client)


async def test_nothing_is_served_before_authentication_but_what_leads_to_it(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        assert (await client.call(m.ApiVersionsRequest(), 0)).error_code == 0
        assert not await is_in(client)
    async with WireClient(served) as client:
        await handshake(client, "PLAIN")
        assert not await is_in(client)


async def test_a_mechanism_that_is_not_offered_names_those_that_are(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        answer = await handshake(client, "GSSAPI")
        assert answer.error_code == UNSUPPORTED_SASL_MECHANISM
        assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
        assert await client.is_closed()


async def test_a_listener_may_offer_mechanisms_of_its_own() -> None:
    async with server(listener_mechanisms={"sasl_plaintext": ("SCRAM-SHA-512",)}) as running:
        async with WireClient(running) as client:
            answer = await handshake(client, "PLAIN")
            assert (answer.error_code, answer.mechanisms) == (UNSUPPORTED_SASL_MECHANISM, ["SCRAM-SHA-512"])
        async with WireClient(running) as client:
            assert (await scram(client, ScramMechanism.SCRAM_SHA_512, "alice", "alice-secret")).error_code == 0


async def test_authenticate_without_a_handshake(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        answer = await authenticate(client, b"\0alice\0alice-secret")
        assert answer.error_code == ILLEGAL_SASL_STATE
        assert await client.is_closed()


async def test_a_second_token_needs_a_second_handshake(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        await plain(client, "alice", "alice-secret")
        answer = await authenticate(client, b"\0alice\0alice-secret")
        assert answer.error_code == ILLEGAL_SASL_STATE
        assert await is_in(client), "who was known before stays known"


async def test_a_listener_without_sasl_says_so(served: KafkaServer) -> None:
    async with WireClient(served, listener=1) as client:
        assert (await handshake(client, "PLAIN")).error_code == ILLEGAL_SASL_STATE
        assert (await authenticate(client, b"\0alice\0alice-secret")).error_code == ILLEGAL_SASL_STATE
        assert principals(served) == ["User:ANONYMOUS"]
        assert await is_in(client)


# again, on the same connection (KIP-368) -----------------------------------------------------------------------------


async def test_the_session_has_a_lifetime_and_is_made_anew_on_the_same_connection() -> None:
    async with server(connections_max_reauth_ms=3_600_000) as running, WireClient(running) as client:
        for _ in range(3):
            assert (await plain(client, "alice", "alice-secret")).session_lifetime_ms == 3_600_000
        assert await is_in(client)


async def test_versions_before_lifetimes_are_not_told_of_them() -> None:
    async with server(connections_max_reauth_ms=3_600_000) as running, WireClient(running) as client:
        await handshake(client, "PLAIN")
        assert (await authenticate(client, b"\0alice\0alice-secret", 0)).session_lifetime_ms == 0


async def test_a_session_that_is_over_serves_nothing_but_authentication() -> None:
    async with server(connections_max_reauth_ms=3_600_000) as running, WireClient(running) as client:
        await plain(client, "alice", "alice-secret")
        (connection,) = running.node.connections
        connection.is_authenticated = False  # as the timer does it
        assert (await plain(client, "alice", "alice-secret")).error_code == 0
        assert await is_in(client)
    async with server(connections_max_reauth_ms=1) as running, WireClient(running) as client:
        await plain(client, "alice", "alice-secret")
        while True:  # until the millisecond is over
            client.send(m.MetadataRequest(topics=[]), 9)
            try:
                await client.receive_raw()
            except (EOFError, OSError):
                break


async def test_another_user_or_mechanism_on_the_same_connection_is_refused(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        await plain(client, "alice", "alice-secret")
        answer = await plain(client, "bob", "bob-secret")
        assert answer.error_code == SASL_AUTHENTICATION_FAILED
        assert "Cannot change principals" in (answer.error_message or "")
        assert await client.is_closed()
    async with WireClient(served) as client:
        await plain(client, "alice", "alice-secret")
        assert (await handshake(client, "SCRAM-SHA-256")).error_code == ILLEGAL_SASL_STATE
        assert await client.is_closed()


async def test_a_failure_takes_away_what_was_proved_before(served: KafkaServer) -> None:
    async with WireClient(served) as client:
        await plain(client, "alice", "alice-secret")
        assert (await plain(client, "alice", "wrong")).error_code == SASL_AUTHENTICATION_FAILED
        assert await client.is_closed()


# guessing ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "request_",
    [
        m.SaslHandshakeRequest(mechanism="PLAIN"),
        m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret"),
        m.MetadataRequest(topics=[]),
    ],
)
async def test_a_refused_peer_waits_and_nothing_more_is_taken_from_it(request_: object) -> None:
    """Also from one that was known before: no second guess, and no request meanwhile."""
    async with server(connection_failed_authentication_delay_ms=3_600_000) as running, WireClient(running) as client:
        await plain(client, "alice", "alice-secret")
        await handshake(client, "PLAIN")
        client.send(m.SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        client.send(request_, 1)
        assert await client.is_closed(), "no answer to either"


def test_the_fifth_failure_of_an_address_waits_longer() -> None:
    from eventbus.server.security.security import Failures

    failures = Failures(100)
    assert [failures.failed("10.0.0.1", now_ms) for now_ms in range(6)] == [100, 100, 100, 100, 1_000, 1_000]
    assert failures.failed("10.0.0.2", 6) == 100
    assert failures.failed("10.0.0.1", 70_000) == 100, "a minute later"
    failures.succeeded("10.0.0.1")
    assert failures.failed("10.0.0.1", 70_001) == 100


# secrets -------------------------------------------------------------------------------------------------------------


async def test_secrets_are_in_no_log_and_no_repr(caplog: pytest.LogCaptureFixture) -> None:
    canary = "c4n4ry-p4ssw0rd"
    caplog.set_level(logging.DEBUG)
    async with server(users={"alice": canary}) as running:
        for user, password in (("alice", canary), ("alice", canary + "x"), (canary, "x")):
            async with WireClient(running) as client:
                await plain(client, user, password)
            async with WireClient(running) as client:
                await scram(client, ScramMechanism.SCRAM_SHA_512, user, password)
        async with WireClient(running, listener=1) as client:
            broker = m.DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=4, resource_name="1", configuration_keys=None
            )
            told = await client.call(m.DescribeConfigsRequest(resources=[broker], include_synonyms=True), 4)
            assert told.results[0].configs
            assert canary not in repr(told)
        assert canary not in repr(running.config)
        assert canary not in str(running.config.security)
        for connection in running.node.connections:
            assert canary not in repr(connection.session)
    salted = salt_password(ScramMechanism.SCRAM_SHA_512, canary, b"salt", 4_096)
    for secret in (canary, salted.hex(), base64.b64encode(salted).decode(), repr(salted)):
        assert secret not in caplog.text


# settings ------------------------------------------------------------------------------------------------------------


def test_settings_of_a_kafka_brokers_properties() -> None:
    config = SecurityConfig.from_properties(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin; User:root",
            "allow.everyone.if.no.acl.found": "true",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
            "listener.name.inside.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "connections.max.reauth.ms": "60000",
            "quota.window.num": "5",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                'username="broker" password="other" user_admin="a=b;\\"c" user_bob=simple;'
            ),
        }
    )
    assert config.users == {"admin": 'a=b;"c', "bob": "simple"}
    assert config.acls
    assert config.allow_everyone_if_no_acl_found
    assert config.super_users == ("User:admin", "User:root")
    assert config.sasl_enabled_mechanisms == ("PLAIN", "SCRAM-SHA-256")
    assert config.mechanisms_of("INSIDE") == ("SCRAM-SHA-512",)
    assert config.mechanisms_of("OUTSIDE") == ("PLAIN", "SCRAM-SHA-256")
    assert (config.connections_max_reauth_ms, config.quota_window_num) == (60_000, 5)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("sasl.enabled.mechanisms", "GSSAPI", "there are PLAIN"),
        ("listener.name.inside.sasl.enabled.mechanisms", "SCRAM-SHA-1", "there are PLAIN"),
        ("authorizer.class.name", "com.example.Mine", "only Kafka's own"),
        ("super.users", "admin", "write User:NAME"),
        ("allow.everyone.if.no.acl.found", "yes", "true or false"),
        ("connections.max.reauth.ms", "soon", "whole number"),
        ("connections.max.reauth.ms", "-1", "a whole number of milliseconds, at least 0"),
        ("sasl.jaas.config", 'x required user_a="";', "neither of them empty"),
    ],
)
def test_settings_that_cannot_be(key: str, value: str, why: str) -> None:
    assert is_security_key(key)
    with pytest.raises(ConfigError, match=why):
        SecurityConfig.from_properties({key: value})


def test_one_user_has_one_password() -> None:
    with pytest.raises(ConfigError, match="another password") as refused:
        SecurityConfig.from_properties(
            {
                "listener.name.a.plain.sasl.jaas.config": 'x required user_alice="s3cret-one";',
                "listener.name.b.plain.sasl.jaas.config": 'x required user_alice="s3cret-two";',
            }
        )
    assert "s3cret" not in str(refused.value)
