"""Requests and their replies: a record that says where its answer goes, and who waits for it.

The headers are those that others use too: ``reply_to``, a topic, and ``correlation_id``. The replies to a bus go to one
topic; each of its processes reads that from its end on, and knows its own by their ids.
"""

from __future__ import annotations

import contextlib
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypedDict, Unpack, cast
from uuid import uuid4

import anyio

from eventbus.backends.clock import Timers
from eventbus.backends.process_exit import ContainedTasks
from eventbus.client.consumer import Consumer
from eventbus.client.handling.middleware import CallNext, Middleware
from eventbus.client.handling.options import seconds_of
from eventbus.client.packing import pack_headers
from eventbus.client.sending import HeadersLike, SendOptions
from eventbus.errors import (
    ConfigError,
    RequestTimedOut,
    SerializationError,
    TopicAlreadyExists,
    UnknownTopicOrPartition,
)
from eventbus.types import ConsumerRecord, RecordMetadata, TopicPartition
from serdes import SchemaSerde, Serde, bind_decoder, bind_encoder, serde_for, split_optional
from serdes.choose import likely_cause

if TYPE_CHECKING:
    from eventbus.client.bus import EventBus
    from eventbus.client.life import Life

logger = logging.getLogger("eventbus.requests")

REPLY_TO, CORRELATION_ID = "reply_to", "correlation_id"
REPLIES_CONFIG = {"retention.ms": "600000"}
"""Who waits for a reply reads it at once."""


def replies_topic(client_id: str) -> str:
    """Where the replies to a bus go."""
    return f"{re.sub(r'[^a-zA-Z0-9._-]', '-', client_id)}.replies"


class ReplyOptions(TypedDict, total=False):
    """Options of sending a reply."""

    headers: HeadersLike | None
    partition: int | None


class Sends(Protocol):
    """`EventBus.send`."""

    async def __call__(
        self, topic: str, value: Any, *, headers: HeadersLike | None = None, partition: int | None = None
    ) -> RecordMetadata: ...


def replying(send: Sends) -> Middleware:
    """What a handler returns goes to the topic that its record names, if it does."""

    async def reply(record: ConsumerRecord, call_next: CallNext) -> Any:
        result = await call_next(record)
        to = record.header(REPLY_TO)
        if to is None:
            return None
        headers = [(CORRELATION_ID, record.header(CORRELATION_ID))]
        try:
            await send(to.decode(), result, partition=0, headers=headers)
        except UnknownTopicOrPartition as error:  # whoever asked took it away
            logger.warning("the reply to %s-%d offset %d: %s", record.topic, record.partition, record.offset, error)
        return None

    return reply


def writing_as(annotation: Any, serdes: Mapping[type, Serde], send: Sends) -> Sends:
    """Write replies as the type that their handler declares to return, as ``send`` writes values of a declared topic.

    By the class of the value, a handler that returns ``float`` would answer 3 in another format than 3.5.
    """
    serde = None if annotation is None else serde_for(annotation, serdes)
    if serde is None or isinstance(serde, SchemaSerde):
        return send

    async def send_as_declared(topic: str, value: Any, **options: Unpack[ReplyOptions]) -> RecordMetadata:
        if value is not None and not isinstance(value, bytes):
            kind = cast("type[Any]", type(value))
            try:
                value = bind_encoder(serde, topic, kind)(value)
            except Exception as error:  # a serde may raise anything
                raise SerializationError(
                    f"the reply cannot be written as {getattr(annotation, '__name__', annotation)}: {error} "
                    f"(it is {kind.__name__}: {value!r:.120})"
                ) from error
        return await send(topic, value, **options)

    return send_as_declared


class Waiting:
    """For one reply, or for replies to be read at all."""

    def __init__(self) -> None:
        self._over = anyio.Event()
        self.reply: ConsumerRecord | None = None
        self._error: Exception | None = None

    def end(self, reply: ConsumerRecord | None = None, error: Exception | None = None) -> None:
        """The first end counts."""
        if not self._over.is_set():
            self.reply, self._error = reply, error
            self._over.set()

    async def wait(self) -> None:
        await self._over.wait()
        if self._error is not None:
            raise self._error


class Requests:
    """The requests of one bus. Replies are read from the first request on, as long as the bus runs."""

    def __init__(
        self,
        topic: str,
        read: Callable[[], Awaitable[Consumer]],
        spawn: Callable[[Callable[[], Coroutine[Any, Any, None]]], object],
        serdes: Mapping[type, Serde],
        timers: Timers,
    ) -> None:
        """``read`` gives a consumer of the replies to come, to be entered; ``spawn`` has a function run meanwhile."""
        self._topic = topic
        self._read = read
        self._spawn = spawn
        self._serdes = serdes
        self._timers = timers
        self._waiting: dict[bytes, Waiting] = {}
        self._reading: Waiting | None = None

    async def ask(
        self,
        send: Callable[..., Awaitable[RecordMetadata]],
        topic: str,
        value: Any,
        returns: Any,
        timeout: float,
        options: SendOptions,
    ) -> Any:
        """Send, and wait for the reply. Raises RequestTimedOut, and what sending raises; SerializationError for a reply
        that is none of ``returns``."""
        decode = self._decoder(returns)
        correlation_id = uuid4().hex.encode()
        self._waiting[correlation_id] = waiting = Waiting()
        headers = [
            *pack_headers(options.get("headers") or ()),
            (REPLY_TO, self._topic),
            (CORRELATION_ID, correlation_id),
        ]
        try:
            with self._timers.move_on_after(timeout):
                await self._listen()
                await send(topic, value, **{**options, "headers": headers})
                await waiting.wait()
        finally:
            del self._waiting[correlation_id]
        if waiting.reply is None:
            raise RequestTimedOut(
                f"no reply to the request in {topic!r} within {timeout:g} s: its handler may be at work on it, be "
                "down, or be declared without replies=True"
            )
        return decode(waiting.reply)

    def _decoder(self, returns: Any) -> Callable[[ConsumerRecord], Any]:
        if returns is ConsumerRecord:
            return lambda record: record
        annotation, takes_null = split_optional(returns)
        if annotation in (None, type(None)):
            return lambda record: None
        try:
            serde = serde_for(annotation, self._serdes)
        except TypeError as error:
            raise ConfigError(f"request(returns={returns!r}): {error}") from None
        decode = bind_decoder(serde, self._topic)

        def read(record: ConsumerRecord) -> Any:
            if record.value is None:
                if takes_null:
                    return None
                raise SerializationError(f"the reply is null, and returns={returns!r}: its handler returned None")
            try:
                return decode(record.value)
            except Exception as error:  # a serde may raise anything
                cause = likely_cause(serde, record.value)
                raise SerializationError(
                    f"the reply is no {getattr(returns, '__name__', returns)}: {error}{cause and f'. {cause}'}"
                ) from error

        return read

    async def _listen(self) -> None:
        """Return when a reply that is sent from now on will be read. Raises what keeps it from that."""
        if self._reading is None:
            self._reading = Waiting()
            self._spawn(partial(self._run, self._reading))
        await self._reading.wait()

    async def _run(self, reading: Waiting) -> None:
        try:
            async with await self._read() as replies:
                for one in replies.assignment():
                    await replies.position(one)  # its end, before anything is asked
                reading.end()
                async for record in replies:
                    waiting = self._waiting.get(record.header(CORRELATION_ID) or b"")
                    if waiting is not None:
                        waiting.end(record)
        except Exception as error:  # whatever it is, those who wait are told, and the next request begins anew
            self._end(reading, error)
        finally:
            self._end(reading, ConfigError("the bus was closed while a request waited for its reply"))

    def _end(self, reading: Waiting, error: Exception) -> None:
        self._reading = None
        for waiting in (reading, *self._waiting.values()):
            waiting.end(error=error)


def requests_of(bus: EventBus, tasks: ContainedTasks) -> Requests:
    """Those of a bus, as long as its tasks run."""
    topic = replies_topic(bus.client_id)

    async def read() -> Consumer:
        with contextlib.suppress(TopicAlreadyExists):
            await bus.admin.create_topic(topic, 1, configs=REPLIES_CONFIG)
        return bus.new_consumer(partitions=[TopicPartition(topic, 0)], start="latest")

    return Requests(topic, read, tasks.start_soon, bus.serdes, bus.backend.timers)


class Asking(ABC):
    """`request`, for whoever can send, and read, as long as it runs."""

    @abstractmethod
    async def send(
        self, topic: str, value: Any, *, headers: HeadersLike | None = None, partition: int | None = None
    ) -> RecordMetadata: ...

    @abstractmethod
    def _running(self, what: str) -> Life: ...

    async def request(
        self,
        topic: str,
        value: Any,
        *,
        returns: Any = ConsumerRecord,
        timeout: float | timedelta = 30.0,
        **options: Unpack[SendOptions],
    ) -> Any:
        """Send a record to a handler with ``replies=True``, and wait for what it returns.

        ``returns``: the type to read the reply as; without it the reply is the `ConsumerRecord`. ``timeout``: seconds,
        or a timedelta.
        Replies go to the topic ``<client_id>.replies``, made at the first request, and every process of this client_id
        reads it. Raises RequestTimedOut when there is none in time (the handler may still come to its end),
        SerializationError for a reply that is none of ``returns``, and what `send` raises.
        """
        seconds = seconds_of(timeout, f"request({topic!r}, ...)", "")
        return await self._running("request").requests.ask(self.send, topic, value, returns, seconds, options)
