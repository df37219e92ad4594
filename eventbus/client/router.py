"""Routers: groups of handlers and producer functions, included in a bus under a prefix."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

import msgspec

from eventbus.broker import TopicSpec
from eventbus.client.declared import Surrounds
from eventbus.client.decorators import Decorators
from eventbus.client.handling.handlers import Handler, ProducerFunction, consumer_spec
from eventbus.client.handling.middleware import Middleware, check_middleware
from eventbus.client.handling.options import ConsumerSpec
from eventbus.client.host import Part
from eventbus.client.lifespan import When, check_hook
from eventbus.errors import ConfigError
from eventbus.properties import check_keywords
from eventbus.recovery import NamesTopics
from eventbus.settings.table import rows
from eventbus.topic_patterns import prefixed

if TYPE_CHECKING:
    from eventbus.client.decorators import AnyFunction, AnyHandler
    from eventbus.client.keywords import HandlerDefaults

_NAME = re.compile(r"[a-zA-Z0-9._-]*")


class Placement(NamedTuple):
    """The place of a router: the prefixes of its names, and the middleware around its handlers."""

    prefix: str = ""
    group_prefix: str = ""
    middleware: tuple[Middleware, ...] = ()

    def within(self, outer: Placement) -> Placement:
        return Placement(
            outer.prefix + self.prefix, outer.group_prefix + self.group_prefix, (*outer.middleware, *self.middleware)
        )


class Placed(NamedTuple):
    """The declarations that a router adds to a bus."""

    handlers: list[AnyHandler]
    functions: list[AnyFunction]
    topics: dict[str, tuple[TopicSpec, bool]]
    """Each with True if it is temporary."""
    hooks: list[tuple[When, Callable[..., Any]]]
    others: list[Any]
    """Included objects that a prefix does not change: parts."""
    values: dict[str, Any]
    """The declared types of topics."""


class Router(Decorators):
    """A group of handlers and producer functions, declared as on a bus and added with ``bus.include(router)``.

    ``prefix`` is put before the names of its topics: those read (also by pattern), published to and declared, and its
    retry and dead-letter topics. ``group_prefix``, by default the same, is put before its groups, and so before retry
    and dead-letter topics named after groups. A second environment on the same cluster therefore shares no group with
    the first. A handler without a group gets one named after the service, the prefix and itself. ``middleware`` runs
    inside the bus's and outside the handlers' own. Further keywords are defaults of its ``consumer``. Names passed to
    ``bus.send`` or ``tx.send`` get no prefix.

    A router may include routers, functions and modules, as a bus does. Prefixes and middleware are combined, outer
    first. A router included in several places has handlers in each. Its producer functions can then only be called by
    its handlers, because a direct call would not determine the place.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        group_prefix: str | None = None,
        middleware: Sequence[Middleware] = (),
        **defaults: Unpack[HandlerDefaults],
    ) -> None:
        """Raise ConfigError for a prefix that is invalid in a topic name, and for unknown options."""
        self._placement = placement(prefix, group_prefix, middleware, f"Router(prefix={prefix!r})")
        for name in ("topics", *rows("decorator")):
            if name in defaults:
                raise ConfigError(f"Router({name}=...): that is said for each handler")
        self._defaults = {**defaults}
        if defaults:
            consumer_spec("topic", self._defaults)
            check_keywords("Router(...)", self._defaults)
        self._handlers: list[AnyHandler] = []
        self._functions: list[AnyFunction] = []
        self._topics: dict[str, tuple[TopicSpec, bool]] = {}
        self._values: dict[str, Any] = {}
        """The declared types of topics."""
        self._hooks: list[tuple[When, Callable[..., Any]]] = []
        self._included: list[tuple[Any, Placement]] = []
        self._is_placed = False

    def __repr__(self) -> str:
        return f"<Router prefix={self._placement.prefix!r}, {len(self._handlers)} handler(s)>"

    # declaring -------------------------------------------------------------------------------------------------------

    def include(self, *items: object, prefix: str = "", group_prefix: str | None = None) -> None:
        """Add routers, marked functions, modules or parts, as in a bus. The prefixes are as in a router."""
        self._check_open("include")
        where = placement(prefix, group_prefix, (), f"include(prefix={prefix!r})")
        for item in items:
            for one in _members(item):
                if one is self:
                    raise ConfigError(f"{self!r} includes itself")
                check_owner(one)
                self._included.append((one, where))

    def _declare_handler(self, handler: AnyHandler) -> None:
        self._check_open(repr(handler))
        handler.router = self
        self._handlers.append(handler)
        if handler.producer is not None and handler.producer.router is None:
            handler.producer.router = self

    def _declare_function(self, function: AnyFunction) -> None:
        self._check_open(repr(function))
        function.router = self
        self._functions.append(function)

    def _declare_topic(self, spec: TopicSpec, is_temporary: bool) -> None:
        self._check_open(f"topic {spec.name!r}")
        self._topics[spec.name] = spec, is_temporary

    def _declare_value(self, topic: str, annotation: Any) -> None:
        self._values[topic] = annotation

    def _declare_hook(self, when: When, hook: Callable[..., Any]) -> None:
        self._check_open(f"@router.{when}")
        check_hook(when, hook)
        self._hooks.append((when, hook))

    def _check_open(self, what: str) -> None:
        if self._is_placed:
            raise ConfigError(f"{what}: {self!r} is included in a bus already, which would not see it: declare before")

    # placing ---------------------------------------------------------------------------------------------------------

    def placed(self, outer: Placement) -> Placed:
        """Return the declarations to add to a bus. Raises ConfigError for routers that include each other."""
        return self._placed(outer, ())

    def _placed(self, outer: Placement, inside: tuple[Router, ...]) -> Placed:
        if self in inside:
            raise ConfigError(f"{self!r} includes itself, by way of {inside[-1]!r}")
        self._is_placed = True
        where = self._placement.within(outer)
        made = Placed([], [], {}, list(self._hooks), [], {})
        functions: dict[int, AnyFunction] = {}
        for function in self._functions:
            functions[id(function)] = self._function(function, where)
            made.functions.append(functions[id(function)])
        for handler in self._handlers:
            made.handlers.append(self._handler(handler, where, functions))
        for name, (spec, is_temporary) in self._topics.items():
            made.topics[where.prefix + name] = msgspec.structs.replace(spec, name=where.prefix + name), is_temporary
        made.values.update({where.prefix + name: annotation for name, annotation in self._values.items()})
        for item, inner in self._included:
            self._add(made, item, inner.within(where), (*inside, self), functions)
        return made

    def _add(
        self,
        made: Placed,
        item: Any,
        where: Placement,
        inside: tuple[Router, ...],
        functions: dict[int, AnyFunction],
    ) -> None:
        if isinstance(item, Router):
            found = item._placed(where, inside)
            made.handlers.extend(found.handlers)
            made.functions.extend(found.functions)
            made.topics.update(found.topics)
            made.values.update(found.values)
            made.hooks.extend(found.hooks)
            made.others.extend(found.others)
        elif isinstance(item, Handler):
            made.handlers.append(self._handler(cast("AnyHandler", item), where, functions))
        elif isinstance(item, ProducerFunction):
            made.functions.append(self._function(cast("AnyFunction", item), where))
        else:
            made.others.append(item)

    def _function(self, declared: AnyFunction, where: Placement) -> AnyFunction:
        one = _first_or_copy(declared, where)
        if where != Placement():
            one.spec = msgspec.structs.replace(declared.declared, topic=where.prefix + declared.declared.topic)
        if one is not declared:
            one.bus = None
            is_only = declared.router is None and declared.bus is None
            declared.bus = _Elsewhere(declared.__name__, one if is_only else None)
        return one

    def _handler(self, declared: AnyHandler, where: Placement, functions: dict[int, AnyFunction]) -> AnyHandler:
        one = _first_or_copy(declared, where)
        if where != Placement():
            one.spec = placed_spec(declared.declared, where)
        if declared.producer is not None:
            one.producer = functions.get(id(declared.producer)) or self._function(declared.producer, where)
        return one


def _first_or_copy(declared: Any, where: Placement) -> Any:
    """Return the object for this place.

    The first place of a router's declaration gets the object itself, so that the program's reference is what the bus
    runs. Objects that other buses may include too are copied.
    """
    if declared.router is None:
        return declared if where == Placement() else copy.copy(declared)
    if declared.is_placed:
        one = copy.copy(declared)
        one.spec = declared.declared
        return one
    declared.is_placed = True
    return declared


class _Elsewhere:
    """The publisher of a producer function that was copied for several buses."""

    def __init__(self, name: str, only: AnyFunction | None) -> None:
        self._name = name
        self._only = only

    async def publish(self, function: AnyFunction, value: Any) -> None:
        if self._only is None or self._only.bus is None:
            raise ConfigError(
                f"{self._name}() is included in several places, and a call does not say which is meant: send to the "
                "topic's whole name, await bus.send(...)"
            )
        await self._only.bus.publish(self._only, value)


def placement(prefix: str, group_prefix: str | None, middleware: Sequence[Middleware], where: str) -> Placement:
    """Validate the arguments and return the placement. Raises ConfigError."""
    for what, given in (("prefix", prefix), ("group_prefix", group_prefix or "")):
        if not isinstance(cast(Any, given), str) or not _NAME.fullmatch(given):
            raise ConfigError(f"{where}: {what}={given!r}: letters, digits, dots, dashes and underscores: 'shop.'")
    return Placement(prefix, prefix if group_prefix is None else group_prefix, check_middleware(middleware, where))


def placed_spec(spec: ConsumerSpec, where: Placement) -> ConsumerSpec:
    """Return a handler's options for its place."""
    return msgspec.structs.replace(
        spec,
        topics=tuple(where.prefix + topic for topic in spec.topics),
        pattern=prefixed(where.prefix, spec.pattern) if spec.pattern and where.prefix else spec.pattern,
        group=None if spec.group is None else where.group_prefix + spec.group,
        group_prefix=where.group_prefix,
        middleware=(*where.middleware, *spec.middleware),
        retry=spec.retry.under(where.prefix) if isinstance(spec.retry, NamesTopics) else spec.retry,
    )


def _members(item: Any) -> Iterator[Any]:
    """Yield the item, or the declarations of a module, each once."""
    if not isinstance(item, ModuleType):
        yield item
        return
    found = list(declared_in(item))
    if not found:
        raise ConfigError(f"module {item.__name__} has no function marked with @consumer or @producer, and no Router")
    yield from found


def declared_in(module: ModuleType) -> Iterable[Any]:
    """Return the marked functions and routers of a module. Declarations of a router come with the router."""
    for value in list(vars(module).values()):
        is_marked = isinstance(value, (Handler, ProducerFunction)) and cast("AnyHandler", value).router is None
        if is_marked or isinstance(value, Router):
            yield value


def check_owner(item: Any) -> None:
    """Raise ConfigError for an object that was declared on a router, without which it would lose its prefix."""
    if isinstance(item, (Handler, ProducerFunction)):
        owner = cast("AnyHandler", item).router
        if owner is not None:
            raise ConfigError(f"{item!r} is declared on {owner!r}: include the router")


def placed_here(items: Iterable[object], prefix: str, group_prefix: str | None) -> Placed:
    """Return the declarations of the items that a bus includes. Raises ConfigError."""
    including = Router(prefix=prefix, group_prefix=group_prefix)
    including.include(*items)
    return including.placed(Placement())


def check_part(item: object) -> None:
    """Raise ConfigError for an included object that is neither marked nor a part."""
    if not isinstance(item, (Part, Surrounds)):
        hint = "; its relay is a part: include(outbox.relay())" if hasattr(item, "relay") else ""
        raise ConfigError(f"{item!r} is not marked: decorate it with @consumer or @producer from eventbus{hint}")
    if callable(item) and not isinstance(item, Surrounds):
        raise ConfigError(
            f"include({item!r}): a middleware goes around handlers where it is said to: "
            "EventBus(middleware=[...]), Router(middleware=[...]) or @bus.consumer(..., middleware=[...])"
        )
