"""Finish decided transactions: write the markers into the partitions, then the completion. Part of the broker.

Also find transactions that a crash left open in partitions and that the coordinator does not have (`find_unknown`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from eventbus.broker.groups import Groups
from eventbus.broker.logs import Partition
from eventbus.broker.names import CONSUMER_OFFSETS
from eventbus.broker.shard_log import Append, AppendMarker, ShardLog
from eventbus.coordinator import TransactionsShard
from eventbus.coordinator.requests import TransactionEnd
from eventbus.coordinator.transaction_codec import TransactionMetadata
from eventbus.coordinator.transaction_states import (
    COMPLETE_COMMIT,
    ONGOING,
    PREPARE_COMMIT,
)
from eventbus.coordinator.transactions import LAST_EPOCH, MAX_EPOCH
from eventbus.errors import KafkaError, PartitionOffline
from eventbus.log.partition_log import PartitionLog
from eventbus.log.producer_state import ProducerState
from eventbus.log.wall_time import WallTime
from eventbus.records.sequence import MAX_SEQUENCE
from eventbus.types import ProducerIdAndEpoch, TopicPartition

_logger = logging.getLogger("eventbus.transactions")

TransactionsLog = ShardLog[TransactionsShard]
Partitions = Mapping[TopicPartition, Partition]

COORDINATOR_EPOCH = 0
"""The coordinator epoch is constant, as the leader epoch in `eventbus.log.partition_log` is."""
RETRY_MS = 1_000
"""The delay after an attempt that failed because the disk was full."""
NEVER_MS = 1 << 62


class _Ending:
    """A prepared transaction that is being finished."""

    __slots__ = ("answer", "markers", "offset", "remaining", "reported", "shard_log")

    def __init__(
        self,
        shard_log: TransactionsLog,
        offset: int,
        remaining: list[TopicPartition],
        answer: TransactionEnd | None,
    ) -> None:
        self.shard_log = shard_log
        self.offset = offset
        """The offset of the Prepare* record."""
        self.remaining = remaining
        """The partitions without a marker so far."""
        self.markers: list[tuple[PartitionLog, int]] = []
        self.answer = answer
        self.reported = False
        """True once a failed marker was logged."""


class Endings:
    """The prepared transactions, by transactional id."""

    def __init__(
        self,
        partitions: Partitions,
        groups: Groups,
        append_marker: AppendMarker,
        store_lazily: Append,
        refuse: Callable[[TopicPartition], KafkaError | None],
        wall: WallTime,
    ) -> None:
        self._partitions = partitions
        self._groups = groups
        self._append_marker = append_marker
        self._store_lazily = store_lazily
        self._refuse = refuse
        self._wall = wall
        self.prepared: dict[str, _Ending] = {}
        self._unsettled: dict[str, int] = {}
        """The offsets of Complete* records of transactions whose epoch was not raised."""
        self.next_retry_ms = NEVER_MS
        """When to call `finish` again after the disk was full."""

    def add(
        self, transactional_id: str, shard_log: TransactionsLog, offset: int, answer: TransactionEnd | None = None
    ) -> None:
        """Add the transaction that the record at ``offset`` decided; ``answer`` gets the positions of its markers."""
        remaining = sorted(shard_log.shard.transactions[transactional_id].partitions)
        self.prepared[transactional_id] = _Ending(shard_log, offset, remaining, answer)

    def is_settled(self, transactional_id: str, shard_log: TransactionsLog) -> bool:
        """True if the next transaction may begin.

        Records of two transactions with the same epoch must not be on disk together unless the completion of the first
        is there too.
        """
        if self._unsettled and self._unsettled.get(transactional_id, -1) >= shard_log.log.high_watermark:
            return False
        self._unsettled.pop(transactional_id, None)
        return True

    def finish(self, now_ms: int) -> None:
        """Finish every transaction as far as the disk allows: its markers, then its completion."""
        self.next_retry_ms = NEVER_MS
        for transactional_id in list(self.prepared):
            self.advance(transactional_id, now_ms)

    def advance(self, transactional_id: str, now_ms: int) -> None:
        """Finish a single transaction as far as the disk allows."""
        ending = self.prepared[transactional_id]
        # The decision must be durable before the first marker. Otherwise a crash could keep a commit marker and lose
        # the decision, and after the restart the transaction would be aborted in its other partitions.
        if ending.offset >= ending.shard_log.log.high_watermark:
            return
        try:
            self._advance(transactional_id, ending, now_ms)
        except KafkaError as error:  # a failure must not keep back the others that wait for this flush
            self.next_retry_ms = min(self.next_retry_ms, now_ms + RETRY_MS)
            if not ending.reported:
                ending.reported = True
                _logger.warning("transaction %r is decided, but not finished yet: %s", transactional_id, error)

    def _advance(self, transactional_id: str, ending: _Ending, now_ms: int) -> None:
        shard_log = ending.shard_log
        known = shard_log.shard.transactions[transactional_id]
        # `remaining` shrinks with each marker, so an attempt that fails in the middle, on a full disk, continues where
        # it stopped instead of writing a second marker.
        while ending.remaining:
            topic_partition = ending.remaining[-1]
            error = self._refuse(topic_partition)
            if isinstance(error, PartitionOffline):
                raise error  # the transaction waits: without its marker, its records there would be aborted one day
            offset = None
            # Without an open transaction in the partition there is nothing to end: no batch was written there, or an
            # earlier attempt before a crash wrote the marker already.
            if self._open_epoch(topic_partition, known.producer_id) in _epochs_of(known):
                offset = self.mark(topic_partition, known.producer, known.state is PREPARE_COMMIT, now_ms)
            ending.remaining.pop()
            if offset is not None:
                ending.markers.append((self._partitions[topic_partition].log, offset))
        if ending.answer is not None and ending.answer.markers is None:
            ending.answer.markers = tuple([(log.topic_partition, offset) for log, offset in ending.markers])
        # Complete* only after the markers are durable (see `eventbus.broker.transactions`). A closed log belongs to a
        # deleted topic, whose markers nobody can read any more.
        if all(offset < log.high_watermark or log.closed for log, offset in ending.markers):
            # The next transaction has another epoch, so this record may be flushed at any time. Without a raised epoch
            # it may not.
            append = self._store_lazily if known.is_bumped else None
            wall_now_ms = self._wall.at(now_ms)
            shard_log.execute(shard_log.shard.complete(transactional_id, wall_now_ms), wall_now_ms, append)
            del self.prepared[transactional_id]
            # A client from before KIP-890 continues with the same epoch. If its next records reached the disk and this
            # completion did not, recovery would count them as part of the completed transaction and commit them.
            if not known.is_bumped:
                self._unsettled[transactional_id] = shard_log.log.log_end_offset - 1

    def _open_epoch(self, topic_partition: TopicPartition, producer_id: int) -> int | None:
        """Return the epoch of the transaction that the producer has open in a partition.

        The present state counts: neither a deleted topic gets a marker, nor a topic that was created again since.
        """
        state = self._state(topic_partition, producer_id)
        return state.producer_epoch if state is not None and state.in_transaction else None

    def _state(self, topic_partition: TopicPartition, producer_id: int) -> ProducerState | None:
        """Return a partition's state of a producer, or None."""
        partition = self._partitions.get(topic_partition)
        return None if partition is None else partition.log.producers.states.producers.get(producer_id)

    def mark(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        committed: bool,
        now_ms: int,
        coordinator_epoch: int | None = None,
    ) -> int | None:
        """End the producer's open transaction in one partition; return the marker's offset. Raises StorageError.

        There is only one coordinator: its decision is not refused because the marker of an administrator, or of the
        cluster from which the log was copied, had a later epoch. With a ``coordinator_epoch``, raises
        TransactionCoordinatorFenced too.
        """
        # Never lower than what the partition has seen, or the log would refuse the marker as that of a fenced
        # coordinator.
        if coordinator_epoch is None:
            state = self._state(topic_partition, producer.producer_id)
            coordinator_epoch = COORDINATOR_EPOCH if state is None else max(COORDINATOR_EPOCH, state.coordinator_epoch)
        if topic_partition.topic == CONSUMER_OFFSETS:
            info = self._groups.end_transaction(topic_partition, producer, committed, coordinator_epoch, now_ms)
        else:
            wall_now_ms = self._wall.at(now_ms)
            info = self._append_marker(topic_partition, producer, committed, coordinator_epoch, wall_now_ms)
        return None if info is None else info.last_offset

    def end_unknown(self, unknown: Unknown, now_ms: int) -> None:
        """End a transaction that `find_unknown` found. Raises StorageError."""
        _logger.warning(
            "%s: %s what producer %d has open there since offset %d: a crash took what was known of it",
            unknown.topic_partition,
            "committing" if unknown.was_committed else "aborting",
            unknown.producer_id,
            unknown.first_offset,
        )
        # A marker with a raised epoch also fences the producer in this partition, as the marker of an abort by the
        # coordinator would.
        producer = ProducerIdAndEpoch(unknown.producer_id, min(unknown.producer_epoch + 1, MAX_EPOCH))
        self.mark(unknown.topic_partition, producer, unknown.was_committed, now_ms)


class Unknown(NamedTuple):
    """A transaction that is open in a partition, and not known as open to the coordinator."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    was_committed: bool


def producer_states(partitions: Partitions) -> Iterator[tuple[TopicPartition, int, ProducerState]]:
    """Yield the state of every producer in every partition."""
    for topic_partition, partition in partitions.items():
        for producer_id, state in partition.log.producers.states.producers.items():
            yield topic_partition, producer_id, state


def not_durable(partitions: Partitions, known: TransactionMetadata) -> list[tuple[TopicPartition, int]]:
    """Return the last record that the producer wrote to each partition of its transaction, if a crash could remove
    it."""
    found: list[tuple[TopicPartition, int]] = []
    for topic_partition in sorted(known.partitions):
        partition = partitions.get(topic_partition)
        producer = None if partition is None else partition.log.producers.states.producers.get(known.producer_id)
        if partition is not None and producer is not None and producer.in_transaction:
            # Offsets have no sequence, so their last record is not known exactly.
            last_offset = partition.log.log_end_offset - 1
            if producer.batches:
                first, last, base_offset, _ = producer.batches[-1]
                last_offset = base_offset + ((last - first) & MAX_SEQUENCE)
            if last_offset >= partition.log.high_watermark:
                found.append((topic_partition, last_offset))
    return found


def find_unknown(partitions: Partitions, transactions: Mapping[str, TransactionMetadata]) -> list[Unknown]:
    """Return transactions that are open in partitions and that their coordinator will not end."""
    by_producer = {known.previous_producer_id: known for known in transactions.values()}
    # After the last epoch a transactional id continues with a new producer id, so records of the transaction before may
    # still have the previous id. The present ids take precedence.
    by_producer |= {known.producer_id: known for known in transactions.values()}
    found: list[Unknown] = []
    for topic_partition, producer_id, state in producer_states(partitions):
        known, epoch = by_producer.get(producer_id), state.producer_epoch
        if state.in_transaction and not (known and _is_known(topic_partition, producer_id, epoch, known)):
            committed = known is not None and _was_committed(producer_id, epoch, known)
            found.append(Unknown(topic_partition, producer_id, epoch, state.transaction_start_offset, committed))
    return found


def _epochs_of(known: TransactionMetadata) -> range:
    """Return the epochs that the records of the open or prepared transaction may have.

    An end or a fence raises the epoch; the producer's next transaction has the new epoch.
    """
    epoch = known.producer_epoch
    if known.state is ONGOING or not known.is_bumped:
        return range(epoch, epoch + 1)
    return range(epoch)


def _is_known(topic_partition: TopicPartition, producer_id: int, epoch: int, known: TransactionMetadata) -> bool:
    return known.producer_id == producer_id and topic_partition in known.partitions and epoch in _epochs_of(known)


def _was_committed(producer_id: int, epoch: int, known: TransactionMetadata) -> bool:
    """True if it is the last transaction of its id, and was committed.

    If nothing waits for flushes, a crash may keep its completion and lose a marker.
    """
    if known.state is not COMPLETE_COMMIT:
        return False
    if producer_id == known.producer_id:
        return known.is_bumped and epoch + 1 == known.producer_epoch
    return epoch == LAST_EPOCH and known.producer_epoch == 0
