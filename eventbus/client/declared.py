"""What a bus has declared before it starts: topics, handlers, producer functions, tables and parts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec

from eventbus.broker import TopicSpec
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.host import Part
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.lifespan import Hooks
from eventbus.client.schema_uses import SchemaUse, uses_of
from eventbus.client.tables.table import Table
from eventbus.errors import ConfigError
from serdes.choose import Serdes


@runtime_checkable
class Drains(Protocol):
    """A part that can publish everything it holds."""

    async def drain(self) -> bool:
        """Wait until nothing is left to publish. Return True if something was published."""
        ...


@runtime_checkable
class Surrounds(Protocol):
    """An object that wraps every handler and sees every record sent, such as tracing.

    It need not be a `Part`. The bus's middleware runs inside it. Several such objects wrap each other in the order of
    `include`.
    """

    @property
    def middleware(self) -> Sequence[Middleware]:
        """The middleware for every handler, read at each start."""
        ...

    @property
    def interceptors(self) -> Sequence[ProducerInterceptor]:
        """The interceptors for every producer of the bus, read at each start."""
        ...


class Declared(ABC):
    """The declarations of a bus: handlers, producer functions, topics, tables and parts."""

    def __init__(self, service: str | None, client_id: str, serdes: Serdes) -> None:
        self.service = service
        self.client_id = client_id
        self.serdes = serdes
        """The custom serdes by type, and those of topics with a declared type."""
        self.handlers: list[Handler[Any, Any]] = []
        self.producer_functions: list[ProducerFunction[..., Any, Any]] = []
        self.topics: dict[str, TopicSpec] = {}
        """The topics that the bus creates at start where they are missing, by name."""
        self.temporary: set[str] = set()
        """The names of the topics that are deleted when the bus closes."""
        self.tables: dict[str, Table[Any, Any]] = {}
        self.parts: list[Part | Surrounds] = []
        self.hooks = Hooks()

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """True while the bus runs. Handlers are read at the start, so nothing can be declared then."""

    @abstractmethod
    async def publish(self, function: ProducerFunction[..., Any, Any], value: Any) -> None:
        """Publish the result of a producer function and wait for the ack; None publishes nothing."""

    @property
    def service_name(self) -> str:
        """The prefix of the names of groups and topics that the bus creates: the service, else the client_id."""
        return self.service or self.client_id

    def group_of(self, handler: Handler[Any, Any]) -> str:
        """Return the group of a handler: its own, its router's, or one named after the service and the function."""
        spec = handler.spec
        return spec.group or f"{self.service_name}.{spec.group_prefix}{handler.__name__}"

    def schema_uses(self) -> list[SchemaUse]:
        """Return the types that are declared to be read and written, with their serdes, without any request."""
        found = uses_of([(one, self.group_of(one)) for one in self.handlers], self.producer_functions, self.serdes)
        for topic, serde in self.serdes.of_topics.items():
            kind = self.serdes.declared_type(topic)
            if kind is not None and not any((one.topic, one.direction) == (topic, "writes") for one in found):
                found.append(SchemaUse(topic, "value", "writes", kind, serde, ""))
        for table in self.tables.values():
            found += table.uses(self.serdes)
        return found

    def surroundings(self) -> tuple[list[Middleware], list[ProducerInterceptor]]:
        """Return the middleware and the interceptors of all parts. Raises ConfigError for an invalid middleware."""
        middleware: list[Middleware] = []
        interceptors: list[ProducerInterceptor] = []
        for part in self.parts:
            if isinstance(part, Surrounds):
                middleware.extend(check_middleware(part.middleware, repr(part)))
                interceptors.extend(part.interceptors)
        return middleware, interceptors

    @contextmanager
    def without_handlers(self) -> Generator[None]:
        """While inside, the bus starts without handlers: it sends and reads, for a shell. Enter it while stopped."""
        kept, self.handlers = self.handlers, []
        try:
            yield
        finally:
            self.handlers = kept

    @contextmanager
    def in_group(self, handler: Handler[Any, Any], group: str) -> Generator[None]:
        """While inside, the bus starts with this handler alone, as a member of ``group``, for replays.

        It starts at the group's offsets, or at the earliest record, and its output is published. Enter it while the bus
        is stopped. Raises ConfigError otherwise, and for a handler of another bus.
        """
        if self.is_running:
            raise ConfigError("in_group: the bus is running already; enter it before the bus starts")
        if handler not in self.handlers:
            raise ConfigError(f"in_group: {handler!r} is not declared on this bus")
        alone = copy.copy(handler)
        alone.spec = msgspec.structs.replace(handler.spec, group=group, group_instance_id=None, start="earliest")
        kept, self.handlers = self.handlers, [alone]
        try:
            yield
        finally:
            self.handlers = kept
