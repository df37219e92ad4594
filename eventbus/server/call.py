"""A request under way, and what serves it."""

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
    """One API key, as it is served."""

    key: int
    name: str
    """Kafka's: its messages are ``<name>Request`` and ``<name>Response``."""
    min_version: int
    max_version: int
    handle: Callable[[Call, Any], None]
    """Called with the decoded request; it must see to it that the call is answered, now or later."""
    advertised_min: int | None = None
    """The lowest version told to clients, where it is not the lowest that is served."""
    before_authentication: bool = False
    """Whether a peer that has not said who it is may use it."""


class Call:
    """One request. Answer it exactly once, by `reply` or `no_reply`; later is fine: see `is_open` and `on_close`."""

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
        """Of the request."""
        self.buffers: Sequence[Buffer] | None = None
        """The answer, once there is one; empty when there is none to send."""
        self.on_close: Callable[[], None] | None = None
        """Called when the connection ends before the answer is given: drop what waits for it."""

    @property
    def is_open(self) -> bool:
        """False: the peer has gone, or has been answered."""
        return self.buffers is None and not self.connection.is_closing

    @property
    def has_room(self) -> bool:
        """False: the peer does not take what it was answered. An answer that may be empty should be."""
        return self.connection.has_room_for(self)

    def when_room(self, then: Callable[[], None]) -> None:
        """Call back, soon, when there is room again."""
        self.connection.when_room(self, then)

    def reply(self, response: Any, throttle_ms: int = 0) -> None:
        """Answer. With ``throttle_ms`` the peer is told, and not listened to for so long (KIP-219)."""
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
        except Exception:  # whatever it is: a bug of the handler, and without an answer the peer would wait for ever
            self.buffers = _NOTHING
            _logger.exception("%r: the answer cannot be written: this is a bug; its connection is closed", self)
            self.close("the answer cannot be written")
            return
        size = sum(map(len, buffers))
        struct.pack_into(">i", buffers[0], 0, size - _LENGTH_BYTES)
        self.buffers = buffers
        self.connection.answered(size)

    def no_reply(self) -> None:
        """The peer does not wait for an answer (``acks=0``)."""
        assert self.buffers is None, f"{self!r} is answered twice"
        self.on_close = None
        self.buffers = _NOTHING
        self.connection.answered(0)

    def close(self, reason: str) -> None:
        """End the connection; the reason is logged."""
        self.connection.close(f"{self.api.name}: {reason}")

    @property
    def listener(self) -> Listener:
        return self.connection.listener

    @property
    def principal(self) -> str:
        """Who asks, as Kafka writes it: ``User:alice``."""
        return self.connection.principal

    @property
    def client_host(self) -> str:
        """Where from, as Kafka shows it: ``/127.0.0.1``."""
        return f"/{self.connection.peer_host}"

    def allows(self, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """Whether who asks may do that."""
        return self.node.allows(self, operation, resource_type, name)

    def __repr__(self) -> str:
        return f"{self.api.name} v{self.version} of {self.connection.describe()}"
