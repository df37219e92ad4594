"""Decide on individual letters: set a status, or send a letter with changed content."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from dlq.editing import check_edit
from dlq.following import Following
from dlq.group_reads import Groups
from dlq.index_queries import row_of
from dlq.payloads import payload_gone, source_records
from dlq.redriven_record import Redriving
from dlq.selection import STATUSES, LetterId, Selection
from dlq.state import LetterState, Step, with_step
from dlq.state_writer import StateWriter, Writes
from dlq.targets import REASONS, Target, Targets, id_of
from eventbus import EventBus
from eventbus.client.consuming.restoring import CLAIM_CHECK
from eventbus.errors import ConfigError, EventBusError
from eventbus.types import Headers, RecordMetadata

if TYPE_CHECKING:
    from dlq.letters import DeadLetter


def state_after(
    following: Following, letter: LetterId, before: LetterState | None, step: Step
) -> tuple[LetterId, LetterState]:
    """Return the letter and its state after ``step``."""
    return letter, with_step(before, following.indexes[letter.topic].topic_id, step)


class Mark:
    """Sets the status of letters without sending them."""

    def __init__(self, following: Following, selection: Selection, letters: Sequence[LetterId], step: Step) -> None:
        self._following = following
        self._selection = selection
        self._letters = letters
        self._step = step
        self.count = 0
        """How many letters got the status."""

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
    """Sends a letter with changed content."""

    def __init__(self, bus: EventBus, following: Following, letter: DeadLetter, step: Step) -> None:
        self._bus = bus
        self._following = following
        self._letter = letter
        self._id = id_of(letter)
        self._step = step
        self._redriving = Redriving(step.at_ms, step.by, edited=True)
        self._target: Target | None = None
        self._content: DeadLetter | None = None
        self._timestamp_ms: int | None = None
        self._sent: RecordMetadata | None = None

    async def prepare(
        self,
        value: bytes | UnsetType | None,
        key: bytes | UnsetType | None,
        headers: Headers | UnsetType,
        *,
        to: str | None,
        whole_topic: bool,
        allow: Collection[str] | None,
    ) -> None:
        """Determine the record to send. Raises ConfigError, SerializationError or PayloadGone."""
        letter = self._letter
        await self._following.catch_up()
        following, groups = self._following, Groups(self._bus)
        await groups.look_up([letter.group] if letter.group and letter.family == "eventbus" else ())
        targets = Targets(
            await self._bus.admin.describe_topics(), following.indexes, following.state_topic, groups.known,
            to=to, whole_topic=whole_topic, allow=allow,
        )  # fmt: skip
        target = targets.of(letter)
        if not isinstance(target, Target):
            raise ConfigError(f"dead letter {self._id} cannot be sent: {REASONS[target]}")
        record = letter if letter.has_payload else (await source_records(self._bus, [letter])).get(self._id)
        if record is None and value is UNSET:
            raise payload_gone(letter)
        before = None if record is None else record.value
        new_value = before if isinstance(value, UnsetType) else value
        new_headers = letter.headers if record is None else record.headers
        if not isinstance(value, UnsetType):
            # The old value may have been a reference to a claim check's store. Consumers would take the new one for
            # such.
            marks = self._bus.context.restoring.marks | {CLAIM_CHECK}
            new_headers = tuple(header for header in new_headers if header[0] not in marks)
        if not isinstance(headers, UnsetType):
            new_headers = headers
        # The handler reads entries of its retry topic as records of the topic that they came from.
        read_as = target.topic if target.group is None or letter.source is None else letter.source.topic
        await check_edit(self._bus, read_as, before, new_value, new_headers)
        new_key = (letter if record is None else record).key if isinstance(key, UnsetType) else key
        self._content = msgspec.structs.replace(letter, key=new_key, value=new_value, headers=new_headers)
        if target.group is None:
            self._timestamp_ms = targets.timestamp_of(letter, target.topic, self._step.at_ms)
            if key is not UNSET:  # a new key may belong in another partition
                target = msgspec.structs.replace(target, partition=None)
        self._target = target

    async def write(self, writer: StateWriter) -> RecordMetadata:
        """Store the record and the letter's new state. Return where the record was written."""
        assert self._target is not None
        while self._sent is None:
            try:
                await writer.write(self.decide)
            except EventBusError as error:
                smaller = self._redriving.smaller(error, self._target)
                if smaller is None:
                    raise
                self._redriving = smaller
        return self._sent

    async def decide(self) -> Writes:
        following = self._following
        row = row_of(following.indexes, self._id)
        before = (await following.states([self._id])).get(self._id)
        assert self._target is not None and self._content is not None
        step = msgspec.structs.replace(self._step, to=self._target.topic)
        if row is None:
            raise ConfigError(f"there is no dead letter {self._id} any more: retention has removed it")
        status = STATUSES[row.status]
        if status not in ("open", "parked"):
            raise ConfigError(
                f"dead letter {self._id} is {status} already: nothing was sent. To send it once more, open it again "
                f"first: eventbus dlq reopen {self._id} --status {status}"
            )
        return Writes(
            [self._redriving.record(self._letter, self._target, self._content, self._timestamp_ms)],
            [state_after(following, self._id, before, step)],
            lambda sent: setattr(self, "_sent", sent[0]),
        )
