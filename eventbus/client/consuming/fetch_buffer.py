"""Buffer the records that a consumer has fetched until `poll` returns them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, cast

from eventbus.errors import ConfigError, EventBusError, SerializationError
from eventbus.types import ConsumerRecord, FetchedRecords, KeyT, OffsetAndMetadata, TopicPartition, ValueT
from serdes import Serde, serde_for
from serdes.base import Decode, SchemaNeeded, SchemaSerde, bind_decoder, for_keys
from serdes.choose import likely_cause
from serdes.framing import with_prefix

if TYPE_CHECKING:
    from eventbus.client.consuming.restoring import Restoring

_MOST_RESTORED_BYTES = 64 << 20
"""Maximum size of values restored for one `poll`. The records themselves only hold small references."""


def partition_of(given: Any) -> TopicPartition:
    """Return a partition that may be given as a pair. Raises ConfigError."""
    if isinstance(given, TopicPartition):
        return given
    if isinstance(given, tuple) and len(cast("tuple[Any, ...]", given)) == 2:
        return TopicPartition(*cast("tuple[str, int]", given))
    if isinstance(given, (list, set, tuple)):
        raise ConfigError(f"{given!r} is not a partition: pass several as separate arguments, pause(*partitions)")
    raise ConfigError(f"{given!r} is not a partition: write TopicPartition({given!r}, 0)")


class ConsumerRecords(list[ConsumerRecord[KeyT, ValueT]], Generic[KeyT, ValueT]):
    """The records of one `poll`, in order per partition."""

    __slots__ = ()

    def partitions(self) -> list[TopicPartition]:
        """Return the partitions of the records."""
        return sorted({record.topic_partition for record in self})

    def by_partition(self) -> dict[TopicPartition, list[ConsumerRecord[KeyT, ValueT]]]:
        """Return the records of each partition, in order."""
        found: dict[TopicPartition, list[ConsumerRecord[KeyT, ValueT]]] = {}
        for record in self:
            found.setdefault(record.topic_partition, []).append(record)
        return found

    def next_offsets(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the next offset to read per partition: commit it once all of these records are finished."""
        return {record.topic_partition: OffsetAndMetadata(record.next_offset) for record in self}


class RecordDecoder:
    """Decodes keys and values as the consumer's types."""

    def __init__(self, key: Any, value: Any, serdes: Mapping[type, Serde] | None) -> None:
        self._key_serde = None if key is bytes else for_keys(serde_for(key, serdes))
        self._value_serde = None if value is bytes else serde_for(value, serdes)
        self._key_schemas = self._key_serde if isinstance(self._key_serde, SchemaSerde) else None
        self._value_schemas = self._value_serde if isinstance(self._value_serde, SchemaSerde) else None
        self.waits = self._key_schemas is not None or self._value_schemas is not None
        """True if schemas may have to be fetched first."""
        self._decoders: dict[tuple[str, bool], Decode] = {}

    def decode(self, record: ConsumerRecord) -> ConsumerRecord:
        """Return the record with decoded key and value. Raises SerializationError."""
        if self.waits:
            self._take_names(record)
        if self._key_serde is not None and record.key is not None:
            record.key = self._decode(record, record.key, self._key_serde, True)
        if self._value_serde is not None and record.value is not None:
            record.value = self._decode(record, record.value, self._value_serde, False)
        return record

    def _take_names(self, record: ConsumerRecord) -> None:
        """Prepend the schema ids from headers to key and value."""
        key, value = self._key_schemas, self._value_schemas
        if key is not None and key.header is not None and record.key is not None:
            record.key = with_prefix(record.key, record.headers, key.header)
        if value is not None and value.header is not None and record.value is not None:
            record.value = with_prefix(record.value, record.headers, value.header)

    def needed(self, chunk: FetchedRecords, start: int) -> SchemaNeeded | None:
        """Return the schemas that must be fetched before the records from ``start`` on can be decoded."""
        found: SchemaNeeded | None = None
        for serde, column in ((self._key_schemas, chunk.keys), (self._value_schemas, chunk.values)):
            if serde is None or found is not None:
                continue
            values = column[start:]
            if serde.header is not None and chunk.headers is not None:
                headers = chunk.headers[start:]
                values = [
                    None if value is None else with_prefix(value, of_it, serde.header)
                    for value, of_it in zip(values, headers, strict=True)
                ]
            found = serde.needed(chunk.topic, values)
        return found

    def _decode(self, record: ConsumerRecord, data: bytes, serde: Serde, is_key: bool) -> Any:
        decode = self._decoders.get((record.topic, is_key))
        if decode is None:
            decode = self._decoders[(record.topic, is_key)] = bind_decoder(serde, record.topic)
        try:
            return decode(data)
        except Exception as error:  # a serde is the user's code: whatever it raises, the record is unreadable
            cause = likely_cause(serde, data)
            raise SerializationError(
                f"the {'key' if is_key else 'value'} of {record.topic}-{record.partition} offset {record.offset} "
                f"cannot be read: {error}{cause and f'. {cause}'}"
            ) from error


class _Chunk:
    """The records of one fetch, and the number returned so far.

    The position is part of the fetch, so that stale state of a partition cannot hide records of a newer fetch.
    """

    __slots__ = ("index", "marked", "records", "restored", "topic_partition")

    def __init__(self, records: FetchedRecords, marked: Collection[int] = ()) -> None:
        self.records = records
        self.index = 0
        self.marked = marked
        """Indexes of records to restore before they are returned."""
        self.restored: dict[int, ConsumerRecord | Exception] = {}
        """Maps the index of a record to the restored record, or to the error of restoring it."""
        self.topic_partition = TopicPartition(records.topic, records.partition)

    @property
    def position(self) -> int:
        """The next offset to return, or after the last record the offset of the next fetch."""
        offsets = self.records.offsets
        return offsets[self.index] if self.index < len(offsets) else self.records.next_offset

    @property
    def fails(self) -> bool:
        """True if the next record could not be restored."""
        return isinstance(self.restored.get(self.index), Exception)

    def take_restored(self) -> ConsumerRecord:
        """Return the next record. Raises the error of restoring it, which may be retried."""
        found = self.restored.pop(self.index)
        if isinstance(found, Exception):
            raise found
        return found


def _is_permanent(error: Exception) -> bool:
    """True if a retry cannot help: the value is gone or damaged, not just its store unavailable."""
    return isinstance(error, EventBusError) and not error.retriable


class FetchBuffer:
    """Records fetched ahead of `poll`, and the offsets of those it has returned."""

    def __init__(self, decoding: RecordDecoder, restoring: Restoring) -> None:
        self._decoding = decoding
        self._restoring = restoring
        self._chunks: deque[_Chunk] = deque()
        """Fetches with records left. Used-up ones are removed, so that the first always has a record to return."""
        self.unchecked = False
        """True if records may need schemas that were not fetched yet; see `needed`."""
        self.returned: dict[TopicPartition, int] = {}
        """The next offset after the records that `poll` has returned, by partition. A commit stores exactly this."""

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, fetched: Iterable[FetchedRecords]) -> None:
        """Add the records of a fetch after those that are buffered."""
        for records in fetched:
            chunk = _Chunk(records, self._restoring.marked(records))
            # The backend moved the position (a reset, or a topic created again), so the old offset means nothing.
            if chunk.position < self.returned.get(chunk.topic_partition, 0):
                del self.returned[chunk.topic_partition]
            if chunk.records.offsets:
                self._chunks.append(chunk)
                self.unchecked = self._decoding.waits

    def passed(self, positions: Mapping[TopicPartition, int]) -> None:
        """Have a commit cover offsets that hold no record for a reader, once all records before them are returned."""
        for partition, position in positions.items():
            before = [chunk for chunk in self._chunks if chunk.topic_partition == partition]
            if before:
                before[-1].records.next_offset = position
            else:
                self.returned[partition] = position

    @property
    def is_marked(self) -> bool:
        """True if the next record must be restored first; see `restore`."""
        chunks = self._chunks
        return bool(chunks) and chunks[0].index in chunks[0].marked and chunks[0].index not in chunks[0].restored

    async def restore(self, max_records: int) -> None:
        """Restore the records that `take` may return next.

        `take` stops before a marked record that is not restored. If such a record is the first and cannot be restored,
        it raises.
        """
        size, left = 0, max_records
        for chunk in tuple(self._chunks):
            for index in range(chunk.index, min(chunk.index + left, len(chunk.records))):
                if index not in chunk.marked or index in chunk.restored:
                    continue
                record = await self._restored(chunk.records.record(index))
                chunk.restored[index] = record
                if isinstance(record, Exception):
                    return
                size += len(record.value or b"")
                if size >= _MOST_RESTORED_BYTES:
                    return
            left -= len(chunk.records) - chunk.index
            if left <= 0:
                return

    async def _restored(self, record: ConsumerRecord) -> ConsumerRecord | Exception:
        try:
            return await self._restoring.restored(record)
        except Exception as error:  # a store of the user's may raise anything
            return error

    def needed(self) -> SchemaNeeded | None:
        """Return the schemas that must be fetched before these records can be decoded."""
        for chunk in self._chunks:
            found = self._decoding.needed(chunk.records, chunk.index)
            if found is not None:
                return found
        return None

    def take(self, max_records: int) -> ConsumerRecords:
        """Return up to ``max_records`` buffered records. Positions move with each record taken.

        Raises SerializationError separately: records before the unreadable one are returned first.
        """
        records = ConsumerRecords()
        chunks = self._chunks
        while chunks and len(records) < max_records:
            chunk = chunks[0]
            is_marked = bool(chunk.marked) and chunk.index in chunk.marked
            if is_marked and (chunk.index not in chunk.restored or (records and chunk.fails)):
                break
            try:
                read = chunk.take_restored() if is_marked else chunk.records.record(chunk.index)
                record = self._decoding.decode(read)
            except Exception as error:  # a serde may raise anything
                if records:
                    break  # return these first; the next poll reaches the record again and raises
                if isinstance(error, SerializationError) or (is_marked and _is_permanent(error)):
                    self._step(chunk)
                raise
            self._step(chunk)
            records.append(record)
        return records

    def _step(self, chunk: _Chunk) -> None:
        chunk.index += 1
        self.returned[chunk.topic_partition] = chunk.position
        if chunk.index == len(chunk.records):
            self._chunks.popleft()

    def position(self, partition: TopicPartition) -> int | None:
        """Return the next offset of a partition, if a record of it is buffered."""
        for chunk in self._chunks:
            if chunk.topic_partition == partition:
                return chunk.position
        return None

    def give_back(self, partitions: Collection[TopicPartition], seek: Callable[[TopicPartition, int], object]) -> None:
        """Drop the buffered records of these partitions and seek back, so that they are fetched again."""
        for chunk in [chunk for chunk in reversed(self._chunks) if chunk.topic_partition in partitions]:
            # among several chunks of a partition, the first one is sought last and counts
            seek(chunk.topic_partition, chunk.position)
            self._chunks.remove(chunk)

    def forget(self, partition: TopicPartition) -> None:
        """Drop the buffered records and the returned offset of a partition."""
        self._chunks = deque(chunk for chunk in self._chunks if chunk.topic_partition != partition)
        self.returned.pop(partition, None)

    def keep(self, returned: Mapping[TopicPartition, int]) -> None:
        """Replace the returned offsets, after a change of the partitions."""
        self.returned = dict(returned)

    def clear(self) -> None:
        """Drop all buffered records and returned offsets."""
        self._chunks.clear()
        self.returned.clear()
