"""Settings of a server, in addition to those of its log (`eventbus.broker.BrokerConfig`)."""

from __future__ import annotations

import ipaddress
import re
import ssl
from typing import Literal, get_args

import msgspec

from eventbus.errors import ConfigError
from eventbus.server.security.config import SecurityConfig

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
SECURITY_PROTOCOLS: tuple[SecurityProtocol, ...] = get_args(SecurityProtocol)
ClientAuth = Literal["none", "requested", "required"]
"""Client certificates of TLS peers (``ssl.client.auth``): not requested, optional or mandatory."""
DEFAULT_PORT = 9092

_LISTENER = re.compile(
    r"(?:(?P<name>[A-Za-z0-9_]+)://)?(?:\[(?P<ipv6>[^\]]*)\]|(?P<host>[^:\[\]]*))(?::(?P<port>\d+))?"
)


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """An address that clients connect to, and the address that metadata advertises for it."""

    name: str = "PLAINTEXT"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    host: str = "127.0.0.1"
    """The interface to bind; empty for every interface."""
    port: int = DEFAULT_PORT
    """The port to bind; 0 for a free port."""
    advertised_host: str = ""
    """The host that Metadata sends to clients. Empty: `host`."""
    advertised_port: int = 0
    """The port that Metadata sends to clients. 0: `port`."""

    @property
    def has_tls(self) -> bool:
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def has_sasl(self) -> bool:
        return self.security_protocol in ("SASL_PLAINTEXT", "SASL_SSL")

    @property
    def is_loopback(self) -> bool:
        """True if only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def url(self) -> str:
        """The address as Kafka writes it: ``PLAINTEXT://127.0.0.1:9092``."""
        return f"{self.name}://{format_address(self.host, self.port)}"


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """Certificates of a listener with TLS, in PEM files."""

    certificate_file: str
    """The certificate chain, and the private key unless `key_file` has it."""
    key_file: str = ""
    key_password: str = ""
    ca_file: str = ""
    """The authorities whose client certificates are trusted."""
    client_auth: ClientAuth = "none"

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        if self.key_password:
            shown["key_password"] = "***"
        return f"Tls({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    def context(self) -> ssl.SSLContext:
        """Return the TLS context. Raises ConfigError if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self.certificate_file, self.key_file or None, lambda: self.key_password)
            if self.ca_file:
                context.load_verify_locations(self.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"TLS with {', '.join(file for file in (self.certificate_file, self.key_file, self.ca_file) if file)}: "
                f"{error}; PEM files with the certificate chain and its private key are needed"
            ) from None
        if self.client_auth != "none":
            if not self.ca_file:
                raise ConfigError(
                    f"client certificates are {self.client_auth}: name the CA file that they are checked by"
                )
            context.verify_mode = ssl.CERT_REQUIRED if self.client_auth == "required" else ssl.CERT_OPTIONAL
        return context


def format_address(host: str, port: int) -> str:
    """Return ``host:port``, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str, *, default_port: int = DEFAULT_PORT) -> tuple[str, str, int]:
    """Split ``NAME://host:port`` into ``(name, host, port)``; the name may be missing. Raises ConfigError."""
    found = _LISTENER.fullmatch(text)
    if found is not None and found["port"] is not None and int(found["port"]) > 65_535:
        raise ConfigError(f"{text!r} is not a listener: ports end at 65535")
    port = default_port if found is None or found["port"] is None else int(found["port"])
    if found is None:
        raise ConfigError(
            f"{text!r} is not a listener: write NAME://HOST:PORT, say PLAINTEXT://127.0.0.1:9092 (an IPv6 address in "
            "brackets; port 0 for a free one)"
        )
    return found["name"] or "", found["ipv6"] or found["host"] or "", port


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one server, described by `eventbus.settings.server`."""

    listeners: tuple[Listener, ...] = (Listener(),)
    tls: Tls | None = None
    """TLS settings for the listeners that use it."""
    security: SecurityConfig = SecurityConfig()
    insecure: bool = False
    accept_replication_factor: bool = False
    socket_request_max_bytes: int = 104_857_600
    unauthenticated_request_max_bytes: int = 65_536
    connection_in_flight_max_bytes: int = 134_217_728
    in_flight_max_bytes: int = 536_870_912
    connection_in_flight_max: int = 1_000
    max_connections: int = 20_000
    max_connections_per_ip: int = 20_000
    connections_max_idle_ms: int = 600_000
    handshake_timeout_ms: int = 30_000
    request_timeout_ms: int = 120_000

    def check(self) -> None:
        """Raise ConfigError for invalid settings, and for those that would open the log to everybody."""
        if not self.listeners:
            raise ConfigError("a server without a listener: name one, say PLAINTEXT://127.0.0.1:9092")
        names = [listener.name for listener in self.listeners]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(f"two listeners called {name!r}: give each a name of its own")
        for listener in self.listeners:
            if listener.has_tls and self.tls is None:
                raise ConfigError(f"listener {listener.url} has TLS: name the certificate it shows (--tls-cert FILE)")
            is_open = not (listener.has_tls and listener.has_sasl)
            if not listener.is_loopback and is_open and not self.insecure:
                raise ConfigError(
                    f"listener {listener.url} can be reached from other machines, without "
                    f"{'TLS' if listener.has_sasl else 'SASL' if listener.has_tls else 'TLS and SASL'}: use a SASL_SSL "
                    "listener, bind it to 127.0.0.1, or say --insecure if everybody there may read and write"
                )
