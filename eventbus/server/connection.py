"""A TCP connection: bytes to frames, frames to calls, answers back in the order of the requests.

Frames are received in one of two ways. Small frames come through a buffer that all connections share: the event loop
requests it and fills it in one step, so no other connection can use it in between. A frame that does not end there gets
a separate buffer of its size (which grows with the data, if it is large), and the rest is received directly into it:
records are never copied again.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from eventbus.errors import KafkaError
from eventbus.protocol import Buffer, MalformedMessage, messages, read_request_header, reader
from eventbus.server.call import Call
from eventbus.server.security.certificates import principal_of

if TYPE_CHECKING:
    from eventbus.server.config import Listener
    from eventbus.server.node import Node
    from eventbus.server.security.sasl import SaslSession

_logger = logging.getLogger("eventbus.server")

_LENGTH_BYTES = 4
_FRAME_BYTES = 2 << 20
"""The initial buffer for a request whose stated size is larger."""
_SMALL_REQUEST_BYTES = 16 << 20
"""The largest request other than Produce: decoded objects take many times the bytes of the request."""
_SLOWEST_BYTES_PER_MS = 16
"""A peer that sends its request more slowly than this is disconnected."""
_PRODUCE = 0
_KEPT_BYTES = 16 << 20
"""The limit for a connection's answers that wait for earlier answers or for the peer to read; above it, no more are
made."""
_JOIN_BYTES = 65_536
"""Up to this size answers are joined into one write; larger parts are written separately."""
API_VERSIONS = 18


class Connection(asyncio.BufferedProtocol):
    """A connected peer. Created by the listener's socket; `Node.gate` holds it until it ends."""

    __slots__ = (
        "__weakref__", "_answered_bytes", "_calls", "_corked", "_filled", "_frame", "_in_flight_bytes", "_kept_bytes",
        "_last_ms", "_made_ms", "_muted", "_read_paused", "_rest", "_resumes", "_since_ms", "_size", "_transport",
        "_unsent_bytes", "_want_room", "_write_paused", "is_authenticated", "is_closing", "listener", "node",
        "peer_host", "peer_port", "principal", "session",
    )  # fmt: skip

    def __init__(self, node: Node, listener: Listener) -> None:
        self.node = node
        self.listener = listener
        self.principal = "User:ANONYMOUS"
        self.is_authenticated = not listener.has_sasl
        self.session: SaslSession | None = None
        """The peer's SASL state, used only by `eventbus.server.security`."""
        self.peer_host = ""
        self.peer_port = 0
        self.is_closing = False
        self._transport: asyncio.Transport | None = None
        self._frame: bytearray | None = None
        """A request that is being received; it grows to `_size` with its data."""
        self._size = 0
        self._filled = 0
        self._rest = b""
        """Received bytes that do not form a request yet: the length is incomplete, or it must wait."""
        self._calls: deque[Call] = deque()
        self._in_flight_bytes = 0
        self._kept_bytes = 0
        """The size of the answers in `_calls`."""
        self._want_room: dict[Call, Callable[[], None]] = {}
        """Calls whose answer may hold more once the peer has read earlier answers."""
        self._corked = False
        self._answered_bytes = 0
        """The size of complete answers that `_corked` holds back."""
        self._muted: asyncio.TimerHandle | None = None
        self._write_paused = False
        self._read_paused = False
        self._resumes = False
        self._unsent_bytes = 0
        """The unsent bytes at the last check of `Gate`."""
        self._made_ms = self._since_ms = node.gate.time_ms
        """When the connection was made, and when the condition that `check_deadlines` watches began or last made
        progress."""
        self._last_ms: int | None = None
        """When the last request was complete."""

    # the socket ------------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's does not inherit from it
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer_host, self.peer_port = peer[0], peer[1]
        if self.listener.has_tls and not self.listener.has_sasl:
            self.principal = principal_of(transport.get_extra_info("peercert"))
        _keep_alive(transport.get_extra_info("socket"))
        refusal = self.node.gate.admit(self)
        if refusal:
            self.close(refusal)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closing = True
        gate = self.node.gate
        gate.forget(self)
        if self._muted is not None:
            self._muted.cancel()
        if self._frame is not None:
            gate.release(len(self._frame))
            self._frame = None
        self._want_room.clear()
        calls, self._calls = self._calls, deque()
        for call in calls:
            gate.release(call.size_bytes)
            if call.buffers is None and call.on_close is not None:
                self._guard(call.on_close)

    def _guard(self, callback: Callable[[], None]) -> None:
        """Run a callback whose error must not disturb other connections."""
        try:
            callback()
        except Exception:  # a bug, logged once; this peer has already disconnected
            _logger.exception("%s: after its end", self.describe())

    def get_buffer(self, sizehint: int) -> memoryview:
        frame = self._frame
        if frame is not None:
            if self._filled == len(frame):
                # Stated sizes may be wrong: allocate at most twice what has been received, not what was announced.
                more = min(self._size, 2 * len(frame)) - len(frame)
                frame += bytes(more)
                self.node.gate.hold(more)
            return memoryview(frame)[self._filled :]
        # All connections share this buffer: it is valid until `buffer_updated`, which the event loop calls next,
        # without a turn in between, on selectors and under TLS.
        scratch = self.node.scratch
        have = len(self._rest)
        scratch[:have] = self._rest
        return scratch[have:]

    def buffer_updated(self, nbytes: int) -> None:
        self._corked = True
        try:
            if self._frame is None:
                have = len(self._rest) + nbytes
                self._rest = b""
                self._split(self.node.scratch[:have])
            else:
                self._filled += nbytes
                if self._filled == self._size:
                    frame, self._frame = self._frame, None
                    self._size = 0
                    self.node.gate.release(len(frame))
                    self._received(frame)
                    self.node.gate.received(self)
                elif self._filled == len(self._frame):
                    self.flow()  # before it grows
        finally:
            self._corked = False
            self._send_ready()

    def _split(self, received: memoryview) -> None:
        """Split requests out of the shared buffer; an incomplete request gets a separate buffer."""
        gate = self.node.gate
        position, end = 0, len(received)
        while not self.is_closing:
            start = position + _LENGTH_BYTES
            if start > end or self._read_paused:
                self._since_ms = gate.time_ms
                self._rest = bytes(received[position:])
                return
            size = int.from_bytes(received[position:start], "big", signed=True)
            limit = self.node.frame_limit(self)
            if not 0 < size <= limit:
                self.close(f"a request of {size:,} bytes; at most {limit:,} are taken here")
                return
            position = start + size
            if position > end:
                if gate.must_wait(self):
                    self._rest = bytes(received[start - _LENGTH_BYTES :])
                    self.flow()
                    return
                self._size = size
                self._filled = end - start
                self._frame = frame = bytearray(min(size, _FRAME_BYTES))
                frame[: self._filled] = received[start:]
                self._since_ms = gate.time_ms
                gate.hold(len(frame))
                self.flow()
                return
            self._received(bytearray(received[start:position]))

    @property
    def is_receiving(self) -> bool:
        """True if a request has been received in part."""
        return self._frame is not None

    # requests --------------------------------------------------------------------------------------------------------

    def _received(self, frame: bytearray) -> None:
        if self.is_closing:
            return
        node = self.node
        self._last_ms = node.gate.time_ms
        try:
            key, version, correlation_id, client_id, offset = read_request_header(frame)
            api = node.apis.get(key)
            if api is None or not api.min_version <= version <= api.max_version:
                self._unsupported(key, version, correlation_id, client_id, len(frame))
                return
            if not self.is_authenticated and not api.before_authentication:
                self.close(f"{api.name} before authentication: this listener asks for SASL ({self.listener.name})")
                return
            if len(frame) > _SMALL_REQUEST_BYTES and key != _PRODUCE:
                self.close(f"{api.name} of {len(frame):,} bytes; at most {_SMALL_REQUEST_BYTES:,} are taken here")
                return
            view = memoryview(frame)
            # Extra bytes after the request are ignored, as in Kafka: librdkafka 2.16 sends some with Metadata v13.
            request, _ = reader(api.name + "Request", version)(view, offset)
        except MalformedMessage as error:
            self.close(f"a request that cannot be read: {error}")
            return
        call = Call(self, api, version, correlation_id, client_id, len(frame))
        self._began(call)
        try:
            api.handle(call, request)
        except KafkaError as error:
            self._failed(call, error)
        except Exception:  # a bug in a handler ends only its connection
            _logger.exception("%r failed: this is a bug; its connection is closed", call)
            self.close(f"{api.name} v{version} failed")

    def _began(self, call: Call) -> None:
        self._calls.append(call)
        self._in_flight_bytes += call.size_bytes
        self.node.gate.hold(call.size_bytes)
        self.flow()

    def _failed(self, call: Call, error: KafkaError) -> None:
        """Answer with the code of an error that the handler did not catch, if the answer has a field for it."""
        if call.buffers is not None:
            _logger.error("%r failed after its answer: %s", call, error)
            return
        response = getattr(messages, call.api.name + "Response")()
        if not hasattr(response, "error_code"):
            self.close(f"{call.api.name} v{call.version} failed: {error}")
            return
        response.error_code = error.code
        if hasattr(response, "error_message"):
            response.error_message = str(error)
        call.reply(response)

    def _unsupported(self, key: int, version: int, correlation_id: int, client_id: str | None, size: int) -> None:
        """Handle a version that is not served: ApiVersions is answered with our range, in version 0 (KIP-35)."""
        api = self.node.apis.get(key)
        if key == API_VERSIONS and api is not None:
            call = Call(self, api, 0, correlation_id, client_id, size)
            self._began(call)
            call.reply(messages.ApiVersionsResponse(error_code=35, api_keys=self.node.api_ranges(only=API_VERSIONS)))
        elif api is None:
            self.close(f"API key {key} v{version} of client {client_id!r} is not served here")
        else:
            self.close(
                f"{api.name} v{version} of client {client_id!r} is not served here, v{api.min_version} to "
                f"v{api.max_version} are"
            )

    # answers ---------------------------------------------------------------------------------------------------------

    def answered(self, size_bytes: int) -> None:
        """Record that a call has its answer of ``size_bytes``; earlier answers are sent first."""
        self._kept_bytes += size_bytes
        self._answered_bytes += size_bytes
        if not self._corked or self._answered_bytes > _JOIN_BYTES:
            self._send_ready()

    def has_room_for(self, call: Call) -> bool:
        """False if so many answers are unsent that an answer that may be empty should be."""
        return self._kept_bytes < _KEPT_BYTES or self._calls[0] is call  # the first call blocks the others

    def when_room(self, call: Call, then: Callable[[], None]) -> None:
        """Call ``then`` once, when unsent answers leave room again. It must not answer within the call."""
        self._want_room[call] = then

    def _send_ready(self) -> None:
        """Write complete answers in order, up to the first incomplete one, or until the peer stops reading."""
        self._answered_bytes = 0
        calls = self._calls
        small: list[Buffer] = []
        size = 0
        while calls and calls[0].buffers is not None and not self._write_paused:
            call = calls.popleft()
            self._in_flight_bytes -= call.size_bytes
            self.node.gate.release(call.size_bytes)
            for buffer in call.buffers or ():
                self._kept_bytes -= len(buffer)
                if len(buffer) >= _JOIN_BYTES:
                    self._write(small)
                    small, size = [], 0
                    self._write([buffer])
                else:
                    small.append(buffer)
                    size += len(buffer)
            if size >= _JOIN_BYTES:
                self._write(small)
                small, size = [], 0
        self._write(small)
        if self._want_room and (self._kept_bytes < _KEPT_BYTES or (calls and calls[0] in self._want_room)):
            waiting, self._want_room = self._want_room, {}
            for then in waiting.values():
                then()
        if self._read_paused:
            self.flow()

    def _write(self, buffers: list[Buffer]) -> None:
        transport = self._transport
        if buffers and transport is not None and not self.is_closing:
            transport.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))

    # flow ------------------------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unsent_bytes = 0
        self.flow()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._send_ready()

    def mute(self, milliseconds: int) -> None:
        """Do not read from the peer for this long."""
        if self.is_closing:
            return
        if self._muted is not None:
            self._muted.cancel()
        self._muted = asyncio.get_running_loop().call_later(milliseconds / 1000, self._unmute)
        self.flow()

    def _unmute(self) -> None:
        self._muted = None
        self.flow()

    def _must_pause(self) -> bool:
        """True if the peer is muted or does not read its answers, or if requests take too much memory."""
        config = self.node.config
        return (
            self._write_paused
            or self._muted is not None
            or self._in_flight_bytes > config.connection_in_flight_max_bytes
            or len(self._calls) > config.connection_in_flight_max
            or self._kept_bytes >= _KEPT_BYTES
            or self.node.gate.must_wait(self)
        )

    def flow(self) -> None:
        """Start or stop reading, depending on the present state."""
        if self.is_closing or self._transport is None:
            return
        if self._must_pause():
            if not self._read_paused:
                self._read_paused = True
                self._transport.pause_reading()
        elif self._read_paused and not self._resumes:
            self._resumes = True  # not at once: `_split` may be the caller
            asyncio.get_running_loop().call_soon(self._resume)

    def _resume(self) -> None:
        """Process what was already received, then read from the socket."""
        self._resumes = False
        if self.is_closing or self._transport is None or self._must_pause():
            return
        self._read_paused = False
        self._since_ms = self.node.gate.time_ms
        rest, self._rest = self._rest, b""
        if rest:
            self._corked = True
            try:
                self._split(memoryview(rest))
            finally:
                self._corked = False
                self._send_ready()
        if not self._read_paused and not self.is_closing:
            self._transport.resume_reading()

    def check_deadlines(self, now_ms: int) -> None:
        """Close the connection if anything takes too long. ``now_ms``: the gate's time."""
        config = self.node.config
        waited_ms = now_ms - self._made_ms
        if not self.is_authenticated and not self.is_closing and waited_ms > config.handshake_timeout_ms:
            # Whatever it sends meanwhile, and however slowly: it has not authenticated.
            self.close("no request" if self._last_ms is None else "it does not say who it is")
            if self._write_paused:
                self.abort()
        elif self.is_closing or self._write_paused:
            unsent = self._transport.get_write_buffer_size() if self._transport is not None else 0
            if not self._unsent_bytes or unsent < self._unsent_bytes:
                self._unsent_bytes, self._since_ms = unsent, now_ms  # it reads some
            elif now_ms - self._since_ms > config.request_timeout_ms:
                _logger.info("%s: cut off: it does not take its answers", self.describe())
                self.abort()
        elif self._read_paused:
            self._since_ms = now_ms
        elif self._frame is not None or self._rest:
            allowed_ms = config.request_timeout_ms + self._size // _SLOWEST_BYTES_PER_MS
            if now_ms - self._since_ms > allowed_ms:
                self.close("a request that does not come to its end")
        elif self._last_ms is None:
            if waited_ms > config.handshake_timeout_ms:
                self.close("no request")
        elif not self._calls and now_ms - self._last_ms > config.connections_max_idle_ms:
            self.close("idle")

    # the end ---------------------------------------------------------------------------------------------------------

    def close(self, reason: str = "") -> None:
        """Close the connection after sending the answers that are complete."""
        if self.is_closing:
            return
        if reason:
            _logger.info("%s: closed: %s", self.describe(), reason)
        self._send_ready()
        self.is_closing = True
        self._unsent_bytes = 0
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close the connection at once, without sending the rest."""
        self.is_closing = True
        if self._transport is not None:
            self._transport.abort()

    def describe(self) -> str:
        return f"{self.listener.name} connection of {self.peer_host}:{self.peer_port}"


def _keep_alive(sock: socket.socket | None) -> None:
    """Enable TCP keep-alive, so that the system detects a vanished peer within two minutes."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        if option := getattr(socket, name, None):  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
