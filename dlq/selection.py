"""Select dead letters, and group them into cases."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from eventbus.errors import ConfigError
from eventbus.recovery import retry_topic_of
from eventbus.types import TopicPartition

if TYPE_CHECKING:
    from dlq.letters import DeadLetter

STATUSES = ("open", "parked", "resolved", "redriven", "edited")
"""Statuses of a dead letter. "redriven" and "edited" letters were sent again, unchanged or with other content."""

_LOOKS_DEAD = re.compile(r"^(dlq|dlt)[._-].+|.+[._-](dlq|dlt|dead[._-]?letters?)$|.+_(error|skipped)$", re.IGNORECASE)
MARK = "errors.deadletterqueue.group.enable"
"""Kafka's config that marks a topic as a dead-letter topic (KIP-1191)."""


def looks_dead(topic: str, configs: Mapping[str, str] | None = None) -> bool:
    """True if a topic holds dead letters, judged by its config or by the names that frameworks give such topics."""
    return (configs or {}).get(MARK) == "true" or _LOOKS_DEAD.match(topic) is not None


RETRY_TOPIC_BYTES: Final = 8 << 20
"""``max.message.bytes`` of a retry topic. A record from a topic with default limits fits in together with our headers,
and managed brokers allow this much.
"""


def looks_like_retries(topic: str, configs: Mapping[str, str]) -> bool:
    """Return whether a topic may hold records that wait: by its name, or by the configs that it was created with."""
    return topic.startswith(retry_topic_of("")) or is_made_for_retries(configs)


def is_made_for_retries(configs: Mapping[str, str]) -> bool:
    """Return whether a topic has the configs with which a handler creates its retry topic."""
    return configs.get("max.message.bytes") == str(RETRY_TOPIC_BYTES) and configs.get("retention.ms") == "-1"


class LetterId(NamedTuple):
    """The position of a dead letter, "topic/partition/offset". It never changes, so it is the letter's id."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @classmethod
    def of(cls, text: str) -> LetterId:
        """Parse an id. Raises ConfigError if it is invalid."""
        topic, _, rest = text.partition("/")
        partition, _, offset = rest.partition("/")
        # int() also accepts signs, spaces and underscores, and numbers longer than any offset.
        if topic and len(rest) <= 30 and rest.isascii() and partition.isdigit() and offset.isdigit():
            letter = cls(topic, int(partition), int(offset))
            if str(letter) == text:  # no leading zeros: each letter has a single id
                return letter
        raise ConfigError(f"{text!r} names no dead letter: write topic/partition/offset, as in dlq.billing/0/17")


class CaseKey(NamedTuple):
    """The properties that repeated failures of one kind share."""

    case: str
    """Hash that identifies the case. ``top_frame`` may show another line of the same function."""
    handler: str
    group: str
    error_class: str
    top_frame: str


OVERFLOW = CaseKey("", "", "", "(further cases)", "")
"""Counts the letters of all cases beyond a topic's limit."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters that match every given criterion.

    ``error_class`` is the full name or its last part, such as "ValueError". ``contains`` is searched for literally in
    key, value, message and stack. ``since_ms`` is inclusive and ``until_ms`` exclusive; both refer to the last failure.
    """

    topic: str | None = None
    ids: Collection[str] | None = None
    case: str | None = None
    handler: str | None = None
    group: str | None = None
    error_class: str | None = None
    contains: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    status: Collection[str] | None = frozenset({"open"})
    """None selects every status."""
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, given in (("status", self.status), ("ids", self.ids)):
            if isinstance(given, str):
                raise ConfigError(f"{name}={given!r}: a set of them, as in {name}={{{given!r}}}")
        unknown = sorted({*(self.status or ())} - {*STATUSES})
        if unknown:
            raise ConfigError(f"status {unknown[0]!r}: there are {', '.join(STATUSES)}")
        if self.limit is not None and self.limit < 0:
            raise ConfigError(f"limit={self.limit}: at least 0")

    def letter_ids(self) -> list[LetterId] | None:
        """Return the given ids, parsed and sorted by topic, partition and offset. Raises ConfigError."""
        return None if self.ids is None else sorted({LetterId.of(id) for id in self.ids})

    def takes_status(self, status: str) -> bool:
        return self.status is None or status in self.status

    @property
    def is_of_all_times(self) -> bool:
        return self.since_ms is None and self.until_ms is None

    def takes_time(self, time_ms: int) -> bool:
        return (self.since_ms is None or time_ms >= self.since_ms) and (
            self.until_ms is None or time_ms < self.until_ms
        )

    def takes_case(self, key: CaseKey) -> bool:
        """True if letters of this case may match. `OVERFLOW` holds many cases, so each letter must be checked."""
        return key == OVERFLOW or (
            self.case in (None, key.case)
            and self.handler in (None, key.handler)
            and self.group in (None, key.group)
            and (self.error_class is None or self._is_class(key.error_class))
        )

    def _is_class(self, name: str) -> bool:
        return self.error_class in (name, name.rpartition(".")[2])

    def takes(self, letter: DeadLetter) -> bool:
        """Check all criteria except status, time and ids, which are not part of the letter."""
        return (
            self.topic in (None, letter.topic)
            and self.takes_case(key_of(letter))
            and (self.contains is None or _holds(letter, self.contains))
        )


def key_of(letter: DeadLetter) -> CaseKey:
    return CaseKey(letter.case, letter.handler, letter.group, letter.error_class, letter.top_frame)


def _holds(letter: DeadLetter, text: str) -> bool:
    data = text.encode(errors="surrogateescape")
    return (
        any(data in part for part in (letter.key, letter.value) if part is not None)
        or text in letter.message
        or text in letter.stack
    )


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters with one handler, error class and place in the code."""

    case: str
    topic: str
    handler: str
    group: str
    error_class: str
    top_frame: str
    count: int
    """Number of selected letters."""
    statuses: dict[str, int]
    """Number of letters by status."""
    first_ms: int
    last_ms: int
    sample_ids: tuple[str, ...]
    """Ids of some letters, newest first."""


class DeadLetterTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of dead letters."""

    name: str
    count: int
    statuses: dict[str, int]
    oldest_open_ms: int | None
    """When the oldest open letter failed."""
    newest_ms: int | None
    groups: tuple[str, ...]
    """The groups whose dead letters they are. Several groups may share a topic."""
    cases: int
