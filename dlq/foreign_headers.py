"""Read the headers in which different systems explain why a record is a dead letter into one structure.

Any producer that may write to a dead-letter topic chooses these headers. All functions accept arbitrary bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

from dlq import headers as ours
from dlq.header_text import text_of
from eventbus.delays.header_values import MAX_INT32, number_of
from eventbus.delays.retry_records import PREFIX, REDRIVE
from eventbus.types import Headers, TopicPartition

Family = Literal["eventbus", "share-group", "connect", "streams", "spring", "karafka", "unknown"]
Found = Mapping[str, bytes | None]
"""Headers by name. If a name occurs more than once, the last value counts."""

_OF_HOPS = (PREFIX, REDRIVE)
"""Our headers of a retry or redrive in flight. Each hop writes them again."""
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_MOST_NAME_BYTES = 1024
_MOST_MESSAGE_BYTES = 8192
_MOST_STACK_BYTES = 65536


class Told(NamedTuple):
    """The facts found in headers. Missing texts are empty, and missing numbers None."""

    source: TopicPartition | None = None
    source_offset: int | None = None
    original_timestamp_ms: int | None = None
    group: str = ""
    handler: str = ""
    service: str = ""
    error_class: str = ""
    message: str = ""
    stack: str = ""
    top_frame: str = ""
    reason: str = ""
    attempts: int | None = None
    first_failed_ms: int | None = None
    last_failed_ms: int | None = None
    hops: int = 0
    retry_topic: str = ""


# each family ---------------------------------------------------------------------------------------------------------


def _eventbus(found: Found) -> Told:
    return _share_group(found)._replace(
        original_timestamp_ms=number_of(found.get(ours.ORIGINAL_TIMESTAMP)),
        handler=_name(found, ours.HANDLER),
        service=_name(found, ours.SERVICE),
        error_class=_name(found, ours.ERROR_CLASS),
        stack=text_of(found.get(ours.STACK), _MOST_STACK_BYTES),
        top_frame=_name(found, ours.TOP_FRAME),
        reason=_name(found, ours.REASON),
        first_failed_ms=number_of(found.get(ours.FIRST_FAILED)),
        last_failed_ms=number_of(found.get(ours.LAST_FAILED)),
        hops=number_of(found.get(ours.DEAD_HOPS), MAX_INT32) or 0,
        retry_topic=_name(found, ours.RETRY_TOPIC),
    )


def _share_group(found: Found) -> Told:
    """Read the headers of share groups (Apache Kafka 4.4, KIP-1191). The disposition is from KIP-1317."""
    return Told(
        *_place(found, ours.TOPIC, ours.PARTITION, ours.OFFSET),
        group=_name(found, ours.GROUP),
        attempts=number_of(found.get(ours.DELIVERY_COUNT), MAX_INT32),
        message=_message(found, ours.MESSAGE),
        reason=_name(found, "__dlq.errors.disposition"),
    )


def _connect(found: Found) -> Told:
    """Read the headers of Kafka Connect's sinks. By default their group is named after the connector."""
    start = "__connect.errors."
    connector = _name(found, f"{start}connector.name")
    stack = text_of(found.get(f"{start}exception.stacktrace"), _MOST_STACK_BYTES)
    return Told(
        *_place(found, f"{start}topic", f"{start}partition", f"{start}offset"),
        group=f"connect-{connector}" if connector else "",
        handler=connector,
        error_class=_name(found, f"{start}exception.class.name"),
        message=_message(found, f"{start}exception.message"),
        stack=stack,
        top_frame=_top_frame(stack),
        reason=_name(found, f"{start}stage"),
    )


def _streams(found: Found) -> Told:
    """Read the headers of Kafka Streams (4.2, KIP-1034)."""
    start = "__streams.errors."
    stack = text_of(found.get(f"{start}stacktrace"), _MOST_STACK_BYTES)
    return Told(
        *_place(found, f"{start}topic", f"{start}partition", f"{start}offset"),
        error_class=_name(found, f"{start}exception"),
        message=_message(found, f"{start}message"),
        stack=stack,
        top_frame=_top_frame(stack),
    )


def _spring(found: Found) -> Told:
    """Read the headers of Spring: ``kafka_original-*`` if the record went through retry topics, else ``kafka_dlt-*``.

    A record with both went through retry topics first. Errors of keys and values use separate header names.
    """
    start = "kafka_original-" if "kafka_original-topic" in found else "kafka_dlt-original-"
    names = [f"kafka_{way}{what}exception-" for way in ("dlt-", "") for what in ("", "key-")]
    error = next((name for name in names if f"{name}fqcn" in found or f"{name}message" in found), names[0])
    stack = text_of(found.get(f"{error}stacktrace"), _MOST_STACK_BYTES)
    attempts = _java_number(found.get("retry_topic-attempts"))
    return Told(
        *_place(found, f"{start}topic", f"{start}partition", f"{start}offset", _java_number),
        original_timestamp_ms=_java_number(found.get(f"{start}timestamp")),
        group=_name(found, f"{start}consumer-group"),
        # Spring wraps the listener's exception in its own, so prefer the root cause.
        error_class=_root_class(stack) or _name(found, f"{error}cause-fqcn") or _name(found, f"{error}fqcn"),
        message=_message(found, f"{error}message"),
        stack=stack,
        top_frame=_top_frame(stack),
        attempts=_java_number(found.get("kafka_deliveryAttempt")) if attempts is None else attempts,
    )


def _karafka(found: Found) -> Told:
    """Read the headers of Karafka Pro."""
    return Told(
        *_place(found, "source_topic", "source_partition", "source_offset"),
        group=_name(found, "source_consumer_group"),
        attempts=number_of(found.get("source_attempts"), MAX_INT32),
    )


# which one ------------------------------------------------------------------------------------------------------------

_READERS: Final[Mapping[str, tuple[Family, Callable[[Found], Told]]]] = {
    "eventbus": ("eventbus", _eventbus),
    "shared": ("share-group", _share_group),
    "connect": ("connect", _connect),
    "streams": ("streams", _streams),
    "spring": ("spring", _spring),
    "karafka": ("karafka", _karafka),
}
_NAMES = re.compile(
    r"(?P<eventbus>eb-dlq-.*)"
    r"|(?P<shared>__dlq\.errors\..*)"
    r"|(?P<connect>__connect\.errors\..*)"
    r"|(?P<streams>__streams\.errors\..*)"
    r"|(?P<spring>kafka_(?:dlt-)?(?:original|exception|key-exception)-.*|retry_topic-.*|kafka_deliveryAttempt)"
    r"|(?P<karafka>source_(?:topic|partition|offset|consumer_group|attempts|trace_id))",
    re.DOTALL,
)
_FIRST_COUNTS = ("kafka_original-", "kafka_dlt-original-")
"""Spring appends these again on every hop, so the first occurrence names the original source."""


def read_headers(headers: Headers) -> tuple[Family, Told, Headers]:
    """Return the system that wrote the failure headers, the facts in them, and the remaining headers.

    A record that failed more than once may have headers of several systems. Each appends its own after those it found,
    so the last system whose headers contain any facts counts.
    """
    families = [match.lastgroup if (match := _NAMES.fullmatch(name)) else None for name, _ in headers]
    found: dict[str, bytes | None] = {}
    for name, value in headers:
        if not (name in found and name.startswith(_FIRST_COUNTS)):
            found[name] = value
    if "eventbus" in families:
        families = ["eventbus" if family == "shared" else family for family in families]
    for key in dict.fromkeys(reversed(families)):
        if key is None:
            continue
        family, read = _READERS[key]
        told = read(found)
        if told.source is not None or told.error_class or told.message:
            rest = zip(headers, families, strict=True)
            return family, told, tuple(pair for pair, of in rest if of != key and not pair[0].startswith(_OF_HOPS))
    return "unknown", Told(), tuple(pair for pair in headers if not pair[0].startswith(_OF_HOPS))


# values --------------------------------------------------------------------------------------------------------------


def _name(found: Found, name: str) -> str:
    return text_of(found.get(name), _MOST_NAME_BYTES)


def _message(found: Found, name: str) -> str:
    return text_of(found.get(name), _MOST_MESSAGE_BYTES)


def _place(
    found: Found, topic: str, partition: str, offset: str, number: Callable[[bytes | None], int | None] = number_of
) -> tuple[TopicPartition | None, int | None]:
    name, where = _name(found, topic), number(found.get(partition))
    if where is None or where > MAX_INT32 or _TOPIC.fullmatch(name) is None:
        return None, None
    return TopicPartition(name, where), number(found.get(offset))


def _java_number(value: bytes | None) -> int | None:
    """Decode a number that Java wrote with ByteBuffer or BigInteger. None if it is negative.

    Other clients write the same headers as text: four or more digits, interpreted as bytes, would exceed 800,000,000.
    """
    if value is None or (len(value) >= 4 and value.isdigit()):
        return number_of(value)
    number = int.from_bytes(value, signed=True) if 1 <= len(value) <= 8 else -1
    return number if number >= 0 else None


# Java's stacks --------------------------------------------------------------------------------------------------------

_FRAME = re.compile(
    r"\s*at (?P<where>[^\s()]{1,500})\((?:(?P<file>[^\s():]{1,200})(:(?P<line>\d{1,9}))?|[^()]{1,50})\)"
)
_CAUSE = "Caused by: "
_NOT_USERS = ("java.", "javax.", "jdk.", "sun.", "org.apache.kafka.", "org.springframework.")


def _root_class(stack: str) -> str:
    """Return the class of the root cause, or "" if the stack names none."""
    _, cause, rest = stack.rpartition(_CAUSE)
    return rest.partition("\n")[0].partition(":")[0].strip() if cause else ""


def _top_frame(stack: str) -> str:
    """Return the user's frame of the root cause, which Java prints last."""
    lines = stack.rpartition(_CAUSE)[2].splitlines()
    frames = [found for found in map(_FRAME.match, lines) if found is not None]
    users = next((frame for frame in frames if not frame["where"].rpartition("/")[2].startswith(_NOT_USERS)), None)
    found = users or next(iter(frames), None)
    if found is None:
        return ""
    method = ".".join(found["where"].rpartition("/")[2].split(".")[-2:])
    return ":".join(part for part in (found["file"], method, found["line"]) if part)
