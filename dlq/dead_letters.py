"""The dead letters of a log: seen in groups, sent back, edited, parked, resolved."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Unpack

import msgspec
from msgspec import UNSET, UnsetType

from dlq import views
from dlq.changes import Edit, Mark
from dlq.following import Following
from dlq.index_file import IndexCache
from dlq.letters import DeadLetter, dead_letter
from dlq.payloads import payload_of
from dlq.reading import records_at, selected
from dlq.redrive import Redrive, Redriven, RedriveOptions
from dlq.retry_topics import RetryTopics, WaitingRecords
from dlq.selection import OVERFLOW, STATUSES, Case, DeadLetterTopic, LetterId, Selection
from dlq.state import STATE_TOPIC, Step, new_step
from dlq.state_writer import StateWriter
from dlq.targets import id_of
from eventbus import EventBus
from eventbus.errors import ConfigError
from eventbus.types import Headers, RecordMetadata

__all__ = ["Case", "DeadLetterTopic", "DeadLetters", "Redrive", "Redriven", "Selection"]

_BATCH = 1_000
"""Letters that are marked in a transaction."""


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class DeadLetters:
    """The dead letters of a bus's log, its own and those of other frameworks.

    ::

        async with EventBus("file://./data") as bus:
            letters = DeadLetters(bus)
            for case in await letters.groups():
                print(case.count, case.handler, case.error_class, case.top_frame)
            done = await letters.redrive(Selection(handler="bill"), by="ann", note="prices are back")

    ``topics``: those that hold dead letters; None: those of the bus's own handlers, and all that look like it, by their
    names (``dlq.*``, ``*-dlq``, ``*.DLT``, ``*_error``, ...) or by Kafka's config for it. Dead letters are never
    changed: what became of them is kept in ``state_topic``. What was read once is kept in memory, and in the folder
    ``cache`` where one is given; every call brings it up to date.
    """

    def __init__(
        self,
        bus: EventBus,
        topics: str | Sequence[str] | None = None,
        state_topic: str = STATE_TOPIC,
        *,
        cache: Path | str | None = None,
        clock: Callable[[], int] = _system_ms,
    ) -> None:
        """``clock`` gives milliseconds since the epoch."""
        chosen = [topics] if isinstance(topics, str) else topics
        self._bus = bus
        self._clock = clock
        self._following = Following(bus, chosen, state_topic, None if cache is None else IndexCache(Path(cache)))
        self._writer = StateWriter(bus, self._following)
        self._retry_topics = RetryTopics(bus)

    # looking ---------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[DeadLetterTopic]:
        """The topics of dead letters, with what is in them."""
        await self._following.catch_up()
        return views.topics_of(self._following.indexes)

    async def waiting(self) -> list[WaitingRecords]:
        """Return what waits in the log for its next try, by topic and group. These records are not dead letters."""
        return await self._retry_topics.waiting()

    async def groups(self, topic: str | None = None, *, selection: Selection | None = None) -> list[Case]:
        """The selected letters, of all statuses if nothing else is said, by handler, error class and place in the code.

        Those with the most letters come first. With ``contains`` every letter that may be meant has to be read.
        """
        chosen = selection or Selection(status=None)
        if topic is not None:
            chosen = msgspec.structs.replace(chosen, topic=topic)
        await self._following.catch_up()
        self._following.check(chosen)
        indexes = self._following.indexes
        if chosen.ids is None and chosen.limit is None and not self._needs_letters(chosen):
            return views.groups_of(indexes, chosen)
        ids = [one async for some in self._ids(chosen) for one in some]
        return views.groups_of_ids(indexes, ids)

    async def letters(self, selection: Selection, *, limit: int | None = None) -> AsyncGenerator[DeadLetter]:
        """The selected letters, by topic, partition and offset: ``async for letter in letters.letters(...):``."""
        limits = [one for one in (limit, selection.limit) if one is not None]
        chosen = msgspec.structs.replace(selection, limit=min(limits, default=None))
        await self._following.catch_up()
        self._following.check(chosen)
        wanted = views.offsets_of(self._following.indexes, chosen)
        async with aclosing(selected(self._bus, wanted, chosen)) as batches:
            async for some in batches:
                for letter in some:
                    yield letter

    async def get(self, id: str) -> DeadLetter:
        """One letter, by its id "topic/partition/offset". Raises ConfigError when there is none."""
        letter = LetterId.of(id)
        found = (await self._bus.admin.describe_topics([letter.topic]))[0]
        if letter.partition < len(found.partitions):
            async with aclosing(records_at(self._bus, {letter.topic_partition: [letter.offset]})) as batches:
                async for records in batches:
                    return dead_letter(records[0])
        raise ConfigError(f"there is no dead letter {id}: retention has removed it, or the id is another topic's")

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """Its value, from the topic it came from where it holds only its place; None for a tombstone.

        Raises PayloadGone when it is no longer there.
        """
        return await payload_of(self._bus, letter)

    async def history(self, id: str) -> tuple[Step, ...]:
        """What was done to a letter, the oldest first: who, when, what, and the note. Empty: nothing."""
        letter = LetterId.of(id)
        await self._following.catch_up()
        state = (await self._following.states([letter])).get(letter)
        return () if state is None else state.steps

    async def statuses(self, ids: Iterable[str]) -> dict[str, str]:
        """What became of each of these letters, see `dlq.selection.STATUSES`; those that are gone are left out."""
        await self._following.catch_up()
        rows = {id: views.row_of(self._following.indexes, LetterId.of(id)) for id in ids}
        return {id: STATUSES[row.status] for id, row in rows.items() if row is not None}

    async def rates(
        self, since_ms: int, bucket_ms: int, count: int, *, topic: str | None = None
    ) -> dict[str, list[int]]:
        """By topic how many letters failed in each of ``count`` stretches of ``bucket_ms`` from ``since_ms`` on."""
        if bucket_ms < 1 or count < 1:
            raise ConfigError(f"bucket_ms={bucket_ms}, count={count}: both are at least 1")
        await self._following.catch_up()
        self._following.check(Selection(topic=topic))
        indexes = self._following.indexes
        return {
            name: index.rates(since_ms, bucket_ms, count) for name, index in indexes.items() if topic in (None, name)
        }

    def _needs_letters(self, selection: Selection) -> bool:
        """Whether the index alone does not tell what is selected."""
        names = (selection.case, selection.handler, selection.group, selection.error_class)
        return selection.contains is not None or (
            any(name is not None for name in names)
            and any(OVERFLOW in index.cases for index in self._following.indexes.values())
        )

    async def _ids(self, selection: Selection) -> AsyncGenerator[list[LetterId]]:
        wanted = views.offsets_of(self._following.indexes, selection)
        if self._needs_letters(selection):
            async with aclosing(selected(self._bus, wanted, selection)) as batches:
                async for some in batches:
                    yield [*map(id_of, some)]
            return
        left = selection.limit
        for where, offsets in wanted.items():
            chosen = offsets[:left]
            yield [LetterId(*where, offset) for offset in chosen]
            left = None if left is None else left - len(chosen)

    # doing -----------------------------------------------------------------------------------------------------------

    async def resolve(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Say that nothing is to be done about these any more; how many there were. They stay where they are."""
        return await self._mark("resolved", selection, note, by)

    async def park(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Put these aside, to wait for somebody: what is redriven or resolved passes them over unless it says so."""
        return await self._mark("parked", selection, note, by)

    async def reopen(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Take back what was said of these: they are open again."""
        return await self._mark("open", selection, note, by)

    async def _mark(self, status: str, selection: Selection, note: str, by: str) -> int:
        new_step(status, 0, by=by, note=note)  # what cannot be kept is told before anything is done
        await self._following.catch_up()
        self._following.check(selection)
        count = 0
        async with self._writer:
            # All of them first: what is chosen must not change with what is written.
            ids = [one async for some in self._ids(selection) for one in some]
            for begin in range(0, len(ids), _BATCH):
                step = new_step(status, self._clock(), by=by, note=note)
                mark = Mark(self._following, selection, ids[begin : begin + _BATCH], step)
                await self._writer.write(mark.decide)
                count += mark.count
        return count

    async def edit(
        self,
        id: str,
        *,
        value: bytes | UnsetType | None = UNSET,
        key: bytes | UnsetType | None = UNSET,
        headers: Headers | UnsetType = UNSET,
        to: str | None = None,
        whole_topic: bool = False,
        allow: Collection[str] | None = None,
        by: str = "",
        note: str = "",
    ) -> RecordMetadata:
        """Send a letter with another content to the group that failed, through its retry topic. Return its place.

        All groups that read the topic get it with ``whole_topic``, which sends it to the topic it came from, or ``to``
        another topic. What is not given stays as it is; ``value=None`` is a tombstone. The letter itself stays too, and
        says what became of it. Raises ConfigError for a letter that was dealt with already, and where `redrive` would
        leave it out; SerializationError for a value that names its schema and cannot be read by it; PayloadGone.
        """
        step = new_step("edited", self._clock(), by=by, note=note)
        letter = await self.get(id)
        edit = Edit(self._bus, self._following, letter, step)
        await edit.prepare(value, key, headers, to=to, whole_topic=whole_topic, allow=allow)
        async with self._writer:
            return await edit.write(self._writer)

    def start_redrive(self, selection: Selection, **options: Unpack[RedriveOptions]) -> Redrive:
        """A redrive that can be paused and cancelled: ``async with letters.start_redrive(...) as run:``.

        Each selected letter is sent to the group that failed, through its retry topic, as it was but for headers that
        state where it comes from. With ``whole_topic`` it is sent to the topic it came from, and with ``to`` to another
        one; then all groups that read this topic get it. Each is sent in one transaction with the record that says so:
        a second redrive, one at the same time, or one that was killed and begun again, sends none twice. For the
        options see `RedriveOptions`.
        """
        return Redrive(self._bus, self._following, self._writer, self._clock, selection, **options)

    async def redrive(self, selection: Selection, **options: Unpack[RedriveOptions]) -> Redriven:
        """All of `start_redrive`, and what it did."""
        return await self.start_redrive(selection, **options).run()
