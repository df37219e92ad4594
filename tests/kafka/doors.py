"""A real broker with a listener of every kind, permissions, and one listener that a proxy stands in front of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from eventbus.testing import RealKafka
from tests.kafka.targets import kept_ports
from tests.kafka_fixtures import kafka_or_skip

TLS = Path(__file__).resolve().parents[1] / "server" / "tls"
USERS = ("admin", "alice")
KINDS = {"DIRECT": "PLAINTEXT", "PROXIED": "PLAINTEXT", "TLS": "SSL", "LOGIN": "SASL_PLAINTEXT"}


class Doors:
    """Its addresses. The first is the broker's own, for itself and for tests that look behind the proxy."""

    def __init__(self, kafka: RealKafka, ports: dict[str, int], proxy_port: int) -> None:
        self.kafka = kafka
        self.proxy_port = proxy_port
        """What the broker advertises to clients of ``proxied``: here the test has its proxy listen."""
        self.proxied_port = ports["PROXIED"]
        self.direct = f"127.0.0.1:{ports['DIRECT']}"
        self.tls = f"127.0.0.1:{ports['TLS']}"
        self.login = f"127.0.0.1:{ports['LOGIN']}"
        """SASL PLAIN; the password of a user is ``<name>-secret``. Only admin may do anything, until ACLs say so."""

    def url(self, user: str) -> str:
        """As which user."""
        return (
            f"kafka://{self.login}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
            f"&sasl.username={user}&sasl.password={user}-secret"
        )


@pytest.fixture(scope="session")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    kafka = kafka_or_skip(tmp_path_factory, "doors")
    (node,) = kafka.nodes
    *more, proxy_port = kept_ports(kafka, len(KINDS))
    ports = dict(zip(KINDS, (node.port, *more), strict=True))
    own = node.properties["listeners"].partition(",")[2]  # the controller's
    listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    logins = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    node.properties |= {
        "listeners": ",".join((*listeners.values(), own)),
        "advertised.listeners": ",".join((listeners | {"PROXIED": f"PROXIED://127.0.0.1:{proxy_port}"}).values()),
        "listener.security.protocol.map": ",".join(
            ("CONTROLLER:PLAINTEXT", *(f"{name}:{protocol}" for name, protocol in KINDS.items()))
        ),
        "inter.broker.listener.name": "DIRECT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(TLS / "server.pem"),
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f"{module} required {logins};",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:admin",
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    }
    with kafka:
        yield Doors(kafka, ports, proxy_port)
