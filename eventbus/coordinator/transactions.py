"""Transactional ids of one partition of ``__transaction_state``: KIP-98, 360, 588, 890. Pure.

A producer that ends a transaction continues with the next epoch (KIP-890, "transactions V2"), so the epoch separates a
retry of that end (one below) from the end of the next transaction. A *fence* (timeout, takeover, admin) is an abort
without a request of the producer: it moves the epoch by one as well. The producer may then abort in turn, and continue
with the new epoch, unless a successor has initialised the id meanwhile: `init` moves the epoch once more. The epoch of
a request decides which event of `transaction_states` it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from eventbus.coordinator.shard import CoordinatorRecord, Decision
from eventbus.coordinator.transaction_codec import (
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
    decode_transaction_key,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from eventbus.coordinator.transaction_states import (
    DEAD,
    EMPTY,
    ONGOING,
    PREPARE_ABORT,
    TRANSITIONS,
    TransactionEvent,
)
from eventbus.errors import (
    ConcurrentTransactions,
    InvalidProducerIdMapping,
    InvalidRequest,
    ProducerFenced,
    TransactionalIdNotFound,
)
from eventbus.log.wall_time import WallTime
from eventbus.suggest import nearest
from eventbus.types import ProducerIdAndEpoch, TopicPartition

ReplyT = TypeVar("ReplyT")

LAST_EPOCH = 32_766
"""The highest epoch that a producer gets: at the end of its transaction, a new producer id follows at epoch 0."""
MAX_EPOCH = 32_767
"""The highest epoch of a marker."""
MAX_ID_BYTES = 32_767


class TransactionsShard:
    """Hard state: ``transactions``, by transactional id.

    ``producers`` maps producer ids to the same metadata; the shards of a broker share it.
    """

    __slots__ = ("_continued", "_wall", "producers", "transactions")

    def __init__(self, producers: dict[int, TransactionMetadata] | None = None, wall: WallTime | None = None) -> None:
        self._wall = wall or WallTime()
        self.transactions: dict[str, TransactionMetadata] = {}
        self.producers: dict[int, TransactionMetadata] = {} if producers is None else producers
        self._continued: dict[str, tuple[ProducerIdAndEpoch, ProducerIdAndEpoch]] = {}
        """Request and answer of the last `init` with ``expected``, for a retry. Soft state, as in Kafka.

        It is valid while the answer is the id's producer: another producer that takes the id over gets another epoch.
        """

    def __repr__(self) -> str:
        return f"TransactionsShard({' '.join(_line(*item) for item in sorted(self.transactions.items()))})"

    # decide ----------------------------------------------------------------------------------------------------------

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        wall_now_ms: int,
        new_producer_id: Callable[[], int],
        expected: ProducerIdAndEpoch | None = None,
    ) -> Decision[ProducerIdAndEpoch | None]:
        """Take the id over, or (``expected``) continue after an error (KIP-360) or a timeout (KIP-588).

        The reply is the producer id and epoch to use. None: this began the abort of an open transaction; call again
        when it is complete. Raises ProducerFenced, ConcurrentTransactions.
        """
        check_transactional_id(transactional_id)
        known = self.transactions.get(transactional_id)
        if known is None:
            # A new id always gets a new producer id, also after it expired: partitions may still have the state of the
            # expired one.
            fresh = TransactionMetadata(new_producer_id(), 0, timeout_ms, EMPTY, last_update_ms=wall_now_ms)
            return _stored(transactional_id, fresh, fresh.producer)
        if expected is not None and self._is_answered(transactional_id, known, expected):
            return Decision((), known.producer)
        # The predecessor may be alive and about to commit. Raising the epoch with the decision to abort fences it
        # before the new producer gets an answer.
        if _next(transactional_id, known, TransactionEvent.INIT) is PREPARE_ABORT:
            return Decision(self.fence(transactional_id, wall_now_ms, new_producer_id).records, None)
        # Epochs have 15 bits, and the highest is reserved for markers that fence the producer id.
        if known.producer_epoch >= LAST_EPOCH:
            producer = ProducerIdAndEpoch(new_producer_id(), 0)
        else:
            producer = ProducerIdAndEpoch(known.producer_id, known.producer_epoch + 1)
        value = TransactionMetadata(
            producer.producer_id,
            producer.producer_epoch,
            timeout_ms,
            EMPTY,
            last_update_ms=wall_now_ms,
            # With a new producer id, a retry of the request still comes with the old id, and `known` must recognise it.
            previous_producer_id=(
                known.producer_id if expected and producer.producer_id != known.producer_id else NO_PRODUCER_ID
            ),
        )
        if expected is not None:
            self._continued[transactional_id] = (expected, producer)
        return _stored(transactional_id, value, producer)

    def _is_answered(self, transactional_id: str, known: TransactionMetadata, expected: ProducerIdAndEpoch) -> bool:
        """True if this producer was answered before. Raises ProducerFenced if another producer has initialised the
        id since."""
        # The first attempt: nothing was answered yet.
        if expected == known.producer:
            return False
        if self._continued.get(transactional_id) == (expected, known.producer):
            return True
        # The answer to its last end was lost, or its transaction was aborted by a fence (KIP-588). In both cases the
        # producer does not know the epoch that followed, and no other producer has initialised the id.
        if known.state not in (EMPTY, ONGOING) and _is_retry(known, expected):
            return False
        raise _fenced(transactional_id, known, expected)

    def add(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partitions: Iterable[TopicPartition],
        wall_now_ms: int,
    ) -> Decision[TransactionMetadata]:
        """Add partitions to the transaction; the first ones begin it. Raises as `current`."""
        known = self.current(transactional_id, producer)
        state = _next(transactional_id, known, TransactionEvent.ADD)
        is_open = known.state is ONGOING
        added = known.partitions.union(partitions) if is_open else frozenset(partitions)
        if added == known.partitions:
            return Decision((), known)  # the usual case after the first batch: no record is written
        value = TransactionMetadata(
            known.producer_id,
            known.producer_epoch,
            known.timeout_ms,
            state,
            added,
            wall_now_ms,
            known.start_ms if is_open else wall_now_ms,
        )
        return _stored(transactional_id, value, value)

    def end(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        committed: bool,
        wall_now_ms: int,
        new_producer_id: Callable[[], int],
        bump_epoch: bool = True,
    ) -> Decision[ProducerIdAndEpoch]:
        """Decide the transaction; the reply is the producer id and epoch with which the producer continues.

        Without records if there was nothing to end, or if it had already been ended in this way. Raises
        InvalidProducerIdMapping, ProducerFenced, InvalidTxnState, ConcurrentTransactions.
        """
        # `known` and not `current`: a retry comes with the epoch before.
        known = self.known(transactional_id, producer)
        if bump_epoch and _is_retry(known, producer):
            event = TransactionEvent.RETRY_COMMIT if committed else TransactionEvent.RETRY_ABORT
        else:
            _check_current(transactional_id, known, producer)
            if bump_epoch:
                event = TransactionEvent.COMMIT if committed else TransactionEvent.ABORT
            else:
                # Without KIP-890 a retry has the same epoch as the request, so the state alone distinguishes them.
                event = TransactionEvent.COMMIT_V1 if committed else TransactionEvent.ABORT_V1
        state = _next(transactional_id, known, event, producer)
        if state is known.state:
            return Decision((), known.producer)  # a retry whose answer was lost, or a transaction without partitions
        value = _prepared(known, state, wall_now_ms, new_producer_id if bump_epoch else None)
        # The epoch is used up. The transaction ends under the old id, and the producer continues with a new one, epoch
        # 0.
        rotates = value.next_producer_id != NO_PRODUCER_ID
        return _stored(
            transactional_id, value, ProducerIdAndEpoch(value.next_producer_id, 0) if rotates else value.producer
        )

    def fence(
        self, transactional_id: str, wall_now_ms: int, new_producer_id: Callable[[], int]
    ) -> Decision[TransactionMetadata]:
        """Abort the open transaction without a request of its producer.

        Raises TransactionalIdNotFound, and by `TRANSITIONS`.
        """
        known = self.look(transactional_id)
        state = _next(transactional_id, known, TransactionEvent.FENCE)
        value = _prepared(known, state, wall_now_ms, new_producer_id)
        return _stored(transactional_id, value, value)

    def complete(self, transactional_id: str, wall_now_ms: int) -> Decision[TransactionMetadata]:
        """Complete the prepared transaction, after all its markers have been written."""
        known = self.look(transactional_id)
        state = _next(transactional_id, known, TransactionEvent.MARKED)
        rotates = known.next_producer_id != NO_PRODUCER_ID
        value = TransactionMetadata(
            known.next_producer_id if rotates else known.producer_id,
            0 if rotates else known.producer_epoch,
            known.timeout_ms,
            state,
            frozenset(),
            wall_now_ms,
            known.start_ms,
            # A retry of the end may still come with the old id.
            known.producer_id if rotates else NO_PRODUCER_ID,
            is_bumped=known.is_bumped,
        )
        return _stored(transactional_id, value, value)

    def raise_epoch(self, transactional_id: str, epoch: int, wall_now_ms: int) -> Decision[TransactionMetadata]:
        """Raise the epoch above an epoch that partitions have seen but that a crash removed from this log."""
        known = self.look(transactional_id)
        if known.producer_epoch >= epoch:
            return Decision((), known)
        value = msgspec.structs.replace(known, producer_epoch=min(epoch, MAX_EPOCH), last_update_ms=wall_now_ms)
        return _stored(transactional_id, value, value)

    def expire(self, wall_now_ms: int, expiration_ms: int) -> Decision[list[str]]:
        """Delete ids that have not been used for ``expiration_ms``; the reply names them."""
        # An open or prepared transaction must be ended first: without the id, nothing would write its markers.
        row = TRANSITIONS[TransactionEvent.EXPIRE]
        idle = [
            transactional_id
            for transactional_id, known in self.transactions.items()
            if row[known.state].outcome is DEAD
            and wall_now_ms - self._wall.believed(known.last_update_ms, wall_now_ms) >= expiration_ms
        ]
        records = tuple(CoordinatorRecord(encode_transaction_key(transactional_id), None) for transactional_id in idle)
        return Decision(records, idle)

    # replay ----------------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        transactional_id = decode_transaction_key(key)
        before = self.transactions.get(transactional_id)
        # The dict is shared by all shards, so only the entry of this id is removed.
        if before is not None and self.producers.get(before.producer_id) is before:
            del self.producers[before.producer_id]
        if value is None:
            self.transactions.pop(transactional_id, None)
            self._continued.pop(transactional_id, None)
            return
        metadata = _decided.get(value) or decode_transaction_value(value)
        self.transactions[transactional_id] = self.producers[metadata.producer_id] = metadata

    # look ------------------------------------------------------------------------------------------------------------

    def look(self, transactional_id: str) -> TransactionMetadata:
        """Return the id's metadata. Raises TransactionalIdNotFound with the nearest id."""
        known = self.transactions.get(transactional_id)
        if known is None:
            raise unknown_transactional_id(transactional_id, self.transactions)
        return known

    def known(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """Return the id's metadata. Raises InvalidProducerIdMapping unless the id belongs to this producer id."""
        known = self.transactions.get(transactional_id)
        if known is None:
            raise InvalidProducerIdMapping(
                f"transactional id {transactional_id!r} is not known: it was never initialised, or idle for so long "
                "that it expired; open a new producer"
            )
        # During an id's change of its producer id, requests may come with the old and with the new one.
        ids = (known.producer_id, known.next_producer_id, known.previous_producer_id)
        if producer.producer_id < 0 or producer.producer_id not in ids:
            raise InvalidProducerIdMapping(
                f"transactional id {transactional_id!r} belongs to producer id {known.producer_id}, not to "
                f"{producer.producer_id}: another producer took it over; stop this one"
            )
        return known

    def current(self, transactional_id: str, producer: ProducerIdAndEpoch) -> TransactionMetadata:
        """Return the metadata. Raises InvalidProducerIdMapping, ProducerFenced unless the producer is the id's
        latest."""
        known = self.known(transactional_id, producer)
        _check_current(transactional_id, known, producer)
        return known


def unknown_transactional_id(transactional_id: str, known: Iterable[str]) -> TransactionalIdNotFound:
    """Return the error for an id that was never initialised, or that expired."""
    hint = nearest(transactional_id, known) or "; see: eventbus transactions list"
    return TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}{hint}")


def check_transactional_id(transactional_id: str) -> None:
    """Raise InvalidRequest for an id that cannot be stored."""
    try:
        size_bytes = len(transactional_id.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"transactional id {transactional_id!r} is not valid Unicode text: choose another one"
        ) from None
    if not 0 < size_bytes <= MAX_ID_BYTES:
        raise InvalidRequest(
            f"a transactional id has 1 to {MAX_ID_BYTES:,} bytes, this one has {size_bytes:,}: choose another one"
        )


def _next(
    transactional_id: str,
    known: TransactionMetadata,
    event: TransactionEvent,
    producer: ProducerIdAndEpoch | None = None,
) -> TransactionState:
    """Return the next state, or raise the error for the requesting ``producer``."""
    outcome, rule = TRANSITIONS[event][known.state]
    if isinstance(outcome, TransactionState):
        return outcome
    if outcome is ProducerFenced and producer is not None:
        raise _fenced(transactional_id, known, producer)
    if outcome is ConcurrentTransactions:
        raise outcome(
            f"transactional id {transactional_id!r} is {known.state.title}: its last transaction is being ended, try "
            "again in a moment"
        )
    what = event.name.removesuffix("_V1").removeprefix("RETRY_").lower()
    raise outcome(f"transactional id {transactional_id!r} is {known.state.title}, so it cannot {what}: {rule}")


def _is_retry(known: TransactionMetadata, producer: ProducerIdAndEpoch) -> bool:
    """True if the request has the epoch before the last end, so that it may be a retry of that end."""
    producer_id, epoch = producer
    if not (known.is_bumped or known.state in (EMPTY, ONGOING)):
        return False  # by a client that does not raise epochs itself: the epoch before was fenced
    # The last end was at the highest epoch of the previous producer id.
    if producer_id == known.previous_producer_id:
        return epoch == LAST_EPOCH and known.producer_epoch == 0
    if producer_id != known.producer_id or epoch + 1 != known.producer_epoch:
        return False
    # The highest epoch is reached before the next producer id, or in an old log by a fence, which had no next id.
    return known.producer_epoch < MAX_EPOCH or known.next_producer_id != NO_PRODUCER_ID


def _check_current(transactional_id: str, known: TransactionMetadata, producer: ProducerIdAndEpoch) -> None:
    if producer == known.producer:
        return
    if known.next_producer_id != NO_PRODUCER_ID and producer == (known.next_producer_id, 0):
        return  # a retry: the state answers ConcurrentTransactions
    raise _fenced(transactional_id, known, producer)


def _fenced(transactional_id: str, known: TransactionMetadata, producer: ProducerIdAndEpoch) -> ProducerFenced:
    return ProducerFenced(
        f"transactional id {transactional_id!r}: producer {producer.producer_id} at epoch {producer.producer_epoch} is "
        f"fenced, the id stands at producer {known.producer_id}, epoch {known.producer_epoch}. Its transaction timed "
        "out, or another producer took the id over: stop this one"
    )


def _prepared(
    known: TransactionMetadata,
    state: TransactionState,
    wall_now_ms: int,
    new_producer_id: Callable[[], int] | None,
) -> TransactionMetadata:
    """Return the decided transaction, with the next epoch, or without ``new_producer_id`` the same epoch (before
    KIP-890)."""
    is_open = known.state is ONGOING
    is_bumped = new_producer_id is not None
    epoch, next_producer_id = known.producer_epoch, NO_PRODUCER_ID
    if new_producer_id is not None:
        # MAX_EPOCH fences the producer id permanently, because no producer ever gets it as its epoch.
        if epoch >= LAST_EPOCH:
            epoch, next_producer_id = MAX_EPOCH, new_producer_id()
        else:
            epoch += 1
    return TransactionMetadata(
        known.producer_id,
        epoch,
        known.timeout_ms,
        state,
        known.partitions,
        wall_now_ms,
        known.start_ms if is_open else wall_now_ms,
        NO_PRODUCER_ID,
        next_producer_id,
        is_bumped,
    )


_decided: dict[bytes, TransactionMetadata] = {}
"""The metadata decided last, by its encoded bytes: it is replayed next, and need not be decoded for that."""


def _stored(transactional_id: str, value: TransactionMetadata, reply: ReplyT) -> Decision[ReplyT]:
    data = encode_transaction_value(value)
    # A single entry suffices, because a decision is replayed before the next one is made.
    _decided.clear()
    _decided[data] = value
    return Decision((CoordinatorRecord(encode_transaction_key(transactional_id), data),), reply)


def _line(transactional_id: str, known: TransactionMetadata) -> str:
    parts = [f"{transactional_id}={known.state.title} {known.producer_id}/{known.producer_epoch}"]
    parts += [str(topic_partition) for topic_partition in sorted(known.partitions)]
    if known.previous_producer_id != NO_PRODUCER_ID:
        parts.append(f"previous={known.previous_producer_id}")
    if known.next_producer_id != NO_PRODUCER_ID:
        parts.append(f"next={known.next_producer_id}")
    if known.is_bumped:
        parts.append("bumped")
    return f"{' '.join(parts)} timeout={known.timeout_ms} start={known.start_ms} updated={known.last_update_ms};"
