"""What is decided about letters one by one: marks, and letters that are sent with another content."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from dlq.editing import check_edit
from dlq.following import Following
from dlq.payloads import payload_gone, source_records
from dlq.selection import STATUSES, LetterId, Selection
from dlq.state import LetterState, Step, with_step
from dlq.state_writer import Writes
from dlq.targets import REASONS, Target, Targets, id_of, redrive_headers
from dlq.views import row_of
from eventbus import EventBus
from eventbus.client.consuming.restoring import CLAIM_CHECK
from eventbus.client.ledger_writer import LedgerRecord
from eventbus.errors import ConfigError
from eventbus.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from dlq.letters import DeadLetter


def state_after(
    following: Following, letter: LetterId, before: LetterState | None, step: Step
) -> tuple[LetterId, LetterState]:
    """What became of a letter."""
    return letter, with_step(before, following.indexes[letter.topic].topic_id, step)


class Mark:
    """Letters that get a status, and are not sent anywhere."""

    def __init__(self, following: Following, selection: Selection, letters: Sequence[LetterId], step: Step) -> None:
        self._following = following
        self._selection = selection
        self._letters = letters
        self._step = step
        self.count = 0
        """How many got it."""

    async def decide(self) -> Writes:
        following = self._following
        states = await following.states(self._letters)
        changed: list[tuple[LetterId, LetterState]] = []
        for letter in self._letters:
            row = row_of(following.indexes, letter)
            if row is not None and self._is_to_change(STATUSES[row.status]):
                changed.append(state_after(following, letter, states.get(letter), self._step))

        def committed(_: Sequence[RecordMetadata]) -> None:
            self.count = len(changed)

        return Writes((), changed, committed)

    def _is_to_change(self, status: str) -> bool:
        return status != self._step.status and self._selection.takes_status(status)


class Edit:
    """A letter that is sent with another content."""

    def __init__(self, bus: EventBus, following: Following, letter: DeadLetter, step: Step) -> None:
        self._bus = bus
        self._following = following
        self._letter = letter
        self._id = id_of(letter)
        self._step = step
        self._record: LedgerRecord | None = None
        self.sent: RecordMetadata | None = None
        """Where it landed."""

    async def prepare(
        self,
        value: bytes | UnsetType | None,
        key: bytes | UnsetType | None,
        headers: Headers | UnsetType,
        *,
        to: str | None,
        allow: Collection[str] | None,
    ) -> None:
        """Work out what is to be sent. Raises ConfigError, SerializationError, PayloadGone."""
        letter = self._letter
        await self._following.catch_up()
        following = self._following
        topics = await self._bus.admin.describe_topics()
        target = Targets(topics, following.indexes, following.state_topic, to=to, allow=allow).of(letter)
        if not isinstance(target, Target):
            raise ConfigError(f"dead letter {self._id} cannot be sent: {REASONS[target]}")
        record = letter if letter.has_payload else (await source_records(self._bus, [letter])).get(self._id)
        if record is None and value is UNSET:
            raise payload_gone(letter)
        before = None if record is None else record.value
        new_value = before if isinstance(value, UnsetType) else value
        old_headers = letter.headers if record is None else record.headers
        if not isinstance(value, UnsetType):
            # The old value was a reference to a claim check's store, say. Readers would take the new one for such.
            marks = self._bus.restoring.marks | {CLAIM_CHECK}
            old_headers = tuple(header for header in old_headers if header[0] not in marks)
        new_headers = redrive_headers(
            old_headers if isinstance(headers, UnsetType) else headers,
            self._id, hops=letter.hops + 1, at_ms=self._step.at_ms, by=self._step.by, edited=True,
        )  # fmt: skip
        await check_edit(self._bus, target.topic, before, new_value, new_headers)
        new_key = (letter if record is None else record).key if isinstance(key, UnsetType) else key
        # Another key may belong into another partition.
        partition = target.partition if isinstance(key, UnsetType) else None
        self._record = LedgerRecord(target.topic, partition, new_key, new_value, new_headers)

    async def decide(self) -> Writes:
        following = self._following
        row = row_of(following.indexes, self._id)
        before = (await following.states([self._id])).get(self._id)
        assert self._record is not None
        step = msgspec.structs.replace(self._step, to=self._record.topic)
        if row is None:
            raise ConfigError(f"there is no dead letter {self._id} any more: retention has removed it")
        status = STATUSES[row.status]
        if status not in ("open", "parked"):
            raise ConfigError(
                f"dead letter {self._id} is {status} already: nothing was sent. To send it once more, open it again "
                f"first: eventbus dlq reopen {self._id} --status {status}"
            )
        return Writes(
            [self._record],
            [state_after(following, self._id, before, step)],
            lambda sent: setattr(self, "sent", sent[0]),
        )
