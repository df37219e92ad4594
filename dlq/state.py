"""What became of dead letters: records of a compacted topic, one per letter, that carry their own history."""

from __future__ import annotations

import logging

import msgspec

from dlq.selection import STATUSES, LetterId
from eventbus.errors import ConfigError

logger = logging.getLogger("dlq")

STATE_TOPIC = "_dlq_state"
_MOST_STEPS = 20
"""Steps that a record keeps: the first one, and the last ones."""
_MOST_CHARACTERS = 1_000
"""Of a note, or of who wrote it."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something done to a dead letter: who, when, what, and why."""

    status: str
    """The one it got by it."""
    at_ms: int
    by: str = ""
    note: str = ""
    to: str = ""
    """The topic it was sent to."""
    run: str = ""
    """The redrive that sent it."""


class LetterState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The status of a dead letter, and how it came to it."""

    topic_id: str
    """Of the letter's topic: one that was deleted and made anew has other letters at the same offsets."""
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
    """Raises ConfigError for texts that are too long to keep."""
    for name, text in (("by", by), ("note", note), ("run_id", run)):
        if len(text) > _MOST_CHARACTERS:
            raise ConfigError(f"{name}: {len(text)} characters, and {_MOST_CHARACTERS} are kept at most")
    return Step(status, at_ms, _storable(by), _storable(note), to, _storable(run))


def _storable(text: str) -> str:
    """Half of a character, as a terminal may give it, cannot be written."""
    return text.encode(errors="backslashreplace").decode()


def with_step(before: LetterState | None, topic_id: str, step: Step) -> LetterState:
    """The state after ``step``; the past of another topic of the same name is not its own."""
    steps: tuple[Step, ...] = before.steps if before is not None and before.topic_id == topic_id else ()
    if len(steps) >= _MOST_STEPS:
        steps = (*steps[:1], *steps[2 - _MOST_STEPS :])
    return LetterState(topic_id, (*steps, step))


def write_key(letter: LetterId) -> bytes:
    return str(letter).encode()


def write_state(state: LetterState) -> bytes:
    return _encode(state)


def read_key(key: bytes | None) -> LetterId | None:
    """None for what is no key of ours."""
    try:
        return LetterId.of((key or b"").decode())
    except (ConfigError, UnicodeDecodeError):
        logger.warning("%s: a record with the key %.100r is passed over", STATE_TOPIC, key)
        return None


def read_state(value: bytes | None) -> LetterState | None:
    """None where nothing was done to a letter, and for what cannot be read."""
    if value is None:
        return None
    try:
        return _decode(value)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        logger.warning("%s: a state that cannot be read is passed over: %s", STATE_TOPIC, error)
        return None
