"""The broker: a synchronous object that owns all topics, logs and coordinators of a storage.

Nothing inside awaits, so every method is atomic on the event loop and no locks exist. The engine calls it, for a bus
and for a server, and does the waiting: for a flush (`begin_sync`, `Flush.run` in a thread, `complete_sync`), for
records (`on_advance`), for time (`tick`, `next_deadline_ms`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence, Set

from eventbus.broker.cleaning import Cleaning, LogCleaner, Pause
from eventbus.broker.descriptions import FetchData, TopicDescription, TopicSpec
from eventbus.broker.groups import Groups
from eventbus.broker.logs import Logs
from eventbus.broker.names import (
    CLUSTER_METADATA,
    CONSUMER_OFFSETS,
    INTERNAL_TOPICS,
    TRANSACTION_STATE,
    check_not_internal,
)
from eventbus.broker.partitions import InternalTopics, Opener, Writes
from eventbus.broker.security_admin import SecurityAdmin
from eventbus.broker.settings import BrokerConfig
from eventbus.broker.shard_log import ShardLog
from eventbus.broker.topic_admin import TopicAdmin
from eventbus.broker.transactions import Sender, Transactions
from eventbus.broker.validation import check_batch, check_keys, check_oldest, refuse_large, refuse_late
from eventbus.coordinator import TopicsShard
from eventbus.coordinator.requests import ProducerDescription
from eventbus.errors import (
    CorruptRecord,
    InvalidRequest,
    KafkaError,
    OffsetOutOfRange,
    PolicyViolation,
    StorageError,
    StorageFull,
    UnknownTopicOrPartition,
)
from eventbus.log.commit import Flush
from eventbus.log.config import LogConfig
from eventbus.log.leftovers import LONG_NAME
from eventbus.log.partition_log import AppendInfo, PartitionLog
from eventbus.log.storage import Storage, storage_error
from eventbus.log.wall_time import WallTime
from eventbus.protocol import random_uuid, uuid_text
from eventbus.records import BatchHeader, read_header
from eventbus.records.batch import WritableBuffer
from eventbus.records.single import BatchSpan
from eventbus.types import IsolationLevel, OffsetAndTimestamp, ProducerIdAndEpoch, TopicPartition

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3

_logger = logging.getLogger("eventbus.broker")
_METADATA = TopicPartition(CLUSTER_METADATA, 0)
_METADATA_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
"""The topic id that Kafka uses too: the UUID 1."""
_METADATA_CONFIG = LogConfig(cleanup_policy=())
"""Kept completely: no retention, no compaction, so a gap between offsets is damage."""
_NO_OFFSET = OffsetAndTimestamp(-1, -1)
_FIRST_RETENTION_MS = 30_000
"""Kafka's default for ``log.initial.task.delay.ms``."""


def _ignore(topic_partition: TopicPartition) -> None: ...


class Broker:
    """All topics, logs and coordinators of a storage; open it with `Broker.open`."""

    def __init__(
        self,
        logs: Logs,
        config: BrokerConfig,
        cluster_id: str,
        new_topic_id: Callable[[], str],
        now_ms: int,
        wall_now_ms: int,
    ) -> None:
        self.config = config
        self.cluster_id = cluster_id
        self.on_advance: Callable[[TopicPartition], None] = _ignore
        """Called whenever a partition's high watermark moved, and when a partition ceased to exist."""
        self._logs = logs
        self._partitions = logs.partitions
        self._appended = logs.commit.appended
        self._advances_at_append = logs.advances_at_append
        logs.advanced = lambda topic_partition: self.on_advance(topic_partition)
        self._wall = wall = WallTime(now_ms, wall_now_ms)
        writes = Writes(logs)
        metadata = logs.open_partition(_METADATA, _METADATA_CONFIG, _METADATA_TOPIC_ID, wall_now_ms)
        self._metadata = ShardLog(TopicsShard(), metadata.log, writes.append_metadata, storage=logs.storage)
        self._metadata.load()
        self.topic_admin = TopicAdmin(logs, self._metadata, config, new_topic_id)
        """Reads topics and their configs, and checks changes without making them."""
        self.security = SecurityAdmin(self._metadata, logs, new_topic_id)
        """ACLs, credentials and quotas, which apply to requests from the network."""
        self._known_topics = self.topic_admin.topics
        offsets_topic = self._known_topics.get(CONSUMER_OFFSETS)
        count = config.offsets_topic_num_partitions if offsets_topic is None else offsets_topic.partitions
        opener = Opener(logs, self._metadata, self.topic_admin, self._check_open, self._wall_now_ms)
        self.log, self._open_partition, self._unknown = opener.log, opener.open, opener.refusal
        internal = InternalTopics(config, self.topic_admin, opener, writes, new_topic_id, wall)
        self.groups = Groups(
            count,
            internal.open_groups_shard,
            self._unknown,
            self._check_open,
            internal.new_groups_shard,
            config.offsets_retention_check_interval_ms,
            wall,
            now_ms,
        )
        self.transactions = Transactions(
            config,
            self.partitions_of(TRANSACTION_STATE) or config.transaction_state_log_num_partitions,
            self.groups,
            self._partitions,
            open_shard=internal.open_transactions_shard,
            allocate_producer_ids=self.topic_admin.allocate_producer_ids,
            append_marker=writes.append_marker,
            refuse=lambda topic_partition: self._unknown(topic_partition) or opener.offline(topic_partition),
            store_lazily=writes.append_lazily,
            flush_now=self._flush_now,
            check_open=self._check_open,
            wall=wall,
            now_ms=now_ms,
        )
        self._cleaner = LogCleaner(logs, wall)
        self._closed = False
        self._next_retention_ms = now_ms + min(config.log_retention_check_interval_ms, _FIRST_RETENTION_MS)
        self.missed_clean_up = False
        """True if the previous process ended without its last `clean_up`: the first tick does it instead."""
        self._next_checkpoint_ms = now_ms + config.checkpoint_interval_ms
        self._next_publication_ms = now_ms + config.publication_interval_ms
        self._now_ms = now_ms

    @classmethod
    def open(
        cls,
        storage: Storage,
        config: BrokerConfig,
        *,
        now_ms: int,
        new_id: Callable[[], bytes],
        wall_now_ms: int | None = None,
    ) -> Broker:
        """Lock the storage, recover every log in it, and replay the internal topics.

        ``now_ms`` is the monotonic clock, ``wall_now_ms`` the system's (None: ``now_ms`` is both). ``new_id`` returns
        16 random bytes. Raises LogLocked (another process uses the storage), CorruptRecord (damage to flushed data;
        nothing was changed), ConfigError, InvalidConfig.
        """

        def new_text_id() -> str:
            return uuid_text(random_uuid(new_id))

        config.check()
        logs = Logs.open(storage, config.fsync)
        try:
            logs.check_metadata_found()
            cluster_id = logs.cluster_id(config.cluster_id, new_text_id)
            broker = cls(logs, config, cluster_id, new_text_id, now_ms, now_ms if wall_now_ms is None else wall_now_ms)
            broker._open_logs(now_ms)
        except BaseException:
            logs.abandon()
            raise
        _logger.info("%s is open%s", storage.describe(), f", {config.fsync_promise}" if storage.durable else "")
        return broker

    def _open_logs(self, now_ms: int) -> None:
        """Open the partitions on disk. Partitions that were never written to are opened on first use."""
        deleted = self._metadata.shard.deleted
        self._logs.finish_deletions(self._is_deleted)
        for topic_partition in self._logs.written_partitions():
            topic = self._known_topics.get(topic_partition.topic)
            # The metadata log was opened first, by the constructor: without it the topics of the other partitions are
            # unknown.
            if topic_partition == _METADATA:
                continue
            if topic is not None and topic_partition.partition < topic.partitions:
                try:
                    self._open_partition(topic_partition, self._wall.at(now_ms))
                except CorruptRecord as error:
                    if topic_partition.topic in INTERNAL_TOPICS:
                        raise  # missing offsets or transactions would look as if there had been none
                    self._logs.take_offline(topic_partition, error)
            elif topic_partition.topic in deleted:
                self._logs.remove_stray(topic_partition)
            else:
                _logger.warning("%s belongs to no topic known here: left alone", topic_partition)
        # Groups before transactions: a marker that recovery writes into ``__consumer_offsets`` applies the pending
        # offsets of the loaded groups.
        for topic_partition in [tp for tp in self._partitions if tp.topic == CONSUMER_OFFSETS]:
            self.groups.load(topic_partition.partition, now_ms)
        for topic_partition in [tp for tp in self._partitions if tp.topic == TRANSACTION_STATE]:
            self.transactions.load(topic_partition.partition, now_ms)
        try:
            self._finish_deletion(deleted, self._wall.at(now_ms))
        except StorageFull as error:
            # A full disk must not keep the log closed. `create_topics` deletes the offsets before the name is used
            # again.
            _logger.warning("the offsets that groups have in deleted topics are kept for now: %s", error)
        self._logs.forget_recovery()
        self.transactions.recover(now_ms)
        self.missed_clean_up = not self._logs.was_clean and len(self._partitions) > 1

    def _is_deleted(self, name: str, topic_id: str) -> bool:
        """Return whether the metadata records that the topic with this id (empty: unknown) was deleted."""
        topic = self._known_topics.get(name)
        deleted = self._metadata.shard.deleted
        if topic is not None:
            return topic_id != topic.topic_id
        # The directory of a topic with a long name has the beginning of the name.
        return name in deleted or (len(name) >= LONG_NAME and any(each.startswith(name) for each in deleted))

    def close(self, now_ms: int) -> None:
        """Flush, publish the checkpoints, and close the storage. Raises StorageError if the last flush failed."""
        if not self._closed:
            self._closed = True
            self._metadata.close()
            self.groups.close()
            self.transactions.close()
            self._logs.close()

    # topics ----------------------------------------------------------------------------------------------------------

    @property
    def topics_version(self) -> int:
        """Rises with every change of topics or partition counts."""
        return self.topic_admin.version

    def create_topics(
        self, specs: Sequence[TopicSpec], now_ms: int, validate_only: bool = False
    ) -> dict[str, TopicDescription | KafkaError]:
        """Create topics; return a description or an error for each. They are on disk on return. ``validate_only``
        changes nothing."""
        self._check_open()
        # A deletion that a crash or a full disk interrupted may have left offsets of the old topic in groups. A new
        # topic with the name would be read from the old position.
        used_before = self._metadata.shard.deleted & {spec.name for spec in specs}
        if used_before and not validate_only:
            self._finish_deletion(used_before, now_ms)
        return self.topic_admin.create(specs, now_ms, validate_only=validate_only)

    def delete_topics(self, names: Sequence[str], now_ms: int) -> dict[str, KafkaError | None]:
        """Delete topics with their records and every group's offsets in them; the names are free on return."""
        self._check_open()
        results: dict[str, KafkaError | None] = {}
        for name in names:
            try:
                self.topic_admin.delete(name, now_ms)
                self._finish_deletion({name}, now_ms)
                results[name] = None
            except KafkaError as error:
                results[name] = error
                # The metadata says deleted, but the rest of the deletion failed. Producers with an open partition must
                # not write into a log that the next start removes.
                if name not in self._known_topics:
                    self._poison(name)
        return results

    def _poison(self, topic: str) -> None:
        """Poison a deleted topic's partitions. It is unknown whether the deletion is on disk, so new records could
        be lost."""
        for topic_partition, partition in self._partitions.items():
            if topic_partition.topic == topic:
                partition.log.poison("its topic was deleted, and whether that reached the disk is unknown")

    def _finish_deletion(self, topics: Set[str], now_ms: int) -> None:
        """Delete everything that belongs to topics that were removed from the metadata. Repeatable; on disk on return.

        Even after a crash or a full disk in the middle, a new topic with the name must not get an old offset or record.
        """
        known = (*self._partitions, *self._logs.offline)
        doomed = [topic_partition for topic_partition in known if topic_partition.topic in topics]
        self._logs.delete(doomed)  # first: on a full disk, deleting the offsets may need the space
        for topic_partition in doomed:
            self.on_advance(topic_partition)
        self._logs.sync_files(self.groups.forget_topics(topics, now_ms))

    def add_partitions(self, name: str, total_count: int, now_ms: int) -> None:
        """Grow a topic to ``total_count`` partitions. Records keep their partition; keys may map to a different
        partition."""
        self._check_open()
        self.topic_admin.add_partitions(name, total_count, now_ms)

    def alter_configs(
        self, name: str, set: Mapping[str, object], delete: Sequence[str], now_ms: int
    ) -> TopicDescription:
        """Set and unset configs of a topic, all or none; they take effect with the next call."""
        self._check_open()
        return self.topic_admin.alter_configs(name, set, delete, now_ms)

    def describe_topics(self, names: Iterable[str] | None = None) -> list[TopicDescription]:
        """Describe the named topics, or all. Raises UnknownTopicOrPartition."""
        return self.topic_admin.describe(names)

    def list_topics(self) -> list[str]:
        """Return the names of all topics, including internal ones."""
        return sorted(self._known_topics)

    def has_topic(self, name: str) -> bool:
        return name in self._known_topics

    def partition_count(self, topic: str) -> int:
        """Return the partition count. An unknown topic is created with ``auto_create_topics``, else
        UnknownTopicOrPartition."""
        state = self._known_topics.get(topic)
        if state is not None:
            return state.partitions
        if not self.config.auto_create_topics:
            raise self._metadata.shard.unknown(topic)
        created = self.create_topics([TopicSpec(topic)], self._wall_now_ms())[topic]
        if isinstance(created, KafkaError):
            raise created
        return len(created.partitions)

    def partitions_of(self, topic: str) -> int:
        """Return the partition count, or 0 if the topic does not exist. Never creates it."""
        state = self._known_topics.get(topic)
        return 0 if state is None else state.partitions

    def topic_id(self, topic: str) -> str:
        """Return the topic's id, which differs after the topic is deleted and created again; empty if it does not
        exist."""
        state = self._known_topics.get(topic)
        return "" if state is None else state.topic_id

    def max_message_bytes(self, topic: str) -> int:
        """Return the size of the largest batch that the topic accepts. Raises UnknownTopicOrPartition."""
        return self.topic_admin.log_config(topic).max_message_bytes

    # records ---------------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic_partition: TopicPartition,
        batch: WritableBuffer,
        wall_now_ms: int,
        *,
        header: BatchHeader | BatchSpan | None = None,
        trusted: bool = False,
        sender: Sender | None = None,
    ) -> AppendInfo:
        """Append one batch. Acknowledge it, a duplicate too, when `is_durable` is true for its last offset.

        ``trusted``: our own producer built it, so its bytes are not checked. ``sender``: the request that it came with,
        whose producer the batch must have. The batch is changed (offsets, perhaps timestamps) and must not be used
        afterwards. Raises UnknownTopicOrPartition, RecordTooLarge, InvalidRecord, InvalidTimestamp, CorruptRecord,
        StorageError, and for a batch with a producer id OutOfOrderSequence, InvalidProducerEpoch, InvalidTxnState, and
        as `Transactions.admit`; nothing is stored then.
        """
        if not trusted:
            if topic_partition not in self._partitions:
                self._open_partition(topic_partition, wall_now_ms)  # an unknown topic is reported before a bad batch
            header = check_batch(batch, topic_partition)
            # Batches of our own producers are trusted. A batch from the network may contain any producer id.
            if sender is not None and header.producer_id >= 0:
                producer = self._partitions[topic_partition].log.producers.states.producers.get(header.producer_id)
                in_transaction = (
                    producer is not None
                    and producer.in_transaction
                    and producer.producer_epoch == header.producer_epoch
                )
                self.transactions.admit(topic_partition, header, sender, in_transaction=in_transaction)
        elif header is None:
            header = read_header(batch)
        return self.append_built(topic_partition, batch, header, wall_now_ms)

    def append_built(
        self, topic_partition: TopicPartition, batch: WritableBuffer, span: BatchHeader | BatchSpan, wall_now_ms: int
    ) -> AppendInfo:
        """Append a batch that this process built, like `produce`. ``span`` holds the fields that its builder knows."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._open_partition(topic_partition, wall_now_ms)
        if len(batch) > partition.max_message_bytes:
            raise refuse_large(len(batch), partition.max_message_bytes, topic_partition)
        if span.max_timestamp_ms - wall_now_ms > partition.timestamp_after_max_ms:
            raise refuse_late(span.max_timestamp_ms, wall_now_ms, partition.timestamp_after_max_ms, topic_partition)
        if partition.guarded:
            if partition.is_internal:
                check_not_internal(topic_partition.topic, "produced to")
            if partition.needs_keys:
                check_keys(batch, topic_partition)
            if partition.checks_oldest:
                check_oldest(batch, wall_now_ms, partition.log.config.timestamp_before_max_ms, topic_partition)
        log = partition.log
        # Our own producers do not pass `admit`. A batch that is written after the timeout has aborted its transaction
        # would open a transaction that nothing ends, and read_committed consumers would wait for it forever.
        if span.is_transactional:
            self._verify_transaction(log, span)
        info = log.append(batch, span, wall_now_ms)
        # The batch is stored already. The watermark does not move, and the caller waits for the stored offset.
        if info.duplicate:
            return info
        self._appended(log, batch)
        if self._advances_at_append:
            self.on_advance(topic_partition)
        return info

    def _verify_transaction(self, log: PartitionLog, span: BatchHeader | BatchSpan) -> None:
        """Check that the coordinator has added the partition before a transaction begins there (KIP-890).

        Otherwise the transaction would never be ended. Raises as `Transactions.verify`, and before that as the log.
        """
        states = log.producers.states
        producer = states.producers.get(span.producer_id)
        if producer is not None and producer.in_transaction and producer.producer_epoch == span.producer_epoch:
            return
        if states.check(span) is None:
            self.transactions.verify(log.topic_partition, ProducerIdAndEpoch(span.producer_id, span.producer_epoch))

    def fetch(
        self,
        topic_partition: TopicPartition,
        offset: int,
        max_bytes: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        *,
        min_one_batch: bool = True,
    ) -> FetchData:
        """Return whole batches from the batch that contains ``offset`` up to the high watermark or last stable offset.

        Never waits: returns no records if there are none yet. With ``min_one_batch`` the first may be larger than
        ``max_bytes``. Raises UnknownTopicOrPartition, OffsetOutOfRange, CorruptRecord.
        """
        partition = self._partitions.get(topic_partition)
        if partition is None:
            partition = self._open_partition(topic_partition, self._wall_now_ms())
        log = partition.log
        high_watermark = log.high_watermark
        last_stable_offset = log.last_stable_offset
        # READ_UNCOMMITTED still ends at the high watermark: a record that a power cut could remove is shown to no
        # reader.
        end = last_stable_offset if isolation else high_watermark
        records = (
            # At the end, also between the watermark and the log's end: the reader waits. An offset beyond the end is an
            # error, which `log.read` raises.
            b""
            if end <= offset <= log.log_end_offset
            else log.read(offset, max_bytes, max_offset=end, min_one_batch=min_one_batch)
        )
        aborted = log.aborted_in(records, offset) if isolation and records else ()
        return FetchData(records, high_watermark, last_stable_offset, log.log_start_offset, aborted)

    def list_offsets(
        self,
        topic_partition: TopicPartition,
        at: int,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> OffsetAndTimestamp:
        """Return an offset: ``at`` is -1 for the end, -2 for the start, -3 for the largest timestamp, else a time in
        ms.

        By time, it is the first record at or after it, or offset -1. The end is what a reader with ``isolation`` may
        see.
        """
        log = self.log(topic_partition)
        end = log.last_stable_offset if isolation else log.high_watermark
        if at == LATEST:
            return OffsetAndTimestamp(end, -1)
        if at == EARLIEST:
            return OffsetAndTimestamp(log.log_start_offset, -1)
        if at == MAX_TIMESTAMP:
            found = log.offset_of_max_timestamp()
        elif at >= 0:
            found = log.offset_for_timestamp(at)
        else:
            raise InvalidRequest(
                f"list_offsets of {topic_partition} at {at}: -1 is the end, -2 the start, -3 the largest timestamp, "
                "0 and up a time in milliseconds"
            )
        # A record that this reader may not see yet is no answer, else it would seek beyond its end.
        return _NO_OFFSET if found is None or found.offset >= end else found

    def log_start_offset(self, topic_partition: TopicPartition) -> int:
        """Return the first offset that can be read."""
        return self.log(topic_partition).log_start_offset

    def end_offset(self, topic_partition: TopicPartition) -> int:
        """Return the offset that the next record gets, whether or not those before it may be read yet."""
        return self.log(topic_partition).log_end_offset

    def delete_records(self, topic_partition: TopicPartition, before_offset: int, now_ms: int) -> int:
        """Hide records below ``before_offset`` (-1: the high watermark) from readers; return where the log begins.

        On disk on return; the next retention frees the space. Below the present start nothing changes. Raises
        OffsetOutOfRange beyond the high watermark, PolicyViolation where old records are only compacted, InvalidTopic
        for an internal topic, UnknownTopicOrPartition, StorageError.
        """
        self._check_open()
        check_not_internal(topic_partition.topic, "cut")
        log = self.log(topic_partition)
        if "delete" not in log.config.cleanup_policy:
            raise PolicyViolation(
                f"records of {topic_partition} cannot be deleted by offset: its cleanup.policy is "
                f"{','.join(log.config.cleanup_policy)}. Send tombstones, or `eventbus topics alter "
                f"{topic_partition.topic} --config cleanup.policy=compact,delete`"
            )
        offset = log.high_watermark if before_offset == LATEST else before_offset
        if not 0 <= offset <= log.high_watermark:
            raise OffsetOutOfRange(
                f"{topic_partition}: cannot delete the records before {before_offset}, the high watermark is "
                f"{log.high_watermark}; -1 stands for it"
            )
        if offset > log.log_start_offset:
            self._logs.publish_log_start(log.topic_partition, offset)
            log.advance_log_start_offset(offset)
        return log.log_start_offset

    def describe_producers(self, topic_partition: TopicPartition) -> list[ProducerDescription]:
        """Return the partition's state of its producers, by producer id."""
        producers = self.log(topic_partition).producers.states.producers
        return [
            ProducerDescription(
                producer_id,
                producer.producer_epoch,
                producer.last_sequence,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_start_offset,
            )
            for producer_id, producer in sorted(producers.items())
        ]

    # durability ------------------------------------------------------------------------------------------------------

    @property
    def needs_sync(self) -> bool:
        """True if a flush has something to do, and none is running."""
        return self._logs.commit.needs_sync

    @property
    def has_unsynced(self) -> bool:
        """True if something was appended that no flush has begun to cover."""
        return self._logs.commit.has_unsynced

    def begin_sync(self) -> Flush:
        """Snapshot what was appended; its `Flush.run` may be called from a worker thread. Only one flush runs at a
        time."""
        return self._logs.commit.begin()

    def complete_sync(self, flush: Flush, error: BaseException | None = None) -> None:
        """Move the watermarks that the flush covers. An ``error`` that it raised poisons its log permanently."""
        for log in self._logs.commit.complete(flush, error):
            if not self._advances_at_append:
                self.on_advance(log.topic_partition)
        # A flush may have made a decision or a marker durable, which is what the next step of an end waits for.
        if self.transactions.prepared:
            self.transactions.finish_prepared(self._now_ms)

    def _flush_now(self) -> None:
        """Flush until nothing is left to flush. Blocks: used while opening, when nothing else runs on the loop."""
        if self._advances_at_append:
            return
        while self.needs_sync:
            flush = self.begin_sync()
            try:
                flush.run()
            except OSError as error:
                self.complete_sync(flush, error)
                raise storage_error(error, f"flushing {self._logs.storage.describe()}") from error
            except BaseException as error:
                self.complete_sync(flush, error)  # interrupted: closing the log requires that no flush is running
                raise
            self.complete_sync(flush)

    def is_durable(self, topic_partition: TopicPartition, offset: int) -> bool:
        """True if the record at ``offset`` is as safe as the fsync setting promises.

        Raises LogPoisoned if it never will be, UnknownTopicOrPartition if its topic was deleted meanwhile.
        """
        log = self.log(topic_partition)
        if offset < log.high_watermark:
            return True
        log.raise_if_poisoned()
        # The topic was deleted and created again since the append: the new log is shorter.
        if offset >= log.log_end_offset:
            raise UnknownTopicOrPartition(
                f"{topic_partition} ends at offset {log.log_end_offset}: the record at {offset} went when its topic "
                "was deleted"
            )
        return False

    @property
    def trouble(self) -> str:
        """A line about what an operator should check; empty if there is nothing."""
        return " ".join(filter(None, (self._poisoned(), self._logs.check_root(), self._offline())))

    def _offline(self) -> str:
        offline = self._logs.offline
        if not offline:
            return ""
        names = ", ".join(map(str, sorted(offline)))
        return f"{len(offline)} partition(s) are offline ({names}): {offline[min(offline)]}"

    def _poisoned(self) -> str:
        poisoned = self._logs.poisoned()
        if not poisoned:
            return ""
        others = f" (and {len(poisoned) - 1} more partitions)" if len(poisoned) > 1 else ""
        return (
            f"{poisoned[0].topic_partition}{others} takes no more writes: {poisoned[0].poisoned}. Restart: the log "
            "verifies itself when it is opened and keeps everything acknowledged."
        )

    def check_healthy(self) -> None:
        """Raise LogPoisoned if a flush of any log has failed."""
        for partition in self._partitions.values():
            partition.log.raise_if_poisoned()

    def publish_checkpoints(self, now_ms: int) -> None:
        """Publish how far readers in other processes may read, and where the next start begins its recovery."""
        self._next_checkpoint_ms = now_ms + self.config.checkpoint_interval_ms
        self._next_publication_ms = self._publication_after(now_ms)
        self._logs.check_root()
        self._logs.publish()

    def _publication_after(self, now_ms: int) -> int:
        """Return when to publish next. That visits every partition, so with very many of them it is as rare as
        checkpoints."""
        return now_ms + max(self.config.publication_interval_ms, len(self._partitions) // 10)

    # compaction ------------------------------------------------------------------------------------------------------

    def next_cleaning(self, wall_now_ms: int) -> Cleaning | None:
        """Return the due compaction of the log that needs it most; None if none is due, or one is running.

        Run `run_cleaning`, then `complete_cleaning`.
        """
        self._check_open()
        return self._cleaner.next(wall_now_ms)

    def run_cleaning(self, cleaning: Cleaning) -> Generator[Pause, None, None]:
        """Compact, a few milliseconds between yields: None lets other work run, a function must be called first.

        The function is a flush, and may run in another thread. Close the generator if it is not run to its end. Pass
        what it raises to `complete_cleaning`.
        """
        return self._cleaner.run(cleaning)

    def complete_cleaning(self, cleaning: Cleaning, error: BaseException | None = None) -> None:
        """Record the result of a cleaning. An error is logged, and loses nothing: the log is unchanged."""
        self._cleaner.complete(cleaning, error)

    def clean_now(self, wall_now_ms: int) -> None:
        """Compact all that may be compacted, at once, however little of it is dirty. Blocks: for tests and tools."""
        self._check_open()
        self._cleaner.clean_now(wall_now_ms)

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int, wall_now_ms: int | None = None) -> None:
        """Do everything that is due: sessions, transactions' timeouts, retention, checkpoints.

        The monotonic ``now_ms`` decides what is due, the system's ``wall_now_ms`` how old stored data is (None:
        ``now_ms`` is both). Calling too often is cheap, too late is harmless.
        """
        self._now_ms = now_ms
        self._wall.compare(now_ms, now_ms if wall_now_ms is None else wall_now_ms)
        if self.missed_clean_up:
            self.clean_up(now_ms)
        self.groups.tick(now_ms)
        self.transactions.tick(now_ms)
        if now_ms >= self._next_retention_ms:
            self._apply_retention(now_ms)
        if now_ms >= self._next_checkpoint_ms:
            self.publish_checkpoints(now_ms)
        elif now_ms >= self._next_publication_ms:
            self._next_publication_ms = self._publication_after(now_ms)
            self._logs.publish_stable_offsets()

    def _apply_retention(self, now_ms: int) -> bool:
        """Delete a bounded number of segments. Return True if there are more: then the next tick continues."""
        wall_now_ms = self._wall.at(now_ms)
        self._next_retention_ms = now_ms
        if self._logs.apply_retention(wall_now_ms, self._wall):
            return True
        self._next_retention_ms = now_ms + self.config.log_retention_check_interval_ms
        self._logs.expire_producers(wall_now_ms, self.config.producer_id_expiration_ms, self._wall)
        return False

    def clean_up(self, now_ms: int) -> bool:
        """Delete what is past its retention: records, offsets, groups, transactional ids and producers.

        Return True if there are more segments to delete: call it again after other work.

        `tick` does each of these at its interval. A process that ends before the first interval has passed would never
        do it, and a directory that only such processes use would grow without end. So it is done before the log is
        closed, and at the first tick after a process that did not close it. It is not done at each opening: a clock
        that is wrong when the machine starts has usually been set by the time the log is closed.
        """
        self.missed_clean_up = False
        # The members of a process have left just before its close: their groups are worth keeping for a while.
        self.groups.expire_offsets(now_ms, self.config.offsets_retention_check_interval_ms)
        self.transactions.expire(now_ms)
        return self._apply_retention(now_ms)

    def next_deadline_ms(self) -> int:
        """Return when `tick` has something to do."""
        if self.missed_clean_up:
            return self._now_ms
        return min(
            self._next_retention_ms,
            self._next_checkpoint_ms,
            self._next_publication_ms,
            self.groups.next_deadline_ms(),
            self.transactions.next_deadline_ms(),
        )

    # -----------------------------------------------------------------------------------------------------------------

    def _wall_now_ms(self) -> int:
        """Return the wall time of the last tick."""
        return self._wall.at(self._now_ms)

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError(f"{self._logs.storage.describe()} was closed: open it again")

    def check(self) -> None:
        """Check every invariant of every log and shard; raise AssertionError. Reads everything."""
        for topic_partition, partition in self._partitions.items():
            assert partition.log.topic_partition == topic_partition
            assert topic_partition == _METADATA or self._unknown(topic_partition) is None, (
                f"{topic_partition} is a stray"
            )
            partition.log.check()
        self._metadata.check(TopicsShard)
        self.groups.check()
        self.transactions.check()

    def __repr__(self) -> str:
        return f"Broker({self._metadata.shard!r} {self.groups!r} {self.transactions!r})"
