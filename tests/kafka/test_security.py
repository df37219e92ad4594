"""TLS and SASL through kafka://: librdkafka's connections and our own go by the same settings."""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

from eventbus import EventBus
from eventbus.backends.kafka.tokens import Tokens, unsecured
from eventbus.errors import ConfigError, CoordinatorNotAvailable
from eventbus.server import Listener, ServerConfig
from eventbus.server.config import Tls
from eventbus.server.security.config import SecurityConfig
from eventbus.testing import KafkaServer
from tests.kafka.listeners import Listeners
from tests.kafka.urls import bus_url

pytestmark = [pytest.mark.system, pytest.mark.xdist_group("kafka")]

PEM = Path(__file__).resolve().parents[1] / "server" / "tls"
CA = {"ssl_ca_location": str(PEM / "server.pem")}
LOGIN = {"sasl_username": "alice", "sasl_password": "wonderland"}
TOKEN = {"sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_config": "principal=bearer scope=read,write"}


async def use(bootstrap: str, **settings: Any) -> None:
    """All three kinds of connections: a producer's, a consumer's, the admin client's; and our own."""
    topic = f"secured-{time.monotonic_ns()}"
    async with EventBus(bus_url(bootstrap), **settings) as bus:
        await bus.admin.create_topic(topic)
        await bus.send(topic, b"hello")
        async with bus.new_consumer(topic, group=topic) as consumer:
            assert [record.value for record in await consumer.poll(timeout_ms=20_000)] == [b"hello"]
            await consumer.commit()
        assert topic in {one.group for one in await bus.admin.list_groups()}
        assert [at.offset for at in (await bus.admin.group_offsets(topic)).values()] == [1]


async def refused(bootstrap: str, **settings: Any) -> str:
    begin = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        async with EventBus(f"kafka://{bootstrap}", **settings):
            pass
    assert time.monotonic() - begin < 8  # not after ten seconds of trying
    return str(caught.value)


def secured(protocol: Any, **tls: Any) -> ServerConfig:
    return ServerConfig(
        listeners=(Listener(name="SECURED", security_protocol=protocol, port=0),),
        tls=Tls(certificate_file=str(PEM / "server.pem"), **tls) if protocol.endswith("SSL") else None,
        security=SecurityConfig(users={"alice": "wonderland"}),
    )


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_passwords_over_tls(mechanism: str) -> None:
    async with KafkaServer(config=secured("SASL_SSL")) as server:
        await use(server.bootstrap, security_protocol="SASL_SSL", sasl_mechanism=mechanism, **LOGIN, **CA)


async def test_a_certificate_of_ones_own() -> None:
    """From a file, and as text."""
    own = (PEM / "client.pem").read_text("ascii")
    async with KafkaServer(config=secured("SSL", ca_file=str(PEM / "client.pem"), client_auth="required")) as server:
        location = str(PEM / "client.pem")
        await use(
            server.bootstrap,
            security_protocol="SSL",
            ssl_certificate_location=location,
            ssl_key_location=location,
            **CA,
        )
        await use(server.bootstrap, security_protocol="SSL", ssl_certificate_pem=own, ssl_key_pem=own, **CA)


async def test_what_is_wrong_is_said_at_once() -> None:
    async with KafkaServer(config=secured("SASL_SSL")) as server:
        good = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **LOGIN, **CA}
        wrong: tuple[tuple[dict[str, Any], str], ...] = (
            ({}, "security.protocol=SASL_SSL, sasl.mechanism=PLAIN or SCRAM"),
            ({"security_protocol": "SSL", **CA}, "speaks SASL_SSL, and security.protocol is SSL"),
            ({**good, "sasl_password": "canary"}, "lets nobody in like that"),
            ({**good, "ssl_ca_location": str(PEM / "stranger.pem")}, "certificate"),
            (
                {**good, **TOKEN, "enable_sasl_oauthbearer_unsecure_jwt": True},
                "takes sasl.mechanism=PLAIN or SCRAM-SHA-256 or SCRAM-SHA-512, and it is OAUTHBEARER",
            ),
        )

        async def check(settings: dict[str, Any], message: str) -> None:
            found = await refused(server.bootstrap, **settings)
            assert message in found and "canary" not in found

        async with anyio.create_task_group() as tasks:  # each is refused after a second
            for settings, message in wrong:
                tasks.start_soon(check, settings, message)


# tokens, as Kafka takes them ------------------------------------------------------------------------------------------


async def test_kafka_takes_a_token_of_a_function(listeners: Listeners) -> None:
    asked: list[str] = []

    def token(config: str) -> tuple[str, float]:
        asked.append(config)
        return unsecured("principal=bearer")[:2]

    settings = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_config": "x=1"}
    await use(listeners.tokens, oauth_cb=token, **settings, **CA)
    assert {*asked} == {"x=1"}


async def test_kafka_takes_a_token_that_nobody_signed(listeners: Listeners) -> None:
    await use(listeners.tokens, security_protocol="SASL_SSL", enable_sasl_oauthbearer_unsecure_jwt=True, **TOKEN, **CA)


async def test_kafka_takes_a_token_of_a_server(listeners: Listeners) -> None:
    with TokenServer() as tokens:
        await use(listeners.tokens, security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER", **tokens.settings, **CA)
    assert {form["scope"] for form in tokens.forms} == {"bus"}


async def test_kafka_refuses_a_token_that_has_ended(listeners: Listeners) -> None:
    def ended(config: str) -> tuple[str, float]:
        return unsecured("principal=bearer lifeSeconds=-60")[0], time.time() + 60

    settings: dict[str, Any] = {"security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER", "oauth_cb": ended}
    assert "lets nobody in like that" in await refused(listeners.tokens, **settings, **CA)


async def test_kafka_knows_a_client_by_its_certificate(listeners: Listeners) -> None:
    own = str(PEM / "client.pem")
    settings = {"ssl_certificate_location": own, "ssl_key_location": own}
    await use(listeners.certificates, security_protocol="SSL", **settings, **CA)
    assert "security.protocol=SSL" in await refused(listeners.certificates)


# where tokens come from -----------------------------------------------------------------------------------------------


class TokenServer:
    """Gives out a token to whoever knows the secret."""

    def __init__(self) -> None:
        self.forms: list[dict[str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                form = self.rfile.read(int(self.headers["Content-Length"])).decode()
                outer.forms.append(dict(urllib.parse.parse_qsl(form)))
                login = base64.b64decode(self.headers["Authorization"].removeprefix("Basic ")).decode()
                answer = {"access_token": unsecured("principal=bearer")[0], "expires_in": 300, "token_type": "Bearer"}
                body = json.dumps(answer).encode() if login == "shop:s3cret" else b"{}"
                self.send_response(200 if login == "shop:s3cret" else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.settings = {
            "sasl_oauthbearer_method": "oidc",
            "sasl_oauthbearer_token_endpoint_url": f"http://127.0.0.1:{self._server.server_port}/token",
            "sasl_oauthbearer_client_id": "shop",
            "sasl_oauthbearer_client_secret": "s3cret",
            "sasl_oauthbearer_scope": "bus",
        }
        self.given = {name.replace("_", "."): value for name, value in self.settings.items()}

    def __enter__(self) -> TokenServer:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_token_is_asked_for_once_while_it_lasts() -> None:
    with TokenServer() as server:
        tokens = Tokens(server.given, None)
        first = tokens.take()
        assert tokens.take() is first
        assert "." not in repr(first).partition("ends_at")[0]  # what is shown of it is no token
        assert len(server.forms) == 1
        refused = Tokens({**server.given, "sasl.oauthbearer.client.secret": "canary"}, None)
        with pytest.raises(ConfigError, match="gives no token to 'shop': 401") as caught:
            refused.take()
        assert "canary" not in str(caught.value)
    with pytest.raises(CoordinatorNotAvailable, match="gives no token"):
        Tokens(server.given, None).take()


def test_a_token_that_ends_is_made_anew() -> None:
    ends = [time.time() + 5, time.time() + 500]
    tokens = Tokens({}, lambda config: (f"token-{len(ends)}", ends.pop(0), "alice", {"traceId": "1"}))
    assert tokens.take().text == "token-2"
    assert (tokens.take().text, tokens.take().extensions) == ("token-1", {"traceId": "1"})


def forgetful(config: str) -> None:
    """A callback without a return."""


@pytest.mark.parametrize(
    ("given", "callback", "message"),
    [
        ({}, None, "needs tokens: oauth_cb="),
        ({}, forgetful, "oauth_cb returned NoneType"),
        ({"sasl.oauthbearer.method": "oidc"}, None, "the https:// address that gives out tokens"),
        (
            {"sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt"},
            None,
            "by client_credentials alone",
        ),
    ],
)
def test_without_a_way_to_a_token(given: dict[str, str], callback: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tokens(given, callback).take()


def test_a_token_that_nobody_signed_needs_a_name() -> None:
    with pytest.raises(ConfigError, match="principal=NAME"):
        unsecured("scope=read")
