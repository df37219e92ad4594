"""The transactions of the embedded producer: its state machine (KIP-98, KIP-890).

::

    FRESH --init--> READY --begin--> OPEN --commit--> COMMITTING --+--> READY
                                      |                            |
                                    error --> SPOILED --abort--> ABORTING
    fenced, or the outcome cannot be known: LOST, permanently

A commit has a fixed order: the data is durable, the decision is durable, the markers are durable. Each step can be
repeated, so a commit that was cancelled is completed by the next call, or by `init`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn

import anyio
import anyio.lowlevel

from eventbus.backends.accumulator import Accumulator, Identity
from eventbus.backends.transactional import State, Transactions
from eventbus.coordinator.requests import TransactionEnd
from eventbus.errors import (
    ConcurrentTransactions,
    EventBusError,
    InvalidProducerEpoch,
    InvalidProducerIdMapping,
    InvalidTxnState,
    KafkaError,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnknownTopicOrPartition,
)
from eventbus.types import GroupMetadata, OffsetAndMetadata, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from eventbus.backends.embedded_producer import EmbeddedProducer

logger = logging.getLogger("eventbus.producer")

_FENCED = (ProducerFenced, InvalidProducerEpoch, InvalidProducerIdMapping)
"""Errors for a producer that no longer owns its transactional id, or whose transaction timed out."""
_NOT_COMMITTED = (InvalidTxnState, *_FENCED)
"""Errors of a commit whose transaction the log has aborted. InvalidTxnState: the abort is the last end of the id."""
_RETRY_SECONDS = 0.005
_REPORT_AFTER_SECONDS = 5.0


class ProducerTransactions(Transactions):
    """The consecutive transactions of one producer."""

    def __init__(self, producer: EmbeddedProducer, transactional_id: str) -> None:
        super().__init__(transactional_id)
        self._producer = producer
        self._engine = producer.engine
        self._owner: ProducerIdAndEpoch | None = None
        self._identity: Identity | None = None
        """The identity of the open transaction, while batches may still join it."""
        self._touched: dict[TopicPartition, Accumulator] = {}
        """The partitions in which the open transaction has records."""
        self._offsets: dict[TopicPartition, int] = {}
        """The partitions of ``__consumer_offsets`` where it has offsets, each with the offset of its last record."""
        self._end: TransactionEnd | None = None
        """The requested end; None again once it is complete."""
        self._reported = False
        """True once the log contains what the end of the open transaction waits for."""

    # beginning -------------------------------------------------------------------------------------------------------

    async def init(self) -> None:
        """Take over the transactional id, and finish what was interrupted. Does nothing if neither is necessary."""
        if self._end is not None:
            await self._see_through(self._end)
        # A fenced producer must not take the id over again: two processes would fence each other forever.
        self._check_not_lost()
        if self._state is not State.FRESH:
            return
        # Two tasks may begin their first transaction at once. The second initialization would fence the first.
        async with self._initialising:
            if self._state is State.FRESH:
                self._owner = await self._take_over(None)
                self._state = State.READY

    async def _take_over(self, owner: ProducerIdAndEpoch | None) -> ProducerIdAndEpoch:
        """Return a new, durable epoch: a crash must not give it out again while records with it survive."""
        engine = self._engine
        deadline = self._deadline()
        while True:
            try:
                taken = engine.broker.transactions.init_producer_id(
                    self._id, self._producer.config.transaction_timeout_ms, self._now_ms(), producer=owner
                )
            except ConcurrentTransactions as error:
                await self._let_end(deadline, error)
                continue
            if engine.waits_for_flush:
                # The epoch is taken: a caller that is cancelled here would not learn it, and later be fenced by it.
                with anyio.CancelScope(shield=True):
                    await engine.flushes.flush_all()
            return taken

    def _deadline(self) -> float:
        return self._engine.timers.current_time() + self._producer.config.max_block_ms / 1000

    async def _let_end(self, deadline: float, error: EventBusError | None = None) -> None:
        """Wait for the end of the previous transaction: its decision needs a flush, its markers space on the disk."""
        engine = self._engine
        left_seconds = deadline - engine.timers.current_time()
        if left_seconds < 0:
            raise RequestTimedOut(
                f"the transaction of {self._id!r} could not be ended within "
                f"max_block_ms={self._producer.config.max_block_ms:,}: is there room on the disk?"
            ) from error
        waited_seconds = self._producer.config.max_block_ms / 1000 - left_seconds
        if waited_seconds > _REPORT_AFTER_SECONDS and not self._reported:
            self._reported = True
            logger.warning(
                "the end of the transaction of %r has waited for %.0f s, and waits up to max_block_ms=%d: %s",
                self._id, waited_seconds, self._producer.config.max_block_ms,
                error or "it is decided, and the disk has no room for its markers",
            )  # fmt: skip
        # After a failed flush nothing becomes durable any more, so waiting for it would only end with the timeout.
        engine.broker.check_healthy()
        if engine.waits_for_flush:
            with anyio.CancelScope(shield=True):
                await engine.flushes.flush_all()
        engine.broker.transactions.finish_prepared(self._now_ms())
        await engine.timers.sleep(_RETRY_SECONDS)

    def begin(self) -> None:
        self._require(State.READY, "begin a transaction")
        assert self._owner is not None
        self._identity = self._producer.identity = Identity(*self._owner, True)
        self._state = State.OPEN

    # what belongs to it ----------------------------------------------------------------------------------------------

    def check_accepts(self) -> None:
        """Raise unless a record may be sent now."""
        if self._state is not State.OPEN:
            self._require(State.OPEN, "send")

    def include(self, accumulator: Accumulator) -> Identity:
        """Add the partition before its first batch in this transaction is stored: the coordinator must know it
        first."""
        if self._identity is None or self._owner is None:
            raise self._refusal("send")
        topic_partition = accumulator.topic_partition
        transactions, now_ms = self._engine.broker.transactions, self._now_ms()
        try:
            transactions.add_partitions(self._id, self._owner, (topic_partition,), now_ms)
        except ConcurrentTransactions:  # the last transaction has its markers, but the disk was too full to record that
            transactions.finish_prepared(now_ms)
            transactions.add_partitions(self._id, self._owner, (topic_partition,), now_ms)
        # The transaction's timeout begins now, and it may be the next thing that is due.
        if not self._touched:
            self._engine.deadline_changed()
        self._touched[topic_partition] = accumulator
        return self._identity

    def spoil(self, error: EventBusError) -> None:
        """Record that something of the open transaction was not stored: it can only be aborted."""
        # Once the end is decided, an error of a record cannot change it any more.
        if self._state in (State.OPEN, State.COMMITTING) and self._end is None:
            self._error = self._error or error
            if self._state is State.OPEN:
                self._state = State.SPOILED
                self._close_door()

    def _close_door(self) -> None:
        """Let no further batch join the transaction."""
        self._identity = None
        self._producer.forget_identity()

    async def send_offsets(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], group: GroupMetadata) -> None:
        self._require(State.OPEN, "send offsets")
        assert self._owner is not None
        if not offsets:
            return
        try:
            stored = self._engine.broker.transactions.commit_offsets(
                self._id, self._owner, group, dict(offsets), self._now_ms()
            )
            if stored.last_offset >= 0:
                # Offsets are records too, and must be durable before the decision.
                self._offsets[stored.topic_partition] = stored.last_offset
            for error in stored.errors.values():
                raise error
        except EventBusError as error:
            self.spoil(error)
            raise

    # ending ----------------------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Commit. Raises TransactionAborted, ProducerFenced, TransactionOutcomeUnknown; StorageError: nothing
        happened yet."""
        if self._end is not None and self._end.committed:
            await self._see_through(self._end)
            return
        if self._state is not State.SPOILED:
            self._require(State.OPEN, "commit")
            identity = self._identity
            assert identity is not None
            self._state = State.COMMITTING
            try:
                # Open batches are stored, and then nothing can join the transaction, before the first await: a record
                # that another task sends meanwhile could not become durable before the decision.
                self._producer.close_open()
                self._close_door()
                await self._make_durable()
                if self._error is None:
                    await self._end_it(committed=True)
                    return
            finally:
                # It was cancelled, or failed: the transaction is still open.
                if self._state is State.COMMITTING and self._end is None:
                    self._state = State.SPOILED
                    if self._error is None:
                        self._state = State.OPEN
                        self._identity = self._producer.identity = identity
        error = self._error
        assert error is not None, "a transaction is spoiled by something"
        # The log still has the transaction open. Its records would stay in the way of readers until it times out.
        await self.abort()
        raise TransactionAborted(f"the transaction of {self._id!r} was aborted: {error}") from error

    async def abort(self) -> None:
        """Abort. Raises ProducerFenced; StorageError: call again once the disk has space."""
        if self._end is not None and not self._end.committed:
            await self._see_through(self._end)
            return
        if self._state not in (State.SPOILED, State.ABORTING):
            self._require(State.OPEN, "abort")
        aborted = TransactionAborted(f"the transaction of {self._id!r} was aborted")
        self._error = self._error or aborted
        self._state = State.ABORTING
        self._close_door()
        # Not stored yet, so the abort needs no marker for them.
        self._producer.discard_open(aborted)
        try:
            await self._end_it(committed=False)
        except TransactionAborted:
            return  # aborted by its timeout, as requested
        finally:
            if self._state is State.ABORTING and self._end is None:
                self._state = State.SPOILED

    async def _make_durable(self) -> None:
        """Make all records and offsets of the transaction durable; an error spoils it."""
        if not self._engine.waits_for_flush:
            await anyio.lowlevel.checkpoint()
            return
        await self._producer.settle()
        ends = {topic_partition: touched.last_offset for topic_partition, touched in self._touched.items()}
        ends.update(self._offsets)
        for topic_partition, last_offset in ends.items():
            try:
                await self._engine.flushes.wait_durable(topic_partition, last_offset)
            except UnknownTopicOrPartition:
                continue  # its topic was deleted, with the records
            except EventBusError as error:
                self.spoil(error)
                return

    async def _end_it(self, *, committed: bool) -> None:
        """Let the coordinator record the outcome, and complete the end. If it cannot, nothing has happened."""
        try:
            end = self._decide(committed)
        except (ConcurrentTransactions, *_NOT_COMMITTED) as error:
            await self._decide_later(committed, error)
            end = self._end
        assert end is not None
        # Nothing waits for flushes here, and the markers are written already.
        if end.markers is not None and not self._engine.waits_for_flush:
            self._go_on_after(end)
            return
        await self._see_through(end)

    def _decide(self, committed: bool) -> TransactionEnd:
        assert self._owner is not None
        transactions = self._engine.broker.transactions
        end = self._end = transactions.end(self._id, self._owner, committed=committed, now_ms=self._now_ms())
        return end

    async def _decide_later(self, committed: bool, error: KafkaError) -> None:
        """Handle the refusal of an end because of another end."""
        deadline = self._deadline()
        while self._end is None:
            if not isinstance(error, ConcurrentTransactions):
                await self._recover(error)
            await self._let_end(deadline, error)
            try:
                self._decide(committed)
            except (ConcurrentTransactions, *_NOT_COMMITTED) as again:
                error = again

    async def _recover(self, error: EventBusError) -> NoReturn:
        """Handle a transaction that the log has ended: after a timeout, continue with a new epoch; otherwise, it was
        fenced."""
        try:
            self._owner = await self._take_over(self._owner)
        except _FENCED:
            self._lose(ProducerFenced(self._taken_over()))
            raise self._refusal("") from error
        self._become_ready()
        raise TransactionAborted(
            f"the log has aborted the transaction of {self._id!r}, which was open for longer than "
            f"transaction_timeout_ms={self._producer.config.transaction_timeout_ms:,} (or was aborted by an "
            "administrator): run it again from its beginning"
        ) from error

    async def _see_through(self, end: TransactionEnd) -> None:
        """Wait until the decision and the markers are durable. Can be repeated, and called by two tasks.

        A task that is cancelled still waits for the flushes, which take milliseconds, and then has the outcome. It does
        not wait for space on a full disk, which may never come: the next call, or the next producer of the id, ends the
        transaction.
        """
        engine = self._engine
        try:
            if end.offset >= 0:
                await self._wait_durable(end.topic_partition, end.offset)
                if end.markers is None:
                    await self._wait_for_markers(end)
            for topic_partition, offset in end.markers or ():
                try:
                    await self._wait_durable(topic_partition, offset)
                except UnknownTopicOrPartition:  # deleted since: the marker is no longer needed
                    engine.broker.transactions.finish_prepared(self._now_ms())
        except EventBusError as error:
            if not end.committed:  # certain anyway: whatever is on disk, opening the log aborts it
                self._lose(error)
                raise
            decided = end.markers is not None
            self._lose(
                TransactionOutcomeUnknown(
                    f"the commit of a transaction of {self._id!r} was "
                    f"{'decided, but readers cannot see it yet' if decided else 'asked for, but not answered'}: "
                    f"{error}. Open the log again, then read what the transaction wrote before running it again"
                )
            )
            self._check_not_lost(error)
        self._go_on_after(end)

    async def _wait_durable(self, topic_partition: TopicPartition, offset: int) -> None:
        if not self._engine.broker.is_durable(topic_partition, offset):
            with anyio.CancelScope(shield=True):
                await self._engine.flushes.wait_flushed(topic_partition, offset)

    def _go_on_after(self, end: TransactionEnd) -> None:
        if self._end is end:
            self._owner = end.next
            self._become_ready()

    async def _wait_for_markers(self, end: TransactionEnd) -> None:
        """Wait for markers that could not be written because the disk is full. The decision is durable."""
        deadline = self._deadline()
        while end.markers is None:
            await self._let_end(deadline)

    def _become_ready(self) -> None:
        self._end = None
        self._error = None
        self._reported = False
        self._touched = {}
        self._offsets = {}
        self._state = State.READY

    async def aclose(self) -> None:
        """Abort an open transaction, or finish its end. Errors are logged: the next producer of the id aborts it."""
        try:
            if self._end is not None:
                await self._see_through(self._end)
            elif self._state in (State.OPEN, State.SPOILED, State.ABORTING):
                await self.abort()
        except EventBusError as error:
            logger.warning("the transaction of %r could not be ended when its producer closed: %s", self._id, error)

    # errors ----------------------------------------------------------------------------------------------------------

    def _lose(self, error: EventBusError) -> None:
        self._close_door()
        self._error = error
        self._end = None
        self._state = State.LOST

    def _now_ms(self) -> int:
        return self._engine.now_ms()
