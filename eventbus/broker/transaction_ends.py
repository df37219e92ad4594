"""Transactions on their way to their end: markers into the partitions, then that they are complete. Part of the broker.

Also what a crash left open in partitions without the coordinator knowing of it (`find_unknown`).
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
"""One writer, one term, as in `eventbus.log.partition_log`."""
RETRY_MS = 1_000
"""After something found no room on the disk."""
NEVER_MS = 1 << 62


class _Ending:
    """A prepared transaction."""

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
        """Of the Prepare* record."""
        self.remaining = remaining
        """Where no marker stands yet."""
        self.markers: list[tuple[PartitionLog, int]] = []
        self.answer = answer
        self.reported = False
        """It was logged that a marker could not be written."""


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
        """Where Complete* of a transaction without a bumped epoch stands."""
        self.next_retry_ms = NEVER_MS
        """When to call `finish` for want of room the last time."""

    def add(
        self, transactional_id: str, shard_log: TransactionsLog, offset: int, answer: TransactionEnd | None = None
    ) -> None:
        """The record at ``offset`` has decided a transaction; ``answer`` is told of its markers."""
        remaining = sorted(shard_log.shard.transactions[transactional_id].partitions)
        self.prepared[transactional_id] = _Ending(shard_log, offset, remaining, answer)

    def is_settled(self, transactional_id: str, shard_log: TransactionsLog) -> bool:
        """Whether the next transaction may begin.

        Records of two transactions with one epoch must not be on the disk together unless it is known there, too,
        that the first is complete.
        """
        if self._unsettled and self._unsettled.get(transactional_id, -1) >= shard_log.log.high_watermark:
            return False
        self._unsettled.pop(transactional_id, None)
        return True

    def finish(self, now_ms: int) -> None:
        """Take every one as far as the disk allows: its markers, then that it is complete."""
        self.next_retry_ms = NEVER_MS
        for transactional_id in list(self.prepared):
            self.advance(transactional_id, now_ms)

    def advance(self, transactional_id: str, now_ms: int) -> None:
        """As `finish`, for one of them."""
        ending = self.prepared[transactional_id]
        if ending.offset >= ending.shard_log.log.high_watermark:
            return
        try:
            self._advance(transactional_id, ending, now_ms)
        except KafkaError as error:  # one that cannot be ended must not keep others from what waits for the same flush
            self.next_retry_ms = min(self.next_retry_ms, now_ms + RETRY_MS)
            if not ending.reported:
                ending.reported = True
                _logger.warning("transaction %r is decided, but not finished yet: %s", transactional_id, error)

    def _advance(self, transactional_id: str, ending: _Ending, now_ms: int) -> None:
        shard_log = ending.shard_log
        known = shard_log.shard.transactions[transactional_id]
        while ending.remaining:
            topic_partition = ending.remaining[-1]
            error = self._refuse(topic_partition)
            if isinstance(error, PartitionOffline):
                raise error  # the transaction waits: without its marker, what it wrote there would be aborted one day
            offset = None
            if self._open_epoch(topic_partition, known.producer_id) in _epochs_of(known):
                offset = self.mark(topic_partition, known.producer, known.state is PREPARE_COMMIT, now_ms)
            ending.remaining.pop()
            if offset is not None:
                ending.markers.append((self._partitions[topic_partition].log, offset))
        if ending.answer is not None and ending.answer.markers is None:
            ending.answer.markers = tuple([(log.topic_partition, offset) for log, offset in ending.markers])
        if all(offset < log.high_watermark or log.closed for log, offset in ending.markers):
            # The next transaction has another epoch, so this record may come to the disk when it likes; without a
            # bumped epoch it has not.
            append = self._store_lazily if known.is_bumped else None
            wall_now_ms = self._wall.at(now_ms)
            shard_log.execute(shard_log.shard.complete(transactional_id, wall_now_ms), wall_now_ms, append)
            del self.prepared[transactional_id]
            if not known.is_bumped:
                self._unsettled[transactional_id] = shard_log.log.log_end_offset - 1

    def _open_epoch(self, topic_partition: TopicPartition, producer_id: int) -> int | None:
        """The epoch of the transaction that the producer has open in a partition.

        What is there now counts: a topic that was deleted gets no marker, nor does one that was made anew since.
        """
        state = self._state(topic_partition, producer_id)
        return state.producer_epoch if state is not None and state.in_transaction else None

    def _state(self, topic_partition: TopicPartition, producer_id: int) -> ProducerState | None:
        """What a partition remembers of a producer."""
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
        """End what the producer has open in one partition; returns the marker's offset. Raises StorageError.

        There is one coordinator: what it decided is not refused where an administrator's marker, or that of a cluster
        the log comes from, bore a later epoch. Given a ``coordinator_epoch``, raises TransactionCoordinatorFenced too.
        """
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
        producer = ProducerIdAndEpoch(unknown.producer_id, min(unknown.producer_epoch + 1, MAX_EPOCH))
        self.mark(unknown.topic_partition, producer, unknown.was_committed, now_ms)


class Unknown(NamedTuple):
    """A transaction that is open in a partition, and not known as open there."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    first_offset: int
    was_committed: bool


def producer_states(partitions: Partitions) -> Iterator[tuple[TopicPartition, int, ProducerState]]:
    """Every producer that every partition remembers."""
    for topic_partition, partition in partitions.items():
        for producer_id, state in partition.log.producers.states.producers.items():
            yield topic_partition, producer_id, state


def not_durable(partitions: Partitions, known: TransactionMetadata) -> list[tuple[TopicPartition, int]]:
    """The last record that the producer wrote to each partition of its transaction, where a crash could take it."""
    found: list[tuple[TopicPartition, int]] = []
    for topic_partition in sorted(known.partitions):
        partition = partitions.get(topic_partition)
        producer = None if partition is None else partition.log.producers.states.producers.get(known.producer_id)
        if partition is not None and producer is not None and producer.in_transaction:
            last_offset = partition.log.log_end_offset - 1  # of offsets, which have no sequence, it is not known better
            if producer.batches:
                first, last, base_offset, _ = producer.batches[-1]
                last_offset = base_offset + ((last - first) & MAX_SEQUENCE)
            if last_offset >= partition.log.high_watermark:
                found.append((topic_partition, last_offset))
    return found


def find_unknown(partitions: Partitions, transactions: Mapping[str, TransactionMetadata]) -> list[Unknown]:
    """What is open in partitions, and will not be ended by whoever coordinates."""
    by_producer = {known.previous_producer_id: known for known in transactions.values()}
    by_producer |= {known.producer_id: known for known in transactions.values()}
    found: list[Unknown] = []
    for topic_partition, producer_id, state in producer_states(partitions):
        known, epoch = by_producer.get(producer_id), state.producer_epoch
        if state.in_transaction and not (known and _is_known(topic_partition, producer_id, epoch, known)):
            committed = known is not None and _was_committed(producer_id, epoch, known)
            found.append(Unknown(topic_partition, producer_id, epoch, state.transaction_start_offset, committed))
    return found


def _epochs_of(known: TransactionMetadata) -> range:
    """The epochs that the records of the open or prepared transaction may have.

    An end or a fence moves the epoch: at the new epoch, the producer's next transaction is open.
    """
    epoch = known.producer_epoch
    if known.state is ONGOING or not known.is_bumped:
        return range(epoch, epoch + 1)
    return range(epoch)


def _is_known(topic_partition: TopicPartition, producer_id: int, epoch: int, known: TransactionMetadata) -> bool:
    return known.producer_id == producer_id and topic_partition in known.partitions and epoch in _epochs_of(known)


def _was_committed(producer_id: int, epoch: int, known: TransactionMetadata) -> bool:
    """Whether it is the last transaction of its id, and was committed.

    Where nothing waits for flushes, a crash may keep that it is complete and lose a marker.
    """
    if known.state is not COMPLETE_COMMIT:
        return False
    if producer_id == known.producer_id:
        return known.is_bumped and epoch + 1 == known.producer_epoch
    return epoch == LAST_EPOCH and known.producer_epoch == 0
