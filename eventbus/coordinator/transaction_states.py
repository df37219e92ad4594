"""The state machine of a transactional id: KIP-98, 360, 588, 890.

`TRANSITIONS` is the complete machine. A request's epoch decides which event it is
(`eventbus.coordinator.transactions`).
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from eventbus.coordinator.transaction_codec import TransactionState
from eventbus.errors import ConcurrentTransactions, InvalidTxnState, KafkaError, ProducerFenced

EMPTY = TransactionState.EMPTY
ONGOING = TransactionState.ONGOING
PREPARE_COMMIT = TransactionState.PREPARE_COMMIT
PREPARE_ABORT = TransactionState.PREPARE_ABORT
COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
COMPLETE_ABORT = TransactionState.COMPLETE_ABORT
DEAD = TransactionState.DEAD

STORED_STATES = (EMPTY, ONGOING, PREPARE_COMMIT, PREPARE_ABORT, COMPLETE_COMMIT, COMPLETE_ABORT)
"""The states that are stored. Dead is a tombstone. PrepareEpochFence, which Kafka needs while an append is in
flight, does not occur here."""


class TransactionEvent(Enum):
    """An event in the life of a transactional id."""

    INIT = "a producer takes the id over, or goes on after an error"
    ADD = "partitions or offsets are added, by the producer at the current epoch"
    COMMIT = "commit, at the current epoch"
    ABORT = "abort, at the current epoch"
    RETRY_COMMIT = "commit once more: at the epoch before, that of the transaction ended last"
    RETRY_ABORT = "abort once more: at the epoch before"
    COMMIT_V1 = "commit by a client from before KIP-890, whose epoch stays"
    ABORT_V1 = "abort by such a client"
    FENCE = "timeout, takeover, or abort by an administrator"
    MARKED = "every marker is written and durable"
    EXPIRE = "transactional_id_expiration_ms have passed"


class Transition(NamedTuple):
    """The result of an event in a state: the next state or an error, and Kafka's rule for it."""

    outcome: TransactionState | type[KafkaError]
    rule: str


_Row = dict[TransactionState, Transition]

_BUSY = Transition(
    ConcurrentTransactions, "Answer CONCURRENT_TRANSACTIONS until the markers are written and the state is complete."
)
_OTHER_END = Transition(InvalidTxnState, "The transaction was ended the other way (KIP-98: INVALID_TXN_STATE).")
_NOT_NOW = Transition(InvalidTxnState, "No transaction is prepared.")
_STALE = Transition(ProducerFenced, "Strict epoch equality for an open or new transaction (KIP-890): PRODUCER_FENCED.")
_NEXT_EPOCH = Transition(EMPTY, "Bump the epoch: the id's previous owner is fenced. At 32766 rotate the producer id.")
_BEGIN = Transition(ONGOING, "The first partition begins the transaction.")
_SAME = "A retry of the end that was carried out: answer it again, store nothing."
_NOTHING = "Nothing was added: nothing to end. (Kafka's client does not send this, KAFKA-18401.)"
_EMPTY_ABORT = Transition(
    PREPARE_ABORT, "Legal since the client may not know whether anything was added (KIP-890); the epoch is bumped."
)
_NONE_OPEN = Transition(InvalidTxnState, "No transaction is open.")
_EXPIRED = Transition(DEAD, "transactional.id.expiration.ms after the last update the id is forgotten (tombstone).")
_KEPT = Transition(InvalidTxnState, "An id never expires while its transaction is open or prepared (KIP-98).")
_V1_EMPTY = Transition(InvalidTxnState, "No transaction was begun (KIP-98: INVALID_TXN_STATE).")


def _row(
    empty: Transition,
    ongoing: Transition,
    prepare_commit: Transition,
    prepare_abort: Transition,
    complete_commit: Transition,
    complete_abort: Transition,
) -> _Row:
    outcomes = (empty, ongoing, prepare_commit, prepare_abort, complete_commit, complete_abort)
    return dict(zip(STORED_STATES, outcomes, strict=True))


TRANSITIONS: dict[TransactionEvent, _Row] = {
    TransactionEvent.INIT: _row(
        _NEXT_EPOCH,
        Transition(PREPARE_ABORT, "Fence and abort what a dead producer left open, then the caller tries again."),
        _BUSY,
        _BUSY,
        _NEXT_EPOCH,
        _NEXT_EPOCH,
    ),
    TransactionEvent.ADD: _row(
        _BEGIN,
        Transition(ONGOING, "Added to the open transaction; stored only when something is new."),
        _BUSY,
        _BUSY,
        _BEGIN,
        _BEGIN,
    ),
    TransactionEvent.COMMIT: _row(
        Transition(EMPTY, _NOTHING),
        Transition(PREPARE_COMMIT, "Decided once this is durable: markers follow, whatever happens (KIP-98)."),
        _BUSY,
        _BUSY,
        Transition(COMPLETE_COMMIT, _NOTHING),
        Transition(COMPLETE_ABORT, _NOTHING),
    ),
    TransactionEvent.ABORT: _row(
        _EMPTY_ABORT,
        Transition(PREPARE_ABORT, "Decided once this is durable: markers follow, whatever happens (KIP-98)."),
        _BUSY,
        _BUSY,
        _EMPTY_ABORT,
        _EMPTY_ABORT,
    ),
    TransactionEvent.RETRY_COMMIT: _row(
        _STALE, _STALE, _BUSY, _OTHER_END, Transition(COMPLETE_COMMIT, _SAME), _OTHER_END
    ),
    TransactionEvent.RETRY_ABORT: _row(
        _STALE, _STALE, _OTHER_END, _BUSY, _OTHER_END, Transition(COMPLETE_ABORT, _SAME)
    ),
    TransactionEvent.COMMIT_V1: _row(
        _V1_EMPTY,
        Transition(PREPARE_COMMIT, "Decided once this is durable; the epoch stays."),
        _BUSY,
        _OTHER_END,
        Transition(COMPLETE_COMMIT, _SAME),
        _OTHER_END,
    ),
    TransactionEvent.ABORT_V1: _row(
        _V1_EMPTY,
        Transition(PREPARE_ABORT, "Decided once this is durable; the epoch stays."),
        _OTHER_END,
        _BUSY,
        _OTHER_END,
        Transition(COMPLETE_ABORT, _SAME),
    ),
    TransactionEvent.FENCE: _row(
        _NONE_OPEN,
        Transition(PREPARE_ABORT, "Abort, and bump the epoch: its producer may only abort, too (KIP-890, KIP-588)."),
        _BUSY,
        _BUSY,
        _NONE_OPEN,
        _NONE_OPEN,
    ),
    TransactionEvent.MARKED: _row(
        _NOT_NOW,
        _NOT_NOW,
        Transition(COMPLETE_COMMIT, "Every partition has its marker."),
        Transition(COMPLETE_ABORT, "Every partition has its marker."),
        _NOT_NOW,
        _NOT_NOW,
    ),
    TransactionEvent.EXPIRE: _row(_EXPIRED, _KEPT, _KEPT, _KEPT, _EXPIRED, _EXPIRED),
}
"""Transitions, by event and then by state, each with Kafka's rule."""
