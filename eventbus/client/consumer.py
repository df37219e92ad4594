"""The explicit consumer: a loop of one's own over a group or over chosen partitions."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
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
        self._buffer: deque[ConsumerRecord] = deque()
        self._fetched: deque[FetchedRecords] = deque()
        self._polled: dict[TopicPartition, int] = {}
        """Next offset per partition after what `poll` has returned."""
        self._polling = False

    @property
    def _consumer(self) -> BackendConsumer:
        if self._opened is None:
            raise ConfigError("this consumer is not open: use `async with bus.new_consumer(...) as consumer:`")
        return self._opened

    async def __aenter__(self) -> Consumer:
        self._opened = self._open_consumer()
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
        if opened is not None:
            await opened.aclose()

    # what to read ----------------------------------------------------------------------------------------------------

    async def subscribe(self, *topics: str, pattern: str | None = None) -> None:
        """Read all partitions of ``topics``, or of every topic whose whole name matches ``pattern``; new ones too."""
        self._forget_prefetched()
        await self._consumer.subscribe(topics, pattern)

    async def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; partitions added later are not taken up."""
        self._forget_prefetched()
        await self._consumer.assign([TopicPartition(*partition) for partition in partitions])

    def assignment(self) -> list[TopicPartition]:
        """The partitions being read."""
        return self._consumer.assignment()

    # reading ---------------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, max_records: int = 500) -> list[ConsumerRecord]:
        """Up to ``max_records`` records; an empty list when none came within ``timeout_ms``.

        Raises CorruptRecord, OffsetOutOfRange (``start="none"``), SerializationError (the position is past the record).
        """
        if self._polling:
            raise ConfigError("this consumer is already being polled by another task: one consumer, one task")
        self._polling = True
        try:
            if not self._fetched:
                await anyio.lowlevel.checkpoint()
                self._fetched.extend(await self._consumer.fetch(timeout_ms))
            return self._take(max_records)
        finally:
            self._polling = False

    def _take(self, max_records: int) -> list[ConsumerRecord]:
        records: list[ConsumerRecord] = []
        while self._fetched and len(records) < max_records:
            chunk = self._fetched[0]
            topic_partition = TopicPartition(chunk.topic, chunk.partition)
            for index in range(self._index_of(chunk, topic_partition), len(chunk)):
                if len(records) >= max_records:
                    break
                record = chunk.record(index)
                self._polled[topic_partition] = record.offset + 1
                records.append(self._deserialize(record))
            else:
                self._polled[topic_partition] = chunk.next_offset
                self._fetched.popleft()
        return records

    def _index_of(self, chunk: FetchedRecords, topic_partition: TopicPartition) -> int:
        polled = self._polled.get(topic_partition, 0)
        if not chunk.offsets or polled <= chunk.offsets[0]:
            return 0
        from bisect import bisect_left

        return bisect_left(chunk.offsets, polled)

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

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self

    async def __anext__(self) -> ConsumerRecord:
        while not self._buffer:
            self._buffer.extend(await self.poll(max_records=1))
        return self._buffer.popleft()

    def _forget_prefetched(self) -> None:
        self._buffer.clear()
        self._fetched.clear()
        self._polled.clear()

    # positions -------------------------------------------------------------------------------------------------------

    async def position(self, partition: TopicPartition) -> int:
        """The next offset `poll` returns of this partition."""
        for chunk in self._fetched:
            if (chunk.topic, chunk.partition) == partition and chunk.offsets:
                return chunk.offsets[self._index_of(chunk, TopicPartition(*partition))]
        return await self._consumer.position(TopicPartition(*partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        partition = TopicPartition(*partition)
        self._consumer.seek(partition, offset)
        self._fetched = deque(c for c in self._fetched if (c.topic, c.partition) != partition)
        self._polled.pop(partition, None)

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
        for partition in partitions:
            dropped = [c for c in self._fetched if (c.topic, c.partition) == partition and c.offsets]
            if dropped:  # what was fetched ahead is fetched again after the pause
                self.seek(partition, dropped[0].offsets[self._index_of(dropped[0], partition)])

    def resume(self, *partitions: TopicPartition) -> None:
        """Take up paused partitions again."""
        self._consumer.resume(partitions)

    async def lag(self, partition: TopicPartition) -> int:
        """Records between the position and the end of the partition."""
        end = await self._consumer.end_offsets([partition])
        return max(end[partition] - await self.position(partition), 0)

    # commits ---------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Store the next offset to read per partition; without ``offsets``, of everything `poll` has returned."""
        chosen: Mapping[TopicPartition, OffsetAndMetadata | int] = self._polled if offsets is None else offsets
        await self._consumer.commit(
            {
                TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
                for partition, offset in chosen.items()
            }
        )

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata]:
        """What the group has committed, of all assigned partitions when none is named; absent means never."""
        return await self._consumer.committed(partitions or self.assignment())
