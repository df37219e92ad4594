"""The explicit consumer: a loop of one's own over a group or over chosen partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import anyio

from eventbus.backends.base import EARLIEST, LATEST, Backend, BackendConsumer, ConsumerConfig
from eventbus.errors import ConfigError, SerializationError
from eventbus.types import (
    ConsumerRecord,
    FetchedRecords,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    TopicPartition,
)
from serdes import Decode, Serde, bind_decoder, serde_for


class _Ahead:
    """Records fetched ahead of `poll`, and how many of them it has returned.

    The position belongs to the chunk: nothing remembered of a partition can hide records of a newer fetch.
    """

    __slots__ = ("chunk", "index", "topic_partition")

    def __init__(self, chunk: FetchedRecords) -> None:
        self.chunk = chunk
        self.index = 0
        self.topic_partition = TopicPartition(chunk.topic, chunk.partition)

    @property
    def position(self) -> int:
        """The next offset to return; beyond the last record, where the next fetch goes on."""
        offsets = self.chunk.offsets
        return offsets[self.index] if self.index < len(offsets) else self.chunk.next_offset


class Consumer:
    """Reads records in a loop of the caller's.

    Offsets are committed by `commit` alone: what is not committed is read again after a restart. Not for several
    tasks at once; a second `poll` while one waits is refused.
    """

    def __init__(
        self,
        backend: Backend,
        open_consumer: Callable[[], BackendConsumer],
        config: ConsumerConfig,
        topics: Sequence[str],
        *,
        pattern: str | None = None,
        key: Any = bytes,
        value: Any = bytes,
        serdes: Mapping[type, Serde] | None = None,
    ) -> None:
        self._backend = backend
        self._open_consumer = open_consumer
        self._opened: BackendConsumer | None = None
        self._config = config
        self._topics = topics
        self._pattern = pattern
        self._key_serde = None if key is bytes else serde_for(key, serdes)
        self._value_serde = None if value is bytes else serde_for(value, serdes)
        self._decoders: dict[tuple[str, bool], Decode] = {}
        self._ahead: deque[_Ahead] = deque()
        """Never holds a chunk that is used up, so that its first one has a record to return."""
        self._polled: dict[TopicPartition, int] = {}
        """Next offset per partition after what `poll` has returned: what `commit` stores, and nothing else."""
        self._polling = False

    @property
    def _consumer(self) -> BackendConsumer:
        if self._opened is None:
            raise ConfigError("this consumer is not open: use `async with bus.new_consumer(...) as consumer:`")
        return self._opened

    async def __aenter__(self) -> Consumer:
        self._opened = self._open_consumer()
        self._opened.on_revoked = self._forget
        try:
            if self._topics or self._pattern is not None:
                await self._opened.subscribe(self._topics, self._pattern)
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Give up the partitions. Commits nothing."""
        opened, self._opened = self._opened, None
        self._ahead.clear()
        self._polled.clear()
        if opened is not None:
            await opened.aclose()

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read all partitions of ``topics``, or of every topic whose whole name matches ``pattern``; new ones too.

        Partitions that were being read already go on where they are.
        """
        await self._change(lambda: self._consumer.subscribe(topics, pattern))

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; partitions added later are not taken up.

        Partitions that were being read already go on where they are.
        """
        wanted = [TopicPartition(*partition) for partition in partitions]
        await self._change(lambda: self._consumer.assign(wanted))

    async def _change(self, change: Callable[[], Awaitable[None]]) -> None:
        """Carry positions over a change of partitions: a backend may give up all of them and start anew."""
        assigned = self.assignment()
        self._give_back(assigned)
        positions = {partition: await self._consumer.position(partition) for partition in assigned}
        polled = self._polled.copy()
        await change()
        kept = positions.keys() & set(self.assignment())
        self._polled = {partition: polled[partition] for partition in polled.keys() & kept}
        for partition in kept:
            self._consumer.seek(partition, positions[partition])

    def _give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Have what was fetched ahead of these partitions fetched again: dropping it alone would lose it."""
        for ahead in [ahead for ahead in reversed(self._ahead) if ahead.topic_partition in partitions]:
            self._consumer.seek(ahead.topic_partition, ahead.position)  # of several of a partition the first counts
            self._ahead.remove(ahead)

    def _forget(self, partition: TopicPartition) -> None:
        self._ahead = deque(ahead for ahead in self._ahead if ahead.topic_partition != partition)
        self._polled.pop(partition, None)

    def assignment(self) -> list[TopicPartition]:
        """The partitions being read."""
        return self._consumer.assignment()

    # reading ---------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, max_records: int = 500) -> list[ConsumerRecord]:
        """Up to ``max_records`` records; an empty list when none came within ``timeout_ms``.

        Raises CorruptRecord, OffsetOutOfRange (``start="none"``) and SerializationError. The last one comes alone:
        readable records before it are returned first, the next `poll` raises it and the position is past the record.
        """
        if not self._ahead:
            await self._fetch(timeout_ms)
        return self._take(max_records)

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._ahead:
            await self._fetch(1_000)
        return self._take(1)[0]

    async def _fetch(self, timeout_ms: int) -> None:
        if self._polling:
            raise ConfigError("this consumer is already being polled by another task: one consumer, one task")
        self._polling = True
        try:
            await anyio.lowlevel.checkpoint()
            fetched = await self._consumer.fetch(timeout_ms)
        finally:
            self._polling = False
        for ahead in map(_Ahead, fetched):
            # The backend went back by itself (a reset, a topic created anew): the old offset means nothing here.
            if ahead.position < self._polled.get(ahead.topic_partition, 0):
                del self._polled[ahead.topic_partition]
            if ahead.chunk.offsets:
                self._ahead.append(ahead)

    def _take(self, max_records: int) -> list[ConsumerRecord]:
        """Up to ``max_records`` of what is there; the positions move with each record taken, never before."""
        records: list[ConsumerRecord] = []
        while self._ahead and len(records) < max_records:
            ahead = self._ahead[0]
            try:
                record = self._deserialize(ahead.chunk.record(ahead.index))
            except Exception as error:
                if records:
                    break  # these first: the next poll comes upon the same record and raises
                if isinstance(error, SerializationError):
                    self._step(ahead)
                raise
            self._step(ahead)
            records.append(record)
        return records

    def _step(self, ahead: _Ahead) -> None:
        ahead.index += 1
        self._polled[ahead.topic_partition] = ahead.position
        if ahead.index == len(ahead.chunk):
            self._ahead.popleft()

    def _deserialize(self, record: ConsumerRecord) -> ConsumerRecord:
        if self._key_serde is not None and record.key is not None:
            record.key = self._decode(record, record.key, self._key_serde, True)
        if self._value_serde is not None and record.value is not None:
            record.value = self._decode(record, record.value, self._value_serde, False)
        return record

    def _decode(self, record: ConsumerRecord, data: bytes, serde: Serde, is_key: bool) -> Any:
        decode = self._decoders.get((record.topic, is_key))
        if decode is None:
            decode = self._decoders[(record.topic, is_key)] = bind_decoder(serde, record.topic)
        try:
            return decode(data)
        except Exception as error:
            raise SerializationError(
                f"the {'key' if is_key else 'value'} of {record.topic}-{record.partition} offset {record.offset} "
                f"cannot be read: {error}"
            ) from error

    # positions -------------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """The next offset `poll` returns of this partition."""
        for ahead in self._ahead:
            if ahead.topic_partition == partition:
                return ahead.position
        return await self._consumer.position(TopicPartition(*partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``. `commit` then covers what `poll` returns from here on, not what it did before."""
        partition = TopicPartition(*partition)
        self._consumer.seek(partition, offset)
        self._forget(partition)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the first offset held; all partitions when none is named."""
        await self._seek_to(partitions, EARLIEST)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read only what comes from now on; all partitions when none is named."""
        await self._seek_to(partitions, LATEST)

    async def _seek_to(self, partitions: Sequence[TopicPartition], at: int) -> None:
        wanted = list(partitions) or self.assignment()
        for partition, found in (await self._backend.list_offsets(dict.fromkeys(wanted, at))).items():
            self.seek(partition, found.offset)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time; None where there is none."""
        found = await self._backend.list_offsets(times_ms)
        return {partition: at if at.offset >= 0 else None for partition, at in found.items()}

    def pause(self, *partitions: TopicPartition) -> None:
        """Return nothing of these partitions until `resume`."""
        self._consumer.pause(partitions)
        self._give_back(partitions)

    def resume(self, *partitions: TopicPartition) -> None:
        """Take up paused partitions again."""
        self._consumer.resume(partitions)

    async def lag(self, partition: TopicPartition) -> int:
        """Records between the position and the end of the partition."""
        end = await self._consumer.end_offsets([partition])
        return max(end[partition] - await self.position(partition), 0)

    # commits ---------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Store the next offset to read per partition; without ``offsets``, of everything `poll` has returned.

        Partitions given up since, or whose topic was deleted, are left out.
        """
        chosen: Mapping[TopicPartition, OffsetAndMetadata | int]
        if offsets is None:
            assigned = self.assignment()
            chosen = {partition: self._polled[partition] for partition in assigned if partition in self._polled}
        else:
            chosen = offsets
        await self._consumer.commit(
            {
                TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
                for partition, offset in chosen.items()
            }
        )

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of all assigned partitions when none is named; absent means never."""
        return await self._consumer.committed(partitions or self.assignment())
