"""Transactions: one shard per partition of ``__transaction_state``, and the markers. `Broker.transactions`.

The order of an end, each arrow a completed flush where the log waits for flushes::

    the transaction's records -> Prepare* -> markers -> Complete*

The caller ensures the first arrow. Prepare* decides: from then on the transaction is finished, by `finish_prepared`
after a flush, by `tick` if the disk was too full for a marker, or by the next opening. Complete* comes after the
markers are durable, so that no crash keeps it and loses one of them: the opening writes the markers of a Prepare*
transaction again wherever it is still open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from eventbus.broker.descriptions import OffsetCommitResult
from eventbus.broker.groups import Groups
from eventbus.broker.logs import Partition
from eventbus.broker.settings import BrokerConfig
from eventbus.broker.shard_log import Append, AppendMarker
from eventbus.broker.transaction_ends import (
    NEVER_MS,
    RETRY_MS,
    Endings,
    TransactionsLog,
    find_unknown,
    not_durable,
    producer_states,
)
from eventbus.broker.transaction_timeouts import Timeouts
from eventbus.coordinator import TransactionsShard, partition_for_group
from eventbus.coordinator.offsets import NewOffsets
from eventbus.coordinator.requests import TransactionDescription, TransactionEnd, TransactionListing
from eventbus.coordinator.transaction_codec import TransactionMetadata
from eventbus.coordinator.transaction_states import ONGOING, PREPARE_ABORT, PREPARE_COMMIT
from eventbus.coordinator.transactions import check_transactional_id, unknown_transactional_id
from eventbus.errors import (
    ConcurrentTransactions,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTransactionTimeout,
    InvalidTxnState,
    KafkaError,
    StorageError,
)
from eventbus.log.wall_time import WallTime
from eventbus.records.batch import BatchHeader
from eventbus.types import GroupMetadata, ProducerIdAndEpoch, TopicPartition

_logger = logging.getLogger("eventbus.transactions")

_PREPARED = (PREPARE_COMMIT, PREPARE_ABORT)


class Sender(NamedTuple):
    """The request that brought a batch from outside: a batch may contain any producer id, a request is authorized."""

    transactional_id: str
    """The id that the peer may write with; empty if there is none."""
    adds_partitions: bool
    """True if its batches add their partitions to the transaction (KIP-890), instead of a request before them."""
    now_ms: int


class Transactions:
    """Maps transactional ids to shards, and finishes their transactions."""

    def __init__(
        self,
        config: BrokerConfig,
        partition_count: int,
        groups: Groups,
        partitions: Mapping[TopicPartition, Partition],
        *,
        open_shard: Callable[[int, dict[int, TransactionMetadata], int], TransactionsLog],
        allocate_producer_ids: Callable[[int], range],
        append_marker: AppendMarker,
        refuse: Callable[[TopicPartition], KafkaError | None],
        store_lazily: Append,
        flush_now: Callable[[], None],
        check_open: Callable[[], None],
        wall: WallTime,
        now_ms: int,
    ) -> None:
        """``partitions`` are the open logs. ``open_shard`` returns a partition's shard, and
        ``allocate_producer_ids`` a block of unused ids, both at a wall time; ``refuse`` returns the error for a
        partition that does not exist. ``store_lazily`` stores records that need no flush for their own sake;
        ``flush_now`` flushes everything if the log waits for that; ``wall`` dates what is stored."""
        self._config = config
        self._partition_count = partition_count
        self._groups = groups
        self._partitions = partitions
        self._open_shard = open_shard
        self._allocate_producer_ids = allocate_producer_ids
        self._refuse = refuse
        self._flush_now = flush_now
        self._check_open = check_open
        self._wall = wall
        self._shards: dict[int, TransactionsLog] = {}
        self._homes: dict[str, TransactionsLog] = {}
        """The shard of each transactional id."""
        self._producers: dict[int, TransactionMetadata] = {}
        self._producer_ids = iter(range(0))
        self._timeouts = Timeouts(config.transaction_abort_timed_out_transaction_cleanup_interval_ms, now_ms)
        self._endings = Endings(partitions, groups, append_marker, store_lazily, refuse, wall)
        self.prepared: Collection[str] = self._endings.prepared
        """The ids of the transactions that are decided and not complete."""
        self._answers: dict[str, TransactionEnd] = {}
        """The last end of each id, for a retry of it."""
        self._reconcile_at_ms = NEVER_MS
        """When to call `reconcile` again after the disk was full."""
        self._next_expiry_ms = now_ms + config.transaction_remove_expired_transaction_cleanup_interval_ms
        self._ticked_ms = now_ms

    def __repr__(self) -> str:
        return " ".join(repr(shard_log.shard) for _, shard_log in sorted(self._shards.items()))

    def load(self, number: int, now_ms: int) -> TransactionsLog:
        """Return the shard of a partition, opened if necessary. Timeouts of open transactions start now."""
        shard_log = self._shards.get(number)
        if shard_log is not None:
            return shard_log
        shard_log = self._shards[number] = self._open_shard(number, self._producers, self._wall.at(now_ms))
        for transactional_id, known in shard_log.shard.transactions.items():
            self._homes[transactional_id] = shard_log
            if known.state is ONGOING:
                self._timeouts.set(transactional_id, now_ms + known.timeout_ms)
            elif known.state in _PREPARED:
                # The Prepare* record of this transaction may be further back. Waiting for the end of the log instead is
                # safe, and the end is durable.
                offset = shard_log.log.log_end_offset - 1  # at most: all of a recovered log is durable
                self._endings.add(transactional_id, shard_log, offset)
        return shard_log

    # producers -------------------------------------------------------------------------------------------------------

    def init_producer_id(
        self,
        transactional_id: str | None,
        transaction_timeout_ms: int,
        now_ms: int,
        *,
        producer: ProducerIdAndEpoch | None = None,
    ) -> ProducerIdAndEpoch:
        """Return a producer id and epoch. With a transactional id, the producers that had it before are fenced
        (KIP-98).

        ``producer``: its present id and epoch; it continues, unless another producer came in between (KIP-360). Send
        the answer only after a flush: a crash must not give the same epoch to a second producer. Raises
        ConcurrentTransactions while a transaction of the id is being ended (call again after a flush), ProducerFenced,
        InvalidTransactionTimeout, InvalidRequest, StorageError.
        """
        self._check_open()
        if transactional_id is None:
            return ProducerIdAndEpoch(self._new_producer_id(now_ms), 0)
        maximum = self._config.transaction_max_timeout_ms
        if not 0 < transaction_timeout_ms <= maximum:
            raise InvalidTransactionTimeout(
                f"transactional id {transactional_id!r} asks for transaction_timeout_ms={transaction_timeout_ms:,}; "
                f"choose 1 to {maximum:,}, or open the log with a larger transaction_max_timeout_ms"
            )
        shard_log = self._homes.get(transactional_id)
        if shard_log is None:
            shard_log = self.load(self._number(transactional_id), now_ms)
        # A transaction that is decided but not complete blocks the id. Try to finish it now: its flush may have
        # completed since the last attempt, or the disk may have room again. Otherwise the caller would have to wait for
        # the next tick.
        elif transactional_id in self.prepared:
            self._endings.advance(transactional_id, now_ms)
        wall_now_ms = self._wall.at(now_ms)
        # The first round may decide to abort the open transaction instead of answering. If nothing waits for flushes,
        # that abort completes at once, and the second round returns the new epoch without a retry by the client.
        for _ in range(2):
            decision = shard_log.shard.init(
                transactional_id, transaction_timeout_ms, wall_now_ms, lambda: self._new_producer_id(now_ms), producer
            )
            answer = shard_log.execute(decision, wall_now_ms)
            if answer is not None:
                self._homes[transactional_id] = shard_log
                # An answer belongs to the epoch that ended the transaction. After a new initialization no client may
                # get it.
                self._answers.pop(transactional_id, None)
                return answer
            self._prepared(transactional_id, shard_log)
            self._endings.advance(transactional_id, now_ms)
            if transactional_id in self.prepared:
                break
        raise ConcurrentTransactions(
            f"the transaction that was open under {transactional_id!r} is being aborted: try again in a moment"
        )

    def _new_producer_id(self, now_ms: int) -> int:
        for producer_id in self._producer_ids:
            return producer_id
        self._producer_ids = iter(self._allocate_producer_ids(self._wall.at(now_ms)))
        return next(self._producer_ids)

    def admit(
        self, topic_partition: TopicPartition, header: BatchHeader, sender: Sender, *, in_transaction: bool
    ) -> None:
        """Refuse a batch from outside with a producer id that is not the sender's.

        Producer ids are not secret (DescribeProducers shows them), and sequence numbers are easy to guess. Without this
        check, a client that may write to a topic could add records to a transaction of another producer, whose own
        records would then be taken for duplicates. ``in_transaction``: the partition has this transaction open, so the
        partition need not be added.

        Raises InvalidProducerIdMapping, ProducerFenced, and as `add_partitions`.
        """
        producer_id = header.producer_id
        # An idempotent producer has an id of its own. A batch outside of transactions under the id of a transactional
        # producer would raise that producer's sequence numbers, and its own next batch would look like a duplicate.
        if not header.is_transactional:
            if producer_id in self._producers:
                raise InvalidProducerIdMapping(
                    f"The batch for {topic_partition} was refused. It is not part of a transaction, but producer id "
                    f"{producer_id} belongs to a transactional id. Request another producer id (InitProducerId)."
                )
            return
        transactional_id = sender.transactional_id
        producer = ProducerIdAndEpoch(producer_id, header.producer_epoch)
        # KIP-890: since produce version 12 a client does not send AddPartitionsToTxn. The first batch adds the
        # partition.
        if sender.adds_partitions and not in_transaction:
            self.add_partitions(transactional_id, producer, (topic_partition,), sender.now_ms)
        else:
            self._home(transactional_id, producer, sender.now_ms).shard.current(transactional_id, producer)

    def verify(self, topic_partition: TopicPartition, producer: ProducerIdAndEpoch) -> None:
        """Check that the producer may write to the partition in its transaction (KIP-890).

        Raises InvalidProducerEpoch if it was fenced, InvalidTxnState unless a transaction is open there.
        """
        producer_id, epoch = producer
        known = self._producers.get(producer_id)
        if known is not None and known.producer_epoch == epoch:
            if known.state is ONGOING and topic_partition in known.partitions:
                return
        # Since KIP-890 each end raises the epoch, so a batch that was delayed in the network and arrives after its
        # transaction ended has an old epoch. It must not start the next transaction.
        elif known is not None and epoch < known.producer_epoch:
            raise InvalidProducerEpoch(
                f"{topic_partition}: producer {producer_id} wrote with epoch {epoch}, but stands at epoch "
                f"{known.producer_epoch}: its transaction was ended, or a newer instance took over"
            )
        raise InvalidTxnState(
            f"{topic_partition}: producer {producer_id}, epoch {epoch}, sent a batch of a transaction that is not open "
            "there: add the partition to the transaction first"
        )

    # transactions ----------------------------------------------------------------------------------------------------

    def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        now_ms: int,
    ) -> None:
        """Add partitions to the producer's transaction, which the first ones begin; all of them, or none.

        Raises UnknownTopicOrPartition, InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions, StorageError.
        """
        self._check_open()
        # Check all partitions before the first change: the request succeeds for all of them or for none.
        wanted = [TopicPartition(*topic_partition) for topic_partition in partitions]
        for topic_partition in wanted:
            error = self._refuse(topic_partition)
            if error is not None:
                raise error
        shard_log = self._home(transactional_id, producer, now_ms)
        if not self._endings.is_settled(transactional_id, shard_log):
            raise ConcurrentTransactions(
                f"the last transaction of {transactional_id!r} is not on the disk as complete yet: try again soon"
            )
        wall_now_ms = self._wall.at(now_ms)
        decision = shard_log.shard.add(transactional_id, producer, wanted, wall_now_ms)
        known = shard_log.execute(decision, wall_now_ms)
        # The timeout counts from the first partition of the transaction. Later partitions do not extend it.
        if known.state is ONGOING and transactional_id not in self._timeouts:
            self._timeouts.set(transactional_id, now_ms + known.timeout_ms)

    def add_offsets(self, transactional_id: str, producer: ProducerIdAndEpoch, group: str, now_ms: int) -> None:
        """Add the group's offsets to the producer's transaction. Raises as `add_partitions`."""
        self.add_partitions(transactional_id, producer, (self._groups.partition_of(group),), now_ms)

    def commit_offsets(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        group: GroupMetadata,
        offsets: NewOffsets,
        now_ms: int,
        *,
        added: bool = False,
    ) -> OffsetCommitResult:
        """Commit offsets as part of the transaction (KIP-98, KIP-447): they are invisible before it is committed.

        ``added`` is for clients from before KIP-890, which add the offsets by a separate request: a late commit must
        not begin their next transaction. Raises as `add_offsets` (with ``added`` as `verify`), and as
        `Groups.commit_transaction_offsets`.
        """
        # Before KIP-890 an end did not raise the epoch, so a late TxnOffsetCommit is indistinguishable from the first
        # request of the next transaction, except by this check that the group was added.
        if added:
            self._home(transactional_id, producer, now_ms).shard.known(transactional_id, producer)
            self.verify(self._groups.partition_of(group.group), producer)
        else:
            self.add_offsets(transactional_id, producer, group.group, now_ms)
        return self._groups.commit_transaction_offsets(producer, group, offsets, now_ms)

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        now_ms: int,
        bump_epoch: bool = True,
    ) -> TransactionEnd:
        """Decide the transaction. Send the answer once the record at its ``offset`` is durable.

        Records of the transaction that a crash could remove must be durable before. The producer continues as ``next``.
        A retry with the epoch of a completed end gets the same answer. ``bump_epoch=False`` is for clients from before
        KIP-890. Raises InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, ConcurrentTransactions, StorageError;
        nothing happened then.
        """
        self._check_open()
        shard_log = self._home(transactional_id, producer, now_ms)
        wall_now_ms = self._wall.at(now_ms)
        decision = shard_log.shard.end(
            transactional_id, producer, committed, wall_now_ms, lambda: self._new_producer_id(now_ms), bump_epoch
        )
        following = shard_log.execute(decision, wall_now_ms)
        # No records: the transaction was already ended with this result. The client lost our answer and asks again.
        if not decision.records:
            before = self._answers.get(transactional_id)
            is_retry = following != producer or not bump_epoch
            if is_retry and before is not None and before.committed == committed and before.next == following:
                return before
            # An end without an open transaction. It wrote nothing, so there is no record to wait for.
            return self._answer(transactional_id, committed, shard_log, -1, following, markers=())
        offset = shard_log.log.log_end_offset - 1
        answer = self._answer(transactional_id, committed, shard_log, offset, following)
        # Kept for a retry, and filled in by `Endings` with the offsets of the markers, which the caller may wait for.
        self._answers[transactional_id] = answer
        self._prepared(transactional_id, shard_log, answer)
        self._endings.advance(transactional_id, now_ms)
        return answer

    def not_durable(self, transactional_id: str) -> list[tuple[TopicPartition, int]]:
        """Return the last record in each partition of the open transaction that a crash could still remove.

        They have to be durable before a commit is decided. A client that waits for its acks ensures that itself.
        """
        shard_log = self._homes.get(transactional_id)
        if shard_log is None:
            return []
        known = shard_log.shard.transactions[transactional_id]
        return not_durable(self._partitions, known) if known.state is ONGOING else []

    @staticmethod
    def _answer(
        transactional_id: str,
        committed: bool,
        shard_log: TransactionsLog,
        offset: int,
        following: ProducerIdAndEpoch,
        markers: tuple[tuple[TopicPartition, int], ...] | None = None,
    ) -> TransactionEnd:
        return TransactionEnd(
            transactional_id=transactional_id,
            committed=committed,
            topic_partition=shard_log.log.topic_partition,
            offset=offset,
            next=following,
            markers=markers,
        )

    # ending ----------------------------------------------------------------------------------------------------------

    def finish_prepared(self, now_ms: int) -> None:
        """Finish every prepared transaction as far as the disk allows: its markers, then its completion.

        Call this after every flush while any transaction is `prepared`; if nothing waits for flushes, `end` has already
        done it. Failures are tried again at the next call and by `tick`.
        """
        self._endings.finish(now_ms)

    def _prepared(
        self, transactional_id: str, shard_log: TransactionsLog, answer: TransactionEnd | None = None
    ) -> None:
        """Register the transaction that the last record of the shard decided."""
        self._timeouts.drop(transactional_id)
        self._endings.add(transactional_id, shard_log, shard_log.log.log_end_offset - 1, answer)

    def _fence(self, transactional_id: str, now_ms: int) -> None:
        """Abort the open transaction without its producer's request, and fence that producer."""
        shard_log = self._homes[transactional_id]
        wall_now_ms = self._wall.at(now_ms)
        # The epoch is raised in the same record that decides the abort. If they were two records, a crash between them
        # would leave the old producer able to write after its transaction was aborted.
        decision = shard_log.shard.fence(transactional_id, wall_now_ms, lambda: self._new_producer_id(now_ms))
        shard_log.execute(decision, wall_now_ms)
        # A retry of an earlier commit must not be answered as a success: its epoch is fenced now.
        self._answers.pop(transactional_id, None)
        self._prepared(transactional_id, shard_log)

    # admin -----------------------------------------------------------------------------------------------------------

    def list(self, states: Collection[str] = ()) -> list[TransactionListing]:
        """List every transactional id, by name; only those in some states (Kafka's names), if given."""
        return [
            TransactionListing(transactional_id, known.producer_id, known.state.title)
            for transactional_id, known in self._all()
            if not states or known.state.title in states
        ]

    def describe(self, transactional_id: str) -> TransactionDescription:
        """Describe a transactional id. Raises TransactionalIdNotFound."""
        known = self._look(transactional_id)
        is_open = known.state is ONGOING or known.state in _PREPARED
        return TransactionDescription(
            transactional_id,
            known.state.title,
            known.producer_id,
            known.producer_epoch,
            known.timeout_ms,
            known.start_ms if is_open else -1,
            tuple(sorted(known.partitions)),
        )

    def abort(self, transactional_id: str, now_ms: int) -> None:
        """Abort the id's open transaction, and fence its producer.

        Raises TransactionalIdNotFound, InvalidTxnState if nothing is open, ConcurrentTransactions, StorageError.
        """
        self._check_open()
        self._look(transactional_id)
        self._fence(transactional_id, now_ms)
        self._endings.advance(transactional_id, now_ms)

    def write_marker(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        committed: bool,
        coordinator_epoch: int,
        now_ms: int,
    ) -> int:
        """End a producer's open transaction in one partition, whatever the coordinator has decided (WriteTxnMarkers).

        Returns the marker's offset, -1 if nothing was ever written. Raises UnknownTopicOrPartition,
        InvalidProducerEpoch, TransactionCoordinatorFenced, StorageError.
        """
        self._check_open()
        error = self._refuse(topic_partition)
        if error is not None:
            raise error
        offset = self._endings.mark(topic_partition, producer, committed, now_ms, coordinator_epoch)
        return -1 if offset is None else offset

    # opening ---------------------------------------------------------------------------------------------------------

    def abort_all(self, now_ms: int) -> None:
        """Abort each open transaction, because all clients are gone. For an engine that was just opened; it flushes."""
        self._check_open()
        # The clients of an embedded log live in the process that opened it, so none of them can have survived the
        # restart.
        for transactional_id, known in self._all():
            if known.state is ONGOING:
                try:
                    self._fence(transactional_id, now_ms)
                except StorageError as error:
                    _logger.warning("transaction %r will be aborted by its timeout: %s", transactional_id, error)
        self._settle(now_ms)

    def recover(self, now_ms: int) -> None:
        """At opening, once all logs and groups are loaded, finish the prepared transactions, then `reconcile`."""
        self._settle(now_ms)
        # The prepared transactions first: their markers remove open transactions that `reconcile` would otherwise
        # report as unknown and abort.
        self.reconcile(now_ms)
        self._settle(now_ms)

    def reconcile(self, now_ms: int) -> None:
        """Abort transactions that are open in a partition but not in the coordinator; raise ids above all epochs seen.

        Such a transaction's record in ``__transaction_state`` was lost in a crash, so nothing of it was acknowledged
        (or less than a flush was asked for).
        """
        try:
            for unknown in find_unknown(self._partitions, dict(self._all())):
                self._endings.end_unknown(unknown, now_ms)
            self._pass_epochs(now_ms)
        # Opening must not fail because the disk is full: deleting a topic, which frees space, needs an open log.
        except StorageError as error:
            _logger.warning("transactions that a crash left open stay open until there is room: %s", error)
            self._reconcile_at_ms = now_ms + RETRY_MS
        else:
            self._reconcile_at_ms = NEVER_MS
        self.finish_prepared(now_ms)

    def _pass_epochs(self, now_ms: int) -> None:
        """Raise every id above the epochs that partitions have seen: none of them may be used again."""
        ids = {known.producer_id: transactional_id for transactional_id, known in self._all()}
        seen: dict[int, int] = {}
        for _, producer_id, state in producer_states(self._partitions):
            seen[producer_id] = max(seen.get(producer_id, -1), state.producer_epoch)
        for producer_id, epoch in seen.items():
            known = self._producers.get(producer_id)
            # A partition may have seen a higher epoch than the coordinator if the record that raised the epoch was lost
            # in a crash, while the batch in the partition was kept. Prepared transactions are left to
            # `finish_prepared`.
            if known is None or known.state in _PREPARED or epoch <= known.producer_epoch:
                continue
            transactional_id = ids[producer_id]
            shard_log = self._homes[transactional_id]
            wall_now_ms = self._wall.at(now_ms)
            shard_log.execute(shard_log.shard.raise_epoch(transactional_id, epoch + 1, wall_now_ms), wall_now_ms)
            if known.state is ONGOING:
                self._fence(transactional_id, now_ms)

    def _settle(self, now_ms: int) -> None:
        """Finish prepared transactions, with the flushes that they need."""
        self.finish_prepared(now_ms)
        self._flush_now()

    # time ------------------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> None:
        """Do everything that is due: abort what timed out, try again what failed, delete idle ids."""
        # The monotonic clock of a test or of a resumed machine may go back. Without this, nothing would be due until
        # the clock has caught up.
        set_back = now_ms < self._ticked_ms
        self._ticked_ms = now_ms
        if set_back or now_ms >= self._timeouts.next_sweep_ms:
            self._time_out(now_ms)
        if self._reconcile_at_ms != NEVER_MS and (set_back or now_ms >= self._reconcile_at_ms):
            self.reconcile(now_ms)
        if set_back or now_ms >= self._endings.next_retry_ms:
            self.finish_prepared(now_ms)
        if set_back or now_ms >= self._next_expiry_ms:
            self.expire(now_ms)

    def _time_out(self, now_ms: int) -> None:
        due = self._timeouts.sweep(now_ms, lambda transactional_id: self._look(transactional_id).timeout_ms)
        for transactional_id in due:
            try:
                self._fence(transactional_id, now_ms)
            # The deadline stays, so the next sweep tries again.
            except StorageError as error:
                _logger.warning("transaction %r has timed out, and cannot be aborted: %s", transactional_id, error)
            else:
                timeout_ms = self._look(transactional_id).timeout_ms
                _logger.info("transaction %r timed out after %d ms: aborted", transactional_id, timeout_ms)
        if due:
            self.finish_prepared(now_ms)

    def expire(self, now_ms: int) -> None:
        """Delete the ids that are past ``transactional_id_expiration_ms``."""
        self._next_expiry_ms = now_ms + self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        wall_now_ms = self._wall.at(now_ms)
        for shard_log in self._shards.values():
            decision = shard_log.shard.expire(wall_now_ms, self._config.transactional_id_expiration_ms)
            try:
                shard_log.execute(decision, wall_now_ms)
            except StorageError as error:
                _logger.warning("idle transactional ids of %s: %s", shard_log.log.topic_partition, error)
                continue
            if decision.reply:
                _logger.info(
                    "%s: %d transactional id(s) expired (%s...): unused for transactional_id_expiration_ms=%d",
                    shard_log.log.topic_partition, len(decision.reply), decision.reply[0],
                    self._config.transactional_id_expiration_ms,
                )  # fmt: skip
            for transactional_id in decision.reply:
                del self._homes[transactional_id]
                self._answers.pop(transactional_id, None)

    def next_deadline_ms(self) -> int:
        """Return when `tick` has something to do."""
        timeouts_ms = self._timeouts.next_sweep_ms
        return min(timeouts_ms, self._endings.next_retry_ms, self._reconcile_at_ms, self._next_expiry_ms)

    # -----------------------------------------------------------------------------------------------------------------

    def _number(self, transactional_id: str) -> int:
        check_transactional_id(transactional_id)
        return partition_for_group(transactional_id, self._partition_count)

    def _home(self, transactional_id: str, producer: ProducerIdAndEpoch, now_ms: int) -> TransactionsLog:
        shard_log = self._homes.get(transactional_id)
        if shard_log is None:
            # An empty shard gives the same error as a shard without the id, so the message exists once.
            TransactionsShard().known(transactional_id, producer)  # it raises
            raise AssertionError(transactional_id)
        if transactional_id in self.prepared:  # perhaps the disk was full, and has space by now
            self._endings.advance(transactional_id, now_ms)
        return shard_log

    def _look(self, transactional_id: str) -> TransactionMetadata:
        shard_log = self._homes.get(transactional_id)
        if shard_log is None:
            raise unknown_transactional_id(transactional_id, self._homes)
        return shard_log.shard.look(transactional_id)

    def _all(self) -> list[tuple[str, TransactionMetadata]]:
        return sorted(
            (transactional_id, shard_log.shard.transactions[transactional_id])
            for transactional_id, shard_log in self._homes.items()
        )

    def close(self) -> None:
        """Save the state from which the next opening continues."""
        for shard_log in self._shards.values():
            shard_log.close()

    def check(self) -> None:
        """Check every invariant, also that live state equals replayed state and the indexes agree; raise
        AssertionError."""
        producers: dict[int, TransactionMetadata] = {}
        homes: dict[str, TransactionsLog] = {}
        for number, shard_log in self._shards.items():
            shard_log.check(TransactionsShard)
            for transactional_id, known in shard_log.shard.transactions.items():
                assert self._number(transactional_id) == number, f"{transactional_id!r} in partition {number}"
                assert known.producer_id not in producers, f"producer id {known.producer_id} has two transactional ids"
                producers[known.producer_id] = known
                homes[transactional_id] = shard_log
        assert producers == self._producers
        assert homes == self._homes
        states = {transactional_id: known.state for transactional_id, known in self._all()}
        self._timeouts.check({transactional_id for transactional_id, state in states.items() if state is ONGOING})
        prepared = {transactional_id for transactional_id, state in states.items() if state in _PREPARED}
        assert prepared == set(self.prepared), f"prepared {prepared}, ending {set(self.prepared)}"
