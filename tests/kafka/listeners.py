"""A broker with a listener of every kind, an authorizer, and one listener that is reached through a proxy."""

from __future__ import annotations

from pathlib import Path

from eventbus.testing import RealKafka
from tests.ports import kept_ports

TLS = Path(__file__).resolve().parents[1] / "server" / "tls"
USERS = ("admin", "alice")
KINDS = {
    "PLAINTEXT": "PLAINTEXT",
    "PROXIED": "PLAINTEXT",
    "TLS": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "TOKENS": "SASL_SSL",
    "CERTIFICATES": "SSL",
}
"""The listeners of ``real`` and their security protocols."""


class Listeners:
    """The addresses of the broker ``kafka``, which has a listener of every kind and an authorizer.

    Clients of the plaintext listeners, bearers of tokens and owners of the certificate are super users.
    """

    def __init__(self, kafka: RealKafka) -> None:
        self.kafka = kafka
        (node,) = kafka.nodes
        *more, self.proxy_port = kept_ports(kafka, len(KINDS))
        ports = dict(zip(KINDS, (node.port, *more), strict=True))
        self.proxied_port = ports["PROXIED"]
        """The broker advertises ``proxy_port`` to clients of this listener: tests start a proxy there."""
        self.plaintext = node.bootstrap
        self.tls, self.login, self.tokens, self.certificates = (
            f"127.0.0.1:{ports[name]}" for name in ("TLS", "LOGIN", "TOKENS", "CERTIFICATES")
        )
        """On ``login`` (SASL PLAIN) a user's password is ``<name>-secret``. Without ACLs, only admin is authorized."""
        self._configure(ports)

    def url(self, user: str) -> str:
        """Return the URL of the ``login`` listener for a user."""
        return (
            f"kafka://{self.login}?security.protocol=SASL_PLAINTEXT&sasl.mechanism=PLAIN"
            f"&sasl.username={user}&sasl.password={user}-secret"
        )

    def _configure(self, ports: dict[str, int]) -> None:
        (node,) = self.kafka.nodes
        controller = node.properties["listeners"].partition(",")[2]
        bound = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
        advertised = bound | {"PROXIED": f"PROXIED://127.0.0.1:{self.proxy_port}"}
        logins = " ".join(f'user_{user}="{user}-secret"' for user in USERS)
        plain = "org.apache.kafka.common.security.plain.PlainLoginModule"
        bearer = "org.apache.kafka.common.security.oauthbearer"
        node.properties |= {
            "listeners": ",".join((*bound.values(), controller)),
            "advertised.listeners": ",".join(advertised.values()),
            "listener.security.protocol.map": ",".join(
                ("CONTROLLER:PLAINTEXT", *(f"{name}:{protocol}" for name, protocol in KINDS.items()))
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(TLS / "server.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(TLS / "client.pem"),
            "listener.name.certificates.ssl.client.auth": "required",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"{plain} required {logins};",
            "listener.name.tokens.sasl.enabled.mechanisms": "OAUTHBEARER",
            "listener.name.tokens.oauthbearer.sasl.jaas.config": (
                f'{bearer}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="me";'
            ),
            "listener.name.tokens.oauthbearer.sasl.server.callback.handler.class": (
                f"{bearer}.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS;User:admin;User:bearer;User:CN=client of the tests",
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
        }
