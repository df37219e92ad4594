"""The decorators shared by a bus and a router."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from eventbus import broker
from eventbus.client import handling
from eventbus.durations import texts_of
from eventbus.errors import ConfigError
from eventbus.properties import check_keywords

if TYPE_CHECKING:
    from eventbus.broker import TopicSpec
    from eventbus.client.handling.handlers import ConsumerDecorator, Handler, ProducerDecorator, ProducerFunction
    from eventbus.client.keywords import HandlerOptions, ProducerFunctionOptions
    from eventbus.client.lifespan import Hook, When

    AnyHandler: TypeAlias = Handler[..., Any]
    AnyFunction: TypeAlias = ProducerFunction[..., Any, Any]


def check_topic(name: Any, partitions: Any, configs: Any) -> None:
    """Raise ConfigError for arguments that are swapped or have the wrong type."""
    if not isinstance(name, str):
        raise ConfigError(f"bus.topic({name!r}): the name of one topic: bus.topic('orders', partitions=3)")
    if partitions is not None and type(partitions) is not int:
        raise ConfigError(f"bus.topic({name!r}): partitions={partitions!r}: a whole number")
    if configs is not None and not isinstance(configs, Mapping):
        raise ConfigError(f"bus.topic({name!r}): configs={configs!r}: a dict: configs={{'retention.ms': 3_600_000}}")


class Decorators(ABC):
    """Marks handlers, producer functions, topics and hooks, and passes them to the bus or router."""

    _defaults: Mapping[str, Any] = MappingProxyType({})
    """Default options of every ``consumer``."""

    @abstractmethod
    def _declare_handler(self, handler: AnyHandler) -> None: ...

    @abstractmethod
    def _declare_function(self, function: AnyFunction) -> None: ...

    @abstractmethod
    def _declare_topic(self, spec: TopicSpec, is_temporary: bool) -> None: ...

    @abstractmethod
    def _declare_value(self, topic: str, annotation: Any) -> None: ...

    @abstractmethod
    def _declare_hook(self, when: When, hook: Callable[..., Any]) -> None: ...

    def consumer(self, topics: str | Sequence[str] = (), **options: Unpack[HandlerOptions]) -> ConsumerDecorator:
        """Decorate a handler of ``topics``; see `eventbus.consumer` for the options."""
        spec = handling.consumer_spec(topics, {**self._defaults, **options})
        check_keywords("@consumer", options)
        frame = handling.calling_frame()

        def register(function: Callable[..., Any]) -> AnyHandler:
            handler = handling.Handler(function, spec, frame)
            self._declare_handler(handler)
            return handler

        return register

    def producer(
        self, topic: str, *, key: Callable[[Any], Any] | None = None, **config: Unpack[ProducerFunctionOptions]
    ) -> ProducerDecorator:
        """Decorate a function whose result is published to ``topic``; see `eventbus.producer`."""
        mark = handling.marking(topic, key, {**config}, handling.calling_frame())
        check_keywords("@producer", config)

        def register(function: Callable[..., Any]) -> AnyFunction:
            marked = mark(function)
            self._declare_function(marked)
            return marked

        return register

    def topic(
        self,
        name: str,
        *,
        partitions: int | None = None,
        replication_factor: int = -1,
        configs: Mapping[str, object] | None = None,
        temporary: bool = False,
        value: Any = None,
    ) -> None:
        """Declare a topic, which is created at start if it is missing, and left unchanged if it exists.

        ``value`` is the type of its values, like the annotation of a handler. Everything that this bus sends to the
        topic is written as that type, whatever the class of a single value: an int in a topic of ``float`` becomes a
        JSON number. Without it, the return annotations of the topic's ``@producer`` functions apply, or else the class
        of each value. ``bytes`` are stored unchanged.

        A ``temporary`` topic is deleted when the bus closes. It must not exist before: the start then raises
        TopicAlreadyExists and changes nothing. Raises ConfigError for an invalid name, number or mapping; values of
        configs are checked at start.
        """
        check_topic(name, partitions, configs)
        count = -1 if partitions is None else partitions
        spec = broker.TopicSpec(name, count, replication_factor, texts_of(configs))
        self._declare_topic(spec, temporary)
        if value is not None:
            self._declare_value(name, value)

    def on_startup(self, hook: Hook) -> Hook:
        """Decorate a function to run at the start of the bus, when it can send and read but no handler runs yet.

        It may be async, and takes no parameters or the bus. Hooks run in order of declaration, and an error ends the
        start. In a generator (async or not), the code after the ``yield`` runs when the bus ends.
        """
        self._declare_hook("on_startup", hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Decorate a function to run at the end of the bus, after the handlers, while it can still send and read.

        It may be async, and takes no parameters or the bus. Hooks run in order of declaration, within
        ``drain_timeout_ms``, and only if the start succeeded.
        """
        self._declare_hook("on_shutdown", hook)
        return hook
