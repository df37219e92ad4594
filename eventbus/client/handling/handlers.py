"""Decorated functions: what ``@consumer`` and ``@producer`` make of them, and what their signatures mean."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from types import AsyncGeneratorType, FrameType, GeneratorType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from eventbus.client.handling.functions import check_function, name_of, opening_of, own_function
from eventbus.client.handling.injection import Overrides
from eventbus.client.handling.options import ConsumerSpec, ProducerSpec, consumer_spec, producer_spec
from eventbus.client.handling.result_serdes import published_type, serdes_named
from eventbus.client.handling.signatures import read_signature
from eventbus.errors import ConfigError
from eventbus.properties import check_keywords
from eventbus.types import ConsumerRecord
from serdes import Serde, serde_for
from serdes.choose import split_optional

if TYPE_CHECKING:
    from eventbus.client.keywords import HandlerOptions, ProducerFunctionOptions

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Sends(Protocol):
    """The part of a bus that a producer function uses: it publishes the function's result."""

    async def publish(self, function: ProducerFunction[..., Any, Any], value: Any) -> None: ...


class ProducerFunction(Generic[P, R, T_co]):
    """A function whose result is published. The caller still gets the result; called before the bus runs, it raises.

    ``R`` is what the function itself returns, ``T_co`` what awaiting a call gives: of a generator the list of its
    values.
    """

    def __init__(self, function: Callable[P, R], spec: ProducerSpec, frame: FrameType | None = None) -> None:
        check_function(function, f"@producer({spec.topic!r})")
        self.function = function
        self.spec = spec
        self.published = published_type(function, frame)
        """The annotation of what it returns; None: it does not tell."""
        self.serdes = serdes_named(self.published)
        """Those that the annotation names, by type; its bus may add to them."""
        self.bus: Sends | None = None
        self.router: object = None
        """The one that it was declared on: that is what a bus includes."""
        self.declared = spec
        """As it was declared: a router's place changes ``spec``."""
        self.is_placed = False
        functools.update_wrapper(self, function, updated=())
        self.__name__ = name_of(function)
        _mark_coroutine(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co:
        bus = self.bus
        if bus is None:
            raise ConfigError(
                f"{self.__name__}() publishes to {self.spec.topic!r}, but belongs to no bus: decorate it with "
                f"@bus.producer, or pass it to bus.include(...)"
            )
        result: Any = self.function(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, (AsyncIterator, Iterator)):
            outputs: list[Any] = []

            async def publish(value: Any) -> None:
                await bus.publish(self, value)
                outputs.append(value)

            await for_each(result, publish)
            return cast("T_co", outputs)
        await bus.publish(self, result)
        return result

    def __repr__(self) -> str:
        return f"<producer {self.__name__} -> {self.spec.topic}>"


class Handler(Generic[P, R]):
    """A function that handles records.

    Calling it calls the undecorated function, and publishes nothing: a unit test needs no bus.
    """

    def __init__(self, function: Callable[P, R], spec: ConsumerSpec, frame: FrameType | None) -> None:
        inner: Any = function
        if isinstance(inner, Handler):
            topics = [*cast("Handler[..., Any]", inner).spec.topics, *spec.topics]
            raise ConfigError(
                f"{name_of(inner)}() has a @consumer already; a handler of several topics takes a list: "
                f"@bus.consumer([{', '.join(map(repr, topics))}])"
            )
        is_producer = isinstance(inner, ProducerFunction)
        self.producer = cast("ProducerFunction[..., Any, Any]", inner) if is_producer else None
        """The producer decorated onto the same function: its outputs are sent before the offset is committed."""
        self.undecorated: Callable[..., Any] = inner if self.producer is None else self.producer.function
        check_function(self.undecorated, f"@consumer({', '.join(map(repr, spec.topics))})")
        self.spec = spec
        self.router: object = None
        """The one that it was declared on: that is what a bus includes."""
        self.declared = spec
        """As it was declared: a router's place changes ``spec``."""
        self.is_placed = False
        functools.update_wrapper(self, self.undecorated, updated=())
        self.__name__ = spec.name or name_of(self.undecorated)
        self.returned = published_type(self.undecorated, frame) if spec.replies else None
        """The annotation of its replies; None: it is not known."""
        self.signature = read_signature(self.undecorated, spec, frame)
        self.function = self.signature.filled(self.undecorated, {})
        """The function that is called for a record; it provides the handler's dependencies, if it has any."""
        if self.producer is None and opening_of(self.undecorated)[0].endswith("with "):
            raise no_producer(self.__name__)
        if self.producer is not None and spec.replies:
            raise ConfigError(
                f"handler {self.__name__!r}: replies=True sends its result to the requester, and @producer sends it to "
                f"{self.producer.spec.topic!r}. Remove either, and send that record with await bus.send(...)"
            )
        if self.producer is not None and spec.ack == "manual":
            raise ConfigError(
                f"handler {self.__name__!r}: ack='manual' does not wait until what @producer publishes is stored: send "
                "it yourself (await bus.send(...)) and call record.ack() after that, or leave ack out"
            )
        if self.producer is not None and spec.tx is not None:
            raise ConfigError(
                f"handler {self.__name__!r}: what @producer publishes is not part of the database's transaction: leave "
                "it out, and publish with an Outbox in the handler's session"
            )
        if inspect.iscoroutinefunction(own_function(self.undecorated)):
            _mark_coroutine(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.undecorated(*args, **kwargs)

    def payload_serde(self, serdes: Mapping[type, Serde]) -> Serde | None:
        """Return the serde of the payload, chosen from ``serdes`` and the built-in serdes; None if it takes no payload.

        Raises ConfigError for a type that no serde can decode.
        """
        annotation = split_optional(self.signature.payload)[0]
        if self.signature.payload_name is None or annotation is ConsumerRecord:
            return None
        try:
            return serde_for(annotation, serdes)
        except TypeError as error:
            named = annotation.__qualname__ if inspect.isclass(annotation) else annotation
            raise ConfigError(
                f"handler {self.__name__!r}: its payload type {named} cannot be read: {error}. Make it a "
                "msgspec.Struct, a dataclass, a TypedDict or a pydantic model; or give the bus a serde for it: "
                f"EventBus(url, serdes={{{named}: MySerde()}})"
            ) from None

    def override(self, overrides: Overrides) -> None:
        """Have other functions give what it depends on. Raises ConfigError for those that cannot."""
        self.function = self.signature.filled(self.undecorated, overrides)

    def __repr__(self) -> str:
        topics = ", ".join(self.spec.topics) or f"/{self.spec.pattern}/"
        return f"<handler {self.__name__} of {topics}>"


class ConsumerDecorator(Protocol):
    """The decorator that ``@consumer(...)`` returns: a `Handler` is called as the undecorated function is."""

    @overload
    def __call__(self, function: ProducerFunction[P, R, Any], /) -> Handler[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R]: ...


class ProducerDecorator(Protocol):
    """The decorator that ``@producer(...)`` returns: a call of the function is awaited, and gives what it published."""

    @overload
    def __call__(
        self, function: Callable[P, AsyncIterator[T]], /
    ) -> ProducerFunction[P, AsyncIterator[T], list[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterator[T]], /) -> ProducerFunction[P, Iterator[T], list[T]]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> ProducerFunction[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> ProducerFunction[P, T, T]: ...


def calling_frame() -> FrameType | None:
    """Return the frame that applies the decorator, in which types local to a function are looked up."""
    frame = inspect.currentframe()
    return frame.f_back.f_back if frame is not None and frame.f_back is not None else None


def no_producer(name: str) -> ConfigError:
    """Return the error for a generator without @producer: its body would never run, because its values are not read."""
    return ConfigError(
        f"handler {name!r} yields values, but publishes them nowhere, so it would never run: "
        'put @bus.producer("topic") below its @bus.consumer, or do not yield'
    )


async def for_each(values: Any, do: Callable[[Any], Awaitable[None]]) -> None:
    """Await ``do`` for each item of a generator, async or not, then close the generator.

    If ``do`` raises or is cancelled, the generator stands at a ``yield``. Without the close, its ``finally`` and
    ``async with`` would run when the garbage collector finds it, after the call and outside its timeout.
    """
    if isinstance(values, AsyncIterator):
        try:
            async for value in cast("AsyncIterator[Any]", values):
                await do(value)
        finally:
            if isinstance(values, AsyncGeneratorType):
                await values.aclose()
    else:
        try:
            for value in values:
                await do(value)
        finally:
            if isinstance(values, GeneratorType):
                values.close()


def consumer(topics: str | Sequence[str] = (), **options: Unpack[HandlerOptions]) -> ConsumerDecorator:
    """Mark a function as a handler of ``topics``. Nothing is registered: give it to ``bus.include``.

    The payload's type is the annotation of the first parameter; a parameter annotated `ConsumerRecord` gets the record.
    An ``async def`` is awaited on the event loop, a plain function runs in a worker thread. Raises ConfigError for an
    option that is not known, out of its bounds, or in contradiction to another one.

    What it reads: ``group``; ``start`` ("earliest", "latest", "none", "by_duration:PT1H" or a timedelta); ``pattern``
    (topics by regular expression); ``isolation``; ``batch`` (the handler takes ``list[Payload]``: True for a whole
    fetch, a number for at most that); ``filter`` (a function of the record; False: finished without the handler).

    How it is called: ``order``: "partition" (records of a partition one after the other), "key" (records of a key one
    after the other, up to ``concurrency`` keys concurrently), "none", or "global" (refuses a topic of several
    partitions). ``concurrency`` is how many records (or batches) are in flight at once in this bus. The default is one
    per partition; for a plain function it is 1. ``timeout`` (seconds, or a timedelta): a call that takes longer is
    cancelled and counts as failed. A plain function cannot be cancelled; its call fails when it returns.
    ``middleware``: functions around the call, ``async def middleware(record, call_next)``, outermost first.
    ``on_error``: "stop" (that partition, loudly), "skip" (log and go on), "crash" (end the bus). ``name``.

    ``replies=True``: the result is sent back to the caller of ``bus.request``; None is a reply too.

    When a record is finished: ``delivery``: "at-least-once", "at-most-once" (committed before it is handled) or
    "exactly-once". ``ack="manual"``: when ``record.ack()`` was called, in the handler or later. Finished records are
    committed every ``commit_interval_ms`` (100), and as soon as there are ``commit_every``. ``max_unfinished``
    (10,000): how far a partition may run ahead of its first unfinished record (order "key" or "none", manual acks).

    ``exactly_once=True``, or ``delivery="exactly-once"``: what the handler publishes and the offsets of its records are
    in one transaction, of up to ``transaction_records`` records (500). Records that it sends with its bus join the
    transaction (see `EventBus.send`), as do those sent through a parameter annotated `Transaction`.
    ``transaction_timeout_ms`` bounds the transaction.

    ``tx=Session`` (a `sessionmaker`, an `async_sessionmaker`, an engine, or an `outbox.Inbox`): each call is a database
    transaction that holds the offset of its record too, so that what the handler writes there counts once. A parameter
    annotated `Session` (`AsyncSession`, `Connection`, `AsyncConnection`) gets it; do not commit it. The offsets in the
    database decide where a partition begins.

    As a member of its group: ``group_instance_id`` (static membership), ``assignor`` or ``assignors`` ("range",
    "roundrobin", "sticky", "cooperative-sticky", or an `Assignor`), ``session_timeout_ms``, ``max_poll_interval_ms``;
    ``drain_timeout_ms`` is how long a record in flight may take to finish when its partition moves to another member.
    """
    spec = consumer_spec(topics, {**options})
    check_keywords("@consumer", options)
    frame = calling_frame()

    def mark(function: Callable[..., Any]) -> Handler[..., Any]:
        return Handler(function, spec, frame)

    return mark


def producer(
    topic: str, *, key: Callable[[Any], Any] | None = None, **config: Unpack[ProducerFunctionOptions]
) -> ProducerDecorator:
    """Mark a function whose result (or each value it yields) is published to ``topic``; None is not.

    ``key`` computes the record's key from the value. Further keywords are a producer's settings (``linger_ms``,
    ``compression_type``, ``delivery_timeout_ms``, ...), and give the function a separate producer. Pass the function
    to ``bus.include``, or use ``@bus.producer``.
    """
    mark = marking(topic, key, {**config}, calling_frame())
    check_keywords("@producer", config)
    return mark


def marking(
    topic: str, key: Callable[[Any], Any] | None, config: dict[str, Any], frame: FrameType | None
) -> Callable[[Callable[..., Any]], ProducerFunction[..., Any, Any]]:
    """Return the decorator ``@producer``; ``frame`` is the frame that applies it."""
    if not isinstance(cast(Any, topic), str):
        raise ConfigError('@producer takes the topic first: @producer("orders", key=lambda order: order.id)')

    spec = producer_spec(topic, key, config.pop("partitioner", None), config)

    def mark(function: Callable[..., Any]) -> ProducerFunction[..., Any, Any]:
        if isinstance(function, Handler):
            raise ConfigError(
                f"{function.__name__}: put @producer below @consumer (nearest to the function): "
                "the handler consumes what the producer publishes"
            )
        return ProducerFunction(function, spec, frame)

    return mark


def _mark_coroutine(function: Any) -> None:
    """Let frameworks that look before they call see an ``async def``; an object can say so from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
