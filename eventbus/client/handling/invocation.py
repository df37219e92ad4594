"""Invoke a handler: decode the payload, build the arguments, and apply filter, middleware and transactions."""

from __future__ import annotations

import copy
import logging
import math
import threading
import time
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar, cast
from weakref import WeakSet

import anyio
import anyio.to_thread
import msgspec

from eventbus.client.handling.functions import name_of
from eventbus.client.handling.handler_errors import CallTimedOut
from eventbus.client.handling.handlers import Handler, no_producer
from eventbus.client.handling.middleware import EXAMPLE, CallNext, Middleware, composed, watched
from eventbus.client.handling.partition_driver import PartitionDriver
from eventbus.client.producing.joining import CallTransaction, DatabaseCalls
from eventbus.client.transaction import Transaction
from eventbus.errors import SerializationError
from eventbus.types import ConsumerRecord, FetchedRecords
from eventbus.units_of_work import OpenUnits
from serdes import Serde
from serdes.base import Decode, SchemaSerde, bind_decoder
from serdes.choose import likely_cause, split_optional
from serdes.framing import with_prefix

T = TypeVar("T")

logger = logging.getLogger("eventbus.runner")

GENERATORS = (AsyncGeneratorType, GeneratorType)
UNFINISHED = (Awaitable, *GENERATORS)
"""Results of a call whose code has not run yet: awaitables and generators."""


class HandlerCounts(msgspec.Struct):
    """The number of records by outcome, since the start."""

    handled: int = 0
    """Their calls returned; those that a filter or a middleware kept from the handler are among them."""
    failed: int = 0
    """Their calls raised, or took too long, or their values cannot be read."""
    skipped: int = 0
    """Failed and skipped, because of ``on_error="skip"``."""
    timed_out: int = 0
    filtered: int = 0
    retried: int = 0
    """Failed and set aside for a later try."""
    dead_lettered: int = 0


class Yielded(list[Any]):
    """The values of a generator: each is an output, while any other list is a single output."""


class ManualRecord(ConsumerRecord, gc=True):
    """A record of a handler with ``ack="manual"``: it knows where its acknowledgement goes.

    Unlike its base it is seen by the garbage collector: a handler's error refers to its partition in a circle.
    """

    _driver: PartitionDriver | None = None
    _index: int = -1
    _given: set[int] = msgspec.field(default_factory=set[int])
    """Indexes of records that the handler got to see; copies that a middleware makes of the record share it."""

    def ack(self) -> None:
        assert self._driver is not None
        self._driver.acknowledge(self.offset)

    async def ack_now(self) -> None:
        assert self._driver is not None
        await self._driver.acknowledge_now(self.offset)

    def __repr__(self) -> str:
        return repr(ConsumerRecord(*msgspec.structs.astuple(self)[: len(ConsumerRecord.__struct_fields__)]))

    def note_given(self) -> None:
        self._given.add(self._index)


abandoned_threads: WeakSet[threading.Thread] = WeakSet()
"""Abandoned threads. Only the interpreter waits for them at exit (under asyncio; trio's threads are daemons)."""


class Threads:
    """The worker threads of one handler. A call in a thread cannot be cancelled: it is awaited or abandoned."""

    def __init__(self, most: int) -> None:
        self._turns = anyio.CapacityLimiter(most)
        self._no_limit = anyio.CapacityLimiter(math.inf)
        self._running: dict[anyio.CancelScope, threading.Thread | None] = {}

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in one of ``most`` threads. A cancelled task waits for its thread, or until `abandon`."""
        async with self._turns:
            # Shielded: a cancelled task would otherwise leave its thread at once, and a new call could run alongside
            # the old one.
            with anyio.CancelScope(shield=True) as scope:
                # Registered before the thread starts, so that `abandon` finds the call whatever it is doing.
                self._running[scope] = None

                def work() -> T:
                    self._running[scope] = threading.current_thread()
                    return function(*arguments)

                try:
                    return await anyio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._no_limit)
                finally:
                    del self._running[scope]
            while True:  # the thread was abandoned; the caller of `abandon` cancels this task
                await anyio.Event().wait()

    def abandon(self) -> None:
        """Abandon all running threads: their results are ignored."""
        for scope, thread in list(self._running.items()):
            scope.cancel()
            if thread is not None:
                abandoned_threads.add(thread)


class Invoker:
    """Calls one handler. Its decoder, filter and middleware are combined once per topic."""

    def __init__(
        self,
        handler: Handler[Any, Any],
        serdes: Mapping[type, Serde],
        middleware: Sequence[Middleware],
        counts: HandlerCounts,
    ) -> None:
        self._handler = handler
        self._function = handler.function
        self._signature = signature = handler.signature
        self._of_bus = tuple(middleware)
        self._middleware = (*middleware, *handler.spec.middleware)
        self._is_dropping_logged = False
        self._keep = handler.spec.filter
        self._counts = counts
        self.threads = Threads(handler.spec.concurrency or 1)
        self._is_manual = handler.spec.ack == "manual"
        self._batch_of_records = signature.payload is ConsumerRecord
        self.joins: CallTransaction | None = None
        """The transaction that records sent during calls belong to."""
        self.transaction: Transaction | None = None
        """The value of a handler's `Transaction` parameter."""
        self.takes_null = split_optional(signature.payload)[1]
        self._serde = handler.payload_serde(serdes)
        self.schemas = self._serde if isinstance(self._serde, SchemaSerde) else None
        """The payload's serde if it loads schemas from a registry."""
        self._header = None if self.schemas is None else self.schemas.header
        """The header that may name a value's schema."""
        self._decoders: dict[str, Decode] = {}
        self._chains: dict[str, CallNext] = {}
        self.units: OpenUnits | None = None
        """Makes each call in a database transaction, for a handler with ``tx=``."""
        self.is_retry = False
        """The records come from the retry topic."""
        self.needs_record = (
            bool(self._middleware) or self._keep is not None or self._is_manual or handler.spec.tx is not None
        )
        """The record must be built, because middleware, a filter, manual acknowledgement or ``tx=`` needs it."""
        self.on_loop = signature.is_async or bool(self._middleware)
        """Calls begin on the event loop. With middleware that includes plain functions, which then use a thread."""

    def copy(self) -> Invoker:
        """Return a copy with a separate transaction. Plain functions share their worker threads."""
        copied = copy.copy(self)
        copied._chains = {}
        return copied

    # one record ------------------------------------------------------------------------------------------------------

    def of(
        self, chunk: FetchedRecords, driver: PartitionDriver | None = None, given: set[int] | None = None
    ) -> Callable[..., Any]:
        """Return a function of a record's index that begins its call. On the event loop, or in the thread (`on_loop`).

        Records that are acknowledged by hand belong to ``driver``; those that reach the handler are added to ``given``.
        """
        begin = self.beginning(chunk, driver, given)
        return begin if self.joins is None else self.joins.beginning(begin)

    def in_units(self, units: OpenUnits) -> None:
        """Each call is a database transaction, which ``units`` makes."""
        self.units = units
        calls = DatabaseCalls(self._handler.__name__)
        self._function = calls.inside(self._function, is_async=self._signature.is_async)

    def beginning(
        self, chunk: FetchedRecords, driver: PartitionDriver | None, given: set[int] | None
    ) -> Callable[[int], Any]:
        """Return the function that makes the calls, not yet joined to a transaction."""
        if not self.needs_record and self._signature.record_name is None:
            return self._of_values(chunk)
        record: Callable[[int], ConsumerRecord] = chunk.record
        if driver is not None and self._is_manual:
            record = manual_records(chunk, driver, given if given is not None else set())
        call = self._chain(chunk.topic) if self.on_loop and self.needs_record else self._plainly(chunk.topic)

        def begin(index: int) -> Any:
            return call(record(index))

        return begin

    def _of_values(self, chunk: FetchedRecords) -> Callable[[int], Any]:
        """Return calls by value only: the handler takes no record, so none is built."""
        function, values, decode, signature = (
            self._function,
            self.values(chunk),
            self.reader(chunk.topic),
            self._signature,
        )
        if signature.leading == (signature.payload_name,) and signature.transaction_name is None:
            return lambda index: function(decode(values[index]))
        return lambda index: function(**self._arguments(decode(values[index]), None))

    def _plainly(self, topic: str) -> Callable[[ConsumerRecord], Any]:
        """Return the handler's call without middleware. It returns `FILTERED` for a record that ``filter`` drops."""
        call = self._by_position(topic)
        keep, is_manual = self._keep, self._is_manual
        if keep is None and not is_manual:
            return call

        def filtered(record: ConsumerRecord) -> Any:
            if keep is not None and not keep(record):
                return FILTERED
            if isinstance(record, ManualRecord):
                record.note_given()
            return call(record)

        return filtered

    def _by_position(self, topic: str) -> Callable[[ConsumerRecord], Any]:
        """Return the call with its arguments, passed by position if the parameters allow it, which is cheaper."""
        function, signature = self._function, self._signature
        if self.units is not None:
            return self._in_unit(topic, self.units)
        payload_name, record_name = signature.payload_name, signature.record_name
        if payload_name is None and signature.leading == (record_name,) and signature.transaction_name is None:
            return function
        if payload_name is None:
            return lambda record: function(**self._arguments(None, record))
        decode = self.reader(topic)
        if self._header is not None:
            return lambda record: function(**self._arguments(decode(self._data(record)), record))
        if signature.transaction_name is None and signature.leading == (payload_name, record_name):
            return lambda record: function(decode(record.value), record)
        return lambda record: function(**self._arguments(decode(record.value), record))

    def _in_unit(self, topic: str, units: OpenUnits) -> Callable[[ConsumerRecord], Any]:
        """Return the call in a database transaction. A value that cannot be read opens no transaction."""
        function, is_retry = self._function, self.is_retry
        read = None if self._signature.payload_name is None else self.reader(topic)

        def call(record: ConsumerRecord) -> Any:
            payload = None if read is None else read(self._data(record))
            return units.call(function, self._arguments(payload, record), (record,), {}, is_retry)

        return call

    def _chain(self, topic: str) -> CallNext:
        chain = self._chains.get(topic)
        if chain is None:
            signature = self._signature
            is_simple = (
                signature.takes_payload_alone and signature.is_direct and self._keep is None and not self._header
            )
            innermost = self._payload_to_handler(topic) if is_simple else self._record_to_handler(topic)
            chain = self._chains[topic] = self._around(innermost)
        return chain

    def _around(self, innermost: CallNext) -> CallNext:
        innermost.__qualname__ = "call_next"  # "coroutine 'call_next' was never awaited", says Python of a slip there
        spec = self._handler.spec
        if spec.replies and spec.middleware:
            # The last middleware of the bus sends the reply, so middleware outside of it cannot drop a result.
            return composed(self._of_bus, watched(spec.middleware, innermost, self._result_dropped))
        if self._handler.producer is not None and self._middleware:
            return watched(self._middleware, innermost, self._result_dropped)
        return composed(self._middleware, innermost)

    def _result_dropped(self) -> None:
        if not self._is_dropping_logged:
            self._is_dropping_logged = True
            inner = self._handler.spec.middleware if self._handler.spec.replies else self._middleware
            names = ", ".join(map(name_of, inner))
            logger.warning(
                "handler %r: its middleware (%s) returns None in place of what the handler returned, which is not "
                "published: %s",
                self._handler.__name__,
                names,
                EXAMPLE,
            )

    def _payload_to_handler(self, topic: str) -> CallNext:
        """Return the cheapest innermost function, for most handlers: an ``async def`` that takes the payload only."""
        function: Callable[[Any], Awaitable[Any]] = self._function
        decode = self.reader(topic)

        async def innermost(record: ConsumerRecord) -> Any:
            return await function(decode(record.value))

        return innermost

    def _record_to_handler(self, topic: str) -> CallNext:
        """Return the innermost function of the chain for any other handler."""
        call, is_async = self._plainly(topic), self._signature.is_async

        async def innermost(record: ConsumerRecord) -> Any:
            result = call(record) if is_async else await self.in_thread(self.collected, call, record)
            if hasattr(result, "__await__"):
                result = await result
            if result is None:
                return None
            if result is FILTERED:
                self._counts.filtered += 1
                return FILTERED if self._handler.spec.replies else None
            return await self._ended(result)

        return innermost

    async def _ended(self, result: Any) -> Any:
        """Run the result of a call to its end inside of the chain, so that middleware covers it."""
        if hasattr(result, "__await__"):
            result = await result
        if isinstance(result, GENERATORS):
            if self._handler.producer is None:
                raise no_producer(self._handler.__name__)
            # The generator runs to its end here, or ends itself with what it raises: nothing is left to close.
            if isinstance(result, GeneratorType):
                return Yielded(cast("GeneratorType[Any, Any, Any]", result))
            return Yielded([value async for value in cast("AsyncGeneratorType[Any, Any]", result)])
        return result

    def collected(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a plain function, in the worker thread. A generator's body runs here too.

        The call cannot be cancelled: if it takes too long, it fails when it returns.
        """
        timeout = self._handler.spec.timeout
        began = time.monotonic() if timeout is not None else 0.0
        result = call(*arguments)
        # A call that returns after its time counts as failed, as if it had been cancelled.
        if timeout is not None and time.monotonic() - began > timeout:
            raise CallTimedOut(timeout)
        if self._handler.producer is not None and isinstance(result, GeneratorType):
            return Yielded(cast("GeneratorType[Any, Any, Any]", result))
        return result

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in a thread: at most ``concurrency`` at a time (default 1) for all partitions together."""
        return await self.threads.run(function, *arguments)

    # batches ---------------------------------------------------------------------------------------------------------

    def with_batch(
        self, read: Callable[[list[ConsumerRecord]], Awaitable[list[Any]]], was_read: Sequence[ConsumerRecord]
    ) -> CallNext:
        """Return the chain around a batch handler. ``read`` returns the payloads; if none, the handler is not called.

        ``was_read`` holds the records of those payloads once ``read`` has returned.
        """

        async def innermost(records: list[ConsumerRecord]) -> Any:
            if self._keep is not None:
                kept = [record for record in records if self._keep(record)]
                self._counts.filtered += len(records) - len(kept)
                records = kept
            for record in records:
                if isinstance(record, ManualRecord):
                    record.note_given()
            payloads = await read(records)
            return await self._ended(await self.call_batch(payloads, was_read)) if payloads else None

        return self._around(innermost)

    async def call_batch(self, payloads: list[Any], records: Sequence[ConsumerRecord] = ()) -> Any:
        """Begin the handler's call with a batch. The call of a plain function has ended on return.

        ``records``: the record of each payload, if the call is a database transaction.
        """
        name, units, is_retry = self._signature.payload_name, self.units, self.is_retry
        assert name is not None
        arguments: dict[str, Any] = {name: payloads}
        if self._signature.transaction_name is not None:
            arguments[self._signature.transaction_name] = self.transaction

        def call() -> Any:
            if units is None:
                return self._function(**arguments)
            return units.call(self._function, arguments, records, {name: payloads}, is_retry)

        return call() if self._signature.is_async else await self.in_thread(self.collected, call)

    # arguments -------------------------------------------------------------------------------------------------------

    def payload(self, record: ConsumerRecord) -> Any:
        """Return a record's payload for a batch handler. Raises SerializationError."""
        return record if self._batch_of_records else self._decode(record.topic, self._data(record))

    def payload_at(self, chunk: FetchedRecords, index: int) -> Any:
        return (
            chunk.record(index) if self._batch_of_records else self._decode(chunk.topic, self.values(chunk, index)[0])
        )

    def values(self, chunk: FetchedRecords, index: int | None = None) -> Sequence[bytes | None]:
        """Return the values to decode, or only that at ``index``. Schema ids from headers are put before the values."""
        values = chunk.values if index is None else chunk.values[index : index + 1]
        if self._header is None or chunk.headers is None:
            return values
        headers = chunk.headers if index is None else chunk.headers[index : index + 1]
        return [
            None if value is None else with_prefix(value, of_it, self._header)
            for value, of_it in zip(values, headers, strict=True)
        ]

    def _data(self, record: ConsumerRecord) -> bytes | None:
        """Return a record's value to decode, with the schema id of its header before it."""
        value = record.value
        return value if self._header is None or value is None else with_prefix(value, record.headers, self._header)

    def decoder(self, topic: str) -> Decode:
        """Return the serde's decoder for a topic. It may raise any error."""
        decode = self._decoders.get(topic)
        if decode is None:
            assert self._serde is not None
            decode = self._decoders[topic] = bind_decoder(self._serde, topic)
        return decode

    def is_readable(self, chunk: FetchedRecords, index: int) -> SerializationError | None:
        """Return the error of decoding a record's value, or None if it can be read."""
        try:
            if self._serde is not None:
                self._decode(chunk.topic, self.values(chunk, index)[0])
        except SerializationError as error:
            return error
        return None

    def reader(self, topic: str) -> Callable[[bytes | None], Any]:
        """Return a decoder for a topic that raises SerializationError only."""
        decode = self.decoder(topic)

        def read(data: bytes | None) -> Any:
            if data is not None:
                try:
                    return decode(data)
                except Exception as error:  # a serde may raise anything
                    raise self._unreadable(error, data) from error
            return self._decode(topic, data)

        return read

    def _decode(self, topic: str, data: bytes | None) -> Any:
        """Decode bytes to the payload's type. A null is valid only if the annotation allows None."""
        if data is None:
            if self.takes_null:
                return None
            annotation = _name(self._signature.payload)
            raise SerializationError(
                f"the value is null (a tombstone), but the handler takes {annotation}: "
                f"annotate {annotation} | None to be given nulls"
            )
        try:
            return self.decoder(topic)(data)
        except Exception as error:  # a serde may raise anything
            raise self._unreadable(error, data) from error

    def _unreadable(self, error: Exception, data: bytes) -> SerializationError:
        cause = "" if self._serde is None else likely_cause(self._serde, data)
        return SerializationError(f"the value is no {_name(self._signature.payload)}: {error}{cause and f'. {cause}'}")

    def _arguments(self, payload: Any, record: ConsumerRecord | None) -> dict[str, Any]:
        signature = self._signature
        arguments: dict[str, Any] = {}
        if signature.payload_name is not None:
            arguments[signature.payload_name] = payload
        if signature.record_name is not None:
            arguments[signature.record_name] = record
        if signature.transaction_name is not None:
            arguments[signature.transaction_name] = self.transaction
        return arguments


FILTERED = object()
"""Result of a call whose record was dropped by ``filter=``. Middleware gets it only in a handler with replies."""


def manual_records(chunk: FetchedRecords, driver: PartitionDriver, given: set[int]) -> Callable[[int], ManualRecord]:
    """Return a function that builds the record at an index, for a handler with manual acknowledgement."""

    def record(index: int) -> ManualRecord:
        return ManualRecord(
            chunk.topic,
            chunk.partition,
            chunk.offsets[index],
            chunk.timestamps_ms[index],
            chunk.timestamp_type,
            chunk.keys[index],
            chunk.values[index],
            chunk.headers[index] if chunk.headers is not None else (),
            driver,
            index,
            given,
        )

    return record


def _name(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return _name(annotation.__origin__)
    return str(getattr(annotation, "__name__", annotation))
