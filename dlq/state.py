"""Statuses of dead letters: one record per letter in a compacted topic, with the letter's history."""

from __future__ import annotations

import logging

import msgspec

from dlq.selection import STATUSES, LetterId
from eventbus.errors import ConfigError
from serdes.nesting import shallow

logger = logging.getLogger("dlq")

STATE_TOPIC = "_dlq_state"
_MOST_STEPS = 20
"""Steps kept in a record: the first one and the most recent."""
_MOST_CHARACTERS = 1_000
"""Maximum length of a note, an author or a run id."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """An action taken on a dead letter: who, when, what, and why."""

    status: str
    """The status that the letter got by this step."""
    at_ms: int
    by: str = ""
    note: str = ""
    to: str = ""
    """The topic that the letter was sent to."""
    run: str = ""
    """The id of the redrive that sent the letter."""


class LetterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of a dead letter, and the steps that led to it."""

    topic_id: str
    """The id of the letter's topic. A topic that was deleted and recreated has other letters at the same offsets."""
    steps: tuple[Step, ...]
    version: int = 1

    def __post_init__(self) -> None:
        if self.version != 1 or not self.steps or any(step.status not in STATUSES for step in self.steps):
            raise ValueError("no state of a dead letter")

    @property
    def status(self) -> str:
        return self.steps[-1].status

    @property
    def last(self) -> Step:
        return self.steps[-1]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(LetterState).decode


def new_step(status: str, at_ms: int, *, by: str = "", note: str = "", to: str = "", run: str = "") -> Step:
    """Return a step. Raises ConfigError for texts that are too long to store."""
    for name, text in (("by", by), ("note", note), ("run_id", run)):
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"{name}: {len(text)} characters, and {_MOST_CHARACTERS} are kept at most")
    return Step(status, at_ms, _storable(by), _storable(note), to, _storable(run))


def _storable(text: str) -> str:
    """Escape lone surrogates, which a terminal may pass and UTF-8 cannot encode."""
    return text.encode(errors="backslashreplace").decode()


def with_step(before: LetterState | None, topic_id: str, step: Step) -> LetterState:
    """Return the state after ``step``. Earlier steps are dropped if they belong to a former topic of the same name."""
    steps: tuple[Step, ...] = before.steps if before is not None and before.topic_id == topic_id else ()
    if len(steps) >= _MOST_STEPS:
        steps = (*steps[:1], *steps[2 - _MOST_STEPS :])
    return LetterState(topic_id, (*steps, step))


def write_key(letter: LetterId) -> bytes:
    return str(letter).encode()


def write_state(state: LetterState) -> bytes:
    return _encode(state)


def read_key(key: bytes | None) -> LetterId | None:
    """Parse a key. Returns None, with a warning, if it is invalid."""
    try:
        return LetterId.of((key or b"").decode())
    except (ConfigError, UnicodeDecodeError):
        logger.warning("%s: a record with the key %.100r is skipped", STATE_TOPIC, key)
        return None


def read_state(value: bytes | None) -> LetterState | None:
    """Decode a state. Returns None for a tombstone, and with a warning for a value that cannot be decoded."""
    if value is None:
        return None
    try:
        return _decode(shallow(value))
    except (msgspec.MsgspecError, ValueError) as error:
        logger.warning("%s: a state that cannot be read is skipped: %s", STATE_TOPIC, error)
        return None
