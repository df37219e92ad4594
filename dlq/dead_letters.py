"""The dead letters of a log: list and group them, redrive, edit, park and resolve them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Unpack

import msgspec
from msgspec import UNSET, UnsetType

from dlq import index_queries
from dlq.changes import Edit, Mark
from dlq.following import Following
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
"""Number of letters whose status changes in one transaction."""


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class DeadLetters:
    """The dead letters in a bus's log, including those written by other frameworks.

    ::

        async with EventBus("file://./data") as bus:
            letters = DeadLetters(bus)
            for case in await letters.groups():
                print(case.count, case.handler, case.error_class, case.top_frame)
            done = await letters.redrive(Selection(handler="bill"), by="ann", note="prices are back")

    ``topics`` are the topics that hold dead letters. None means those of the bus's own handlers and every topic that
    looks like one, by its name (``dlq.*``, ``*-dlq``, ``*.DLT``, ``*_error``, ...) or by Kafka's config for dead-letter
    topics. Dead letters are never changed: their statuses are kept in ``state_topic``. Each call reads only what is new
    since the last one. The index is kept in memory.
    """

    def __init__(
        self,
        bus: EventBus,
        topics: str | Sequence[str] | None = None,
        state_topic: str = STATE_TOPIC,
        *,
        clock: Callable[[], int] = _system_ms,
    ) -> None:
        """``clock`` returns milliseconds since the epoch."""
        chosen = [topics] if isinstance(topics, str) else topics
        self._bus = bus
        self._clock = clock
        self._following = Following(bus, chosen, state_topic)
        self._writer = StateWriter(bus, self._following)
        self._retry_topics = RetryTopics(bus)

    # looking ---------------------------------------------------------------------------------------------------------

    async def topics(self) -> list[DeadLetterTopic]:
        """Return the topics that hold dead letters, with a summary of their contents."""
        await self._following.catch_up()
        return index_queries.topics_of(self._following.indexes)

    async def waiting(self) -> list[WaitingRecords]:
        """Return the records that wait in the log for their next try, by topic and group. They are not dead letters."""
        return await self._retry_topics.waiting()

    async def groups(self, topic: str | None = None, *, selection: Selection | None = None) -> list[Case]:
        """Group the selected letters by handler, error class and place in the code; the largest group comes first.

        Without a selection, letters of every status are counted. ``contains`` requires reading every letter that may
        match.
        """
        chosen = selection or Selection(status=None)
        if topic is not None:
            chosen = msgspec.structs.replace(chosen, topic=topic)
        await self._following.catch_up()
        self._following.check(chosen)
        indexes = self._following.indexes
        if chosen.ids is None and chosen.limit is None and not self._needs_letters(chosen):
            return index_queries.groups_of(indexes, chosen)
        ids = [id async for batch in self._ids(chosen) for id in batch]
        return index_queries.groups_of_ids(indexes, ids)

    async def letters(self, selection: Selection, *, limit: int | None = None) -> AsyncGenerator[DeadLetter]:
        """Yield the selected letters by topic, partition and offset: ``async for letter in letters.letters(...):``."""
        limits = [bound for bound in (limit, selection.limit) if bound is not None]
        chosen = msgspec.structs.replace(selection, limit=min(limits, default=None))
        await self._following.catch_up()
        self._following.check(chosen)
        wanted = index_queries.offsets_of(self._following.indexes, chosen)
        async with aclosing(selected(self._bus, wanted, chosen)) as batches:
            async for batch in batches:
                for letter in batch:
                    yield letter

    async def get(self, id: str) -> DeadLetter:
        """Return the letter with this id, "topic/partition/offset". Raises ConfigError if it does not exist."""
        letter = LetterId.of(id)
        found = (await self._bus.admin.describe_topics([letter.topic]))[0]
        if letter.partition < len(found.partitions):
            async with aclosing(records_at(self._bus, {letter.topic_partition: [letter.offset]})) as batches:
                async for records in batches:
                    return dead_letter(records[0])
        raise ConfigError(f"there is no dead letter {id}: retention has removed it, or the id is another topic's")

    async def payload(self, letter: DeadLetter) -> bytes | None:
        """Return the letter's value, or that of its source record if the letter is a reference. None is a tombstone.

        Raises PayloadGone if the source record no longer exists.
        """
        return await payload_of(self._bus, letter)

    async def history(self, id: str) -> tuple[Step, ...]:
        """Return the steps taken on a letter, oldest first: who, when, what, and the note. Empty if there were none."""
        letter = LetterId.of(id)
        await self._following.catch_up()
        state = (await self._following.states([letter])).get(letter)
        return () if state is None else state.steps

    async def statuses(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the `dlq.selection.STATUSES` of these letters. Letters that no longer exist are omitted."""
        await self._following.catch_up()
        rows = {id: index_queries.row_of(self._following.indexes, LetterId.of(id)) for id in ids}
        return {id: STATUSES[row.status] for id, row in rows.items() if row is not None}

    async def rates(
        self, since_ms: int, bucket_ms: int, count: int, *, topic: str | None = None
    ) -> dict[str, list[int]]:
        """Count failures by topic in each of ``count`` intervals of ``bucket_ms``, starting at ``since_ms``."""
        if bucket_ms < 1 or count < 1:
            raise ConfigError(f"bucket_ms={bucket_ms}, count={count}: both are at least 1")
        await self._following.catch_up()
        self._following.check(Selection(topic=topic))
        indexes = self._following.indexes
        return {
            name: index.rates(since_ms, bucket_ms, count) for name, index in indexes.items() if topic in (None, name)
        }

    def _needs_letters(self, selection: Selection) -> bool:
        """True if the letters themselves must be read, because the index cannot decide what is selected."""
        names = (selection.case, selection.handler, selection.group, selection.error_class)
        return selection.contains is not None or (
            any(name is not None for name in names)
            and any(OVERFLOW in index.cases for index in self._following.indexes.values())
        )

    async def _ids(self, selection: Selection) -> AsyncGenerator[list[LetterId]]:
        wanted = index_queries.offsets_of(self._following.indexes, selection)
        if self._needs_letters(selection):
            async with aclosing(selected(self._bus, wanted, selection)) as batches:
                async for batch in batches:
                    yield [*map(id_of, batch)]
            return
        left = selection.limit
        for where, offsets in wanted.items():
            chosen = offsets[:left]
            yield [LetterId(*where, offset) for offset in chosen]
            left = None if left is None else left - len(chosen)

    # doing -----------------------------------------------------------------------------------------------------------

    async def resolve(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Mark letters as resolved: no further action is needed. Return how many. They stay in their topic."""
        return await self._mark("resolved", selection, note, by)

    async def park(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Set letters aside for an operator. `redrive` and `resolve` skip them unless the selection names "parked"."""
        return await self._mark("parked", selection, note, by)

    async def reopen(self, selection: Selection, *, note: str = "", by: str = "") -> int:
        """Set the status of these letters back to "open"."""
        return await self._mark("open", selection, note, by)

    async def _mark(self, status: str, selection: Selection, note: str, by: str) -> int:
        new_step(status, 0, by=by, note=note)  # reject texts that are too long before anything is changed
        await self._following.catch_up()
        self._following.check(selection)
        count = 0
        async with self._writer:
            # Collect all ids before the first write, because the writes change which letters the selection matches.
            ids = [id async for batch in self._ids(selection) for id in batch]
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
        """Send a letter with changed content to the group that failed. Return where it was written.

        It is sent through the group's retry topic. With ``whole_topic`` it is sent to its source topic and with ``to``
        to the given topic, where all groups get it. Parts that are not given stay as they are; ``value=None`` is a
        tombstone. The letter itself stays in its topic with the status "edited".

        Raises ConfigError if the letter has already been redriven, edited or resolved, or if `redrive` would leave it
        out; SerializationError if the value names a schema and cannot be decoded with it; PayloadGone if the letter
        holds only a reference to a record that no longer exists.
        """
        step = new_step("edited", self._clock(), by=by, note=note)
        letter = await self.get(id)
        edit = Edit(self._bus, self._following, letter, step)
        await edit.prepare(value, key, headers, to=to, whole_topic=whole_topic, allow=allow)
        async with self._writer:
            return await edit.write(self._writer)

    def start_redrive(self, selection: Selection, **options: Unpack[RedriveOptions]) -> Redrive:
        """Return a redrive that can be paused and cancelled: ``async with letters.start_redrive(...) as run:``.

        Each selected letter is sent to the group that failed, through its retry topic, unchanged except for headers
        that state where it came from. With ``whole_topic`` it is sent to its source topic, and with ``to`` to the given
        topic, where all groups get it. The record and the letter's new status are written in one transaction, so later,
        concurrent and restarted redrives send no letter twice. See `RedriveOptions` for the options.
        """
        return Redrive(self._bus, self._following, self._writer, self._clock, selection, **options)

    async def redrive(self, selection: Selection, **options: Unpack[RedriveOptions]) -> Redriven:
        """Redrive all selected letters and return the totals. The options are those of `start_redrive`."""
        return await self.start_redrive(selection, **options).run()
