"""Requests: records that name a topic for the reply, and callers that wait for it. `replies` is the other side.

Other systems use the headers too: ``reply_to``, a topic, and ``correlation_id``. All replies to a bus go to one topic.
Each of its processes reads that topic from the end, and recognizes its own replies by their ids.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, get_origin
from uuid import uuid4

import anyio

from eventbus.backends.clock import Timers
from eventbus.client.consumer import Consumer
from eventbus.client.host import Host
from eventbus.client.producing.joining import refuse_waiting
from eventbus.client.producing.serialization import pack_headers
from eventbus.client.replies import CORRELATION_ID, REPLY_ERROR, REPLY_ERRORS, REPLY_TO
from eventbus.client.sending import SendOptions
from eventbus.errors import (
    ConfigError,
    EventBusError,
    RequestFailed,
    RequestTimedOut,
    SerializationError,
    TopicAlreadyExists,
)
from eventbus.types import ConsumerRecord, RecordMetadata, TopicPartition
from serdes import Serde, serde_for
from serdes.base import bind_decoder
from serdes.choose import likely_cause, split_optional

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]

REPLIES_CONFIG = {"retention.ms": "600000"}
"""Short retention: callers read their reply at once."""


def replies_topic(service_name: str) -> str:
    """Return the topic of the replies to a service.

    Services that share it still get their own replies only: each is found by its random correlation id.
    """
    return f"{re.sub(r'[^a-zA-Z0-9._-]', '-', service_name)}.replies"


_CREATE_SECONDS = 5.0
"""The longest time that a topic of replies may take to be created again."""


class Waiting:
    """Waits for one reply, or until replies are being read."""

    def __init__(self) -> None:
        self._over = anyio.Event()
        self.reply: ConsumerRecord | None = None
        self._error: Exception | None = None

    def end(self, reply: ConsumerRecord | None = None, error: Exception | None = None) -> None:
        """Set the result. Only the first call counts."""
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
        create: Callable[[], Awaitable[bool]],
        read: Callable[[], Consumer],
        spawn: Spawn,
        serdes: Mapping[type, Serde],
        timers: Timers,
    ) -> None:
        """``create`` returns True if the topic did not exist. ``read`` returns a consumer of new replies, not entered
        yet. ``spawn`` starts a background task.
        """
        self._topic = topic
        self._create = create
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
        """Send a request and wait for the reply.

        Raises RequestFailed for an error reply, RequestTimedOut, what sending raises, and SerializationError for a
        reply that cannot be read as ``returns``.
        """
        if options.get("transactional", True):
            refuse_waiting(f"request({topic!r}, ...)")
        decode = self._decoder(returns)
        correlation_id = uuid4().hex.encode()
        self._waiting[correlation_id] = waiting = Waiting()
        headers = [
            *pack_headers(options.get("headers") or ()),
            (REPLY_TO, self._topic),
            (CORRELATION_ID, correlation_id),
            (REPLY_ERRORS, b"1"),
        ]
        try:
            with self._timers.move_on_after(timeout):
                await self._listen()
                await send(topic, value, **{**options, "headers": headers})
                await waiting.wait()
        finally:
            del self._waiting[correlation_id]
        if waiting.reply is None:
            raise await self._timed_out(topic, timeout)
        problem = waiting.reply.header(REPLY_ERROR)
        if problem is not None:
            raise RequestFailed(
                f"The request in {topic!r} failed: {problem.decode(errors='replace')}. The log of the service that "
                "handles it has the details"
            )
        return decode(waiting.reply)

    async def _timed_out(self, topic: str, timeout: float) -> RequestTimedOut:
        with contextlib.suppress(EventBusError), self._timers.move_on_after(_CREATE_SECONDS):
            if await self._create():
                return RequestTimedOut(
                    f"No reply to the request in {topic!r} within {timeout:g} s. The topic of its reply, "
                    f"{self._topic!r}, was deleted, and is created again now. Send the request again; its handler may "
                    "have run"
                )
        return RequestTimedOut(
            f"no reply to the request in {topic!r} within {timeout:g} s: its handler may still run, wait "
            "to retry it, be down, or be declared without replies=True"
        )

    def _decoder(self, returns: Any) -> Callable[[ConsumerRecord], Any]:
        if ConsumerRecord in (returns, get_origin(returns)):
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
        """Return when replies to requests sent from now on will be read. Raises the error that prevents it."""
        if self._reading is None:
            self._reading = Waiting()
            self._spawn(partial(self._run, self._reading))
        await self._reading.wait()

    async def _run(self, reading: Waiting) -> None:
        try:
            await self._create()
            async with self._read() as replies:
                await replies.positions()  # the end offsets, before any request is sent
                reading.end()
                async for record in replies:
                    waiting = self._waiting.get(record.header(CORRELATION_ID) or b"")
                    if waiting is not None:
                        waiting.end(record)
        except Exception as error:  # fail all waiting requests; the next request starts again
            self._end(reading, error)
        finally:
            self._end(reading, ConfigError("the bus was closed while a request waited for its reply"))

    def _end(self, reading: Waiting, error: Exception) -> None:
        self._reading = None
        for waiting in (reading, *self._waiting.values()):
            waiting.end(error=error)


def requests_of(bus: Host, spawn: Spawn) -> Requests:
    """Return the requests of a bus, usable while its tasks run."""
    topic = replies_topic(bus.context.service_name)

    async def create() -> bool:
        try:
            await bus.admin.create_topic(topic, 1, configs=REPLIES_CONFIG)
        except TopicAlreadyExists:
            return False
        return True

    def read() -> Consumer:
        return bus.new_consumer(partitions=[TopicPartition(topic, 0)], start="latest")

    return Requests(topic, create, read, spawn, bus.context.serdes, bus.context.backend.timers)
