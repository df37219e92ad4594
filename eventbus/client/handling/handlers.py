"""Decorated functions: what ``@consumer`` and ``@producer`` make of them, and what their signatures mean."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import msgspec

from eventbus.client.handling.functions import is_async, name_of, own_function
from eventbus.client.handling.options import ConsumerSpec, ProducerSpec, consumer_spec, producer_spec
from eventbus.client.handling.published import published_type, serdes_named
from eventbus.client.partitioner import PartitionFunction
from eventbus.client.transaction import Transaction
from eventbus.errors import ConfigError
from eventbus.types import ConsumerRecord
from serdes import serde_named

P = ParamSpec("P")
R = TypeVar("R")


class Sends(Protocol):
    """What a producer function needs of a bus: publish what it returned."""

    async def publish(self, function: ProducerFunction[Any, Any], value: Any) -> None: ...


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler takes: its payload's type, and where else a record is passed."""

    payload: Any
    """The annotation of the payload, or of one item of a batch; a batch may be of ConsumerRecord."""
    payload_name: str | None
    record_name: str | None
    transaction_name: str | None
    is_async: bool
    """Called on the event loop, not in a worker thread."""
    is_direct: bool
    """An ``async def`` with the payload first: may be called by position, and what it returns awaited unseen."""
    leading: tuple[str, ...]
    """Payload, record and transaction, as far as they are the first parameters and may be passed by position."""

    @property
    def takes_payload_alone(self) -> bool:
        return self.record_name is None and self.transaction_name is None


class ProducerFunction(Generic[P, R]):
    """A function whose result is published. The caller still gets the result; called before the bus runs, it raises."""

    def __init__(self, function: Callable[P, R], spec: ProducerSpec, frame: FrameType | None = None) -> None:
        self.function = function
        self.spec = spec
        self.published = published_type(function, frame)
        """The annotation of what it returns; None: it does not tell."""
        self.serdes = serdes_named(self.published)
        """Those that the annotation names, by type; its bus may add to them."""
        self.bus: Sends | None = None
        functools.update_wrapper(self, function, updated=())
        self.__name__ = name_of(function)
        _mark_coroutine(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        if self.bus is None:
            raise ConfigError(
                f"{self.__name__}() publishes to {self.spec.topic!r}, but belongs to no bus: decorate it with "
                f"@bus.producer, or pass it to bus.include(...)"
            )
        result: Any = self.function(*args, **kwargs)
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, (AsyncIterator, Iterator)):
            outputs: list[Any] = []
            async for value in each(result):
                await self.bus.publish(self, value)
                outputs.append(value)
            return outputs
        await self.bus.publish(self, result)
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
        self.producer = cast("ProducerFunction[..., Any]", inner) if is_producer else None
        """The producer decorated onto the same function: its outputs are sent before the offset is committed."""
        self.function: Callable[..., Any] = inner if self.producer is None else self.producer.function
        self.spec = spec
        functools.update_wrapper(self, self.function, updated=())
        self.__name__ = spec.name or name_of(self.function)
        self.signature = read_signature(self.function, spec, frame)
        if self.producer is None and _is_generator(own_function(self.function)):
            raise no_producer(self.__name__)
        if self.producer is not None and spec.ack == "manual":
            raise ConfigError(
                f"handler {self.__name__!r}: ack='manual' does not wait until what @producer publishes is stored: send "
                "it yourself (await bus.send(...)) and call record.ack() behind that, or leave ack out"
            )
        if inspect.iscoroutinefunction(own_function(self.function)):
            _mark_coroutine(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        topics = ", ".join(self.spec.topics) or f"/{self.spec.pattern}/"
        return f"<handler {self.__name__} of {topics}>"


def calling_frame() -> FrameType | None:
    """The frame a decorator stands in: types local to a function are looked up there."""
    frame = inspect.currentframe()
    return frame.f_back.f_back if frame is not None and frame.f_back is not None else None


def no_producer(name: str) -> ConfigError:
    """A generator's body runs only while somebody takes what it yields."""
    return ConfigError(
        f"handler {name!r} yields values, but publishes them nowhere, so it would never run: "
        'put @bus.producer("topic") below its @bus.consumer, or do not yield'
    )


async def each(values: Any) -> AsyncIterator[Any]:
    """The items of a generator, async or not."""
    if isinstance(values, AsyncIterator):
        async for value in cast("AsyncIterator[Any]", values):
            yield value
    else:
        for value in values:
            yield value


def consumer(topics: str | Sequence[str] = (), **options: Any) -> Callable[[Callable[P, R]], Handler[P, R]]:
    """Mark a function as a handler of ``topics``. Nothing is registered: give it to ``bus.include``.

    The payload's type is the annotation of the first parameter; a parameter annotated `ConsumerRecord` gets the record.
    An ``async def`` is awaited on the event loop, a plain function runs in a worker thread. Raises ConfigError for an
    option that is not known, out of its bounds, or in contradiction to another one.

    What it reads: ``group``; ``start`` ("earliest", "latest", "none", "by_duration:PT1H" or a timedelta); ``pattern``
    (topics by regular expression); ``isolation``; ``batch`` (the handler takes ``list[Payload]``: True for a whole
    fetch, a number for at most that); ``filter`` (a function of the record; False: finished without the handler).

    How it is called: ``order``: "partition" (records of a partition one after the other), "key" (records of a key one
    after the other, up to ``concurrency`` keys side by side), "none", or "global" (refuses a topic of several
    partitions). ``concurrency`` is how many records (or batches) are at work at once in this bus: by default one for
    each partition, for a plain function one. ``timeout`` (seconds, or a timedelta): a call that takes longer is
    cancelled and counts as failed; a plain function cannot be cancelled, its call fails when it returns.
    ``middleware``: functions around the call, ``async def middleware(record, call_next)``, outermost first.
    ``on_error``: "stop" (that partition, loudly), "skip" (log and go on), "crash" (end the bus). ``name``.

    When a record is finished: ``delivery``: "at-least-once", "at-most-once" (committed before it is handled) or
    "exactly-once". ``ack="manual"``: when ``record.ack()`` was called, in the handler or later. Finished records are
    committed every ``commit_interval_ms`` (100), and as soon as there are ``commit_every``. ``max_unfinished``
    (10,000): how far a partition may run ahead of its first unfinished record (order "key" or "none", manual acks).

    ``exactly_once=True``, or ``delivery="exactly-once"``: what the handler publishes and the offsets of its records are
    one transaction, of up to ``transaction_records`` records (500); a parameter annotated `Transaction` sends to
    further topics within it. ``transaction_timeout_ms`` bounds it.

    As a member of its group: ``group_instance_id`` (static membership), ``assignor`` or ``assignors`` ("range",
    "roundrobin", "sticky", "cooperative-sticky", or an `Assignor`), ``session_timeout_ms``, ``max_poll_interval_ms``;
    ``drain_timeout_ms`` is how long a record at work may take to finish when its partition moves to another member.
    """
    spec = consumer_spec(topics, options)
    frame = calling_frame()

    def mark(function: Callable[P, R]) -> Handler[P, R]:
        return Handler(function, spec, frame)

    return mark


def producer(
    topic: str,
    *,
    key: Callable[[Any], Any] | None = None,
    partitioner: str | PartitionFunction | None = None,
    **config: Any,
) -> Callable[[Callable[P, R]], ProducerFunction[P, R]]:
    """Mark a function whose result (or each value it yields) is published to ``topic``; None is not.

    ``key`` computes the record's key from the value. Further keywords are a producer's settings (``linger_ms``,
    ``compression_type``, ``delivery_timeout_ms``, ...): the function has a producer of its own then. Give the function
    to ``bus.include``, or use ``@bus.producer``.
    """
    return marking(topic, key, partitioner, config, calling_frame())


def marking(
    topic: str,
    key: Callable[[Any], Any] | None,
    partitioner: str | PartitionFunction | None,
    config: dict[str, Any],
    frame: FrameType | None,
) -> Callable[[Callable[P, R]], ProducerFunction[P, R]]:
    """What ``@producer`` does; ``frame``: where it stands."""
    if not isinstance(cast(Any, topic), str):
        raise ConfigError('@producer takes the topic first: @producer("orders", key=lambda order: order.id)')

    spec = producer_spec(topic, key, partitioner, config)

    def mark(function: Callable[P, R]) -> ProducerFunction[P, R]:
        if isinstance(function, Handler):
            raise ConfigError(
                f"{function.__name__}: put @producer below @consumer (nearest to the function): "
                "the handler consumes what the producer publishes"
            )
        return ProducerFunction(function, spec, frame)

    return mark


# signatures -----------------------------------------------------------------------------------------------------------

_EXAMPLE = "async def handle(order: Order, record: ConsumerRecord) -> None"


def read_signature(function: Callable[..., Any], spec: ConsumerSpec, frame: FrameType | None) -> Signature:
    """What the handler takes. Raises ConfigError showing the right signature."""
    where = f"handler {name_of(function)!r} of {', '.join(spec.topics) or spec.pattern}"
    own = own_function(function)
    hints = _hints(own, frame, where)
    parameters = inspect.signature(function).parameters
    payload: Any = None
    payload_name: str | None = None
    record_name: str | None = None
    transaction_name: str | None = None
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigError(f"{where}: *{parameter.name} says nothing about the payload; write e.g. {_EXAMPLE}")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            raise ConfigError(f"{where}: parameters are passed by name; leave out the '/' after {parameter.name!r}")
        annotation = hints.get(parameter.name)
        if annotation is None:
            if parameter.default is not parameter.empty:
                continue
            raise ConfigError(
                f"{where}: parameter {parameter.name!r} has no annotation, so its payload's type is unknown; "
                f"write e.g. {_EXAMPLE} (bytes takes every value, as it is)"
            )
        if annotation is ConsumerRecord and record_name is None:
            record_name = parameter.name
        elif annotation is Transaction:
            transaction_name = parameter.name
        elif payload_name is None:
            payload, payload_name = annotation, parameter.name
        elif parameter.default is parameter.empty:
            raise ConfigError(
                f"{where}: {parameter.name!r} is a second payload ({payload_name!r} is the first); a handler takes one "
                f"payload and, if it wants, the record: {_EXAMPLE}"
            )
    if payload_name is None and record_name is None:
        raise ConfigError(f"{where} takes no parameter for the record; write e.g. {_EXAMPLE}")
    if spec.batch:
        payload = _batch_item(payload, record_name, where)
    if spec.ack == "manual":
        _check_manual(spec, payload, record_name, where)
    runs_on_loop = is_async(function)
    if transaction_name is not None:
        _check_transaction(spec, runs_on_loop, where)
    passed = (payload_name, record_name, transaction_name)
    leading = tuple(
        parameter.name
        for parameter in itertools.takewhile(
            lambda parameter: parameter.name in passed and parameter.kind is parameter.POSITIONAL_OR_KEYWORD,
            parameters.values(),
        )
    )
    return Signature(
        payload=payload,
        payload_name=payload_name,
        record_name=record_name,
        transaction_name=transaction_name,
        is_async=runs_on_loop,
        is_direct=inspect.iscoroutinefunction(own) and leading[:1] == (payload_name,),
        leading=leading,
    )


def _check_manual(spec: ConsumerSpec, payload: Any, record_name: str | None, where: str) -> None:
    if spec.batch and payload is not ConsumerRecord:
        raise ConfigError(
            f"{where}: ack='manual' finishes records by record.ack(), so its batch is one of records: "
            "async def handle(records: list[ConsumerRecord]) -> None"
        )
    if not spec.batch and record_name is None:
        raise ConfigError(
            f"{where}: ack='manual' finishes a record by record.ack(), so the handler takes the record: {_EXAMPLE}"
        )


def _check_transaction(spec: ConsumerSpec, runs_on_loop: bool, where: str) -> None:
    if not spec.exactly_once:
        raise ConfigError(
            f"{where}: a Transaction is there only with exactly_once=True: @bus.consumer(..., exactly_once=True)"
        )
    if not runs_on_loop:
        raise ConfigError(f"{where}: a handler that takes a Transaction is an `async def`: its sends are awaited")


def _batch_item(payload: Any, record_name: str | None, where: str) -> Any:
    items = typing.get_args(payload)
    if typing.get_origin(payload) is not list or len(items) != 1 or record_name is not None:
        raise ConfigError(
            f"{where}: a batch handler takes one list: async def handle(orders: list[Order]) -> None; "
            "list[ConsumerRecord] gives the records"
        )
    return items[0]


def _hints(function: Callable[..., Any], frame: FrameType | None, where: str) -> dict[str, Any]:
    try:
        # Names of the function the decorator stands in too: types are often local to a test.
        local = {**frame.f_globals, **frame.f_locals} if frame is not None else None
        hints = typing.get_type_hints(function, localns=local, include_extras=True)
    except NameError as error:
        raise ConfigError(f"{where}: annotation {error.name!r} is not known where the handler is defined") from error
    except TypeError:
        hints = {}
    hints.pop("return", None)
    return {name: hint if _names_serde(hint) else _bare(hint) for name, hint in hints.items()}


def _names_serde(hint: Any) -> bool:
    """It, or what a batch is a list of, says which serde to read it with."""
    inner = typing.get_args(hint) if typing.get_origin(hint) in (list, typing.Union, types.UnionType) else (hint,)
    return any(serde_named(one) is not None for one in inner)


def _bare(hint: Any) -> Any:
    return hint.__origin__ if typing.get_origin(hint) is typing.Annotated else hint


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _mark_coroutine(function: Any) -> None:
    """Let frameworks that look before they call see an ``async def``; an object can say so from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
