"""Send requests that ``confluent-kafka`` has no call for, with our own codec: blocking, for a thread.

TLS and SASL follow librdkafka's settings.
"""

from __future__ import annotations

import socket
import ssl
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from eventbus.backends.kafka.sasl import authenticate
from eventbus.backends.kafka.settings import ClientSettings
from eventbus.errors import ConfigError, CoordinatorNotAvailable, EventBusError, RequestTimedOut
from eventbus.protocol import API_KEYS, MalformedMessage, reader, request_header, response_header, writer
from eventbus.protocol import messages as m
from eventbus.types import TopicPartition

_SIZE = struct.Struct(">i")
_MOST_BYTES = 104_857_600
_TURN_SECONDS = 30.0
"""How long to use a broker before the next one has its turn."""
_CLIENT_ID = "eventbus-admin"
_KEYS = {schema.name: schema for schema in API_KEYS.values()}
Address = tuple[str, int]


class Connection:
    """A connection to a broker, with its supported versions."""

    def __init__(self, address: Address, settings: ClientSettings, timeout_seconds: float) -> None:
        self.address = address
        self._correlation_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._socket = _open(address, settings, timeout_seconds)
        try:
            answer = self.call(m.ApiVersionsRequest(), 0)
            self._versions = {one.api_key: (one.min_version, one.max_version) for one in answer.api_keys}
            if settings.security_protocol.startswith("SASL"):
                authenticate(self.call, settings, settings.tokens)
        except BaseException:
            self.close()
            raise

    def version(self, api: str, most: int) -> int:
        """Return the highest version that both sides support. Raises ConfigError if there is none."""
        schema = _KEYS[api]
        lowest, highest = self._versions.get(schema.key, (0, -1))
        version = min(highest, schema.max_version, most)
        if version < max(lowest, schema.min_version):
            raise ConfigError(f"the broker at {_named(self.address)} does not serve {api}: it is too old for this")
        return version

    def call(self, request: Any, version: int) -> Any:
        """Send a request and wait for its response. Raises RequestTimedOut, CoordinatorNotAvailable."""
        self._correlation_id += 1
        api = type(request).__name__.removesuffix("Request")
        try:
            return exchange(self._socket, request, version, self._correlation_id)
        except TimeoutError:
            raise RequestTimedOut(f"{_named(self.address)} has not answered {api} in time") from None
        except (OSError, MalformedMessage) as error:
            raise CoordinatorNotAvailable(f"{_named(self.address)} did not answer {api}: {error}") from None

    def limit(self, timeout_seconds: float) -> None:
        """Limit the wait for each part of an answer."""
        self._socket.settimeout(timeout_seconds)

    def close(self) -> None:
        self._socket.close()


class Wire:
    """Connections to the brokers of a cluster, kept between requests. Thread-safe: each request uses one
    exclusively."""

    def __init__(self, settings: ClientSettings, timeout_seconds: float) -> None:
        self._settings = settings
        self._timeout_seconds = timeout_seconds
        self._lock = threading.Lock()
        self._idle: dict[Address, list[Connection]] = {}
        self._is_open = True
        """If false, connections of requests that were abandoned, or had not begun, are closed when they are
        returned."""
        self.brokers: tuple[Address, ...] = ()
        """The brokers in the latest metadata, for use if no broker in the URL answers."""
        self.leaders: dict[TopicPartition, Address] = {}
        """The leaders of partitions in their latest metadata, without those that have since failed a request."""
        self._turn = 0
        self._failed: set[Address] = set()
        """Brokers that did not answer in this turn: they are tried last."""

    def call(
        self, request: Any, most: int = 99, at: Address | None = None, timeout_seconds: float | None = None
    ) -> Any:
        """Send a request to a broker (by default any), in the highest version up to ``most``."""
        return self.ask(lambda _: request, type(request).__name__.removesuffix("Request"), most, at, timeout_seconds)

    def ask(
        self,
        make: Callable[[int], Any],
        api: str,
        most: int = 99,
        at: Address | None = None,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a request that depends on the version. ``timeout_seconds``: for each broker that is tried."""
        addresses = self._any() if at is None else [at]
        for number, address in enumerate(addresses, 1):
            try:
                return self._ask(address, make, api, most, timeout_seconds or self._timeout_seconds)
            except EventBusError as error:
                # Only a broker that does not answer is a reason to try another one. A refusal would be repeated by all
                # of them.
                if not error.retriable or number == len(addresses):
                    raise
                self._failed.add(address)
        raise AssertionError("there is a broker, or reading the URL would have refused it")

    def _ask(self, address: Address, make: Callable[[int], Any], api: str, most: int, timeout_seconds: float) -> Any:
        known = self._take(address)
        if known is not None:
            known.limit(timeout_seconds)
            try:
                return self._ask_by(known, make, api, most)
            except CoordinatorNotAvailable:  # closed for being idle; none of our requests is harmful if repeated
                pass
        return self._ask_by(Connection(address, self._settings, timeout_seconds), make, api, most)

    def _ask_by(self, connection: Connection, make: Callable[[int], Any], api: str, most: int) -> Any:
        try:
            version = connection.version(api, most)
            answer = connection.call(make(version), version)
        except BaseException:
            # The stream may be in the middle of an answer, so the connection cannot be used again.
            connection.close()
            raise
        with self._lock:
            if self._is_open:
                self._idle.setdefault(connection.address, []).append(connection)
            else:
                connection.close()
        return answer

    def _take(self, address: Address) -> Connection | None:
        with self._lock:
            idle = self._idle.get(address)
            return idle.pop() if idle else None

    def _any(self) -> list[Address]:
        """Return all brokers, in each turn beginning with another.

        A broker that is cut off from the others, but not from its clients, returns outdated metadata for as long as it
        is used. (librdkafka does use one such broker, and then waits until the cluster is whole again. It acknowledges
        nothing meanwhile.) A single broker per turn is used, because a topic that was just created is not known to all
        of them.
        """
        addresses = list(dict.fromkeys((*self._settings.addresses, *self.brokers)))
        turn = int(time.monotonic() // _TURN_SECONDS)
        if turn != self._turn:
            self._turn = turn
            self._failed.clear()
        first = turn % len(addresses)
        return sorted(addresses[first:] + addresses[:first], key=self._failed.__contains__)

    def open(self) -> None:
        """Keep connections again, after `close`."""
        with self._lock:
            self._is_open = True

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            for idle in self._idle.values():
                for connection in idle:
                    connection.close()
            self._idle.clear()
            self.leaders.clear()


def exchange(connection: socket.socket, request: Any, version: int, number: int = 1) -> Any:
    """Send a request with a correlation id, and wait for its response. Raises OSError, MalformedMessage."""
    api = type(request).__name__.removesuffix("Request")
    key = _KEYS[api].key
    frame = request_header(key, version, number, _CLIENT_ID)
    body = b"".join([bytes(part) for part in writer(f"{api}Request", version)(request)])
    connection.sendall(_SIZE.pack(len(frame) + len(body)) + frame + body)
    (size,) = _SIZE.unpack(_receive(connection, 4))
    if not 0 < size <= _MOST_BYTES:
        raise MalformedMessage(f"a response of {size:,} bytes")
    answer = _receive(connection, size)
    begin = len(response_header(key, version, 0))
    return reader(f"{api}Response", version)(memoryview(answer), begin)[0]


def _receive(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(size - len(parts))
        if not part:
            raise ConnectionResetError("the connection was closed")
        parts += part
    return bytes(parts)


def _open(address: Address, settings: ClientSettings, timeout_seconds: float) -> socket.socket:
    try:
        plain = socket.create_connection(address, timeout_seconds)
    except OSError as error:
        raise CoordinatorNotAvailable(f"no broker answers at {_named(address)}: {error}") from None
    # Requests are small and wait for their answer: Nagle's algorithm would delay each by the peer's delayed
    # acknowledgement.
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if not settings.security_protocol.endswith("SSL"):
        return plain
    try:
        return _tls(settings).wrap_socket(plain, server_hostname=address[0])
    except (TimeoutError, ConnectionError) as error:  # it hangs, or is shutting down: another broker may answer
        plain.close()
        raise CoordinatorNotAvailable(f"{_named(address)} did not answer TLS's greeting: {error}") from None
    except (OSError, ssl.SSLError) as error:
        plain.close()
        raise ConfigError(f"TLS with {_named(address)} failed: {error}") from None


def _tls(settings: ClientSettings) -> ssl.SSLContext:
    given = settings.given
    for name in ("ssl.keystore.location", "ssl.engine.location"):
        if name in given:
            raise ConfigError(
                f"{name}: this administrative call is made without librdkafka, and knows certificates as PEM: "
                "ssl.certificate.location and ssl.key.location"
            )
    file = given.get("ssl.ca.location")
    context = ssl.create_default_context(cafile=None if file == "probe" else file, cadata=given.get("ssl.ca.pem"))
    if "ssl.crl.location" in given:
        context.load_verify_locations(given["ssl.crl.location"])
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
    if given.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
        context.check_hostname = False
    if given.get("enable.ssl.certificate.verification", "true").lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = given.get("ssl.certificate.location")
    if certificate is not None:
        context.load_cert_chain(certificate, given.get("ssl.key.location"), given.get("ssl.key.password"))
    elif "ssl.certificate.pem" in given:
        _load_text(context, given["ssl.certificate.pem"] + "\n" + given.get("ssl.key.pem", ""), given)
    return context


def _load_text(context: ssl.SSLContext, pem: str, given: Mapping[str, str]) -> None:
    """Load PEM text through a file, because Python's TLS reads certificates only from files."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only this user may read it
        file.write(pem)
        file.flush()
        context.load_cert_chain(file.name, password=given.get("ssl.key.password"))


def _named(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
