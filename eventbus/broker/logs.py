"""The partition logs of one storage: opened, checkpointed, retained and closed together. Part of the broker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from eventbus.broker.names import CLUSTER_METADATA, INTERNAL_TOPICS
from eventbus.errors import ConfigError, CorruptRecord, StorageError, StorageFull
from eventbus.log import checkpoints
from eventbus.log.commit import GroupCommit
from eventbus.log.config import LogConfig
from eventbus.log.journal import JOURNAL, replay
from eventbus.log.leftovers import (
    SIDE_FOLDER,
    IsDeleted,
    deleted_partition,
    finish_deletions,
    is_own_file,
    remove_directory,
    set_aside,
)
from eventbus.log.metadata import parse_directory
from eventbus.log.partition_log import PartitionLog
from eventbus.log.recovery import UNKNOWN, missing_offsets
from eventbus.log.reserve import Reserve
from eventbus.log.segment import Damage
from eventbus.log.storage import File, OutOfDescriptors, Storage, storage_error
from eventbus.log.wall_time import WallTime
from eventbus.types import TimestampType, TopicPartition

_logger = logging.getLogger("eventbus.broker")

Offsets = dict[TopicPartition, int]
_NO_LIMIT = (1 << 63) - 1

_OWN_FILES = frozenset(
    {
        checkpoints.RECOVERY_POINTS,
        checkpoints.HIGH_WATERMARKS,
        checkpoints.LOG_START_OFFSETS,
        checkpoints.LAST_STABLE_OFFSETS,
        checkpoints.CLEANED_OFFSETS,
        checkpoints.META_PROPERTIES,
        JOURNAL,
    }
)
"""Files next to the partitions, without those whose name begins with a dot."""

_RETENTION_SEGMENTS = 16
"""The number of segments that are deleted without a break."""


class Partition(msgspec.Struct):
    """A log, and the values that the broker checks before it appends."""

    log: PartitionLog
    max_message_bytes: int
    is_internal: bool
    needs_keys: bool
    checks_oldest: bool
    """``message.timestamp.before.max.ms`` is set, and the topic keeps its producers' timestamps."""
    guarded: bool
    """True if any of the three is set, so that the hot path checks only this."""
    timestamp_after_max_ms: int
    """The largest difference by which a record may be ahead of the wall clock."""

    @classmethod
    def of(cls, log: PartitionLog, is_internal: bool) -> Partition:
        """Derive from the config of the log what appends must check."""
        config = log.config
        keeps_timestamps = config.timestamp_type is TimestampType.CREATE_TIME
        needs_keys = "compact" in config.cleanup_policy
        checks_oldest = keeps_timestamps and config.timestamp_before_max_ms < _NO_LIMIT
        return cls(
            log,
            max_message_bytes=config.max_message_bytes,
            is_internal=is_internal,
            needs_keys=needs_keys,
            checks_oldest=checks_oldest,
            guarded=is_internal or needs_keys or checks_oldest,
            timestamp_after_max_ms=config.timestamp_after_max_ms if keeps_timestamps else _NO_LIMIT,
        )

    def obey(self, config: LogConfig) -> None:
        """Use other configs from the next call on."""
        self.log.update_config(config)
        changed = Partition.of(self.log, self.is_internal)
        for field in self.__struct_fields__:
            setattr(self, field, getattr(changed, field))


class Logs:
    """The open logs of a storage. ``partitions`` holds those that were ever written to or requested."""

    def __init__(self, storage: Storage, fsync: str) -> None:
        self.storage = storage
        self.commit = GroupCommit(storage, fsync)
        self.partitions: dict[TopicPartition, Partition] = {}
        self.advances_at_append = fsync != "commit" or not storage.durable
        self.advanced: Callable[[TopicPartition], None] = _ignore
        """Called when `sync_metadata` moved a high watermark."""
        self.reserve = Reserve(storage)
        self.was_clean = False
        """True if the previous process closed the storage in order."""
        self._clean_shutdown = False
        self._found: set[TopicPartition] = set()
        self._recovery_points: Offsets | None = {}
        self._log_start_offsets: Offsets | None = {}
        self._published: dict[str, Offsets] = {}
        self._unsynced: set[str] = set()
        """Checkpoints whose present content may be lost in a power cut."""
        self._root_problem = ""
        self._refusing: set[TopicPartition] = set()
        """The partitions whose expired segments could not be deleted."""
        self.cleaned_offsets: Offsets = {}
        """The offset up to which each log was compacted."""
        self.offline: dict[TopicPartition, str] = {}
        """The damaged partitions that were not opened, and why."""
        self._offline_offsets: dict[str, Offsets] = {}
        """The offline partitions' entries in the checkpoints, which are published again until the partitions are
        repaired."""

    # open ------------------------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, storage: Storage, fsync: str) -> Logs:
        """Lock the storage and list its content; no log is opened yet."""
        logs = cls(storage, fsync)
        storage.lock()
        try:
            # The redo journal first: it restores blocks that a power cut tore, and every later step reads those files.
            replay(storage)
            # Taken means removed: if this process crashes, the next start must not find the mark of the previous one.
            logs.was_clean = logs._clean_shutdown = checkpoints.take_clean_shutdown(storage)
            logs._recovery_points = checkpoints.read_offsets(storage, checkpoints.RECOVERY_POINTS)
            logs._log_start_offsets = checkpoints.read_offsets(storage, checkpoints.LOG_START_OFFSETS)
            checkpoints.warn_of_lost_starts(storage, logs._recovery_points, logs._log_start_offsets)
            logs.cleaned_offsets = checkpoints.read_offsets(storage, checkpoints.CLEANED_OFFSETS) or {}
            logs.reserve.fill()
            logs._found = {tp for tp in map(parse_directory, storage.listdir("")) if tp is not None}
        except OSError as error:
            storage.unlock()
            raise storage_error(error, f"opening {storage.describe()}") from error
        except BaseException:
            storage.unlock()
            raise
        return logs

    def cluster_id(self, wanted: str | None, new_id: Callable[[], str]) -> str:
        """Return the id in ``meta.properties``, creating it if necessary. Raises ConfigError if it differs from
        ``wanted``."""
        try:
            cluster_id = checkpoints.load_or_create_meta(self.storage, wanted or new_id())
        except OSError as error:
            raise storage_error(error, f"opening {self.storage.describe()}") from error
        if wanted and cluster_id != wanted:
            raise ConfigError(
                f"{self.storage.describe()} belongs to cluster {cluster_id}, asked for cluster_id={wanted}: "
                "name the directory of that cluster, or leave cluster_id out"
            )
        return cluster_id

    def open_partition(
        self, topic_partition: TopicPartition, config: LogConfig, topic_id: str, wall_now_ms: int
    ) -> Partition:
        """Open one log and keep it open. Nothing is on disk before its first append."""
        log = PartitionLog.open(
            self.storage,
            topic_partition,
            config,
            now_ms=wall_now_ms,
            recovery_point=_known(self._recovery_points, topic_partition, UNKNOWN),
            log_start_offset=_known(self._log_start_offsets, topic_partition, 0),
            clean_shutdown=self._clean_shutdown,
            topic_id=topic_id,
        )
        missing = missing_offsets(log.segments, (self._log_start_offsets or {}).get(topic_partition))
        if missing:
            _logger.warning(
                "%s in %s: %s. Restore the files from a backup before they are needed, or go on without these records",
                topic_partition, self.storage.describe(), missing,
            )  # fmt: skip
        partition = Partition.of(log, topic_partition.topic in INTERNAL_TOPICS)
        self.partitions[topic_partition] = partition
        return partition

    def take_offline(self, topic_partition: TopicPartition, error: CorruptRecord) -> None:
        """Continue without a damaged partition. It is not changed, and its checkpoints are kept."""
        self.offline[topic_partition] = str(error)
        _logger.error("%s is offline: %s", topic_partition, error)
        high_watermarks = checkpoints.read_offsets(self.storage, checkpoints.HIGH_WATERMARKS) or {}
        stable = checkpoints.read_offsets(self.storage, checkpoints.LAST_STABLE_OFFSETS) or {}
        # A recovery point before the damage would make the next start treat the damage as a torn tail, and cut it off.
        # After a clean shutdown on a full disk, for example, the point is old, and this start has removed the clean
        # mark.
        damage = error.__cause__
        beyond = damage.offset + 1 if isinstance(damage, Damage) else 1
        known = (self._recovery_points or {}).get(topic_partition) or high_watermarks.get(topic_partition) or 1
        point = max(known, beyond)
        kept = {
            checkpoints.RECOVERY_POINTS: point,
            checkpoints.HIGH_WATERMARKS: high_watermarks.get(topic_partition, point),
            checkpoints.LOG_START_OFFSETS: _known(self._log_start_offsets, topic_partition, 0),
            checkpoints.LAST_STABLE_OFFSETS: stable.get(topic_partition, 0),
        }
        for name, offset in kept.items():
            self._offline_offsets.setdefault(name, {})[topic_partition] = offset

    def _with_offline(self, name: str, offsets: Offsets) -> Offsets:
        return {**self._offline_offsets[name], **offsets} if name in self._offline_offsets else offsets

    def written_partitions(self) -> list[TopicPartition]:
        """Return the partitions that have something on disk, or should according to a checkpoint."""
        checkpointed = {tp for tp, offset in (self._recovery_points or {}).items() if offset > 0}
        return sorted(self._found | checkpointed)

    def check_metadata_found(self) -> None:
        """Raise CorruptRecord if there are partitions, but no metadata log with their topics."""
        # A backup without the metadata directory, or a directory of Kafka itself. Opening it as an empty log would make
        # all topics look deleted, and their directories would be removed.
        others = sorted(map(str, self._found - {TopicPartition(CLUSTER_METADATA, 0)}))
        if others and len(others) == len(self._found):
            raise CorruptRecord(
                f"{self.storage.describe()} holds {len(others)} partition(s) ({', '.join(others[:3])}...), but not "
                f"{CLUSTER_METADATA}-0, which knows their topics. Restore that directory from a backup (a directory "
                "written by Kafka itself cannot be opened; mirror it through kafka://)"
            )

    def finish_deletions(self, is_deleted: IsDeleted) -> None:
        """Finish deletions that a crash interrupted, and log a warning about entries that are not the log's.

        Raises StorageError only if the directory cannot be listed.
        """
        try:
            finish_deletions(self.storage, is_deleted)
            foreign = [name for name in self.storage.listdir("") if _is_foreign(name)]
        except OSError as error:
            raise storage_error(error, f"opening {self.storage.describe()}") from error
        if foreign:
            _logger.warning(
                "%s holds entries that are not part of the log, which are left alone: %s%s",
                self.storage.describe(), ", ".join(foreign[:5]), ", ..." if len(foreign) > 5 else "",
            )  # fmt: skip

    def remove_stray(self, topic_partition: TopicPartition) -> None:
        """Remove or set aside the directory of a partition whose topic was deleted.

        A crash between the topic's tombstone and the renaming of its directories leaves the partition in the checkpoint
        of the last run. A directory that appears later, from a backup for instance, is in no checkpoint: a finished
        deletion and a clean shutdown both publish them without it. It may be the only copy, so it is kept.
        """
        directory = str(topic_partition)
        try:
            if not self.storage.exists(directory):
                return
            is_unfinished = not self._clean_shutdown and topic_partition in (self._recovery_points or {})
            if is_unfinished:
                remove_directory(self.storage, directory)
            elif not any(map(is_own_file, self.storage.listdir(directory))):
                _logger.warning("%s in %s is not the log's: left alone", directory, self.storage.describe())
            else:
                set_aside(self.storage, directory, "holds records of a topic that was deleted")
        except OSError as error:
            _logger.warning(
                "%s in %s belongs to a deleted topic; left alone: %s", directory, self.storage.describe(), error
            )

    def forget_recovery(self) -> None:
        """Drop the loaded checkpoints once every log is open: they must not be applied to a new topic with an old
        name."""
        there = self.partitions.keys() | self.offline.keys()
        # Entries of partitions that do not exist any more are on disk too, and must not survive there until a topic
        # with that name is created.
        stale = self._recovery_points is None or not self._recovery_points.keys() <= there
        self._recovery_points = {}
        self._log_start_offsets = {}
        self._clean_shutdown = False
        self.cleaned_offsets = {tp: offset for tp, offset in self.cleaned_offsets.items() if tp in there}
        self.publish(sync=stale)

    # durability ------------------------------------------------------------------------------------------------------

    def sync_metadata(self, log: PartitionLog) -> None:
        """Flush the metadata log at once, whatever the fsync mode, because everything else depends on it.

        Blocks for about a millisecond; topics change rarely. The watermarks are published, so that damage in metadata
        is never taken for a torn tail. Raises StorageError, and the log is poisoned, as after every failed flush.
        """
        if not self.storage.durable:
            return
        # After a failed fsync the kernel may mark dirty pages clean, so a second fsync would succeed without the data
        # being on disk. The log therefore stays poisoned until the next start reads what is there.
        log.raise_if_poisoned()
        work = log.begin_sync()
        self._sync(log, work.files)
        log.complete_sync(work)
        if not self.advances_at_append:
            self.advanced(log.topic_partition)
        self.publish()

    def sync_files(self, logs: Iterable[PartitionLog]) -> None:
        """Flush logs at once that group commits flush too; only the commits move their watermarks."""
        if not self.storage.durable:
            return
        for log in logs:
            log.raise_if_poisoned()
            # Only segments that end after the recovery point can have unflushed records.
            ends = [segment.base_offset for segment in log.segments[1:]] + [log.log_end_offset]
            segments = zip(log.segments, ends, strict=True)
            self._sync(log, [segment.file for segment, end_offset in segments if end_offset > log.recovery_point])

    def _sync(self, log: PartitionLog, files: Sequence[File]) -> None:
        """Flush files and directories; the directories always, because a flush in another thread may not be done
        with them."""
        if not files:
            return
        try:
            try:
                self._sync_files(log, files)
            # A flush opens the segment's file again if it was closed. Running out of descriptors is no failure of the
            # disk, and must not poison the log.
            except OutOfDescriptors:
                if not self.storage.close_idle_files():
                    raise
                self._sync_files(log, files)
        except OSError as error:
            # No retry: see fsyncgate. Linux reports a write-back error once and then drops the pages.
            log.poison(f"its flush to disk failed ({error})")
            raise storage_error(error, f"flushing {log.topic_partition}") from error

    def _sync_files(self, log: PartitionLog, files: Sequence[File]) -> None:
        for file in files:
            file.sync()
        self.storage.sync_dir(log.directory)
        # A new partition's directory entry is in the root. Without this flush a power cut can remove the whole
        # directory, although the segment in it was flushed.
        self.storage.sync_dir("")

    def publish(self, *, sync: bool = False) -> None:
        """Write the checkpoints that changed. A failure is harmless: they save work, and are written again."""
        now: dict[str, Offsets] = {
            checkpoints.RECOVERY_POINTS: {},
            checkpoints.HIGH_WATERMARKS: {},
            checkpoints.LOG_START_OFFSETS: {},
            checkpoints.LAST_STABLE_OFFSETS: {},
            checkpoints.CLEANED_OFFSETS: self.cleaned_offsets.copy(),
        }
        recovery_points, high_watermarks, log_start_offsets, last_stable_offsets, _ = now.values()
        for topic_partition, partition in self._written():
            log = partition.log
            recovery_points[topic_partition] = log.recovery_point
            high_watermarks[topic_partition] = log.high_watermark
            log_start_offsets[topic_partition] = log.log_start_offset
            last_stable_offsets[topic_partition] = log.published_offset
        if not self.cleaned_offsets and checkpoints.CLEANED_OFFSETS not in self._published:
            del now[checkpoints.CLEANED_OFFSETS]
        try:
            for name, offsets in now.items():
                offsets = self._with_offline(name, offsets)
                if offsets == self._published.get(name) and not (sync and name in self._unsynced):
                    continue
                checkpoints.write_offsets(self.storage, name, offsets, sync=sync and self.storage.durable)
                self._published[name] = offsets
                (self._unsynced.discard if sync else self._unsynced.add)(name)
            self.reserve.fill()
        except OSError as error:
            _logger.warning("checkpoints of %s not written: %s", self.storage.describe(), error)

    def publish_stable_offsets(self) -> None:
        """Publish only how far readers in other processes may read; it is not flushed, so it is cheap."""
        now = {tp: partition.log.published_offset for tp, partition in self._written()}
        now = self._with_offline(checkpoints.LAST_STABLE_OFFSETS, now)
        if now != self._published.get(checkpoints.LAST_STABLE_OFFSETS):
            try:
                checkpoints.write_offsets(self.storage, checkpoints.LAST_STABLE_OFFSETS, now, sync=False)
                self._published[checkpoints.LAST_STABLE_OFFSETS] = now
                self._unsynced.add(checkpoints.LAST_STABLE_OFFSETS)
            except OSError as error:
                _logger.warning("checkpoints of %s not written: %s", self.storage.describe(), error)

    def publish_recovery_points(self) -> None:
        """Durably publish from where each log is recovered. Raises StorageError.

        Done before a segment is compacted: the redo journal may hold the segment's old content, and must never restore
        it.
        """
        self._publish_durably(
            checkpoints.RECOVERY_POINTS, {tp: partition.log.recovery_point for tp, partition in self._written()}
        )

    def publish_log_start(self, topic_partition: TopicPartition, offset: int) -> None:
        """Durably publish that a log begins at ``offset``, before it does. Raises StorageError."""
        starts = {tp: partition.log.log_start_offset for tp, partition in self._written()}
        # Published first, then applied. In the other order, readers could see the new start, and a crash would bring
        # the deleted records back.
        starts[topic_partition] = offset
        # Deleting records must work on a full disk, because it frees space. The reserve is a file that is given up for
        # it.
        self.reserve.spend(lambda: self._publish_durably(checkpoints.LOG_START_OFFSETS, starts))

    def _publish_durably(self, name: str, offsets: Offsets) -> None:
        if not self.storage.durable:
            return
        offsets = self._with_offline(name, offsets)
        try:
            checkpoints.write_offsets(self.storage, name, offsets, sync=True)
        except OSError as error:
            raise storage_error(error, f"writing {self.storage.describe()}/{name}") from error
        self._published[name] = offsets
        self._unsynced.discard(name)

    def _written(self) -> list[tuple[TopicPartition, Partition]]:
        """Return the partitions that have, or had, records."""
        return [
            (tp, partition)
            for tp, partition in self.partitions.items()
            if partition.log.segments or partition.log.log_end_offset
        ]

    # health ----------------------------------------------------------------------------------------------------------

    def check_root(self) -> str:
        """Return why the directory is not reachable under its path any more, which is logged when it changes."""
        problem = self.storage.check_root()
        if problem != self._root_problem:
            self._root_problem = problem
            _logger.warning("%s", problem or f"{self.storage.describe()} leads to the directory of this log again.")
        return problem

    def poisoned(self) -> list[PartitionLog]:
        """Return the logs that accept no more writes."""
        return [partition.log for partition in self.partitions.values() if partition.log.poisoned]

    # retention, deletion ---------------------------------------------------------------------------------------------

    def apply_retention(self, wall_now_ms: int, wall: WallTime | None = None) -> bool:
        """Delete data that is too old or too much. Return True if there is more: call it again after other work.

        Each segment costs a flush of its directory, so a log of thousands would block the loop for seconds.
        """
        left = _RETENTION_SEGMENTS
        due: dict[TopicPartition, int] = {}
        # Logs whose segments could not be deleted come last, or they would use up every turn.
        for topic_partition, partition in sorted(self.partitions.items(), key=lambda item: item[0] in self._refusing):
            count = partition.log.expire_segments(wall_now_ms, wall, left)
            if count:
                due[topic_partition] = count
                left -= count
            if not left:
                break
        if not due:
            return False
        try:
            # The new starts are durable before the files go. Otherwise a crash between two deletions leaves a log that
            # begins after its checkpoint, which looks like lost segments.
            starts = {tp: partition.log.log_start_offset for tp, partition in self._written()}
            self._publish_durably(checkpoints.LOG_START_OFFSETS, starts)
        except StorageError as error:  # retention must work on a full disk, because it frees space
            _logger.warning("retention goes on without a checkpoint: %s", error)
        has_progress = False
        for topic_partition, count in due.items():
            try:
                self.partitions[topic_partition].log.apply_retention(wall_now_ms, wall, count)
                has_progress = True
                self._refusing.discard(topic_partition)
            except StorageError as error:
                _logger.warning("retention: %s", error)
                self._refusing.add(topic_partition)
        self.publish()
        return not left and has_progress  # a disk that refuses everything is tried again at the next check

    def expire_producers(self, wall_now_ms: int, expiration_ms: int, wall: WallTime) -> None:
        """Forget the producers that were idle for ``expiration_ms``."""
        logs = [partition.log for partition in self.partitions.values()]
        count = sum(log.producers.states.expire(wall_now_ms, expiration_ms, wall) for log in logs)
        if count:
            _logger.info("%d idle producer(s) expired: producer_id_expiration_ms=%d", count, expiration_ms)

    def delete(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Remove the logs of deleted topics."""
        for topic_partition in topic_partitions:
            partition = self.partitions.pop(topic_partition, None)
            if partition is None:
                self._delete_offline(topic_partition)
                continue
            self.cleaned_offsets.pop(topic_partition, None)
            try:
                partition.log.delete()
            except StorageError as error:
                _logger.warning("%s. Its records stay in %s until you remove them", error, topic_partition)
        # Durably, before the name can be used again: the old log's watermark must not be applied to a new log.
        self.publish(sync=True)

    def _delete_offline(self, topic_partition: TopicPartition) -> None:
        if self.offline.pop(topic_partition, None) is None:
            return
        for offsets in self._offline_offsets.values():
            del offsets[topic_partition]
        try:
            remove_directory(self.storage, str(topic_partition))
        except OSError as error:
            _logger.warning("%s is not removed, though its topic was deleted: %s", topic_partition, error)

    # the end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush and close every log, then record a clean shutdown unless something failed. Raises the first
        StorageError."""
        first_error: StorageError | None = None
        try:
            self.commit.close()
        except StorageError as error:
            first_error = error
        for partition in self.partitions.values():
            try:
                partition.log.close()
            except StorageError as error:
                first_error = first_error or error
        # With the clean mark the next start skips the verification of all logs, so the mark is only allowed if every
        # flush has succeeded.
        clean = first_error is None and not self.poisoned()
        try:
            self.publish(sync=True)
            if clean:
                self.reserve.spend(self._mark_clean_shutdown)
        except StorageFull as error:  # everything is on disk, and the next start will find that
            _logger.warning("%s; the next start reads the ends of the logs, as after a crash", error)
        except OSError as error:
            first_error = first_error or storage_error(error, f"closing {self.storage.describe()}")
        finally:
            self.partitions.clear()
            self.storage.unlock()
        if first_error is not None:
            raise first_error

    def _mark_clean_shutdown(self) -> None:
        try:
            checkpoints.mark_clean_shutdown(self.storage)
        except OSError as error:
            raise storage_error(error, f"closing {self.storage.describe()}") from error

    def abandon(self) -> None:
        """Release the storage after a failed open: nothing was changed, so nothing needs a flush."""
        self.partitions.clear()
        self.storage.unlock()


def _ignore(topic_partition: TopicPartition) -> None: ...


def _is_foreign(name: str) -> bool:
    """True for an entry of the directory that is not the log's. Hidden files are not worth a warning."""
    is_own = name.removesuffix(".tmp") in _OWN_FILES or parse_directory(name) is not None
    return not (
        is_own
        or name.startswith(".")
        or deleted_partition(name) is not None
        or name == "lost+found"
        or name.startswith(f"{SIDE_FOLDER}.")
    )


def _known(offsets: Offsets | None, topic_partition: TopicPartition, damaged: int) -> int:
    return damaged if offsets is None else offsets.get(topic_partition, 0)
