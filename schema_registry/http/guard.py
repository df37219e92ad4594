"""uvicorn's connections with deadlines and limits of their own.

uvicorn bounds the time between two requests and nothing else: a peer that sends half a header, or a body a byte at a
time, is served for as long as it likes. One look at all connections a second costs less than a timer for every request.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from schema_registry.http.limits import Limits
from schema_registry.http.wire import Receive, Scope, Send

_logger = logging.getLogger("schema_registry.http.connections")
_logger.setLevel(logging.ERROR)  # uvicorn logs a warning for every invalid request, so any client could fill the log

IDLE, HEADER, BODY, ANSWER = range(4)


class App(Protocol):
    """The app as the server calls it."""

    limits: Limits
    gate: Gate | None
    """Set by the server, for the app's metrics."""

    @property
    def asks_who(self) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request. May set ``scope["state"]["repeat"]``, a function of the bytes of the response."""
        ...

    def repeated(self, request: bytes) -> bytes | None:
        """The answer, without its `Gate.head`, to a request that is byte by byte one that came before."""
        ...


class Gate:
    """All connections of one server: who may come in, and who has had his time."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.limits = app.limits
        self.head = b""
        """The beginning of every response: status line and date."""
        self.connections: set[GuardedConnection] = set()
        self._by_address: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """How many were sent away, by why."""

    def admit(self, connection: GuardedConnection, address: str) -> str | None:
        """Why the connection may not come in; None: it is in."""
        if len(self.connections) >= self.limits.connections:
            return "connections"
        if self._by_address[address] >= self.limits.connections_per_address:
            return "connections of one address"
        self.connections.add(connection)
        self._by_address[address] += 1
        return None

    def leave(self, connection: GuardedConnection, address: str) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def look(self, now: float) -> None:
        """Close every connection that has used up its time."""
        for connection in list(self.connections):
            reason = connection.overdue(now)
            if reason:
                connection.refuse(408, f"the {reason} took too long", reason)


class GuardedConnection(HttpToolsProtocol):
    """One connection. A gate is given by `guarded`, which makes a class per server as uvicorn wants one."""

    gate: Gate

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.logger = _logger
        self._phase = HEADER
        self._since = 0.0
        self._bytes = 0
        self._unsent = 0
        self._unsent_since = 0.0
        self._address = ""
        self._is_new = True
        """Nothing has come yet."""
        self._messages = 0
        self._request: bytes | None = None
        """The current request, if it arrived in one piece."""

    # -- uvicorn's and the parser's calls ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own type
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self._since = self.loop.time()
        reason = self.gate.admit(self, self._address)
        if reason:
            self.refuse(503, f"too many {reason}", reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self.gate.leave(self, self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        begins = self._phase is IDLE or self._is_new  # nothing is parsed half, and nothing waits for its answer
        self._is_new = False
        if begins:
            # Clients ask the same again and again: what was parsed and answered once need not be parsed again.
            answer = self.gate.app.repeated(data)
            if answer is not None and not self.flow.write_paused:
                self._enter(IDLE)
                self.transport.write(self.gate.head + answer)
                return
            self._enter(HEADER)
        if self._phase is HEADER:
            self._bytes += len(data)
        before = self._messages
        super().data_received(data)
        self._request = data if begins and self._messages == before + 1 and self._phase is ANSWER else None
        if self._phase is HEADER and self._bytes > self.gate.limits.header_bytes:
            self._refuse_header()

    def on_message_begin(self) -> None:
        if self._phase is not HEADER:  # the next of several requests that came together
            self._enter(HEADER)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        most = self.gate.limits.header_bytes
        if (
            self._bytes > most
            and sum(len(name) + len(value) + 4 for name, value in self.headers) + len(self.url) > most
        ):
            self._refuse_header()
            return
        self._enter(BODY)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._bytes += len(body)
        if not self.transport.is_closing():
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._messages += 1
        if not self.transport.is_closing():
            self._enter(IDLE if self.cycle.response_complete else ANSWER)
            super().on_message_complete()

    def on_response_complete(self) -> None:
        if self._phase is ANSWER and not self.pipeline:
            self._enter(IDLE)
            repeat = self.scope.get("state", {}).get("repeat")
            if repeat is not None and self._request is not None and self.cycle.keep_alive:
                repeat(self._request)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, msg, "no HTTP")

    # -- the gate's ----------------------------------------------------------------------------------------------------

    def overdue(self, now: float) -> str | None:
        """Close connections that exceed a deadline."""
        limits, elapsed = self.gate.limits, now - self._since
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent != self._unsent:
            self._unsent, self._unsent_since = unsent, now
        elif now - self._unsent_since > limits.answer_s:
            return "answer"
        if self._phase is HEADER and elapsed > limits.header_s:
            return "header"
        if self._phase is BODY and self._body_is_late(elapsed):
            return "body"
        if self._phase is IDLE and elapsed > limits.idle_s:
            return "next request"
        return None

    def refuse(self, status: int, message: str, reason: str) -> None:
        """Send a final response if possible, and close the connection."""
        if self.transport.is_closing() and reason != "answer":
            return
        self.gate.refused[reason] += 1
        cycle = self._current()
        if reason == "answer":
            self.transport.abort()  # it does not read what it was sent
            return
        if cycle is None or not cycle.response_started or cycle.response_complete:
            body = b'{"error_code":%d,"message":"%s"}' % (status, message.encode())
            self.transport.write(
                b"HTTP/1.1 %d Refused\r\nContent-Type: application/vnd.schemaregistry.v1+json\r\n"
                b"Content-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body)
            )
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    def _current(self) -> RequestResponseCycle | None:
        return self.cycle  # None before the first request, whatever uvicorn's annotation says

    def _enter(self, phase: int) -> None:
        self._phase, self._since, self._bytes = phase, self.loop.time(), 0

    def _refuse_header(self) -> None:
        self.refuse(431, f"the header is longer than {self.gate.limits.header_bytes} bytes", "long header")

    def _body_is_late(self, elapsed: float) -> bool:
        limits = self.gate.limits
        if elapsed > limits.body_s:
            return True
        if self.flow.read_paused:
            return False  # it is we who do not read
        return elapsed > limits.slow_s and self._bytes < elapsed * limits.body_bytes_per_s


def guarded(gate: Gate) -> type[GuardedConnection]:
    return type("GuardedConnection", (GuardedConnection,), {"gate": gate})
