"""What a dead letter says, whichever system wrote it."""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from dlq.families import Family, read_headers
from dlq.headers import PAYLOAD, TOPIC_ID
from dlq.selection import LetterId
from eventbus.delays.retry_records import REDRIVE_OF
from eventbus.types import ConsumerRecord, Headers, TopicPartition

_VARYING = re.compile(r"[0-9a-fA-F-]{8,}|\d+")
"""Ids and numbers in a message, which differ where the failure is the same."""
_MOST_OF_MESSAGE = 200


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a topic of dead letters. Texts are empty, and numbers None, where it does not tell.

    Whoever may write to the topic chose all of it: ``source`` is a place where a record may have stood, no more.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The record's own, without those that tell of failures, retries and redrives."""
    family: Family
    """Who wrote it."""
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
    """Where in the user's code: ``file:function:line``."""
    reason: str
    attempts: int | None
    first_failed_ms: int | None
    last_failed_ms: int | None
    hops: int
    """How often it was a dead letter before."""
    has_payload: bool
    """False: key, value and headers are to be read where the record stood, in ``source``."""
    all_headers: Headers
    retry_topic: str = ""
    """The retry topic that the handler read."""

    @property
    def id(self) -> str:
        """Where it stands, which is its name."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def source_topic_id(self) -> str:
        """The id of the topic that the record came from; "" if the letter does not have it.

        A topic that was deleted and created again has another id, and other records at the same offsets.
        """
        found = dict(self.all_headers).get(TOPIC_ID) if self.family == "eventbus" else None
        return (found or b"").decode("utf-8", "replace")

    @property
    def former_id(self) -> str:
        """The id of the letter that the record was before it was redriven; "" if it was none, or does not tell."""
        try:
            found = msgspec.json.decode(dict(self.all_headers).get(REDRIVE_OF) or b"", type=tuple[str, int, int])
        except (msgspec.MsgspecError, UnicodeError):
            return ""
        return str(LetterId(*found))

    @property
    def case(self) -> str:
        """What repeated failures have in common: whose they are, the class of the error, and the function it came from.

        Not the line, which another release moves. Of a letter that tells neither class nor function the message is
        taken, without the numbers in it.
        """
        place = self.top_frame.rpartition(":")[0]
        what = [self.group, self.handler, self.error_class, place]
        if not self.error_class and not place:
            what.append(self.reason if self.family == "eventbus" else _shape(self.message))
        return blake2b("\0".join(what).encode("utf-8", "replace"), digest_size=5).hexdigest()


def dead_letter(record: ConsumerRecord) -> DeadLetter:
    """What ``record`` says, as it was read, undecoded. Never raises, whatever it holds."""
    family, told, own = read_headers(record.headers)
    if family == "eventbus":
        has_payload = all(name != PAYLOAD for name, _ in record.headers)
    else:
        # A share group copies payloads only where it was told to.
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
        **told._asdict(),
    )


def _shape(message: str) -> str:
    return _VARYING.sub("#", message[:_MOST_OF_MESSAGE].partition("\n")[0])
