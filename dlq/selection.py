"""Which dead letters are meant, and what they add up to."""

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
"""What can become of a dead letter. "redriven" and "edited": it was sent back, as it was or with another content."""

_LOOKS_DEAD = re.compile(r"^(dlq|dlt)[._-].+|.+[._-](dlq|dlt|dead[._-]?letters?)$|.+_(error|skipped)$", re.IGNORECASE)
MARK = "errors.deadletterqueue.group.enable"
"""The config that makes a topic one for dead letters to Kafka (KIP-1191)."""


def looks_dead(topic: str, configs: Mapping[str, str] | None = None) -> bool:
    """Whether a topic holds dead letters: by its config, or by the names that frameworks give such topics."""
    return (configs or {}).get(MARK) == "true" or _LOOKS_DEAD.match(topic) is not None


RETRY_TOPIC_BYTES: Final = 8 << 20
"""``max.message.bytes`` of a retry topic: a record of any topic with the default fits in with our headers, and brokers
that others run allow as much."""


def looks_like_retries(topic: str, configs: Mapping[str, str]) -> bool:
    """Return whether a topic may hold records that wait: by its name, or by the configs that it was created with."""
    return topic.startswith(retry_topic_of("")) or is_made_for_retries(configs)


def is_made_for_retries(configs: Mapping[str, str]) -> bool:
    """Return whether a topic has the configs with which a handler creates its retry topic."""
    return configs.get("max.message.bytes") == str(RETRY_TOPIC_BYTES) and configs.get("retention.ms") == "-1"


class LetterId(NamedTuple):
    """Where a dead letter stands; it never moves, so that is its name: "topic/partition/offset"."""

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
        """Raises ConfigError for what names no dead letter."""
        topic, _, rest = text.partition("/")
        partition, _, offset = rest.partition("/")
        # int() takes more than the digits of a number, and more of them than an offset has.
        if topic and len(rest) <= 30 and rest.isascii() and partition.isdigit() and offset.isdigit():
            found = cls(topic, int(partition), int(offset))
            if str(found) == text:  # a letter has one name
                return found
        raise ConfigError(f"{text!r} names no dead letter: write topic/partition/offset, as in dlq.billing/0/17")


class CaseKey(NamedTuple):
    """What repeated failures have in common."""

    case: str
    """Which one it is; ``top_frame`` may be another line of the same function."""
    handler: str
    group: str
    error_class: str
    top_frame: str


OVERFLOW = CaseKey("", "", "", "(further cases)", "")
"""Where cases are counted that came after too many others of their topic."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters: those to which everything applies that is given.

    ``error_class`` is the whole name, or its last part: "ValueError". ``contains`` is looked for in key, value, message
    and stack, as it is. ``since_ms`` is included, ``until_ms`` is not; the time is that of the last failure.
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
    """None: whatever became of them."""
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
        """Those named, in the order of their topics and offsets. Raises ConfigError."""
        return None if self.ids is None else sorted({LetterId.of(one) for one in self.ids})

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
        """Whether letters of the case may be meant; of those past counting nobody knows yet."""
        return key == OVERFLOW or (
            self.case in (None, key.case)
            and self.handler in (None, key.handler)
            and self.group in (None, key.group)
            and (self.error_class is None or self._is_class(key.error_class))
        )

    def _is_class(self, name: str) -> bool:
        return self.error_class in (name, name.rpartition(".")[2])

    def takes(self, letter: DeadLetter) -> bool:
        """Everything but status, time and ids, which the letter does not tell."""
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
        any(data in one for one in (letter.key, letter.value) if one is not None)
        or text in letter.message
        or text in letter.stack
    )


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters of one kind: of one handler, error class and place in the code."""

    case: str
    topic: str
    handler: str
    group: str
    error_class: str
    top_frame: str
    count: int
    """Those selected."""
    statuses: dict[str, int]
    """What became of them."""
    first_ms: int
    last_ms: int
    sample_ids: tuple[str, ...]
    """Some of the newest, the newest first."""


class DeadLetterTopic(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of dead letters."""

    name: str
    count: int
    statuses: dict[str, int]
    oldest_open_ms: int | None
    """When the oldest one failed that nobody has dealt with."""
    newest_ms: int | None
    groups: tuple[str, ...]
    """Whose dead letters they are; several groups may share a topic."""
    cases: int
