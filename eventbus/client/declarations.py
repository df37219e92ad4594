"""What a bus is made of: topics, handlers and producer functions, declared before it starts."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import msgspec

from eventbus.broker import TopicSpec
from eventbus.client.admin import as_text
from eventbus.client.handling.handlers import Handler, ProducerFunction, calling_frame, consumer_spec, marking
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.handling.published import serdes_meant
from eventbus.client.interceptors import ProducerInterceptor
from eventbus.client.lifespan import Hook, Hooks, When
from eventbus.client.partitioner import PartitionFunction
from eventbus.client.router import Placement, Router
from eventbus.client.schema_uses import SchemaUse, uses_of
from eventbus.client.tables.declaring import TableDeclarations
from eventbus.errors import ConfigError
from serdes import Serde

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus

P = ParamSpec("P")
R = TypeVar("R")


@runtime_checkable
class Part(Protocol):
    """Something that lives as long as a bus runs: a schema registry in its log, say."""

    async def start(self, bus: EventBus) -> None:
        """The bus sends and reads by now; its handlers do not run yet. What this raises ends the start."""
        ...

    async def aclose(self) -> None:
        """No handler runs any more; the bus still sends and reads."""
        ...


@runtime_checkable
class Drains(Protocol):
    """A part that publishes what it holds."""

    async def drain(self) -> bool:
        """Return when nothing is left that could be published now. True: something was."""
        ...


@runtime_checkable
class Surrounds(Protocol):
    """What is around every handler, and sees every record that is sent: tracing, say. It need not be a `Part`.

    The bus's own come further in; several go around each other in the order in which they were included.
    """

    @property
    def middleware(self) -> Sequence[Middleware]:
        """Around every handler; read at each start."""
        ...

    @property
    def interceptors(self) -> Sequence[ProducerInterceptor]:
        """Of every producer of the bus; read at each start."""
        ...


class Declarations(TableDeclarations, ABC):
    """The decorators of a bus, and what they have gathered."""

    def __init__(self, client_id: str) -> None:
        super().__init__()
        self.client_id = client_id
        self._handlers: list[Handler[Any, Any]] = []
        self._functions: list[ProducerFunction[Any, Any]] = []
        self._topics: dict[str, TopicSpec] = {}
        self._temporary: set[str] = set()
        self._parts: list[Part | Surrounds] = []
        self._hooks = Hooks()
        self.dependency_overrides: dict[Callable[..., Any], Callable[..., Any]] = {}
        """For tests: what is called in place of a function that `Depends` names. Read at each start."""

    @property
    @abstractmethod
    def is_running(self) -> bool:
        """Handlers are read at the start: while this is true there is no declaring any."""

    @property
    @abstractmethod
    def serdes(self) -> Mapping[type, Serde]:
        """Those of one's own, by type."""

    @abstractmethod
    async def publish(self, function: ProducerFunction[Any, Any], value: Any) -> None:
        """Publish what a producer function returned and wait for the ack; nothing for None."""

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int = -1,
        configs: Mapping[str, Any] | None = None,
        temporary: bool = False,
    ) -> None:
        """Declare a topic: created at start if it is missing, left as it is if it exists.

        ``temporary``: a topic of this run alone, deleted as the bus closes. Then one that exists is somebody else's:
        the start raises TopicAlreadyExists, and nothing is touched.
        """
        count = -1 if partitions is None else partitions
        spec = TopicSpec(
            name, count, replication_factor, {key: as_text(value) for key, value in (configs or {}).items()}
        )
        known = self._topics.get(name)
        if known is not None and known != spec and known.partitions != -1:
            other = [field for field in spec.__struct_fields__ if getattr(known, field) != getattr(spec, field)]
            both = (", ".join(f"{field}={getattr(one, field)!r}" for field in other) for one in (known, spec))
            raise ConfigError(f"topic {name!r} is declared twice, with {' and with '.join(both)}: declare it once")
        self._topics[name] = spec
        if temporary:
            self._temporary.add(name)

    def consumer(self, topics: str | Sequence[str] = (), **options: Any) -> Callable[[Callable[P, R]], Handler[P, R]]:
        """Decorate a handler of ``topics``; see `eventbus.consumer` for the options."""
        spec = consumer_spec(topics, options)
        frame = calling_frame()

        def register(function: Callable[P, R]) -> Handler[P, R]:
            handler = Handler(function, spec, frame)
            self._add_handler(handler)
            return handler

        return register

    def producer(
        self,
        topic: str,
        *,
        key: Callable[[Any], Any] | None = None,
        partitioner: str | PartitionFunction | None = None,
        **config: Any,
    ) -> Callable[[Callable[P, R]], ProducerFunction[P, R]]:
        """Decorate a function whose result is published to ``topic``; see `eventbus.producer`."""
        mark = marking(topic, key, partitioner, config, calling_frame())

        def register(function: Callable[P, R]) -> ProducerFunction[P, R]:
            marked = mark(function)
            self._add_function(marked)
            return marked

        return register

    def on_startup(self, hook: Hook) -> Hook:
        """Decorate a function to run as the bus starts: the bus sends and reads by now, no handler runs yet.

        Async or not, without parameters or with the bus; in the order of their declaration. What one raises ends the
        start. Behind the ``yield`` of a generator (async or not) stands what is to run at the end.
        """
        return self._declare_hook("on_startup", hook)

    def on_shutdown(self, hook: Hook) -> Hook:
        """Decorate a function to run as the bus ends: handlers are through by now, the bus still sends and reads.

        Async or not, without parameters or with the bus; in the order of their declaration, within
        ``drain_timeout_ms``. Only where the start went well.
        """
        return self._declare_hook("on_shutdown", hook)

    def _declare_hook(self, when: When, hook: Hook) -> Hook:
        if self.is_running:
            raise ConfigError(f"@bus.{when}: declare it before the bus starts")
        self._hooks.add(when, hook)
        return hook

    def include(self, *items: Any, prefix: str = "", group_prefix: str | None = None) -> None:
        """Add functions marked with the free ``@consumer`` / ``@producer``, a `Router`, or all of these that a module
        has; or a `Part`, or what `Surrounds` the handlers.

        ``prefix`` goes before the topics of what is included, ``group_prefix`` (the same unless it is said) before its
        groups, see `Router`.
        """
        if self.is_running:
            raise ConfigError("include: declare handlers, and include parts, before the bus starts")
        including = Router(prefix=prefix, group_prefix=group_prefix)
        including.include(*items)
        placed = including.placed(Placement(), self.client_id)
        for name, (spec, is_temporary) in placed.topics.items():
            self.topic(
                name,
                partitions=None if spec.partitions == -1 else spec.partitions,
                replication_factor=spec.replication_factor,
                configs=spec.configs,
                temporary=is_temporary,
            )
        for function in placed.functions:
            self._add_function(function)
        for handler in placed.handlers:
            self._add_handler(handler)
        for when, hook in placed.hooks:
            self._declare_hook(when, hook)
        for item in placed.others:
            if not isinstance(item, (Part, Surrounds)):
                raise ConfigError(f"{item!r} is not marked: decorate it with @consumer or @producer from eventbus")
            self._add_part(item)

    def _add_part(self, part: Part | Surrounds) -> None:
        if self.is_running:
            raise ConfigError(f"{part!r}: include parts before the bus starts")
        if all(one is not part for one in self._parts):
            self._parts.append(part)

    def _add_handler(self, handler: Handler[Any, Any]) -> None:
        if self.is_running:
            raise ConfigError(f"{handler!r}: declare handlers before the bus starts")
        if handler in self._handlers:
            return
        handler.payload_serde(self.serdes)  # a type that nothing reads is said where it is written
        self._handlers.append(handler)
        if handler.producer is not None and handler.producer not in self._functions:
            self._add_function(handler.producer)

    def _add_function(self, function: ProducerFunction[Any, Any]) -> None:
        if function in self._functions:
            return
        if function.bus is not None and function.bus is not self:
            raise ConfigError(f"{function!r} belongs to another bus already")
        function.bus = self
        try:
            function.serdes = serdes_meant(function.published, self.serdes)
        except TypeError as error:
            raise ConfigError(f"{function!r} returns {function.published}: {error}") from error
        self._functions.append(function)
        self._topics.setdefault(function.spec.topic, TopicSpec(function.spec.topic))

    def _surroundings(self) -> tuple[list[Middleware], list[ProducerInterceptor]]:
        """Of all that were included. Raises ConfigError for a middleware that is none."""
        middleware: list[Middleware] = []
        interceptors: list[ProducerInterceptor] = []
        for part in self._parts:
            if isinstance(part, Surrounds):
                middleware.extend(check_middleware(part.middleware, repr(part)))
                interceptors.extend(part.interceptors)
        return middleware, interceptors

    @property
    def handlers(self) -> tuple[Handler[Any, Any], ...]:
        """What is declared, in its order."""
        return tuple(self._handlers)

    @property
    def producer_functions(self) -> tuple[ProducerFunction[Any, Any], ...]:
        """What is declared to publish, in its order."""
        return tuple(self._functions)

    @property
    def declared_topics(self) -> Mapping[str, TopicSpec]:
        """What the bus creates at start where it is missing, by name."""
        return dict(self._topics)

    def schema_uses(self) -> list[SchemaUse]:
        """The types that are declared to be read and written, with their serdes; asks nobody."""
        return uses_of([(one, self.group_of(one)) for one in self._handlers], self._functions, self.serdes)

    def group_of(self, handler: Handler[Any, Any]) -> str:
        """The group that a handler's bus runs it as: its own, or one named after the bus and the function."""
        return handler.spec.group or f"{self.client_id}.{handler.__name__}"

    @contextmanager
    def without_handlers(self) -> Generator[None]:
        """While inside, the bus starts without any: it sends and reads, for a shell. Enter it while it is stopped."""
        kept, self._handlers = self._handlers, []
        try:
            yield
        finally:
            self._handlers = kept

    @contextmanager
    def in_group(self, handler: Handler[Any, Any], group: str) -> Generator[None]:
        """While inside, the bus starts with this handler alone, as a member of ``group``: for replays.

        It begins at the group's offsets, or at the earliest record; what it publishes is published. Enter it while the
        bus is stopped; ConfigError otherwise, and for a handler of another bus.
        """
        if self.is_running:
            raise ConfigError("in_group: the bus is running already; enter it before the bus starts")
        if handler not in self._handlers:
            raise ConfigError(f"in_group: {handler!r} is not declared on this bus")
        alone = copy.copy(handler)
        alone.spec = msgspec.structs.replace(handler.spec, group=group, group_instance_id=None, start="earliest")
        kept, self._handlers = self._handlers, [alone]
        try:
            yield
        finally:
            self._handlers = kept
