"""Build dead letters: the failed record plus headers that state where it came from and why it failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from dlq.failures import Failure, failure_of
from eventbus.delays.header_values import MAX_INT32, number_of, text_bytes
from eventbus.delays.retry_records import HOPS, PREFIX
from eventbus.types import ConsumerRecord, Header, Headers, Record

SHARED: Final = "__dlq.errors."
"""Prefix of the names that Kafka's share groups use (KIP-1191), which Kafka's tools and others read."""
TOPIC: Final = "__dlq.errors.topic"
PARTITION: Final = "__dlq.errors.partition"
OFFSET: Final = "__dlq.errors.offset"
TOPIC_ID: Final = "eb-dlq-topic-id"
"""Distinguishes the topic from a later topic with the same name. Absent if it was not known."""
GROUP: Final = "__dlq.errors.group"
DELIVERY_COUNT: Final = "__dlq.errors.delivery.count"
MESSAGE: Final = "__dlq.errors.message"
OURS: Final = "eb-dlq-"
ERROR_CLASS: Final = "eb-dlq-error-class"
STACK: Final = "eb-dlq-stack"
TOP_FRAME: Final = "eb-dlq-top-frame"
FIRST_FAILED: Final = "eb-dlq-first-failed"
LAST_FAILED: Final = "eb-dlq-last-failed"
ORIGINAL_TIMESTAMP: Final = "eb-dlq-original-timestamp"
HANDLER: Final = "eb-dlq-handler"
SERVICE: Final = "eb-dlq-service"
REASON: Final = "eb-dlq-reason"
DEAD_HOPS: Final = "eb-dlq-hops"
"""How often the record was a dead letter before."""
RETRY_TOPIC: Final = "eb-dlq-retry-topic"
"""The retry topic that the handler read; absent if it read none."""
PAYLOAD: Final = "eb-dlq-payload"
"""``source``: the letter did not fit in its topic; key, value and headers must be read from the source record."""

MOST_MESSAGE_BYTES: Final = 1024
MOST_STACK_BYTES: Final = 8192
MOST_NAME_BYTES: Final = 512
_MOST_REDACTED_CHARS = 1 << 16
_BATCH_BYTES = 61 + 32
"""The batch header, and the lengths and deltas of its single record."""
_HEADER_BYTES = 6
"""Lengths of a header's name and value."""

logger = logging.getLogger("eventbus.dlq")

Redact = Callable[[str, str], str | None]
"""``(header name, text)``: returns the text to write, or None to omit the header."""


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a record becomes a dead letter."""

    error: BaseException | None
    reason: str
    """exhausted, rejected, parked, unreadable, never, too-old, crashed, loop."""
    group: str
    handler: str
    service: str
    topic_id: str = ""
    """Id of the topic that the record was first read from."""
    attempts: int
    first_failed_ms: int
    now_ms: int
    retry_topic: str | None = None
    """The retry topic that the handler reads."""


def dead_letter_record(record: ConsumerRecord, cause: Cause, *, max_bytes: int, redact: Redact | None = None) -> Record:
    """Return the dead letter of ``record``, whose topic and offset are those where it was first read.

    The record's own headers come first, without those of earlier hops, followed by ours, at most 14 KiB. ``redact`` is
    applied to headers that contain text of the error. A letter larger than ``max_bytes`` refers to the source record
    for the parts that do not fit: first the value, then the record's headers, then its key. Headers and key are omitted
    only if it is not enough to omit the stack, or stack and message.
    """
    kept = tuple(header for header in record.headers if not header[0].startswith((PREFIX, OURS, SHARED)))
    ours = (*_of_the_record(record, cause), *_of_the_error(cause, redact))
    letter = Record(record.key, record.value, kept + ours)
    if size_of(letter) <= max_bytes:
        return letter
    for key, headers in ((record.key, kept), (record.key, ()), (None, ())):
        for left_out in ((), (STACK,), (STACK, MESSAGE)):
            shorter = (header for header in ours if header[0] not in left_out)
            letter = Record(key, None, (*headers, *shorter, (PAYLOAD, b"source")))
            if size_of(letter) <= max_bytes:
                return letter
    return letter


def size_of(record: Record) -> int:
    """Return the size in bytes of an uncompressed batch that holds only this record, or a few bytes more."""
    size = _BATCH_BYTES + len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name.encode()) + len(value or b"") + _HEADER_BYTES for name, value in record.headers)


def _of_the_record(record: ConsumerRecord, cause: Cause) -> Iterator[Header]:
    found = dict(record.headers)
    redriven = number_of(found.get(HOPS), MAX_INT32) or 0
    dead = number_of(found.get(DEAD_HOPS), MAX_INT32)
    yield TOPIC, record.topic.encode()
    yield PARTITION, b"%d" % record.partition
    yield OFFSET, b"%d" % record.offset
    if cause.topic_id:
        yield TOPIC_ID, text_bytes(cause.topic_id, MOST_NAME_BYTES)
    yield GROUP, text_bytes(cause.group, MOST_NAME_BYTES)
    yield DELIVERY_COUNT, b"%d" % cause.attempts
    yield HANDLER, text_bytes(cause.handler, MOST_NAME_BYTES)
    yield SERVICE, text_bytes(cause.service, MOST_NAME_BYTES)
    yield REASON, text_bytes(cause.reason, MOST_NAME_BYTES)
    yield FIRST_FAILED, b"%d" % cause.first_failed_ms
    yield LAST_FAILED, b"%d" % cause.now_ms
    yield ORIGINAL_TIMESTAMP, b"%d" % record.timestamp_ms
    yield DEAD_HOPS, b"%d" % (redriven if dead is None else max(redriven, dead + 1))
    if cause.retry_topic is not None:
        yield RETRY_TOPIC, cause.retry_topic.encode()


def _of_the_error(cause: Cause, redact: Redact | None) -> Headers:
    failure = Failure("", cause.reason, "", "") if cause.error is None else failure_of(cause.error)
    texts = (
        (MESSAGE, failure.message, MOST_MESSAGE_BYTES),
        (ERROR_CLASS, failure.error_class, MOST_NAME_BYTES),
        (TOP_FRAME, failure.top_frame, MOST_NAME_BYTES),
        (STACK, failure.stack, MOST_STACK_BYTES),
    )
    headers: list[Header] = []
    for name, text, most in texts:
        shown = text if redact is None else _redacted(redact, name, text)
        if shown:
            headers.append((name, text_bytes(shown, most)))
    return tuple(headers)


def _redacted(redact: Redact, name: str, text: str) -> str | None:
    """Redact the text before it is cut to its size, because half a secret is no longer recognized. Return None if
    ``redact`` raises.
    """
    try:
        return redact(name, text_bytes(text, _MOST_REDACTED_CHARS).decode())
    except Exception:  # the user's redact= may raise anything
        logger.exception("redact= failed for the header %r of a dead letter, which is left out", name)
        return None
