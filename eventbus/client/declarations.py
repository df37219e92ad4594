"""The declarations of a bus: its decorators, tables, and what it includes."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from eventbus import broker
from eventbus.client import handling
from eventbus.client.decorators import Decorators
from eventbus.client.tables.declaring import TableDeclarations
from eventbus.errors import ConfigError

if TYPE_CHECKING:
    from eventbus.broker import TopicSpec
    from eventbus.client.declared import Declared, Surrounds
    from eventbus.client.handling.handlers import Handler, ProducerFunction
    from eventbus.client.host import Part
    from eventbus.client.lifespan import When


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
        from eventbus.client.router import check_part, placed_here  # the first `include` of a program loads routers

        placed = placed_here(items, prefix, group_prefix)
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
            check_part(item)
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
            function.serdes = handling.serdes_meant(function.published, self.context.serdes)
            if function.published is not None:
                self.context.serdes.declare(function.spec.topic, function.published, is_final=False)
        except TypeError as error:
            raise ConfigError(f"{function!r} returns {function.published}: {error}") from error
        self.context.producer_functions.append(function)
        self.context.topics.setdefault(function.spec.topic, broker.TopicSpec(function.spec.topic))
