"""Replies: what a handler with ``replies=True`` sends to the topic that its request names.

The sender of a request chooses that topic, so a reply that can never be sent there is the sender's fault. It is logged
and the request counts as handled: the work is done, and an error would stop the partition or repeat the work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, cast

from eventbus.client.handling.handler_errors import text_of
from eventbus.client.handling.handlers import Handler
from eventbus.client.handling.invocation import FILTERED
from eventbus.client.handling.middleware import CallNext
from eventbus.client.host import Host
from eventbus.errors import InvalidTopic, KafkaError, SerializationError, UnknownTopicOrPartition
from eventbus.types import ConsumerRecord, RecordMetadata
from serdes import Serde, serde_for
from serdes.base import SchemaSerde, bind_encoder

logger = logging.getLogger("eventbus.requests")

REPLY_TO, CORRELATION_ID = "reply_to", "correlation_id"
REPLY_ERRORS = "reply_errors"
"""The header of a request whose sender can read error replies. A sender of an older version, or of another framework,
would take the null value of an error reply for the result None, so none is sent without this header."""
REPLY_ERROR = "reply_error"
"""The header of an error reply, with the reason. The value of an error reply is null."""

_MOST_ERROR_CHARS = 1_000


class Replies:
    """The replies of one handler."""

    def __init__(self, handler: Handler[Any, Any], bus: Host, serdes: Mapping[type, Serde]) -> None:
        self._handler = handler
        self._bus = bus
        self._written = _writer(handler.returned, serdes)

    async def middleware(self, record: ConsumerRecord, call_next: CallNext) -> Any:
        """Call the handler, wait until its result is stored in the topic of the request, and return the result."""
        result = await call_next(record)
        if result is FILTERED:
            return None  # no reply: another handler of the topic may answer the request
        if record.header(REPLY_TO) is not None:
            try:
                to = self._topic_of(record)
                await self._bus.send(
                    to, self._written(to, result), partition=0, headers=_correlated(record), transactional=False
                )
            except (KafkaError, SerializationError, UnicodeDecodeError) as error:
                if not _is_permanent(error):
                    raise
                self._log(record, error)
                text = f"the reply of handler {self._handler.__name__!r} cannot be sent: {_described(error)}"
                self._send_error(record, text, logging.DEBUG)
        return result

    def failed(self, record: ConsumerRecord, error: Exception) -> None:
        """Send an error reply, if its receiver can read one, and return without waiting for it.

        The record has ended in failure: the last retry failed, it is skipped, or its partition stops.
        """
        self._send_error(record, f"handler {self._handler.__name__!r} raised {_described(error)}", logging.WARNING)

    def _send_error(self, record: ConsumerRecord, text: str, level: int) -> None:
        if record.header(REPLY_TO) is None or record.header(REPLY_ERRORS) is None:
            return
        headers = [*_correlated(record), (REPLY_ERROR, text.encode(errors="backslashreplace"))]

        def delivered(metadata: RecordMetadata | None, problem: Exception | None) -> None:
            if problem is not None:
                self._log(record, problem, level)

        try:
            to = self._topic_of(record)
            self._bus.send_nowait(to, None, partition=0, headers=headers, on_delivery=delivered, transactional=False)
        except Exception as problem:  # an error reply is a courtesy: it must not add to the failure that it reports
            self._log(record, problem, level)

    def _topic_of(self, record: ConsumerRecord) -> str:
        """Return the reply topic. Raises UnicodeDecodeError, and InvalidTopic for one that the handler itself reads."""
        to = (record.header(REPLY_TO) or b"").decode()
        if self._handler.spec.reads(to):
            raise InvalidTopic(f"its {REPLY_TO} {to!r} is a topic that the handler itself reads")
        return to

    def _log(self, record: ConsumerRecord, error: Exception, level: int = logging.WARNING) -> None:
        logger.log(
            level,
            "Handler %r does not answer the request %s-%d offset %d. Its reply to topic %.300r failed with %s. Correct "
            "the %s header of the sender, or what the handler returns",
            self._handler.__name__, record.topic, record.partition, record.offset, record.header(REPLY_TO),
            _described(error), REPLY_TO,
        )  # fmt: skip


def _writer(annotation: Any, serdes: Mapping[type, Serde]) -> Callable[[str, Any], Any]:
    """Return a function that serializes a result as the type that the handler declares.

    By the class of the value alone, a handler that returns ``float`` would encode 3 differently from 3.5.
    """
    serde = None if annotation is None else serde_for(annotation, serdes, only_writes=True)
    if serde is None or isinstance(serde, SchemaSerde):
        return lambda topic, result: result

    def written(topic: str, result: Any) -> Any:
        if result is None or isinstance(result, bytes):
            return result
        kind = cast("type[Any]", type(result))
        try:
            return bind_encoder(serde, topic, kind)(result)
        except Exception as error:  # a serde may raise anything
            raise SerializationError(
                f"the reply cannot be written as {getattr(annotation, '__name__', annotation)}: {error} "
                f"(it is {kind.__name__}: {result!r:.120})"
            ) from error

    return written


def _correlated(record: ConsumerRecord) -> list[tuple[str, bytes | None]]:
    return [(CORRELATION_ID, record.header(CORRELATION_ID))]


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {text_of(error)[:_MOST_ERROR_CHARS]}"


def _is_permanent(error: Exception) -> bool:
    """True if a later try to send the reply cannot succeed.

    Kafka calls an unknown topic retriable, because it may be created later. Its reader is gone by then. A fatal error
    concerns the producer or the log, not the reply.
    """
    if isinstance(error, KafkaError):
        return isinstance(error, UnknownTopicOrPartition) or not (error.retriable or error.fatal)
    return True
