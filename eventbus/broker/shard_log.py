"""A shard and the partition that holds its records; executes the pattern of `eventbus.coordinator.shard`."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from eventbus.broker.latest_records import BadRecord, LatestRecords, decode
from eventbus.coordinator import Decision, IdentifyingShard, Shard, TransactionalShard
from eventbus.coordinator.shard import CoordinatorRecord, ReplyT_co
from eventbus.errors import CorruptRecord, KafkaError
from eventbus.log.checkpoints import COORDINATOR_STATE
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.storage import Storage, read_whole, storage_error, write_atomic
from eventbus.records import BatchBuilder, ControlType, iter_batches, read_header, read_marker
from eventbus.records.batch import RecordBatch
from eventbus.records.single import build_single
from eventbus.types import Compression, ProducerIdAndEpoch, TopicPartition

_logger = logging.getLogger("eventbus.broker")

ShardT_co = TypeVar("ShardT_co", covariant=True, bound=Shard)

Append = Callable[[PartitionLog, bytearray, int], AppendInfo]
"""Stores a shard's batch at ``now_ms`` in the log, without policies or size limits."""

AppendMarker = Callable[[TopicPartition, ProducerIdAndEpoch, bool, int, int], "AppendInfo | None"]
"""Ends a producer's transaction on a partition: committed or not, with a coordinator epoch, at ``now_ms``. Returns
None if the partition is gone."""

SAVE_RECORDS = 1_000
"""The latest records are saved after this many batches, or after twice their own number if that is more: opening
reads no more than that."""
_SAVE_RATIO = 2
_CLOSE_RATIO = 16
"""At close, a sixteenth of them is enough: a process that writes one record must not write out a large state."""
_LOAD_BYTES = 1 << 20
_NEVER = 1 << 62
_ADVICE = (
    "the log's own bookkeeping cannot be read, so it is not opened. "
    "Restore the partition from a copy, or use the version that wrote it; if its bytes are damaged, "
    "`eventbus log repair DIR` shows what giving them up costs"
)


class _EveryRecord(LatestRecords):
    """Replays each record at once instead of the last of each key, so that `check` sees the whole log."""

    __slots__ = ("_shard",)

    def __init__(self, shard: Shard) -> None:
        super().__init__()
        self._shard = shard

    def add(self, offset: int, key: bytes, value: bytes | None) -> None:
        self._shard.replay(key, value)

    def add_pending(self, producer_id: int, offset: int, key: bytes, value: bytes | None) -> None:
        assert isinstance(self._shard, TransactionalShard)
        self._shard.replay_pending(producer_id, key, value)

    def complete_transaction(self, producer_id: int, committed: bool) -> None:
        if isinstance(self._shard, TransactionalShard):
            self._shard.complete_transaction(producer_id, committed)


class ShardLog(Generic[ShardT_co]):
    """A shard and its partition. Nothing else writes to either."""

    __slots__ = (
        "_append",
        "_append_marker",
        "_latest",
        "_replayed_offset",
        "_save_at",
        "_storage",
        "_unsaved_count",
        "log",
        "shard",
    )

    def __init__(
        self,
        shard: ShardT_co,
        log: PartitionLog,
        append: Append,
        append_marker: AppendMarker | None = None,
        storage: Storage | None = None,
    ) -> None:
        """``storage`` holds the log; the latest records are saved there if it is durable."""
        self.shard = shard
        self.log = log
        self._append = append
        self._append_marker = append_marker
        self._storage = storage if storage is not None and storage.durable else None
        self._latest: LatestRecords | None = None
        """None before `load`, and if nothing is saved."""
        self._unsaved_count = 0
        self._save_at = SAVE_RECORDS if self._storage is not None else _NEVER
        self._replayed_offset = log.log_start_offset

    def __repr__(self) -> str:
        return f"{self.log.topic_partition}@{self._replayed_offset} {self.shard!r}"

    def execute(self, decision: Decision[ReplyT_co], now_ms: int, append: Append | None = None) -> ReplyT_co:
        """Store the decision's records in one batch, then apply them. Nothing has changed if this raises.

        ``append`` replaces the usual way to store, for this call.
        """
        if decision.records:
            info = (append or self._append)(self.log, _batch(decision.records, now_ms), now_ms)
            # The state changes only by replaying stored records, as after a restart, so the two cannot differ. If the
            # append raises (a full disk), the state is unchanged and the caller gets the error.
            for key, value in decision.records:
                self.shard.replay(key, value)
            if self._latest is not None:
                self._latest.add_batch(info.base_offset, decision.records)
            self._appended(info)
        return decision.reply

    def execute_in_transaction(
        self: ShardLog[TransactionalShard], decision: Decision[ReplyT_co], producer: ProducerIdAndEpoch, now_ms: int
    ) -> ReplyT_co:
        """Execute as part of the producer's open transaction: the records stay pending until it ends."""
        if decision.records:
            info = self._append(self.log, _batch(decision.records, now_ms, producer), now_ms)
            for key, value in decision.records:
                self.shard.replay_pending(producer.producer_id, key, value)
            latest = self._latest
            if latest is not None:
                for offset, (key, value) in enumerate(decision.records, info.base_offset):
                    latest.add_pending(producer.producer_id, offset, key, value)
            self._appended(info)
        return decision.reply

    def end_transaction(
        self: ShardLog[TransactionalShard],
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
    ) -> AppendInfo | None:
        """Store the marker that ends the producer's transaction here, then apply or drop the pending records."""
        assert self._append_marker is not None, "a shard that takes part in transactions knows how to store markers"
        info = self._append_marker(self.log.topic_partition, producer, committed, coordinator_epoch, now_ms)
        # The marker is stored, and the pending records count from now on. The reverse order could show offsets of a
        # transaction whose marker a full disk has refused.
        if info is not None:
            self.shard.complete_transaction(producer.producer_id, committed)
            if self._latest is not None:
                self._latest.complete_transaction(producer.producer_id, committed)
            self._appended(info)
        return info

    def _appended(self, info: AppendInfo) -> None:
        """Count batches that were appended and replayed, and save the latest records if there are enough."""
        self._replayed_offset = info.last_offset + 1
        # A save at every batch would write the whole state again and again. With a limit proportional to the state, the
        # cost per record is constant.
        self._unsaved_count += 1
        if self._unsaved_count >= self._save_at:
            self._save()

    # opening ---------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Bring the shard to the end of the log: replay the saved records, if there are any, and the log after them.

        Damage is an error for a human: a group that silently starts over reads everything twice, or skips it.
        """
        latest = self._load_saved() or LatestRecords(self._identify())
        saved_offset = self._replayed_offset
        self._read_log(latest)
        try:
            latest.replay(self.shard)
        except BadRecord as error:
            raise self._corrupt(error.offset, error) from error
        if self._storage is None:
            return
        self._latest = latest
        self._unsaved_count = self._replayed_offset - saved_offset
        self._set_limit()
        if self._unsaved_count >= self._save_at:
            self._save()

    def _identify(self) -> Callable[[bytes, bytes | None], tuple[bytes, bool]] | None:
        return self.shard.identify if isinstance(self.shard, IdentifyingShard) else None

    def _read_log(self, latest: LatestRecords) -> None:
        """Replay the log from the replayed offset on."""
        log = self.log
        while self._replayed_offset < log.log_end_offset:
            buffer = log.read(self._replayed_offset, _LOAD_BYTES, max_offset=log.log_end_offset)
            before = self._replayed_offset
            # Recovery has verified the checksums of everything after the recovery point, and flushed data before it is
            # read back as written. Verifying again would double the time to open.
            for batch in iter_batches(buffer, verify=False):
                # The first batch may begin before the offset that was asked for: reads return whole batches.
                if batch.header.last_offset >= self._replayed_offset:
                    self._add(batch, latest)
                    self._replayed_offset = batch.header.next_offset
            if self._replayed_offset <= before:
                # Without this check a gap at the end would make the loop read the same bytes forever.
                raise CorruptRecord(f"{log.topic_partition}: no batch at offset {before}; {_ADVICE}")

    def _add(self, batch: RecordBatch, latest: LatestRecords) -> None:
        header, first_offset = batch.header, self._replayed_offset
        offset = header.base_offset
        try:
            columns = batch.columns()
            if header.is_control:
                marker = read_marker(columns.keys[0], columns.values[0]) if columns.keys else None
                if marker is not None:
                    latest.complete_transaction(header.producer_id, marker.control_type is ControlType.COMMIT)
                return
            for offset, key, value in zip(columns.offsets, columns.keys, columns.values, strict=True):
                # These records of the batch are in the saved state already.
                if offset < first_offset:
                    continue
                if header.is_transactional:
                    latest.add_pending(header.producer_id, offset, key or b"", value)
                else:
                    latest.add(offset, key or b"", value)
        except ValueError as error:
            raise self._corrupt(offset, error) from error

    def _corrupt(self, offset: int, error: ValueError) -> CorruptRecord:
        return CorruptRecord(f"{self.log.topic_partition}, offset {offset}: {error}; {_ADVICE}")

    # the saved records -----------------------------------------------------------------------------------------------

    @property
    def _path(self) -> str:
        return f"{self.log.directory}/{COORDINATOR_STATE}"

    def close(self) -> None:
        """Save the latest records for the next opening, if enough of them are new. Call this before the log closes."""
        if self._latest is not None and self._unsaved_count * _CLOSE_RATIO > len(self._latest):
            self._save()

    def _set_limit(self) -> None:
        if self._latest is not None:
            self._save_at = max(SAVE_RECORDS, _SAVE_RATIO * len(self._latest))

    def _save(self) -> None:
        """Write the latest records to their file. Errors are not raised, because the file only saves work.

        The log may end before them after a crash. The next opening detects that, and removes the file.
        """
        latest, storage = self._latest, self._storage
        # After a failed flush, what the log holds is unknown. A saved state could contain records that are not on disk.
        if latest is None or storage is None or self.log.poisoned:
            return
        self._unsaved_count = 0
        self._set_limit()
        try:
            # The CRC of the last batch ties the file to this log. Offsets alone are not enough: after a crash that lost
            # the end of the log, other records get the same offsets. So the file needs no flush.
            data = latest.encode(self._replayed_offset, self._last_batch_crc(self._replayed_offset))
            write_atomic(storage, self._path, data, sync=False)
        except (OSError, KafkaError) as error:
            _logger.debug("%s is not written: %s", self._path, error)
            with contextlib.suppress(OSError):
                storage.remove(f"{self._path}.tmp")

    def _last_batch_crc(self, end_offset: int) -> int:
        """Return the CRC of the batch that ends at an offset. Raises KafkaError if there is none."""
        header = read_header(self.log.read(end_offset - 1, 1, max_offset=end_offset))
        if header.next_offset != end_offset:
            raise CorruptRecord(f"{self.log.topic_partition}: no batch ends at offset {end_offset}")
        return header.crc

    def _load_saved(self) -> LatestRecords | None:
        """Return the saved records, if they match this log. A file that does not match is durably removed.

        Otherwise it might match later: if a crash removed the end of the log, other records will have those offsets.
        """
        storage, log = self._storage, self.log
        if storage is None:
            return None
        try:
            data = read_whole(storage, self._path)
        except OSError as error:
            _logger.warning("%s cannot be read, so all of the log is: %s", self._path, error)
            return None
        if data is None:
            return None
        saved = decode(data, self._identify())
        if saved is not None and log.log_start_offset < saved.next_offset <= log.log_end_offset:
            with contextlib.suppress(KafkaError):
                if self._last_batch_crc(saved.next_offset) == saved.last_batch_crc:
                    self._replayed_offset = saved.next_offset
                    return saved.records
        _logger.info("%s is damaged, or not of this log: all of the log is read", self._path)
        try:
            storage.remove(self._path)
            storage.sync_dir(log.directory)
        except OSError as error:
            raise storage_error(error, f"removing {self._path}") from error
        return None

    # -----------------------------------------------------------------------------------------------------------------

    def check(self, fresh: Callable[[], ShardT_co]) -> None:
        """Raise AssertionError unless replaying every record of the log gives the live state.

        Replaying only the latest records must give it, too.
        """
        replayed = ShardLog(fresh(), self.log, self._append)
        replayed._read_log(_EveryRecord(replayed.shard))
        assert repr(replayed) == repr(self), f"replay differs from the live state: {replayed!r}, live {self!r}"
        if self._latest is not None:
            shard = fresh()
            self._latest.replay(shard)
            assert repr(shard) == repr(self.shard), f"the latest records give {shard!r}, live {self.shard!r}"


def _batch(records: Sequence[CoordinatorRecord], now_ms: int, producer: ProducerIdAndEpoch | None = None) -> bytearray:
    """Build the batch of a decision, part of the transaction of ``producer`` if there is one."""
    producer_id, producer_epoch = producer or (-1, -1)
    if len(records) == 1:
        [(key, value)] = records
        return build_single(
            key, value, (), now_ms, Compression.NONE, producer_id, producer_epoch, -1, producer is not None
        )
    builder = BatchBuilder()
    for key, value in records:
        builder.append(key, value, (), now_ms)
    return builder.build(producer_id=producer_id, producer_epoch=producer_epoch, is_transactional=producer is not None)
