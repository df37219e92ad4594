"""Decorated functions: what ``@consumer`` and ``@producer`` make of them, and what their signatures mean."""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, cast

import msgspec

from eventbus.client.config import read_start
from eventbus.client.partitioner import PartitionFunction
from eventbus.client.transaction import Transaction
from eventbus.errors import ConfigError
from eventbus.suggest import nearest
from eventbus.types import ConsumerRecord, IsolationLevel

P = ParamSpec("P")
R = TypeVar("R")

OnError = Literal["stop", "skip", "crash"]
"""A handler raised: stop that partition loudly, log and go on, or end the whole bus."""


class Sends(Protocol):
    """What a producer function needs of a bus: publish what it returned."""

    async def publish(self, function: ProducerFunction[Any, Any], value: Any) -> None: ...


_CONSUMER_OPTIONS = (
    "start", "isolation", "group_instance_id", "assignors", "session_timeout_ms", "max_poll_interval_ms",
)  # fmt: skip


class ConsumerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@consumer``."""

    topics: tuple[str, ...]
    pattern: str | None = None
    group: str | None = None
    start: Any = "earliest"
    """"earliest", "latest", "none", "by_duration:PT1H" or a timedelta."""
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    batch: bool | int = False
    on_error: OnError = "stop"
    name: str | None = None
    exactly_once: bool = False
    """Records, what is published for them, and their offsets in one transaction."""
    transaction_records: int = 500
    """Records that share a transaction, at most."""
    transaction_timeout_ms: int = 60_000
    """A transaction open for longer is aborted by the log, and its records are handled again."""
    group_instance_id: str | None = None
    assignors: tuple[Any, ...] | None = None
    session_timeout_ms: int | None = None
    max_poll_interval_ms: int | None = None
    drain_timeout_ms: int = 30_000
    """When a partition moves to another member: how long the record at work may take to finish."""

    def consumer_options(self) -> dict[str, Any]:
        """What the handler's consumer is opened with; what was not said is left to its defaults."""
        options = {name: getattr(self, name) for name in _CONSUMER_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}


class ProducerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``@producer``."""

    topic: str
    key: Callable[[Any], Any] | None = None
    partitioner: str | PartitionFunction | None = None


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

    @property
    def takes_payload_alone(self) -> bool:
        return self.record_name is None and self.transaction_name is None


class ProducerFunction(Generic[P, R]):
    """A function whose result is published. The caller still gets the result; called before the bus runs, it raises."""

    def __init__(self, function: Callable[P, R], spec: ProducerSpec) -> None:
        self.function = function
        self.spec = spec
        self.bus: Sends | None = None
        functools.update_wrapper(self, function, updated=())
        self.__name__ = _name(function)
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
                f"{_name(inner)}() has a @consumer already; a handler of several topics takes a list: "
                f"@bus.consumer([{', '.join(map(repr, topics))}])"
            )
        is_producer = isinstance(inner, ProducerFunction)
        self.producer = cast("ProducerFunction[..., Any]", inner) if is_producer else None
        """The producer decorated onto the same function: its outputs are sent before the offset is committed."""
        self.function: Callable[..., Any] = inner if self.producer is None else self.producer.function
        self.spec = spec
        functools.update_wrapper(self, self.function, updated=())
        self.__name__ = spec.name or _name(self.function)
        self.signature = read_signature(self.function, spec, frame)
        if self.producer is None and _is_generator(_own(self.function)):
            raise no_producer(self.__name__)
        if inspect.iscoroutinefunction(_own(self.function)):
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

    Options: ``group``; ``start`` ("earliest", "latest", "none"); ``pattern`` (topics by regular expression);
    ``isolation``; ``batch`` (the handler takes ``list[Payload]``: True for a whole fetch, a number for at most that);
    ``on_error`` ("stop", "skip", "crash"); ``name``. The payload's type is the annotation of the first parameter; a
    parameter annotated `ConsumerRecord` gets the record.

    ``exactly_once=True``: what the handler publishes and the offsets of its records are one transaction, of up to
    ``transaction_records`` records (500); a parameter annotated `Transaction` sends to further topics within it.
    ``transaction_timeout_ms`` bounds it.

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
    topic: str, *, key: Callable[[Any], Any] | None = None, partitioner: str | PartitionFunction | None = None
) -> Callable[[Callable[P, R]], ProducerFunction[P, R]]:
    """Mark a function whose result (or each value it yields) is published to ``topic``; None is not.

    ``key`` computes the record's key from the value. Give the function to ``bus.include``, or use ``@bus.producer``.
    """
    if not isinstance(cast(Any, topic), str):
        raise ConfigError('@producer takes the topic first: @producer("orders", key=lambda order: order.id)')

    def mark(function: Callable[P, R]) -> ProducerFunction[P, R]:
        if isinstance(function, Handler):
            raise ConfigError(
                f"{function.__name__}: put @producer below @consumer (nearest to the function): "
                "the handler consumes what the producer publishes"
            )
        return ProducerFunction(function, ProducerSpec(topic=topic, key=key, partitioner=partitioner))

    return mark


def consumer_spec(topics: str | Sequence[str], options: dict[str, Any]) -> ConsumerSpec:
    """The options of ``@consumer``, checked. Raises ConfigError naming what is wrong and the nearest right name."""
    if callable(topics):
        raise ConfigError('@consumer takes the topic: @consumer("orders", group="billing")')
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    known = [field for field in ConsumerSpec.__struct_fields__ if field != "topics"] + ["assignor"]
    for option in options:
        if option not in known:
            raise ConfigError(f"@consumer has no option {option!r}{nearest(option, known)}; it has {', '.join(known)}")
    if "assignor" in options:
        options = {"assignors": (options["assignor"],), **options}
        del options["assignor"]
    elif isinstance(options.get("assignors"), str):
        options = {**options, "assignors": (options["assignors"],)}
    if isinstance(options.get("isolation"), str) and options["isolation"].upper() in IsolationLevel.__members__:
        options = {**options, "isolation": IsolationLevel[options["isolation"].upper()]}
    read_start(options.get("start", "earliest"))
    try:
        spec = msgspec.convert({"topics": names, **options}, ConsumerSpec)
    except msgspec.ValidationError as error:
        raise ConfigError(f"@consumer({', '.join(map(repr, names))}): {error}") from None
    if bool(names) == (spec.pattern is not None):
        raise ConfigError('@consumer takes topics or pattern="...", one of the two')
    _check_numbers(spec)
    return spec


def _check_numbers(spec: ConsumerSpec) -> None:
    least = {
        "transaction_records": 1,
        "transaction_timeout_ms": 1,
        "session_timeout_ms": 1,
        "max_poll_interval_ms": 1,
        "drain_timeout_ms": 0,
    }
    for name, smallest in least.items():
        value = getattr(spec, name)
        if value is not None and value < smallest:
            raise ConfigError(f"@consumer({', '.join(map(repr, spec.topics))}): {name}={value}: at least {smallest}")
    if spec.exactly_once and spec.isolation is not IsolationLevel.READ_COMMITTED:
        raise ConfigError(
            "@consumer: exactly_once=True reads what is committed; with isolation='read_uncommitted' it would publish "
            "results of records that never were: leave isolation out"
        )


# signatures -----------------------------------------------------------------------------------------------------------

_EXAMPLE = "async def handle(order: Order, record: ConsumerRecord) -> None"


def read_signature(function: Callable[..., Any], spec: ConsumerSpec, frame: FrameType | None) -> Signature:
    """What the handler takes. Raises ConfigError showing the right signature."""
    where = f"handler {_name(function)!r} of {', '.join(spec.topics) or spec.pattern}"
    own = _own(function)
    body = inspect.unwrap(own)
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
    # Behind a plain decorator an async function stays one: its coroutine is awaited, on the loop.
    is_async = any(inspect.iscoroutinefunction(one) or inspect.isasyncgenfunction(one) for one in (own, body))
    if transaction_name is not None:
        _check_transaction(spec, is_async, where)
    first = next(iter(parameters.values()))
    return Signature(
        payload=payload,
        payload_name=payload_name,
        record_name=record_name,
        transaction_name=transaction_name,
        is_async=is_async,
        is_direct=inspect.iscoroutinefunction(own)
        and first.name == payload_name
        and first.kind is not first.KEYWORD_ONLY,
    )


def _check_transaction(spec: ConsumerSpec, is_async: bool, where: str) -> None:
    if not spec.exactly_once:
        raise ConfigError(
            f"{where}: a Transaction is there only with exactly_once=True: @bus.consumer(..., exactly_once=True)"
        )
    if not is_async:
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
        hints = typing.get_type_hints(function, localns=local)
    except NameError as error:
        raise ConfigError(f"{where}: annotation {error.name!r} is not known where the handler is defined") from error
    except TypeError:
        hints = {}
    hints.pop("return", None)
    return hints


def _own(function: Any) -> Any:
    """The function that a call runs first: of a partial the function, of an object with ``__call__`` the method."""
    while isinstance(function, functools.partial):
        function = cast("functools.partial[Any]", function).func
    return function if inspect.isroutine(function) or inspect.isclass(function) else function.__call__


def _is_generator(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _mark_coroutine(function: Any) -> None:
    """Let frameworks that look before they call see an ``async def``; an object can say so from Python 3.12 on."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)
