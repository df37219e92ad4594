"""The shared state of all connections of a server: the log, the connections, the APIs."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING

from eventbus.backends.engine import Engine
from eventbus.broker import Broker
from eventbus.broker.descriptions import BROKER_ID
from eventbus.errors import KafkaError
from eventbus.protocol import ZERO_UUID, messages, uuid_bytes
from eventbus.server import apis
from eventbus.server.call import Api, Call
from eventbus.server.config import Listener, ServerConfig
from eventbus.server.gate import Gate
from eventbus.server.security.security import Security
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from eventbus.server.connection import Connection
    from eventbus.server.security.acls import Operation, ResourceType

SCRATCH_BYTES = 65_536

Then = Callable[[KafkaError | None], None]
"""Called when a record is durable, or with the error why it never will be."""


def load_apis() -> dict[int, Api]:
    """Return the served APIs by key: every module of `eventbus.server.apis` that has an ``API``."""
    served: dict[int, Api] = {}
    for module in pkgutil.iter_modules(apis.__path__):
        if module.name.startswith("_"):
            continue
        api: Api | None = getattr(importlib.import_module(f"{apis.__name__}.{module.name}"), "API", None)
        if api is not None:
            assert api.key not in served, f"API key {api.key} is served twice"
            served[api.key] = api
    return served


class Node:
    """The only broker of the cluster, from the clients' point of view."""

    node_id = BROKER_ID

    def __init__(self, engine: Engine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.apis = load_apis()
        self.gate = Gate(config, engine.now_ms)
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        """A receive buffer that all connections share, see `eventbus.server.connection`."""
        self.clock = engine.clock
        """Wall time in milliseconds, for records."""
        self.now_ms = engine.now_ms
        """Monotonic time in milliseconds, for groups, transactions, sessions."""
        self.listen = engine.listen
        self.unlisten = engine.unlisten
        self.deadline_changed = engine.deadline_changed
        self.security = Security.from_config(config.security, engine.broker.security)
        self.listeners: tuple[Listener, ...] = ()
        """The bound listeners, with their actual ports and advertised addresses. Set by the server."""
        self._ids: dict[bytes, str] = {}
        self._ids_version = -1

    @property
    def broker(self) -> Broker:
        return self.engine.broker

    @property
    def cluster_id(self) -> str:
        return self.engine.broker.cluster_id

    @property
    def connections(self) -> set[Connection]:
        """The connections that are open."""
        return self.gate.connections

    def frame_limit(self, connection: Connection) -> int:
        """Return the largest request that is accepted from the peer now."""
        if connection.is_authenticated:
            return self.config.socket_request_max_bytes
        return self.config.unauthenticated_request_max_bytes

    # what is served --------------------------------------------------------------------------------------------------

    def api_ranges(self, only: int | None = None) -> list[messages.ApiVersionsResponse.ApiVersion]:
        """Return the served versions as clients receive them."""
        return [
            messages.ApiVersionsResponse.ApiVersion(
                api_key=api.key,
                min_version=api.min_version if api.advertised_min is None else api.advertised_min,
                max_version=api.max_version,
            )
            for _, api in sorted(self.apis.items())
            if only is None or api.key == only
        ]

    def allows(self, call: Call, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        """True if the caller is allowed to perform the operation, or if access is not restricted."""
        return self.security.allows(call, operation, resource_type, name)

    # topics ----------------------------------------------------------------------------------------------------------

    def topic_id(self, name: str) -> bytes:
        """Return the topic's id as on the wire, ZERO_UUID if it does not exist."""
        text = self.engine.broker.topic_id(name)
        return uuid_bytes(text) if text else ZERO_UUID

    def topic_name(self, topic_id: bytes) -> str | None:
        """Return the name of the topic with this id, None if it does not exist (any more)."""
        broker = self.engine.broker
        if self._ids_version != broker.topics_version:
            self._ids = {self.topic_id(name): name for name in broker.list_topics()}
            self._ids_version = broker.topics_version
        return self._ids.get(topic_id)

    def topics_changed(self) -> None:
        """Notify members and producers in this process that topics were created, grown or deleted."""
        self.engine.topics_changed()

    # waiting ---------------------------------------------------------------------------------------------------------

    def when_durable(self, topic_partition: TopicPartition, offset: int, then: Then) -> None:
        """Call ``then`` when the record is as durable as the log promises: now, or after the flush that covers it."""
        self.engine.flushes.when_durable(topic_partition, offset, then)

    def when_flushed(self, then: Then) -> None:
        """Call ``then`` when everything appended so far is as durable as the log promises."""
        self.engine.flushes.when_flushed(then)

    def after(self, delay_ms: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call back later; the handle's ``cancel()`` cancels it."""
        return asyncio.get_running_loop().call_later(delay_ms / 1000, callback)
