"""A request that is being handled, and the API that handles it."""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from eventbus.protocol import Buffer, response_header, writer

if TYPE_CHECKING:
    from eventbus.server.config import Listener
    from eventbus.server.connection import Connection
    from eventbus.server.node import Node
    from eventbus.server.security.acls import Operation, ResourceType

_logger = logging.getLogger("eventbus.server")

_LENGTH_BYTES = 4
_NOTHING: tuple[Buffer, ...] = ()


class Api(NamedTuple):
    """The definition of one API key."""

    key: int
    name: str
    """Kafka's name; the messages are ``<name>Request`` and ``<name>Response``."""
    min_version: int
    max_version: int
    handle: Callable[[Call, Any], None]
    """Called with the decoded request; it must ensure that the call is answered, immediately or later."""
    advertised_min: int | None = None
    """The lowest version announced to clients, if it is not the lowest version served."""
    before_authentication: bool = False
    """True if a peer may use it before it has authenticated."""


class Call:
    """A request. Answer it exactly once, by `reply` or `no_reply`, immediately or later: see `is_open` and
    `on_close`."""

    __slots__ = (
        "api",
        "buffers",
        "client_id",
        "connection",
        "correlation_id",
        "node",
        "on_close",
        "size_bytes",
        "version",
    )

    def __init__(
        self, connection: Connection, api: Api, version: int, correlation_id: int, client_id: str | None, size: int
    ) -> None:
        self.connection = connection
        self.node: Node = connection.node
        self.api = api
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.size_bytes = size
        """The size of the request."""
        self.buffers: Sequence[Buffer] | None = None
        """The answer, once it exists; empty if none must be sent."""
        self.on_close: Callable[[], None] | None = None
        """Called when the connection ends before the answer is given, to drop whatever waits for it."""

    @property
    def is_open(self) -> bool:
        """False if the peer has disconnected or been answered."""
        return self.buffers is None and not self.connection.is_closing

    @property
    def has_room(self) -> bool:
        """False if the peer does not read its answers. Then an answer should be empty if it may be."""
        return self.connection.has_room_for(self)

    def when_room(self, then: Callable[[], None]) -> None:
        """Call back, soon, when there is room again."""
        self.connection.when_room(self, then)

    def reply(self, response: Any, throttle_ms: int = 0) -> None:
        """Answer. A ``throttle_ms`` is sent to the peer, and its connection is not read for that long (KIP-219)."""
        assert self.buffers is None, f"{self!r} is answered twice"
        self.on_close = None
        if throttle_ms:
            response.throttle_time_ms = throttle_ms
            self.connection.mute(throttle_ms)
        if self.connection.is_closing:
            self.buffers = _NOTHING
            return
        head = bytes(_LENGTH_BYTES) + response_header(self.api.key, self.version, self.correlation_id)
        try:
            buffers = writer(self.api.name + "Response", self.version)(response, head)
        except Exception:  # a bug of the handler, and without an answer the peer would wait forever
            self.buffers = _NOTHING
            _logger.exception("%r: the answer cannot be written: this is a bug; its connection is closed", self)
            self.close("the answer cannot be written")
            return
        size = sum(map(len, buffers))
        struct.pack_into(">i", buffers[0], 0, size - _LENGTH_BYTES)
        self.buffers = buffers
        self.connection.answered(size)

    def no_reply(self) -> None:
        """Finish the call without an answer (``acks=0``)."""
        assert self.buffers is None, f"{self!r} is answered twice"
        self.on_close = None
        self.buffers = _NOTHING
        self.connection.answered(0)

    def close(self, reason: str) -> None:
        """Close the connection; the reason is logged."""
        self.connection.close(f"{self.api.name}: {reason}")

    @property
    def listener(self) -> Listener:
        return self.connection.listener

    @property
    def principal(self) -> str:
        """The caller as Kafka writes it: ``User:alice``."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """The caller's address as Kafka shows it: ``/127.0.0.1``."""
        return f"/{self.connection.peer_host}"

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """True if the caller is allowed to perform the operation."""
        return self.node.allows(self, operation, resource_type, name)

    def __repr__(self) -> str:
        return f"{self.api.name} v{self.version} of {self.connection.describe()}"
