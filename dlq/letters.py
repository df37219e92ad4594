"""The contents of a dead letter, in one structure for every system that writes them."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from dlq.foreign_headers import Family, read_headers
from dlq.headers import PAYLOAD, TOPIC_ID
from dlq.selection import LetterId
from eventbus.delays.retry_records import REDRIVE_OF
from eventbus.types import ConsumerRecord, Headers, TopicPartition

_VARYING = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
"""Ids and numbers in messages, which vary between occurrences of one failure."""
_MOST_OF_MESSAGE = 200


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record in a dead-letter topic. Missing texts are empty, and missing numbers are None.

    Any producer that may write to the topic chooses these contents, so ``source`` is only a claim.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The record's own headers, without those that describe failures, retries and redrives."""
    family: Family
    """The system that wrote the letter."""
    source: TopicPartition | None
    source_offset: int | None
    original_timestamp_ms: int | None
    group: str
    handler: str
    service: str
    error_class: str
    message: str
    stack: str
    top_frame: str
    """The place in the user's code, as ``file:function:line``."""
    reason: str
    attempts: int | None
    first_failed_ms: int | None
    last_failed_ms: int | None
    hops: int
    """How often the record was a dead letter before."""
    has_payload: bool
    """False if key, value and headers must be read from the record at ``source``."""
    all_headers: Headers
    retry_topic: str = ""
    """The retry topic that the handler read."""

    @property
    def id(self) -> str:
        """The id of the letter, "topic/partition/offset"."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def source_topic_id(self) -> str:
        """The id of the topic that the record came from; "" if the letter does not contain it.

        A topic that was deleted and created again has a new id, and different records at the same offsets.
        """
        found = dict(self.all_headers).get(TOPIC_ID) if self.family == "eventbus" else None
        return (found or b"").decode("utf-8", "replace")

    @property
    def former_id(self) -> str:
        """The id of the letter from which the record was redriven; "" if there was none or it is not known."""
        try:
            found = msgspec.json.decode(dict(self.all_headers).get(REDRIVE_OF) or b"", type=tuple[str, int, int])
        except (msgspec.MsgspecError, UnicodeError):
            return ""
        return str(LetterId(*found))

    @property
    def case(self) -> str:
        """A hash of the properties that repeated failures share: group, handler, error class and function.

        The line is not included because it changes between releases. A letter with neither class nor function is
        identified by its message with the numbers removed.
        """
        place = self.top_frame.rpartition(":")[0]
        what = [self.group, self.handler, self.error_class, place]
        if not self.error_class and not place:
            what.append(self.reason if self.family == "eventbus" else _shape(self.message))
        return blake2b("\0".join(what).encode("utf-8", "replace"), digest_size=5).hexdigest()


def dead_letter(record: ConsumerRecord) -> DeadLetter:
    """Return ``record`` as a dead letter. Nothing is decoded, and no content makes it raise."""
    family, facts, own = read_headers(record.headers)
    if family == "eventbus":
        has_payload = all(name != PAYLOAD for name, _ in record.headers)
    else:
        # A share group copies payloads only if it is configured to.
        has_payload = family != "share-group" or record.value is not None
    return DeadLetter(
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=own,
        family=family,
        has_payload=has_payload,
        all_headers=record.headers,
        **facts._asdict(),
    )


def _shape(message: str) -> str:
    return _VARYING.sub("#", message[:_MOST_OF_MESSAGE].partition("\n")[0])
