"""The state of a partition's producers, on which idempotence and transactions are based.

A pure machine: `ProducerStates.check` decides whether a batch may come next, the other calls apply what is in the log.
Replaying the log gives the same state, so a snapshot of it is only a cache (`eventbus.log.producers`).

========================  =======================================================================================
a batch                   is
========================  =======================================================================================
of an unknown producer    accepted with any sequence: its state may have expired, or was deleted with its records
of an older epoch         refused: `InvalidProducerEpoch`
of a newer epoch          accepted if it starts at sequence 0, else refused: `OutOfOrderSequence`
among the last five       a duplicate: answered with its first offset, stored once
next in sequence          accepted; 2147483647 is followed by 0
with another sequence     refused: `OutOfOrderSequence`
not transactional         refused while its producer has a transaction open here: `InvalidTxnState`
that is a marker          accepted from this or a newer epoch, and this or a newer coordinator; ends the transaction
========================  =======================================================================================

KIP-98, KIP-360, KIP-890. A batch with a producer id but sequence -1 (offsets committed inside a transaction) opens or
continues a transaction and takes no part in sequencing.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from eventbus.errors import InvalidProducerEpoch, InvalidTxnState, OutOfOrderSequence, TransactionCoordinatorFenced
from eventbus.log.wall_time import WallTime
from eventbus.records.control import ControlType, EndTransactionMarker
from eventbus.records.sequence import MAX_SEQUENCE, increment_sequence

CACHED_BATCHES = 5
"""The number of batches that a producer may have in flight."""

ANY_SEQUENCE = -2
"""The next sequence of a producer whose sequences are not known."""

NO_OFFSET = -1

CachedBatch = tuple[int, int, int, int]
"""A stored batch: base_sequence, last_sequence, base_offset, timestamp_ms."""


class ProducerBatch(Protocol):
    """The fields of a batch that matter here, from its header or its builder."""

    @property
    def last_offset_delta(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...
    @property
    def base_sequence(self) -> int: ...
    @property
    def is_transactional(self) -> bool: ...


class CompletedTransaction(NamedTuple):
    """A transaction that a marker has ended; ``last_offset`` is the marker's offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool
    last_stable_offset: int
    """The start of the oldest transaction that was still open then; the offset after the marker if there was none."""


class ProducerState:
    """The state of one producer."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "idle_since_ms",
        "in_transaction",
        "is_active",
        "last_timestamp_ms",
        "next_sequence",
        "producer_epoch",
        "transaction_start_offset",
    )

    def __init__(self, producer_epoch: int) -> None:
        self.producer_epoch = producer_epoch
        self.next_sequence = ANY_SEQUENCE
        self.batches: list[CachedBatch] = []
        """The last five batches, oldest first."""
        self.in_transaction = False
        self.transaction_start_offset = NO_OFFSET
        self.coordinator_epoch = -1
        self.last_timestamp_ms = -1
        self.is_active = True
        """The producer wrote since the last sweep for idle producers."""
        self.idle_since_ms = -1
        """The start of the idle time, by the wall clock of the sweep, not by record timestamps."""

    def __repr__(self) -> str:
        batches = " ".join(f"{base}..{last}@{offset}" for base, last, offset, _ in self.batches)
        parts = [f"epoch={self.producer_epoch}", f"next={self.next_sequence}", f"[{batches}]"]
        if self.in_transaction:
            parts.append(f"open@{self.transaction_start_offset}")
        if self.coordinator_epoch >= 0:
            parts.append(f"coordinator={self.coordinator_epoch}")
        return " ".join([*parts, f"at={self.last_timestamp_ms}"])

    @property
    def last_sequence(self) -> int:
        """The last sequence; -1 if none is known."""
        return self.batches[-1][1] if self.batches else -1

    def appended(self, base_sequence: int, last_offset_delta: int, base_offset: int, timestamp_ms: int) -> None:
        """Add a stored batch of this epoch. This is the hot path, so it makes no calls."""
        last_sequence = base_sequence + last_offset_delta
        if last_sequence < MAX_SEQUENCE:  # a comparison is cheaper than the masks
            self.next_sequence = last_sequence + 1
        else:
            last_sequence &= MAX_SEQUENCE
            self.next_sequence = (last_sequence + 1) & MAX_SEQUENCE
        batches = self.batches
        if len(batches) == CACHED_BATCHES:
            del batches[0]
        batches.append((base_sequence, last_sequence, base_offset, timestamp_ms))
        self.last_timestamp_ms = timestamp_ms
        self.is_active = True

    def raise_epoch(self, producer_epoch: int) -> None:
        """Begin a new epoch, in which sequences start over."""
        self.producer_epoch = producer_epoch
        self.batches = []
        self.next_sequence = 0


class ProducerStates:
    """All producers of one partition, by id. ``where`` names the partition in errors."""

    def __init__(self, where: str) -> None:
        self.producers: dict[int, ProducerState] = {}
        self._where = where
        self._open: dict[int, int] = {}
        """The start of each open transaction, by producer id, in the order of offsets."""
        self._undecided: list[tuple[int, int]] = []
        """(First offset, offset of the marker) of ended transactions whose marker may not be readable yet."""

    def __repr__(self) -> str:
        """A single sorted line, equal for equal states."""
        return "; ".join(f"{producer_id}: {self.producers[producer_id]!r}" for producer_id in sorted(self.producers))

    # -- may it come next ---------------------------------------------------------------------------------------------

    def check(self, batch: ProducerBatch) -> CachedBatch | None:
        """Return the batch that this batch duplicates, or None if it may be appended. Raises as in the table above."""
        producer = self.producers.get(batch.producer_id)
        # An unknown producer may begin with any sequence: its state may have expired, or retention may have deleted its
        # records (KIP-360).
        if producer is None:
            return None
        base_sequence = batch.base_sequence
        if batch.producer_epoch < producer.producer_epoch:
            raise self._old_epoch(batch.producer_id, batch.producer_epoch, producer)
        if base_sequence >= 0 and batch.producer_epoch > producer.producer_epoch:
            # A new epoch starts over at 0. Another sequence means that an earlier batch of the epoch was lost.
            self._check_sequence(batch, 0, producer)
        elif base_sequence >= 0:
            last_sequence = increment_sequence(base_sequence, batch.last_offset_delta)
            # Duplicates come first: with five requests in flight, a retry of any of them may arrive after the others.
            for cached in producer.batches:
                if cached[0] == base_sequence and cached[1] == last_sequence:
                    return cached
            if producer.next_sequence != ANY_SEQUENCE:
                self._check_sequence(batch, producer.next_sequence, producer)
        # A batch outside of the transaction would be readable at once by its own header, and hidden by the last stable
        # offset.
        if producer.in_transaction and not batch.is_transactional:
            raise InvalidTxnState(
                f"{self._where}: producer {batch.producer_id} has a transaction open here since offset "
                f"{producer.transaction_start_offset}, and sent a batch outside of it: end the transaction first"
            )
        return None

    def check_marker(self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker) -> None:
        """Raise InvalidProducerEpoch or TransactionCoordinatorFenced if the marker comes too late."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        if producer_epoch < producer.producer_epoch:
            raise self._old_epoch(producer_id, producer_epoch, producer)
        if marker.coordinator_epoch < producer.coordinator_epoch:
            raise TransactionCoordinatorFenced(
                f"{self._where}: a marker for producer {producer_id} from coordinator epoch {marker.coordinator_epoch},"
                f" but {producer.coordinator_epoch} has written here: a newer coordinator took over"
            )

    def _check_sequence(self, batch: ProducerBatch, expected: int, producer: ProducerState) -> None:
        if batch.base_sequence != expected:
            raise OutOfOrderSequence(
                f"{self._where}: producer {batch.producer_id}, epoch {batch.producer_epoch}, sent sequence "
                f"{batch.base_sequence} where {expected} comes next (stored: {producer!r}). What it sent before was "
                "lost or refused: open a new producer"
            )

    def _old_epoch(self, producer_id: int, producer_epoch: int, producer: ProducerState) -> InvalidProducerEpoch:
        return InvalidProducerEpoch(
            f"{self._where}: producer {producer_id} wrote with epoch {producer_epoch}, but epoch "
            f"{producer.producer_epoch} has been here: a newer instance took over"
        )

    # -- what the log holds -------------------------------------------------------------------------------------------

    def append(self, batch: ProducerBatch, base_offset: int, timestamp_ms: int) -> None:
        """Apply a batch that was appended, both live and during replay."""
        producer_id = batch.producer_id
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self.producers[producer_id] = ProducerState(batch.producer_epoch)
        elif batch.producer_epoch != producer.producer_epoch:
            producer.raise_epoch(batch.producer_epoch)
        if batch.base_sequence >= 0:
            producer.appended(batch.base_sequence, batch.last_offset_delta, base_offset, timestamp_ms)
        else:
            producer.last_timestamp_ms = timestamp_ms
            producer.is_active = True
        if batch.is_transactional and not producer.in_transaction:
            producer.in_transaction = True
            producer.transaction_start_offset = base_offset
            self._open[producer_id] = base_offset

    def append_marker(
        self, producer_id: int, producer_epoch: int, marker: EndTransactionMarker, offset: int, timestamp_ms: int
    ) -> CompletedTransaction | None:
        """Apply a marker; return the transaction it ended, if there was one."""
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self.producers[producer_id] = ProducerState(producer_epoch)
        elif producer_epoch != producer.producer_epoch:
            producer.raise_epoch(producer_epoch)
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.last_timestamp_ms = timestamp_ms
        producer.is_active = True
        if not producer.in_transaction:
            return None
        first_offset = self._open.pop(producer_id)
        producer.in_transaction = False
        producer.transaction_start_offset = NO_OFFSET
        # The marker is not durable yet. If the last stable offset moved now, a reader could see records of a
        # transaction whose marker a power cut then removes.
        self._undecided.append((first_offset, offset))
        # `_open` is ordered by offset, because a transaction is added when its first batch is appended.
        stable = next(iter(self._open.values()), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, marker.control_type is ControlType.ABORT, stable)

    # -- what readers may see -----------------------------------------------------------------------------------------

    def last_stable_offset(self, high_watermark: int) -> int:
        """Return the first offset of the oldest transaction that is open, or whose marker is not below the
        watermark."""
        undecided, oldest = self._undecided, next(iter(self._open.values()), high_watermark)
        if not undecided:
            return min(high_watermark, oldest)
        # Markers are in the order of their offsets, so the last one decides for all.
        if undecided[-1][1] < high_watermark:
            undecided.clear()
        else:
            self._undecided = undecided = [each for each in undecided if each[1] >= high_watermark]
        return min(high_watermark, oldest, *[first for first, _ in undecided])

    @property
    def has_open(self) -> bool:
        """True if any transaction is open."""
        return bool(self._open)

    # -- forgetting, restoring ----------------------------------------------------------------------------------------

    def expire(self, wall_now_ms: int, expiration_ms: int, wall: WallTime | None = None) -> int:
        """Forget producers that were idle for ``expiration_ms`` and have no open transaction; return how many.

        Idle time counts from the sweep after a producer's last batch, so records with old timestamps do not end it
        early. A snapshot preserves it; without a snapshot it counts from the opening.
        """
        expired: list[int] = []
        for producer_id, producer in self.producers.items():
            if producer.is_active:
                producer.is_active = False
                producer.idle_since_ms = wall_now_ms
                continue
            idle_since_ms = producer.idle_since_ms
            if wall is not None:
                idle_since_ms = wall.believed(idle_since_ms, wall_now_ms)
            # A producer with an open transaction is needed for the marker that ends it.
            if not producer.in_transaction and wall_now_ms - idle_since_ms >= expiration_ms:
                expired.append(producer_id)
        for producer_id in expired:
            del self.producers[producer_id]
        return len(expired)

    def restore(self, producer_id: int, producer: ProducerState) -> None:
        """Restore one producer of a snapshot. Call this for open transactions in the order of their offsets."""
        self.producers[producer_id] = producer
        if producer.in_transaction:
            self._open[producer_id] = producer.transaction_start_offset

    def settle(self, wall_now_ms: int) -> None:
        """End recovery: every marker in the log may be read, and no producer has written since.

        A producer that wrote after the snapshot, or that was active when it was taken, is idle from now on.
        """
        self._undecided.clear()
        for producer in self.producers.values():
            if producer.is_active:
                producer.is_active = False
                producer.idle_since_ms = wall_now_ms

    def check_consistency(self) -> None:
        """Check every invariant; raise AssertionError."""
        opened = {
            producer_id: producer.transaction_start_offset
            for producer_id, producer in self.producers.items()
            if producer.in_transaction
        }
        assert opened == self._open, f"{self._where}: open {opened}, listed {self._open}"
        assert list(self._open.values()) == sorted(self._open.values()), f"{self._where}: {self._open}"
        for producer in self.producers.values():
            assert len(producer.batches) <= CACHED_BATCHES
            if producer.batches:
                assert producer.next_sequence == increment_sequence(producer.last_sequence, 1), repr(producer)
