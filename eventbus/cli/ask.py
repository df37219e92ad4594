"""Administrators' requests that the bus has no method for: sent to a Kafka, or answered by the log in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio

from eventbus.backends.embedded import EmbeddedBackend
from eventbus.backends.masking import shown_url
from eventbus.backends.security import Asks
from eventbus.errors import ConfigError, error_for_code
from eventbus.server.call import Api, Call
from eventbus.server.config import Listener, ServerConfig
from eventbus.server.node import Node

if TYPE_CHECKING:
    from eventbus.backends.base import Backend
    from eventbus.server.connection import Connection


async def ask(backend: Backend, request: Any) -> Any:
    """The answer to a request of `eventbus.protocol.messages`. Raises the KafkaError of an answer that is one."""
    if isinstance(backend, EmbeddedBackend):
        response = await _answer_here(backend, request)
    elif isinstance(backend, Asks):
        response = await backend.ask(request)
    else:
        raise ConfigError(f"{shown_url(backend.url)} does not take administrators' requests")
    raise_error(response)
    return response


def raise_error(answer: Any) -> None:
    """Raise the first KafkaError of a response or of its parts."""
    code: int = getattr(answer, "error_code", 0)
    if code:
        text: str | None = getattr(answer, "error_message", None)
        raise error_for_code(code, text or "")


class _Here:
    """What a call knows of its connection, where there is none: nobody but the log's owner asks."""

    is_closing = False
    principal = "User:ANONYMOUS"
    peer_host = "127.0.0.1"

    def __init__(self, node: Node) -> None:
        self.node = node
        self.listener = Listener(port=0)

    def describe(self) -> str:
        return "this process"


class _LocalCall(Call):
    """A call of this process: its answer is kept as it is."""

    __slots__ = ("answered", "response")

    def __init__(self, node: Node, api: Api) -> None:
        super().__init__(cast("Connection", _Here(node)), api, api.max_version, 0, "eventbus-cli", 0)
        self.response: Any = None
        self.answered = anyio.Event()

    def reply(self, response: Any, throttle_ms: int = 0) -> None:
        self.response = response
        self.answered.set()


async def _answer_here(backend: EmbeddedBackend, request: Any) -> Any:
    """By the handler that a server has for it."""
    name = type(request).__name__.removesuffix("Request")
    node = Node(backend.engine, ServerConfig(listeners=()))
    call = _LocalCall(node, next(api for api in node.apis.values() if api.name == name))
    call.api.handle(call, request)
    await call.answered.wait()
    return call.response
