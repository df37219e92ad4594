"""Keep the indexes of a log's dead letters up to date."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio

from dlq.index import NO_STATE, PartitionIndex, TopicIndex
from dlq.index_queries import row_of
from dlq.reading import POLL_RECORDS, WAIT_MS, Scanner, reader, records_at
from dlq.selection import LetterId, Selection, looks_dead
from dlq.state import LetterState, read_key, read_state
from eventbus import Consumer, ConsumerRecords, EventBus, IsolationLevel
from eventbus.broker import TopicSpec
from eventbus.errors import ConfigError, EventBusError, UnknownTopicOrPartition
from eventbus.ledger import ends_of, find_or_create, read_partitions, read_to_end
from eventbus.suggest import nearest
from eventbus.types import FetchedRecords, TopicPartition

if TYPE_CHECKING:
    from eventbus.broker import TopicDescription

_LETTERS_FETCH_BYTES = 262_144
"""Some thousand letters. Fetches stay small so that other tasks run in between."""
_MARKER = 1
"""Offsets that a transaction's marker takes after its records. Kafka writes it a moment after the commit returns."""


class StaleIndex(EventBusError):
    """The states that were read no longer exist. Retrying reads everything again."""


class Following:
    """Reads new dead letters, then the changes of their states."""

    def __init__(self, bus: EventBus, topics: Sequence[str] | None, state_topic: str) -> None:
        self._bus = bus
        self._chosen = topics
        self.state_topic = state_topic
        self._state = TopicPartition(state_topic, 0)
        self._state_topic_id = ""
        self.indexes: dict[str, TopicIndex] = {}
        self._scanners: dict[str, Scanner] = {}
        self._lock = anyio.Lock()

    # the topics ------------------------------------------------------------------------------------------------------

    async def catch_up(self) -> None:
        """Read everything up to the current end of the log."""
        async with self._lock:
            # Look up the end of the states before reading letters, so that every letter that a state refers to is
            # indexed.
            states_end = await self._look_for_states()
            topics = await self._look_for_topics()
            ends: dict[TopicPartition, int] = {}
            for found in topics:
                ends |= self._take_up(found)
            for name in self.indexes.keys() - {one.name for one in topics}:
                del self.indexes[name], self._scanners[name]
            await self._read_letters(ends)
            if self._states_until(states_end) < states_end:
                async with reader(self._bus, [self._state]) as consumer:
                    await self._read_states(consumer, states_end)

    async def _look_for_topics(self) -> list[TopicDescription]:
        if self._chosen is not None:
            return await self._bus.admin.describe_topics(self._chosen)
        own = {
            runner.failure_policy.recovery.dead_letter_topic
            for runner in self._bus.context.runners
            if runner.failure_policy is not None
        }
        return [
            one
            for one in await self._bus.admin.describe_topics()
            if not one.is_internal
            and (one.name in own or looks_dead(one.name, {key: str(e.value) for key, e in one.configs.items()}))
        ]

    def check(self, selection: Selection) -> None:
        """Raise ConfigError if the selection names topics that are not followed, in which nothing would be found."""
        named = {selection.topic} if selection.topic else {one.topic for one in selection.letter_ids() or ()}
        unknown = sorted(named - self.indexes.keys())
        if unknown:
            raise ConfigError(
                f"topic {unknown[0]!r} is not known to hold dead letters{nearest(unknown[0], self.indexes)}. If it "
                f"does, name it: DeadLetters(bus, topics=[{unknown[0]!r}])"
            )

    def _take_up(self, found: TopicDescription) -> dict[TopicPartition, int]:
        """Match the index with a topic's description. Return the end offsets of partitions with new letters."""
        index = self.indexes.get(found.name)
        if index is None or not self._fits(index, found):
            index = TopicIndex(found.name, found.topic_id)
        index.state_topic_id = self._state_topic_id
        if self.indexes.get(found.name) is not index:
            self.indexes[found.name] = index
            self._scanners[found.name] = Scanner(index)
        ends: dict[TopicPartition, int] = {}
        for one in found.partitions:
            partition = index.partition(one.partition)
            partition.trim(one.log_start_offset)
            if partition.next_offset < one.last_stable_offset:
                ends[TopicPartition(found.name, one.partition)] = one.last_stable_offset
        return ends

    def _fits(self, index: TopicIndex, found: TopicDescription) -> bool:
        """True if the index was built from this topic and this state topic."""
        ends = {one.partition: one.log_end_offset for one in found.partitions}
        return (
            index.topic_id == found.topic_id
            and all(one.next_offset <= ends.get(number, -1) for number, one in index.partitions.items())
            and (not index.states_until or index.state_topic_id == self._state_topic_id)
        )

    async def _read_letters(self, ends: Mapping[TopicPartition, int]) -> None:
        if not ends:
            return
        # Not a client's consumer, which would fetch values from a claim check's store. The index needs only headers.
        consumer = self._bus.context.reader(
            start="earliest", fetch_max_wait_ms=WAIT_MS, max_partition_fetch_bytes=_LETTERS_FETCH_BYTES
        )
        starts = {where: self._partition(where).next_offset for where in ends}
        await read_partitions(consumer, ends, self._take_letters, starts=starts)
        for where, end in ends.items():
            partition = self._partition(where)
            partition.next_offset = max(partition.next_offset, end)

    def _take_letters(self, records: FetchedRecords) -> None:
        self._scanners[records.topic].take(records.partition, records)

    def _partition(self, where: TopicPartition) -> PartitionIndex:
        return self.indexes[where.topic].partition(where.partition)

    # what became of them ---------------------------------------------------------------------------------------------

    async def catch_up_states(self, consumer: Consumer) -> None:
        """Read states up to the log end offset. Only the holder of the transactional id may call it."""
        async with self._lock:
            [end] = (await ends_of(self._bus.context.backend, [self._state], IsolationLevel.READ_UNCOMMITTED)).values()
            if end + _MARKER < self._states_until(end):
                raise StaleIndex(f"topic {self.state_topic!r} was deleted or cut while what it says was in use")
            await self._read_states(consumer, end)

    async def _look_for_states(self) -> int:
        """Return the end offset of the state topic, or 0 if it does not exist yet."""
        try:
            found = (await self._bus.admin.describe_topics([self.state_topic]))[0]
        except UnknownTopicOrPartition:
            self._state_topic_id = ""
            return 0
        self._state_topic_id = found.topic_id
        return found.partitions[0].last_stable_offset

    async def make_state_topic(self) -> None:
        """Create the state topic if necessary, and make sure that the indexes refer to it.

        Raises ConfigError if an existing topic is unsuitable.
        """
        name = self.state_topic
        found = await find_or_create(
            self._bus.context.backend, TopicSpec(name, 1, configs={"cleanup.policy": "compact"})
        )
        policy = found.configs.get("cleanup.policy")
        if len(found.partitions) != 1 or (policy is not None and policy.value != "compact"):
            raise ConfigError(
                f"topic {name!r} has {len(found.partitions)} partition(s), cleanup.policy={policy and policy.value}: "
                "what became of dead letters is kept in one partition, with cleanup.policy=compact. Name another topic "
                f"with DeadLetters(state_topic=...), or change it: eventbus topics alter {name} --config "
                "cleanup.policy=compact"
            )
        if found.topic_id != self._state_topic_id:
            await self.catch_up()

    async def _read_states(self, consumer: Consumer, end: int) -> None:
        begin = self._states_until(end)
        if begin >= end:
            return
        consumer.seek(self._state, begin)
        poll = partial(consumer.poll, max_records=POLL_RECORDS)
        await read_to_end(consumer, poll, {self._state: end}, self._take_states)
        position = await consumer.position(self._state)
        for index in self.indexes.values():
            index.states_until = max(index.states_until, position)  # our own writer may have written meanwhile

    def written(self, states: Iterable[tuple[LetterId, LetterState]], offsets: Sequence[int]) -> None:
        """Apply states that our own writer stored at these offsets, which follow those that were read last."""
        for (letter, state), offset in zip(states, offsets, strict=True):
            self.indexes[letter.topic].set_state(letter, state.status, offset)
        for index in self.indexes.values():
            index.states_until = offsets[-1] + 1 + _MARKER

    def _states_until(self, end: int) -> int:
        return min((index.states_until for index in self.indexes.values()), default=end)

    def _take_states(self, records: ConsumerRecords) -> None:
        for record in records:
            letter = read_key(record.key)
            index = None if letter is None else self.indexes.get(letter.topic)
            if letter is None or index is None:
                continue
            state = read_state(record.value)
            if state is not None and state.topic_id == index.topic_id:
                index.set_state(letter, state.status, record.offset)

    async def states(self, letters: Iterable[LetterId]) -> dict[LetterId, LetterState]:
        """Return the states of these letters. Letters without a state are omitted."""
        wanted: dict[int, LetterId] = {}
        for letter in letters:
            row = row_of(self.indexes, letter)
            if row is not None and row.state_at != NO_STATE:
                wanted[row.state_at] = letter
        found: dict[LetterId, LetterState] = {}
        if wanted:
            async for records in records_at(self._bus, {self._state: sorted(wanted)}):
                for record in records:
                    state = read_state(record.value)
                    if state is not None:
                        found[wanted[record.offset]] = state
        return found
