"""Hop 5: the records of one fetch through one handler.

Written for the cost per record: the handler is awaited directly, values are decoded in the same loop, and nothing is
created per record that the handler did not ask for.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import msgspec

from eventbus.backends.delivery import Delivery
from eventbus.client.handlers import Handler, each, no_producer
from eventbus.client.lane import Lane, Outcome
from eventbus.client.transaction import Transaction
from eventbus.errors import ConfigError, EventBusError, HandlerError, SerializationError
from eventbus.types import ConsumerRecord, FetchedRecords
from serdes import Decode, Serde, bind_decoder, serde_for, split_optional

logger = logging.getLogger("eventbus.runner")

T = TypeVar("T")

Publish = Callable[[Any], Awaitable[Delivery | None]]
"""Sends one output of a handler; None for an output that is None."""

_GENERATORS = (AsyncGeneratorType, GeneratorType)
_UNFINISHED = (Awaitable, *_GENERATORS)
"""What a call may return of which nothing has run yet."""
_THREAD_SLICE_SECONDS = 0.05
"""How long a sync handler's thread works through records before it reports what is finished."""


class Failure(msgspec.Struct, frozen=True):
    """A call of a handler that raised, or whose value could not be read or sent."""

    index: int
    """The record's place in the fetch; of a batch the first one's."""
    count: int
    error: HandlerError
    cause: Exception
    is_clean: bool
    """Nothing was published on behalf of these records."""


OnFailure = Callable[[Lane, Failure], bool]
"""What a failure means. True: go on behind it; False: return."""


class Dispatch:
    """Calls a handler for each record of a fetch, in order, and moves the lane on."""

    def __init__(self, handler: Handler[Any, Any], publish: Publish | None, serdes: Mapping[type, Serde]) -> None:
        self._handler = handler
        self._function = handler.function
        self._signature = handler.signature
        self._publish = publish
        self._on_failure: OnFailure = self._by_policy
        self.transaction: Transaction | None = None
        """What a handler gets that asks for one."""
        self._thread = anyio.CapacityLimiter(1)
        self._record_name = handler.signature.record_name
        self._payload_name = handler.signature.payload_name
        self._transaction_name = handler.signature.transaction_name
        self._batch_of_records = handler.signature.payload is ConsumerRecord
        annotation, self._takes_null = split_optional(handler.signature.payload)
        self._serde: Serde | None = None
        if self._payload_name is not None and not self._batch_of_records:
            try:
                self._serde = serde_for(annotation, serdes)
            except TypeError as error:
                raise ConfigError(
                    f"handler {handler.__name__!r}: payload type {annotation!r} cannot be read from JSON: {error}; "
                    "register a serde for it: EventBus(url, serdes={Type: MySerde()})"
                ) from None
        self._decoders: dict[str, Decode] = {}
        self.run = self._choose()

    def bound(self, publish: Publish | None, on_failure: OnFailure) -> Dispatch:
        """The same for one lane that publishes, and fails, in a way of its own; they share one worker thread."""
        bound = copy.copy(self)
        bound._publish, bound._on_failure = publish, on_failure
        bound.run = bound._choose()
        return bound

    def _choose(self) -> Callable[[Lane, FetchedRecords], Awaitable[None]]:
        signature = self._signature
        if self._handler.spec.batch:
            return self._batches
        if not signature.is_async:
            return self._in_thread
        if signature.takes_payload_alone and signature.is_direct and self._publish is None:
            return self._payloads
        return self._one_by_one

    # the four ways to run a fetch ------------------------------------------------------------------------------------

    async def _payloads(self, lane: Lane, chunk: FetchedRecords) -> None:
        """An async handler that wants the payload alone and publishes nothing: the fast path."""
        function = self._function
        values: Sequence[Any] = chunk.values
        offsets = chunk.offsets
        decode: Callable[[Any], Any] | None = self._decoder(chunk.topic)
        if decode is bytes and (self._takes_null or None not in values):
            decode = None
        elif None in values:
            decode = partial(self._decode, chunk.topic)
        start = index = 0
        while start < len(values):
            try:
                # The loops inside the try: entering one per record would cost as much as the await.
                if decode is None:
                    for index in range(start, len(values)):
                        if lane.stopping:
                            return
                        await function(values[index])
                        lane.finished = offsets[index] + 1
                else:
                    for index in range(start, len(values)):
                        if lane.stopping:
                            return
                        await function(decode(values[index]))
                        lane.finished = offsets[index] + 1
                break
            except _failures() as error:
                if not self._failed(lane, chunk, index, error):
                    return
                lane.handled(offsets[index] + 1)
                start = index + 1
        lane.handled(chunk.next_offset)

    async def _one_by_one(self, lane: Lane, chunk: FetchedRecords) -> None:
        """Any other handler that runs on the loop: it wants the record, or publishes, or is decorated."""
        for index, offset in enumerate(chunk.offsets):
            if lane.stopping or lane.error is not None:
                return
            outputs: list[Delivery] = []
            try:
                result: Any = self._function(**self._arguments(chunk, index))
                if self._publish is None and hasattr(result, "__await__"):
                    result = await result
                if self._publish is not None or (result is not None and isinstance(result, _GENERATORS)):
                    await self._send(result, outputs)
            except _failures() as error:
                if not self._failed(lane, chunk, index, error, published=outputs):
                    return
            lane.handled(offset + 1, _joined(outputs) if outputs else None)
        lane.handled(chunk.next_offset)

    async def _batches(self, lane: Lane, chunk: FetchedRecords) -> None:
        """A handler of lists: one call for the whole fetch, or for slices of ``batch`` records."""
        batch = self._handler.spec.batch
        size = len(chunk) if batch is True else int(batch)
        for start in range(0, len(chunk), max(size, 1)):
            if lane.stopping or lane.error is not None:
                return
            end = min(start + size, len(chunk))
            outputs: list[Delivery] = []
            payloads = self._payloads_of(lane, chunk, start, end)
            if payloads is None:
                return
            try:
                if payloads:
                    await self._send(await self._call_with(payloads), outputs)
            except _failures() as error:
                if not self._failed(lane, chunk, start, error, end - start, published=outputs):
                    return
            lane.handled(chunk.offsets[end - 1] + 1, _joined(outputs) if outputs else None)
        lane.handled(chunk.next_offset)

    async def _in_thread(self, lane: Lane, chunk: FetchedRecords) -> None:
        """A plain function: records go to a worker thread by the slice, not one hop each."""
        index = 0
        while index < len(chunk):
            if lane.stopping:
                return
            for result, error in await self._run_in_thread(self._work, lane, chunk, index):
                if lane.error is not None:
                    return
                outputs: list[Delivery] = []
                if error is None and (
                    self._publish is not None or (result is not None and isinstance(result, _UNFINISHED))
                ):
                    try:
                        await self._send(result, outputs)
                    except _failures() as raised:
                        error = raised
                if error is not None and not self._failed(lane, chunk, index, error, published=outputs):
                    return
                lane.handled(chunk.offsets[index] + 1, _joined(outputs) if outputs else None)
                index += 1
        lane.handled(chunk.next_offset)

    def _work(self, lane: Lane, chunk: FetchedRecords, start: int) -> list[tuple[Any, Exception | None]]:
        """In the worker thread: what the handler returned or raised, record by record, as far as the slice went."""
        done: list[tuple[Any, Exception | None]] = []
        give_back_at = time.monotonic() + _THREAD_SLICE_SECONDS
        for index in range(start, len(chunk)):
            try:
                result = self._call(self._arguments(chunk, index))
            except Exception as error:
                done.append((None, error))
                break
            done.append((result, None))
            # What is left to await is awaited before the next record's turn.
            is_unfinished = result is not None and isinstance(result, _UNFINISHED)
            if is_unfinished or lane.stopping or time.monotonic() >= give_back_at:
                break
        return done

    # arguments and results -------------------------------------------------------------------------------------------

    def _decoder(self, topic: str) -> Decode:
        decode = self._decoders.get(topic)
        if decode is None:
            assert self._serde is not None
            decode = self._decoders[topic] = bind_decoder(self._serde, topic)
        return decode

    def _decode(self, topic: str, data: bytes | None) -> Any:
        """Bytes to the payload's type. A null passes only where the annotation allows None."""
        annotation = _name(self._signature.payload)
        if data is None:
            if self._takes_null:
                return None
            raise SerializationError(
                f"the value is null (a tombstone), but the handler takes {annotation}: "
                f"annotate {annotation} | None to be given nulls"
            )
        try:
            return self._decoder(topic)(data)
        except Exception as error:
            raise SerializationError(f"the value is no {annotation}: {error}") from error

    def _payload(self, chunk: FetchedRecords, index: int) -> Any:
        if self._batch_of_records:
            return chunk.record(index)
        return self._decode(chunk.topic, chunk.values[index])

    def _arguments(self, chunk: FetchedRecords, index: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {}
        if self._payload_name is not None:
            arguments[self._payload_name] = self._decode(chunk.topic, chunk.values[index])
        if self._record_name is not None:
            arguments[self._record_name] = chunk.record(index)
        if self._transaction_name is not None:
            arguments[self._transaction_name] = self.transaction
        return arguments

    def _payloads_of(self, lane: Lane, chunk: FetchedRecords, start: int, end: int) -> list[Any] | None:
        """The payloads of a batch. One that cannot be read is left out (``on_error="skip"``), or stops the lane."""
        payloads: list[Any] = []
        for index in range(start, end):
            try:
                payloads.append(self._payload(chunk, index))
            except SerializationError as error:
                if not self._failed(lane, chunk, index, error):
                    return None
        return payloads

    async def _call_with(self, payloads: list[Any]) -> Any:
        assert self._payload_name is not None
        arguments: dict[str, Any] = {self._payload_name: payloads}
        if self._transaction_name is not None:
            arguments[self._transaction_name] = self.transaction
        if self._signature.is_async:
            return self._function(**arguments)
        return await self._run_in_thread(self._call, arguments)

    def _call(self, arguments: dict[str, Any]) -> Any:
        """In the worker thread: the call of a plain function. A generator's body runs here too."""
        result = self._function(**arguments)
        if self._publish is not None and hasattr(result, "__next__"):
            return iter(list(result))
        return result

    async def _run_in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """One call at a time, whatever the number of partitions: a plain function need not be thread-safe."""
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._thread)

    async def _send(self, result: Any, outputs: list[Delivery]) -> None:
        """Await what a call returned, where that is due, and send what it came to; ``outputs`` has what was sent."""
        if hasattr(result, "__await__"):
            result = await result
        publish = self._publish
        if publish is None:
            if isinstance(result, _GENERATORS):
                raise no_producer(self._handler.__name__)
        elif hasattr(result, "__anext__") or hasattr(result, "__next__"):
            async for value in each(result):
                delivery = await publish(value)
                if delivery is not None:
                    outputs.append(delivery)
        else:
            delivery = await publish(result)
            if delivery is not None:
                outputs.append(delivery)

    # errors ----------------------------------------------------------------------------------------------------------

    def _failed(
        self,
        lane: Lane,
        chunk: FetchedRecords,
        index: int,
        raised: BaseException,
        count: int = 1,
        published: Sequence[Delivery] = (),
    ) -> bool:
        """A record's handler raised. True: go on with the next record; False: the lane has stopped."""
        error = _as_failure(raised)
        record = chunk.record(index)
        if self._serde is not None and not isinstance(error, SerializationError) and count == 1:
            # The fast path decodes and calls in one breath; whose error it was is found out only now, when it matters.
            try:
                self._payload(chunk, index)
            except SerializationError as unreadable:
                error = unreadable
        wrapped = handler_error(self._handler, record, error, count)
        is_clean = not published and self._transaction_name is None
        return self._on_failure(lane, Failure(index, count, wrapped, error, is_clean))

    def _by_policy(self, lane: Lane, failure: Failure) -> bool:
        """``on_error=`` at once: skip, crash, or stop the lane."""
        policy = self._handler.spec.on_error
        if policy == "skip":
            log_skipped(failure.error)
            return True
        lane.error = lane.error or failure.error
        if policy == "crash":
            raise failure.error from failure.cause
        log_stopped(lane, failure.error, policy)
        return False


def _failures() -> tuple[type[BaseException], ...]:
    """What is a handler's failure: also a cancellation that did not come from us, as of a task it waits for."""
    return (Exception, anyio.get_cancelled_exc_class())


def _as_failure(raised: BaseException) -> Exception:
    """The same as an error to report; raises it when it is the lane that is being cancelled."""
    if isinstance(raised, Exception):
        return raised
    if anyio.current_effective_deadline() == -math.inf:
        raise raised
    failure = RuntimeError("CancelledError: something that it waited for was cancelled")
    failure.__cause__ = raised
    return failure


def log_skipped(error: HandlerError) -> None:
    logger.error("%s; skipped (on_error='skip')", error, exc_info=error.__cause__)


def log_stopped(lane: Lane, error: HandlerError, policy: str) -> None:
    logger.error(
        "%s; %s is stopped here and nothing from this record on is committed (on_error=%r)",
        error, lane.topic_partition, policy, exc_info=error.__cause__,
    )  # fmt: skip


def handler_error(handler: Handler[Any, Any], record: ConsumerRecord, error: Exception, count: int) -> HandlerError:
    """What happened, to which record, where."""
    many = f" (a batch of {count} records)" if count > 1 else ""
    where = f"{record.topic}-{record.partition} offset {record.offset}{many}, key {record.key!r:.80}"
    what = "cannot be read" if isinstance(error, SerializationError) else f"made it raise {type(error).__name__}"
    wrapped = HandlerError(f"handler {handler.__name__!r}: {where}: {what}: {error}")
    wrapped.__cause__ = error
    return wrapped


def _joined(outputs: list[Delivery]) -> Outcome:
    """One handle that is done when all are: the first to fail, else the last."""
    if len(outputs) == 1:
        return outputs[0]
    batches = {id(output.batch): output for output in outputs}
    if len(batches) == 1:
        return outputs[-1]
    return _AllOf(list(batches.values()))


class _AllOf:
    """Several deliveries as one, for a handler that published to several partitions."""

    def __init__(self, outputs: list[Delivery]) -> None:
        self._outputs = outputs

    def done(self) -> bool:
        return all(output.done() for output in self._outputs)

    def exception(self) -> EventBusError | None:
        return next((output.exception() for output in self._outputs if output.exception() is not None), None)

    async def wait(self) -> None:
        for output in self._outputs:
            await output.wait()


def _name(annotation: Any) -> str:
    return str(getattr(annotation, "__name__", annotation))
