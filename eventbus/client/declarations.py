"""Topics, handlers and producer functions of a bus, declared before it starts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import msgspec

from eventbus.broker import TopicSpec
from eventbus.client.decorators import Decorators
from eventbus.client.handling.handlers import Handler, ProducerFunction
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.handling.published import serdes_meant
from eventbus.client.host import Part
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.lifespan import Hooks, When
from eventbus.client.router import Placement, Router
from eventbus.client.schema_uses import SchemaUse, uses_of
from eventbus.client.tables.declaring import TableDeclarations
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
        """Return the name before the groups and topics that a bus names: the service, else the client_id."""
        return self.service or self.client_id

    def group_of(self, handler: Handler[Any, Any]) -> str:
        """Return the group of a handler: its own, its router's, or one named after the service and the function."""
        spec = handler.spec
        return spec.group or f"{self.service_name}.{spec.group_prefix}{handler.__name__}"

    def schema_uses(self) -> list[SchemaUse]:
        """Return the types that are declared to be read and written, with their serdes, without any request."""
        return uses_of([(one, self.group_of(one)) for one in self.handlers], self.producer_functions, self.serdes)

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


class Declarations(Decorators, TableDeclarations):
    """The decorators of a bus."""

    def __init__(self, declared: Declared) -> None:
        super().__init__(declared.tables)
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """Maps a function that `Depends` names to its replacement in tests. Read at each start."""

    @property
    @abstractmethod
    def context(self) -> Declared: ...

    def _declare_topic(self, spec: TopicSpec, is_temporary: bool) -> None:
        name, known = spec.name, self.context.topics.get(spec.name)
        if known is not None and known != spec and known.partitions != -1:
            other = [field for field in spec.__struct_fields__ if getattr(known, field) != getattr(spec, field)]
            both = (", ".join(f"{field}={getattr(one, field)!r}" for field in other) for one in (known, spec))
            raise ConfigError(f"topic {name!r} is declared twice, with {' and with '.join(both)}: declare it once")
        self.context.topics[name] = spec
        if is_temporary:
            self.context.temporary.add(name)

    def _declare_value(self, topic: str, annotation: Any) -> None:
        if self.is_running:
            raise ConfigError(f"bus.topic({topic!r}, value=...): declare it before the bus starts")
        try:
            self.context.serdes.declare(topic, annotation, is_final=True)
        except TypeError as error:
            named = getattr(annotation, "__name__", annotation)
            raise ConfigError(f"bus.topic({topic!r}, value={named}): {error}") from error

    def _declare_hook(self, when: When, hook: Callable[..., Any]) -> None:
        if self.is_running:
            raise ConfigError(f"@bus.{when}: declare it before the bus starts")
        self.context.hooks.add(when, hook)

    def include(self, *items: object, prefix: str = "", group_prefix: str | None = None) -> None:
        """Include marked functions, routers, modules that contain them, parts, or objects that `Surrounds` describes.

        Functions are marked with the free ``@consumer`` and ``@producer``. ``prefix`` is put before the names of
        included topics, and ``group_prefix`` (by default the same) before those of groups; see `Router`.
        """
        if self.is_running:
            raise ConfigError("include: declare handlers, and include parts, before the bus starts")
        including = Router(prefix=prefix, group_prefix=group_prefix)
        including.include(*items)
        placed = including.placed(Placement())
        for spec, is_temporary in placed.topics.values():
            self._declare_topic(spec, is_temporary)
        for name, annotation in placed.values.items():
            self._declare_value(name, annotation)
        for function in placed.functions:
            self._declare_function(function)
        for handler in placed.handlers:
            self._declare_handler(handler)
        for when, hook in placed.hooks:
            self._declare_hook(when, hook)
        for item in placed.others:
            if not isinstance(item, (Part, Surrounds)):
                hint = "; its relay is a part: include(outbox.relay())" if hasattr(item, "relay") else ""
                raise ConfigError(
                    f"{item!r} is not marked: decorate it with @consumer or @producer from eventbus{hint}"
                )
            if callable(item) and not isinstance(item, Surrounds):
                raise ConfigError(
                    f"include({item!r}): a middleware goes around handlers where it is said to: "
                    "EventBus(middleware=[...]), Router(middleware=[...]) or @bus.consumer(..., middleware=[...])"
                )
            self._add_part(item)

    def _add_part(self, part: Part | Surrounds) -> None:
        if self.is_running:
            raise ConfigError(f"{part!r}: include parts before the bus starts")
        if all(one is not part for one in self.context.parts):
            self.context.parts.append(part)

    def _declare_handler(self, handler: Handler[Any, Any]) -> None:
        if self.is_running:
            raise ConfigError(f"{handler!r}: declare handlers before the bus starts")
        if handler in self.context.handlers:
            return
        handler.payload_serde(self.context.serdes)  # raises here, where the type is written, if it cannot be read
        self.context.handlers.append(handler)
        if handler.producer is not None and handler.producer not in self.context.producer_functions:
            self._declare_function(handler.producer)

    def _declare_function(self, function: ProducerFunction[..., Any, Any]) -> None:
        if function in self.context.producer_functions:
            return
        if function.bus is not None and function.bus is not self.context:
            raise ConfigError(f"{function!r} belongs to another bus already")
        function.bus = self.context
        try:
            function.serdes = serdes_meant(function.published, self.context.serdes)
            if function.published is not None:
                self.context.serdes.declare(function.spec.topic, function.published, is_final=False)
        except TypeError as error:
            raise ConfigError(f"{function!r} returns {function.published}: {error}") from error
        self.context.producer_functions.append(function)
        self.context.topics.setdefault(function.spec.topic, TopicSpec(function.spec.topic))
