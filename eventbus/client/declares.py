"""The decorators: what a bus and a router have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Unpack

from eventbus.broker import TopicSpec
from eventbus.client.admin import texts_of
from eventbus.client.handling.handlers import (
    ConsumerDecorator,
    Handler,
    ProducerDecorator,
    ProducerFunction,
    calling_frame,
    consumer_spec,
    marking,
)
from eventbus.client.lifespan import Hook, When
from eventbus.errors import ConfigError
from eventbus.properties import check_keywords

if TYPE_CHECKING:
    from eventbus.client.keywords import HandlerOptions, ProducerFunctionOptions

AnyHandler = Handler[..., Any]
AnyFunction = ProducerFunction[..., Any, Any]


def check_topic(name: Any, partitions: Any, configs: Any) -> None:
    """Raises ConfigError for arguments that are swapped, or of another type."""
    if not isinstance(name, str):
        raise ConfigError(f"bus.topic({name!r}): the name of one topic: bus.topic('orders', partitions=3)")
    if partitions is not None and type(partitions) is not int:
        raise ConfigError(f"bus.topic({name!r}): partitions={partitions!r}: a whole number")
    if configs is not None and not isinstance(configs, Mapping):
        raise ConfigError(f"bus.topic({name!r}): configs={configs!r}: a dict: configs={{'retention.ms': 3_600_000}}")


class Declares(ABC):
    """Marks handlers, producer functions, topics and hooks, and hands them to whom they are declared on."""

    _defaults: Mapping[str, Any] = MappingProxyType({})
    """Options of every ``consumer`` that says nothing else."""

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
        spec = consumer_spec(topics, {**self._defaults, **options})
        check_keywords("@consumer", options)
        frame = calling_frame()

        def register(function: Callable[..., Any]) -> AnyHandler:
            handler = Handler(function, spec, frame)
            self._declare_handler(handler)
            return handler

        return register

    def producer(
        self, topic: str, *, key: Callable[[Any], Any] | None = None, **config: Unpack[ProducerFunctionOptions]
    ) -> ProducerDecorator:
        """Decorate a function whose result is published to ``topic``; see `eventbus.producer`."""
        mark = marking(topic, key, {**config}, calling_frame())
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
        """Declare a topic: created at start if it is missing, unchanged if it exists.

        ``value``: the type of its values, as the annotation of its handlers. All that this bus sends there is written
        as that type, whatever class the single value has: an int in a topic of ``float`` is a JSON number. Without it,
        the return annotations of the topic's ``@producer`` functions count, else the class of each value. ``bytes``
        are stored as they are.

        ``temporary``: a topic of this run alone, deleted as the bus closes. Then one that exists is somebody else's:
        the start raises TopicAlreadyExists, and nothing is touched. Raises ConfigError for what is no name, number or
        mapping; a config's own value is checked at start.
        """
        check_topic(name, partitions, configs)
        spec = TopicSpec(name, -1 if partitions is None else partitions, replication_factor, texts_of(configs))
        self._declare_topic(spec, temporary)
        if value is not None:
            self._declare_value(name, value)

    def on_startup(self, hook: Hook) -> Hook:
        """Decorate a function to run as the bus starts: the bus sends and reads by now, no handler runs yet.

        Async or not, without parameters or with the bus; in the order of their declaration. What one raises ends the
        start. The code after the ``yield`` of a generator (async or not) runs at the end.
        """
        self._declare_hook("on_startup", hook)
        return hook

    def on_shutdown(self, hook: Hook) -> Hook:
        """Decorate a function to run as the bus ends: handlers are through by now, the bus still sends and reads.

        Async or not, without parameters or with the bus; in the order of their declaration, within
        ``drain_timeout_ms``. Only where the start went well.
        """
        self._declare_hook("on_shutdown", hook)
        return hook
